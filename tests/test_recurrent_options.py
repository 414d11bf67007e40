"""Directions, merges, projections, vectors and all states of layers, against NumPy, differences and PyTorch."""

import inspect
import itertools
import re

import numpy as np
import pytest
from oracles.recurrence import STEPS

import varlen_rnn as vr
from tests.differences import slope
from varlen_rnn.cells import CELLS, sigmoid, tanh
from varlen_rnn.cells.define import cell
from varlen_rnn.nn.recurrent import options
from varlen_rnn.tape.variable import apply

LENGTHS = {
    "ragged": [3, 1, 4, 2],
    "empty ones": [0, 2, 0, 3, 0],
    "one step": [1, 1, 1],
    "equal": [3, 3],
    "none at all": [0, 0],
}
FEATURES, HIDDEN = 3, 5


@cell
def peephole(i, f, g, o, /, c, *, w_i, w_f):
    """Two vectors."""
    new = sigmoid(f + w_f * c) * c + sigmoid(i + w_i * c) * tanh(g)
    return sigmoid(o) * tanh(new), new


@cell
def elementwise(a, /, h, *, u):
    """No recurrent product: `weight_hh` is missing."""
    return tanh(a.x + u * h)


@cell
def reset_first(r, z, n, /, h):
    """Two phases: a product of what the first one gives."""
    candidate = tanh(n.x + n.of(sigmoid(r) * h))
    return candidate + sigmoid(z) * (h - candidate)


@cell
def no_input(a, b, /, c):
    """No projected input of b, and of c only itself: `weight_ih` has the rows of a."""
    new = c + sigmoid(b.h)
    return tanh(a) * new, new


OWN = {"peephole": peephole, "elementwise": elementwise, "reset_first": reset_first, "no_input": no_input}


def step_of(name, w, x, states):
    """Return the states after a step of one sequence, from the weights by name."""
    h, *others = states
    of_x = w["weight_ih"] @ x + w["bias_ih"] if "weight_ih" in w else None

    def product(rows=slice(None), operand=h):
        return w["weight_hh"][rows] @ operand + w["bias_hh"][rows]

    if name in STEPS:
        return STEPS[name](of_x, product(), states)

    def gate(a):
        return 1 / (1 + np.exp(-a))

    if name == "elementwise":
        return (np.tanh(of_x + w["u"] * h),)
    if name == "no_input":
        a, b = np.split(product(), 2)
        new = others[0] + gate(b)
        return np.tanh(of_x + a) * new, new
    if name == "reset_first":
        r, z = np.split(gate(of_x[: 2 * HIDDEN] + product(slice(0, 2 * HIDDEN))), 2)
        candidate = np.tanh(of_x[2 * HIDDEN :] + product(slice(2 * HIDDEN, None), r * h))
        return (candidate + z * (h - candidate),)
    (i, f, g, o), (c,) = np.split(of_x + product(), 4), others
    c = gate(f + w["w_f"] * c) * c + gate(i + w["w_i"] * c) * np.tanh(g)
    return gate(o) * np.tanh(c), c


def oracle(name, x, offsets, directions, initial, reverse, proj_clip=np.inf):
    """Return y and the other states of every row, and the last states of each state: one row at a time.

    `directions`: dicts of weights by name; `initial`: one array (directions, sequences, units) for each state.
    """
    rows_of = [[], []]
    last = [state.copy() for state in initial]
    for d, (w, backward) in enumerate(zip(directions, reverse, strict=True)):
        found = [np.zeros((len(x), state.shape[-1])) for state in initial]
        for i, (begin, end) in enumerate(itertools.pairwise(offsets)):
            states = tuple(state[d, i] for state in initial)
            for row in range(begin, end)[:: -1 if backward else 1]:
                states = step_of(name, w, x[row], states)
                if "weight_hr" in w:
                    states = np.clip(w["weight_hr"] @ states[0], -proj_clip, proj_clip), *states[1:]
                for of_state, state in zip(found, states, strict=True):
                    of_state[row] = state
            for number, state in enumerate(states):
                last[number][d, i] = state
        for number, of_state in enumerate(found):
            rows_of[number].append(of_state)
    return [np.concatenate(parts, axis=1) for parts in rows_of if parts], last


def layer_of(name, **options):
    kind = {"lstm": vr.nn.LSTM, "gru": vr.nn.GRU, "rnn_tanh": vr.nn.RNN}.get(name)
    vr.manual_seed(1)
    if kind is None:
        return vr.nn.Recurrent((CELLS | OWN)[name], FEATURES, HIDDEN, dtype=np.float64, **options)
    return kind(FEATURES, HIDDEN, dtype=np.float64, **options)


