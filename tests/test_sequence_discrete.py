"""Operators over ids, and by masks: worked examples, oracles, gradients and errors."""

import numpy as np
import pytest

import varlen_rnn as vr
from tests.oracles import sequence as oracle

LENGTHS = [[2, 0, 3, 1], [0, 0], [0, 2, 0], [], [1]]
by_lengths = pytest.mark.parametrize("lengths", LENGTHS, ids=str)
by_integers = pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
RNG = np.random.default_rng(0)


def ids_of(lengths, dtype=np.int64, high=5):
    return vr.create_lod_tensor(RNG.integers(0, high, sum(lengths)).astype(dtype), [lengths])


def rows_of(lengths, *element, dtype=np.float64):
    return vr.create_lod_tensor(RNG.standard_normal((sum(lengths), *element)).astype(dtype), [lengths])


def two_levels(upper, lower, *element):
    return vr.create_lod_tensor(RNG.standard_normal((sum(lower), *element)), [upper, lower])


def same(found, rows, *levels):
    assert np.asarray(found).tolist() == np.asarray(rows).tolist()
    assert found.value.recursive_sequence_lengths() == [list(level) for level in levels]


def test_erasing_by_the_original_s_example():
    x = vr.create_lod_tensor(np.array([2, 2, 6, 1, 3, 9, 6, 1, 0, 1]), [[3, 3, 4]])
    same(vr.sequence_erase(x, (2, 3, 5)), [6, 1, 9, 6, 1, 0, 1], [1, 2, 4])


@by_lengths
@by_integers
@pytest.mark.parametrize("tokens", [(), (1, 4), (0, 1, 2, 3, 4), (-1, 2**63 - 1, 3)], ids=str)
def test_erasing_is_that_of_lists(lengths, dtype, tokens):
    x = ids_of(lengths, dtype)
    found = vr.sequence_erase(x, tokens)
    same(found, *oracle.erase(np.asarray(x).tolist(), x.lod()[0], tokens))
    column = vr.LoDTensor(x.data[:, None], x.structure)
    assert np.array_equal(np.asarray(vr.sequence_erase(column, tokens)), np.asarray(found)[:, None])
    assert found.dtype == dtype


def test_erasing_keeps_the_levels_above():
    x = vr.create_lod_tensor(np.array([1, 2, 3, 2, 2]), [[2, 0, 1], [2, 0, 3]])
    same(vr.sequence_erase(x, [2]), [1, 3], [2, 0, 1], [1, 0, 1])


def test_enumerating_by_the_original_s_example():
    x = vr.create_lod_tensor(np.array([1, 2, 3, 4, 5]), [[3, 2]])
    same(vr.sequence_enumerate(x, 2), [[1, 2], [2, 3], [3, 0], [4, 5], [5, 0]], [3, 2])


@by_lengths
@by_integers
@pytest.mark.parametrize("size", [1, 2, 7])
def test_enumerating_is_that_of_lists(lengths, dtype, size):
    x = ids_of(lengths, dtype)
    right = oracle.enumerate_windows(np.asarray(x).tolist(), x.lod()[0], size, 9)
    found = vr.sequence_enumerate(x, size, pad_value=9)
    same(found, np.reshape(right, (-1, size)), lengths)
    assert found.dtype == dtype
    column = vr.LoDTensor(x.data[:, None], x.structure)
    assert np.array_equal(np.asarray(vr.sequence_enumerate(column, size, pad_value=9)), np.asarray(found))


def test_windows_end_with_the_sequences_of_the_last_level():
    x = vr.create_lod_tensor(np.arange(5), [[2, 0, 1], [2, 0, 3]])
    same(vr.sequence_enumerate(x, 2, -1), [[0, 1], [1, -1], [2, 3], [3, 4], [4, -1]], [2, 0, 1], [2, 0, 3])


def test_another_width_by_the_original_s_example():
    x = rows_of([4, 1, 3, 3], 24)
    same(vr.sequence_reshape(x, 12), np.asarray(x).reshape(22, 12), [8, 2, 6, 6])


