"""Sums, means, extremes, running sums and the largest elements, over all elements or along an axis.

The LoD is kept unless the axis is the axis of rows.
"""

import numpy as np

from varlen_rnn.errors import LoDError, ShapeError
from varlen_rnn.kernels.arithmetic import divide, maximum
from varlen_rnn.kernels.copies import full, spread_over
from varlen_rnn.kernels.largest import put_along, top
from varlen_rnn.kernels.reductions import (
    argmax_over,
    max_over,
    mean_over,
    min_over,
    running_sums,
    share_among_equal,
    sum_over,
)
from varlen_rnn.ops.cost import nothing, per_input_element
from varlen_rnn.ops.examples import rows
from varlen_rnn.ops.indices import INT64
from varlen_rnn.rows.lod import NO_LOD, LoDTensor
from varlen_rnn.runtime.device import beside, zeros
from varlen_rnn.tape.array_methods import operand
from varlen_rnn.tape.checks import check_float, check_like, check_tensor
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import apply

_TINY = float(np.finfo(np.float32).tiny)


@operator(cost=per_input_element, rows="each")
def reduce_sum(x, axis: int | None, keepdims: bool):
    """Return the sum of all elements, or over an axis; the LoD is kept unless the axis is the rows."""
    return LoDTensor.wrap(_reshaped(sum_over, x, axis, keepdims), _lod_after(x, axis))


@operator(cost=per_input_element, rows="each")
def reduce_mean(x, axis: int | None, keepdims: bool, of_nothing: float | None = None):
    """Return the mean of all elements, or over an axis; if there are none, return `of_nothing`, by default NaN."""
    count = x.data.size if axis is None else x.data.shape[axis]
    if count or of_nothing is None:
        data = _reshaped(mean_over, x, axis, keepdims)
    else:
        data = full(_shape_after(x, axis, keepdims), of_nothing, x.data)
    return LoDTensor.wrap(data, _lod_after(x, axis))


# A loss over several ranks (processes) is the sum of their losses, or their mean weighted by `divisor`; see
# `distributed/reductions.py`.
reduce_sum.op.divisor = lambda x, axis, keepdims: None
reduce_mean.op.divisor = lambda x, axis, keepdims, of_nothing=None: x.data.size


def _reshaped(reduce, x, axis, keepdims):
    """Return `reduce(array, axis)`; if `keepdims`, each reduced axis stays, with size 1."""
    return reduce(x.data, axis if axis is None else axis % x.data.ndim).reshape(_shape_after(x, axis, keepdims))


def _shape_after(x, axis, keepdims):
    kept = (1,) if keepdims else ()
    if axis is None:
        return kept * x.data.ndim
    axis %= x.data.ndim
    return x.shape[:axis] + kept + x.shape[axis + 1 :]


def _lod_after(x, axis):
    return NO_LOD if axis is None or axis % x.data.ndim <= x.structure.axis else x.structure


@reduce_sum.infer
def _infer_sum(x, axis, keepdims):
    if x.dtype != INT64:  # as `Variable.sum` converts bools and integers
        return _infer(x, axis, keepdims)
    check_tensor("reduce", "x", x)
    return _reduced(x, axis, keepdims)


@reduce_mean.infer
def _infer(x, axis, keepdims, of_nothing=None):
    check_float("reduce", x=x)
    return _reduced(x, axis, keepdims)


def _reduced(x, axis, keepdims):
    if axis is None:
        return TensorSpec((1,) * len(x.shape) if keepdims else (), x.dtype)
    if not (isinstance(axis, int) and -len(x.shape) <= axis < len(x.shape)):
        raise ShapeError("reduce, axis", expected=f"an axis of x, which has shape {x.shape}, or None", got=axis)
    axis %= len(x.shape)
    shape = x.shape[:axis] + ((1,) if keepdims else ()) + x.shape[axis + 1 :]
    return TensorSpec(shape, x.dtype, x.lod_level if axis else 0)


@operator(cost=per_input_element, rows="each")
def reduce_max(x, axis: int | None, keepdims: bool):
    """Return the largest of all elements, or over an axis, or NaN; equal elements share the gradient."""
    return _extreme("reduce_max", max_over, x, axis, keepdims)


@operator(cost=per_input_element, rows="each")
def reduce_min(x, axis: int | None, keepdims: bool):
    """Return the smallest of all elements, or over an axis, or NaN; equal elements share the gradient."""
    return _extreme("reduce_min", min_over, x, axis, keepdims)


