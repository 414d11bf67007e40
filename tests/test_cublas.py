"""Products by cuBLAS: the calls that CuPy would get, executed by a stand-in with cuBLAS's column-major matrices."""

import contextlib
import ctypes
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import varlen_rnn as vr
from tests.emulated.device import MARKS, Driver
from tests.emulated.ledger import LAUNCH, totals
from varlen_rnn.products import gemm
from varlen_rnn.runtime import cublas, cuda
from varlen_rnn.runtime.device import to_device

pytestmark = MARKS
HANDLE, REAL = 7777, 0


def numbers_at(address, count, dtype=np.float32):
    """Return an array over memory."""
    memory = (ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(address)
    return np.frombuffer(memory, dtype)


def column_major(address, rows, columns, leading):
    """Return a column-major matrix: neighbours in a row are `leading` numbers apart."""
    assert leading >= max(1, rows), "cuBLAS refuses it"
    numbers = numbers_at(address, leading * (columns - 1) + rows)
    return np.lib.stride_tricks.as_strided(numbers, (rows, columns), (4, 4 * leading))


class Library:
    """`cupy_backends.cuda.libs.cublas` of CuPy 14: its names, its order of arguments, and cuBLAS's meaning of them."""

    CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_GEMM_DEFAULT = 0, 1, 77, -1

    def __init__(self, streams):
        self.streams, self.calls = streams, 0

    def gemmEx(
        self, handle, transa, transb, m, n, k, alpha, A, Atype, lda, B, Btype, ldb, beta, C, Ctype, ldc,
        computeType, algo,
    ):  # fmt: skip
        assert self.streams == ["null"], "on the stream of all launches"
        assert (handle, Atype, Btype, Ctype) == (HANDLE, REAL, REAL, REAL)
        assert (computeType, algo) == (self.CUBLAS_COMPUTE_32F_FAST_TF32, self.CUBLAS_GEMM_DEFAULT)
        assert all(type(number) is int for number in (m, n, k, lda, ldb, ldc, alpha, A, B, beta, C))
        (alpha,), (beta,) = numbers_at(alpha, 1), numbers_at(beta, 1)
        a = column_major(A, k, m, lda).T if transa else column_major(A, m, k, lda)
        b = column_major(B, n, k, ldb).T if transb else column_major(B, k, n, ldb)
        c = column_major(C, m, n, ldc)
        found = alpha * (tf32(a).astype(float) @ tf32(b).astype(float))
        c[:] = found if beta == 0 else found + beta * c  # without beta, cuBLAS does not read c
        self.calls += 1


def tf32(numbers):
    """Return numbers rounded to 10 bits behind the binary point."""
    mantissa, exponent = np.frexp(numbers)
    return np.ldexp(np.round(mantissa * 2**11) / 2**11, exponent)


@pytest.fixture
def library(monkeypatch):
    """Return the stand-in, in the place where the driver finds cuBLAS, with the precision "tf32"."""
    streams = []

    @contextlib.contextmanager
    def null():
        streams.append("null")
        yield
        streams.pop()

    class Streams:
        null = property(lambda self: null())

    device = SimpleNamespace(get_cublas_handle=lambda: HANDLE)
    runtime = SimpleNamespace(CUDA_R_32F=REAL)
    found = Library(streams)
    driver = Driver()
    driver.cublas = cublas.Cublas(
        SimpleNamespace(cuda=SimpleNamespace(Stream=Streams(), device=device, runtime=runtime)), found
    )
    monkeypatch.setattr(cuda, "driver", driver)
    vr.set_float32_matmul_precision("tf32")
    yield found
    vr.set_float32_matmul_precision("fp32")


def drawn(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


SIZES = [(5, 3, 4), (1, 1, 1), (1, 6, 2), (7, 1, 3), (4, 5, 1), (33, 17, 20)]  # rows, depth, columns
HOW = [(False, False), (True, False), (False, True)]  # a bias, accumulate


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("biased", "accumulate"), HOW)
def test_products_on_windows(size, transposed, biased, accumulate, library):
    rows, depth, columns = size
    a, c, bias = drawn(0, rows, depth + 3), drawn(1, rows, columns + 4), drawn(2, columns)
    weight = drawn(3, columns, depth) if transposed else drawn(3, depth, columns)
    right = c.astype(float)
    right[:, 3:-1] = accumulate * right[:, 3:-1] + tf32(a[:, 2:-1]).astype(float) @ tf32(
        weight.T if transposed else weight
    )
    right[:, 3:-1] += biased * bias
    on = [to_device(array) for array in (a, weight, c)]
    more = {"bias": to_device(bias) if biased else None, "accumulate": accumulate, "transposed": transposed}
    gemm.product(*on, a_column=2, c_column=3, **more)
    np.testing.assert_allclose(on[2].copy_to_host(), right, rtol=0, atol=2e-6 * depth)
    assert library.calls == 1
    assert np.array_equal(on[0].copy_to_host(), a)
    assert np.array_equal(on[1].copy_to_host(), weight)


@pytest.mark.parametrize("biased", [False, True])
def test_new_memory_is_not_read(biased, library):
    a, weight, bias = drawn(0, 4, 3), drawn(1, 3, 2), drawn(2, 2)
    c = to_device(np.full((4, 2), np.nan, np.float32))
    gemm.product(to_device(a), to_device(weight), c, bias=to_device(bias) if biased else None)
    np.testing.assert_allclose(c.copy_to_host(), tf32(a) @ tf32(weight) + biased * bias, rtol=0, atol=1e-5)
    assert library.calls == 1


@pytest.mark.parametrize("size", [(0, 3, 4), (5, 0, 4), (5, 3, 0), (0, 0, 0)])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("biased", "accumulate"), HOW)
def test_empty_products_are_no_calls(size, transposed, biased, accumulate, library):
    rows, depth, columns = size
    c, bias = drawn(1, rows, columns), drawn(2, columns)
    weight = np.zeros((columns, depth) if transposed else (depth, columns), np.float32)
    on = to_device(np.zeros((rows, depth), np.float32)), to_device(weight), to_device(c)
    more = {"bias": to_device(bias) if biased else None, "accumulate": accumulate, "transposed": transposed}
    gemm.product(*on, **more)
    assert np.array_equal(on[2].copy_to_host(), c if accumulate else np.zeros_like(c) + biased * bias)
    assert library.calls == 0


