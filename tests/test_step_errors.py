"""What a step of one's own, or a loop, says of what it cannot do: where, of which argument, and what works instead."""

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.nn import functional as F

LENGTHS = [2, 0, 3]
X = vr.create_lod_tensor(np.ones((5, 3), np.float32), [LENGTHS])
IDS = vr.create_lod_tensor(np.arange(5), [LENGTHS])
CELL = vr.nn.LSTMCell(3, 4)
ATTENTION = vr.nn.AdditiveAttention(4, 3, 5)


def of_cell(x, h, c):
    h, c = CELL(x, (h, c))
    return h, h, c


@pytest.mark.parametrize(
    ("x", "states", "message"),
    [
        (X, [4, (4,)], r"DynamicRNN, states\[0\]: expected an array, or a tuple of sizes, got 4 .*tuple \(4,\)"),
        (X, [(4,), [4]], r"DynamicRNN, states\[1\]: .* got \[4\] \(for zeros of these sizes, pass the tuple \(4,\)\)"),
        (
            X,
            [(5,), (4,)],
            r"LSTMCell, h: .*; in a step of DynamicRNN, given x float32 \[-1, 3\], state float32 \[-1, 5\]",
        ),
        (X, [(4,), np.zeros((2, 4), np.float32)], r"DynamicRNN, states\[1\]: expected 3 rows, one per sequence"),
        (IDS, [(4,), (4,)], r"DynamicRNN, states\[0\]: .* data type of x, got sizes, and x of int64 \(x.astype"),
        (X.data, [(4,), (4,)], r"DynamicRNN, x: expected at least one level"),
    ],
    ids=str,
)
def test_arguments_are_named(x, states, message):
    with pytest.raises(vr.InputError, match=message):
        vr.nn.DynamicRNN(of_cell)(x, states)


USES = {
    "if": lambda h: 1.0 if h.sum() > 0.0 else 2.0,
    "float": lambda h: float(h.sum()),
    "array": lambda h: np.asarray(h),
    "item": lambda h: h.sum().item(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_step_or_a_loop_that_asks_for_values_is_told_what_chooses_and_repeats(use):
    with pytest.raises(vr.ProgramError, match=r"got a variable of a step .*where\(.*\) chooses .* while_loop"):
        vr.nn.DynamicRNN(lambda x, h: (x * use(h), h))(X, [(3,)])
    with vr.program_guard():
        x = vr.feed_data("x", [2, 3], "float32")
        with pytest.raises(vr.ProgramError, match=r"got a variable of a step or a loop.*where\(.*\) chooses"):
            vr.while_loop(lambda x: x.sum() < 9.0, lambda x: [x * use(x)], [x])
        with pytest.raises(vr.ProgramError, match=r"got a variable of a program .Executor.*where\("):
            use(x)


def test_a_loop_of_a_program_names_what_has_a_gradient():
    weight = vr.nn.Parameter(np.ones((2, 2), np.float32))
    with vr.program_guard():
        (x,) = vr.while_loop(
            lambda x: x.sum() < 9.0, lambda x: [x + x @ weight], [vr.feed_data("x", [1, 2], "float32")]
        )
        with pytest.raises(vr.ProgramError, match=r"backward through 'while_loop': .*nn\.DynamicRNN"):
            vr.optim.SGD([weight], lr=0.1).minimize(x.sum())


def test_attention_to_sequences_from_outside_names_the_state_that_works():
    def to_outside(x, h, c):
        return of_cell(x + ATTENTION(h, X), h, c)

    def to_state(x, h, c, source):
        return *of_cell(x + ATTENTION(h, source), h, c), source

    with pytest.raises(vr.LoDError, match=r"key: expected 2 sequences, .*as a state, which the step returns"):
        vr.nn.DynamicRNN(to_outside)(X, [(4,), (4,)])
    y, *_ = vr.nn.DynamicRNN(to_state)(X, [(4,), (4,), X])
    assert y.lod() == X.lod()


def test_attention_names_what_has_other_columns():
    six = np.ones((3, 6), np.float32)
    with pytest.raises(
        vr.ShapeError, match=r"AdditiveAttention, query: expected shape \(rows, 4\), got shape \(3, 6\)"
    ):
        ATTENTION(six, X)
    with pytest.raises(vr.ShapeError, match=r"AdditiveAttention, key: expected shape \(rows, 3\)"):
        ATTENTION(six[:, :4], X.like(np.ones((5, 6), np.float32)))
    with pytest.raises(vr.ShapeError, match=r"MultiheadAttention, value: expected shape \(rows, 5\)"):
        vr.nn.MultiheadAttention(4, 2, kdim=3, vdim=5)(X.like(np.ones((5, 4), np.float32)), X, X)


def test_the_advice_of_explain_for_two_inputs_makes_a_cell():
    w, u = vr.Variable(np.ones((6, 4), np.float32)), vr.Variable(np.ones((4, 4), np.float32))
    two = vr.nn.DynamicRNN(lambda x, y, h: (F.tanh(F.concat([x, y], axis=1) @ w + h @ u),) * 2)
    one = vr.nn.DynamicRNN(lambda x, h: (F.tanh(x @ w + h @ u),) * 2)
    found = two((X, X), [(4,)])[0]
    assert "concat them before the layer, and multiply the result by a weight" in two.explain()
    np.testing.assert_allclose(one(F.concat([X, X], axis=1), [(4,)])[0], found, rtol=1e-6)
    assert one.explain().startswith("runs fused")


def test_lod_reset_takes_one_level_and_names_what_takes_several():
    with pytest.raises(vr.DTypeError, match=r"lod_reset, target_lod: expected the offsets of one level, .*with_lod"):
        vr.lod_reset(X, target_lod=[[0, 1], [0, 5]])


def test_a_file_is_no_model_of_a_folder(tmp_path):
    path = tmp_path / "model"
    path.write_bytes(b"")
    with pytest.raises(vr.ProgramError, match="load_inference_model, folder: expected a folder, got the file"):
        vr.load_inference_model(path)
