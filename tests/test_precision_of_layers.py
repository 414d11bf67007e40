"""The option `precision` of layers overrides the precision that is set, and goes with copies and prepared layers."""

import copy
import pickle

import numpy as np
import pytest

import varlen_rnn as vr

pytestmark = pytest.mark.usefixtures("fp32_again")

ROWS = vr.create_lod_tensor(np.random.default_rng(0).standard_normal((5, 3)).astype("f"), [[2, 3]])


class Asking(vr.nn.Module):
    def __init__(self, precision=None):
        self.precision = precision

    def forward(self, x):
        return vr.tape.variable.apply("asking", x)


def recorded(model):
    """Return the precisions of the operators that multiply, in a program of a model and its gradient."""
    with vr.program_guard() as program:
        x = vr.feed_data("x", [-1, 3], "float32", 1, requires_grad=True)
        y = model(x)
        vr.backward((y[0] if isinstance(y, tuple) else y).sum())
    return {op.type: op.precision for op in program.desc.blocks[0].ops if vr.tape.operator.find(op.type).multiplies}


def test_a_layer_keeps_its_precision_forward_and_backward():
    vr.set_float32_matmul_precision("bf16")
    given = {"matmul": "fp32", "row_product": "fp32"}
    assert recorded(vr.nn.Linear(3, 2, precision="fp32")) == given
    for layer in (vr.nn.LSTM, vr.nn.GRU, vr.nn.RNN, vr.nn.SLSTM):
        for named, precision in ({"precision": "bf16-avx512"}, "bf16-avx512"), ({}, "bf16"):
            found = recorded(layer(3, 4, **named))
            assert set(found.values()) == {precision}, layer
            assert {"recurrent", "recurrent_grad"} <= found.keys() or layer is vr.nn.SLSTM


def test_the_innermost_module_decides(asking):
    model = vr.nn.Sequential(Asking("fp32"), Asking(), Asking("bf16-avx512"))
    model.precision = "bf16"
    loss = model(vr.Variable(ROWS, requires_grad=True)).sum()
    loss.backward()
    assert asking.noted == ["fp32", "bf16", "bf16-avx512", "bf16-avx512", "bf16", "fp32"]
    assert vr.get_float32_matmul_precision() == "fp32"


def test_all_states_has_the_precision():
    layer = vr.nn.LSTM(3, 4, precision="bf16")
    with vr.program_guard() as program:
        layer.all_states(vr.feed_data("x", [-1, 3], "float32", 1))
    assert [op.precision for op in program.desc.blocks[0].ops if op.type == "recurrent"] == ["bf16"]


def test_copies_pickles_and_texts_have_the_precision():
    model = vr.nn.Sequential(vr.nn.GRU(3, 4, precision="bf16"), vr.nn.Linear(4, 2, precision="fp32"))
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert [module.precision for module in made] == ["bf16", "fp32"]
    assert "precision='bf16'" in repr(model[0])
    assert repr(vr.nn.Linear(4, 2)) == "Linear(4, 2, bias=True)"
    assert model.state_dict().keys() == vr.nn.Sequential(vr.nn.GRU(3, 4), vr.nn.Linear(4, 2)).state_dict().keys()
    found = vr.nn.summary(vr.nn.Sequential(vr.nn.Linear(3, 4, precision="bf16"), vr.nn.Linear(4, 2)), [[0, 2, 5]])
    assert [layer.precision for layer in found.layers] == ["fp32", "bf16", "fp32"]
    assert "Linear, bf16" in repr(found)


def test_a_wrong_precision_is_refused():
    for make in (lambda p: vr.nn.Linear(3, 2, precision=p), lambda p: vr.nn.LSTM(3, 4, precision=p)):
        with pytest.raises(vr.InputError, match="precision: expected one of 'fp32', 'tf32', 'bf16' or 'bf16-avx512'"):
            make("bf17")


def test_a_prepared_model_keeps_the_precision_of_its_preparation(asking):
    with vr.float32_matmul_precision("bf16"):
        run = vr.nn.Sequential(Asking(), Asking("fp32")).prepare()
    run(ROWS)
    assert asking.noted == ["bf16", "fp32"]


def test_a_prepared_layer_is_packed_at_the_precision_of_the_modules_around_it(monkeypatch):
    noted = []
    packed = vr.nn.recurrent.packed_layers.Packed
    monkeypatch.setattr(
        vr.nn.recurrent.packed_layers,
        "Packed",
        lambda *given: noted.append(vr.get_float32_matmul_precision()) or packed(*given),
    )
    outer = vr.nn.Sequential(vr.nn.GRU(3, 4))
    outer.precision = "bf16"
    outer.prepare()
    vr.nn.GRU(3, 4, precision="bf16-avx512").prepare()
    vr.nn.GRU(3, 4, precision="bf16").stream()
    vr.nn.GRU(3, 4).prepare()
    assert noted == ["bf16", "bf16-avx512", "bf16", "fp32"]


def test_a_bound_step_is_recorded_again_at_another_precision(asking):
    step = vr.bound(lambda x: asking(x))
    for precision in ("fp32", "bf16", "fp32"):
        vr.set_float32_matmul_precision(precision)
        for _ in range(5):
            step(ROWS)
        assert set(asking.noted) == {precision}
        asking.noted.clear()
    assert len(step.explain().splitlines()) == 2
