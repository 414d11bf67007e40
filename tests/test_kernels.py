"""Movement, pooling, updates and products: each equals its oracle on every device and changes nothing else."""

import numba
import numpy as np
import pytest
from oracles import kernels as oracle

from tests.differences import slope
from varlen_rnn.kernels import clip, largest, losses, matrices, moves, pool, rows, segment, updates
from varlen_rnn.kernels.twins import twins
from varlen_rnn.products import gemm, row_sums
from varlen_rnn.runtime import threads
from varlen_rnn.runtime.device import as_operand

NUMBERS = [np.float64, np.float32]
ANY = [np.float64, np.float32, np.int64, np.int32]
FEATURES = [0, 1, 37]
pytestmark = pytest.mark.twins

TROUBLES = {
    "no sequences": [0],
    "an empty sequence": [0, 0],
    "empty ones everywhere": [0, 0, 3, 3, 4, 6, 6],
    "one step": [0, 1, 2],
    "equal": [0, 2, 4],
}
by_trouble = pytest.mark.parametrize("offsets", TROUBLES.values(), ids=TROUBLES)
by_number = pytest.mark.parametrize("dtype", NUMBERS)
by_any = pytest.mark.parametrize("dtype", ANY)
by_features = pytest.mark.parametrize("features", FEATURES)


def values(shape, dtype, seed=0):
    rng = np.random.default_rng(seed)
    return (
        rng.integers(-9, 9, shape).astype(dtype)
        if np.dtype(dtype).kind == "i"
        else rng.normal(size=shape).astype(dtype)
    )


def wide(argument):
    """Return a copy that the oracle may write: floating-point numbers in float64."""
    if not isinstance(argument, np.ndarray):
        return argument
    return argument.astype(np.float64) if argument.dtype.kind == "f" else argument.copy()


def check(device, front, reference, *arguments, exact=True):
    """Assert that `front` leaves in every array what `reference` does: in its inputs, what they held."""
    expected = [wide(argument) for argument in arguments]
    reference(*expected)
    # Indices stay on the host, as callers pass them; the last argument is the output.
    output = arguments[-1]
    moved = [
        device.put(a) if isinstance(a, np.ndarray) and (a is output or a.dtype != np.int64 or a.ndim > 1) else a
        for a in arguments
    ]
    front(*moved)
    for before, after, right in zip(arguments, moved, expected, strict=True):
        if isinstance(before, np.ndarray):
            close(device.get(after), right, exact)


def close(got, right, exact=False):
    if exact or got.dtype.kind != "f":
        np.testing.assert_array_equal(got, right.astype(got.dtype))
        return
    relative = 1e-12 if got.dtype == np.float64 else 2e-6
    np.testing.assert_allclose(got, right, rtol=0, atol=relative * max(1.0, np.abs(right).max(initial=0)))


@by_any
@by_features
def test_rows_move_between_steps_and_ranks(device, dtype, features):
    x, starts = values((7, features), dtype), np.array([2, 0, 6])
    for t, alive in [(0, 3), (1, 2), (0, 0)]:
        step = values((alive, features), dtype, 1)
        check(device, segment.segment_inputs, oracle.segment_inputs, x, starts, t, step)
        check(device, segment.concat_outputs, oracle.concat_outputs, step, starts, t, x)
    order, boot, out = np.array([2, 0, 1]), values((3, features), dtype), values((3, features), dtype, 1)
    check(device, segment.init_memories, oracle.init_memories, boot, order, out)
    check(device, segment.init_memories_grad, oracle.init_memories_grad, boot, order, out)


@by_any
@by_features
def test_rows_are_gathered_and_added(device, dtype, features):
    table = values((5, features), dtype)
    for ids in (np.array([4, 0, 4, 2, 4]), np.empty(0, np.int64)):
        out = values((len(ids), features), dtype, 1)
        check(device, rows.gather_rows, oracle.gather_rows, table, ids, out)
        check(device, rows.scatter_add_rows, oracle.scatter_add_rows, out, ids, table, exact=False)
    ids = np.array([-1, 3, -1])
    check(device, rows.gather_rows, oracle.gather_rows, table, ids, values((3, features), dtype, 1))
    check(device, rows.gather_rows, oracle.gather_rows, table[:0], ids[:1], values((1, features), dtype, 1))


