"""Variables side by side along an axis, and the way back."""

import numpy as np

from varlen_rnn.errors import ShapeError, check_int
from varlen_rnn.lod import NO_LOD, LoDTensor
from varlen_rnn.ops.checks import check_float, check_like, check_shape, shared_lod
from varlen_rnn.tape.kinds import LOD_TENSOR
from varlen_rnn.tape.operator import Op, register
from varlen_rnn.tape.spec import TensorSpec, sizes_fit
from varlen_rnn.tape.variable import apply_list


def _infer_concat(*descs, axis):
    dtype = descs[0].dtype
    check_float("concat", **{"x[0]": descs[0]})
    for number, desc in enumerate(descs):
        if desc.dtype is not dtype or desc.kind is not LOD_TENSOR:  # a name costs more than the comparison
            check_float("concat", **{"x[0]": descs[0], f"x[{number}]": desc})
    axis, rank = check_int(axis, "concat, axis"), len(descs[0].shape)
    if not -rank <= axis < rank:
        raise ShapeError("concat, axis", expected=f"an axis of shape {descs[0].shape}", got=axis)
    axis %= rank
    before, after = descs[0].shape[:axis], descs[0].shape[axis + 1 :]
    shape = *before, -1, *after
    for number, desc in enumerate(descs):
        if not sizes_fit(desc.shape, shape):
            check_shape("concat", f"x[{number}]", desc, shape)
    sizes = [desc.shape[axis] for desc in descs]
    size = -1 if -1 in sizes else sum(sizes)
    lod_level = max([desc.lod_level for desc in descs]) if axis else 0
    return [TensorSpec((*before, size, *after), descs[0].dtype, lod_level)]


def _infer_split_like(d, *like, axis):
    check_like("split_like", "d", d, *_infer_concat(*like, axis=axis))
    return list(like)


def _concat(*tensors, axis):
    lod = shared_lod("concat", *tensors) if axis % tensors[0].data.ndim else NO_LOD
    return [LoDTensor.wrap(np.concatenate([tensor.data for tensor in tensors], axis=axis), lod)]


def _concat_grad(inputs, outputs, d_outputs, axis):
    return apply_list("split_like", d_outputs[0], *inputs, axis=axis)


def _split_like(d, *like, axis):
    cuts = np.cumsum([tensor.shape[axis] for tensor in like])[:-1]
    parts = np.split(d.data, cuts, axis=axis)
    return [tensor.like(np.ascontiguousarray(part)) for part, tensor in zip(parts, like, strict=True)]


register(Op("concat", ("*x",), _infer_concat, _concat, _concat_grad, attrs={"axis": "int"}))
register(Op("split_like", ("d", "*like"), _infer_split_like, _split_like, outputs=("*out",), attrs={"axis": "int"}))
