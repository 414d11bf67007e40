"""Find out from a function's code whether it can read the first item of a tuple, on any path."""

from varlen_rnn.runtime.numba_internals import items_read


def may_read_first(function, position, count):
    """Return whether a function can read the first item of its argument `position`, a tuple of `count` items.

    The answer is False only if every use of the tuple takes another item by a constant index.
    """
    if position >= function.__code__.co_argcount:
        return True
    items = items_read(function, position)
    return items is None or any(item % count == 0 for item in items)
