"""Loops that end by their data: the loop of Python, a program's, and one from a file give the same bits."""

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.nn import functional as F

END = 3


class Speller(vr.nn.Module):
    """Spells what a state says, symbol by symbol, until all have ended or are long: greedy decoding."""

    def __init__(self):
        self.embedding = vr.nn.Embedding(5, 4, dtype=np.float64)
        self.cell, self.output = vr.nn.LSTMCell(4, 6, dtype=np.float64), vr.nn.Linear(6, 5, dtype=np.float64)

    def forward(self, h, c, first, starts):
        """Return what is spelled as sequences, which going on has become longer, and the turns."""

        def goes_on(symbols, going, count, *_):
            return F.where(going, np.ones(3), np.zeros(3)).sum() * F.where(count < 7, 1.0, 0.0) > 0.0

        def step(symbols, going, count, spelled, h, c):
            h, c = self.cell(self.embedding(symbols), (h, c))
            symbols = self.output(h).argmax(axis=1)
            spelled = vr.sequence_concat([spelled, vr.lod_reset(symbols, starts)])
            return symbols, going & F.not_equal(symbols, END), count + 1, spelled, h, c

        before = [first, F.not_equal(first, END), np.array(0), starts, h, c]
        _, going, count, spelled, *_ = vr.while_loop(goes_on, step, before)
        return spelled, going, count


def states():
    return [np.random.default_rng(seed).standard_normal((3, 6)) * 3 for seed in (1, 2)]


def starts():
    return vr.create_lod_tensor(np.array([0, 1, 2]), [[1, 1, 1]])


def speller():
    vr.manual_seed(1)
    return Speller()


def by_hand(model, h, c):
    """Return the symbols of each sequence, step by step in Python."""
    symbols, going, spelled = np.array([0, 1, 2]), np.ones(3, bool), [[0], [1], [2]]
    for _ in range(7):
        if not going.any():
            break
        h, c = model.cell(model.embedding(symbols), (h, c))
        symbols = np.asarray(model.output(h)).argmax(axis=1)
        going &= symbols != END
        for text, symbol in zip(spelled, symbols, strict=True):
            text.append(int(symbol))
    return spelled


def test_decoding_equals_python_at_once_in_a_program_and_from_its_file(tmp_path):
    model = speller()
    wanted = by_hand(model, *states())
    spelled, _, count = model(*states(), np.arange(3), starts())
    assert [part.tolist() for part in spelled.value.to_sequences()] == wanted
    assert 1 < int(count) <= 7
    with vr.program_guard() as program:
        h, c = (vr.feed_data(name, [-1, 6], "float64") for name in "hc")
        given = vr.feed_data("starts", [-1], "int64", lod_level=1)
        spelled, _, count = model(h, c, vr.feed_data("first", [-1], "int64"), given)
    program.save(tmp_path / "speller")
    for one in (program, vr.Program.load(tmp_path / "speller"), program.prune([spelled.name, count.name])):
        feed = dict(zip("hc", states(), strict=True)) | {"first": np.arange(3), "starts": starts()}
        text, turns = vr.Executor().run(one, feed, [spelled.name, count.name])
        assert [part.tolist() for part in text.to_sequences()] == wanted
        assert turns == len(wanted[0]) - 1


def doubled(x, limit):
    """Doubles the rows of sequences until their sum is large, and counts."""
    return vr.while_loop(
        lambda x, n: x.sum() < limit, lambda x, n: [vr.sequence_concat([x, x]) * 0.75, n + 1.0], [x, np.array(0.0)]
    )


@pytest.mark.parametrize(("limit", "turns"), [(0.0, 0), (6.5, 1), (100.0, 7)])
def test_variables_may_be_sequences_that_grow(limit, turns):
    x = vr.create_lod_tensor(np.ones((6, 1)), [[2, 0, 3, 1]])
    y, n = doubled(x, limit)
    assert float(n) == turns
    assert y.value.recursive_sequence_lengths() == [[2**turns * length for length in (2, 0, 3, 1)]]
    with vr.program_guard() as program:
        out, count = doubled(vr.feed_data("x", [-1, 1], "float64", lod_level=1), vr.feed_data("limit", [], "float64"))
    got, counted = vr.Executor().run(program, {"x": x, "limit": np.array(limit)}, [out, count])
    assert counted == turns
    assert got.lod() == y.lod()
    np.testing.assert_array_equal(np.asarray(got), np.asarray(y))