def _extreme(op, reduce, x, axis, keepdims):
    if 0 in (x.shape if axis is None else (x.shape[axis],)):
        raise ShapeError(f"{op}, x", expected="at least one element", got=f"shape {x.shape}, axis {axis}")
    return LoDTensor.wrap(_reshaped(reduce, x, axis, keepdims), _lod_after(x, axis))


@reduce_max.infer
@reduce_min.infer
def _infer_extreme(x, axis, keepdims):
    check_tensor("reduce", "x", x)
    return _reduced(x, axis, keepdims)


def _rows_of_extreme_grad(specs, axes, axis, keepdims):
    return "each" if len({given is None for given in axes}) == 1 else None  # otherwise, rows were compared


@reduce_max.backward("x", rows=_rows_of_extreme_grad)
def _max_grad(x, out, d_out, axis, keepdims):
    return _shared(x, out, d_out, axis, keepdims)


@reduce_min.backward("x", rows=_rows_of_extreme_grad)
def _min_grad(x, out, d_out, axis, keepdims):
    return _shared(x, out, d_out, axis, keepdims)


def _shared(x, out, d_out, axis, keepdims):
    axis = axis if axis is None else axis % x.data.ndim
    shape = () if axis is None else _shape_after(x, axis, keepdims=True)
    return x.like(share_among_equal(x.data, out.data.reshape(shape), d_out.data.reshape(shape), axis))


@reduce_max.examples
@reduce_min.examples
def _examples_of_extreme(rng):
    for axis in (None, 0, 1, -1):
        for keepdims in (False, True):
            yield [rows(rng, 3)], {"axis": axis, "keepdims": keepdims}
    yield [rng.integers(0, 9, (4, 3))], {"axis": 1, "keepdims": False}


@reduce_sum.grad
def _grad_of_sum(inputs, outputs, d_outputs, axis, keepdims):
    return [apply("reduce_grad", inputs[0], d_outputs[0], axis=axis, keepdims=keepdims, scale=False)]


@reduce_mean.grad
def _grad_of_mean(inputs, outputs, d_outputs, axis, keepdims, of_nothing=None):
    return [apply("reduce_grad", inputs[0], d_outputs[0], axis=axis, keepdims=keepdims, scale=True)]


@reduce_mean.examples
def _examples(rng):
    for axis in (None, 0, 1, -1):
        for keepdims in (False, True):
            yield [rows(rng, 3)], {"axis": axis, "keepdims": keepdims}


@reduce_sum.examples
def _examples_of_sum(rng):
    yield from _examples(rng)
    for axis in (None, 0, 1):
        yield [rng.integers(-9, 9, (60, 3))], {"axis": axis, "keepdims": False}


def _rows_of_grad(specs, axes, axis, keepdims, scale):
    # If only `x` or only `d_y` has rows, rows were added, and a mean depends on their number.
    return "each" if (axes[0] is None) == (axes[1] is None) else None


@operator(cost=nothing, rows=_rows_of_grad)
def reduce_grad(x, d_y, axis: int | None, keepdims: bool, scale: bool):
    """Return the gradient of a sum or mean: `d_y` for every element, divided by the number of elements if `scale`."""
    count = x.data.size if axis is None else x.data.shape[axis]
    d = beside(d_y.data, x.data)  # in a dry run, a loss's own gradient of 1 must not become constants for each size
    return x.like(spread_over(d, x.shape, axis if axis is None else axis % x.data.ndim, count if scale else 1))


@reduce_grad.infer
def _infer_grad(x, d_y, axis, keepdims, scale):
    check_like("reduce_grad", "d_y", d_y, _infer(x, axis, keepdims))
    return x


@reduce_grad.examples
def _examples_of_grad(rng):
    yield [rows(rng, 3), rng.standard_normal(3)], {"axis": 0, "keepdims": False, "scale": True}


@operator(cost=per_input_element, rows="each")
def weighted_mean(x, weight):
    """Return the sum of all elements divided by `weight`, their total weight; 0 if the total weight is 0."""
    return LoDTensor.wrap(divide(sum_over(x.data, None), maximum(weight.data, weight.dtype.type(_TINY))))


weighted_mean.examples(lambda rng: [([rows(rng, 3), rng.random(()) + 0.5], {})])


@weighted_mean.infer
def _infer_weighted(x, weight):
    check_float("weighted_mean", x=x, weight=weight)
    found = TensorSpec((), x.dtype)
    check_like("weighted_mean", "weight", weight, found)
    return found


