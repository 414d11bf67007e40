"""Clip the outputs of a projection, and stop the gradients of clipped outputs."""

from varlen_rnn.runtime.jit import body


@body
def bounded(x, bound):
    """Return x clipped to the range from -bound to bound; NaN stays NaN."""
    if x > bound:
        return bound
    return -bound if x < -bound else x


@body
def through_bound(d, output, bound):
    """Return the gradient of a value before clipping: 0 if its output is at the bound, else `d`."""
    return type(d)(0) if abs(output) >= bound else d
