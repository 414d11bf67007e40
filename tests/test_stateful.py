"""Chunks of sequences that go on: one long run, bit for bit, whose gradient ends where a chunk begins."""

import copy

import numpy as np
import pytest

import varlen_rnn as vr

LAYERS = {
    "lstm": lambda: vr.nn.LSTM(3, 4, num_layers=2, proj_size=2, dtype=np.float64),
    "gru": lambda: vr.nn.GRU(3, 4, dtype=np.float64),
}
# Of each chunk, its sequences and how many rows each of them has there; "b" rests, and begins anew.
CHUNKS = [{"a": 2, "b": 1, "c": 3}, {"c": 2, "a": 4}, {"b": 2, "a": 0, "d": 1}, {"a": 3, "d": 2}]
RUNS = {"a": [0, 1, 2, 3], "b": [0], "c": [0, 1], "d": [2, 3], "b again": [2]}
by_layer = pytest.mark.parametrize("name", LAYERS)


def chunks():
    rng = np.random.default_rng(0)
    return [{key: rng.standard_normal((count, 3)) for key, count in chunk.items()} for chunk in CHUNKS]


def rows_of(chunk):
    return vr.LoDTensor.from_sequences(list(chunk.values()), num_levels=1)


@by_layer
def test_chunks_are_one_long_run(name):
    layer = LAYERS[name]()
    run, given = vr.nn.Stateful(layer), chunks()
    outputs, lasts = [], []
    for chunk in given:
        y, last = run(rows_of(chunk), list(chunk))
        outputs.append(dict(zip(chunk, (np.asarray(part) for part in y.value), strict=True)))
        lasts.append(last if name == "lstm" else (last,))
        assert run.keys == tuple(chunk)
    for sequence, numbers in RUNS.items():
        key = sequence[0]
        whole, last = layer(vr.create_lod_tensor(np.concatenate([given[n][key] for n in numbers]), [[
            sum(CHUNKS[n][key] for n in numbers)]]))  # fmt: skip
        np.testing.assert_array_equal(np.concatenate([outputs[n][key] for n in numbers]), np.asarray(whole))
        place = list(CHUNKS[numbers[-1]]).index(key)
        for state, wanted in zip(lasts[numbers[-1]], last if name == "lstm" else (last,), strict=True):
            np.testing.assert_array_equal(np.asarray(state)[:, place], np.asarray(wanted)[:, 0])


@by_layer
def test_a_gradient_ends_where_a_chunk_begins(name):
    layer = LAYERS[name]()
    run, (first, second, *_) = vr.nn.Stateful(layer), chunks()
    _, last = run(rows_of(first), list(first))
    y, _ = run(rows_of(second), list(second))
    (y * y).sum().backward()
    found = [np.array(parameter.grad) for parameter in layer.parameters()]
    for parameter in layer.parameters():
        parameter.grad = None
    picked = [np.asarray(state)[:, [2, 0]] for state in (last if name == "lstm" else (last,))]
    y, _ = layer(rows_of(second), tuple(picked) if name == "lstm" else picked[0])
    (y * y).sum().backward()
    for d, parameter in zip(found, layer.parameters(), strict=True):
        np.testing.assert_array_equal(d, parameter.grad)


def test_a_chunk_that_failed_changes_nothing():
    run, (first, *_) = vr.nn.Stateful(LAYERS["gru"]()), chunks()
    run(rows_of(first), list(first))
    with pytest.raises(vr.InputError):
        run(vr.create_lod_tensor(np.zeros((2, 7)), [[2]]), ["z"])
    assert run.keys == ("a", "b", "c")
    run.reset()
    assert run.keys == ()
    assert [name for name, _ in run.named_parameters()][:1] == ["layer.weight_ih_l0"]


def test_what_is_handed_out_is_not_what_is_carried():
    run, x = vr.nn.Stateful(LAYERS["gru"]()), vr.create_lod_tensor(np.ones((2, 3)), [[2]])
    _, h_n = run(x, ["a"])
    wanted, _ = run.layer(x, np.array(h_n))
    h_n.value.data[...] = 7
    np.testing.assert_array_equal(np.asarray(run(x, ["a"])[0]), np.asarray(wanted))


