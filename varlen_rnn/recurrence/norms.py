"""Functions of the two loops that few cells need: normalise over the units of a row, and copy row inputs.

Each function is compiled once per data type, and the loops call it by address.  If they were compiled into the loops,
they would delay the first step of every cell.
"""

import math

from numba import types

from varlen_rnn.products.vectors import TILE_VECTORS, VECTOR_BYTES, least, make_stack_memory, offset, width_of
from varlen_rnn.recurrence.phases import PER_EPSILON
from varlen_rnn.runtime.jit import called_by_address, cpu_inlined

# Sums have as many lanes as 128 bytes hold, on every host, so that no bits depend on the host's vectors.
PANELS = 128 // (TILE_VECTORS * VECTOR_BYTES)  # panels of this host in 128 bytes, which is the widest panel of any host
_lanes_on_stack = make_stack_memory(lambda lanes: PANELS * TILE_VECTORS * lanes)


def _norm_arguments(scalar):
    address = types.CPointer(scalar)
    return address, types.intp, types.intp, types.boolean, address, address


@called_by_address(_norm_arguments)
def normalise(at, step, hidden, keep, kept, scale):
    """Normalise `hidden` numbers, which are stored in panels `step` elements apart; save them if `keep`.

    Deviations from the mean are divided by the standard deviation, whose inverse is saved at `scale`.  Sums first add
    groups of `PANELS` panels lane by lane, then the lanes, so their order depends only on `hidden`.
    """
    lanes, width = _lanes_on_stack(at), width_of(at)
    panels = (hidden + width - 1) // width
    last, valid = offset(at, (panels - 1) * step), hidden - (panels - 1) * width
    for j in range(valid, width):
        last[j] = 0
    mean = _mean_of_panels(at, step, hidden, panels, lanes, 0, False)
    for j in range(valid, width):
        last[j] = mean
    lanes[0] = 1 / math.sqrt(_mean_of_panels(at, step, hidden, panels, lanes, mean, True) + 1 / PER_EPSILON)
    inverse = lanes[0]  # read from `lanes`, so that it has the data's type
    for i in range(panels):
        for j in range(width):
            at[i * step + j] = (at[i * step + j] - mean) * inverse
        if keep:
            for j in range(least(width, hidden - i * width)):
                kept[i * width + j] = at[i * step + j]
    if keep:
        scale[0] = inverse


@cpu_inlined
def _mean_of_panels(at, step, hidden, panels, lanes, less, squared):
    """Return the mean of `number - less` over all numbers, or the mean of its squares if `squared`."""
    width = width_of(at)
    for j in range(PANELS * width):
        lanes[j] = 0
    for i in range(panels):
        own = offset(lanes, i % PANELS * width)
        for j in range(width):
            value = at[i * step + j] - less
            own[j] += value * value if squared else value
    total = 0.0
    for j in range(PANELS * width):
        total += lanes[j]
    lanes[0] = total / hidden
    return lanes[0]


def _grad_arguments(scalar):
    address = types.CPointer(scalar)
    return address, address, types.intp, address


@called_by_address(_grad_arguments)
def normalise_grad(d, x, hidden, scale):
    """Replace the gradients `d` of normalised values `x` by the gradients of the values before the norm.

    For x = scale (a - mean a), the gradient of a is scale (dx - mean(dx) - x mean(dx x)).
    """
    lanes = _lanes_on_stack(d)
    mean = _mean_of_products(d, d, hidden, lanes, False)
    slope = _mean_of_products(d, x, hidden, lanes, True)
    for j in range(hidden):
        d[j] = scale[0] * (d[j] - mean - x[j] * slope)


@cpu_inlined
def _mean_of_products(a, b, count, lanes, both):
    """Return the mean of `a`, or of `a * b` if `both`; sums run lane by lane, then over the lanes."""
    width = PANELS * width_of(a)
    for j in range(width):
        lanes[j] = 0
    whole = count // width * width
    for i in range(0, whole, width):
        for j in range(width):
            lanes[j] += a[i + j] * b[i + j] if both else a[i + j]
    for j in range(count - whole):
        lanes[j] += a[whole + j] * b[whole + j] if both else a[whole + j]
    total = 0.0
    for j in range(width):
        total += lanes[j]
    lanes[0] = total / count
    return lanes[0]


def _copy_arguments(scalar):
    address = types.CPointer(scalar)
    return address, types.intp, address, types.intp, types.intp, types.intp


@called_by_address(_copy_arguments)
def copy_planes(source, source_step, target, target_step, planes, count):
    """Copy the first `count` numbers of each of `planes` planes."""
    for k in range(planes):
        for j in range(count):
            target[k * target_step + j] = source[k * source_step + j]
