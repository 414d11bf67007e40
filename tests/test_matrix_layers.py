"""Recurrent layers with matrix states: against NumPy, differences, and the laws of pieces, batch mates and NaN."""

import copy
import itertools

import numpy as np
import pytest

import varlen_rnn as vr
from tests.differences import slope
from tests.emulated.device import Driver
from tests.oracles import matrix_cells as oracle
from varlen_rnn import nn
from varlen_rnn.linear_attention import CHUNK
from varlen_rnn.nn.matrix.mlstm import recalled
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import to_host
from varlen_rnn.sklearn import SequenceClassifier, load
from varlen_rnn.tape.variable import apply

CELLS = {
    nn.GatedDeltaNet: (oracle.delta_net, {}),
    nn.DeltaNet: (oracle.delta_net, {}),
    nn.Mamba2: (oracle.mamba2, {"d_state": 5}),
    nn.MLSTM: (oracle.mlstm, {}),
    nn.GatedLinearAttention: (oracle.gated_linear_attention, {"gate_low_rank_dim": 2}),
}
by_cell = pytest.mark.parametrize("cls", CELLS, ids=lambda cls: cls.__name__)
HEADS, FEATURES, HIDDEN = 2, 3, 6


def made(cls, dtype=np.float64, **options):
    """Return a layer whose parameters differ from their first values."""
    with vr.random.seeded(0):
        layer = cls(FEATURES, HIDDEN, HEADS, **CELLS[cls][1], **options, dtype=dtype)
    rng = np.random.default_rng(1)
    for parameter in layer.parameters():
        parameter.assign(parameter.numpy() + 0.2 * rng.standard_normal(parameter.shape))
    return layer


def rows(lengths, dtype=np.float64, seed=0):
    data = np.random.default_rng(seed).standard_normal((sum(lengths), FEATURES)).astype(dtype)
    return vr.create_lod_tensor(data, [lengths])


def states_of(layer, count, seed=3):
    """Return a tuple of random states for each sequence."""
    rng, blocks = np.random.default_rng(seed), layer.num_layers * (1 + layer.bidirectional)
    return tuple(rng.standard_normal((blocks, count, *shape)).astype(layer.dtype) for _, shape in layer.state_shapes)


def given_to(layer, states):
    return states if len(states) > 1 else states[0]


def flat(results):
    y, last = results
    return [y, *(last if isinstance(last, tuple) else (last,))]


def parameters_of(block):
    return {name: parameter.numpy() for name, parameter in block.named_parameters()}


@by_cell
def test_equals_the_oracle(cls):
    lengths = [3, 0, 40, 1]
    layer, x = made(cls, num_layers=2, bidirectional=True), rows(lengths)
    layers = [[(parameters_of(getattr(layer, f"l{k}{end}")), bool(end)) for end in ("", "_reverse")] for k in range(2)]
    parts = np.split(x.data, np.cumsum(lengths)[:-1])
    for states in (states_of(layer, 4), tuple(np.zeros_like(state) for state in states_of(layer, 4))):
        each = [[tuple(state[block, i] for state in states) for i in range(4)] for block in range(4)]
        wanted, last = oracle.stacked(CELLS[cls][0], layers, parts, HEADS, each)
        is_zero = not any(state.any() for state in states)
        y, *found = flat(layer(x, None if is_zero else given_to(layer, states)))
        assert y.lod() == x.lod()
        np.testing.assert_allclose(y, np.concatenate(wanted), rtol=0, atol=1e-9)
        for number, state in enumerate(found):
            right = [[np.asarray(after[number]) for after in of_block] for of_block in last]
            np.testing.assert_allclose(state, right, rtol=0, atol=1e-9)


@by_cell
def test_gradients_are_central_differences(cls):
    lengths = [3, 0, 34]
    layer, x = made(cls, num_layers=2), vr.Variable(rows(lengths), requires_grad=True)
    states = tuple(vr.Variable(state, requires_grad=True) for state in states_of(layer, 3))

    def loss():
        rng, found = np.random.default_rng(1), flat(layer(x, given_to(layer, states)))
        # The stabiliser of an MLSTM counts as a constant: outputs do not depend on it, but states do.
        of_loss = found[:1] if cls is nn.MLSTM else found
        return sum((v * rng.standard_normal(v.shape)).sum() for v in of_loss)

    loss().backward()
    for value in (x, *states, *layer.parameters()):
        if value is states[-1] and cls is nn.MLSTM:
            continue
        way = np.random.default_rng(2).standard_normal(value.shape)
        found, difference = (np.asarray(value.grad) * way).sum(), slope(loss, value.value.data, way)
        np.testing.assert_allclose(found, difference, rtol=1e-5, atol=1e-6)


