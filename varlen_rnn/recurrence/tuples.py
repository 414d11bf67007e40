"""Bodies (functions that loops inline) that move tuples of scalars between memory and a cell's equations."""

import functools

from varlen_rnn.runtime.jit import body


@functools.cache
def take(count):
    """Return the body `load(a, start, stride)`, which returns `count` elements, `stride` apart, as a tuple."""
    if count == 0:

        @body
        def load_none(a, start, stride):
            return ()

        return load_none
    head, last = take(count - 1), count - 1

    @body
    def load(a, start, stride):
        return head(a, start, stride) + (a[start + last * stride],)  # noqa: RUF005 - Numba joins tuples by + alone

    return load


@body
def _nothing(a, start, stride, values):
    pass


@functools.cache
def put(count):
    """Return the body `store(a, start, stride, values)`, which writes `count` values to elements `stride` apart."""
    if count == 0:
        return _nothing
    head, last = put(count - 1), count - 1

    @body
    def store(a, start, stride, values):
        head(a, start, stride, values)
        a[start + last * stride] = values[last]

    return store


@functools.cache
def add(count):
    """Return the body `accumulate(a, start, stride, values)`, which adds `count` values to elements `stride` apart."""
    if count == 0:
        return _nothing
    head, last = add(count - 1), count - 1

    @body
    def accumulate(a, start, stride, values):
        head(a, start, stride, values)
        a[start + last * stride] += values[last]

    return accumulate
