"""An operator's shortcut is its long way, to the bit, or refuses."""

import pickle

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.cells import CELLS
from varlen_rnn.ops.sequence.join import _placed
from varlen_rnn.tape.operator import find
from varlen_rnn.tape.run import run
from varlen_rnn.tape.variable import apply

FEATURES, HIDDEN = 3, 2


def operands(cell, dtype=np.float32):
    """Return the rows, no initial states, and the weights of one direction."""
    rng, rows = np.random.default_rng(0), len(CELLS[cell].gates) * HIDDEN
    x = vr.create_lod_tensor(rng.standard_normal((5, FEATURES)).astype(dtype), [[2, 0, 3]])
    shapes = (rows, FEATURES), (rows, HIDDEN), (rows,), (rows,)
    weights = [vr.LoDTensor(rng.standard_normal(shape).astype(dtype)) for shape in shapes]
    return [x, *[None] * len(CELLS[cell].states), *weights]


def shortcut(values, cell="gru", keep=False):
    return find("recurrent").shortcut(values, cell=cell, keep=keep)


def strided(value):
    wide = np.zeros((*value.shape, 2), value.dtype)
    wide[..., 0] = value.data
    return vr.LoDTensor(wide[..., 0], value.structure)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("cell", CELLS)
def test_a_shortcut_computes_what_the_long_way_computes(cell, dtype, keep):
    values, op = operands(cell, dtype), find("recurrent")
    wanted = op.forward(*values, cell=cell, keep=keep)
    for given in (values, [value and strided(value) for value in values]):
        got = shortcut(given, cell, keep)
        assert len(got) == len(wanted) == 3 + len(CELLS[cell].states) - 1 + keep
        for value, other in zip(got, wanted, strict=True):
            if isinstance(other, vr.SortedSeqs):
                np.testing.assert_array_equal(value.starts, other.starts)
            else:
                np.testing.assert_array_equal(value.data, other.data)
                assert value.lod() == other.lod()


@pytest.mark.parametrize("place", ["h_0", "bias_ih", "second direction"])
def test_a_shortcut_leaves_what_is_rare_to_the_long_way(place):
    values = operands("gru")
    if place == "h_0":
        values[1] = vr.LoDTensor(np.ones((1, 3, HIDDEN), np.float32))
    elif place == "bias_ih":
        values[4] = None
    else:
        values += values[2:]
    assert shortcut(values) is None
    assert apply("recurrent", *values, cell="gru", keep=False)[0].shape[0] == 5


@pytest.mark.parametrize(
    ("position", "wrong"),
    [
        (0, vr.LoDTensor(np.zeros((5, FEATURES), np.float32))),  # no LoD
        (0, vr.create_lod_tensor(np.zeros((5, FEATURES + 1), np.float32), [[5]])),
        (0, vr.create_lod_tensor(np.zeros((5, FEATURES), np.int64), [[5]])),
        (0, vr.create_lod_tensor(np.zeros((5, FEATURES), np.float64), [[5]])),
        (0, vr.create_lod_tensor(np.zeros(5, np.float32), [[5]])),
        (0, vr.SelectedRows([0], np.zeros((1, FEATURES), np.float32), 5)),
        (0, None),
        (2, None),
        (2, vr.LoDTensor(np.zeros((3 * HIDDEN, FEATURES), np.float64))),
        (2, vr.LoDTensor(np.zeros((3 * HIDDEN, FEATURES, 1), np.float32))),
        (2, vr.SelectedRows([0], np.zeros((1, FEATURES), np.float32), 3 * HIDDEN)),
        (3, vr.LoDTensor(np.zeros((3 * HIDDEN + 1, HIDDEN), np.float32))),
        (3, vr.LoDTensor(np.zeros(3 * HIDDEN, np.float32))),
        (3, vr.LoDTensor(np.zeros((3 * HIDDEN, HIDDEN), np.float64))),
        (4, vr.LoDTensor(np.zeros(3 * HIDDEN - 1, np.float32))),
        (4, vr.LoDTensor(np.zeros(3 * HIDDEN, np.float64))),
        (5, vr.LoDTensor(np.zeros(3 * HIDDEN, np.float64))),
        (5, vr.LoDTensor(np.zeros((3 * HIDDEN, 1), np.float32))),
        (5, vr.sort_by_seq_len([0, 2])),
    ],
)
def test_a_shortcut_runs_nothing_that_does_not_fit(position, wrong):
    values = operands("gru")
    values[position] = wrong
    assert shortcut(values) is None
    with pytest.raises(vr.InputError, match="recurrent"):
        apply("recurrent", *values, cell="gru", keep=False)


