"""Launches pack their arguments as numba-cuda does, and the driver of CUDA reads them from there."""

from types import SimpleNamespace

import numpy as np
import pytest

import varlen_rnn as vr
from tests.emulated.device import MARKS
from tests.emulated.driver_calls import Binding, OnHost, numba_packs, replace_driver
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import Prepared, launch, to_device
from varlen_rnn.runtime.parameters import Parameters

pytestmark = MARKS


@cuda.Kernel
def axpy_cuda(first, a, x, is_negative, pairs, out):
    i = cuda.grid(1) + first
    if i < out.size:
        y, z = pairs
        out[i] = (-a if is_negative else a) * x[i] + y[i] - z


@cuda.Kernel
def blocks_cuda(first, out):
    memory = cuda.shared.array(0, np.int64)
    if cuda.threadIdx.x == 0:
        memory[cuda.blockDim.x - 1] = cuda.gridDim.x + first
    cuda.syncthreads()
    out[cuda.grid(1)] = memory[cuda.blockDim.x - 1]


@pytest.fixture
def binding(monkeypatch):
    """Put the driver of the package, on the stand-in for CUDA's calls, in the place of a GPU."""
    found = Binding()
    replace_driver(monkeypatch.setattr, found, OnHost())
    return found


def operands(dtype=np.float32):
    rng = np.random.default_rng(0)
    wide = rng.standard_normal((5, 7)).astype(dtype)
    return wide, to_device(wide), to_device(np.zeros(5, dtype))


def test_a_launch_reads_numbers_tuples_and_strided_arrays(binding):
    host, x, out = operands()
    launch(axpy_cuda, 5, 0, np.float32(1.5), x[:, 2], True, (x[:, 4], np.float32(0.25)), out)
    np.testing.assert_array_equal(out.copy_to_host(), np.float32(-1.5) * host[:, 2] + host[:, 4] - np.float32(0.25))
    host, x, out = operands(np.float64)
    launch(axpy_cuda, 5, 0, 1.5, x[:, 2], False, (x[:, 4], 1), out)
    np.testing.assert_allclose(out.copy_to_host(), 1.5 * host[:, 2] + host[:, 4] - 1, rtol=1e-15)
    assert binding.calls == ["context", (1, 128, 0)] * 2


def test_an_array_of_another_library_is_an_argument(binding):
    host, x, out = operands()
    theirs = SimpleNamespace(__cuda_array_interface__=x[:, 2].__cuda_array_interface__)
    axpy_cuda[1, 32](2, np.float32(1), theirs, False, (x[:, 4], np.float32(0)), out)
    np.testing.assert_array_equal(out.copy_to_host()[2:], host[2:, 2] + host[2:, 4])


def test_a_prepared_launch_replaces_the_first_arguments_alone(binding):
    host, x, out = operands()
    prepared = Prepared(axpy_cuda, 0, np.float32(1), x[:, 0], False, (x[:, 1], np.float32(0)), out)
    prepared.launch(0, 0)
    for first in (4, 2):
        prepared.launch(5, first)
        wanted = host[:, 0] + host[:, 1]
        wanted[:first] = 0
        np.testing.assert_array_equal(out.copy_to_host(), wanted)
    assert binding.calls == ["context", (1, 128, 0), (1, 128, 0)]


def test_blocks_that_run_together_have_their_shared_memory(binding):
    out = to_device(np.zeros(4 * 32, np.int64))
    cuda.driver.launch(blocks_cuda, 4, 32, 3, out, shared=256, together=True)
    assert binding.calls[-2:] == [("most shared memory", 256), (4, 32, 256)]
    np.testing.assert_array_equal(out.copy_to_host(), 7)


def test_an_error_of_the_driver_names_the_call(binding):
    _, x, out = operands()
    binding.error = 700
    with pytest.raises(vr.InputError, match=r"cuLaunchKernel: expected .* got 700"):
        launch(axpy_cuda, 5, 0, np.float32(1), x[:, 2], True, (x[:, 4], np.float32(0)), out)


def test_other_arguments_are_errors():
    for wrong in ([1.0], "1", np.zeros(3), None, (1, np.zeros(3))):
        with pytest.raises(vr.DTypeError, match="argument of a CUDA kernel: expected arrays on a CUDA device"):
            Parameters((wrong,))


# What numba-cuda and CUDA do, of the installed versions.


def packed_by_numba(arguments, kinds):
    """Return the numbers that numba-cuda passes for arguments, as integers of the same bytes."""
    found = numba_packs(arguments, kinds)()
    return [int(value) if isinstance(value, int) else int.from_bytes(bytes(value), "little") for value in found]


def test_numbers_are_those_of_numba_cuda(binding):
    _, x, out = operands()
    arguments = (3, -4, x, x.T, x[1:, ::2], True, (False, 0.1, (out,)), np.float64(-2))
    found = Parameters(arguments)
    assert [number % 2**64 for number in found.numbers] == [
        number % 2**64 for number in packed_by_numba(arguments, found.kinds)
    ]


@pytest.mark.parametrize("letter", "bhilqBHILQefd")
def test_a_number_of_numpy_has_the_bytes_that_numba_cuda_passes(letter):
    kind = np.dtype(letter)
    for number in (3, -4) if kind.kind != "u" else (3, 2 ** (8 * kind.itemsize) - 1):
        found = Parameters((kind.type(number),))
        (wanted,) = packed_by_numba(found.arguments, found.kinds)
        size = 2 ** (8 * kind.itemsize)  # a kernel reads as many bytes
        assert found.numbers[0] % size == wanted % size


@pytest.mark.parametrize(
    "name", ["cuKernelGetFunction", "cuFuncSetAttribute", "cuLaunchKernel", "cuLaunchCooperativeKernel"]
)
def test_the_calls_have_as_many_arguments_as_those_of_cuda(name):
    from cuda.bindings import driver

    of_cuda = getattr(driver, name).__doc__.partition(")")[0].partition("(")[2].split(",")
    ours = getattr(Binding, name).__code__
    assert ours.co_argcount - 1 == len(of_cuda)
