"""A step that runs fused computes what it computes operator by operator; what cannot be fused says why."""

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.nn import functional as F
from varlen_rnn.steps import describe, dynamic_rnn, lower
from varlen_rnn.tape.variable import apply

FEATURES, HIDDEN = 3, 4


class Weights:
    """Weights by name: each is made when a step first asks for it."""

    def __init__(self, dtype):
        self.rng, self.dtype, self.made = np.random.default_rng(5), dtype, {}

    def __call__(self, name, *shape):
        if name not in self.made:
            self.made[name] = vr.nn.Parameter(self.rng.standard_normal(shape).astype(self.dtype) / 2)
        return self.made[name]


def of_input(w, x, k=1, name="w_x"):
    return apply("matmul", x, w(name, k * HIDDEN, FEATURES), w(f"{name}_bias", k * HIDDEN), transposed=True)


def part(value, number):
    return value[:, number * HIDDEN : (number + 1) * HIDDEN]


def lstm(w, x, h, c):
    gates = of_input(w, x, 4) + apply("matmul", h, w("w_h", 4 * HIDDEN, HIDDEN), w("b", 4 * HIDDEN), transposed=True)
    c = F.sigmoid(part(gates, 1)) * c + F.sigmoid(part(gates, 0)) * F.tanh(part(gates, 2))
    h = F.sigmoid(part(gates, 3)) * F.tanh(c)
    return h, c, h


def lstm_split(w, x, h, c):
    gates = of_input(w, x, 4) + apply("matmul", h, w("w_h", 4 * HIDDEN, HIDDEN), w("b", 4 * HIDDEN), transposed=True)
    i_f, g, o = F.split(gates, [2 * HIDDEN, HIDDEN, HIDDEN])
    i, f = F.split(F.sigmoid(i_f), HIDDEN, axis=1)
    c = f * c + i * F.tanh(g)
    h = F.sigmoid(o) * F.tanh(c)
    return h, h, c


def lstm_states(w, x, c, h):  # the output is the second state
    h, c, _ = lstm(w, x, h, c)
    return h, c, h


def gru(w, x, h):
    of_x, of_h = of_input(w, x, 3), h @ w("w_h", HIDDEN, 3 * HIDDEN)
    r, z = F.sigmoid(part(of_x, 0) + part(of_h, 0)), F.sigmoid(part(of_x, 1) + part(of_h, 1))
    n = F.tanh(part(of_x, 2) + r * part(of_h, 2))
    h = n + z * (h - n)
    return h, h


def two_products(w, x, h):
    r = F.sigmoid(of_input(w, x) + h @ w("w_r", HIDDEN, HIDDEN))
    n = F.tanh(of_input(w, x, name="w_n") + (r * h) @ w("u_n", HIDDEN, HIDDEN))
    h = n - 0.5 * h
    return h, h


def vectors(w, x, h):
    h = F.relu(x @ w("w_x", FEATURES, HIDDEN) + h * w("u", HIDDEN) - w("b", 2 * HIDDEN)[HIDDEN:] / 2.0)
    return h, h


def one_weight_twice(w, x, h):
    u = w("u", HIDDEN, HIDDEN)
    h = F.tanh(of_input(w, x) + h @ u + (-h) ** 2 * (h @ u))
    return h, h


def no_input(w, x, h):
    h = F.tanh(h @ w("u", HIDDEN, HIDDEN) + w("b", 1, HIDDEN))
    return h, h


def side_by_side(w, x, h):
    gates = apply(
        "matmul",
        apply("concat", h, x, axis=1),
        w("w", HIDDEN + FEATURES, 2 * HIDDEN),
        w("b", 2 * HIDDEN),
        transposed=False,
    )
    h = h + F.sigmoid(part(gates, 0)) * F.tanh(part(gates, 1))
    return h, h


