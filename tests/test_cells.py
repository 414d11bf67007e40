"""A cell is checked when it is made, and one from outside the package runs as those inside do."""

import copy
import itertools
import pickle
import subprocess
import sys

import numpy as np
import pytest
from oracles.recurrence import sigmoid

import varlen_rnn as vr
from tests.differences import slope
from varlen_rnn.cells import CELLS, Cell, registry, tanh
from varlen_rnn.errors import DTypeError, ProgramError, ShapeError

OFFSETS = [0, 3, 3, 8, 10]


def step(x, h, prev):
    f, g = 1 / (1 + np.exp(-x[0] - h[0])), tanh(x[1] + h[1])
    return (g + f * (prev[0] - g),), (f, g)


def step_grad(slots, prev, states, d_states):
    f, g = slots
    one, d_h = type(f)(1), d_states[0]
    return (d_h * (prev[0] - g) * f * (one - f), d_h * (one - f) * (one - g * g)), (d_h * f,)


NAMES = {"gates": ("f", "g"), "states": ("h",), "slots": ("f", "g")}
MINIMAL = Cell(name="minimal", **NAMES, step=step, step_grad=step_grad)


def oracle(x, weight_ih, weight_hh, bias_ih, bias_hh):
    """The outputs of the cell above, one sequence and one row at a time."""
    out, hidden = np.empty((len(x), weight_hh.shape[1])), weight_hh.shape[1]
    for begin, end in itertools.pairwise(OFFSETS):
        h = np.zeros(hidden)
        for row in range(begin, end):
            a = weight_ih @ x[row] + bias_ih + weight_hh @ h + bias_hh
            f, g = sigmoid(a[:hidden]), np.tanh(a[hidden:])
            h = out[row] = (1 - f) * g + f * h
    return out


def case():
    rng = np.random.default_rng(0)
    layer = vr.nn.Recurrent(MINIMAL, 4, 6, dtype=np.float64)
    x = vr.Variable(vr.LoDTensor(rng.normal(size=(10, 4)), [OFFSETS]), requires_grad=True)
    return layer, x, rng.normal(size=(10, 6))


def arrays(layer, x):
    return [np.asarray(x), *(parameter.data for parameter in layer.parameters())]


def test_a_cell_from_outside_equals_its_oracle_and_its_gradient_a_difference():
    layer, x, d_y = case()
    y, h_n = layer(x)
    np.testing.assert_allclose(y, oracle(*arrays(layer, x)), rtol=0, atol=1e-12)
    np.testing.assert_array_equal(h_n[0, 1], np.zeros(6))  # of the empty sequence
    (y * d_y).sum().backward()
    gradients, rng = [np.asarray(v.grad) for v in (x, *layer.parameters())], np.random.default_rng(1)
    given = [array.copy() for array in arrays(layer, x)]
    for array, gradient in zip(given, gradients, strict=True):
        v = rng.normal(size=gradient.shape)
        difference = slope(lambda: (oracle(*given) * d_y).sum(), array, v)
        np.testing.assert_allclose((gradient * v).sum(), difference, rtol=1e-7, atol=1e-7)


def test_it_trains_in_float32_in_layers_and_directions():
    vr.manual_seed(0)
    layer = vr.nn.Recurrent(MINIMAL, 4, 6, num_layers=2, bidirectional=True)
    assert "Recurrent('minimal', 4, 6, num_layers=2" in repr(layer)
    x = vr.create_lod_tensor(np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32), [[3, 0, 5, 2]])
    optimizer, losses = vr.optim.Adam(layer.parameters(), lr=1e-2), []
    for _ in range(20):
        y, h_n = layer(x)
        losses.append(((y - 0.5) * (y - 0.5)).mean())
        optimizer.minimize(losses[-1])
    assert (y.shape, h_n.shape) == ((10, 12), (4, 4, 6))
    assert losses[-1].item() < losses[0].item() / 2


def record():
    layer, x, d_y = case()
    with vr.program_guard() as program:
        fed = vr.feed_data("x", shape=[-1, 4], dtype="float64", lod_level=1, requires_grad=True)
        y, _ = layer(fed)
        vr.backward((y * d_y).sum())
    return layer, x, d_y, program, y


def test_a_program_names_it_and_has_its_bits(tmp_path):
    layer, x, d_y, program, y = record()
    program.save(tmp_path / "program")
    again, _ = layer(x)
    (again * d_y).sum().backward()
    for runnable in (program, vr.Program.load(tmp_path / "program")):
        fetched = vr.Executor().run(runnable, {"x": x}, [y.name, "x@GRAD"])
        for got, right in zip(fetched, (again, x.grad), strict=True):
            assert np.array_equal(got, right)


