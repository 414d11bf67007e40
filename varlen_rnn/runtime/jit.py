"""The only module that sets Numba's options, by `body`, `cpu_kernel`, `engine_kernel`, `cuda_kernel` and others.

An equation is a `body`: a plain function of scalars, inlined into a CPU loop (`cpu_kernel`) and into a CUDA loop
(`cuda_kernel`) beside it.

Compiling must not take long.  Numba copies the code of a function into each function that calls it, at each level of
calls, and LLVM works on every copy.  So functions that many kernels call are compiled once and called by address
(`called_by_address`).  Kernels get the addresses as arguments, because addresses differ between processes, while
kernels stay in the disk cache.  The functions of one loop (`cpu_inlined`) are inlined into the loop before anything is
compiled.
"""

import functools

import numba
from numba import types
from numba.core.errors import TypingError
from numba.extending import intrinsic

from varlen_rnn.runtime.cache import CHECKED, DiskCache
from varlen_rnn.runtime.cuda import Kernel
from varlen_rnn.runtime.forks import let_forks_wait
from varlen_rnn.runtime.numba_internals import ENGINE_OPTIONS, NO_WRAPPERS, address_of_code, use_cache, write_call

# `contract` lets a multiplication and an addition become one instruction; NaN and infinity stay as they are.
_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
_ENGINE = _OPTIONS | ENGINE_OPTIONS
# For functions that only compiled code calls: wrappers for Python would take a tenth of the compile time.
_INNER = _ENGINE | NO_WRAPPERS
let_forks_wait()


def body(function):
    """Compile an equation that CPU and CUDA loops inline; its constants must have the type of an argument."""
    return numba.njit(inline="always", error_model="numpy", fastmath={"contract"})(function)


def cpu_kernel(function):
    """Compile a CPU loop: without the GIL, without threads of its own, cached on disk.

    With `VARLEN_RNN_CHECK=1`, kernels in `varlen_rnn/kernels`, which other code can call, check their indices.  Other
    kernels do not: the package makes their plans and arrays itself, and a loop with checks vectorises differently, so
    that bits would depend on the batch.
    """
    checked = CHECKED and function.__module__.startswith("varlen_rnn.kernels.")
    return use_cache(
        numba.njit(boundscheck=checked or None, **_OPTIONS)(function), functools.partial(DiskCache, linkable=True)
    )


def quick_kernel(function):
    """Compile a CPU loop that keeps the GIL, because to release it takes longer, and lets another thread have it."""
    return _engine_cached(numba.njit(**_OPTIONS | {"nogil": False})(function))


def engine_kernel(function):
    """Compile a CPU loop that allocates no arrays; Python calls it, and its arrays are read and written by address."""
    return _engine_cached(numba.njit(**_ENGINE)(function))


def cpu_inlined(function):
    """Compile a function of an engine's loop; it is inlined into its callers, which must be compiled code."""
    return numba.njit(inline="always", **_INNER)(function)


def cpu_linked(function):
    """Compile a function that an engine's loop calls; only the loop is cached, with this code."""
    return numba.njit(**_INNER)(function)


def cuda_kernel(function):
    """Compile a CUDA loop: one thread per element of the last argument, unless its docstring says otherwise."""
    return Kernel(function)


def address_of_function(function, arguments):
    """Compile a function that compiled code calls by address; return the address, valid until the process ends.

    `arguments` are the types of the function's arguments.  The function's result is dropped.
    """
    kernel = _engine_cached(numba.njit(**_INNER)(function))
    _KEPT.append(kernel)
    return address_of_code(kernel, arguments)[0]


_KEPT = []  # kernels whose addresses were returned; a kernel that is deleted frees its code


def caller(arguments_for):
    """Return `call(address, arguments)`, for use in compiled code: it calls a function with the items of a tuple.

    `arguments_for(scalar)` returns the types of the function's arguments if its numbers have the type `scalar`.
    `call.address_of(function, dtype)` compiles a function for numbers of a data type and returns its address.
    """

    def write(context, builder, signature, arguments):
        address, given = arguments  # Numba passes the items of tuples one by one
        kind = signature.args[1]
        write_call(context, builder, address, _flat(kind), _flat_values(builder, kind, given))
        return context.get_dummy_value()

    @intrinsic
    def call(typing, address, arguments):
        given = [types.unliteral(kind) for kind in _flat(arguments)]
        wanted = arguments_for(next(kind.dtype for kind in given if isinstance(kind, types.CPointer)))
        if given != _flat(types.Tuple(wanted)):
            raise TypingError(f"call by address: expected arguments of types {wanted}, got {arguments}")
        return types.void(types.intp, arguments), write

    call.address_of = lambda function, dtype: address_of_function(function, arguments_for(numba.from_dtype(dtype)))
    return call


def called_by_address(arguments_for):
    """Return a decorator that replaces a function by `call(address, arguments)`, as `caller` returns it.

    `call.address(dtype)` is the function's address for numbers of a data type; it is compiled at the first use.
    """

    def declare(function):
        call = caller(arguments_for)
        call.address = functools.cache(lambda dtype: call.address_of(function, dtype))
        call.__doc__ = function.__doc__
        return call

    return declare


def _engine_cached(kernel):
    return use_cache(kernel, functools.partial(DiskCache, linkable=False))


def _flat(kind):
    """Return the scalar types in `kind`, a type that can be a nested tuple, in order."""
    return [part for item in kind for part in _flat(item)] if isinstance(kind, types.BaseTuple) else [kind]


def _flat_values(builder, kind, value):
    """Return the scalar values in `value`, which can be a nested tuple, in order."""
    if not isinstance(kind, types.BaseTuple):
        return [value]
    items = [(item, builder.extract_value(value, k)) for k, item in enumerate(kind)]
    return [part for item, inside in items for part in _flat_values(builder, item, inside)]
