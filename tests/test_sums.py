"""Sums of many float32 numbers do not drift, wherever rows are summed; their laws, to the bit; infinities; memory."""

import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import varlen_rnn as vr
from varlen_rnn import recurrence
from varlen_rnn.cells import cell
from varlen_rnn.kernels import pool, reductions, rows
from varlen_rnn.kernels.sums import BLOCK
from varlen_rnn.nn import functional as F
from varlen_rnn.products import row_sums
from varlen_rnn.rows.plan import sort_by_seq_len
from varlen_rnn.tape.variable import apply

MILLION = 1_000_000
TENTH = np.float32(0.1)
WANTED = 1e-6  # relative


def tenths(*shape):
    return np.full(shape, TENTH)


def leaf(data, *lengths):
    return vr.Variable(vr.create_lod_tensor(data, [list(lengths)]) if lengths else data, requires_grad=True)


def pooled(pool_type, scale):
    return lambda: np.asarray(vr.sequence_pool(leaf(tenths(MILLION, 3), MILLION - 5, 5), pool_type))[0] / scale


def gradient_of(function, *shape):
    """Return the gradient of what a function does with zeros, summed with weights of 0.1."""
    x = leaf(np.zeros(shape, np.float32))
    y = function(x)
    y.backward(tenths(*y.shape))
    return x.grad.to_dense() if isinstance(x.grad, vr.SelectedRows) else np.asarray(x.grad)


def lookup(sparse):
    ids = np.zeros(MILLION, int)
    return lambda table: apply("embedding", ids, table, padding_idx=None, sparse=sparse)


def linear(bias):
    return apply("matmul", np.zeros((MILLION, 1), np.float32), np.zeros((1, 3), np.float32), bias, transposed=False)


def repeated():
    return vr.SelectedRows(np.ones(MILLION, int), tenths(MILLION, 2), 3)