def of_both_states(w, x, c, h):  # the other state's product is a phase of its own
    both = apply("concat", h, c, axis=-1)
    c = F.tanh(of_input(w, x) + apply("matmul", both, w("w_h", HIDDEN, 2 * HIDDEN), None, transposed=True))
    h = c * h
    return h, c, h


def elementwise(w, x, h):
    a, b = of_input(w, x), h @ w("u", HIDDEN, HIDDEN)
    larger, smaller = F.maximum(a, b), F.minimum(a, w("bound", HIDDEN))
    root = F.sqrt(abs(a) + 1.0) * F.log(F.exp(F.minimum(b, 2.0)) + 1.0)
    h = F.where(a < b, F.silu(larger), F.where(smaller >= -0.5, root, F.maximum(-1.0, h))) * 0.3
    h = F.where(h <= 0.0, h, F.where(h > w("bound", HIDDEN), 0.5 * h, 0.25))
    return h, h


def at_ties(w, x, h):  # of zeros, all that is compared is equal
    a = x @ w("w_x", FEATURES, HIDDEN)
    h = abs(a) + F.maximum(a, h) + F.minimum(h, 0.0) + F.maximum(0.0, a) + F.minimum(a, h) + F.where(a > h, a, 2.0 * h)
    return h, h


TWO_STATES = lstm_split, lstm_states, of_both_states
FUSED = {
    f.__name__: f
    for f in (
        side_by_side, of_both_states, lstm_split, lstm_states, gru, two_products, vectors, one_weight_twice, no_input,
        elementwise, at_ties,
    )
}  # fmt: skip


def rows(lengths, dtype):
    x = np.random.default_rng(1).standard_normal((sum(lengths), FEATURES)).astype(dtype)
    return vr.create_lod_tensor(x, [lengths])


def states_of(cell, lengths, dtype):
    count = 2 if cell in TWO_STATES else 1
    return [np.random.default_rng(2 + n).standard_normal((len(lengths), HIDDEN)).astype(dtype) for n in range(count)]


def trained(cell, lengths, dtype):
    """Return the layer's outputs, its last states, and the gradients of all that it takes; and how it ran."""
    w = Weights(dtype)
    layer = vr.nn.DynamicRNN(lambda *given: cell(w, *given))
    x = vr.Variable(rows(lengths, dtype), requires_grad=True)
    states = [vr.Variable(state, requires_grad=True) for state in states_of(cell, lengths, dtype)]
    y, *last = layer(x, states)
    loss = (y * y).sum() + sum((state * 2.0).sum() for state in last)
    loss.backward()
    gradients = {name: weight.grad for name, weight in w.made.items()}
    given = {"x": x.grad, **{f"state {n}": state.grad for n, state in enumerate(states)}}
    assert cell is no_input or x.grad.lod() == x.lod()
    return {"y": y, **{f"last {n}": state for n, state in enumerate(last)}, **gradients, **given}, layer.explain()


@pytest.fixture
def interpreted(monkeypatch):
    """Return a function that has steps run operator by operator from then on."""

    def refuse():
        for module in (dynamic_rnn, describe):
            monkeypatch.setattr(module, "lowered_step", lambda *_: "the test says so")

    return refuse


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("lengths", [[], [0, 0], [1], [4, 4], [2, 0, 5, 1, 0]], ids=str)
@pytest.mark.parametrize("cell", FUSED.values(), ids=FUSED)
def test_fused_is_interpreted(cell, lengths, dtype, interpreted):
    fused, text = trained(cell, lengths, dtype)
    assert text.startswith("runs fused as a cell of gates g0")
    interpreted()
    wanted, text = trained(cell, lengths, dtype)
    assert text == "runs operator by operator: the test says so"
    assert fused.keys() == wanted.keys()
    tolerance = {"rtol": 2e-4, "atol": 2e-5} if dtype is np.float32 else {"rtol": 1e-9, "atol": 1e-11}
    for name, value in wanted.items():
        assert (value is None) == (fused[name] is None), name
        if value is not None:
            np.testing.assert_allclose(np.asarray(fused[name]), np.asarray(value), err_msg=name, **tolerance)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_gradients_of_equal_numbers_are_those_of_the_operators(dtype, interpreted, monkeypatch):
    made = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda seed: Zeros(made(seed)))
    fused, _ = trained(at_ties, [2, 3], dtype)
    interpreted()
    wanted, _ = trained(at_ties, [2, 3], dtype)
    assert np.asarray(wanted["state 0"]).tolist() == [[2 * 3.5**2] * HIDDEN, [2 * 3.5**3] * HIDDEN]
    for name, value in wanted.items():
        assert np.array_equal(np.asarray(fused[name]), np.asarray(value)), name