def test_float64_fp32_and_other_layouts_stay_with_the_kernel(library):
    for dtype, precision, order in [(np.float64, "tf32", "C"), (np.float32, "fp32", "C"), (np.float32, "tf32", "F")]:
        vr.set_float32_matmul_precision(precision)
        a, weight = drawn(0, 4, 3, dtype=dtype), drawn(1, 3, 2, dtype=dtype)
        on, c = to_device(a), to_device(np.zeros((4, 2), dtype))
        on = to_device(np.ascontiguousarray(a.T)).T if order == "F" else on
        gemm.product(on, to_device(weight), c)
        np.testing.assert_allclose(c.copy_to_host(), a @ weight, rtol=1e-5)
    assert library.calls == 0


def test_without_cublas_the_kernel_computes(library):
    del cuda.driver.cublas
    assert cuda.driver.cublas is None
    a, weight = drawn(0, 4, 3), drawn(1, 3, 2)
    c, before = to_device(np.zeros((4, 2), np.float32)), totals()[LAUNCH]
    gemm.product(to_device(a), to_device(weight), c)
    np.testing.assert_allclose(c.copy_to_host(), a @ weight, rtol=1e-5)
    assert totals()[LAUNCH] == before + 1


def test_a_layer_trains_with_it(library):
    results = []
    for precision in ("tf32", "fp32"):
        vr.set_float32_matmul_precision(precision)
        vr.manual_seed(0)
        layer = vr.nn.LSTM(3, 4, bidirectional=True).to("cuda")
        x = vr.Variable(vr.create_lod_tensor(drawn(0, 6, 3), [[2, 4]]).to("cuda"), requires_grad=True)
        y = layer(x)[0]
        y.sum().backward()
        results.append([y.detach().cpu().numpy(), vr.Variable(x.grad).cpu().numpy()])
        assert library.calls == 4, "inputs of two directions, and their gradients"
    for ours, right in zip(*results, strict=True):
        np.testing.assert_allclose(ours, right, rtol=0, atol=5e-3)
        assert not np.array_equal(ours, right), "TF32 rounds"


def test_cublas_is_found_through_cupy(monkeypatch):
    assert (cublas.find() is None) == (not is_installed())
    library = SimpleNamespace()
    for name, module in {
        "cupy": SimpleNamespace(),
        "cupy_backends": SimpleNamespace(),
        "cupy_backends.cuda": SimpleNamespace(),
        "cupy_backends.cuda.libs": SimpleNamespace(cublas=library),
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert cublas.find()._library is library
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs", SimpleNamespace())  # CuPy without its library
    assert cublas.find() is None


def is_installed():
    try:
        from cupy_backends.cuda.libs import cublas as library
    except ImportError:
        return False
    return library is not None
