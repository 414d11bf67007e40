"""Cells made from equations alone: their gradients and sizes are derived, and wrong equations are refused."""

import copy
import inspect
import itertools
import math
import pickle
import re
import subprocess
import sys
import weakref

import numpy as np
import pytest

import varlen_rnn as vr
from tests.differences import slope
from varlen_rnn import cells, recurrence
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
    registry,
    sigmoid,
    tanh,
    where,
)
from varlen_rnn.rows.plan import sort_by_seq_len
from varlen_rnn.tape.variable import apply


@pytest.fixture(autouse=True)
def names(monkeypatch):
    """The cells of a test are forgotten after it."""
    monkeypatch.setattr(registry, "_CELLS", weakref.WeakValueDictionary(registry._CELLS))


def gru(r, z, n, /, h):
    r, z = sigmoid(r), sigmoid(z)
    n = tanh(n.x + r * n.h)
    return n + z * (h - n)


def test_what_was_derived_can_be_read():
    derived = cell(gru, name="readable")
    assert derived.slots == ("u_n", "r", "z", "n")
    assert derived.source.startswith("def step(x, h, prev, passed, v):\n")
    assert "def step_grad(slots, prev, states, operands, carried, v):\n    u_n, r, z, n, = slots\n" in derived.source


def test_a_row_keeps_as_few_numbers_as_it_can():
    def wasteful(a, /, h):  # of five intermediate numbers, the gradient needs tanh(a) alone
        t = tanh(a)
        return ((t + 1) * 2 + (t - 3)) / 4 + h

    assert cell(wasteful).num_kept == 1
    assert [one.num_kept for one in (LSTM, GRU, RNN_TANH, RNN_RELU)] == [5, 4, 1, 1]


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
    saved, arriving = recurrence.Saved(y, kept), recurrence.Arriving(d_y, np.zeros_like(start))
    d_x, (d_weights,), d_start = recurrence.backward(*arguments, saved, arriving)
    for array, gradient in zip([x, *weights[:4], start], [d_x, *d_weights[:4], d_start], strict=True):
        v = rng.normal(size=gradient.shape)
        difference = slope(lambda: (oracle(x, weights, start) * d_y).sum(), array, v)
        assert (gradient * v).sum() == pytest.approx(difference, rel=1e-7, abs=1e-7)


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
    (lambda a, /, c: tanh(a), r"expected 2 \(h, c\), got 1"),
    (lambda a, /: (tanh(a), a), r"expected 1 \(h\), got 2"),
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
    assert cell(name="leaky_by_its_name")(lambda a, /, h: tanh(a) + h).name == "leaky_by_its_name"


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
        fetched, _ = layer(vr.feed_data("x", [-1, 3], "float64", lod_level=1))
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
    assert (found.row_inputs, found.vectors) == (("mask",), ("gain",))


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
    with pytest.raises(vr.ShapeError, match="proj_size: expected 0, because the cell 'later' cannot project"):
        vr.nn.Recurrent(later, 3, 5, proj_size=2)
    x = vr.create_lod_tensor(np.ones((2, 3)), [[2]])
    weights = [np.ones((10, 3)), np.ones((10, 2)), np.ones(10), np.ones(10), np.ones((2, 5))]
    with pytest.raises(vr.ShapeError, match="weight_hr: expected None, because the cell 'later'"):
        apply("recurrent", x, None, None, *weights, cell="later", keep=False, reverse=(0,), all_states=False)


class Arrays:
    """What equations call, of arrays of all units; `frozen` are values of constant() from an earlier run."""

    tanh, where = staticmethod(np.tanh), staticmethod(np.where)
    sigmoid = staticmethod(lambda x: 1 / (1 + np.exp(-x)))
    norm = staticmethod(lambda x: (x - x.mean()) / np.sqrt(x.var() + 1e-5))

    def __init__(self, frozen=()):
        self.frozen, self.constants = iter(frozen), []

    def constant(self, value):
        self.constants.append(np.array(next(self.frozen, value)))  # a copy: `slope` changes arrays in place
        return self.constants[-1]


class ArrayGate(np.ndarray):
    """A gate's sum, for all units; `x` and `h` are its parts, and the product is with a value of the step by `of`."""

    def of(self, value):
        return self.weight @ value + self.bias


def array_gate(x, h, weight, bias):
    gate = (x + h).view(ArrayGate)
    gate.x, gate.h, gate.weight, gate.bias = x, h, weight, bias
    return gate