def test_loops_in_loops_and_in_steps():
    """A recurrence whose step halves its state until it is small."""

    def step(x, h):
        (h,) = vr.while_loop(lambda h: (h * h).sum() > 1.0, lambda h: [h * 0.5], [h + x])
        return h, h

    def twice(x):
        return vr.while_loop(
            lambda x: x.sum() > 1.0,
            lambda x: vr.while_loop(lambda y: y.sum() > 8.0, lambda y: [y * 0.25], [x * 0.5]),
            [x],
        )

    x, big = vr.create_lod_tensor(np.full((3, 1), 5.0), [[2, 1]]), np.full(3, 100.0)
    with vr.program_guard() as program:
        y, _ = vr.nn.DynamicRNN(step)(vr.feed_data("x", [-1, 1], "float64", lod_level=1), [(1,)])
        (z,) = twice(vr.feed_data("big", [-1], "float64"))
    got = vr.Executor().run(program, {"x": x, "big": big}, [y, z])
    h, wanted = np.zeros((2, 1)), np.zeros((3, 1))
    for rows, alive in (([0, 2], 2), ([1], 1)):
        h = h[:alive] + 5.0
        while (h * h).sum() > 1.0:
            h = h * 0.5
        wanted[rows] = h
    np.testing.assert_array_equal(np.asarray(got[0]), wanted)
    np.testing.assert_array_equal(np.asarray(got[1]), np.asarray(twice(vr.Variable(big))[0]))
    assert float(got[1].sum()) <= 1.0


def test_gradients_pass_at_once_and_not_in_a_program():
    x = vr.Variable(np.array([1.0, 2.0]), requires_grad=True)
    (y,) = vr.while_loop(lambda y: y.sum() < 20.0, lambda y: [y * x], [x])
    y.sum().backward()
    np.testing.assert_allclose(x.grad, [5.0, 80.0])  # of x ** 5: 1 + 16 is less than 20, 1 + 32 is not
    with vr.program_guard():
        weight = vr.nn.Parameter(np.ones(2))
        (y,) = vr.while_loop(lambda y: y.sum() < 20.0, lambda y: [y + weight], [vr.feed_data("x", [2], "float64")])
        with pytest.raises(vr.ProgramError, match="while_loop"):
            vr.optim.SGD([weight], 0.1).minimize(y.sum())


ROWS = np.ones((3, 2))
WRONG = {
    "none": (lambda: vr.while_loop(lambda: True, lambda: [], []), vr.ShapeError, "at least one variable"),
    "another number": (
        lambda: vr.while_loop(lambda x: x.sum() < 9.0, lambda x: [x, x], [ROWS]), vr.ShapeError, "expected 1 results",
    ),
    "other columns": (
        lambda: vr.while_loop(lambda x: x.sum() < 9.0, lambda x: F.concat([x, x], axis=1), [ROWS]),
        vr.ShapeError, "variable 0 of the next iteration",
    ),
    "another type": (
        lambda: vr.while_loop(lambda x: x.sum() < 9.0, lambda x: x.argmax(axis=1), [ROWS]),
        vr.DTypeError, "variable 0 of the next iteration",
    ),
    "levels": (
        lambda: vr.while_loop(lambda x: x.sum() < 9.0, lambda x: vr.lod_reset(x, target_lod=(0, 3)), [ROWS]),
        vr.LoDError, "0 LoD levels, as in loop_vars",
    ),
    "many numbers": (lambda: vr.while_loop(lambda x: x < 9.0, lambda x: x, [ROWS]), vr.ShapeError, "a single number"),
    "a set": (lambda: vr.while_loop(lambda x: x.sum() < 9.0, lambda x: {x}, [ROWS]), vr.DTypeError, "a list of 1"),
    "no function": (lambda: vr.while_loop(1, lambda x: x, [ROWS]), vr.DTypeError, "while_loop, cond"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_told(call, error, message):
    with pytest.raises(error, match=message):
        call()
    with vr.program_guard(), pytest.raises(error, match=message):
        call()
