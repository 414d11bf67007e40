"""A cell from its equations alone: what is derived, what is refused, and the bits of cells written by hand."""

import copy
import math
import pickle
import re
import subprocess
import sys

import cells_by_hand
import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn import recurrence
from varlen_rnn.cells import (
    GRU,
    LSTM,
    RNN_RELU,
    RNN_TANH,
    EquationError,
    Row,
    cell,
    constant,
    find_cell,
    maximum,
    multiply_add,
    norm,
    registry,
    sigmoid,
    tanh,
    where,
)
from varlen_rnn.plan import sort_by_seq_len
from varlen_rnn.tape.variable import apply


@pytest.fixture(autouse=True)
def names(monkeypatch):
    """The cells of a test are forgotten after it."""
    monkeypatch.setattr(registry, "_CELLS", dict(registry._CELLS))


def lstm(i, f, g, o, /, c):
    i, f, g, o = sigmoid(i), sigmoid(f), tanh(g), sigmoid(o)
    c = multiply_add(i, g, f * c)
    return o * tanh(c), c


def gru(r, z, n, /, h):
    r, z = sigmoid(r), sigmoid(z)
    n = tanh(n.x + r * n.h)
    return n + z * (h - n)


BY_HAND = [
    (LSTM, cells_by_hand.LSTM),
    (GRU, cells_by_hand.GRU),
    (RNN_TANH, cells_by_hand.RNN_TANH),
    (RNN_RELU, cells_by_hand.RNN_RELU),
]