@by_any
@by_features
def test_runs_of_rows_are_copied(device, dtype, features):
    runs = np.array([2, 0, 4, 1]), np.array([4, 0, 1, 0]), np.array([2, 0, 3, 1])
    for table, these in ((values((7, features), dtype), runs), (values((0, features), dtype), [runs[1][1:2]] * 3)):
        check(device, rows.copy_runs, oracle.copy_runs, table, *these, values((6, features), dtype, 1))


@by_number
def test_rows_between_runs_are_filled(device, dtype):
    for places, lengths in (((0, 3), (2, 1)), ((1, 1, 4), (0, 2, 1)), ((), ()), ((0,), (6,)), ((6,), (0,))):
        runs = np.array(places, np.int64), np.array(lengths, np.int64)
        check(device, rows.fill_between_runs, oracle.fill_between_runs, *runs, dtype(0.5), values((6, 2), dtype))


@by_any
def test_listed_rows_are_filled_and_marked(device, dtype):
    for listed in (np.array([3, 0]), np.empty(0, np.int64)):
        check(device, rows.fill_rows, oracle.fill_rows, listed, dtype(5), values((4, 3), dtype))
    for ids in (np.array([3, 0, 3]), np.empty(0, np.int64)):
        check(device, rows.mark, oracle.mark, ids, values((len(ids), 4), dtype))


def test_slices_are_placed_and_what_a_sequence_has_not_is_found():
    fit = [((0, 0, 0), (2, 0, 3)), ((2, 0, 3), (0, 0, 0))]
    beyond = [((0, 1, 0), (0, 0, 0)), ((0, 0, 2), (2, 0, 2)), ((0, 0, 2**62), (0, 0, 2**62))]
    negative = [((-1, 0, 0), (1, 0, 0)), ((0, 0, 0), (0, 0, -1))]
    for begins, lengths in fit + beyond + negative:
        offsets, given = np.array([0, 2, 2, 5]), (np.array(begins), np.array(lengths))
        out, expected = (np.empty(3, np.int64), np.empty(4, np.int64)), (np.empty(3, np.int64), np.empty(4, np.int64))
        found = oracle.place_slices(offsets, begins, lengths, *expected)
        assert rows.place_slices(offsets, *given, *out) == found
        if found < 0:
            assert all(map(np.array_equal, out, expected))


@by_number
def test_copies_of_sequences_are_summed(device, dtype):
    for lengths, times in (((2, 0, 3), (3, 5, 0)), ((1, 1), (100, 1)), ((), ()), ((0,), (3,)), ((2,), (200,))):
        offsets, times = np.cumsum([0, *lengths]), np.array(times, np.int64)
        x = values((int(np.dot(np.diff(offsets), times)), 3), dtype, 0)
        out = values((offsets[-1], 3), dtype, 1)
        check(device, pool.sum_copies, oracle.sum_copies, x, offsets, times, out, exact=False)


@by_any
def test_sequences_are_repeated(device, dtype):
    for lengths, times in (((2, 0, 3), (3, 5, 0)), ((1, 1), (100, 1)), ((), ()), ((0,), (3,)), ((7, 400), (170, 5))):
        offsets, times = np.cumsum([0, *lengths]), np.array(times, np.int64)
        x, num_copies = values((offsets[-1], 3), dtype, 0), int(np.dot(np.diff(offsets), times))
        out = values((num_copies, 3), dtype, 1)
        check(device, moves.repeat_sequences, oracle.repeat_sequences, x, offsets, times, out)


def test_repeated_rows_add_in_the_order_of_appearance(device):
    out = device.put(np.zeros((1, 2), np.float32))
    rows.scatter_add_rows(
        device.put(np.array([[1e8, 1], [1, 1e8], [-1e8, -1e8]], np.float32)), np.zeros(3, np.int64), out
    )
    assert device.get(out).tolist() == [[0, 0]]  # 1 is lost beside 1e8; another order would keep it


@by_number
@by_features
@by_trouble
def test_pool_sum(device, dtype, features, offsets):
    offsets = np.array(offsets)
    x, scale = values((offsets[-1], features), dtype), values(len(offsets) - 1, dtype, 1)
    out = values((len(scale), features), dtype, 2)
    check(device, pool.pool_sum, oracle.pool_sum, x, offsets, scale, out, exact=False)
    check(device, pool.pool_sum_grad, oracle.pool_sum_grad, out, offsets, scale, x, exact=False)


