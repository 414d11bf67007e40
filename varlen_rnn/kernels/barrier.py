"""A barrier for the few threads that share the steps of a recurrence: each counts up to where it expects the others.

A member adds one to its team's counter and waits until the counter has reached what all members add up to.  A wait
spins for some microseconds, since a step lasts no longer, and then offers its core to others: with more threads than
cores, the one that is waited for must come to run.
"""

import sys

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from varlen_rnn.jit import cpu_kernel

_SPINS = 256
_PAUSE = llvm.get_process_triple().startswith(("x86_64", "i686"))
_yield_core = types.ExternalFunction("sched_yield", types.int32())
_CAN_YIELD = sys.platform != "win32"


@intrinsic
def _arrive(typing, counter):
    """Add one to the int64 at an address: who reads the sum sees what this thread wrote before."""

    def codegen(context, builder, signature, arguments):
        return builder.atomic_rmw("add", arguments[0], ir.Constant(ir.IntType(64), 1), "acq_rel")

    return types.int64(counter), codegen


@intrinsic
def _read(typing, counter):
    """Return the int64 at an address, and see what was written before it was counted up."""
    return types.int64(counter), lambda context, builder, signature, arguments: builder.load_atomic(
        arguments[0], "acquire", 8
    )


@intrinsic
def _pause(typing):
    """Tell the processor that this thread spins."""

    def codegen(context, builder, signature, arguments):
        if _PAUSE:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), kind), [])
        return context.get_dummy_value()

    return types.void(), codegen


@cpu_kernel
def wait(counter, total):
    """Count this member up at the address `counter`, and return once the counter has reached `total`."""
    _arrive(counter)
    spins = 0
    while _read(counter) < total:
        spins += 1
        if spins < _SPINS or not _CAN_YIELD:
            _pause()
        else:
            _yield_core()