@pytest.mark.parametrize(("derived", "by_hand"), BY_HAND, ids=["lstm", "gru", "rnn_tanh", "rnn_relu"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_has_the_bits_of_the_same_cell_by_hand(derived, by_hand, dtype):
    assert derived.num_kept == by_hand.num_kept
    assert derived.reads_output == by_hand.reads_output
    rng, plan = np.random.default_rng(0), sort_by_seq_len(np.cumsum([0, 3, 0, 9, 1, 5]))
    gates, hidden = len(by_hand.gates), 40
    draw = lambda *shape: rng.normal(size=shape).astype(dtype)
    x, d_y, initial = draw(18, 4), draw(18, hidden), draw(len(by_hand.states), 1, 5, hidden)
    weights = draw(gates * hidden, 4), draw(gates * hidden, hidden), draw(gates * hidden), draw(gates * hidden)
    results = []
    for one in (derived, by_hand):
        arguments = one, x, [recurrence.Direction(*weights)], initial, plan
        y, last, kept = recurrence.forward(*arguments)
        d_x, (d_weights,), d_initial = recurrence.backward(*arguments, y, kept, d_y, np.ones_like(initial))
        results.append([y, last, d_x, *d_weights[:4], d_initial])
    for got, right in zip(*results, strict=True):
        np.testing.assert_array_equal(got, right)


def test_what_was_derived_can_be_read():
    derived = cell(gru, name="readable")
    assert derived.slots == ("u_n", "r", "z", "n")
    assert derived.source.startswith("def step(x, h, prev, passed, v):\n")
    assert "def step_grad(slots, prev, states, operands, carried, v):\n    u_n, r, z, n, = slots\n" in derived.source
    assert cells_by_hand.GRU.source is None


def test_a_row_keeps_as_few_numbers_as_it_can():
    def wasteful(a, /, h):  # of five intermediate numbers, the gradient needs tanh(a) alone
        t = tanh(a)
        return ((t + 1) * 2 + (t - 3)) / 4 + h

    assert cell(wasteful).num_kept == 1


def three(r, m, n, /, h):
    r = sigmoid(r)
    m = tanh(m.x + m.of(r * h))
    n = tanh(n.x + n.of(m * r))
    return n + r * (h - m)


def test_three_products_of_a_step():
    """One after another, through a layer, against a loop in NumPy and a central difference."""
    chained, hidden = cell(three), 6
    assert [phase.gates for phase in chained.phases] == [1, 1, 1]
    rng, offsets = np.random.default_rng(3), np.cumsum([0, 3, 0, 4, 1])
    plan, x, start = sort_by_seq_len(offsets), rng.normal(size=(8, 3)), rng.normal(size=(1, 1, 4, hidden))
    weights = [rng.normal(size=s) for s in ((3 * hidden, 3), (3 * hidden, hidden), (3 * hidden,), (3 * hidden,))]
    d_y = rng.normal(size=(8, hidden))

    def oracle(x, weights, start):
        w_ih, w_hh, b_ih, b_hh = (np.split(w, 3) for w in weights)
        y = np.empty((8, hidden))
        for i in range(4):
            h = start[0, 0, i]
            for t in range(offsets[i], offsets[i + 1]):
                a = [w @ x[t] + b for w, b in zip(w_ih, b_ih, strict=True)]
                r = 1 / (1 + np.exp(-(a[0] + w_hh[0] @ h + b_hh[0])))
                m = np.tanh(a[1] + w_hh[1] @ (r * h) + b_hh[1])
                n = np.tanh(a[2] + w_hh[2] @ (m * r) + b_hh[2])
                y[t] = h = n + r * (h - m)
        return y

    arguments = chained, x, [recurrence.Direction(*weights)], start, plan
    y, _, kept = recurrence.forward(*arguments)
    np.testing.assert_allclose(y, oracle(x, weights, start), rtol=0, atol=1e-12)
    d_x, (d_weights,), d_start = recurrence.backward(*arguments, y, kept, d_y, np.zeros_like(start))
    for place, gradient in enumerate([d_x, *d_weights[:4], d_start]):
        v, sums = rng.normal(size=gradient.shape), []
        for step in (1e-6, -1e-6):
            moved = [x, *weights, start]
            moved[place] = moved[place] + step * v
            sums.append((oracle(moved[0], moved[1:5], moved[5]) * d_y).sum())
        assert (gradient * v).sum() == pytest.approx((sums[0] - sums[1]) / 2e-6, rel=1e-7, abs=1e-7)


def branches(a, /, h):
    if a > 0:
        return a
    return h


def loops_for_ever(a, /):
    return loops_for_ever(a)


REFUSED = [
    (branches, r"where\(condition, a, b\)"),
    (lambda a, /: np.sin(a), "got sin of 1"),
    (lambda a, /: a % 2, "where"),
    (lambda a, /: np.add.reduce(a), "got reduce"),
    (lambda a, /: a**0.5, r"a power: expected an integer from 1 to 8, got 0\.5 \(sqrt"),
    (lambda a, /: math.tanh(a), "tanh of varlen_rnn.cells, not math"),
    (lambda a, b, /: tanh(a), "no use of b"),
    (lambda a, /, *, v: tanh(a), "no use of v"),
    (lambda a, /, c: tanh(a), r"expected 2: h, c, got 1"),
    (lambda a, /: (tanh(a), a), "expected 1: h, got 2"),
    (lambda a: tanh(a), "gates, a slash"),
    (lambda *a: a[0], "gates, a slash"),
    (lambda a, /: "text", "expected numbers, got str"),
    (lambda a, /: None, r"expected numbers, got NoneType \(an equation ends with return"),
    (lambda a, /, h: a.x + a.h + a.of(h * 2), "one recurrent product"),
    (lambda a, b, /, h: tanh(b + a.x + a.of(tanh(b))), "order of their products"),
    (lambda a, b, c, /, h: a + b.of(h * 2) + c.of(h * 3), "one value for all gates"),
    (lambda a, b, c, d, /: d.of(c.of(b.of(tanh(a)))), "at most 3"),
    (loops_for_ever, "RecursionError"),
    (lambda a, /: 1 / 0 + a, "ZeroDivisionError"),
]


@pytest.mark.parametrize(("equations", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_no_equation_is_refused_with_its_line(equations, message):
    with pytest.raises(EquationError) as caught:
        cell(equations, name="refused")
    # The line that is shown is one of REFUSED, with the message that is looked for.
    where, told = str(caught.value).split("\n", 1)
    assert re.search(r"test_derived_cells\.py:\d+: \S", where)
    assert re.search(message, told)
    assert "refused" not in registry._CELLS


def test_it_decorates_with_a_name():
    assert cell(name="leaky")(lambda a, /, h: tanh(a) + h).name == "leaky"


def test_the_line_of_a_function_that_is_wrong_is_shown():
    with pytest.raises(EquationError, match=r"test_derived_cells\.py:\d+: if a > 0:\n"):
        cell(branches, name="refused")


@pytest.mark.parametrize("given", [3, "lstm", LSTM, print], ids=str)
def test_what_is_no_function_is_refused(given):
    with pytest.raises(vr.InputError, match="a function of scalars"):
        cell(given)


def test_ties_and_kinks():
    """As of PyTorch's maximum, nearly: all of a tie's gradient goes to the first operand."""
    kinks = cell(lambda a, b, /: maximum(a.x, b.x) + where(a.h > 0, a.h, 0), name="kinks")
    step, grad = kinks.phases[0].step.py_func, kinks.phases[0].step_grad.py_func
    _, _, slots, _ = step((1.0, 1.0), (0.0, 2.0), (0.0,), (), ())
    d_slots, _, _ = grad(slots, (0.0,), (0.0,), (), (1.0,), ())
    by_name = dict(zip(kinks.slots, d_slots, strict=True))
    assert sorted(by_name.values()) == [0.0, 0.0, 1.0]


def test_a_layer_a_program_and_a_copy(tmp_path):
    @cell
    def of_this_test(f, n, /, h, *, gain):
        return h + sigmoid(f) * (tanh(gain * n) - h)

    assert copy.deepcopy(of_this_test) is of_this_test
    assert pickle.loads(pickle.dumps(of_this_test)) is of_this_test
    layer = vr.nn.Recurrent(of_this_test, 3, 4, dtype=np.float64)
    assert layer.gain_l0.shape == (4,)
    x = vr.create_lod_tensor(np.random.default_rng(0).normal(size=(5, 3)), [[2, 0, 3]])
    y, _ = layer(x)
    (y * y).mean().backward()
    assert np.abs(layer.gain_l0.grad).max() > 0
    with vr.program_guard() as program:
        fetched, _ = layer(vr.data("x", [-1, 3], "float64", lod_level=1))
    program.save(tmp_path / "p")
    (found,) = vr.Executor().run(vr.Program.load(tmp_path / "p"), {"x": x}, [fetched.name])
    np.testing.assert_array_equal(np.asarray(found), np.asarray(y))


@pytest.mark.parametrize("annotation", [Row, "Row", "cells.Row", "vr.cells.Row"], ids=str)
def test_an_input_of_rows_is_told_by_its_annotation(annotation):
    """As text, too: so are annotations in a file that begins with `from __future__ import annotations`."""

    def masked(a, /, *, mask, gain):
        return tanh(a) * mask * gain

    masked.__annotations__["mask"] = annotation
    found = cell(masked)
    assert (found.rows, found.vectors) == (("mask",), ("gain",))


def test_options_are_found_by_name_in_a_fresh_process():
    code = "from varlen_rnn.cells import find_cell; print(find_cell('gru(reset_after=False, clip=2.0)'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Cell('gru(reset_after=False, clip=2.0)'")


STRANGE = ["lstm(", "lstm()", "lstm(1)", "lstm(clip=-1)", "lstm(peepholes=__import__('os'))", "gru(clip=nan)", "none"]
STRANGE += ["lstm(**{})", "rnn(activation=('relu', 1))", "rnn(activation='none')", "lstm(" + "(" * 5000 + ")"]
STRANGE += ["lstm(clip=1.0,)", "lstm(clip=1)", "lstm(activations=1)"]


@pytest.mark.parametrize("name", STRANGE, ids=range(len(STRANGE)))
def test_names_from_strange_files_are_errors(name):
    with pytest.raises(vr.ProgramError, match="cell"):
        find_cell(name)


def test_a_constant_is_written_with_brackets():
    @cell
    def bracketed(a, b, /):
        return b + 2 * constant(where(a > -4, tanh(a), 7))

    layer = vr.nn.Recurrent(bracketed, 1, 1, dtype=np.float64)
    for parameter in layer.parameters():
        parameter.assign(0.0)
    layer.bias_ih_l0.assign([-10.0, 0.0])
    y, _ = layer(vr.create_lod_tensor(np.zeros((1, 1)), [[1]]))
    assert np.asarray(y).item() == 14


def test_a_cell_whose_later_products_read_hidden_units_has_no_projection():
    @cell
    def later(b, a, /, c):
        return tanh(a.x + a.of(c)), c * 0.5 + tanh(b)

    assert not later.reads_output
    with pytest.raises(vr.ShapeError, match="proj_size: expected 0 of the cell 'later'"):
        vr.nn.Recurrent(later, 3, 5, proj_size=2)
    x = vr.create_lod_tensor(np.ones((2, 3)), [[2]])
    weights = [np.ones((10, 3)), np.ones((10, 2)), np.ones(10), np.ones(10), np.ones((2, 5))]
    with pytest.raises(vr.ShapeError, match="weight_hr: expected none of the cell 'later'"):
        apply("recurrent", x, None, None, *weights, cell="later", keep=False, reverse=(0,), all_states=False)


def normed(x):
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5)


# Cells of gates a and b: equations, and the same of arrays of all units; p and q are the products of a and b.
ODD = {
    "a norm of a norm": (lambda a, b, /: norm(norm(a) + b), lambda a, b, p, q: normed(normed(a + p) + b + q)),
    "a norm times its gate": (
        lambda a, b, /: (norm(a) + a) * norm(a) + b,
        lambda a, b, p, q: (normed(a + p) + a + p) * normed(a + p) + b + q,
    ),
    "a constant of another gate": (
        lambda a, b, /: constant(norm(a) + b) * norm(a),
        lambda a, b, p, q: (normed(a + p) + b + q) * normed(a + p),
    ),
    "a norm without a gradient": (
        lambda a, b, /: constant(norm(a)) * tanh(b),
        lambda a, b, p, q: normed(a + p) * np.tanh(b + q),
    ),
    "a norm that chooses": (
        lambda a, b, /: where(norm(a) > 0, tanh(b), b),
        lambda a, b, p, q: np.where(normed(a + p) > 0, np.tanh(b + q), b + q),
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_cells_compute_what_they_say(name):
    equations, arrays = ODD[name]
    layer = vr.nn.Recurrent(cell(equations, name=name), 3, 5, dtype=np.float64)
    x = np.random.default_rng(0).standard_normal((6, 3))
    y, _ = layer(vr.create_lod_tensor(x, [[4, 0, 2]]))
    w_ih, w_hh, b_ih, b_hh = (np.split(parameter.data, 2) for parameter in layer.parameters())
    wanted, h = [], np.zeros(5)
    for row in range(6):
        h = np.zeros(5) if row == 4 else h
        parts = [w_ih[g] @ x[row] + b_ih[g] for g in range(2)] + [w_hh[g] @ h + b_hh[g] for g in range(2)]
        h = arrays(*parts)
        wanted.append(h)
    np.testing.assert_allclose(np.asarray(y), wanted, rtol=1e-12, atol=1e-12)


def gradients_are_differences(layer, inputs):
    x = vr.create_lod_tensor(np.random.default_rng(0).standard_normal((6, inputs)), [[4, 0, 2]])
    way = np.random.default_rng(1)

    def loss():
        y, _ = layer(x)
        return (y * y).sum()

    loss().backward()
    for parameter in layer.parameters():
        d, here, losses = way.standard_normal(parameter.shape), parameter.data.copy(), []
        for step in (1e-6, -1e-6):
            parameter.assign(here + step * d)
            losses.append(loss().item())
        parameter.assign(here)
        difference = (losses[0] - losses[1]) / 2e-6
        np.testing.assert_allclose((parameter.grad * d).sum(), difference, rtol=1e-6, atol=1e-7)


def test_the_gradient_of_a_norm_reads_its_gate():
    layer = vr.nn.Recurrent(cell(ODD["a norm times its gate"][0], name="norm and gate"), 3, 5, dtype=np.float64)
    gradients_are_differences(layer, 3)
    layer = vr.nn.Recurrent(cell(ODD["a norm of a norm"][0], name="two norms"), 3, 5, dtype=np.float64)
    gradients_are_differences(layer, 3)


def test_the_product_of_what_a_norm_gave_reads_an_earlier_product():
    def after(b, a, /, h):
        return a.of(norm(b.x) * b.h)

    gradients_are_differences(vr.nn.Recurrent(cell(after, name="after"), 3, 5, dtype=np.float64), 3)


def test_what_is_read_for_nothing_is_no_input():
    def unused(a, b, /):
        _ = a.x, tanh(a)
        return tanh(a.h) + b

    gradients_are_differences(vr.nn.Recurrent(cell(unused, name="unused"), 3, 5, dtype=np.float64), 3)


def test_a_product_without_a_gradient():
    def frozen(b, a, /):
        return constant(a.of(tanh(b))) * b

    layer = vr.nn.Recurrent(cell(frozen, name="frozen"), 3, 5, dtype=np.float64)
    y, _ = layer(vr.create_lod_tensor(np.random.default_rng(0).standard_normal((4, 3)), [[4]]))
    (y * y).sum().backward()
    assert (layer.weight_hh_l0.grad[5:] == 0).all()
    assert (layer.weight_hh_l0.grad[:5] != 0).any()
