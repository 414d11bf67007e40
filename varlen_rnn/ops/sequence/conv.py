"""Convolution and lookahead along each sequence of the last level: a row becomes a function of a window of rows.

The rows of a window are neighbours in memory, so products read most windows in place.  Windows that reach beyond their
sequence are copied, a block of them at a time, with padding where there is no row.  A row of the result depends only on
its own window, not on its neighbours or the number of threads.
"""

from typing import NamedTuple

import numpy as np

from varlen_rnn.errors import OutOfRangeError, ShapeError
from varlen_rnn.kernels import windows
from varlen_rnn.kernels.arithmetic import multiply
from varlen_rnn.kernels.copies import assign
from varlen_rnn.kernels.reductions import sum_over
from varlen_rnn.kernels.rows import gather_rows, scatter_add_rows
from varlen_rnn.ops.cost import known, size
from varlen_rnn.ops.examples import TROUBLES, rows
from varlen_rnn.ops.indices import evenly, put_rows, rows_at
from varlen_rnn.ops.traits import beside
from varlen_rnn.products import gemm, row_sums
from varlen_rnn.products.packing import ALL_ROWS
from varlen_rnn.rows.lod import LoDTensor, levels_of
from varlen_rnn.runtime.device import as_operand, empty, on_device, zeros
from varlen_rnn.runtime.placeholder import Placeholder
from varlen_rnn.tape.checks import check_float, check_lod_level, check_rank, check_shape
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import apply

_BLOCK = 2**20  # elements of windows to copy at a time, so that they fit a cache
_FARTHEST = 2**31  # the largest distance of a window from its row, in rows, and the largest filter size


def _of_conv(inputs, outputs, filter_size, padding_start):
    """2 k n operations per row for a weight of (k, n), plus n for a bias."""
    x, weight, bias, _ = inputs
    return known(x.shape[0]) * (2 * size(weight) + (0 if bias is None else size(bias)))


@operator(cost=_of_conv, rows=beside("sequence", 1, 2, 3), multiplies=True)
def sequence_conv(x, weight, bias=None, padding=None, *, filter_size: int = 3, padding_start: int | None = None):
    """Return the product of each row's window with a weight; a window is `filter_size` concatenated rows.

    The window of row t begins with row `t + padding_start`.  Rows outside of the sequence are zeros, or rows of
    `padding`: its first `up` rows come before each sequence, the others after it.

    Parameters
    ----------
    x : Variable or LoDTensor, shape `(rows, features)`
        float32 or float64, with at least one level; the sequences are taken from the last level.
    weight : Variable or array, shape `(filter_size * features, filters)`
        The weights of the window's first row, then of its second row, and so on.
    bias : Variable or array, shape `(filters,)`, optional
    padding : Variable or array, shape `(up + down, features)`, optional
        `up = max(0, -padding_start)` rows before a sequence, and `down = max(0, padding_start + filter_size - 1)`
        after it.
    filter_size : int
        Rows of a window, at least 1.
    padding_start : int, optional
        By default `-(filter_size // 2)`: the window's middle is the row itself.

    Returns
    -------
    Variable of shape `(rows, filters)`, with the LoD of `x`

    Examples
    --------
    >>> x = LoDTensor(np.array([[1.0], [2.0], [3.0], [5.0]]), [[0, 3, 4]])
    >>> np.asarray(sequence_conv(x, np.array([[1.0], [10.0], [100.0]]))).ravel()
    array([210., 321.,  32.,  50.])

    Source: the operator `sequence_conv` of PaddlePaddle Fluid, which takes one level and, like this one, only strides
    of 1.
    """
    weight, bias, padding = (None if given is None else as_operand(given.data) for given in (weight, bias, padding))
    window, offsets = Window.of(filter_size, padding_start), levels_of(x.structure)[-1]
    return x.like(_products_of_conv(as_operand(x.data), offsets, window, weight, bias, padding))


