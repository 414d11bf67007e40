"""Turn images into sequences of windows, row by row, so that a recurrent layer can read a line of text."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from varlen_rnn.errors import OutOfRangeError, ShapeError, check_int, check_list, shown
from varlen_rnn.kernels.rows import scatter_add_rows
from varlen_rnn.kernels.windows import add_windows_to_images, windows_of_images
from varlen_rnn.ops.cost import nothing, size
from varlen_rnn.ops.indices import rows_at
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of
from varlen_rnn.runtime.device import as_operand, empty, on_device, zeros
from varlen_rnn.tape.checks import check_float, check_rank, check_shape
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import Variable, apply, required
from varlen_rnn.typing import Rows


@operator(name="im2sequence", cost=nothing, rows="batch")
def _im2sequence(x, filter_size: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...]):
    """Return the windows of images as rows, one sequence per image."""
    counts = _counts(x.shape, filter_size, stride, padding)
    if on_device(x.data):
        places = _places(x, filter_size, stride, padding)
        rows = rows_at(as_operand(x.data).reshape((x.data.size, 1)), places.reshape(-1)).reshape(places.shape)
    else:
        rows = _windows(x.data, filter_size, stride, padding)
    lod = LoD([*levels_of(x.structure), np.arange(len(x.data) + 1) * (counts[0] * counts[1])])
    return LoDTensor.wrap(rows, lod.at_positions_of(x.structure))


def _windows(data, filter_size, stride, padding):
    """Return the windows of images on the host, one per row; padding is zeros."""
    shape = len(data), *_counts(data.shape, filter_size, stride, padding), data.shape[1], *filter_size
    windows = empty(shape, data)
    windows_of_images(data, stride, padding[:2], windows)
    return windows.reshape(math.prod(shape[:3]), math.prod(shape[3:]))


def _places(x, filter_size, stride, padding):
    """Return the position of each number of the windows among all numbers of the images; -1 in the padding."""
    return _windows(np.arange(1, 1 + x.data.size).reshape(x.shape), filter_size, stride, padding) - 1


def _counts(shape, filter_size, stride, padding):
    """Return the number of windows along the height and along the width of an image."""
    around = padding[0] + padding[2], padding[1] + padding[3]
    sizes = zip(shape[2:], around, filter_size, stride, strict=True)
    return tuple(-1 if n == -1 else (n + more - window) // step + 1 for n, more, window, step in sizes)


@_im2sequence.infer
def _infer(x, filter_size, stride, padding):
    check_float("im2sequence", x=x)
    check_rank("im2sequence", "x", x, 4, "images, channels, height, width")
    for name, given, count in (("filter_size", filter_size, 2), ("stride", stride, 2), ("padding", padding, 4)):
        lowest = 0 if name == "padding" else 1
        if len(given) != count or min(given) < lowest:
            raise ShapeError(f"im2sequence, {name}", expected=f"{count} numbers of at least {lowest}", got=given)
    for n, window, before, behind in zip(x.shape[2:], filter_size, padding[:2], padding[2:], strict=True):
        if n != -1 and window > n:
            raise OutOfRangeError("im2sequence, filter_size", expected=f"at most {n}, the image's size", got=window)
        if max(before, behind) >= window:
            expected, hint = f"less than {window}, the filter_size", "some windows would have only padding"
            raise OutOfRangeError("im2sequence, padding", expected=expected, got=max(before, behind), hint=hint)
    counts = x.shape[0], *_counts(x.shape, filter_size, stride, padding)
    features = -1 if x.shape[1] == -1 else x.shape[1] * filter_size[0] * filter_size[1]
    return TensorSpec((-1 if -1 in counts else counts[0] * counts[1] * counts[2], features), x.dtype, x.lod_level + 1)


@_im2sequence.backward("x", cost=lambda inputs, outputs, **constants: size(inputs[1]))
def _im2sequence_grad(x, d_out, filter_size, stride, padding):
    (height, width), counts = filter_size, _counts(x.shape, filter_size, stride, padding)
    check_shape("im2sequence_grad", "d_out", d_out, (len(x.data) * counts[0] * counts[1], x.shape[1] * height * width))
    if on_device(d_out.data):
        places = _places(x, filter_size, stride, padding).reshape(-1)
        kept, d_x = np.flatnonzero(places >= 0), zeros((math.prod(x.shape), 1), d_out.data)
        scatter_add_rows(rows_at(as_operand(d_out.data).reshape((len(places), 1)), kept), places[kept], d_x)
        return x.like(d_x.reshape(x.shape))
    d_images = zeros(x.shape, d_out.data)
    windows = as_operand(d_out.data).reshape(len(x.data), *counts, x.shape[1], height, width)
    add_windows_to_images(windows, stride, padding[:2], d_images)
    return x.like(d_images)


@_im2sequence.examples
def _examples(rng):
    yield [rng.standard_normal((2, 3, 4, 5))], {"filter_size": (2, 3), "stride": (1, 2), "padding": (1, 0, 0, 2)}
    yield [rng.standard_normal((2, 1, 3, 3))], {"filter_size": (2, 2), "stride": (2, 2), "padding": (0, 0, 0, 0)}
    yield [rng.standard_normal((0, 1, 3, 3))], {"filter_size": (3, 1), "stride": (1, 1), "padding": (0, 0, 0, 0)}


def im2sequence(
    x: Rows, filter_size: int | Iterable[int], stride: int | Iterable[int] = 1, padding: int | Iterable[int] = 0
) -> Variable:
    """Return the windows of images as rows, one sequence per image, from left to right, then downwards.

    Parameters
    ----------
    x : Variable or array, shape `(images, channels, height, width)`
        float32 or float64.
    filter_size : int or (height, width)
        The size of a window, at most the size of an image.
    stride : int or (down, to the right)
        Pixels from a window to the next.
    padding : int, (up and down, left and right) or (up, left, down, right)
        Zeros around an image, less than the filter size.

    Returns
    -------
    Variable of shape `(images * windows, channels * height * width of a window)`
        Its last level has the windows of each image; the levels above are the levels of `x`.

    Examples
    --------
    >>> y = im2sequence(np.arange(6.0).reshape(1, 1, 2, 3), filter_size=2)
    >>> np.asarray(y), y.lod()
    (array([[0., 1., 3., 4.],
           [1., 2., 4., 5.]]), [[0, 2]])

    Source: the operator `im2sequence` of PaddlePaddle Fluid, without its option for images of different sizes in a
    batch.
    """
    sizes = {"filter_size": _numbers("filter_size", filter_size, 2), "stride": _numbers("stride", stride, 2)}
    around = _numbers("padding", padding, 2, 4)
    around = around if len(around) == 4 else around * 2
    return apply("im2sequence", required(x, "im2sequence, x"), **sizes, padding=around)


def _numbers(name: str, given: int | Iterable[int], *counts: int) -> tuple[int, ...]:
    """Return integers as a tuple (a single one twice); raise unless `counts` contains the tuple's length."""
    what = f"im2sequence, {name}"
    if not hasattr(given, "__iter__"):
        return (check_int(given, what),) * 2
    numbers = tuple(check_int(number, what) for number in check_list(given, what))
    if len(numbers) not in counts:
        raise ShapeError(what, expected=f"an integer, or {' or '.join(map(str, counts))} of them", got=shown(given))
    return numbers