@by_any
@by_features
@by_trouble
def test_pool_max_and_picked_rows(device, dtype, features, offsets):
    offsets = np.array(offsets)
    x = values((offsets[-1], features), dtype).round()  # many ties
    out, index = values((len(offsets) - 1, features), dtype, 2), np.full((len(offsets) - 1, features), 7)
    check(device, pool.pool_max, oracle.pool_max, x, offsets, out, index)
    oracle.pool_max(wide(x), offsets, wide(out), index)
    check(device, pool.pick_rows, oracle.pick_rows, x, index, out)
    check(device, pool.pick_rows_grad, oracle.pick_rows_grad, out, index, x)


@by_any
@by_features
@by_trouble
def test_ends_of_sequences_and_sequences_backwards(device, dtype, features, offsets):
    offsets = np.array(offsets)
    x, ends = values((offsets[-1], features), dtype), values((len(offsets) - 1, features), dtype, 1)
    for last in (False, True):
        check(device, moves.pick_ends, oracle.pick_ends, x, offsets, last, ends)
        check(device, moves.pick_ends_grad, oracle.pick_ends_grad, ends, offsets, last, x.copy())
    check(device, moves.reverse_rows, oracle.reverse_rows, x, offsets, x.copy())


def test_nan_wins_a_maximum_and_the_first_stays(device):
    x = device.put(np.array([[1.0, np.nan], [np.nan, 5.0], [np.nan, np.nan], [9.0, -np.inf]]))
    out, index = device.put(np.zeros((1, 2))), device.put(np.zeros((1, 2), np.int64))
    pool.pool_max(x, np.array([0, 4]), out, index)
    assert np.isnan(device.get(out)).all()
    assert device.get(index).tolist() == [[1, 0]]


def test_a_row_picked_twice_gets_both_gradients(device):
    d_x = device.put(np.full((3, 1), 7.0))
    pool.pick_rows_grad(device.put(np.array([[1.0], [2.0], [4.0]])), np.array([[2], [2], [-1]]), d_x)
    assert device.get(d_x).ravel().tolist() == [0, 0, 3]


UPDATES = {
    name: (update.kernel, getattr(oracle, name), (0.1, *update.constants.values()), len(update.states))
    for name, update in updates.UPDATES.items()
}
UPDATES["plain momentum"] = (updates.momentum, oracle.momentum, (0.1, 0.9, False), 1)


@by_number
@by_features
@pytest.mark.parametrize("listed", [[4, 0, 2], [], [1]])
@pytest.mark.parametrize("name", UPDATES)
def test_updates_change_the_listed_rows(device, name, listed, features, dtype):
    front, reference, scalars, num_moments = UPDATES[name]
    listed = np.array(listed, np.int64)
    grad, param = values((len(listed), features), dtype), values((5, features), dtype, 1)
    moments = [np.abs(values((5, features), dtype, 2 + m)) for m in range(num_moments)]
    check(device, front, reference, listed, grad, *scalars, *moments, param, exact=False)


@by_number
def test_rows_are_shrunk(device, dtype):
    for listed in (np.array([3, 0]), np.array([0]), np.empty(0, np.int64)):
        check(device, updates.shrink, oracle.shrink, listed, 0.75, values((4, 3), dtype), exact=False)


@by_number
def test_pairs_of_matrices_are_multiplied(device, dtype):
    for rows_of_a, depth, columns in ((2, 3, 4), (1, 1, 1), (3, 0, 2)):
        a, b = values((2, rows_of_a, depth), dtype), values((3, depth, columns), dtype, 1)
        pairs, out = (np.array([1, 0, 1]), np.array([2, 2, 0])), values((3, rows_of_a, columns), dtype, 2)
        arguments = a, pairs[0], b, pairs[1], out
        check(device, matrices.multiply_matrices, oracle.multiply_matrices, *arguments, exact=False)


@by_number
def test_losses_read_their_class_and_ignore_rows(device, dtype):
    for classes in (np.array([2, 0, -1, 1]), np.array([0, 1, 2, 0]), np.empty(0, np.int64)):
        x, d = values((len(classes), 3), dtype), values(len(classes), dtype, 1)
        log_probabilities = -np.abs(x)
        out = values(len(classes), dtype, 2)
        check(device, losses.negative_log_likelihood, oracle.negative_log_likelihood, log_probabilities, classes, out)
        arguments = log_probabilities, classes, d, values(x.shape, dtype, 2)
        check(device, losses.cross_entropy_grad, oracle.cross_entropy_grad, *arguments, exact=False)
        check(device, losses.sum_by_class, oracle.sum_by_class, d, classes, values(3, dtype, 2), exact=False)


