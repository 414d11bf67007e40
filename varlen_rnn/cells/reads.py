"""Find out from the code of equations which items of an argument they may read, on any path."""

from varlen_rnn.runtime.numba_internals import items_read


def may_read_first(function, position, count):
    """Return whether a function may read the first item of its argument `position`, a tuple of `count` items.

    It cannot if its only use of the tuple is to take other items by constant indices.
    """
    if position >= function.__code__.co_argcount:
        return True
    items = items_read(function, position)
    return items is None or any(item % count == 0 for item in items)
