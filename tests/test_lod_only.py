"""A result that depends on an input only by its LoD, or its shape, needs no gradient because that input does."""

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.nn import functional as F
from varlen_rnn.program.checker import examples_of
from varlen_rnn.tape.operator import OPERATORS, find


def with_other_rows(trial, position):
    values = list(trial.values)
    values[position] = values[position].like(np.random.default_rng(7).uniform(0.1, 0.9, values[position].shape))
    return trial._replace(values=values)


def floats(trial, wanted):
    """Return the floating outputs of an operator of which the inputs at the positions `wanted` require a gradient."""
    given = [
        value if value is None else vr.Variable(value, requires_grad=n in wanted)
        for n, value in enumerate(trial.values)
    ]
    shown = trial.apply(given)[1]
    return [one for one in shown if isinstance(one.value, vr.LoDTensor) and one.dtype.kind == "f"]


def reads_rows(trial, position):
    pairs = zip(floats(trial, ()), floats(with_other_rows(trial, position), ()), strict=True)
    return any(not np.array_equal(one, other) for one, other in pairs)


LOD_ONLY = {
    ("sequence_expand", "y"), ("sequence_expand_as", "y"), ("lod_reset", "y"), ("lod_append", "level"),
    ("sequence_topk_avg_pooling", "row"), ("sequence_topk_avg_pooling", "col"), ("zeros_of_sequences", "x"),
    ("rectangle", "x"),
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name, op in OPERATORS.items() if op.grad and name != "detach"])
def test_only_inputs_whose_rows_count_make_a_result_need_a_gradient(name):
    op = find(name)
    read, needed = {}, {}
    for trial in examples_of(op):
        for position in trial.differentiable():
            place = op.input_name(position).partition("[")[0]
            read[place] = read.get(place, False) | reads_rows(trial, position)
            needed[place] = needed.get(place, False) | any(one.requires_grad for one in floats(trial, {position}))
    assert needed == read
    assert {(name, place) for place, counts in read.items() if not counts} == {at for at in LOD_ONLY if at[0] == name}


def test_constants_along_a_lod_stay_constants():
    x = vr.Variable(vr.create_lod_tensor(np.ones((5, 2)), [[2, 3]]), requires_grad=True)
    constant = np.ones((2, 3))
    assert not vr.sequence_expand_as(constant, x).requires_grad
    assert vr.sequence_expand_as(vr.Variable(constant, requires_grad=True), x).requires_grad
    (vr.sequence_expand_as(constant, x)[:, :2] * x).sum().backward()
    np.testing.assert_array_equal(x.grad, np.ones((5, 2)))
    with pytest.raises(vr.ProgramError, match="no input of the loss requires a gradient"):
        vr.sequence_expand_as(constant, x).sum().backward()
    assert not F.softmax(np.zeros((1, 2))).requires_grad


def test_an_operator_of_a_user_passes_gradients_where_it_says(monkeypatch):
    monkeypatch.setattr(vr.tape.operator, "OPERATORS", dict(vr.tape.operator.OPERATORS))

    @vr.operator(name="scaled_like_lod_only")
    def scaled(x, like):
        return x.data * len(like.data)

    @scaled.infer
    def _infer(x, like):
        return x

    @scaled.backward("x")
    def _backward(x, like, d_out):
        return d_out.data * len(like.data)

    x, like = (vr.Variable(np.ones(3), requires_grad=True) for _ in range(2))
    assert not scaled(np.ones(3), like).requires_grad
    scaled(x, like).sum().backward()
    assert (x.grad.tolist(), like.grad) == ([3, 3, 3], None)