def run_arrays(make, f, of_cell, x, offsets, weights):
    """Return the outputs of a cell, `make(f)`, row by row; `weights` are those of a layer, by name."""
    hidden, parameters = 5, inspect.signature(make(f)).parameters
    parts = {name: {gate: None for gate in of_cell.gates} for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    for kind, gates in (("ih", of_cell.x_gates), ("hh", of_cell.h_gates)):
        for place, gate in enumerate(gates):
            for name in (f"weight_{kind}", f"bias_{kind}"):
                parts[name][gate] = weights[name][place * hidden : (place + 1) * hidden]
    y = np.empty((len(x), hidden))
    for begin, end in itertools.pairwise(offsets):
        h = np.zeros(hidden)
        for row in range(begin, end):
            gates = []
            for gate in of_cell.gates:
                w_ih, w_hh, b_ih, b_hh = (part[gate] for part in parts.values())
                of_input = np.zeros(hidden) if w_ih is None else w_ih @ x[row] + b_ih
                of_output = np.zeros(hidden) if w_hh is None else w_hh @ h + b_hh
                gates.append(array_gate(of_input, of_output, w_hh, b_hh))
            states = [h] * ("h" in parameters)
            h = y[row] = make(f)(*gates, *states, **{name: weights[name] for name in of_cell.vectors})
    return y


def agrees_with_arrays(make, name):
    """Compare a layer of a cell with arrays: outputs, and gradients with central differences."""
    layer = vr.nn.Recurrent(cell(make(cells), name=name), 3, 5, dtype=np.float64)
    rng, offsets = np.random.default_rng(0), [0, 4, 4, 6]
    x = vr.Variable(vr.create_lod_tensor(rng.standard_normal((6, 3)), [[4, 0, 2]]), requires_grad=True)
    y, _ = layer(x)
    (y * y).sum().backward()
    variables = {parameter_name.removesuffix("_l0"): p for parameter_name, p in layer.named_parameters()} | {"x": x}
    numbers = {key: np.array(variable) for key, variable in variables.items()}
    run = lambda f, numbers: run_arrays(make, f, layer.cell, numbers["x"], offsets, numbers)
    at_rest = Arrays()
    np.testing.assert_allclose(np.asarray(y), run(at_rest, numbers), rtol=1e-10, atol=1e-10)
    for key, variable in variables.items():
        d = rng.standard_normal(numbers[key].shape)
        difference = slope(lambda: (run(Arrays(at_rest.constants), numbers) ** 2).sum(), numbers[key], d)
        assert (np.asarray(variable.grad) * d).sum() == pytest.approx(difference, rel=1e-6, abs=1e-6), key


def reads_for_nothing(f):
    def equations(a, b, /):
        _ = a.x, f.tanh(a)
        return f.tanh(a.h) + b

    return equations


def norms_for_nothing(f):
    def equations(a, b, /):
        _ = f.norm(f.norm(f.norm(f.norm(a))))
        return f.tanh(a) + b

    return equations


def two_products_of_a_gate_one_for_nothing(f):
    def equations(b, a, /, h):
        _ = a.h
        return a.of(f.tanh(h)) + b

    return equations


def a_product_for_nothing(f):
    def equations(a, b, /, h):
        _ = b.of(h * 2)
        return f.tanh(a) + b

    return equations


# Equations of functions of `f`: of cells, or of arrays.
ODD = {
    "a norm of a norm": lambda f: lambda a, b, /: f.norm(f.norm(a) + b),
    "a norm times its gate": lambda f: lambda a, b, /: (f.norm(a) + a) * f.norm(a) + b,
    "a constant of a gate": lambda f: lambda a, /: f.constant(f.norm(a) + a) * f.norm(a),
    "a constant of another gate": lambda f: lambda a, b, /: f.constant(f.norm(a) + b) * f.norm(a),
    "a norm without a gradient": lambda f: lambda a, b, /: f.constant(f.norm(a)) * f.tanh(b),
    "a norm that chooses": lambda f: lambda a, b, /: f.where(f.norm(a) > 0, f.tanh(b), 0.5),
    "a product without a gradient": lambda f: lambda b, a, /: f.constant(a.of(f.tanh(b))) * b,
    "a product of a norm and a product": lambda f: lambda b, a, /: a.of(f.norm(b.x) * b.h),
    "two norms and what the first read": lambda f: lambda a, /: f.norm(f.norm(a)) + a / (1.5 + f.sigmoid(f.norm(a))),
    "reads for nothing": reads_for_nothing,
    "norms for nothing": norms_for_nothing,
    "two products of a gate, one for nothing": two_products_of_a_gate_one_for_nothing,
    "a product for nothing": a_product_for_nothing,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD)
def test_odd_cells_compute_what_they_say(name):
    agrees_with_arrays(ODD[name], name)


MADE = {  # of one operation, from two values
    "sum": lambda f, p, q: p + q,
    "product": lambda f, p, q: p * q,
    "quotient": lambda f, p, q: p / (1.5 + f.sigmoid(q)),
    "tanh": lambda f, p, q: f.tanh(p),
    "choice": lambda f, p, q: f.where(p > q, p, f.tanh(q)),
    "constant": lambda f, p, q: f.constant(p) * q,
    "norm": lambda f, p, q: f.norm(p),
}


def random_cell(seed):
    """Return a cell of random operations, some of them for nothing, as those of `ODD` are given."""

    def make(f):
        def equations(a, b, c, /, h, *, gain):
            rng = np.random.default_rng(seed)
            # Values, with how many norms and products each waits for: a step has two at most, beyond its first product.
            values = [(part, 0) for part in (a.x, a.h, b.x + b.h, h, gain)]
            pick = lambda most: [pair for pair in values if pair[1] <= most][rng.integers(-4, 0)]
            values.append((c.x + c.of(pick(0)[0]), 1) if seed % 2 else (c.x + c.h, 0))
            for _ in range(rng.integers(4, 9)):
                name = rng.choice([*MADE, "norm", "norm"])
                (p, of_p), (q, of_q) = pick(1 if name == "norm" else 2), values[rng.integers(len(values))]
                level = of_p + 1 if name == "norm" else of_p if name == "tanh" else max(of_p, of_q)
                values.append((MADE[name](f, p, q), level))
            return a.x + b.x + gain + values[5][0] + sum(f.tanh(value) for value, _ in values[-3:])

        return equations

    return make


def test_random_cells_are_derived():
    """To define a cell is to check its gradient and its source: none of these may be refused."""
    for seed in range(400):
        cell(random_cell(seed)(cells), name=f"random {seed}")


# Of 50 and 268, the gradient of a first norm reads what follows a second.
@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(8), 50, 268])
def test_random_cells_compute_what_they_say(seed):
    agrees_with_arrays(random_cell(seed), f"random {seed}")