@by_cell
@pytest.mark.usefixtures("no_device")
def test_pieces_streams_and_batch_mates(cls):
    """Pieces cut at multiples of a chunk have the same bits as the whole, others and streams are rounded otherwise."""
    layer, lengths = made(cls, np.float32, num_layers=2), [2 * CHUNK + 5, 3, 0]
    x = rows(lengths, np.float32)
    whole = [np.asarray(value) for value in flat(layer(x))]
    alone = [np.asarray(value) for value in flat(layer(x[[0]]))]
    assert alone[0].tobytes() == whole[0][: lengths[0]].tobytes()
    assert all(
        a.tobytes() == np.ascontiguousarray(b[:, :1]).tobytes() for a, b in zip(alone[1:], whole[1:], strict=True)
    )
    for cut, exact in ((CHUNK, True), (7, False)):
        run, found = nn.Stateful(layer), []
        for first, end in itertools.pairwise((0, cut, lengths[0])):
            y, last = run(vr.create_lod_tensor(x.data[first:end], [[end - first]]), ["a"])
            found.append(np.asarray(y))
        pairs = list(zip([np.concatenate(found), *map(np.asarray, flat((0, last))[1:])], alone, strict=True))
        if exact:
            assert all(mine.tobytes() == right.tobytes() for mine, right in pairs)
        for mine, right in pairs:
            np.testing.assert_allclose(mine, right, rtol=0, atol=2e-5)
    stream = layer.stream(2)
    found = np.array([stream(x.data[t : t + 1], at=[1])[0] for t in range(lengths[0])])
    np.testing.assert_allclose(found, alone[0], rtol=0, atol=2e-5)
    assert [ready.binding.runs for ready in stream._stream._program.prepared.values()] == [lengths[0] - 3]
    again = copy.deepcopy(stream)
    states = stream.states
    stream.reset([1])
    assert not any(np.asarray(state).any() for state in flat((0, stream.states))[1:])
    stream.reset(states=states)
    assert stream(x.data[:1], at=[1]).tobytes() == again(x.data[:1], at=[1]).tobytes()


@by_cell
def test_a_nan_stays_in_its_sequence_and_reaches_no_earlier_row(cls):
    layer, x = made(cls, np.float32), rows([40, 3], np.float32)
    right = np.asarray(layer(x)[0])
    x.data[37] = np.nan
    found, states = np.asarray(layer(x)[0]), flat(layer(x))[1:]
    keep = np.r_[0:37, 40:43]
    np.testing.assert_array_equal(found[keep], right[keep])
    assert np.isnan(found[37:40]).all()
    assert not any(np.isnan(np.asarray(state)[:, 1]).any() for state in states)


@by_cell
def test_programs_files_and_copies(cls, tmp_path):
    layer, x = made(cls, np.float32, num_layers=2, dropout=0.5, bidirectional=True).eval(), rows([3, 0, 2], np.float32)
    states = states_of(layer, 3)
    wanted = flat(layer(x, given_to(layer, states)))
    with vr.program_guard() as program:
        feeds = [vr.feed_data("x", (-1, FEATURES), np.float32, 1)]
        feeds += [vr.feed_data(f"s{k}", (state.shape[0], -1, *state.shape[2:]), np.float32) for k, state in
                  enumerate(states)]  # fmt: skip
        fetched = flat(layer(feeds[0], given_to(layer, tuple(feeds[1:]))))
    given = {"x": x} | {f"s{k}": state for k, state in enumerate(states)}
    for mine, right in zip(vr.Executor().run(program, given, fetched), wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(right))
    other = cls(FEATURES, HIDDEN, HEADS, 2, **CELLS[cls][1], dropout=0.5, bidirectional=True)
    other.load_state_dict(layer.state_dict())
    run = other.prepare()
    for mine, right in zip(flat(run(x, given_to(layer, states))), wanted, strict=True):
        np.testing.assert_array_equal(mine, right)
        assert not mine.requires_grad
    assert nn.summary(layer, [[0, 2, 5]]).parameters == sum(parameter.size for parameter in layer.parameters())
    assert cls(FEATURES, HIDDEN, HEADS, direction="backward", **CELLS[cls][1])(x)[0].shape == (5, HIDDEN)
    with vr.random.seeded(0):
        assert not np.array_equal(layer.train()(x)[0], wanted[0])


def test_an_estimator_takes_their_names(tmp_path):
    """With as many of four heads as divide the units, here two."""
    rng = np.random.default_rng(0)
    X, y = [rng.standard_normal((n, 2)) for n in range(2, 14)], np.arange(12) % 2
    names = {"gated_delta": nn.GatedDeltaNet, "delta": nn.DeltaNet, "mamba2": nn.Mamba2, "mlstm": nn.MLSTM,
             "gla": nn.GatedLinearAttention}  # fmt: skip
    for name, cls in names.items():
        options = {"hidden_size": 6, "max_epochs": 1, "early_stopping": False, "model": "recurrent"}
        model = SequenceClassifier(cell=name, **options).fit(X, y)
        layer = model.module_.recurrent
        assert (type(layer), layer.num_heads, layer.bidirectional) == (cls, 2, True)
        model.save(tmp_path / name)
        np.testing.assert_array_equal(load(tmp_path / name).predict_proba(X), model.predict_proba(X))


