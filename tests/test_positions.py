"""Positions of sequences in a batch: a batch that is divided draws what the whole draws, to the bit."""

import pickle

import numpy as np
import pytest

import varlen_rnn as vr
from tests.in_threads import on_threads
from varlen_rnn.nn import functional as F
from varlen_rnn.rows.lod import NO_LOD

LENGTHS = [3, 0, 5, 1, 2, 7]
PARTS = [[4, 0], [5], [], [1, 2, 3]]


def batch(columns=5, lengths=(LENGTHS,)):
    rng = np.random.default_rng(0)
    return vr.create_lod_tensor(rng.standard_normal((sum(lengths[-1]), columns)), lengths)


def divided(x, parts=PARTS):
    """Return the parts of a batch, each with the positions of its sequences."""
    for part in parts:
        taken = x[np.array(part, np.int64)]
        yield vr.LoDTensor(taken.data, taken.structure.at(part))


def seeded(function, x, seed=7):
    vr.manual_seed(seed)
    with vr.no_grad():
        return function(x).value


def check_divided(function, x, parts=PARTS):
    """Assert that parts of a batch have the bits that the whole has there; return the whole's result."""
    whole = seeded(function, x)
    for part, given in zip(parts, divided(x, parts), strict=True):
        found = seeded(function, given)
        right = whole[np.array(part, np.int64)] if whole.num_levels else whole.data[np.array(part, np.int64)]
        np.testing.assert_array_equal(found.data, getattr(right, "data", right) if whole.num_levels else right)
    return whole


def layers(**options):
    layer = vr.nn.LSTM(5, 6, num_layers=2, bidirectional=True, dtype=np.float64, **options)
    return {
        "outputs": lambda x: layer(x)[0],
        "last states": lambda x: F.dropout(layer(x)[1][0][-1], 0.5),
        "states of both directions": lambda x: F.dropout(F.concat([layer(x)[1][0][k] for k in (-2, -1)], axis=1), 0.5),
        "states side by side": lambda x: F.dropout(layer(x)[1][1].transpose(0, 1).reshape(-1, 24), 0.5),
    }


OF_ROWS = {
    "dropout": lambda x: F.dropout(x, 0.4),
    "dropout of sequences": lambda x: F.dropout(x, 0.4, per="sequence"),
    "twice": lambda x: F.dropout(F.dropout(x, 0.2) * 2.0, 0.2, per="sequence"),
    "rows of two axes": lambda x: F.dropout(x.reshape(-1, 5, 1) * np.ones((5, 7)), 0.4),
    "slices": lambda x: F.dropout(vr.sequence_slice(x, *ends(x)), 0.4),
    "beside itself": lambda x: F.dropout(vr.sequence_concat([x, x]), 0.4),
    "another width": lambda x: F.dropout(vr.sequence_reshape(x, 1), 0.4),
    "windows": lambda x: F.dropout(vr.sequence_pool(vr.lod_append(x, np.arange(len(x.value.data) + 1)), "sum"), 0.4),
}


def ends(x):
    lengths = np.diff(x.value.structure.levels[-1])
    return np.minimum(lengths, 1), lengths - np.minimum(lengths, 1)


@pytest.mark.parametrize("name", OF_ROWS)
def test_rows(name):
    whole = check_divided(lambda x: OF_ROWS[name](vr.Variable(x)), batch())
    assert 0.1 < (whole.data == 0).mean() < 0.9


OF_SEQUENCES = {
    "pooled": lambda x: vr.sequence_pool(x, "mean"),
    "last rows": lambda x: vr.sequence_last_step(x),
    "sums of pools": lambda x: vr.sequence_pool(x, "mean") + vr.sequence_pool(x, "max"),
    "beside a number": lambda x: 2.0 * vr.sequence_pool(x, "sum") + np.ones(5),
    "side by side": lambda x: F.concat([vr.sequence_pool(x, "mean"), vr.sequence_pool(x, "max")], axis=1),
    "a product": lambda x: F.relu(vr.sequence_pool(x, "sum") @ np.ones((5, 4))) + 1.0,
    "some columns": lambda x: vr.sequence_pool(x, "sum")[:, 1:3],
    "pieces": lambda x: F.split(vr.sequence_pool(x, "sum"), [2, 3], axis=1)[1],
    "a softmax": lambda x: F.softmax(vr.sequence_pool(x, "sum")),
    "a padded batch": lambda x: vr.sequence_pad(x, 1.0, maxlen=8)[0],
    "states of linear attention": lambda x: vr.linear_attention(*[x.reshape(-1, 1, 5)] * 3)[1].reshape(-1, 25),
    "a mean of columns": lambda x: vr.sequence_pool(x, "sum").mean(axis=1, keepdims=True),
}


