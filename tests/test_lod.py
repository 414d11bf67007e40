"""LoD and LoDTensor: the worked examples of the design documents, the forms, slices, nested lists."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import varlen_rnn as vr

ARTICLES = [[3, 1, 2], [3, 2, 4, 1, 2, 3]]


def articles():
    return vr.create_lod_tensor(np.arange(30.0).reshape(15, 2), ARTICLES)


def test_sentences():
    x = vr.create_lod_tensor(np.zeros((6, 4)), [[3, 1, 2]])
    assert x.lod() == [[0, 3, 4, 6]]
    assert x.num_levels == 1
    assert x.num_elements(0) == 3


def test_recursive_sequences_in_three_forms():
    x = articles()
    assert x.recursive_sequence_lengths() == ARTICLES
    assert x.lod() == [[0, 3, 4, 6], [0, 3, 5, 9, 10, 12, 15]]
    assert x.absolute_lod() == [[0, 9, 10, 15], [0, 3, 5, 9, 10, 12, 15]]
    assert [x.num_elements(level) for level in range(2)] == [3, 6]
    assert x.has_valid_recursive_sequence_lengths()


def test_slices_by_branch():
    x = articles()
    two = x[2]
    assert two.lod() == [[0, 2], [0, 2, 5]]
    assert two.data.tolist() == x.data[10:15].tolist()
    assert x[2, 0].lod() == [[0, 2]]
    assert x[2, 0].data.tolist() == x.data[10:12].tolist()
    assert x[0, 2].data.tolist() == x.data[5:9].tolist()  # the third sentence of the first article
    assert x[-1, -1].data.tolist() == x.data[12:15].tolist()
    assert [part.recursive_sequence_lengths() for part in x] == [[[3], [3, 2, 4]], [[1], [1]], [[2], [2, 3]]]


@pytest.mark.parametrize(
    ("indices", "taken"),
    [([2, -3], [2, 0]), (np.array([1, 1], np.uint8), [1, 1]), (np.array([True, False, True]), [0, 2]), ([], []),
     ([False, True, False], [1])],
)  # fmt: skip
def test_indices_or_a_mask_take_sequences(indices, taken):
    x = articles()
    y = x[indices]
    assert y.num_levels == x.num_levels
    assert [part.recursive_sequence_lengths() for part in y] == [x[k].recursive_sequence_lengths() for k in taken]
    assert y.data.tolist() == [row for k in taken for row in x[k].data.tolist()]
    assert not np.shares_memory(y.data, x.data)


@pytest.mark.parametrize("indices", [[3], [-4], [1.0], [True], [[0]], ["a"], [2**70], np.array([[0]]), [None]])
def test_other_indices_are_refused(indices):
    with pytest.raises(vr.InputError, match="indices"):
        articles()[indices]


def test_rows_without_levels_have_no_sequences_to_take():
    with pytest.raises(vr.LoDError, match="at least one level"):
        vr.LoDTensor(np.zeros(3))[[0]]


def test_offsets_of_a_slice_say_what_to_subtract():
    """Arrow's arrays of lists keep the offsets of what they were cut from."""
    offsets, rows = np.array([3, 5, 5, 9]), np.arange(12.0)
    with pytest.raises(vr.LoDError, match="subtract 3 from all, and pass rows 3 to 9"):
        vr.LoDTensor(rows, [offsets])
    assert [part.tolist() for part in vr.LoDTensor(rows[3:9], [offsets - 3]).to_sequences()] == [
        [3, 4], [], [5, 6, 7, 8]
    ]  # fmt: skip


def test_lengths_in_place_of_offsets_get_no_hint_of_slices():
    with pytest.raises(vr.LoDError, match="did you pass lengths") as raised:
        vr.LoD([[2, 3, 1]])
    assert "subtract" not in str(raised.value)


def test_slices_are_views_and_copies_are_not():
    x = articles()
    assert np.shares_memory(x[2].data, x.data)
    assert np.shares_memory(x.slice(1, 1, 3).data, x.data)
    assert not np.shares_memory(x[2].copy().data, x.data)
    assert x.slice(1, 1, 3).lod() == [[0, 2, 6]]
    assert x.slice(0, 1, 1).lod() == [[0], [0]]


def test_videos_images_and_parameters():
    frames = np.zeros((6, 640, 480), np.uint8)
    videos = vr.create_lod_tensor(frames, [[3, 1, 2]])
    assert videos[0].shape == (3, 640, 480)
    assert np.shares_memory(videos.data, frames)
    images = vr.create_lod_tensor(np.zeros((5, 4, 4)), [[1] * 5])
    assert images.lod() == [[0, 1, 2, 3, 4, 5]]
    weight = vr.LoDTensor(np.ones((2, 2)))
    assert weight.num_levels == 0
    assert weight.lod() == []
    assert weight.absolute_lod() == []
    assert len(weight) == 2


def test_absolute_form_of_the_reference():
    assert vr.LoD([[0, 2], [0, 1, 3], [0, 2, 4, 5]]).absolute() == [[0, 5], [0, 2, 5], [0, 2, 4, 5]]
    three = vr.LoD([[0, 2, 3], [0, 2, 4, 7], [0, 2, 5, 7, 10, 12, 15, 20]])
    assert three.absolute()[0] == [0, 10, 20]
    lod, first, last = vr.LoD([[0, 2, 4, 5], [0, 1, 6, 8, 10, 11], [0, 2, 5, 7, 10, 12, 15, 17, 20, 24, 26, 29]]).slice(
        0, 1, 2
    )
    assert (first, last) == (15, 26)
    assert lod.lengths() == [[2], [2, 2], [2, 3, 4, 2]]


