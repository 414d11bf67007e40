"""Copies of arrays in another data type, shape or order: by NumPy on the host, by kernels on a CUDA device."""

import itertools
import math

import numpy as np

from varlen_rnn.kernels.arithmetic import multiply
from varlen_rnn.kernels.elementwise import elementwise, launch_on
from varlen_rnn.kernels.twins import launch_beside
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import as_operand, contiguous, empty, launch, on_device
from varlen_rnn.runtime.jit import cpu_kernel, cuda_kernel

_AXES = 3  # the number of axes of the arrays that `assign_cuda` takes


@elementwise(np.array)
def copied(x):
    """Return a copy of `x`; on a device, the kernel can also convert the data type, and broadcast along axes."""
    return x


@cuda_kernel
def assign_cuda(x, out):
    """`out = x` for arrays of three axes with any strides; one thread per element."""
    i = cuda.grid(1)
    if i < out.size:
        a, b, c = i // out.shape[2] // out.shape[1], i // out.shape[2] % out.shape[1], i % out.shape[2]
        out[a, b, c] = x[a, b, c]


def assign(x, out):
    """Copy `x` to `out`, which has the same shape and may be a view with any strides."""
    if not on_device(out):
        out[...] = x
    elif out.ndim > _AXES:
        for place in range(out.shape[0]):
            assign(x[place], out[place])
    else:
        out.memory.changes()
        more = (None,) * (_AXES - out.ndim)
        launch_beside(assign_cuda, out.size, as_operand(x).reshape((1,) * len(more) + out.shape), out[more])


@cuda_kernel
def transpose_cuda(arrays, out):
    """`out[a] = arrays[a].T` for arrays of two axes; one thread per element of any array."""
    i = cuda.grid(1)
    for a in range(len(arrays)):
        if 0 <= i < arrays[a].size:
            row, column = i // arrays[a].shape[1], i % arrays[a].shape[1]
            out[a][column, row] = arrays[a][row, column]
        i -= arrays[a].size


def transposed(arrays):
    """Return C-contiguous transposes of device arrays of two axes, made by one launch."""
    found = tuple(empty(array.shape[::-1], array) for array in arrays)
    launch(transpose_cuda, sum(array.size for array in arrays), arrays, found)
    return found


@cuda_kernel
def fill_cuda(number, out):
    """`out = number` for an array of one axis."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = number


def full(shape, number, like, dtype=None):
    """Return an array whose elements are all `number`, on the device of `like`, by default of its data type, too."""
    out = empty(tuple(shape), like, dtype)
    if on_device(like):
        launch_beside(fill_cuda, out.size, out.dtype.type(number), out.reshape((out.size,)))
    else:
        out[...] = number
    return out


def astype(x, dtype):
    """Return a copy of `x` in another data type, with the conversions of NumPy."""
    if not on_device(x):
        with np.errstate(invalid="ignore", over="ignore"):
            return x.astype(dtype)
    out = empty(x.shape, x, np.dtype(dtype))
    launch_on(copied.twin(), [x], [], out)
    return out


def spread(x, shape):
    """Return a C-contiguous copy of `x`, broadcast to `shape`."""
    if not on_device(x):
        return np.array(np.broadcast_to(x, shape), order="C")
    out = empty(tuple(shape), x)
    launch_on(copied.twin(), [x], [], out)
    return out


@cpu_kernel
def spread_cpu(x, divisor, out):
    """`out[b, k, a] = x[b, a] / divisor`, by a multiplication with the quotient 1 / divisor, rounded once."""
    factor = out.dtype.type(1 / divisor)
    for b in range(out.shape[0]):
        if out.shape[2] == 1:
            number = x[b, 0] * factor
            for k in range(out.shape[1]):
                out[b, k, 0] = number
        else:
            for k in range(out.shape[1]):
                for a in range(out.shape[2]):
                    out[b, k, a] = x[b, a] * factor


def spread_over(x, shape, axis, divisor):
    """Repeat the elements of `x` along an axis, and divide them: the gradient of a sum or a mean over the axis.

    Parameters
    ----------
    x : array of floats, without the axis, or with size 1 there
    shape : tuple of int
    axis : int or None
        `0 <= axis < len(shape)`; None if `x` is a single number, which is repeated everywhere.
    divisor : int
        For example the size of the axis, for the gradient of a mean, or 1.  Elements are multiplied by its inverse.

    Examples
    --------
    >>> spread_over(np.array([2.0, 4.0]), (2, 2), 1, 2)
    array([[1., 1.],
           [2., 2.]])
    """
    before = 1 if axis is None else math.prod(shape[:axis])
    count = math.prod(shape) if axis is None else shape[axis]
    after = 1 if axis is None else math.prod(shape[axis + 1 :])
    divisor, x, out = max(1, divisor), as_operand(x), empty(shape, x)
    if on_device(x):
        x = x if divisor == 1 else multiply(x, x.dtype.type(1 / divisor))
        launch_on(copied.twin(), [x.reshape((before, 1, after))], [], out.reshape((before, count, after)))
    else:
        spread_cpu(x.reshape(before, after), divisor, out.reshape(before, count, after))
    return out


def joined(parts, axis):
    """Concatenate arrays along an axis, as `np.concatenate` does."""
    first = parts[0]
    if not on_device(first):
        return np.concatenate(parts, axis=axis)
    axis %= first.ndim
    sizes = [part.shape[axis] for part in parts]
    out = empty((*first.shape[:axis], sum(sizes), *first.shape[axis + 1 :]), first)
    for part, place in zip(parts, places_along(sizes, axis), strict=True):
        assign(part, out[place])
    return out


def divided(x, sizes, axis):
    """Cut `x` along an axis into pieces of the given sizes; return the pieces as C-contiguous arrays."""
    return [contiguous(x[place]) for place in places_along(sizes, axis % x.ndim)]


def places_along(sizes, axis):
    """Return the index of each piece of an array that is cut along `axis` (at least 0) into pieces of `sizes`."""
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    return [(slice(None),) * axis + (slice(*two),) for two in itertools.pairwise(ends)]


def exchanged(x, axis0, axis1):
    """Return `x` with two axes exchanged, as a C-contiguous array."""
    axes = list(range(x.ndim))
    axes[axis0], axes[axis1] = axes[axis1], axes[axis0]
    # Copy to contiguous memory, because NumPy can sum strided arrays in another order.
    return as_operand(x.transpose(axes)) if on_device(x) else contiguous(x.transpose(axes))