class Zeros:
    """A generator whose standard normal numbers, of which the test makes weights and rows, are zeros."""

    def __init__(self, generator):
        self.normal = generator.normal  # by which a new cell's gradient is checked

    def standard_normal(self, shape):
        return np.zeros(shape)


def test_a_gate_is_the_sum_of_a_product_of_the_input_and_one_of_the_state():
    _, text = trained(lstm_states, [2, 3], np.float64)
    gates = ", ".join(f"g{number} (input + product)" for number in range(4))
    assert text == f"runs fused as a cell of gates {gates}; 2 states; a row keeps 5 per unit"


def test_a_program_keeps_the_step_and_runs_it_fused(interpreted, monkeypatch):
    w = Weights(np.float64)
    with vr.program_guard() as program:
        x, state = vr.feed_data("x", [-1, FEATURES], "float64", lod_level=1), vr.feed_data("h", [-1, HIDDEN], "float64")
        y, last = vr.nn.DynamicRNN(lambda *given: gru(w, *given))(x, [state])
        ((y * y).sum() + last.sum()).backward()
        leaves = [own for _, own in program.recorder._stand_ins.values()]
        fetches = [variable.name for variable in (y, last, *(leaf.grad for leaf in leaves))]
    assert "dynamic_rnn_grad(" in str(program)
    assert [block.parent_idx for block in program.desc.blocks] == [-1, 0, 0]
    feed = {"x": rows([2, 0, 3], np.float64), "h": np.ones((3, HIDDEN))}
    runs = []
    forward = dynamic_rnn.fused.forward
    monkeypatch.setattr(dynamic_rnn.fused, "forward", lambda *given: runs.append(1) or forward(*given))
    loaded = vr.Program.from_bytes(program.to_bytes())
    results = [vr.Executor().run(one, feed, fetches) for one in (program, program, loaded)]
    assert len(runs) == 3
    interpreted()
    results.append(vr.Executor().run(vr.Program.from_bytes(program.to_bytes()), feed, fetches))
    assert len(runs) == 3
    for result in results[:-1]:
        for mine, other in zip(result, results[-1], strict=True):
            np.testing.assert_allclose(np.asarray(mine), np.asarray(other), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("cell", FUSED.values(), ids=FUSED)
def test_a_step_of_unknown_width_is_fused_when_a_program_runs(cell):
    """So it has the bits of eager mode, where every width is known."""
    dtype, lengths, w = np.float64, [2, 0, 5], Weights(np.float64)
    initial = states_of(cell, lengths, dtype)
    layer = vr.nn.DynamicRNN(lambda *given: cell(w, *given))
    with vr.program_guard() as program:
        x = vr.feed_data("x", [-1, -1], "float64", lod_level=1)
        states = [vr.feed_data(f"h{number}", [-1, -1], "float64") for number in range(len(initial))]
        y, *last = layer(x, states)
        ((y * y).sum() + sum((state * 2.0).sum() for state in last)).backward()
        leaves = {id(given): own for given, own in program.recorder._stand_ins.values()}
        fetches = [y, *last, *(leaves[id(weight)].grad for weight in w.made.values())]
        fetches = [fetched.name for fetched in fetches]
    assert layer.explain() == "runs fused if its sizes allow it; they are known only when the program runs"
    feed = {"x": rows(lengths, dtype), **{f"h{number}": state for number, state in enumerate(initial)}}
    wanted, text = trained(cell, lengths, dtype)
    assert text.startswith("runs fused")
    wanted = [value for name, value in wanted.items() if name != "x" and not name.startswith("state")]
    for one in (program, vr.Program.from_bytes(program.to_bytes())):
        for mine, other in zip(vr.Executor().run(one, feed, fetches), wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(mine), np.asarray(other))


def test_a_program_runs_steps_of_several_widths():
    """A weight may be fed, too: what does not fit it is an error of the operator, as in eager mode."""
    with vr.program_guard() as program:
        x, w = vr.feed_data("x", [-1, -1], "float64", lod_level=1), vr.feed_data("w", [-1, -1], "float64")
        y, _ = vr.nn.DynamicRNN(lambda x_t, h: (F.tanh(x_t @ w) + h * 0.5,) * 2)(x, [(HIDDEN,)])
    rng = np.random.default_rng(0)
    for features in (2, 5, 2):
        value = vr.create_lod_tensor(rng.standard_normal((5, features)), [[2, 3]])
        weight = vr.Variable(rng.standard_normal((features, HIDDEN)))
        wanted, _ = vr.nn.DynamicRNN(lambda x_t, h, weight=weight: (F.tanh(x_t @ weight) + h * 0.5,) * 2)(
            value, [(HIDDEN,)]
        )
        (found,) = vr.Executor().run(program, {"x": value, "w": np.asarray(weight)}, [y])
        np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))
    with pytest.raises(vr.ShapeError):
        vr.Executor().run(program, {"x": value, "w": np.zeros((3, HIDDEN))}, [y])