class Window(NamedTuple):
    """The window of row t: the `taps` rows that begin at row `t + start`; the position in a window is called tap."""

    start: int
    taps: int

    @classmethod
    def of(cls, filter_size, padding_start):
        """Return the window that the constants of the operator describe."""
        return cls(-(filter_size // 2) if padding_start is None else padding_start, filter_size)

    @property
    def up(self):
        """The most rows of a window that lie before its sequence."""
        return max(0, -self.start)

    @property
    def padding_rows(self):
        """The most rows of a window that lie before its sequence, plus the most that lie after it."""
        return self.up + max(0, self.start + self.taps - 1)


def _products_of_conv(x, offsets, window, weight, bias=None, padding=None):
    """Return the products of all windows of rows with a weight."""
    out, edges = empty((len(x), weight.shape[1]), x), _leaving(offsets, window, len(x))
    if 2 * len(edges) >= len(x) or on_device(x):
        edges = evenly(len(x), offsets)
    else:  # multiply all windows in place; those at the ends of sequences read wrong rows, and are replaced below
        first, end = window.up, min(len(x), len(x) - window.start - window.taps + 1)
        gemm.product(x[first + window.start : end + window.start], weight, out[first:end], bias=bias)
    block = max(1, _BLOCK // len(weight))
    for first in range(0, len(edges), block):
        some = edges[first : first + block]
        products = empty((len(some), weight.shape[1]), x)
        gemm.product(_copied(x, offsets, window, padding, some), weight, products, bias=bias)
        if on_device(x):
            put_rows(out, some, products)
        else:
            windows.overwrite_listed(some, products, out)
    return out


def _leaving(offsets, window, num_rows):
    """Return the positions of the rows whose windows reach beyond their sequence; in a dry run, -1 fills the end."""
    edges = empty((min(num_rows, (len(offsets) - 1) * window.padding_rows),), offsets)
    windows.find_edges(offsets, window.start, window.taps, edges)
    return edges if type(edges) is Placeholder else edges[: np.count_nonzero(edges >= 0)]


def _copied(x, offsets, window, padding, rows):
    """Return a copy of the windows of the rows at positions `rows`, `(len(rows), taps * features)`."""
    at, of_padding = _places(offsets, window, rows, 0, window.taps)
    copied = empty((at.size, x.shape[1]), x)
    gather_rows(x, at.reshape(-1), copied)
    if padding is not None and on_device(x):
        outside = np.flatnonzero(at < 0)
        put_rows(copied, outside, rows_at(padding, of_padding.ravel()[outside]))
    elif padding is not None:
        windows.copy_padding(padding, of_padding.reshape(-1), copied)
    return copied.reshape(len(rows), window.taps * x.shape[1])


def _places(offsets, window, rows, first, count):
    """Return two arrays for `count` taps of the windows of `rows`: the row of `x`, and the row of the padding.

    Each place of a window has one of them, and -1 in the other array.
    """
    at, of_padding = (empty((len(rows), count), offsets) for _ in range(2))
    windows.place_windows(offsets, window.start + first, window.up, rows, at, of_padding)
    return at, of_padding


@sequence_conv.infer
def _infer_conv(x, weight, bias, padding, filter_size, padding_start):
    given = {"bias": bias, "padding": padding}
    check_float("sequence_conv", x=x, weight=weight, **{name: spec for name, spec in given.items() if spec})
    window = _check_window("sequence_conv", x, weight, filter_size, padding_start)
    check_rank("sequence_conv", "x", x, 2)
    check_shape("sequence_conv", "x", x, (-1, weight.shape[0] // filter_size))
    if bias:
        check_shape("sequence_conv", "bias", bias, weight.shape[1:])
    if padding:
        check_shape("sequence_conv", "padding", padding, (window.padding_rows, x.shape[1]))
    return TensorSpec((x.shape[0], weight.shape[1]), x.dtype, x.lod_level)


def _check_window(op, x, weight, filter_size, padding_start):
    """Return the window; raise unless its constants are in range, the weight fits it, and `x` has a LoD."""
    check_lod_level(op, "x", x)
    check_rank(op, "weight", weight, 2)
    if not 1 <= filter_size <= _FARTHEST:
        raise OutOfRangeError(f"{op}, filter_size", expected="at least 1", got=filter_size)
    if padding_start is not None and abs(padding_start) > _FARTHEST:
        raise OutOfRangeError(f"{op}, padding_start", expected=f"{-_FARTHEST} to {_FARTHEST}", got=padding_start)
    if 0 in weight.shape or (weight.shape[0] > 0 and weight.shape[0] % filter_size):
        expected = f"(filter_size * features, filters), with a filter_size of {filter_size}"
        raise ShapeError(f"{op}, weight", expected=expected, got=f"shape {weight.shape}")
    return Window.of(filter_size, padding_start)


# Gradients.  The gradient of a row is a window of the result's gradient, multiplied by the weights in reverse order.


@sequence_conv.grad
def _grad(inputs, outputs, d_outputs, **constants):
    (x, weight, _, padding), (d,) = inputs, d_outputs
    wanted = [variable is not None and variable.requires_grad for variable in inputs]
    return [
        apply("sequence_conv_grad", d, weight, **constants) if wanted[0] else None,
        apply("sequence_conv_weight_grad", d, x, weight, padding, **constants) if wanted[1] else None,
        apply("row_sum", d) if wanted[2] else None,
        apply("sequence_conv_padding_grad", d, weight, padding, **constants) if wanted[3] else None,
    ]


@operator(cost=lambda inputs, outputs, **constants: 2 * known(inputs[0].shape[0]) * size(inputs[1]), multiplies=True)
def sequence_conv_grad(d, weight, *, filter_size: int, padding_start: int | None):
    """Return the gradient of the rows of `sequence_conv`."""
    start, taps = Window.of(filter_size, padding_start)
    turned = as_operand(_turned(as_operand(weight.data), taps)[::-1]).reshape(-1, len(weight.data) // taps)
    offsets = levels_of(d.structure)[-1]
    return d.like(_products_of_conv(as_operand(d.data), offsets, Window(1 - start - taps, taps), turned))


def _turned(weight, taps):
    """Return the weights of each tap, transposed: `(taps, filters, features)`."""
    return weight.reshape(taps, -1, weight.shape[1]).transpose(0, 2, 1)


@sequence_conv_grad.infer
def _infer_grad(d, weight, filter_size, padding_start):
    check_float("sequence_conv_grad", d=d, weight=weight)
    _check_window("sequence_conv_grad", d, weight, filter_size, padding_start)
    check_shape("sequence_conv_grad", "d", d, (-1, weight.shape[1]))
    return d._replace(shape=(d.shape[0], weight.shape[0] // filter_size))


@operator(cost=lambda inputs, outputs, **constants: 2 * known(inputs[0].shape[0]) * size(inputs[2]), multiplies=True)
def sequence_conv_weight_grad(d, x, weight, padding=None, *, filter_size: int, padding_start: int | None):
    """Return the gradient of the weight of `sequence_conv`."""
    window, offsets = Window.of(filter_size, padding_start), levels_of(d.structure)[-1]
    rows = evenly(len(d.data), offsets)
    initial = zeros((1, x.shape[1]), x.data) if padding is None else as_operand(padding.data)
    d_rows, x_rows = as_operand(d.data), as_operand(x.data)
    d_weight = empty((filter_size, x.shape[1], d.shape[1]), x.data)
    for tap in range(filter_size):
        at, of_padding = _places(offsets, window, rows, tap, 1)
        listed = np.where(at < 0, -1 if padding is None else -1 - of_padding, at).reshape(-1)
        listed.flags.writeable = False  # as the rows of recurrent layers are, so that both use one kernel
        of_tap = row_sums.Factor(0, d.shape[1], x_rows, 0, x.shape[1], initial, listed)
        nothing = row_sums.Factor(0, 0, initial, 0, 0, initial, ALL_ROWS)
        assign(row_sums.row_products(d_rows, of_tap, nothing)[0].T, d_weight[tap])
    return LoDTensor.wrap(d_weight.reshape(-1, d.shape[1]))


@sequence_conv_weight_grad.infer
def _infer_weight_grad(d, x, weight, padding, filter_size, padding_start):
    op = "sequence_conv_weight_grad"
    check_float(op, d=d, x=x, weight=weight, **({"padding": padding} if padding else {}))
    window = _check_window(op, d, weight, filter_size, padding_start)
    check_shape(op, "d", d, (-1, weight.shape[1]))
    check_shape(op, "x", x, (d.shape[0], weight.shape[0] // filter_size))
    if padding:
        check_shape(op, "padding", padding, (window.padding_rows, x.shape[1]))
    return weight


@operator(cost=lambda inputs, outputs, **constants: 2 * known(inputs[2].shape[0]) * size(inputs[1]), multiplies=True)
def sequence_conv_padding_grad(d, weight, padding, *, filter_size: int, padding_start: int | None):
    """Return the gradient of the padding of `sequence_conv`."""
    window, offsets, d_rows = Window.of(filter_size, padding_start), levels_of(d.structure)[-1], as_operand(d.data)
    edges, count, filters = _leaving(offsets, window, len(d_rows)), len(padding.data), d.shape[1]
    sums = zeros((count * filter_size, filters), d.data)  # the sums over rows that read a row of padding at a tap
    for tap in range(filter_size):
        _, of_padding = _places(offsets, window, edges, tap, 1)
        listed, of_padding = edges, of_padding.reshape(-1)
        if on_device(d_rows):
            outside = np.flatnonzero(of_padding >= 0)
            listed, of_padding = edges[outside], of_padding[outside]
        ids = np.where(of_padding < 0, -1, of_padding * filter_size + tap)
        scatter_add_rows(rows_at(d_rows, listed), ids, sums)
    d_padding = empty(padding.shape, d.data)
    turned = as_operand(_turned(as_operand(weight.data), filter_size)).reshape(filter_size * filters, -1)
    gemm.product(sums.reshape(count, filter_size * filters), turned, d_padding)
    return LoDTensor.wrap(d_padding)


@sequence_conv_padding_grad.infer
def _infer_padding_grad(d, weight, padding, filter_size, padding_start):
    op = "sequence_conv_padding_grad"
    check_float(op, d=d, weight=weight, padding=padding)
    window = _check_window(op, d, weight, filter_size, padding_start)
    check_shape(op, "d", d, (-1, weight.shape[1]))
    check_shape(op, "padding", padding, (window.padding_rows, weight.shape[0] // filter_size))
    return padding


@sequence_conv.examples
def _conv_examples(rng):
    for filter_size, padding_start in ((3, None), (1, 0), (2, 1), (4, -5), (3, -1), (7, -3)):
        window = Window.of(filter_size, padding_start)
        weight, bias = rng.standard_normal((2 * filter_size, 3)), rng.standard_normal(3)
        padding = rng.standard_normal((window.padding_rows, 2))
        constants = {"filter_size": filter_size, "padding_start": padding_start}
        yield [rows(rng, 2), weight, bias, padding], constants
    for lod in TROUBLES:
        yield [rows(rng, 2, lod=lod), weight, None, padding], constants
        yield [rows(rng, 2, lod=lod), weight, None, None], constants


def _products_of_row_conv(inputs, outputs):
    """2 operations per element of each window."""
    return 2 * size(inputs[0]) * known(inputs[1].shape[0])


@operator(cost=_products_of_row_conv, rows=beside("sequence", 1))
def row_conv(x, weight):
    """Return, for each row t, the sum over k of `weight[k] * x[t + k]`, as far as its sequence has rows.

    Parameters
    ----------
    x : Variable or LoDTensor, shape `(rows, features)`
        float32 or float64, with at least one level; the sequences are taken from the last level.
    weight : Variable or array, shape `(future_context_size + 1, features)`

    Returns
    -------
    Variable like `x`, with its LoD

    Examples
    --------
    >>> x = LoDTensor(np.array([[1.0], [2.0], [3.0]]), [[0, 2, 3]])
    >>> np.asarray(row_conv(x, np.array([[1.0], [10.0]]))).ravel()
    array([21.,  2.,  3.])

    Source: the operator `row_conv` of PaddlePaddle Fluid, the row convolution of Deep Speech 2 (Amodei et al., 2016);
    a padded batch goes through `sequence_unpad` first.
    """
    return x.like(_convolved(x, x.structure, weight, 1))


def _convolved(x, lod, weight, direction):
    data, offsets = as_operand(x.data), levels_of(lod)[-1]
    out = empty(data.shape, data)
    windows.row_conv(data, offsets, as_operand(weight.data), direction, out)
    return out


@row_conv.infer
def _infer_row_conv(x, weight):
    check_float("row_conv", x=x, weight=weight)
    check_lod_level("row_conv", "x", x)
    check_rank("row_conv", "x", x, 2)
    check_shape("row_conv", "weight", weight, (-1, x.shape[1]))
    if weight.shape[0] == 0:
        raise ShapeError("row_conv, weight", expected="at least one row", got=f"shape {weight.shape}")
    return x


@row_conv.backward("x", "weight", cost=_products_of_row_conv)
def _row_conv_grad(x, weight, d_out):
    offsets = levels_of(x.structure)[-1]
    d_rows, rows = as_operand(d_out.data), as_operand(x.data)
    d_weight = empty(weight.shape, weight.data)
    if not on_device(rows):
        windows.row_conv_weight_grad(rows, d_rows, offsets, empty(rows.shape, rows), d_weight)
        return x.like(_convolved(d_out, x.structure, weight, -1)), LoDTensor.wrap(d_weight)
    left = np.repeat(offsets[1:], np.diff(offsets)) - np.arange(len(x.data))  # rows from each to the sequence's end
    for k in range(len(d_weight)):
        at = np.flatnonzero(left > k)
        assign(sum_over(multiply(rows_at(d_rows, at), rows_at(rows, at + k)), 0), d_weight[k])
    return x.like(_convolved(d_out, x.structure, weight, -1)), LoDTensor.wrap(d_weight)


@row_conv.examples
def _row_conv_examples(rng):
    for context in (1, 2, 5):
        yield [rows(rng, 3), rng.standard_normal((context, 3))], {}
    for lod in TROUBLES:
        yield [rows(rng, 2, lod=lod), rng.standard_normal((2, 2))], {}