def test_what_does_not_fit_is_told():
    layer, x = nn.GatedDeltaNet(3, 8, 2), rows([2, 1], np.float32)
    cases = [
        (lambda: nn.GatedDeltaNet(3, 8, 3), "num_heads: expected a number that divides hidden_size=8, got 3"),
        (lambda: nn.Mamba2(3, 8, d_state=0), "d_state: expected"),
        (lambda: nn.DeltaNet(3, 8, conv_size=0), "conv_size: expected"),
        (lambda: layer(x.data), "GatedDeltaNet, x: expected at least one level"),
        (lambda: layer(rows([2, 1])), r"GatedDeltaNet, x: expected \(rows, 3\) float32"),
        (lambda: layer(x, np.zeros((1, 2, 2, 4, 4), "f")), r"GatedDeltaNet, states: expected \(state_0, window_0\)"),
        (lambda: layer(x, (np.zeros((1, 3, 2, 4, 4), "f"), None)), "GatedDeltaNet, state: expected shape"),
        (lambda: layer(x, (np.zeros((1, 2, 2, 4, 4)), None)), "GatedDeltaNet, state: expected float32"),
        (lambda: nn.Stateful(nn.DeltaNet(3, 8, bidirectional=True)), "expected direction 'forward'"),
        (lambda: layer.stream()(np.zeros((1, 4), "f")), r"stream, rows: expected \(rows, 3\) float32"),
        (lambda: layer.stream(2)(np.zeros((1, 3), "f")), "stream, 'rows': expected 2 rows, one for each stream"),
        (lambda: layer.stream(2)(np.zeros((1, 3), "f"), at=[2]), "stream, at"),
        (lambda: layer.stream().reset(0), "stream, at"),
        (
            lambda: layer.stream().reset(states=(np.zeros((1, 2, 2, 4, 4), "f"), None)),
            "reset, 'state': expected float32",
        ),
        (lambda: nn.DynamicRNN(layer), "DynamicRNN, cell: expected"),
    ]
    for call, message in cases:
        with pytest.raises(vr.InputError, match=message):
            call()


@pytest.mark.slow
@pytest.mark.needs_device
@pytest.mark.parametrize("cls", [nn.GatedDeltaNet, nn.MLSTM], ids=lambda cls: cls.__name__)
def test_layers_run_on_a_device_as_on_the_cpu(cls, monkeypatch):
    monkeypatch.setattr(cuda, "driver", Driver())
    layer, x = made(cls, np.float32), rows([2, 0, 36], np.float32)
    found = []
    for place in ("cpu", "cuda"):
        layer.zero_grad()
        y, _ = layer.to(place)(x.to(place))
        (y * y).sum().backward()
        found.append([to_host(y.value.data), *(to_host(parameter.grad) for parameter in layer.parameters())])
    for right, mine in zip(*found, strict=True):
        np.testing.assert_allclose(mine, right, rtol=0, atol=1e-4 * max(1, np.abs(right).max()))


@pytest.mark.slow
def test_an_mlstm_is_right_after_100_000_steps_where_its_divisor_is_not_small():
    """Float32 against float64, with forget gates of 0.9997 to 0.99995: a small divisor multiplies a norm's error."""
    rng, count = np.random.default_rng(0), 100_000
    q, k, v = (rng.standard_normal((count, 1, 8)).astype(np.float32) for _ in range(3))
    log_input = rng.standard_normal((count, 1)).astype(np.float32)
    log_forget = -np.log1p(np.exp(-rng.uniform(8, 10, (count, 1)))).astype(np.float32)

    def run(dtype):
        rows = (vr.create_lod_tensor(x.astype(dtype), [[count]]) for x in (q, k, v, log_input, log_forget))
        q_, k_, v_, i, f = map(vr.Variable, rows)
        shift, level, m = apply("stabiliser", f, i, None)
        (y, norms), states = vr.linear_attention(q_, k_, v_, f + shift, nn.functional.exp(i - level), normalise=True)
        found = y, norms, *states, m, recalled(q_, k_, v_, i, f, (None, None, None), 1e-6)[0], level
        return [np.asarray(x).astype(np.float64) for x in found]

    with vr.no_grad():
        (*mine, h, _), (*right, wanted, level) = run(np.float32), run(np.float64)
    error = lambda x, y: np.linalg.norm(x - y) / np.linalg.norm(y)
    for x, y in zip(mine, right, strict=True):
        assert error(x, y) < 1e-5
    norms = np.abs(right[1][:, 0])
    divisor = np.maximum(norms, np.exp(-level[:, 0]))
    large = divisor > 0.3 * np.sqrt(np.square(norms).mean())
    assert large.mean() > 0.7
    assert error(h[large], wanted[large]) < 1e-5  # measured: 4e-6
    assert error(h, wanted) < 2e-4  # measured: 1e-4
