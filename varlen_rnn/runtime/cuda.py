"""All that this package uses of CUDA: declare and launch kernels, allocate and copy memory of a device.

Kernels use names of this module as they would use names of `numba.cuda`:

    @cuda_kernel
    def double_cuda(x, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = x[i] + x[i]

`numba.cuda` is imported at the first launch or allocation, because most programs run on the CPU alone.  The package
numba-cuda replaces Numba's own `numba.cuda` where it is installed: `pip install numba-cuda[cu13]`.
"""

import functools
import importlib.util
import sys
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from varlen_rnn.errors import InputError
from varlen_rnn.runtime import cublas
from varlen_rnn.runtime.device_memory import Block, Memory, Pool
from varlen_rnn.runtime.parameters import Parameters, types_of

_STREAM = 0  # the default stream, in which all launches and copies run


def grid(ndim: int) -> int:
    """Return the number of a thread in its launch; inside a kernel this is `numba.cuda.grid`."""
    raise InputError("cuda.grid", expected="a call inside a CUDA kernel", got="a call from Python")


@functools.cache
def numba_cuda() -> Any:
    """Return numba-cuda's module `numba.cuda`; Numba's own does not support current versions of CUDA."""
    if importlib.util.find_spec("numba_cuda") is None:
        hint = "pip install numba-cuda[cu13], or numba-cuda[cu12]"
        raise InputError("CUDA", expected="the package numba-cuda", got="an installation without it", hint=hint)
    from numba import cuda

    return cuda


@functools.cache
def _check_gpu() -> None:
    if not numba_cuda().is_available():
        got, hint = numba_cuda().cuda_error() or "no GPU", "nvidia-smi lists the GPUs of this machine"
        raise InputError("CUDA", expected="a GPU that numba-cuda finds", got=got, hint=hint)


def _bindings() -> Any:
    """Return the module with the driver's functions; numba-cuda depends on it, but wraps only some of the functions."""
    from cuda.bindings import driver

    return driver


def _call(name: str, *arguments: Any) -> Any:
    """Call a function of the driver; return its result, or None, or raise an InputError with the error it reports."""
    error, *results = getattr(_bindings(), name)(*arguments)
    if error:
        raise InputError(f"CUDA driver, {name}", expected="a call that succeeds", got=str(error))
    return results[0] if results else None


class Kernel:
    """A CUDA kernel: `kernel[blocks, threads](*arguments)` launches it, compiled for the types of the arguments."""

    def __init__(self, py_func: Any):
        self.py_func: FunctionType = py_func  # the function that each thread runs
        self.__name__, self.__module__, self.__doc__ = py_func.__name__, py_func.__module__, py_func.__doc__

    def __getitem__(self, configuration: tuple[int, int]) -> Any:
        return functools.partial(driver.launch, self, *configuration)

    @functools.cached_property
    def source(self) -> FunctionType:
        """The function for the compiler: its globals have `numba.cuda` in place of this module."""
        function, here = self.py_func, sys.modules[__name__]
        names = {name: numba_cuda() if value is here else value for name, value in function.__globals__.items()}
        return FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)

    @functools.cached_property
    def dispatcher(self) -> Any:
        """Numba's object that compiles the kernel for a GPU."""
        return numba_cuda().jit(self.source)


class Limits(NamedTuple):
    """Limits of a GPU: compute capability, number of multiprocessors, and most shared memory of a block in bytes."""

    capability: tuple[int, int]
    multiprocessors: int
    shared: int