@by_lengths
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
@pytest.mark.parametrize("width", [1, 2, 3, 6])
def test_another_width_is_that_of_lists(lengths, dtype, width):
    x = rows_of(lengths, 6, dtype=dtype)
    rows, right = oracle.reshape(np.asarray(x).tolist(), x.lod()[0], width)
    found = vr.sequence_reshape(x, width)
    same(found, np.reshape(np.array(rows, dtype), (-1, width)), right)
    same(vr.sequence_reshape(found, 6), np.asarray(x), lengths)


def test_another_width_of_rows_of_any_shape_and_level():
    x = two_levels([2, 0, 1], [2, 0, 3], 2, 2)
    same(vr.sequence_reshape(x, 1), np.asarray(x).reshape(20, 1), [2, 0, 1], [8, 0, 12])
    flat = vr.create_lod_tensor(np.arange(6), [[2, 4, 0]])
    same(vr.sequence_reshape(flat, 2), [[0, 1], [2, 3], [4, 5]], [1, 2, 0])


@by_lengths
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scattering_is_that_of_lists(lengths, dtype):
    x = RNG.integers(0, 9, (len(lengths), 5)).astype(dtype)
    index, updates = ids_of(lengths, np.int32), rows_of(lengths, dtype=dtype)
    updates = updates.like(np.round(updates.data * 8) / 8)  # exact sums
    right = oracle.scatter(x.tolist(), index.data, updates.data.tolist(), index.lod()[0])
    found = vr.sequence_scatter(x, index, updates)
    same(found, np.reshape(right, x.shape))
    column = vr.sequence_scatter(x, index.like(index.data[:, None]), updates.data[:, None])
    assert np.array_equal(np.asarray(column), np.asarray(found))


def test_scattering_adds_where_positions_repeat_and_takes_rows():
    x = np.zeros((2, 3, 2))
    index = vr.create_lod_tensor(np.array([2, 2, 0]), [[2, 1]])
    found = np.asarray(vr.sequence_scatter(x, index, np.arange(6.0).reshape(3, 2)))
    assert found.tolist() == [[[0, 0], [0, 0], [2, 4]], [[4, 5], [0, 0], [0, 0]]]
    assert not x.any()


def test_scattering_does_not_drift():
    index = vr.create_lod_tensor(np.zeros(1_000_000, np.int64), [[1_000_000]])
    found = vr.sequence_scatter(np.zeros((1, 1), np.float32), index, np.full(1_000_000, 0.1, np.float32))
    assert abs(float(np.asarray(found)[0, 0]) / 1e5 - 1) < 1e-6


def test_a_scattered_row_does_not_depend_on_its_batch():
    lengths = [60, 0, 200, 3]
    x, index, updates = rows_of([4], 3).data, ids_of(lengths, high=3), rows_of(lengths)
    whole = np.asarray(vr.sequence_scatter(x, index, updates))
    for i in range(4):
        alone = vr.sequence_scatter(x[i : i + 1], index.slice(0, i, i + 1), updates.slice(0, i, i + 1))
        assert np.array_equal(np.asarray(alone)[0], whole[i])


def nested(tensor):
    """Return a tensor as nested lists, one per level."""

    def lists(item):
        return item.tolist() if isinstance(item, np.ndarray) else [lists(one) for one in item]

    return lists(tensor.to_sequences() if tensor.num_levels else tensor.data)


BATCHES = {
    "one level": ([[2, 0, 3, 1]], [0]),
    "two levels": ([[2, 0, 1, 2], [2, 0, 3, 1, 2]], [0, 1]),
    "three levels": ([[1, 2, 0], [2, 0, 1], [1, 2, 0]], [0, 1, 2]),
    "empty ones": ([[0, 0]], [0]),
    "none": ([[]], [0]),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, bool])
