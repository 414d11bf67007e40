"""Stand-ins for the calls of CUDA's driver, and numba-cuda's own packing of arguments, without a GPU."""

import ctypes
from types import SimpleNamespace

from tests.emulated.arrays import MemoryOfHost
from tests.emulated.kernels import Kernel
from tests.emulated.sources import ptx_of
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.parameters import types_of


class Binding:
    """The calls of `cuda.bindings.driver` that launches make, for memory of the host; it writes down all calls."""

    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="most shared memory")

    def __init__(self):
        self.calls, self.error = [], 0

    def cuKernelGetFunction(self, handle):
        return 0, handle

    def cuFuncSetAttribute(self, function, attribute, value):
        self.calls.append((attribute, value))
        return (0,)

    def cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra):
        assert (gy, gz, by, bz, stream, extra) == (1, 1, 1, 1, 0, 0)
        self.calls.append((gx, bx, shared))
        if not self.error:
            self._run(*function, gx, bx, shared, parameters)
        return (self.error,)

    def cuLaunchCooperativeKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, parameters):
        return self.cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, 0)

    @staticmethod
    def _run(kernel, kinds, blocks, threads, shared, address):
        """Run a kernel on the numbers that the pointers at an address refer to."""
        pointers = (ctypes.c_void_p * len(kernel.source.params)).from_address(address)
        numbers = [ctypes.c_int64.from_address(pointer).value for pointer in pointers]
        given = SimpleNamespace(address=address, numbers=numbers, kinds=kinds)
        kernel.run((blocks,), (threads,), given, shared)


class OnHost(MemoryOfHost):
    """The driver of the package, with memory of the host, and kernels compiled for the emulated device."""

    def compile(self, kernel, kinds):
        return Kernel(ptx_of(kernel.source, types_of(kinds))), kinds


def replace_driver(setattr, binding, driver):
    """Put a driver of the package, on a stand-in for CUDA's calls, in the place of a GPU."""
    setattr(cuda, "_check_gpu", lambda: None)
    setattr(cuda, "_bindings", lambda: binding)
    setattr(cuda.numba_cuda(), "current_context", lambda: binding.calls.append("context"))
    setattr(cuda, "driver", driver)


def numba_packs(arguments, kinds):
    """Return a function that packs arguments by numba-cuda, and returns what it passes to CUDA."""
    from numba.cuda.cudadrv.devicearray import DeviceNDArray
    from numba.cuda.dispatcher import _Kernel

    def theirs(argument):
        if isinstance(argument, tuple):
            return tuple(map(theirs, argument))
        if not hasattr(argument, "address"):
            return argument
        memory = SimpleNamespace(
            device_ctypes_pointer=ctypes.c_void_p(argument.address), device_pointer_value=argument.address
        )
        return DeviceNDArray(argument.shape, argument.strides, argument.dtype, gpu_data=memory)

    packer = SimpleNamespace(extensions=[])
    packer._prepare_args = lambda *given: _Kernel._prepare_args(packer, *given)
    pairs = list(zip(types_of(kinds), map(theirs, arguments), strict=True))

    def pack():
        found = []
        for kind, argument in pairs:
            packer._prepare_args(kind, argument, 0, [], found)
        return found

    return pack
