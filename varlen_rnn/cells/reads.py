"""What equations read of their arguments, on whatever path: known from their code, before any number is."""

from varlen_rnn.runtime.numba_internals import items_read


def may_read_first(function, position, count):
    """Return whether a function may read the first item of a tuple of `count` that it gets as argument `position`.

    It does not if all that it does with the tuple is to ask for others of its items, by numbers that are constants.
    """
    if position >= function.__code__.co_argcount:
        return True
    items = items_read(function, position)
    return items is None or any(item % count == 0 for item in items)