@pytest.mark.parametrize("name", BATCHES)
def test_splitting_is_that_of_lists_and_merging_undoes_it(name, dtype):
    lengths, levels = BATCHES[name]
    x = vr.create_lod_tensor(RNG.integers(0, 9, (sum(lengths[-1]), 2)).astype(dtype), lengths)
    for level in levels:
        for chance in (0, 0.5, 1):
            mask = RNG.random(x.num_elements(level)) < chance
            parts = vr.split_by_mask(x, mask[:, None], level=level)
            for side, part in zip((True, False), parts, strict=True):
                assert nested(part.value) == oracle.masked(nested(x), iter(mask), level, side)
            merged = vr.merge_by_mask(*parts, mask, level=level - x.num_levels)
            assert merged.value.structure == x.structure
            assert np.array_equal(np.asarray(merged), x.data)


def test_rows_without_a_lod_are_split_as_sequences_are():
    mask = np.array([True, False, True])
    parts = vr.split_by_mask(np.arange(3.0), mask)
    same(parts[0], [0, 2])
    same(parts[1], [1])
    same(vr.merge_by_mask(*parts, mask), [0, 1, 2])


def test_what_is_merged_may_have_other_rows_than_what_was_split():
    mask = np.array([True, False, True])
    merged = vr.merge_by_mask(
        vr.create_lod_tensor(np.array([1, 2, 3]), [[1, 2]]), vr.create_lod_tensor(np.array([7]), [[1]]), mask
    )
    same(merged, [1, 7, 2, 3], [1, 1, 2])


def test_gradients_of_one_part_alone_and_of_both():
    x = vr.Variable(rows_of([2, 0, 3], 2), requires_grad=True)
    true, false = vr.split_by_mask(x, np.array([False, True, True]))
    (false * 3.0).sum().backward()
    assert np.asarray(x.grad)[:, 0].tolist() == [3, 3, 0, 0, 0]
    x.grad = None
    true, false = vr.split_by_mask(x, np.array([False, True, True]))
    merged = vr.merge_by_mask(true * 2.0, false * 3.0, np.array([False, True, True]))
    assert np.array_equal(np.asarray(merged), np.asarray(x) * np.array([3, 3, 2, 2, 2])[:, None])
    (merged * merged).sum().backward()
    np.testing.assert_allclose(np.asarray(x.grad), 2 * np.asarray(x) * np.array([9, 9, 4, 4, 4])[:, None], rtol=1e-15)


def test_a_program_takes_one_way_for_some_sequences_and_another_for_others():
    def step(x, lengths):
        mask = lengths > 1.0
        true, false = vr.split_by_mask(x, mask)
        return vr.merge_by_mask(true * 2.0, -false, mask)

    with vr.program_guard() as program:
        x = vr.feed_data("x", shape=[-1, 2], dtype="float64", lod_level=1)
        step(x, vr.feed_data("lengths", shape=[-1], dtype="float64")).name = "y"
    for lengths in ([2, 0, 3, 1], [], [1]):
        feed = {"x": rows_of(lengths, 2), "lengths": np.array(lengths, float)}
        (found,) = vr.Executor().run(vr.Program.from_bytes(program.to_bytes()), feed, ["y"])
        right = step(*feed.values())
        assert np.array_equal(np.asarray(found), np.asarray(right))
        assert found.structure == right.value.structure


