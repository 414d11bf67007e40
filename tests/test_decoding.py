"""Decoders, and how far what they find is from what is right: oracles, laws and errors."""

import numpy as np
import pytest

import varlen_rnn as vr
from tests.oracles import decoding as oracle
from varlen_rnn import threads
from varlen_rnn.kernels.edit_distance import edit_distance

LENGTHS = [[4, 0, 7, 1], [0, 0], [0, 3, 0], [], [5]]


def ids_of(lengths, seed, dtype=np.int64, high=4):
    ids = np.random.default_rng(seed).integers(0, high, sum(lengths))
    return vr.create_lod_tensor(ids.astype(dtype), [lengths])


def lists_of(ids):
    return [sequence.tolist() for sequence in ids.to_sequences()]


def on_threads(call):
    """Return what a call computes on 1, 2 and 3 threads."""
    before, found = threads.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            threads.set_num_threads(count)
            found.append([np.asarray(value) for value in call()])
    finally:
        threads.set_num_threads(before)
    return found


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_distances_are_those_of_the_definition(lengths, dtype):
    found, right = ids_of(lengths, 0, dtype), ids_of(lengths[::-1], 1)
    distances, number = vr.edit_distance(found, right, normalized=False)
    wanted = [oracle.edit_distance(*pair) for pair in zip(lists_of(found), lists_of(right), strict=True)]
    assert np.asarray(distances).tolist() == wanted
    assert (distances.dtype, int(number)) == (np.float32, len(lengths))
    column = vr.LoDTensor(found.data[:, None], found.structure)
    assert np.asarray(vr.edit_distance(column, right, normalized=False)[0]).tolist() == wanted


def test_a_distance_is_divided_by_the_labels():
    found, right = ids_of([4, 0, 7, 1], 0), ids_of([1, 2, 9, 3], 1)
    edits = np.asarray(vr.edit_distance(found, right, normalized=False)[0])
    assert np.array_equal(np.asarray(vr.edit_distance(found, right)[0]), edits / np.float32([1, 2, 9, 3]))


def test_ignored_tokens_count_on_neither_side():
    found, right = vr.create_lod_tensor([1, 9, 2, 8], [[4]]), vr.create_lod_tensor([9, 9, 1, 2, 3], [[5]])
    distances, _ = vr.edit_distance(found, right, ignored_tokens=[8, 9])
    assert np.asarray(distances).tolist() == [np.float32(1 / 3)]


def test_levels_above_are_kept():
    found = vr.create_lod_tensor([1, 2, 3], [[2, 0, 1], [2, 1, 0]])
    distances, number = vr.edit_distance(found, ids_of([0, 0, 2], 0), normalized=False)
    assert np.asarray(distances).tolist() == [2, 1, 2]
    assert distances.lod() == [[0, 2, 2, 3]]
    assert int(number) == 3


def test_threads_and_batch_mates_change_no_distance():
    found, right = ids_of([700, 3, 1500, 0, 900], 2), ids_of([900, 5, 1200, 7, 800], 3)
    results = on_threads(lambda: vr.edit_distance(found, right))
    assert all(np.array_equal(results[0][0], other[0]) for other in results[1:])
    alone = vr.edit_distance(
        *(vr.create_lod_tensor(x.to_sequences()[2], [[n]]) for x, n in ((found, 1500), (right, 1200)))
    )
    assert np.asarray(alone[0])[0] == results[0][0][2]


@pytest.mark.twins
def test_distances_on_every_device(device):
    found, right = ids_of([4, 0, 7, 1], 0), ids_of([3, 2, 0, 5], 1)
    distances, scratch = device.put(np.zeros(4, np.int64)), device.put(np.zeros(14, np.int64))
    edit_distance(
        device.put(found.data), found.structure.levels[0], right.data, right.structure.levels[0], scratch, distances
    )
    wanted = [oracle.edit_distance(*pair) for pair in zip(lists_of(found), lists_of(right), strict=True)]
    assert device.get(distances).tolist() == wanted


IDS = ids_of([2, 3], 0)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: vr.edit_distance(IDS, ids_of([5], 0)), vr.LoDError, "label: expected 2 sequences, as input, got 1"),
        (lambda: vr.edit_distance(IDS, ids_of([5, 0], 0)), vr.LoDError, "labels .* got none in sequence 1"),
        (lambda: vr.edit_distance(IDS, IDS.like(np.zeros(5))), vr.DTypeError, "label: expected integers"),
        (lambda: vr.edit_distance(IDS.data, IDS), vr.LoDError, "input: expected at least one level"),
        (
            lambda: vr.edit_distance(IDS, IDS.like(np.zeros((5, 2), int))),
            vr.ShapeError,
            "label: expected one id per row",
        ),
        (lambda: vr.edit_distance(IDS, IDS, ignored_tokens=[0, 1, 2, 3]), vr.LoDError, "got none in sequence 0"),
    ],
)
def test_errors_say_what_is_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call()