def test_calls_in_evaluation_mode_carry_states_of_their_own():
    run, (first, second, *_) = vr.nn.Stateful(LAYERS["gru"]()), chunks()
    run(rows_of(first), list(first))
    alone = copy.deepcopy(run)
    run.eval()
    assert run.keys == ()
    for chunk in (first, second):  # goes on from chunk to chunk, as in training
        validated, _ = run(rows_of(chunk), [f"valid {key}" for key in chunk])
    assert run.keys == ("valid c", "valid a")
    run.train()
    assert run.keys == ("a", "b", "c")
    np.testing.assert_array_equal(run(rows_of(second), list(second))[0], alone(rows_of(second), list(second))[0])
    run.eval()
    run.reset()
    assert run.keys == ()
    run(rows_of(first), list(first))
    np.testing.assert_array_equal(run(rows_of(second), list(second))[0], validated)
    assert run.train().keys == ("c", "a"), "a reset in evaluation mode forgets no sequence of the training"


def test_each_validation_begins_anew():
    run, (first, second, *_) = vr.nn.Stateful(LAYERS["gru"]()), chunks()

    def validated():
        run.eval()
        found = [np.asarray(run(rows_of(chunk), list(chunk))[0]) for chunk in (first, second)]
        run.train()
        return found

    wanted = validated()
    run(rows_of(first), list(first))
    for got, expected in zip(validated(), wanted, strict=True):  # with the same keys
        np.testing.assert_array_equal(got, expected)
    run.reset()
    for got, expected in zip(validated(), wanted, strict=True):
        np.testing.assert_array_equal(got, expected)
    assert run.keys == (), "a reset in training mode forgets the training, too"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["a"], "expected 2 different keys, one for each sequence"),
        (["a", "a"], "expected 2 different keys, one for each sequence"),
        ([[], {}], "hashable keys"),
        (None, "Stateful, keys"),
    ],
)
def test_keys_are_one_for_each_sequence(keys, message):
    with pytest.raises(vr.InputError, match=message):
        vr.nn.Stateful(LAYERS["gru"]())(vr.create_lod_tensor(np.zeros((2, 3)), [[1, 1]]), keys)


def test_layers_that_cannot_go_on():
    with pytest.raises(vr.ShapeError, match="direction 'forward'"):
        vr.nn.Stateful(vr.nn.GRU(3, 4, bidirectional=True))
    with pytest.raises(vr.DTypeError, match=r"nn\.Recurrent"):
        vr.nn.Stateful(vr.nn.Linear(3, 4))
    run = vr.nn.Stateful(vr.nn.GRU(3, 4))
    with vr.program_guard(), pytest.raises(vr.ProgramError, match="Stateful"):
        run(vr.feed_data("x", [-1, 3], "float32", lod_level=1), ["a"])


class Products(vr.nn.Module):
    """A stranger's layer: its state is a matrix, the sum of the outer products of a sequence's rows."""

    direction = "forward"

    def each_state(self, states):
        return (states,)

    def forward(self, x, states=None):
        products = x.reshape(-1, 3, 1) * x.reshape(-1, 1, 3)
        total = vr.sequence_pool(products.reshape(-1, 9).with_lod(x), "sum").reshape(1, -1, 3, 3)
        return x, total if states is None else total + states


def test_a_layer_of_a_stranger_carries_matrices():
    run, given = vr.nn.Stateful(Products()), chunks()
    for chunk in given:
        _, last = run(rows_of(chunk), list(chunk))
    for place, key in enumerate(given[-1]):
        rows = np.concatenate([given[number][key] for number in RUNS[key]])
        np.testing.assert_allclose(np.asarray(last)[0, place], rows.T @ rows, atol=1e-12)
    with pytest.raises(vr.DTypeError, match="DynamicRNN, cell"):
        vr.nn.DynamicRNN(Products())


def test_keys_without_an_order_are_refused():
    run = vr.nn.Stateful(vr.nn.GRU(3, 4))
    with pytest.raises(vr.DTypeError, match="keys: expected a sequence of keys"):
        run(vr.create_lod_tensor(np.zeros((3, 3), np.float32), [[1, 2]]), {"a", "b"})
