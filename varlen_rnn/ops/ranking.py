"""The largest elements along an axis, and their indices.  The LoD is kept unless the axis is the rows."""

import numpy as np

from varlen_rnn.errors import ShapeError
from varlen_rnn.kernels.largest import put_along, top
from varlen_rnn.kernels.reductions import argmax_over
from varlen_rnn.ops.cost import per_input_element
from varlen_rnn.ops.examples import rows
from varlen_rnn.ops.reductions import shape_after
from varlen_rnn.rows.lod import NO_LOD, LoDTensor
from varlen_rnn.runtime.device import zeros
from varlen_rnn.tape.checks import check_float, check_like, check_tensor
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec

_INT64 = np.dtype(np.int64)


def _check_axis(op, x, axis):
    check_tensor(op, "x", x)
    if not -len(x.shape) <= axis < len(x.shape):
        raise ShapeError(f"{op}, axis", expected=f"an axis of shape {x.shape}", got=axis)


def _lod_after(x, axis):
    return x.structure if axis is not None and axis % x.data.ndim > x.structure.axis else NO_LOD


@operator(cost=per_input_element, rows="each")
def argmax(x, axis: int | None, keepdims: bool):
    """Return the index of the largest element, of all or along an axis; of equal elements, the first index."""
    found = argmax_over(x.data, axis if axis is None else axis % x.data.ndim)
    return LoDTensor.wrap(found.reshape(shape_after(x, axis, keepdims)), _lod_after(x, axis))


@argmax.infer
def _infer_argmax(x, axis, keepdims):
    check_tensor("argmax", "x", x)
    if axis is not None:
        _check_axis("argmax", x, axis)
    if 0 in (x.shape if axis is None else (x.shape[axis],)):
        raise ShapeError("argmax, x", expected="at least one element", got=f"shape {x.shape}")
    if axis is None:
        return TensorSpec((1,) * len(x.shape) if keepdims else (), _INT64)
    axis %= len(x.shape)
    shape = x.shape[:axis] + ((1,) if keepdims else ()) + x.shape[axis + 1 :]
    return TensorSpec(shape, _INT64, x.lod_level if axis else 0)


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
    return values, values._replace(dtype=_INT64)


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