def a_case(layer, lengths, seed=0):
    """Return rows, and initial states of a layer, as Variables that require gradients."""
    rng, count = np.random.default_rng(seed), layer.num_layers * layer.num_directions
    x = vr.create_lod_tensor(rng.standard_normal((sum(lengths), FEATURES)), [lengths])
    units = [layer.output_size, *[HIDDEN] * (len(layer.cell.states) - 1)]
    states = [rng.standard_normal((count, len(lengths), size)) for size in units]
    return vr.Variable(x, requires_grad=True), [vr.Variable(state, requires_grad=True) for state in states]


def run(layer, x, states):
    """Return y, the other states, and the last ones, all in one tuple."""
    y, others, last = layer.all_states(x, tuple(states) if len(states) > 1 else states[0])
    return y, *others, *(last if len(states) > 1 else (last,))


def weights_of(layer, suffix):
    names = [name for name, _ in layer.named_parameters() if name.endswith(suffix)]
    return {name.removesuffix(suffix): getattr(layer, name).data for name in names}


def merged(rows, merge, directions):
    if merge == "concat" or directions == 1:
        return rows
    first, second = np.split(rows, 2, axis=1)
    return (first + second) / (2 if merge == "mean" else 1)


CASES = [
    ("lstm", 0), ("lstm", 2), ("gru", 0), ("rnn_relu", 4), ("peephole", 0), ("peephole", 3), ("elementwise", 0),
    ("reset_first", 0), ("no_input", 0),
]  # fmt: skip


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("merge", ["concat", "sum", "mean"])
@pytest.mark.parametrize("direction", ["forward", "backward", "both"])
@pytest.mark.parametrize(("name", "proj_size", "proj_clip"), [*((*case, None) for case in CASES), ("lstm", 3, 0.1)])
def test_equals_the_oracle(name, proj_size, proj_clip, direction, merge, lengths):
    options = {"direction": direction, "merge": merge} | ({"proj_size": proj_size} if proj_size else {})
    options |= {} if proj_clip is None else {"proj_clip": proj_clip}
    layer = layer_of(name, **options)
    x, states = a_case(layer, lengths)
    reverse = {"forward": [False], "backward": [True], "both": [False, True]}[direction]
    directions = [weights_of(layer, suffix) for suffix in layer.suffixes(0)]
    initial = [np.asarray(state) for state in states]
    rows, last = oracle(name, np.asarray(x), x.lod()[0], directions, initial, reverse, layer.cell.proj_clip)
    wanted = [*(merged(of_state, merge, len(reverse)) for of_state in rows), *last]
    found = run(layer, x, states)
    for value, right in zip(found, wanted, strict=True):
        assert value.shape == right.shape
        np.testing.assert_allclose(np.asarray(value), right, rtol=1e-12, atol=1e-12)
    for value in found[: len(rows)]:
        assert value.lod() == x.lod()


def loss_of(layer, x, states, weights):
    return sum(((value * weight).sum() for value, weight in zip(run(layer, x, states), weights, strict=True)), 0.0)


@pytest.mark.parametrize("lengths", [LENGTHS["ragged"], LENGTHS["empty ones"]], ids=["ragged", "empty ones"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lstm", {"direction": "backward"}),
        ("lstm", {"direction": "both"}),
        ("lstm", {"direction": "both", "merge": "mean", "num_layers": 2}),
        ("lstm", {"direction": "both", "merge": "sum", "proj_size": 2, "num_layers": 2}),
        ("lstm", {"proj_size": 4, "bias": False}),
        ("lstm", {"proj_size": 3, "proj_clip": 0.1, "direction": "both", "num_layers": 2}),
        ("gru", {"direction": "both", "merge": "sum", "num_layers": 2}),
        ("rnn_relu", {"direction": "backward", "proj_size": 3}),
        ("peephole", {"direction": "both", "proj_size": 3, "merge": "sum"}),
        ("elementwise", {"direction": "backward", "num_layers": 2}),
        ("reset_first", {"direction": "both"}),
        ("no_input", {"num_layers": 2, "bias": False}),
    ],
)
def test_gradients_are_central_differences(name, options, lengths):
    layer = layer_of(name, **options)
    x, states = a_case(layer, lengths)
    rng = np.random.default_rng(3)
    weights = [rng.standard_normal(value.shape) for value in run(layer, x, states)]
    loss_of(layer, x, states, weights).backward()
    leaves = [x, *states, *layer.parameters()]
    for leaf in leaves:
        array = leaf.value.data
        d = np.asarray(leaf.grad)
        assert d.shape == array.shape
        for place in rng.choice(array.size, min(5, array.size), replace=False):
            index = np.unravel_index(place, array.shape)
            difference = slope(lambda: loss_of(layer, x, states, weights), array, at=index)
            assert abs(d[index] - difference) <= 1e-6 * max(1, abs(d[index])), (index, leaf.name)


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_a_gradient_may_come_from_one_output_alone(which):
    """y, the other states of every row, and both last states: what nobody asked of has no gradient."""
    layer = layer_of("lstm", direction="both", proj_size=2)
    x, states = a_case(layer, LENGTHS["ragged"])
    values = run(layer, x, states)
    weights = [np.zeros(value.shape) for value in values]
    weights[which] += np.random.default_rng(0).standard_normal(weights[which].shape)
    (values[which] * weights[which]).sum().backward()
    alone = [np.array(leaf.grad) for leaf in [x, *states, *layer.parameters()]]
    for leaf in [x, *states, *layer.parameters()]:
        leaf.grad = None
    loss_of(layer, x, states, weights).backward()
    for d, leaf in zip(alone, [x, *states, *layer.parameters()], strict=True):
        np.testing.assert_allclose(d, np.asarray(leaf.grad), rtol=1e-12, atol=1e-14)


