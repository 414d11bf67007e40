"""Counters in memory that the threads of a call use to take work, publish progress, and wait for each other.

At a barrier, each member of a team adds one to a counter and waits until all members have added.  A waiting thread
spins for some microseconds, about as long as a step.  Then it yields its core, because the awaited thread may have none
if there are more threads than cores.
"""

import ctypes
import sys

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from varlen_rnn.runtime.cache import PROCESSOR
from varlen_rnn.runtime.jit import cpu_inlined

COUNTER = PROCESSOR.line_bytes // 8  # the number of int64 in a cache line; each counter has a line of its own
_SPINS = 256
if sys.platform == "win32":
    # LLVM looks up names in the C library, but SwitchToThread is a function of kernel32.
    llvm.add_symbol("SwitchToThread", ctypes.cast(ctypes.windll.kernel32.SwitchToThread, ctypes.c_void_p).value)
_yield_core = types.ExternalFunction("SwitchToThread" if sys.platform == "win32" else "sched_yield", types.int32())


@intrinsic
def arrive(typing, counter):
    """Add one to the int64 at an address and return its old value.

    A thread that reads the new value sees all earlier writes of this thread.
    """

    def codegen(context, builder, signature, arguments):
        return builder.atomic_rmw("add", arguments[0], ir.Constant(ir.IntType(64), 1), "acq_rel")

    return types.int64(counter), codegen


@intrinsic
def read(typing, counter):
    """Return the int64 at an address; later reads also see all writes that its writer made before."""

    def codegen(context, builder, signature, arguments):
        return builder.load_atomic(arguments[0], "acquire", 8)

    return types.int64(counter), codegen


@intrinsic
def swap(typing, counter, expected, value):
    """Atomically set the int64 at an address to `value` if it equals `expected`; return whether it was set."""

    def codegen(context, builder, signature, arguments):
        return builder.extract_value(builder.cmpxchg(*arguments, "acq_rel", "acquire"), 1)

    return types.boolean(counter, types.int64, types.int64), codegen


@intrinsic
def publish(typing, counter, value):
    """Set the int64 at an address.  A thread that reads the new value also sees all earlier writes of this thread."""

    def codegen(context, builder, signature, arguments):
        builder.store_atomic(arguments[1], arguments[0], "release", 8)
        return context.get_dummy_value()

    return types.void(counter, types.int64), codegen


def emit_pause(builder, pause):
    """Emit a processor's hint for spin loops; `pause` is an intrinsic's name and arguments, or empty without a hint."""
    if pause:
        name, *numbers = pause
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [number] * len(numbers))
        builder.call(builder.module.declare_intrinsic(name, (), kind), [number(value) for value in numbers])


@intrinsic
def _pause(typing):
    """Give the processor its hint for spin loops."""

    def codegen(context, builder, signature, arguments):
        emit_pause(builder, PROCESSOR.pause)
        return context.get_dummy_value()

    return types.void(), codegen


@cpu_inlined
def wait_until(counter, total):
    """Wait until the counter at an address has reached `total`."""
    spins = 0
    while read(counter) < total:
        spins += 1
        if spins < _SPINS:
            _pause()
        else:
            _yield_core()


@cpu_inlined
def wait(counter, total):
    """Add one to the counter at an address, and wait until it has reached `total`: a barrier."""
    arrive(counter)
    wait_until(counter, total)


@cpu_inlined
def take_or_wait(taken, done, count):
    """Take the next of `count` pieces and return its number; if none is left, return `count` when all are done.

    `taken` and `done` are counters.  After each piece, the caller must add one to `done`, because other threads wait
    for that.  So the work on a piece must not raise.
    """
    piece = arrive(taken)
    if piece < count:
        return piece
    wait_until(done, count)
    return count
