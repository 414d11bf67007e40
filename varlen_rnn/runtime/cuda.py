"""All that this package asks of CUDA: declare kernels, launch them, make arrays on a device.

Kernels name this module, as they would name `numba.cuda`:

    @cuda_kernel
    def double_cuda(x, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = x[i] + x[i]

`numba.cuda` is imported at the first launch or array, because most programs run on the CPU alone.  The package
numba-cuda replaces Numba's own `numba.cuda` where it is installed: `pip install numba-cuda[cu13]`.
"""

import functools
import sys
from types import FunctionType
from typing import Any

from varlen_rnn.errors import InputError


def grid(ndim: int) -> int:
    """Return the number of a thread in its launch; inside a kernel this is `numba.cuda.grid`."""
    raise InputError("grid", expected="a call inside a CUDA kernel", got="a call from Python")


def numba_cuda() -> Any:
    """Return the module `numba.cuda`."""
    try:
        from numba import cuda
    except ImportError as error:
        raise InputError(
            "CUDA",
            expected="the package numba-cuda",
            got=str(error),
            hint="pip install numba-cuda[cu13], or numba-cuda[cu12]",
        ) from error
    return cuda


class Kernel:
    """A CUDA kernel, launched as `kernel[blocks, threads](*arguments)` and compiled then for the types of arguments.

    Parameters
    ----------
    py_func : function
        The code of a thread.
    """

    def __init__(self, py_func: FunctionType):
        self.py_func = py_func
        self.__name__, self.__module__, self.__doc__ = py_func.__name__, py_func.__module__, py_func.__doc__

    def __getitem__(self, configuration: tuple[int, ...]) -> Any:
        return functools.partial(driver.launch, self, configuration)

    @functools.cached_property
    def source(self) -> FunctionType:
        """The function for the compiler, in which this module is replaced by `numba.cuda`."""
        function, here = self.py_func, sys.modules[__name__]
        names = {name: numba_cuda() if value is here else value for name, value in function.__globals__.items()}
        return FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)

    @functools.cached_property
    def dispatcher(self) -> Any:
        """Numba's object that compiles the kernel for a GPU and launches it."""
        return numba_cuda().jit(self.source)


class Driver:
    """The arrays and launches of numba-cuda, on the GPU that it chooses; tests put another driver in its place."""

    def to_device(self, array: Any) -> Any:
        """Return a copy of a NumPy array on the device."""
        return numba_cuda().to_device(array)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an uninitialised array on the device."""
        return numba_cuda().device_array(shape, dtype)

    def launch(self, kernel: Kernel, configuration: tuple[int, ...], *arguments: Any) -> None:
        """Run a kernel on `configuration`: the number of blocks, and of threads in a block."""
        kernel.dispatcher[configuration](*arguments)


driver = Driver()


def is_device_array(array: Any) -> bool:
    """Return whether an array of Numba, or one that stands for it, lives on a device."""
    return getattr(array, "__cuda_ndarray__", False)