MATRICES = {
    "some": ([2, 0, 3, 1], [3, 2, 1, 4]),
    "without columns": ([2, 1, 0], [0, 2, 0]),
    "one": ([3], [5]),
    "none": ([], []),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("topks", [(1,), (1, 2, 4), (3, 1, 3)], ids=str)
@pytest.mark.parametrize("name", MATRICES)
def test_means_of_the_largest_are_those_of_lists(name, topks, channels, dtype):
    heights, widths = MATRICES[name]
    numbers = [channels * h * w for h, w in zip(heights, widths, strict=True)]
    x, row = ids_of(numbers, dtype), rows_of(heights, 2)  # whole numbers: some are equal
    right = oracle.topk_averages(x.data.tolist(), x.lod()[0], heights, widths, topks, channels)
    found = vr.sequence_topk_avg_pooling(x, row, rows_of(widths), topks, channels)
    assert found.dtype == dtype
    assert found.value.structure == row.structure
    right = np.reshape(right, (sum(heights), channels * len(topks)))
    np.testing.assert_allclose(np.asarray(found), right, rtol=1e-6 if dtype == np.float32 else 1e-12)
    column = vr.sequence_topk_avg_pooling(x.like(x.data[:, None]), row, rows_of(widths), topks, channels)
    assert np.array_equal(np.asarray(column), np.asarray(found))


def test_of_equal_numbers_the_first_gets_the_gradient_and_nan_is_the_largest():
    x = vr.Variable(vr.create_lod_tensor(np.array([1.0, 2, 2, 0, np.nan, 1]), [[6]]), requires_grad=True)
    found = vr.sequence_topk_avg_pooling(x, rows_of([2]), rows_of([3]), (1, 5), 1)
    np.testing.assert_array_equal(np.asarray(found), [[2, 1], [np.nan, np.nan]])
    found[:, 0].sum().backward()
    assert np.asarray(x.grad).tolist() == [0, 1, 0, 0, 1, 0]


def test_means_of_many_do_not_drift_nor_depend_on_the_batch():
    row, col = rows_of([1, 0, 2]), rows_of([100_000, 3, 1_000])
    x = vr.create_lod_tensor(np.full(102_000, 0.1, np.float32), [[100_000, 0, 2_000]])
    x.data[100_000:] = RNG.standard_normal(2_000)
    whole = np.asarray(vr.sequence_topk_avg_pooling(x, row, col, (100_000, 300), 1))
    np.testing.assert_allclose(whole[0], np.float32(0.1), rtol=1e-6)
    parts = [one.slice(0, 2, 3) for one in (x, row, col)]
    assert np.array_equal(np.asarray(vr.sequence_topk_avg_pooling(*parts, (100_000, 300), 1)), whole[1:])


IDS, X = vr.create_lod_tensor(np.array([0, 1, 2, 1, 0]), [[2, 3]]), rows_of([2, 3], 3)
ONE, TWO = np.array([True]), np.array([True, False])
DEEP = two_levels([1, 1], [2, 3])


def topk(numbers=6, row=(0, 1), col=(1, 3), topks=(1, 2), channel_num=2):
    return vr.sequence_topk_avg_pooling(rows_of([0, numbers]), rows_of(row), rows_of(col), topks, channel_num)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: vr.sequence_erase(X, (1,)), "sequence_erase, x: expected integers, got float64"),
        (lambda: vr.sequence_erase(IDS.data, (1,)), "x: expected at least one level"),
        (lambda: vr.sequence_erase(IDS.like(np.zeros((5, 2), int)), (1,)), r"x: expected one id per row, got shape"),
        (lambda: vr.sequence_enumerate(IDS, 0), "win_size: expected 1 to 1048576, got 0"),
        (lambda: vr.sequence_enumerate(IDS, 10**30), "win_size: expected 1 to 1048576"),
        (lambda: vr.sequence_enumerate(IDS, 2, 2**63), "pad_value: expected a number that int64 holds"),
        (lambda: vr.sequence_reshape(X, 0), "new_dim: expected 1 to 2147483647, got 0"),
        (lambda: vr.sequence_reshape(X, 10**30), "new_dim: expected 1 to 2147483647"),
        (lambda: vr.sequence_reshape(X, 2), "sequence 1: expected a multiple of 2 numbers, got 9"),
        (lambda: vr.sequence_reshape(X.data, 2), "x: expected at least one level"),
        (lambda: vr.sequence_scatter(np.zeros((2, 2)), IDS, np.zeros(5)), "index, entry 2: expected 0 <= position < 2"),
        (lambda: vr.sequence_scatter(np.zeros((3, 3)), IDS, np.zeros(5)), "x: expected 2 rows, one per sequence"),
        (lambda: vr.sequence_scatter(np.zeros((2, 3)), IDS, np.zeros(4)), "updates: expected 5 rows, one per row"),
        (lambda: vr.sequence_scatter(np.zeros((2, 3)), IDS, np.zeros((5, 2))), r"updates: expected rows of shape \(\)"),
        (lambda: vr.sequence_scatter(np.zeros((2, 3)), IDS, np.zeros(5, "f")), "updates: expected float64"),
        (lambda: vr.sequence_scatter(np.zeros((2, 3)), IDS, rows_of([3, 2])), "expected one LoD"),
        (lambda: vr.sequence_scatter(np.zeros(2), IDS, np.zeros(5)), "x: expected .sequences, positions"),
        (lambda: topk(numbers=5), "x, sequence 1: expected 2 x 1 x 3 numbers .channels x rows x columns., got 5"),
        (lambda: topk(row=[1]), "col: expected 1 sequences, as many as row has, got 2"),
        (lambda: topk(row=[0, 1, 1], col=[1, 1, 3]), "x: expected 3 sequences, as many as row has, got 2"),
        (lambda: topk(topks=()), "topks: expected numbers from 1 to"),
        (lambda: topk(topks=(2, 0)), "topks: expected numbers from 1 to"),
        (lambda: topk(channel_num=0), "channel_num: expected at least 1, and at most 1048576 columns"),
        (lambda: topk(channel_num=2**20), "channel_num: expected at least 1, and at most 1048576 columns"),
        (lambda: vr.split_by_mask(X, ONE), "mask: expected 2 bools, one per sequence of level 0, got 1"),
        (lambda: vr.split_by_mask(X, np.ones((2, 2), bool)), "mask: expected one bool per sequence"),
        (lambda: vr.split_by_mask(X, TWO + 0), "mask: expected bool, got int64"),
        (lambda: vr.split_by_mask(X, TWO, level=1), "level: expected -1 <= level < 1, a level of x"),
        (lambda: vr.split_by_mask(np.float64(3), ONE), "x: expected rows, so at least one"),
        (lambda: vr.merge_by_mask(X, X, TWO), "in_true: expected 1 sequences, one per True of mask, got 2"),
        (lambda: vr.merge_by_mask(X, X, np.array([True] * 2)), "in_false: expected 0 sequences, one per False"),
        (lambda: vr.merge_by_mask(X, IDS, TWO), "in_false: expected rows of .3,. float64, 1 levels"),
        (
            lambda: vr.merge_by_mask(DEEP, DEEP, np.array([1, 1, 0, 0], bool), level=1),
            "expected levels above that count each part's",
        ),
    ],
)
def test_errors_say_what_is_wrong(call, message):
    with pytest.raises(vr.InputError, match=message):
        call()


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8])
@pytest.mark.parametrize("lengths", [[[2, 0, 3]], [[0, 5]], [[0, 0]], [[2, 0, 1], [1, 2, 2]]], ids=str)
@pytest.mark.parametrize("kind", ["sum", "max", "first", "last"])
def test_integers_are_pooled(kind, lengths, dtype):
    count = sum(lengths[-1])
    ids = np.random.default_rng(0).integers(0, 120, (count, 2)).astype(dtype)
    found = vr.sequence_pool(vr.create_lod_tensor(ids, lengths), kind, pad_value=7)
    parts = np.split(ids, np.cumsum(lengths[-1])[:-1])
    pick = {"sum": lambda part: part.sum(0, dtype=dtype), "max": lambda part: part.max(0),
            "first": lambda part: part[0], "last": lambda part: part[-1]}[kind]  # fmt: skip
    wanted = [pick(part) if len(part) else np.full(2, 7) for part in parts]
    assert found.dtype == dtype
    assert found.value.num_levels == len(lengths) - 1
    assert np.array_equal(found, np.array(wanted, dtype).reshape(len(parts), 2))


def test_integers_have_no_mean():
    x = vr.create_lod_tensor(np.arange(3), [[3]])
    for kind in ("mean", "sqrt"):
        with pytest.raises(
            vr.DTypeError, match=r"sequence_pool, x: expected float32 or float64, .* got int64 .*astype"
        ):
            vr.sequence_pool(x, kind)
    with pytest.raises(vr.ShapeError, match=r"sequence_pool, pad_value: expected a number that int64 holds, got 0.5"):
        vr.sequence_pool(x, "sum", pad_value=0.5)
