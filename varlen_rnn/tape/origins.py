"""How values without a gradient were computed, while ranks train: a sum of a rank's mask must be known as such.

An example: `(loss * mask).sum() / mask.sum()`.  No gradient passes `mask.sum()`, so it has no record, and it would look
like a number that all ranks have in common.  Its origin is kept in place of a record.
"""

from varlen_rnn.tape.gradient import Record

# More operators in a row lose their origin.  Otherwise a running mean of many batches would keep all of them.
_LONGEST = 64
kept = False  # whether origins are kept: since ranks train in this process


def keep():
    """Keep origins from now on."""
    global kept
    kept = True


class Origin(Record):
    """One applied operator whose results require no gradient; see `Record`."""

    __slots__ = ("length",)


class Detached(Origin):
    """The number of the record whose result was detached; it keeps nothing alive."""

    __slots__ = ()

    def __init__(self, number):
        self.op, self.inputs, self.values, self.attrs, self.number, self.length = None, (), (), {}, number, 0


def note(op, inputs, values, attrs, outputs):
    """Keep the origin of an operator's outputs."""
    length = 1 + max((v.origin.length for v in inputs if v is not None and v.origin is not None), default=0)
    if length <= _LONGEST:
        origin = Origin(op, inputs, values, attrs)
        origin.length = length
        for output in outputs:
            output.origin = origin
