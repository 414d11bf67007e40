"""Origins: how values without a gradient were computed, which training on several ranks (processes) must know.

An example: `(loss * mask).sum() / mask.sum()`.  No gradient passes `mask.sum()`, so it has no record, and it would look
like a number that is equal on all ranks.  Its origin, the operator and its inputs, is kept instead of a record.
"""

import contextlib
import weakref

from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.tape.gradient import Record

# The longest chain of operators that keeps origins.  Without a limit, a running mean would keep every batch in memory.
_LONGEST = 64
kept: set[object] = set()  # weak references to replicas, keys of `keeping()`; no origins are kept if it is empty


def keep_for(replica):
    """Keep origins until `replica` is freed."""
    kept.add(weakref.ref(replica, kept.discard))


@contextlib.contextmanager
def keeping():
    """Keep origins until the `with` block ends."""
    key = object()
    kept.add(key)
    try:
        yield
    finally:
        kept.discard(key)


class Origin(Record):
    """One applied operator whose results require no gradient; see `Record`."""

    __slots__ = ("length",)
    length: int


class Detached(Origin):
    """The origin of a detached Variable: it has only the number of the Variable's record, so it keeps nothing alive."""

    __slots__ = ()

    def __init__(self, number):
        self.op, self.inputs, self.values, self.attrs, self.number, self.length = None, (), (), {}, number, 0


def note(op, inputs, values, attrs, outputs):
    """Keep the origin of an operator's outputs if an input may depend on rows of the batch."""
    if not any(map(_may_have_rows, inputs)):
        return
    # Under `no_grad`, an input may have a record, which the origin must not keep alive.
    inputs = [v if v is None or v.record is None else v.detach() for v in inputs]
    length = 1 + max((v.origin.length for v in inputs if v is not None and v.origin is not None), default=0)
    if length <= _LONGEST:
        origin = Origin(op, inputs, values, attrs)
        origin.length = length
        for output in outputs:
            output.origin = origin


def _may_have_rows(variable):
    """Return whether a value can depend on the batch's rows: it is no parameter, buffer or number without an origin."""
    if variable is None or not isinstance(variable.value, LoDTensor):
        return False
    return variable.origin is not None or variable.record is not None or (variable.ndim and not variable.persistable)
