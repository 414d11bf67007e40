"""The bound of a projection's outputs, and what of their gradient passes through it."""

from varlen_rnn.runtime.jit import body


@body
def bounded(x, bound):
    """Return x, or the bound that it is beyond; NaN stays."""
    if x > bound:
        return bound
    return -bound if x < -bound else x


@body
def through_bound(d, output, bound):
    """Return the gradient of what became an output: 0 of one at its bound."""
    return type(d)(0) if abs(output) >= bound else d