def test_both_directions_are_a_forward_and_a_backward_layer():
    both = layer_of("gru", bidirectional=True)
    x, (h_0,) = a_case(both, LENGTHS["empty ones"])
    y, h_n = both(x, h_0)
    for number, direction in enumerate(("forward", "backward")):
        one = layer_of("gru", direction=direction)
        one.load_state_dict({name: both.state_dict()[name] for name in one.state_dict()})
        part, h_one = one(x, h_0[number : number + 1])
        columns = slice(number * HIDDEN, (number + 1) * HIDDEN)
        np.testing.assert_array_equal(np.asarray(part), np.asarray(y)[:, columns])
        np.testing.assert_array_equal(np.asarray(h_one)[0], np.asarray(h_n)[number])


def test_all_states_end_in_the_last_ones():
    layer = layer_of("lstm", num_layers=2)
    x, states = a_case(layer, [2, 3])
    y, (c,), (_, c_n) = layer.all_states(x, states)
    np.testing.assert_array_equal(np.asarray(c)[[1, 4]], np.asarray(c_n)[1])
    np.testing.assert_array_equal(np.asarray(y), np.asarray(layer(x, states)[0]))
    with vr.no_grad():
        np.testing.assert_array_equal(np.asarray(layer.all_states(x, states)[1][0]), np.asarray(c))
    assert layer_of("gru").all_states(x)[1] == ()


def test_batch_mates_and_threads_change_no_bit():
    layer = layer_of("lstm", direction="both", merge="sum", proj_size=2)
    x, _ = a_case(layer, [4, 0, 2, 7, 7])
    before = vr.get_num_threads()

    def outputs(threads, mates):
        vr.set_num_threads(threads)
        y, (c,), _ = layer.all_states(x.value[mates])
        return np.asarray(y), np.asarray(c)

    try:
        whole = outputs(1, [0, 1, 2, 3, 4])
        for value, other in zip(whole, outputs(2, [0, 1, 2, 3, 4]), strict=True):
            np.testing.assert_array_equal(value, other)
        for value, other in zip(whole, outputs(1, [2]), strict=True):
            np.testing.assert_array_equal(value[4:6], other)
    finally:
        vr.set_num_threads(before)


@pytest.mark.parametrize(
    "options", [{"direction": "backward"}, {"direction": "both", "merge": "mean", "proj_size": 2, "num_layers": 2}]
)
def test_a_program_that_was_saved_is_the_layer(options, tmp_path):
    layer = layer_of("lstm", **options)
    x, _ = a_case(layer, LENGTHS["empty ones"])
    rows, lengths = x.value.data, x.value
    with vr.program_guard() as program:
        fed = vr.feed_data("x", [-1, FEATURES], "float64", lod_level=1, requires_grad=True)
        y, (c,), (h_n, c_n) = layer.all_states(fed)
        loss = (y * y).sum() + (c * c).sum() + h_n.sum() + c_n.sum()
        loss.backward()
        names = [y.name, c.name, h_n.name, "x@GRAD"]
    program.save(tmp_path / "p")
    found = vr.Executor().run(vr.Program.load(tmp_path / "p"), {"x": lengths}, names)
    eager = vr.Variable(vr.LoDTensor(rows, lengths.structure), requires_grad=True)
    y, (c,), (h_n, c_n) = layer.all_states(eager)
    ((y * y).sum() + (c * c).sum() + h_n.sum() + c_n.sum()).backward()
    for value, right in zip(found, [y, c, h_n, eager.grad], strict=True):
        np.testing.assert_array_equal(np.asarray(value), np.asarray(right))