def test_loading_says_which_cell_is_missing(tmp_path):
    record()[3].save(tmp_path / "program")
    load = "import sys, varlen_rnn as vr; vr.Program.load(sys.argv[1])"
    command = [sys.executable, "-c", load, str(tmp_path / "program")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "ProgramError" in done.stderr.splitlines()[-1]
    assert "got 'minimal' (import the module that defines this cell)" in done.stderr


def wrong(**changed):
    with pytest.raises(ValueError, match=r"^[cC]ell") as caught:
        Cell(**({"name": "wrong", "step": step, "step_grad": step_grad} | NAMES | changed))
    assert "wrong" not in registry._CELLS
    return str(caught.value)


def test_equations_that_do_not_fit_are_errors():
    assert "expected a tuple of length 1 for states, and a tuple of length 2 for slots" in wrong(
        step=lambda x, h, prev: ((0.0,), (0.0,))
    )
    assert "expected a tuple of length 2 for slots, and a tuple of length 1 for states" in wrong(
        step_grad=lambda slots, prev, states, d_states: None
    )
    assert "NameError" in wrong(step=lambda x, h, prev: undefined)  # noqa: F821
    assert "expected a function, got int" in wrong(step=3)
    assert "gradient of the projected f" in wrong(step_grad=lambda slots, prev, states, d_states: ((0.0, 0.0), (0.0,)))

    def no_previous(slots, prev, states, d_states):
        d_slots, _ = step_grad(slots, prev, (), d_states)
        return d_slots, (0.0,)

    assert "gradient of the previous h" in wrong(step_grad=no_previous)

    def of_product(slots, prev, states, d_states):
        d_slots, d_prev = step_grad(slots, prev, (), d_states)
        return (*d_slots, 0.0), d_prev

    def keeps_product(x, h, prev):
        states, slots = step(x, h, prev)
        return states, (*slots, h[1])

    changed = {"slots": ("f", "g", "u"), "step": keeps_product, "step_grad": of_product}
    assert "first, in any order" in wrong(**changed, product_slots={"g": "u"})
    swapped = {
        "slots": ("u", "f", "g"),
        "product_slots": {"g": "u"},
        "step": lambda *a: (step(*a)[0], (0.0, *step(*a)[1])),
    }
    got = wrong(
        **swapped, step_grad=lambda s, p, _, d: ((0.0, *step_grad(s[1:], p, (), d)[0]), step_grad(s[1:], p, (), d)[1])
    )
    assert "gradient of the product of g" in got


@pytest.mark.parametrize("how", [lambda states: states[0], lambda states: states[:1], lambda states: list(states)])
def test_a_gradient_that_reads_the_output_is_an_error(how):
    def reads(slots, prev, states, d_states):
        how(states)
        return step_grad(slots, prev, states, d_states)

    assert "expected no use of states[0]" in wrong(step_grad=reads)


def test_what_only_some_numbers_lead_to_is_read_too():
    def rarely(x, h, prev):
        y = prev[0] if x[0] > 1000 else x[0]
        return (y,), (y,)

    def from_the_end(slots, prev, states, d_states):
        if slots[0] > 1000:
            return (states[-1] * d_states[0],), (0.0,)
        return (d_states[0],), (0.0,)

    def grad(slots, prev, states, d_states):
        return (d_states[0],), (0.0,)

    names = {"gates": "y", "states": "h", "slots": "y"}
    with pytest.raises(ShapeError, match=r"product of y"):  # the step reads no h
        Cell(name="wrong", **names, step=rarely, step_grad=grad)

    def adds(x, h, prev):
        y = x[0] + h[0] + (prev[0] if x[0] > 1000 else type(x[0])(0))
        return (y,), (y,)

    assert Cell(name="rarely", **names, step=adds, step_grad=grad).reads_output
    with pytest.raises(ShapeError, match=r"expected no use of states\[0\]"):
        Cell(name="wrong", **names, step=adds, step_grad=from_the_end)


def test_names_that_do_not_fit_are_errors():
    assert "side by side" in wrong(slots=("g", "f"))
    assert "each name once" in wrong(states=("h", "h"))
    assert "at least one name" in wrong(gates=())
    assert "a sequence of names" in wrong(gates=3)
    assert "gates of ('f', 'g')" in wrong(product_slots={"q": "f"})
    assert "printable" in wrong(name="\n")
    assert "printable" in wrong(name=3)


def test_what_is_read_of_the_output_before_is_found():
    assert {name: built_in.reads_output for name, built_in in CELLS.items()} == {
        "rnn_tanh": False, "rnn_relu": False, "lstm": False, "gru": True,
    }  # fmt: skip
    assert MINIMAL.reads_output

    def only_backward(x, h, prev):
        y = x[0] + h[0]
        return (y,), (y,)

    def reads(slots, prev, states, d_states):
        return (d_states[0] + prev[0] * 0,), (0.0,)

    assert Cell(name="backward", gates="y", states="h", slots="y", step=only_backward, step_grad=reads).reads_output


def test_a_name_belongs_to_one_cell():
    with pytest.raises(ProgramError, match="cell 'lstm': expected a new name"):
        Cell(name="lstm", **NAMES, step=step, step_grad=step_grad)
    assert registry.find_cell("lstm") is CELLS["lstm"]
    layer, x, _ = case()
    try:
        again = Cell(name="minimal", **NAMES, step=step, step_grad=step_grad)  # as a notebook does
        assert registry.find_cell("minimal") is again
        with pytest.raises(ProgramError, match="expected the cell for which the layer was made, got a new cell"):
            layer(x)
    finally:
        registry._CELLS["minimal"] = MINIMAL
    with pytest.raises(ProgramError, match="expected one of"):
        registry.find_cell("none")


def test_copies_of_a_cell_are_itself_and_it_stays_as_it_was_made():
    assert copy.deepcopy(MINIMAL) is copy.copy(MINIMAL) is pickle.loads(pickle.dumps(MINIMAL)) is MINIMAL
    with pytest.raises(AttributeError):
        MINIMAL.reads_output = False


def test_a_layer_takes_cells_alone():
    with pytest.raises(DTypeError, match=r"cell: expected a cells\.Cell, got 'lstm' .cells\.LSTM is a cell; nn\.LSTM"):
        vr.nn.Recurrent("lstm", 3, 4)
    with pytest.raises(ShapeError, match=r"expected \(h_0, c_0\)"):
        vr.nn.Recurrent(CELLS["lstm"], 3, 4)(vr.create_lod_tensor(np.zeros((1, 3), np.float32), [[1]]), np.zeros(3))
