"""Layers inside PyTorch: a gradient has the precision of its forward pass, in the threads of torch."""

import pytest

torch = pytest.importorskip("torch")

import varlen_rnn as vr  # noqa: E402
import varlen_rnn.torch as vt  # noqa: E402
from varlen_rnn import recurrence  # noqa: E402
from varlen_rnn.runtime.precision import get_float32_matmul_precision  # noqa: E402


@pytest.fixture
def passes(monkeypatch):
    """Return a list of the passes of recurrent layers, with the precisions in force."""
    found = []

    def noted(name):
        run = getattr(recurrence, name)
        return lambda *given, **named: found.append((name, get_float32_matmul_precision())) or run(*given, **named)

    for name in ("forward", "backward"):
        monkeypatch.setattr(recurrence, name, noted(name))
    return found


def loss_of(layer):
    words = torch.zeros(5, 3, requires_grad=True)
    return layer(words, offsets=[0, 2, 5])[0].sum()


def test_the_gradient_of_a_layer_has_the_precision_of_its_forward_pass(passes):
    layer = vt.GRU(3, 4)
    with vr.float32_matmul_precision("bf16"):
        loss = loss_of(layer)
    loss.backward(retain_graph=True)
    loss.backward()  # this runs the layer forward again
    assert passes == [("forward", "bf16"), ("backward", "bf16"), ("forward", "bf16"), ("backward", "bf16")]


def test_the_gradient_of_a_function_has_the_precision_of_its_forward_pass(asking):
    call = vt.function(asking)
    with vr.float32_matmul_precision("bf16-avx512"):
        loss = call(torch.ones(4, 3, requires_grad=True)).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert asking.noted == ["bf16-avx512"] * 4, "the second pass runs the function forward again"


@pytest.mark.slow
def test_the_gradient_of_a_compiled_layer_has_the_precision_of_its_forward_pass(passes):
    layer = torch.compile(vt.GRU(3, 4), backend="aot_eager")
    for precision in ("bf16", "fp32"):
        with vr.float32_matmul_precision(precision):
            loss = loss_of(layer)
        loss.backward()
        assert passes == [("forward", precision), ("backward", precision)]
        passes.clear()
