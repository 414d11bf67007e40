"""Counts of all that costs time on a GPU: launches, copies between host and device, allocations, each by line.

with steady():
    step(batch)     # AssertionError, with the line of the package that copies or allocates
"""

import collections
import contextlib
import sys
from pathlib import Path

import varlen_rnn

LAUNCH, TO_DEVICE, TO_HOST, ON_DEVICE, ALLOCATION = "launch", "copy to device", "copy to host", "copy", "allocation"
COUNTS = collections.Counter()  # of (kind, line), such as ("copy to device", "recurrence/cuda.py:237")
_PACKAGE = str(Path(varlen_rnn.__file__).parent)
# Files whose lines only pass on the wish of their callers.
_THROUGH = ("runtime/device.py", "runtime/device_array.py", "runtime/device_memory.py", "runtime/cuda.py")
_forbidden = set()


def count(kind):
    """Count an event at the innermost line of the package; raise if it is forbidden now."""
    line = _line()
    COUNTS[kind, line] += 1
    if kind in _forbidden:
        raise AssertionError(f"{kind} at {line}, where none is allowed")


def _line():
    frame = sys._getframe(2)
    while frame:
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(_PACKAGE) and (name := file.relative_to(_PACKAGE).as_posix()) not in _THROUGH:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


def totals():
    """Return the number of events of each kind."""
    found = collections.Counter()
    for (kind, _), number in COUNTS.items():
        found[kind] += number
    return dict(found)


@contextlib.contextmanager
def steady(*kinds):
    """Forbid some kinds of events: if none is named, copies between host and device, and allocations."""
    added = set(kinds or (TO_DEVICE, TO_HOST, ALLOCATION)) - _forbidden
    _forbidden.update(added)
    try:
        yield
    finally:
        _forbidden.difference_update(added)