def without_rows():
    return [None, vr.LoDTensor(np.ones((1, 3, HIDDEN), np.float32)), *operands("gru")[2:]]


@pytest.mark.parametrize(
    ("cell", "values"),
    [("lstm", operands("gru")), ("gru", []), ("gru", without_rows())],
)
def test_a_shortcut_counts_the_inputs_of_its_cell(cell, values):
    assert shortcut(values, cell) is None
    with pytest.raises(vr.InputError, match="recurrent"):
        apply("recurrent", *values, cell=cell, keep=False)


def test_a_cell_that_nobody_made_is_an_error():
    with pytest.raises(vr.ProgramError, match="cell: expected one of"):
        apply("recurrent", *operands("gru"), cell="none", keep=False)


def test_a_bias_of_rank_0_is_no_bias_of_one_unit():
    x = vr.create_lod_tensor(np.zeros((2, 3), np.float32), [[2]])
    weights = [vr.LoDTensor(np.zeros(shape, np.float32)) for shape in ((1, 3), (1, 1), (1,), ())]
    assert shortcut([x, None, *weights], "rnn_tanh") is None
    with pytest.raises(vr.ShapeError, match="recurrent, bias_hh"):
        apply("recurrent", x, None, *weights, cell="rnn_tanh", keep=False)


def test_weights_whose_shape_was_changed_in_place_do_not_fit():
    values = operands("gru")
    values[3].data.shape = (HIDDEN, 3 * HIDDEN)
    assert shortcut(values) is None


def test_weights_that_came_from_another_process_fit():
    values = [value and pickle.loads(pickle.dumps(value)) for value in operands("gru")]
    assert values[2].dtype is not values[3].dtype, "equal data types, not one object"
    assert shortcut(values) is not None


def test_copies_of_several_levels_are_not_mixed_up():
    y = vr.LoDTensor(np.zeros(8), [[0, 2, 4], [0, 3, 6, 7, 8]])
    two, four = vr.create_lod_tensor(np.arange(2.0), [[1, 1]]), vr.create_lod_tensor(np.arange(4.0), [[1] * 4])
    for _ in range(2):
        assert np.asarray(vr.sequence_expand(two, y, 0)).tolist() == [0, 0, 1, 1]
        assert np.asarray(vr.sequence_expand(four, y)).tolist() == [0, 0, 0, 1, 1, 1, 2, 3]
    x = vr.create_lod_tensor(np.arange(2.0), [[2], [1, 1]])
    both = vr.LoDTensor(np.zeros(3), [[0, 2], [0, 1, 3]])
    assert np.asarray(vr.sequence_expand(x, both, 0)).tolist() == [0, 1, 0, 1]
    with pytest.raises(vr.LoDError, match="expected 2 sequences, as many as level -1 of y has sequences, got 1"):
        vr.sequence_expand(x, both)


def test_what_is_checked_is_what_is_moved():
    """Another thread may write to a caller's numbers meanwhile."""
    offset, length = np.array([0, 1]), np.array([1, 2])
    x = vr.create_lod_tensor(np.arange(5.0), [[2, 3]])
    _, _, lengths = _placed(x, vr.LoDTensor(offset), vr.LoDTensor(length))
    assert not np.shares_memory(lengths, length)


def test_a_fetched_index_is_nobody_elses():
    x = vr.create_lod_tensor(np.ones((3, 2)), [[1, 2]])
    (_, first), (_, second) = (
        run(find("sequence_pool"), [x], {"pool_type": "last", "pad_value": 0.0, "level": -1}) for _ in range(2)
    )
    first.data.shape = (0, 0, 1)
    assert second.shape == (0, 2)
