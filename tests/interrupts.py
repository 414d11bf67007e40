"""Interrupt a call at each moment at which CPython raises KeyboardInterrupt after Ctrl-C.

It looks for signals at the begin of a function, at the end of each round of a loop, and after each call of C.
"""

import sys
from collections.abc import Callable
from dis import opname

import varlen_rnn

_ROOT = varlen_rnn.__path__[0]
_LOOKS = {"RESUME", "JUMP_BACKWARD", "CALL", "CALL_KW", "CALL_FUNCTION_EX"}  # instructions, by their names in CPython


def interrupted(function: Callable[[], object], number: int) -> str | None:
    """Call a function, and interrupt it at the moment of this number, in code of the package.

    Return the file and the line of the interrupt, or None if the call ended before.
    """
    before, left, where = None, number, None

    def trace(frame, event, _):
        nonlocal before, left, where
        if not frame.f_code.co_filename.startswith(_ROOT):
            before = None
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event != "opcode":
            before = None
            return trace
        if before is frame:  # the last instruction looked for signals, and no other frame ran since
            left -= 1
            if left < 0:
                sys.settrace(None)
                where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise KeyboardInterrupt
        before = frame if opname[frame.f_code.co_code[frame.f_lasti]] in _LOOKS else None
        return trace

    sys.settrace(trace)
    try:
        function()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return where