SAME = np.zeros(MILLION, int)
# Each gives numbers that are 0.1 times a million, and no others that are not 0.
SUMS = {
    "sum over rows": lambda: leaf(tenths(MILLION, 3)).sum(axis=0),
    "sum over the middle": lambda: leaf(tenths(2, MILLION, 2)).sum(axis=1),
    "sum over the last": lambda: leaf(tenths(2, MILLION)).sum(axis=-1),
    "sum of all": lambda: leaf(tenths(MILLION)).sum(),
    "sum of columns apart": lambda: leaf(tenths(MILLION // 2, 5)[:, ::3]).sum(),
    "sum of columns side by side": lambda: leaf(np.asfortranarray(tenths(3, MILLION))).sum(axis=1),
    "mean over rows": lambda: leaf(tenths(MILLION, 3)).mean(axis=0) * 1e6,
    "mean of all": lambda: leaf(tenths(MILLION // 2, 5)[:, ::3]).mean() * 1e6,
    "pooled sum": pooled("sum", 1 - 5e-6),
    "pooled mean": pooled("mean", 1e-6),
    "pooled sqrt": pooled("sqrt", (1 - 5e-6) ** 0.5 / 1000),
    "loss of rows": lambda: F.mse_loss(np.sqrt(tenths(MILLION)), np.zeros(MILLION, np.float32), "sum"),
    "loss of sequences": lambda: (
        F.mse_loss(leaf(np.sqrt(tenths(MILLION)), MILLION), np.zeros(MILLION, np.float32), per="sequence") * 1e6
    ),
    "dense gradient of a table": lambda: gradient_of(lookup(False), 2, 3),
    "sparse gradient of a table": lambda: gradient_of(lookup(True), 2, 3),
    "merged rows": lambda: repeated().merge().value,
    "sparse rows added to dense ones": lambda: repeated() + np.zeros((3, 2), np.float32),
    "gradient of a bias": lambda: gradient_of(lambda b: np.zeros((MILLION, 3), np.float32) + b, 3),
    "gradient of a linear layer's bias": lambda: gradient_of(linear, 3),
    "gradient of a column": lambda: gradient_of(lambda x: x + np.zeros((2, MILLION), np.float32), 2, 1),
    "gradient of a middle": lambda: gradient_of(lambda x: x + np.zeros((2, MILLION // 2, 3), np.float32), 1, 3),
    "gradient of one number": lambda: gradient_of(lambda x: x + np.zeros((MILLION // 2, 2), np.float32)),
    "gradient of rows taken again": lambda: gradient_of(lambda x: x[SAME], 2, 3),
    "gradient of elements taken again": lambda: gradient_of(lambda x: x[SAME, SAME + 1], 2, 3),
    "gradient of columns taken again": lambda: gradient_of(lambda x: x[..., SAME], 2, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", SUMS)
def test_a_million_tenths(name):
    got = np.asarray(SUMS[name]())
    assert got.dtype == np.float32
    got = got[got != 0].astype(np.float64)
    assert got.size
    assert np.abs(got / (MILLION * float(TENTH)) - 1).max() < WANTED


def test_twenty_million_ones():
    """Beyond 2**24, float32 has no odd numbers: one added at a time is lost."""
    count = 20 * MILLION
    ones = np.ones((count, 1), np.float32)
    assert vr.Variable(ones).sum(axis=0).item() == count
    assert np.asarray(vr.sequence_pool(vr.create_lod_tensor(ones, [[count]]), "sum")).item() == count
    out = np.zeros((1, 1), np.float32)
    rows.scatter_add_rows(ones, np.zeros(count, int), out)
    assert out.item() == count


# The bound that `kernels.sums` promises, in either data type, over more and fewer rows than a block.

COUNTS = [0, 1, 3, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 5 * BLOCK + 7]


def numbers(seed, *shape, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return (rng.normal(size=shape) * 10.0 ** rng.integers(-6, 6, shape)).astype(dtype)


def assert_bounded(got, summands):
    """Assert that a sum of rows (n, features) is known to 49 roundings of the sum of magnitudes."""
    for value, column in zip(got, summands.astype(np.float64).T, strict=True):
        bound = (BLOCK + 1) * np.finfo(got.dtype).eps / 2 * math.fsum(np.abs(column))
        assert abs(float(value) - math.fsum(column)) <= bound


@pytest.mark.twins
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sums_keep_their_bound(device, dtype):
    x = numbers(0, sum(COUNTS), 3, dtype=dtype)
    offsets = np.append(0, np.cumsum(COUNTS))
    out = device.put(np.zeros((len(COUNTS), 3), dtype))
    pool.pool_sum(device.put(x), offsets, device.put(np.ones(len(COUNTS), dtype)), out)
    ids = np.random.default_rng(1).permutation(np.repeat(np.arange(len(COUNTS)), COUNTS))
    initial = numbers(2, len(COUNTS), 3, dtype=dtype)
    scattered = device.put(initial)
    rows.scatter_add_rows(device.put(x), ids, scattered)
    for i, (begin, end) in enumerate(itertools.pairwise(offsets)):
        assert_bounded(device.get(out)[i], x[begin:end])
        assert_bounded(device.get(scattered)[i], np.concatenate([initial[i : i + 1], x[ids == i]]))


def assert_known(got, summands, roundings):
    """Assert that a sum is known to some roundings of the sum of magnitudes."""
    right, magnitudes = math.fsum(summands), math.fsum(np.abs(summands))
    assert abs(float(got) - right) <= roundings * np.finfo(got.dtype).eps / 2 * magnitudes


PRODUCT_ROUNDINGS = 162  # of `x^T d`, 1e-5 in float32
# About a block of rows, and about one and two groups of blocks.
PRODUCT_COUNTS = [1, 127, 129, 4095, 4096, 4097, 8192, 8193, 20_000]


@pytest.mark.twins
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", PRODUCT_COUNTS)
def test_products_over_rows_keep_their_bound(device, count, dtype):
    """Of numbers of any size, and of a large one before small ones, each of which would be rounded off alone."""
    a, b = numbers(0, count, 3, dtype=dtype), numbers(1, count, 2, dtype=dtype)
    a[:, 0], a[0, 0], b[:, 0] = np.finfo(dtype).eps / 2, 1, 1
    got = device.get(row_sums.row_product(device.put(a), device.put(b)))
    assert got.dtype == dtype
    for i, j in itertools.product(range(3), range(2)):
        assert_known(got[i, j], a[:, i].astype(np.float64) * b[:, j], PRODUCT_ROUNDINGS)


@pytest.mark.parametrize("count", [10_000, MILLION])
def test_the_gradient_of_a_weight_does_not_drift(count):
    x = vr.Variable(tenths(count, 2))
    gradient = gradient_of(lambda weight: x @ weight, 2, 3)
    np.testing.assert_allclose(gradient, count * float(TENTH) ** 2, rtol=1e-5)


@pytest.mark.parametrize("count", [100, 4097, 20_000])
def test_products_over_rows_without_an_end(count):
    a, b = np.ones((count, 3), np.float32), np.ones((count, 1), np.float32)
    a[0] = np.inf, -np.inf, np.nan
    a[-1, 1] = np.inf
    np.testing.assert_array_equal(row_sums.row_product(a, b)[:, 0], [np.inf, np.nan, np.nan])


@pytest.mark.twins
def test_gradients_of_vectors_do_not_drift_over_steps(device):
    """The last step's is large, and each other one would be rounded off alone."""
    steps = 200

    @cell
    def scaled(a, /, *, v):
        return v * a.x

    x = device.put(np.append(np.full(steps - 1, 2.0**-24), 1).astype(np.float32)[:, None])
    of_x, of_h = np.ones((1, 1), np.float32), np.ones((0, 1), np.float32)
    zeros, none = np.zeros(1, np.float32), np.zeros(0, np.float32)
    weights = [device.put(w) for w in (of_x, of_h, zeros, none)]
    direction = recurrence.Direction(*weights, vectors=device.put(np.ones((1, 1), np.float32)))
    plan = sort_by_seq_len(np.array([0, steps]))
    y, _, kept = recurrence.forward(scaled, x, [direction], None, plan)
    d_y, d_last = device.put(np.ones((steps, 1), np.float32)), device.put(np.zeros((1, 1, 1, 1), np.float32))
    saved, arriving = recurrence.Saved(y, kept), recurrence.Arriving(d_y, d_last)
    _, (gradient,), _ = recurrence.backward(scaled, x, [direction], None, plan, saved, arriving)
    assert_known(device.get(gradient.vectors)[0, 0], device.get(x)[:, 0], BLOCK + 2)


@pytest.mark.twins
def test_twins_add_in_one_order(device):
    """In blocks of 48, one row after another, then the blocks' sums: on every device to the bit."""
    x = numbers(0, 2 * BLOCK + 5, 2)
    total, lost = np.zeros(2, np.float32), np.zeros(2, np.float32)
    for start in range(0, len(x), BLOCK):
        part = np.zeros(2, np.float32)
        for row in x[start : start + BLOCK]:
            part = part + row
        new = total + part
        rest = new - total
        lost = lost + ((total - (new - rest)) + (part - rest))
        total = new
    out, scattered = device.put(np.zeros((1, 2), np.float32)), device.put(np.zeros((1, 2), np.float32))
    pool.pool_sum(device.put(x), np.array([0, len(x)]), device.put(np.ones(1, np.float32)), out)
    rows.scatter_add_rows(device.put(x), np.zeros(len(x), int), scattered)
    assert device.get(out)[0].tolist() == device.get(scattered)[0].tolist() == (total + lost).tolist()


@pytest.mark.twins
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_sums_of_integers_are_exact(device, axis):
    """Beyond what float64 holds, and over several groups of blocks."""
    x = np.random.default_rng(0).integers(-(2**40), 2**40, (BLOCK**2 + 5, 3))
    x[0] = 2**62 + 1
    x[-1] = -(2**62)
    np.testing.assert_array_equal(device.get(reductions.sum_over(device.put(x), axis)), x.sum(axis))


@pytest.mark.twins
@pytest.mark.parametrize("first", [0, BLOCK + 1])
def test_sums_without_an_end(device, first):
    x = np.zeros((3 * BLOCK, 5), np.float32)
    x[first, [0, 2]], x[first, 1], x[first, 3] = np.inf, -np.inf, np.nan
    x[2 * BLOCK + 3, 2] = -np.inf
    x[::BLOCK, 4] = 3e38
    wanted = [np.inf, -np.inf, np.nan, np.nan, np.inf]
    out, scattered = device.put(np.zeros((1, 5), np.float32)), device.put(np.zeros((1, 5), np.float32))
    pool.pool_sum(device.put(x), np.array([0, len(x)]), device.put(np.ones(1, np.float32)), out)
    rows.scatter_add_rows(device.put(x), np.zeros(len(x), int), scattered)
    np.testing.assert_array_equal(device.get(out)[0], wanted)
    np.testing.assert_array_equal(device.get(scattered)[0], wanted)


# The laws of a batch.


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 100), max_size=6), st.randoms(use_true_random=False), st.sampled_from([1, 3, 20]))
def test_pooled_rows_do_not_depend_on_batch_mates(lengths, random, features):
    sequences = [numbers(seed, length, features) for seed, length in enumerate(lengths)]
    order = random.sample(range(len(lengths)), len(lengths))

    def pooled(chosen):
        data = np.concatenate([np.zeros((0, features), np.float32), *(sequences[i] for i in chosen)])
        return np.asarray(vr.sequence_pool(vr.create_lod_tensor(data, [[lengths[i] for i in chosen]]), "mean"))

    batch = pooled(range(len(lengths)))
    np.testing.assert_array_equal(pooled(order), batch[order])
    for i in range(len(lengths)):
        np.testing.assert_array_equal(pooled([i])[0], batch[i])


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from([0, 1, 2, 3, 5, 200, 65_535, 65_536]), max_size=400), st.sampled_from([1, 3, 20]))
def test_added_rows_do_not_depend_on_other_rows(ids, features):
    ids = np.array(ids, np.int64)
    values, out = numbers(0, len(ids), features), np.zeros((65_537, features), np.float32)
    rows.scatter_add_rows(values, ids, out)
    for row in np.unique(ids):
        alone = np.zeros((1, features), np.float32)
        rows.scatter_add_rows(values[ids == row], np.zeros(np.count_nonzero(ids == row), int), alone)
        np.testing.assert_array_equal(out[row], alone[0])
    assert not np.delete(out, ids, axis=0).any()
    sparse = vr.SelectedRows(ids, values, len(out))
    np.testing.assert_array_equal(sparse.to_dense(), out)
    np.testing.assert_array_equal(sparse.merge().value, out[np.unique(ids)])


@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_sums_do_not_depend_on_the_layout(axis):
    x = numbers(0, 70, 3, 50)
    wanted = np.asarray(vr.Variable(x).sum(axis=axis))
    spread = np.zeros((70, 6, 100), np.float32)
    spread[:, ::2, ::-2] = x
    for same in (np.asfortranarray(x), spread[:, ::2, ::-2], np.ascontiguousarray(x.transpose(1, 0, 2)).swapaxes(0, 1)):
        np.testing.assert_array_equal(np.asarray(vr.Variable(same).sum(axis=axis)), wanted)


def test_log_softmax_does_not_depend_on_the_layout():
    """Nor does its gradient: sums over a hundred thousand classes, which stand side by side or far apart."""
    x, d = numbers(0, 3, 100_000), numbers(1, 3, 100_000)
    results = []
    for layout in (np.ascontiguousarray, np.asfortranarray):
        logits = vr.Variable(layout(x), requires_grad=True)
        y = F.log_softmax(logits)
        y.backward(layout(d))
        results.append((np.asarray(y), logits.grad))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_sums_of_integers_wrap_as_ever():
    values, out = np.full((100, 1), 2**62), np.zeros((1, 1), int)
    rows.scatter_add_rows(values, np.zeros(100, int), out)
    assert out.item() == 0


@pytest.mark.parametrize("shape", [(4, 3, 5, 2), (4, 1, 5, 1), (0, 3), (3, 0), (3, 0, 2), (0,), (5,), ()])
def test_sums_over_axes(shape):
    x = np.random.default_rng(0).normal(size=shape)
    for axis in (None, *range(len(shape))):
        got, wanted = reductions.sum_over(x, axis), x.sum(axis=axis)
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    "shape", [(), (1,), (2,), (5, 1), (1, 2), (1, 1), (3, 1, 2), (1, 5, 1), (4, 1, 1, 2), (4, 3, 5, 2)]
)
def test_gradients_of_what_was_broadcast(shape):
    x = vr.Variable(np.zeros(shape), requires_grad=True)
    d = np.random.default_rng(0).normal(size=(4, 3, 5, 2))
    (x + np.zeros(d.shape)).backward(d)
    stretched = [axis for axis, size in enumerate((1,) * (4 - len(shape)) + shape) if size == 1]
    np.testing.assert_allclose(x.grad, d.sum(axis=tuple(stretched)).reshape(shape), rtol=0, atol=1e-13)


INDICES = {
    "rows": np.array([3, 0, 3, -1]),
    "rows of any shape": np.array([[3, 0], [3, -1]]),
    "no rows": np.array([], int),
    "elements": (np.array([3, 0, 3]), np.array([1, 1, 1]), np.array([[0], [4]])),
    "elements beside a slice": (np.array([3, 0, 3]), slice(1, None), np.array([0, 0, 0])),
    "columns": (Ellipsis, np.array([4, 4])),
    "a new axis": (np.array([3, 3]), None, slice(None, None, 2)),
    "a number and rows": (2, np.array([1, 1])),
    "a mask": np.arange(12).reshape(4, 3) % 2 == 0,
    "a mask and columns": (np.array([False, True, False, False]), np.array([2, 2])),
    "one number of an array": np.array(2),
    "true": True,
    "false": np.array(False),
    "slices": (slice(1, 3), slice(None, None, -2)),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("name", INDICES)
def test_gradients_of_an_index(name, dtype):
    x, index = vr.Variable(np.zeros((4, 3, 5), dtype), requires_grad=True), INDICES[name]
    y = x[index]
    d = np.random.default_rng(0).integers(-9, 9, y.shape).astype(dtype)
    y.backward(d)
    wanted = np.zeros(x.shape)
    np.add.at(wanted, index, d)
    assert x.grad.dtype == dtype
    np.testing.assert_array_equal(x.grad, wanted)


def test_the_norm_of_gradients_needs_no_copy_in_float64():
    p = vr.nn.Parameter(np.zeros(2**20, np.float32))
    p.grad = np.ones(2**20, np.float32)
    vr.optim.clip_grad_norm_([p], 1e9)
    tracemalloc.start()
    norm = vr.optim.clip_grad_norm_([p], 1e9)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert norm == 2.0**10
    assert peak < p.grad.nbytes