@weighted_mean.grad
def _grad_of_weighted(inputs, outputs, d_outputs):
    (x, weight), d = inputs, d_outputs[0]
    tiny = operand(_TINY, weight)
    d_sum = d * (operand(1.0, weight) / apply("maximum", weight, tiny))  # with the bits of `reduce_grad`
    d_x = apply("reduce_grad", x, d_sum, axis=None, keepdims=False, scale=False) if x.requires_grad else None
    if not weight.requires_grad:
        return [d_x, None]
    return [d_x, apply("where", weight > tiny, -(d_sum * outputs[0]), operand(0.0, weight))]


weighted_mean.op.divisor = lambda x, weight: weight.data.item()


def _check_axis(op, x, axis):
    check_tensor(op, "x", x)
    if not -len(x.shape) <= axis < len(x.shape):
        raise ShapeError(f"{op}, axis", expected=f"an axis of shape {x.shape}", got=axis)


@operator(cost=per_input_element, rows="each")
def argmax(x, axis: int | None, keepdims: bool):
    """Return the index of the largest element, or the largest along an axis; the first if several are equal."""
    found = argmax_over(x.data, axis if axis is None else axis % x.data.ndim)
    return LoDTensor.wrap(found.reshape(_shape_after(x, axis, keepdims)), _lod_after(x, axis))


@argmax.infer
def _infer_argmax(x, axis, keepdims):
    check_tensor("argmax", "x", x)
    if axis is not None:
        _check_axis("argmax", x, axis)
    if 0 in (x.shape if axis is None else (x.shape[axis],)):
        raise ShapeError("argmax, x", expected="at least one element", got=f"shape {x.shape}")
    return _reduced(x, axis, keepdims)._replace(dtype=INT64)


@argmax.examples
def _examples_of_argmax(rng):
    for axis in (None, 0, -1):
        for keepdims in (False, True):
            yield [rows(rng, 3)], {"axis": axis, "keepdims": keepdims}


@operator(outputs=("values", "indices"), cost=per_input_element, rows="each")
def topk(x, k: int, axis: int):
    """Return the `k` largest elements along an axis, the largest first, and their indices."""
    lod = _lod_after(x, axis)
    return tuple(LoDTensor.wrap(out, lod) for out in top(x.data, k, axis % x.data.ndim))


@topk.infer
def _infer_topk(x, k, axis):
    _check_axis("topk", x, axis)
    if k < 1 or k > x.shape[axis] != -1:
        raise ShapeError("topk, k", expected=f"1 to {x.shape[axis]}, the size of the axis", got=k)
    axis %= len(x.shape)
    values = TensorSpec((*x.shape[:axis], k, *x.shape[axis + 1 :]), x.dtype, x.lod_level if axis else 0)
    return values, values._replace(dtype=INT64)


@topk.backward("x", aliases={"d_y": "d_values"})
def _topk_grad(x, indices, d_y, k, axis):
    data = zeros(x.shape, x.data)
    if d_y is not None:
        put_along(d_y.data, indices.data, axis % x.data.ndim, data)
    return x.like(data)


@_topk_grad.infer
def _infer_topk_grad(x, indices, d_y, k, axis):
    values, places = _infer_topk(x, k, axis)
    check_float("topk_grad", x=x)
    check_like("topk_grad", "indices", indices, places)
    if d_y is not None:
        check_like("topk_grad", "d_y", d_y, values)
    return x


@topk.examples
def _examples_of_topk(rng):
    yield [rows(rng, 5)], {"k": 2, "axis": -1}
    yield [rows(rng, 3)], {"k": 4, "axis": 0}
    yield [rng.standard_normal((2, 3, 2))], {"k": 3, "axis": 1}


@operator(rows=lambda specs, axes, axis: "each" if axes[0] != axis % len(specs[0].shape) else None)
def cumsum(x, axis: int):
    """Return cumulative sums along an axis other than the rows of sequences."""
    return x.like(running_sums(x.data, axis))


@cumsum.infer
def _infer_cumsum(x, axis):
    check_float("cumsum", x=x)
    _check_axis("cumsum", x, axis)
    if x.lod_level and axis % len(x.shape) == 0:
        hint = "sequence_cumsum sums within each sequence; without a LoD, cumsum runs over all rows"
        raise LoDError("cumsum, axis", expected="an axis of features, because x has a LoD", got="the rows", hint=hint)
    return x


@cumsum.backward("x", aliases={"d_y": "d_out"})
def _cumsum_grad(x, d_y, axis):
    return x.like(running_sums(d_y.data, axis, backwards=True))


@cumsum.examples
def _cumsum_examples(rng):
    yield [rows(rng, 3)], {"axis": -1}
    yield [rng.standard_normal((4, 2))], {"axis": 0}