@by_number
@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 5, 3), (1, 1), (70, 2)])
def test_largest_elements_along_an_axis(device, shape, dtype):
    x = values(shape, dtype).round(1)  # with ties
    x.reshape(-1)[0] = np.nan
    for axis in range(len(shape)):
        k = max(1, shape[axis] // 2)
        found, places = map(device.get, largest.top(device.put(x), k, axis))
        # Of equal numbers the first one is taken, and NaN comes first.
        order = np.argsort(np.where(np.isnan(x), -np.inf, -x), axis, kind="stable")
        expected = np.take(order, range(k), axis)
        np.testing.assert_array_equal(places, expected)
        np.testing.assert_array_equal(found, np.take_along_axis(x, expected, axis))
        out, values_there = device.put(np.zeros(shape, dtype)), values(expected.shape, dtype, 3)
        largest.put_along(device.put(values_there), device.put(expected), axis, out)
        whole = np.zeros(shape, dtype)
        for place in np.ndindex(expected.shape):
            whole[(*place[:axis], expected[place], *place[axis + 1 :])] = values_there[place]
        np.testing.assert_array_equal(device.get(out), whole)


@by_number
def test_global_norm_on_the_device(device, dtype):
    if device.name == "cpu":
        return
    big = np.float32(3e20) if dtype == np.float32 else 3e200  # its square overflows
    some = [values((7, 30), dtype), values(5, dtype, 1), values((0, 3), dtype)]
    others = [np.full(100, big), np.zeros(3), np.array([np.inf, 1]), np.array([np.nan, np.inf])]
    tolerance = 4e-6 if dtype == np.float32 else 1e-13
    for arrays in (some, *([array.astype(dtype)] for array in others)):
        norm = clip.norm_on_device([device.put(array) for array in arrays])
        expected = np.linalg.norm(np.concatenate([array.ravel() for array in arrays]).astype(np.longdouble))
        np.testing.assert_allclose(device.get(norm), expected.astype(dtype), rtol=tolerance)
        for limit in (1.0, np.inf):
            found = clip.clipped([device.put(array) for array in arrays], norm, limit)
            with np.errstate(invalid="ignore"):
                factor = 1 if expected <= limit else limit / expected
                right = [(array * np.longdouble(factor)).astype(dtype) for array in arrays]
            for one, other in zip(found, right, strict=True):
                np.testing.assert_allclose(device.get(one), other, rtol=tolerance)


def test_more_gradients_than_a_launch_takes_are_clipped(device):
    if device.name == "cpu":
        return
    arrays = [np.full(number % 4, number, np.float32) for number in range(35)]
    norm = clip.norm_on_device([device.put(array) for array in arrays])
    expected = np.linalg.norm(np.concatenate(arrays).astype(np.float64))
    np.testing.assert_allclose(device.get(norm), expected, rtol=1e-6)
    for one, other in zip(clip.clipped([device.put(array) for array in arrays], norm, 2.0), arrays, strict=True):
        np.testing.assert_allclose(device.get(one), other * (2 / expected), rtol=1e-6)


@by_number
def test_sgd_applies_repeated_rows_one_after_another(device, dtype):
    arguments = np.array([1, 1, 0]), values((3, 4), dtype), 0.5, values((2, 4), dtype, 1)
    check(device, updates.sgd, oracle.sgd, *arguments, exact=False)


@by_number
@pytest.mark.parametrize("name", UPDATES)
def test_a_dense_update_is_one_of_a_single_row(device, name, dtype):
    front, reference, scalars, num_moments = UPDATES[name]
    arrays = [np.abs(values((3, 4), dtype, seed)).reshape(1, 12) for seed in range(num_moments + 2)]
    check(device, front, reference, np.array([0]), arrays[0], *scalars, *arrays[1:], exact=False)


SIZES = [(1, 1, 1), (7, 10, 70), (100, 70, 33), (0, 5, 6), (5, 0, 6)]


@by_number
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("transposed", [False, True])
def test_product_on_windows(device, size, transposed, dtype):
    num_rows, depth, columns = size
    a, c = values((num_rows, depth + 3), dtype), values((num_rows, columns + 4), dtype, 1)
    weight = values((columns, depth) if transposed else (depth, columns), dtype, 2)
    bias = values(columns, dtype, 3)

    def ours(a, weight, c, bias, accumulate):
        windows = {"a_column": 2, "c_column": 3, "bias": bias, "accumulate": accumulate, "transposed": transposed}
        gemm.product(a, weight, c, **windows)

    def plain(a, weight, c, bias, accumulate):
        oracle.product(a[:, 2:-1], weight, c[:, 3:-1], transposed, bias, accumulate)

    for used, accumulate in [(bias, False), (None, True), (None, False)]:
        check(device, ours, plain, a, weight, c, used, accumulate, exact=False)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_few_rows_have_the_bits_of_many(dtype):
    for depth, columns in [(0, 3), (5, 70), (600, 200)]:
        a, weight, bias = values((9, depth), dtype), values((depth, columns), dtype, 1), values(columns, dtype, 2)
        c = np.empty((9, columns), dtype)
        gemm.product(a, weight, c, bias=bias)
        for count in range(6):
            of_few = np.empty((count, columns), dtype)
            gemm.product(a[:count], weight, of_few, bias=bias)
            assert of_few.tobytes() == c[:count].tobytes()


@by_number
@pytest.mark.parametrize("size", [*SIZES, (300, 10, 70), (5, 800, 3)])
@pytest.mark.parametrize("windows", [((1, 2), (0, 1)), ((0, 0), (0, 0)), ((0, 1), (2, 0))], ids=str)
def test_sums_over_rows(device, size, dtype, windows):
    """Two products with windows of columns that overlap, one of them with rows chosen and its own rows dealt out."""
    num_rows, depth, columns = size
    a, x, h, initial = (
        values((num_rows, depth + 3), dtype),
        values((num_rows, 2 * columns), dtype, 1),
        values((num_rows, columns + 3), dtype, 2),
        values((2, columns), dtype, 3),
    )
    at = np.random.default_rng(3).integers(-2, max(num_rows, 1), num_rows)
    on = [device.put(array) for array in (a, x, h, initial)]
    (x_first, x_cut), (h_first, h_cut) = windows
    x_end, h_end = a.shape[1] - x_cut, a.shape[1] - h_cut
    of_x = row_sums.Factor(x_first, x_end, on[1], 0, x.shape[1], on[1][:0], row_sums.ALL_ROWS)
    targets = np.random.default_rng(4).permutation(h_end - h_first)
    of_h = row_sums.Factor(h_first, h_end, on[2], 2, columns, on[3], at, targets)
    d_x, d_h, sums = row_sums.row_products(on[0], of_x, of_h)
    seen = slice(min(x_first, h_first), max(x_end, h_end))
    close(device.get(sums)[seen], wide(a)[:, seen].sum(axis=0))
    close(device.get(d_x), wide(a)[:, x_first:x_end].T @ wide(x))
    right = oracle.row_product(wide(a)[:, h_first:h_end], wide(h)[:, 2:-1], wide(initial), at)
    close(device.get(d_h)[targets], right)
    close(device.get(row_sums.row_product(on[0], on[2])), wide(a).T @ wide(h))
    for array, before in zip(on, (a, x, h, initial), strict=True):
        close(device.get(array), before, exact=True)


@pytest.mark.parametrize("count", [0, 1, 193])
def test_sums_over_rows_begin_at_zero_whatever_the_memory_holds(monkeypatch, count):
    monkeypatch.setattr(row_sums, "empty", lambda shape, like: np.full(shape, np.nan, like.dtype))
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(count, 7)), rng.normal(size=(count, 19))
    np.testing.assert_allclose(row_sums.row_product(a, b), a.T @ b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_threads", [2, 7, 40])
def test_products_do_not_depend_on_who_takes_which_piece(monkeypatch, num_threads):
    monkeypatch.setattr(threads, "SMALL_WORK", 0)
    rng = np.random.default_rng(0)
    sizes = (1000, 410), (1000, 33), (410, 150), (150,)
    a, b, weight, bias = (rng.normal(size=size).astype(np.float32) for size in sizes)
    long = rng.normal(size=(9000, 90)).astype(np.float32)  # rows of more than one group of blocks

    def results():
        c = np.empty((1000, 150), np.float32)
        gemm.product(a, weight, c, bias=bias)
        once = c.copy()
        gemm.product(a, weight, c, accumulate=True)
        return once, c, row_sums.row_product(a, b), row_sums.row_product(long, long[:, :37].copy())

    monkeypatch.setattr(threads, "get_num_threads", lambda: 1)
    alone = results()
    close(alone[0], wide(a) @ wide(weight) + bias)
    close(alone[2], wide(a).T @ wide(b))
    monkeypatch.setattr(threads, "get_num_threads", lambda: num_threads)
    for _ in range(5):
        for together, wanted in zip(results(), alone, strict=True):
            np.testing.assert_array_equal(together, wanted)


OFFSETS = np.array([0, 0, 3, 4, 4])
INDEX = np.array([[2, 0], [-1, 3], [2, 1]])
ORDER, STARTS = np.array([1, 2, 0]), np.array([0, 3])
SCALE = np.array([1.0, 0.3, 2.0, 1.0])
WEIGHT = values((2, 3), np.float64, 9)


def _max_grad(device, d, x, d_x):
    out, index = device.put(np.zeros((4, 2))), device.put(np.zeros((4, 2), np.int64))
    pool.pool_max(device.put(x), OFFSETS, out, index)
    pool.pick_rows_grad(d, index, d_x)


def _product(device, x, out):
    gemm.product(x, device.put(WEIGHT), out)


def _product_grad(device, d, x, d_x):
    gemm.product(d, device.put(WEIGHT), d_x, transposed=True)


# name: shapes of the input and the output, the kernel, and its gradient; both write into their last argument
GRADIENTS = {
    "segment_inputs": (
        (4, 2), (2, 2),
        lambda device, x, out: segment.segment_inputs(x, STARTS, 0, out),
        lambda device, d, x, d_x: segment.concat_outputs(d, STARTS, 0, d_x),
    ),
    "concat_outputs": (
        (2, 2), (4, 2),
        lambda device, x, out: segment.concat_outputs(x, STARTS, 0, out),
        lambda device, d, x, d_x: segment.segment_inputs(d, STARTS, 0, d_x),
    ),
    "init_memories": (
        (3, 2), (3, 2),
        lambda device, x, out: segment.init_memories(x, ORDER, out),
        lambda device, d, x, d_x: segment.init_memories_grad(d, ORDER, d_x),
    ),
    "gather_rows": (
        (4, 2), (3, 2),
        lambda device, x, out: rows.gather_rows(x, np.array([3, 1, 3]), out),
        lambda device, d, x, d_x: rows.scatter_add_rows(d, np.array([3, 1, 3]), d_x),
    ),
    "pool_sum": (
        (4, 2), (4, 2),
        lambda device, x, out: pool.pool_sum(x, OFFSETS, device.put(SCALE), out),
        lambda device, d, x, d_x: pool.pool_sum_grad(d, OFFSETS, device.put(SCALE), d_x),
    ),
    "pool_max": (
        (4, 2), (4, 2),
        lambda device, x, out: pool.pool_max(x, OFFSETS, out, device.put(np.zeros((4, 2), np.int64))),
        _max_grad,
    ),
    "pick_rows": (
        (4, 2), (3, 2),
        lambda device, x, out: pool.pick_rows(x, INDEX, out),
        lambda device, d, x, d_x: pool.pick_rows_grad(d, INDEX, d_x),
    ),
    "pick_ends": (
        (4, 2), (4, 2),
        lambda device, x, out: moves.pick_ends(x, OFFSETS, True, out),
        lambda device, d, x, d_x: moves.pick_ends_grad(d, OFFSETS, True, d_x),
    ),
    "reverse_rows": (
        (4, 2), (4, 2),
        lambda device, x, out: moves.reverse_rows(x, OFFSETS, out),
        lambda device, d, x, d_x: moves.reverse_rows(d, OFFSETS, d_x),
    ),
    "product": ((4, 2), (4, 3), _product, _product_grad),
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_equal_a_central_difference(device, name):
    shape, out_shape, kernel, gradient = GRADIENTS[name]
    x, direction, d = values(shape, np.float64), values(shape, np.float64, 1), values(out_shape, np.float64, 2)

    def loss():
        out = device.put(np.zeros(out_shape))
        kernel(device, device.put(x), out)
        return (device.get(out) * d).sum()

    d_x = device.put(np.zeros(shape))
    gradient(device, device.put(d), x, d_x)
    difference = slope(loss, x, direction)
    np.testing.assert_allclose((device.get(d_x) * direction).sum(), difference, rtol=1e-7, atol=1e-7)


def test_compiled_callers_get_the_same_bits_from_python_numbers():
    @numba.njit
    def caller(listed, grad, moment1, moment2, param):
        updates.adam_cpu(listed, grad, 0.1, 0.9, 0.999, 1e-8, moment1, moment2, param)

    listed, arrays = np.array([0]), [values((1, 64), np.float32, seed) ** 2 for seed in range(4)]
    copies = [array.copy() for array in arrays]
    caller(listed, *arrays)
    grad, *changed = copies
    updates.adam(listed, grad, 0.1, 0.9, 0.999, 1e-8, *changed)
    for one, other in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("sign", [-1, 0])
def test_sums_of_long_products_drift_little_more_than_numpys(sign):
    rng = np.random.default_rng(0)
    a, weight = (rng.uniform(sign, 1, shape).astype(np.float32) for shape in ((30, 10_000), (10_000, 40)))
    right, c = wide(a) @ wide(weight), np.empty((30, 40), np.float32)
    gemm.product(a, weight, c)
    assert np.abs(c - right).max() <= 4 * np.abs(a @ weight - right).max()


def test_the_sum_of_a_million_rows_does_not_drift():
    a, none = np.full((1_000_000, 3), 0.1, np.float32), np.empty((0, 0), np.float32)
    of_a = row_sums.Factor(0, 3, a, 0, 3, none, row_sums.ALL_ROWS)
    nothing = row_sums.Factor(0, 0, none, 0, 0, none, row_sums.ALL_ROWS)
    sums = row_sums.row_products(a, of_a, nothing)[2]
    assert sums.dtype == np.float32
    np.testing.assert_allclose(sums, 1e6 * np.float64(np.float32(0.1)), rtol=1e-6)


@by_number
@by_trouble
@pytest.mark.parametrize("most", [0, 1, 2, 9])
def test_largest(device, dtype, offsets, most):
    x, limits = values(offsets[-1], dtype), np.append(0, np.cumsum(np.minimum(np.diff(offsets), most)))
    check(device, largest.largest, oracle.largest, x, np.array(offsets), limits, np.zeros(limits[-1], np.int64))


@by_number
def test_largest_of_equal_numbers_and_nan(device, dtype):
    x = np.array([1, 2, np.nan, 2, -np.inf, np.nan, np.inf, 1, 0, -0.0, 0, 3, 2, 1], dtype)
    check(
        device, largest.largest, oracle.largest, x, np.array([0, 8, 14]), np.array([0, 7, 13]), np.zeros(13, np.int64)
    )


def test_a_front_runs_where_its_last_argument_lives(device):
    calls = []
    front = twins(lambda *a: calls.append(("cpu", a)), lambda *a: calls.append(("cuda", a)), size=None)(pool.pool_sum)
    first, out = np.zeros(3), device.put(np.zeros(2))
    front(first, out)
    assert front.__name__ == "pool_sum"
    ((where, given),) = calls
    assert where == device.name
    assert given[0] is first
    assert given[1] is out


@pytest.mark.parametrize(("work", "most", "shards"), [(10**9, 5, 3), (10**9, 2, 2), (10**9, 0, 1), (1, 5, 1)])
def test_a_front_that_knows_its_work_runs_in_shards(work, most, shards):
    threads.set_num_threads(3)
    calls, out = [], np.zeros(most)
    front = twins(lambda *given: calls.append(given), None, work=lambda out: work)(pool.pool_sum)
    front(out)
    assert sorted(shard for shard, _, _ in calls) == list(range(shards))
    assert all(number == shards and given is out for _, number, given in calls)


@by_any
@pytest.mark.parametrize("shape", [(3, 4), (5,), (2, 0, 3), (2, 3, 1, 4)])
def test_a_transposed_array_becomes_contiguous(device, dtype, shape):
    x = values(shape, dtype)
    found = as_operand(device.put(x).T)
    assert found.flags.carray
    np.testing.assert_array_equal(device.get(found), x.T)
