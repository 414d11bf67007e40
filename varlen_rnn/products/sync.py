"""Counters that the threads of a call share: to take work, to publish progress, and to wait for each other.

At a barrier, each member of a team adds one to a counter and waits until all members have added.  A wait spins for some
microseconds, about as long as a step, and then yields its core: with more threads than cores, the awaited thread must
get a core to run.
"""

import ctypes
import sys

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from varlen_rnn.runtime.cache import PROCESSOR
from varlen_rnn.runtime.jit import cpu_inlined

COUNTER = PROCESSOR.line_bytes // 8  # int64 per cache line; each counter has a line of its own
_SPINS = 256
if sys.platform == "win32":
    # LLVM looks up the names of functions in the C library, but this one is in the system's.
    llvm.add_symbol("SwitchToThread", ctypes.cast(ctypes.windll.kernel32.SwitchToThread, ctypes.c_void_p).value)
_yield_core = types.ExternalFunction("SwitchToThread" if sys.platform == "win32" else "sched_yield", types.int32())


@intrinsic
def arrive(typing, counter):
    """Add one to the int64 at an address and return the old value; who reads the new one sees all earlier writes."""

    def codegen(context, builder, signature, arguments):
        return builder.atomic_rmw("add", arguments[0], ir.Constant(ir.IntType(64), 1), "acq_rel")

    return types.int64(counter), codegen


@intrinsic
def read(typing, counter):
    """Return the int64 at an address; later reads see all writes that another thread made before it set this value."""

    def codegen(context, builder, signature, arguments):
        return builder.load_atomic(arguments[0], "acquire", 8)

    return types.int64(counter), codegen


@intrinsic
def swap(typing, counter, expected, value):
    """Set the int64 at an address to `value` if it is `expected`, atomically; return whether it was."""

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
    """Emit the hint for spin loops that a row of the table of processors names; nothing if it names none."""
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
    """Take the next of `count` pieces, and return its number, or `count` once none is left and all are done.

    `taken` and `done` are counters.  After a piece, the caller adds one to `done`.  Nothing in between may raise,
    because other threads wait for it.
    """
    piece = arrive(taken)
    if piece < count:
        return piece
    wait_until(done, count)
    return count
