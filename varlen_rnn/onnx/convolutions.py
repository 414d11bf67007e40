"""Convert ONNX's one-dimensional `Conv`, and `Pad`.

A convolution is a product of windows with the kernel.  If there is one window, it is read where it lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from varlen_rnn import nn
from varlen_rnn.nn import functional as F
from varlen_rnn.onnx.checks import Unread
from varlen_rnn.onnx.nodes import reads
from varlen_rnn.onnx.table import axis_of
from varlen_rnn.onnx.values import SEQUENCES, STEPS, Rows, like, rank_of, variable_of
from varlen_rnn.ops.sequence.conv import sequence_conv
from varlen_rnn.ops.sequence.im2sequence import im2sequence
from varlen_rnn.ops.sequence.structure import lod_reset
from varlen_rnn.tape.variable import Variable, apply

_MOST = 2**26  # the most numbers of a kernel with the zeros between its taps
_MOST_PADDING = 2**20  # the most numbers that are added to an axis, because a damaged model could ask for any number


@reads("Conv")
def _conv(
    kind: str, x: Any, w: Any, b: Any, auto_pad: str = "NOTSET", dilations: Sequence[int] | None = None,
    group: int = 1, kernel_shape: Sequence[int] | None = None, pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:  # fmt: skip
    if not isinstance(w, np.ndarray) or not (b is None or isinstance(b, np.ndarray)):
        raise Unread("whose weights are computed")
    if w.ndim != 3 or rank_of(x) != 3:
        raise Unread("in other than one dimension")
    if auto_pad not in ("NOTSET", "VALID") or list(kernel_shape or w.shape[2:]) != list(w.shape[2:]):
        raise Unread(f"with auto_pad {auto_pad!r} and kernel_shape {kernel_shape}, for a kernel of {w.shape[2]}")
    (stride,), (step,) = (list(given or [1]) if len(given or [1]) == 1 else [0] for given in (strides, dilations))
    pads = list(pads or (0, 0))
    span = (w.shape[2] - 1) * step + 1
    if min(stride, step, group) < 1 or len(pads) != 2 or min(pads) < 0 or max(pads) >= span or 0 in w.shape:
        raise Unread(f"with strides {strides}, dilations {dilations}, group {group} and pads {pads}")
    if len(w) % group or (b is not None and b.shape != w.shape[:1]) or w[:, :, :1].size * span > _MOST:
        raise Unread(f"with a weight {w.shape}, a bias {None if b is None else b.shape} and {group} groups")
    kernel = np.zeros((*w.shape[:2], span), w.dtype)
    kernel[:, :, ::step] = w
    if isinstance(x, Rows) and x.axes == (SEQUENCES, 0, STEPS):
        return _along_steps(x, kernel, b, (stride, group), pads)
    if isinstance(x, Rows) and x.axes != (STEPS, 0, 1):
        raise Unread(f"over the axes {x.axes}")
    values = variable_of(x)
    _, channels, length = values.shape
    if channels != group * w.shape[1] or length == -1 or length + sum(pads) < span:
        raise Unread(f"of {channels} channels of {length} numbers, with a weight {w.shape} and {group} groups")
    parts = F.split(values, [w.shape[1]] * group, axis=1) if group > 1 else [values]
    biases = [None] * group if b is None else np.split(b, group)
    found = [_convolved(*one, stride, pads) for one in zip(parts, np.split(kernel, group), biases, strict=True)]
    whole = found[0] if group == 1 else F.concat(found, axis=1)
    return like(x, lod_reset(whole, values) if isinstance(x, Rows) else whole)


def _along_steps(x: Rows, kernel: np.ndarray, b: Any, others: tuple[int, int], pads: Sequence[int]) -> Rows:
    filters, channels, span = kernel.shape
    if others != (1, 1) or sum(pads) != span - 1 or x.variable.shape[1:] != (channels,):
        raise Unread(f"along the steps of sequences, with stride and group {others} and pads {pads}")
    weight = nn.Parameter(np.ascontiguousarray(kernel.transpose(2, 1, 0).reshape(span * channels, filters)))
    bias = None if b is None else nn.Parameter(b)
    found = sequence_conv(x.variable, weight, bias, filter_size=span, padding_start=-pads[0])
    return x._replace(variable=found)


def _convolved(x: Variable, kernel: np.ndarray, b: Any, stride: int, pads: Sequence[int]) -> Variable:
    """Return the convolution of `x`, (rows, channels, length), as (rows, filters, positions)."""
    (filters, channels, span), length = kernel.shape, x.shape[2]
    count = (length + sum(pads) - span) // stride + 1
    if count == 1 and length > span - pads[0]:  # numbers behind the only window are not read
        x = x[:, :, : span - pads[0]]
        length = x.shape[2]
    if count == 1:
        kernel = kernel[:, :, pads[0] : pads[0] + length]  # the numbers before and behind are padding
        return _product(x.reshape(-1, channels * length), kernel.reshape(filters, -1), b).reshape(-1, filters, 1)
    windows = im2sequence(x.reshape(-1, channels, 1, length), (1, span), (1, stride), (0, pads[0], 0, pads[1]))
    found = _product(windows, kernel.reshape(filters, channels * span), b).reshape(-1, count, filters)
    return found.transpose(1, 2)


def _product(x: Variable, weight: np.ndarray, b: Any) -> Variable:
    weight = np.ascontiguousarray(weight.T)  # few rows are then multiplied without packing it
    return apply("matmul", x, nn.Parameter(weight), None if b is None else nn.Parameter(b), transposed=False)


@reads("Pad")
def _pad(kind: str, x: Any, pads: Any, constant_value: Any = None, axes: Any = None, mode: str = "constant") -> Any:
    axes = list(range(rank_of(x))) if axes is None else axes
    number = 0.0 if constant_value is None else constant_value
    if len(pads) != 2 * len(axes) or min(pads, default=0) < 0 or np.size(number) != 1:
        raise Unread(f"with pads {pads} of the axes {axes}")
    if mode not in ("constant", "reflect", "edge") or not isinstance(number, (float, np.ndarray)):
        raise Unread(f"with the mode {mode!r}, or with a computed number")
    found = variable_of(x)
    for axis, before, behind in zip(axes, pads, pads[len(axes) :], strict=False):
        if before or behind:
            found = _padded(found, axis_of(x, axis), (before, behind), mode, np.ravel(number)[0])
    return like(x, found)


def _padded(x: Variable, axis: int, pads: tuple[int, int], mode: str, number: Any) -> Variable:
    size, at = x.shape[axis], lambda part: (*[slice(None)] * axis, part)
    if size < 1 or max(pads) > _MOST_PADDING or (mode == "reflect" and max(pads) >= size):
        raise Unread(f"that adds {pads} numbers to an axis of size {size} by {mode!r}")
    before, behind = pads
    if mode == "reflect":
        parts = [x[at(slice(before, 0, -1))] if before else None, x]
        parts += [x[at(slice(size - 2, size - 2 - behind if behind <= size - 2 else None, -1))] if behind else None]
    else:
        parts = [_repeated(x[at(slice(0, 1))], axis, before, mode, number), x]
        parts += [_repeated(x[at(slice(size - 1, size))], axis, behind, mode, number)]
    return F.concat([part for part in parts if part is not None], axis=axis)


def _repeated(edge: Variable, axis: int, count: int, mode: str, number: Any) -> Variable | None:
    """Return `count` copies of one place of an axis, or of a number in the shape of these copies; None if 0 copies."""
    if not count:
        return None
    is_edge = np.full((count, *[1] * (edge.ndim - axis - 1)), mode == "edge")
    return F.where(is_edge, edge, Variable(np.asarray(number, edge.dtype)))
