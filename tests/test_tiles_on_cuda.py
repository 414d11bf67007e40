"""Products on CUDA: tiles of any shape at any edge, one order of additions, and barriers that are all needed."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from numba import types

from tests.emulated.device import MARKS, Driver
from tests.emulated.mutants import mutants, survivors
from tests.emulated.sources import ptx_of
from tests.gpu_model import OTHERS, UNROLLED
from varlen_rnn.kernels.sums import BLOCK
from varlen_rnn.products import gemm, row_sums, tile_cuda
from varlen_rnn.products.tile_cuda import LARGE, SMALL, THREADS, WIDE
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.cuda import Limits
from varlen_rnn.runtime.device import to_device

by_number = pytest.mark.parametrize("dtype", [np.float32, np.float64])
by_tile = pytest.mark.parametrize("tile", [LARGE, SMALL], ids=["large", "small"])


def emulated(test):
    """Mark a test that needs the emulated device, not only a device of the fixture."""
    for mark in MARKS:
        test = mark(test)
    return test


def drawn(seed, *shape, dtype=np.float64):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def close(got, right, dtype):
    """Assert that sums agree, relative to the largest of them."""
    tolerance = 1e-12 if dtype == np.float64 else 1e-5
    np.testing.assert_allclose(got, right, rtol=0, atol=tolerance * max(1.0, np.abs(right).max(initial=0)))


# Rows, depth and columns: at the edges of both tiles and of a stage, and nothing of each.
SIZES = [
    (1, 1, 1), (1, 20, 70), (31, 15, 33), (32, 16, 32), (33, 17, 31), (64, 32, 64), (65, 33, 63), (70, 48, 1),
    (0, 3, 4), (5, 0, 66), (67, 3, 0),
]  # fmt: skip


@pytest.mark.twins
@by_number
@by_tile
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_a_product_is_that_of_numpy(device, size, tile, dtype, monkeypatch):
    """All that is not in the window of `c` stays as it was, and what is beside the window of `a` is not read."""
    monkeypatch.setattr(gemm, "tile_for", lambda rows, columns: tile)
    rows, depth, columns = size
    a, c, bias = (
        drawn(seed, *shape, dtype=dtype)
        for seed, shape in enumerate([(rows, depth + 3), (rows, columns + 4), (columns,)])
    )
    a[:, :2] = a[:, -1] = np.nan
    weight = drawn(3, depth, columns, dtype=dtype)
    for transposed in (False, True):
        operand = device.put(np.ascontiguousarray(weight.T) if transposed else weight)
        for used, accumulate in [(bias, False), (None, False), (None, True)]:
            right = c.astype(float)
            right[:, 3:-1] = (
                accumulate * right[:, 3:-1] + a[:, 2:-1].astype(float) @ weight + (0 if used is None else used)
            )
            out, given = device.put(c), None if used is None else device.put(used)
            windows = {"a_column": 2, "c_column": 3, "accumulate": accumulate, "transposed": transposed}
            gemm.product(device.put(a), operand, out, bias=given, **windows)
            close(device.get(out), right, dtype)
            assert (device.get(out)[:, [0, 1, 2, -1]] == c[:, [0, 1, 2, -1]]).all()


@pytest.mark.twins
@by_number
def test_a_product_has_the_same_bits_whatever_is_beside_it(device, dtype, monkeypatch):
    a, weight, bias = drawn(0, 70, 37, dtype=dtype), drawn(1, 37, 66, dtype=dtype), drawn(2, 66, dtype=dtype)

    def product(a, weight, bias):
        c = device.put(np.zeros((len(a), weight.shape[1]), dtype))
        gemm.product(device.put(a), device.put(weight), c, bias=device.put(bias))
        return device.get(c)

    monkeypatch.setattr(gemm, "tile_for", lambda rows, columns: LARGE)
    whole = product(a, weight, bias)
    monkeypatch.setattr(gemm, "tile_for", lambda rows, columns: SMALL)
    np.testing.assert_array_equal(product(a, weight, bias), whole)
    for row in (0, 33, 69):
        np.testing.assert_array_equal(product(a[row : row + 1], weight, bias), whole[row : row + 1])
    np.testing.assert_array_equal(product(a[5:9], weight[:, 40:43], bias[40:43]), whole[5:9, 40:43])


# Rows, columns of both factors: at the edges of a tile, a block of rows and a slice of them.
SUMS = [(1, 1, 1), (BLOCK, 64, 32), (BLOCK + 1, 65, 33), (17, 130, 3), (0, 5, 6), (3, 0, 6), (3, 5, 0), (2100, 3, 2)]


@pytest.mark.twins
@by_number
@pytest.mark.parametrize("size", SUMS, ids=str)
def test_a_sum_over_rows_is_that_of_numpy(device, size, dtype):
    """Rows of a factor are listed, some of them in its own initial rows; rows of the result are dealt out."""
    rows, width, columns = size
    a, b, initial = (
        drawn(0, rows, width + 3, dtype=dtype),
        drawn(1, rows, columns + 2, dtype=dtype),
        drawn(2, 2, columns, dtype=dtype),
    )
    listed, targets = (
        np.random.default_rng(3).integers(-2, max(1, rows), rows),
        np.random.default_rng(4).permutation(width),
    )
    chosen = np.array([b[row, 1:-1] if row >= 0 else initial[-1 - row] for row in listed]).reshape(rows, columns)
    right = a[:, 2:-1].astype(float).T @ chosen
    factor = row_sums.Factor(2, 2 + width, device.put(b), 1, columns, device.put(initial), listed, targets)
    nothing = row_sums.Factor(0, 0, device.put(b), 0, 0, device.put(b[:0]), row_sums.ALL_ROWS)
    close(device.get(row_sums.row_products(device.put(a), factor, nothing)[0])[targets], right, dtype)
    close(device.get(row_sums.row_product(device.put(a), device.put(b))), a.astype(float).T @ b, dtype)


@pytest.mark.twins
@by_number
def test_a_sum_over_rows_has_the_same_bits_whatever_is_beside_it(device, dtype):
    a, b = drawn(0, 2100, 70, dtype=dtype)[:, :67].copy(), drawn(1, 2100, 3, dtype=dtype)
    whole = device.get(row_sums.row_product(device.put(a), device.put(b)))
    part = device.get(row_sums.row_product(device.put(a[:, 60:67].copy()), device.put(b[:, 1:].copy())))
    np.testing.assert_array_equal(part, whole[60:, 1:])


@emulated
def test_operands_of_other_layouts_are_copied(monkeypatch):
    monkeypatch.setattr(cuda, "driver", Driver())
    a, b = drawn(0, 5, 70), drawn(1, 70, 40)
    turned_a, turned_b, c = to_device(a.T.copy()).T, to_device(b.T.copy()).T, to_device(np.zeros((5, 40)))
    gemm.product(turned_a, turned_b, c)
    close(c.copy_to_host(), a @ b, np.float64)
    close(row_sums.row_product(turned_b, turned_b).copy_to_host(), b.T @ b, np.float64)


@pytest.mark.parametrize(
    ("rows", "columns", "tile"),
    [
        (6400, 2048, LARGE),
        (1, 2048, SMALL),
        (6400, 10, SMALL),
        (64, 2048, SMALL),
        (64, 64 * 2 * 132, LARGE),
        (640, 640, SMALL),
    ],
)
def test_a_large_tile_needs_work_for_all_schedulers(rows, columns, tile, monkeypatch):
    monkeypatch.setattr(cuda, "driver", SimpleNamespace(limits=Limits((9, 0), multiprocessors=132, shared=227 * 1024)))
    assert tile_cuda.tile_for(rows, columns) == tile


def arrays(kind, *axes):
    return [types.Array(kind, n, "C") for n in axes]


def ptx_of_product(tile):
    matrix, vector = arrays(types.float32, 2, 1)
    numbers, flag = [types.int64] * 2, types.boolean
    signature = matrix, *numbers, matrix, flag, vector, matrix, *numbers, flag
    return ptx_of(gemm.product_kernel(tile).source, signature)


def ptx_of_row_product():
    (matrix, cube), (listed,), number = arrays(types.float32, 2, 3), arrays(types.int64, 1), types.int64
    signature = matrix, number, matrix, number, matrix, listed, listed, number, cube
    return ptx_of(row_sums.row_product_kernel().source, signature)


@emulated
@pytest.mark.parametrize("transposed", [False, True])
@by_tile
def test_each_barrier_of_a_product_is_needed(tile, transposed):
    rows, depth, columns = tile.rows + 3, 19, tile.columns - 1  # two stages
    a, weight = drawn(0, rows, depth, dtype=np.float32), drawn(1, depth, columns, dtype=np.float32)
    operand, bias = np.ascontiguousarray(weight.T) if transposed else weight, np.zeros(columns, np.float32)

    def run(kernel, schedule):
        c = np.zeros((rows, columns), np.float32)
        arguments = [a, 0, depth, operand, transposed, bias, c, 0, columns, False]
        kernel.launch((tile.count(rows, columns),), (THREADS,), arguments, schedule=schedule)
        close(c, a.astype(float) @ weight, np.float32)

    ptx = ptx_of_product(tile)
    assert len(mutants(ptx)) == 2
    assert survivors(ptx, run) == []


@emulated
def test_each_barrier_of_a_sum_over_rows_is_needed():
    rows, width, columns = 3 * BLOCK, WIDE.rows + 1, WIDE.columns - 1
    a, b = drawn(0, rows, width, dtype=np.float32), drawn(1, rows, columns, dtype=np.float32)
    none, listed = np.zeros((0, 0), np.float32), np.zeros(0, np.int64)

    def run(kernel, schedule):
        c = np.zeros((2, width, columns), np.float32)
        arguments = [a, 0, b, 0, none, listed, listed, 2 * BLOCK, c]
        kernel.launch((2 * WIDE.count(width, columns),), (THREADS,), arguments, schedule=schedule)
        close(c.sum(axis=0), a.astype(float).T @ b, np.float32)

    ptx = ptx_of_row_product()
    assert len(mutants(ptx)) == 2
    assert survivors(ptx, run) == []


@emulated
@by_tile
def test_the_loop_of_a_product_has_the_instructions_of_the_model(tile):
    loops = re.split(r"\$L__\w+:", ptx_of_product(tile))
    unrolled = max((text.partition("bra")[0] for text in loops), key=lambda text: text.count("fma.rn.f32"))
    multiply_adds = UNROLLED * tile.own[0] * tile.own[1]
    assert unrolled.count("fma.rn.f32") == multiply_adds
    assert unrolled.count(";") + 1 - multiply_adds <= OTHERS[tile]


@emulated
@pytest.mark.parametrize("tile", [LARGE, SMALL, WIDE], ids=["large", "small", "wide"])
def test_operands_are_loads_of_16_bytes(tile):
    """As the model of `docs/gpu_figures.md` counts them."""
    ptx = ptx_of_row_product() if tile is WIDE else ptx_of_product(tile)
    wide, single = len(re.findall(r"ld\.shared\.v4\.f32", ptx)), len(re.findall(r"ld\.shared\.f32", ptx))
    products = len(re.findall(r"fma\.rn\.f32", ptx))
    assert (wide * tile.own[0] * tile.own[1], single) == (products * (tile.below + tile.beside), 0)