def test_a_padded_twin_has_the_options():
    layer = layer_of("lstm", direction="both", merge="sum", proj_size=2, num_layers=2)
    x, states = a_case(layer, LENGTHS["empty ones"])
    y, (h_n, _) = layer(x, states)
    padded, last = vr.baselines.Padded(layer)(x, states)
    np.testing.assert_allclose(np.asarray(padded), np.asarray(y), atol=1e-12)
    np.testing.assert_allclose(np.asarray(last), np.asarray(h_n), atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: vr.nn.LSTM(3, 4, bidirectional=True, direction="forward"), "direction: expected 'both'"),
        (lambda: vr.nn.LSTM(3, 4, bidirectional=True, direction="backward"), "direction: expected 'both'"),
        (lambda: vr.nn.LSTM(3, 4, direction="reverse"), "direction"),
        (lambda: vr.nn.LSTM(3, 4, merge="max"), "merge"),
        (lambda: vr.nn.LSTM(3, 4, proj_size=4), "proj_size: expected less than hidden_size=4"),
        (lambda: vr.nn.LSTM(3, 4, proj_size=-1), "proj_size"),
        (lambda: vr.nn.LSTM(3, 4, proj_clip=1.0), "proj_clip: expected None, as proj_size is 0"),
        (lambda: vr.nn.LSTM(3, 4, proj_size=2, proj_clip=-1.0), "proj_clip"),
        (lambda: vr.nn.Recurrent(CELLS["gru"], 3, 4, proj_size=2), "0, because the cell 'gru' cannot project"),
    ],
)
def test_options_that_do_not_fit(make, message):
    with pytest.raises(vr.InputError, match=message):
        make()


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_signatures_show_each_option_of_a_cell_with_its_default(kind):
    parameters = inspect.signature(getattr(vr.nn, kind)).parameters
    family = getattr(vr.cells, f"{kind.lower()}_cell")
    for name, default in family.defaults.items():
        shown = parameters["nonlinearity" if name == "activation" else name]
        assert shown.default == default
        assert shown.annotation is not shown.empty
    for name in ("direction", "merge", "dropout_per", "recompute"):
        assert parameters[name].default == inspect.signature(vr.nn.Recurrent).parameters[name].default
    assert "options" not in parameters


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_table_types_and_docstring_have_the_same_options(kind):
    layer, family = getattr(vr.nn, kind), getattr(vr.cells, f"{kind.lower()}_cell")
    renamed = {own: name for name, own in options.RENAMED.items()}
    table = {renamed.get(name, name): option for name, option in family.options.items()} | options.drawn(family)
    signature, of_any = inspect.signature(layer).parameters, inspect.signature(vr.nn.Recurrent).parameters
    assert set(signature) - set(of_any) == set(table)
    typed = set(getattr(options, f"{kind}Options").__annotations__)
    assert typed == {name for name, p in signature.items() if p.kind is p.KEYWORD_ONLY}
    parameters = layer.__doc__.partition("Parameters\n")[2].partition("Attributes\n")[0]
    assert re.findall(r"^(\w+) : ", parameters, re.M) == list(signature)
    words = " ".join(parameters.split())
    assert all(" ".join(option.doc.split()) in words for option in table.values())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: vr.nn.GRU(3, 4, peepholes=True), r"GRU\(\) got an unexpected keyword argument 'peepholes'"),
        (lambda: vr.nn.RNN(3, 4, activation="relu"), r"RNN\(\) got an unexpected keyword argument 'activation'"),
        (
            lambda: vr.nn.LSTM(3, 4, batch_first=True),
            r"LSTM\(\) got .* 'batch_first' \(leave it out: rows have no batch",
        ),
        (lambda: vr.nn.Recurrent(vr.cells.GRU, 3, 4, batch_first=True), r"^Recurrent\(\) got .* 'batch_first' \(leave"),
        (lambda: vr.nn.MultiheadAttention(4, 2, batch_first=True), r"MultiheadAttention\(\) got .*leave it out"),
        (lambda: vr.nn.LSTM(3, 4, cell=None), r"LSTM\(\) got an unexpected keyword argument 'cell'"),
        (lambda: vr.cells.lstm_cell(peephole=True), r"lstm_cell\(\) got an unexpected keyword argument 'peephole'"),
    ],
)
def test_an_option_that_there_is_not_is_named(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_a_projected_state_has_its_own_size():
    layer = layer_of("lstm", proj_size=2)
    x, (h, c) = a_case(layer, [2, 1])
    with pytest.raises(vr.ShapeError, match=r"LSTM, h_0: expected \(1, 2, 2\)"):
        layer(x, (c, c))
    with pytest.raises(vr.ShapeError, match=r"LSTM, c_0: expected \(1, 2, 5\)"):
        layer(x, (h, h))


def test_parameters_of_a_cells_vectors_have_its_names():
    layer = layer_of("peephole", bidirectional=True)
    assert {name: getattr(layer, name).shape for name in ("w_i_l0", "w_f_l0_reverse")} == {
        "w_i_l0": (HIDDEN,),
        "w_f_l0_reverse": (HIDDEN,),
    }
    assert layer_of("elementwise").weight_hh_l0 is None
    assert layer_of("elementwise").bias_hh_l0 is None


def test_a_vector_has_no_name_of_another_input():
    @cell
    def clash(a, /, h, *, weight_ih):
        return tanh(a + weight_ih * h)

    with pytest.raises(vr.ShapeError, match="cell 'clash': expected vectors and rows with names other than"):
        vr.nn.Recurrent(clash, 3, 4)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("num_layers", [1, 2])
def test_projections_are_those_of_pytorch(num_layers, bidirectional):
    torch = pytest.importorskip("torch", reason="PyTorch is in the `parity` extra")
    torch.manual_seed(0)
    options = {"num_layers": num_layers, "bidirectional": bidirectional, "proj_size": 3}
    theirs = torch.nn.LSTM(FEATURES, HIDDEN, **options, dtype=torch.float64)
    ours = layer_of("lstm", **options)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict({name: tensor.numpy() for name, tensor in theirs.state_dict().items()})
    lengths = [3, 1, 4]
    x, states = a_case(ours, lengths)
    y, (h_n, c_n) = ours(x, states)
    ((y * y).sum() + (h_n * 2.0).sum() + (c_n * c_n).sum()).backward()
    t_x = torch.tensor(np.asarray(x), requires_grad=True)
    t_states = [torch.tensor(np.asarray(state), requires_grad=True) for state in states]
    packed = torch.nn.utils.rnn.pack_sequence(torch.split(t_x, lengths), enforce_sorted=False)
    t_y, (t_h, t_c) = theirs(packed, tuple(t_states))
    t_y = torch.cat(torch.nn.utils.rnn.unpack_sequence(t_y))
    ((t_y * t_y).sum() + (t_h * 2.0).sum() + (t_c * t_c).sum()).backward()
    pairs = [(y, t_y), (h_n, t_h), (c_n, t_c), (x.grad, t_x.grad)]
    pairs += [(state.grad, other.grad) for state, other in zip(states, t_states, strict=True)]
    pairs += [(getattr(ours, name).grad, parameter.grad) for name, parameter in theirs.named_parameters()]
    for value, right in pairs:
        np.testing.assert_allclose(np.asarray(value), right.detach().numpy(), rtol=1e-9, atol=1e-11)


LSTM_OF_3 = vr.nn.LSTM(3, 4)
CHECKED = {
    "LSTM, x": LSTM_OF_3,
    "prepared, x": lambda x: LSTM_OF_3.prepare()(x),
    "stream, rows": lambda x: LSTM_OF_3.stream(len(x.data))(x.data),
    "recurrent, x": lambda x: apply(
        "recurrent", x, None, None, *LSTM_OF_3.weights("_l0"), cell="lstm", keep=False, reverse=(0,), all_states=False
    ),
    "LSTMCell, x": vr.nn.LSTMCell(3, 4),
}


@pytest.mark.parametrize("name", CHECKED)
@pytest.mark.parametrize(
    ("shape", "dtype", "error"),
    [((2, 5), np.float32, vr.ShapeError), ((2, 3), np.float64, vr.DTypeError), ((2, 1, 3), np.float32, vr.ShapeError)],
)
def test_every_way_to_run_a_layer_refuses_rows_in_the_same_words(name, shape, dtype, error):
    message = (
        rf"{name}: expected \((rows|batch), (3|features)\).* float32, got {re.escape(str(shape))} {np.dtype(dtype)}"
    )
    if name == "recurrent, x" and dtype == np.float64:  # an operator takes both, but no weights of the other
        message = "recurrent, weight_ih: expected float64, as x has, got float32"
    with pytest.raises(error, match=message):
        CHECKED[name](vr.create_lod_tensor(np.zeros(shape, dtype), [[2]]))