REFUSED = {
    "its output is none of its next states": lambda w, x, h: (x @ w("w", FEATURES, HIDDEN), h),
    "it has no product with a weight": lambda w, x, h: (h * 2.0,) * 2,
    "operator 0, dropout, can mix rows or units": lambda w, x, h: (F.dropout(h, 0.5) + of_input(w, x),) * 2,
    "operator 0, reduce_sum, can mix rows": lambda w, x, h: (h + h.sum() + of_input(w, x),) * 2,
    "operator 1, add: it reads the step's input": lambda w, x, h: (((x + 1.0) @ w("w", FEATURES, HIDDEN)) + h,) * 2,
    "operator 1, mul: it reads a captured value of shape (3, 4)": lambda w, x, h: (
        (h + x @ (w("w", FEATURES, HIDDEN) * 2.0),) * 2
    ),
    "no multiple of 4 units": lambda w, x, h: (h + (x @ w("w", FEATURES, 6))[:, :4],) * 2,
    "columns 1 to 5 are not whole blocks of 4 units": lambda w, x, h: (h + of_input(w, x, 2)[:, 1:5],) * 2,
    "pieces of (3, 1) columns are not whole blocks": lambda w, x, h: (h + F.split(of_input(w, x), 3)[1],) * 2,
    "only blocks of columns can be taken": lambda w, x, h: (h + of_input(w, x, 2)[:, ::2],) * 2,
    "a power: expected an integer from 1 to 8": lambda w, x, h: (h + (of_input(w, x) ** 2.0 + 1.0) ** 0.5,) * 2,
    "a captured value of shape (1,), not one number per unit": lambda w, x, h: (of_input(w, x) + h * w("b", 1),) * 2,
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_fused_says_why_and_runs(reason, interpreted):
    results = []
    for _ in range(2):
        vr.manual_seed(0)
        values, text = trained(REFUSED[reason], [2, 0, 3], np.float64)
        results.append(values)
        assert text.startswith("runs operator by operator: ")
        assert reason in text or len(results) == 2
        interpreted()
    for name, value in results[0].items():
        if value is not None:
            np.testing.assert_array_equal(np.asarray(value), np.asarray(results[1][name]))


def test_steps_of_other_forms_say_why():
    w = Weights(np.float64)

    def explained(cell, x, states):
        layer = vr.nn.DynamicRNN(cell)
        layer(x, states)
        return layer.explain()

    x, h = rows([2, 1], np.float64), np.zeros((2, HIDDEN))
    assert "it has 2 inputs" in explained(lambda x, z, h: (h, h), (x, x), [h])
    assert "it has no state" in explained(lambda x: x, x, [])
    assert "do not all have the same number of units" in explained(lambda x, h, c: (h, h, c), x, [h, np.zeros((2, 3))])
    mixed = explained(lambda x, h: (h, h), x, [h.astype(np.float32)])
    assert "do not all have the same data type" in mixed
    assert "is the input itself, or a captured value" in explained(lambda x, h, c: (h, h, x), x, [np.zeros((2, 3))] * 2)
    assert vr.nn.DynamicRNN(lambda x, h: (h, h)).explain() == "has not run yet: call it once"
    del w


def test_a_number_that_changes_from_call_to_call_is_not_compiled_each_time(monkeypatch):
    w, made, texts = Weights(np.float64), [], []
    monkeypatch.setattr(lower, "_MOST_NUMBERS", 2)
    monkeypatch.setattr(lower, "cell_of_step", lambda *given, of=lower.cell_of_step: made.append(1) or of(*given))
    for number in range(5):
        layer = vr.nn.DynamicRNN(lambda x, h, by=number + 0.125: (F.tanh(of_input(w, x) + h * by * by),) * 2)
        layer(rows([0], np.float64), [np.zeros((1, HIDDEN))])
        texts.append(layer.explain())
    assert len(made) == 2
    assert ["its numbers change from call to call" in text for text in texts] == [False] * 2 + [True] * 3


def test_a_step_of_too_many_operations_is_not_derived():
    w = Weights(np.float64)

    def cell(x, h):
        h = h + of_input(w, x)
        for _ in range(lower._MOST_NODES):
            h = F.tanh(h)
        return h, h

    layer = vr.nn.DynamicRNN(cell)
    layer(rows([2], np.float64), [np.zeros((1, HIDDEN))])
    assert "it has more than 400 operations" in layer.explain()


def test_inference_keeps_nothing():
    w = Weights(np.float64)
    with vr.no_grad():
        y, last = vr.nn.DynamicRNN(lambda *given: gru(w, *given))(rows([2, 3], np.float64), [np.zeros((2, HIDDEN))])
    assert y.record is last.record is None


def test_a_second_pass_over_a_run_computes_again_what_the_first_wrote_over(monkeypatch):
    backward, passes = dynamic_rnn.fused.backward, []
    monkeypatch.setattr(
        dynamic_rnn.fused, "backward", lambda *given: passes.append(backward(*given)) or backward(*given)
    )
    values, _ = trained(gru, [2, 0, 3], np.float64)
    ((d_x, d_states, d_captured),) = passes
    np.testing.assert_array_equal(np.asarray(values["x"]), d_x)
    np.testing.assert_array_equal(np.asarray(values["state 0"]), d_states[0])
    assert any(np.array_equal(d, values["w_h"]) for d in d_captured)


STEPS = {"RNNCell": vr.nn.RNN, "GRUCell": vr.nn.GRU, "LSTMCell": vr.nn.LSTM}


def gradients_and(results, leaves):
    """Return results, and the gradients of leaves, as arrays."""
    sum((value * value).sum() for value in results).backward()
    return [np.asarray(value) for value in (*results, *(leaf.grad for leaf in leaves))]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_of_a_cell_of_nn_is_the_layer(name, bias):
    vr.manual_seed(3)
    cell, layer = (of(FEATURES, HIDDEN, bias=bias, dtype=np.float64) for of in (getattr(vr.nn, name), STEPS[name]))
    cell.load_state_dict({key.removesuffix("_l0"): value for key, value in layer.state_dict().items()})
    count = 2 if name == "LSTMCell" else 1
    states = [vr.Variable(state, requires_grad=True) for state in states_of(lstm_states, [3, 0, 2], np.float64)[:count]]

    def step(x, *states):
        after = cell(x, states) if count > 1 else (cell(x, states[0]),)
        return after[0], *after

    recurrence, x = vr.nn.DynamicRNN(step), vr.Variable(rows([3, 0, 2], np.float64), requires_grad=True)
    mine = gradients_and(recurrence(x, states), [x, cell.weight_ih, cell.weight_hh, *states])
    assert recurrence.explain().startswith("runs fused")
    x.grad, initial = None, [state.detach().reshape(1, 3, HIDDEN) for state in states]
    for state in initial:
        state.requires_grad = True
    y, last = layer(x, tuple(initial) if count > 1 else initial[0])
    last = [state[0] for state in last] if count > 1 else [last[0]]
    other = gradients_and([y, *last], [x, layer.weight_ih_l0, layer.weight_hh_l0, *initial])
    for number, (one, wanted) in enumerate(zip(mine, other, strict=True)):
        rtol, atol = (1e-12, 1e-13) if number > count else (0, 0)  # the outputs and the last states to the last bit
        np.testing.assert_allclose(one, wanted.reshape(one.shape), rtol, atol)


def two_cells(first, second, x, h, lower):
    lower = first(x, lower)
    h = second(lower * 0.5, h)
    return h, h, lower


def test_cells_of_nn_are_parts_of_steps(interpreted):
    vr.manual_seed(3)
    first, second = (vr.nn.RNNCell(size, HIDDEN, dtype=np.float64) for size in (FEATURES, HIDDEN))
    found = []
    for _ in range(2):
        for parameter in (*first.parameters(), *second.parameters()):
            parameter.grad = None
        layer = vr.nn.DynamicRNN(lambda *given: two_cells(first, second, *given))
        results = layer(rows([3, 0, 2], np.float64), states_of(lstm_states, [3, 0, 2], np.float64))
        found.append(gradients_and(results, [*first.parameters(), *second.parameters()]))
        assert layer.explain().startswith("runs operator by operator" if len(found) == 2 else "runs fused")
        interpreted()
    for one, wanted in zip(*found, strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-12, atol=1e-13)


def test_cells_that_cannot_be_parts_of_a_fused_step_say_why():
    vr.manual_seed(3)
    cell = vr.nn.GRUCell(FEATURES, HIDDEN, dtype=np.float64)
    layer = vr.nn.DynamicRNN(lambda x, h: (cell(x) + h,) * 2)
    layer(rows([2, 1], np.float64), [np.zeros((2, HIDDEN))])
    assert "each of its states must be a state of the step" in layer.explain()


def joined_along_rows(x, h, product, end):
    """Next to rows of another axis, the columns are not where those of rows are."""
    both = [part.reshape(1, -1, HIDDEN) for part in (x @ product, h)]
    h = F.tanh(F.concat(both, axis=1).reshape(-1, 2 * HIDDEN) @ end)
    return h, h


def test_what_a_step_reshapes_to_three_axes_is_joined_along_its_own(interpreted):
    rng = np.random.default_rng(3)
    weights = [vr.Variable(rng.standard_normal(shape)) for shape in ((FEATURES, HIDDEN), (2 * HIDDEN, HIDDEN))]
    found = []
    for _ in range(2):
        layer = vr.nn.DynamicRNN(lambda x, h: joined_along_rows(x, h, *weights))
        found.append(np.asarray(layer(rows([3, 2, 2], np.float64), [np.zeros((3, HIDDEN))])[0]))
        assert len(found) == 2 or "three axes" in layer.explain()
        interpreted()
    np.testing.assert_array_equal(*found)