class Driver:
    """Memory and launches on the GPU that numba-cuda chooses; tests put another driver in its place.

    Addresses are addresses on the device, sizes are in bytes, and arrays are C-contiguous arrays of NumPy.
    """

    def __init__(self) -> None:
        self.uploads: dict[Any, Any] = {}  # copies of small host arrays: see `device.beside`
        self._functions: dict[Any, Any] = {}
        self._pool = Pool(self.allocate, self.uploads.clear)

    @functools.cached_property
    def cublas(self) -> cublas.Cublas | None:
        """A Cublas, or None if CuPy or its cuBLAS is not installed."""
        return cublas.find()

    def memory(self, size: int) -> Memory:
        """Return `size` bytes of uninitialised memory, from the pool if it has some."""
        return self._pool.lend(size)

    def allocate(self, size: int) -> Block:
        """Allocate a new Block of `size` bytes."""
        _check_gpu()
        owner = numba_cuda().device_array(size, np.uint8)
        return Block(owner.__cuda_array_interface__["data"][0], size, owner)

    def copy_to_device(self, address: int, array: np.ndarray) -> None:
        """Copy an array of the host to an address on the device."""
        _bytes_at(address, array.nbytes).copy_to_device(array.reshape(-1).view(np.uint8))

    def copy_to_host(self, array: np.ndarray, address: int) -> None:
        """Wait for all launches; then overwrite an array of the host by memory of the device."""
        _bytes_at(address, array.nbytes).copy_to_host(array.reshape(-1).view(np.uint8))

    def copy(self, address: int, source: int, size: int) -> None:
        """Copy memory on the device; source and target must not overlap."""
        _bytes_at(address, size).copy_to_device(_bytes_at(source, size))

    def clear(self, address: int, size: int) -> None:
        """Set memory on the device to zeros."""
        _call("cuMemsetD8", address, 0, size)

    def synchronize(self) -> None:
        """Wait until all launches and copies are finished."""
        numba_cuda().synchronize()

    @functools.cached_property
    def limits(self) -> Limits:
        """The Limits of the GPU."""
        device = numba_cuda().get_current_device()
        shared = device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        return Limits(device.compute_capability, device.MULTIPROCESSOR_COUNT, shared)

    def function(self, kernel: Kernel, parameters: Parameters) -> Any:
        """Return the code of a kernel for kinds of parameters, compiled once; make this thread ready for launches."""
        _check_gpu()
        numba_cuda().current_context()  # gives this thread a context, which it needs before its first launch
        key = kernel, parameters.kinds
        found = self._functions.get(key)
        if found is None:
            found = self._functions[key] = self.compile(kernel, parameters.kinds)
        return found

    def compile(self, kernel: Kernel, kinds: tuple[Any, ...]) -> Any:
        """Compile a kernel for kinds of parameters; return the code that `run` takes."""
        handle = kernel.dispatcher.compile(types_of(kinds))._codelibrary.get_cufunc().handle
        return _call("cuKernelGetFunction", handle)

    def run(
        self, function: Any, blocks: int, threads: int, parameters: Parameters, shared: int = 0, together: bool = False
    ) -> None:
        """Run a kernel; each block has `threads` threads and `shared` bytes of dynamic shared memory.

        If `together`, all blocks run at once, so that they can wait for one another; the driver refuses too many
        blocks.
        """
        size = (blocks, 1, 1, threads, 1, 1, shared, _STREAM)
        if not together:
            _call("cuLaunchKernel", function, *size, parameters.address, 0)
            return
        most = _bindings().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _call("cuFuncSetAttribute", function, most, shared)  # without this call, a block gets at most 48 KiB
        _call("cuLaunchCooperativeKernel", function, *size, parameters.address)

    def launch(self, kernel: Kernel, blocks: int, threads: int, *arguments: Any, **options: Any) -> None:
        """Run a kernel on its arguments, with the options of `run`."""
        parameters = Parameters(arguments)
        self.run(self.function(kernel, parameters), blocks, threads, parameters, **options)


driver = Driver()


def _bytes_at(address: int, size: int) -> Any:
    about = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}
    return numba_cuda().from_cuda_array_interface(about, sync=False)


def is_device_array(array: Any) -> bool:
    """Return whether an array lives on a device."""
    return getattr(array, "__cuda_ndarray__", False)