@pytest.mark.parametrize("name", OF_SEQUENCES)
def test_an_entry_per_sequence(name):
    whole = check_divided(lambda x: F.dropout(OF_SEQUENCES[name](vr.Variable(x)), 0.5), batch())
    assert whole.num_levels == 0
    assert 0.1 < (whole.data == 0).mean() < 0.9


def test_a_model_of_layers():
    rest = vr.nn.Sequential(vr.nn.Dropout(0.3), vr.nn.Linear(5, 8, dtype=np.float64), vr.nn.Dropout(0.5))
    check_divided(lambda x: rest(vr.sequence_pool(x, "mean")), batch())


@pytest.mark.parametrize("what", layers())
@pytest.mark.parametrize(
    "options", [{"dropout": 0.4}, {"zoneout": 0.3, "recurrent_dropout": 0.4, "weight_dropout": 0.5}], ids=str
)
def test_recurrent_layers(what, options):
    check_divided(layers(**options)[what], batch())


@pytest.mark.parametrize("per", ["row", "sequence"])
def test_two_levels_divide_by_the_first(per):
    x = batch(lengths=([2, 0, 3], [3, 0, 2, 4, 1]))
    parts = [[2], [0, 1]]
    check_divided(lambda x: F.dropout(x, 0.5, per=per), x, parts)
    check_divided(lambda x: F.dropout(vr.sequence_pool(x, "mean"), 0.5, per=per), x, parts)
    check_divided(lambda x: F.dropout(vr.sequence_pool(x, "mean", level=0), 0.5), x, parts)


def test_a_program_draws_by_positions():
    with vr.program_guard() as program:
        x = vr.feed_data("x", (-1, 5), np.float64, lod_level=1)
        y = F.dropout(vr.sequence_pool(F.dropout(x, 0.3), "mean"), 0.5)
    run = lambda x: vr.Variable(vr.Executor().run(program, {"x": x}, [y])[0])
    check_divided(run, batch())


def test_neither_threads_nor_mates_change_a_draw():
    x = batch(60, [[400, 3, 900]])
    (found,) = on_threads(lambda: [seeded(lambda x: F.dropout(x, 0.5), x).data])
    np.testing.assert_array_equal(seeded(lambda x: F.dropout(x, 0.5), x[[0]]).data, found[:400])


def test_sequences_that_are_chosen_or_copied_have_no_positions():
    """Copies at one position would be drawn alike, so that their mean were no mean of draws."""
    x = next(divided(batch()))
    assert x[[0, 0]].structure.positions is None
    copies = vr.sequence_expand(x, vr.create_lod_tensor(np.zeros((4, 1)), [[2, 2]])).value
    assert copies.structure.positions is None
    drawn = seeded(lambda x: F.dropout(x, 0.5), x[[0, 0]])
    assert not np.array_equal(drawn[0].data, drawn[1].data)


def test_positions_are_checked_and_kept():
    lod = vr.LoD([[0, 2, 3]]).at(np.array([4, 9], np.int32))
    assert (lod.positions.tolist(), lod.positions.dtype) == ([4, 9], np.int64)
    assert not lod.positions.flags.writeable
    assert lod == vr.LoD([[0, 2, 3]]), "the same sequences"
    assert vr.LoD(lod).positions.tolist() == [4, 9]
    assert lod.at(None).positions is None
    for copy in (pickle.loads(pickle.dumps(lod)), NO_LOD.at_positions_of(lod), NO_LOD.at_positions_of(lod, 1)):
        again = pickle.loads(pickle.dumps(copy))
        assert again == copy
        assert (again.positions.tolist(), again.axis) == ([4, 9], copy.axis)
    for wrong in ([1], [1, 2, 3], [-1, 0], [[1, 2]], ["a", "b"], [0.5, 1], "ab", 3, [2**63, 1], [2**70, 0]):
        with pytest.raises(vr.LoDError, match="positions"):
            lod.at(wrong)


def test_rows_of_two_values_keep_the_positions_of_one():
    x, y = next(divided(batch())), batch()[[4, 0]]
    for a, b in ((x, y), (y, x)):
        assert (vr.Variable(a) + b).value.structure.positions.tolist() == PARTS[0]


def test_a_step_ends_with_an_update():
    """Draws of a step do not depend on how many there were before it."""
    x, found = batch(), []
    for more in (0, 3):
        vr.manual_seed(1)
        weight = vr.nn.Parameter(np.ones(5))
        for _ in range(1 + more):
            loss = F.dropout(x * weight, 0.5).sum()
        loss.backward()
        vr.optim.SGD([weight], lr=0.0).step()
        found.append(np.asarray(F.dropout(x, 0.5)))
        state = vr.random.get_state()
    np.testing.assert_array_equal(*found)
    following = np.asarray(F.dropout(x, 0.5))
    assert not np.array_equal(following, found[0])
    vr.manual_seed(2)
    vr.random.set_state(state)
    np.testing.assert_array_equal(np.asarray(F.dropout(x, 0.5)), following)