def test_set_lod_changes_this_tensor_alone():
    x = articles()
    other = vr.LoDTensor(x.data, x.structure)
    x.set_recursive_sequence_lengths([[15]])
    assert x.recursive_sequence_lengths() == [[15]]
    assert other.recursive_sequence_lengths() == ARTICLES
    with pytest.raises(vr.LoDError):
        x.set_lod([[0, 3]])
    assert x.recursive_sequence_lengths() == [[15]]


def test_offsets_are_read_only_and_shared():
    x = articles()
    with pytest.raises(ValueError, match="read-only"):
        x.structure.levels[0][1] = 7
    assert x.copy().structure is x.structure
    given = np.array([0, 2])
    lod = vr.LoD([given])
    given[1] = 5
    assert lod.offsets() == [[0, 2]]
    assert vr.LoD([[0, 2]]) == lod
    assert hash(vr.LoD([[0, 2]])) == hash(lod)
    assert vr.LoD([[0, 1, 2]]) != lod


def test_nested_lists_both_ways():
    lists = [[[1, 2], [3]], [[4, 5, 6]]]
    x = vr.LoDTensor.from_sequences(lists)
    assert x.recursive_sequence_lengths() == [[2, 1], [2, 1, 3]]
    assert [[leaf.tolist() for leaf in branch] for branch in x.to_sequences()] == lists
    rows = vr.LoDTensor.from_sequences([[[1, 2], [3, 4]], [[5, 6]]], num_levels=1)
    assert rows.shape == (3, 2)
    assert rows.recursive_sequence_lengths() == [[2, 1]]
    arrays = vr.LoDTensor.from_sequences([np.ones((2, 3), np.float32), np.ones((0, 3), np.float32)])
    assert arrays.dtype == np.float32
    assert arrays.recursive_sequence_lengths() == [[2, 0]]
    assert vr.LoDTensor.from_sequences([[1], []], dtype=np.float32).dtype == np.float32


@pytest.mark.parametrize(
    ("lists", "lengths"),
    [
        ([], [[]]),
        ([[]], [[0]]),
        ([[], [1]], [[0, 1]]),
        ([[[1], []], []], [[2, 0], [1, 0]]),
        ([[], [[1]]], [[0, 1], [1]]),
        ([[[[1]], []], []], [[2, 0], [1, 0], [1]]),
    ],
)
def test_empty_lists_at_any_depth(lists, lengths):
    assert vr.LoDTensor.from_sequences(lists).recursive_sequence_lengths() == lengths


@settings(deadline=None)
@given(st.integers(1, 4), st.data())
def test_to_sequences_and_back(depth, data):
    count, lengths = data.draw(st.integers(0, 3)), []
    for _ in range(depth):
        level = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
        lengths.append(level)
        count = sum(level)
    x = vr.create_lod_tensor(np.arange(count * 2.0).reshape(count, 2), lengths)
    again = vr.LoDTensor.from_sequences(x.to_sequences(), num_levels=depth)
    assert again.recursive_sequence_lengths() == lengths
    assert np.array_equal(again.data.reshape(-1, 2), x.data)


def test_repr_tells_levels_counts_lengths_and_type():
    text = repr(articles())
    assert "15 rows of (2,) float64, 2 levels" in text
    assert "level 0: 3 sequences of 1 to 3 sequences, median 2" in text
    assert "level 1: 6 sequences of 1 to 4 rows, median 2.5" in text


def test_numpy_sees_the_rows():
    x = articles()
    assert np.shares_memory(np.asarray(x), x.data)
    assert np.asarray(x, np.float32).dtype == np.float32
    assert x.shape == (15, 2)


def test_the_rows_of_a_tensor_cannot_be_replaced():
    x = articles()
    with pytest.raises(AttributeError):
        x.data = np.zeros((1, 2))


@pytest.mark.parametrize(
    ("make", "form"),
    [
        (lambda: vr.create_lod_tensor(np.zeros((7, 8)), [2, 5]), r"\[\[2, 3\]\], the lengths"),
        (lambda: vr.LoD.from_lengths([2, 5]), r"\[\[2, 3\]\], the lengths"),
        (lambda: vr.LoDTensor([1.0]).set_recursive_sequence_lengths([1]), r"\[\[2, 3\]\], the lengths"),
        (lambda: vr.LoDTensor(np.zeros((7, 8)), [0, 2, 7]), r"\[\[0, 2, 5\]\], the offsets"),
        (lambda: vr.LoD([0, 2, 7]), r"\[\[0, 2, 5\]\], the offsets"),
        (lambda: vr.LoDTensor([1.0]).set_lod([0, 1]), r"\[\[0, 2, 5\]\], the offsets"),
    ],
)
def test_each_form_is_named_where_it_is_wanted(make, form):
    with pytest.raises(vr.LoDError, match=form):
        make()


@pytest.mark.parametrize("name", ["levels", "num_levels", "num_rows", "offsets", "starts", "seq_lens", "total_len"])
def test_lods_and_plans_cannot_be_changed(name):
    x = articles()
    whole = x.structure if name in ("levels", "num_levels", "num_rows") else vr.sort_by_seq_len(x)
    before = getattr(whole, name)
    with pytest.raises(AttributeError, match="cannot be changed"):
        setattr(whole, name, before)
    with pytest.raises(AttributeError, match="cannot be changed"):
        delattr(whole, name)
    assert repr(getattr(whole, name)) == repr(before)
