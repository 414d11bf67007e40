"""Concatenate arrays along an axis, or split them.  The LoD is kept unless the axis is the axis of rows."""

from varlen_rnn.errors import ShapeError, check_int, shown
from varlen_rnn.kernels.copies import assign, divided, joined, places_along
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import rows
from varlen_rnn.rows.lod import NO_LOD, LoDTensor
from varlen_rnn.runtime.device import zeros
from varlen_rnn.tape.checks import check_float, check_like, check_shape, check_tensor, shared_lod
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.kinds import LOD_TENSOR
from varlen_rnn.tape.spec import TensorSpec, sizes_fit
from varlen_rnn.tape.variable import apply, apply_list


def _rows(specs, axes, axis):
    axis %= len(specs[0].shape)
    if axis not in axes:
        return "each"
    return ("batch", axis) if set(axes) == {axis} else None  # each rank would add an operand without rows again


@operator(cost=nothing, rows=_rows)
def concat(*x, axis: int):
    """Concatenate Variables along an axis; the result keeps the LoD unless the axis is the rows."""
    lod = shared_lod("concat", *x) if axis % x[0].data.ndim != x[0].structure.axis else NO_LOD
    return LoDTensor.wrap(joined([tensor.data for tensor in x], axis), lod)


concat.grad(lambda inputs, outputs, d_outputs, axis: apply_list("split_like", d_outputs[0], *inputs, axis=axis))


@concat.infer
def _infer_concat(*descs, axis):
    dtype = descs[0].dtype
    check_float("concat", **{"x[0]": descs[0]})
    for number, desc in enumerate(descs):
        if desc.dtype is not dtype or desc.kind is not LOD_TENSOR:  # before a name is formatted, which takes longer
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
    return TensorSpec((*before, size, *after), descs[0].dtype, lod_level)


@concat.examples
def _concat_examples(rng):
    yield [rows(rng, 3), rows(rng, 2)], {"axis": -1}
    yield [rows(rng, 3), rng.standard_normal((6, 1)), rows(rng, 2)], {"axis": 1}
    yield [rng.standard_normal((2, 3)), rng.standard_normal((1, 3))], {"axis": 0}


@operator(outputs=("*out",), cost=nothing, rows="each")
def split_like(d, *like, axis: int):
    """Split `d` along an axis into pieces with the shapes and LoDs of the Variables in `like`."""
    parts = divided(d.data, [tensor.shape[axis] for tensor in like], axis)
    return tuple(tensor.like(part) for part, tensor in zip(parts, like, strict=True))


split_like.examples(lambda rng: [([rows(rng, 5), rows(rng, 3), rows(rng, 2)], {"axis": 1})])


@split_like.infer
def _infer_split_like(d, *like, axis):
    check_like("split_like", "d", d, _infer_concat(*like, axis=axis))
    return like


@operator(outputs=("*out",), cost=nothing, rows="each", shares=True)
def split(x, sizes: tuple[int, ...], axis: int):
    """Return pieces of `x` with given sizes along an axis; they keep the LoD unless the axis is the rows."""
    lod = x.structure if axis % x.data.ndim != x.structure.axis else NO_LOD
    return tuple(LoDTensor.wrap(part, lod) for part in divided(x.data, sizes, axis))


@split.infer
def _infer(x, sizes, axis):
    check_tensor("split", "x", x)
    if not -len(x.shape) <= axis < len(x.shape):
        raise ShapeError("split, axis", expected=f"an axis of shape {x.shape}", got=axis)
    if not sizes or min(sizes) < 0:
        raise ShapeError("split, sizes", expected="at least one size, and no negative size", got=shown(sizes))
    if sum(sizes) != x.shape[axis] != -1:
        raise ShapeError("split, sizes", expected=f"sizes with the sum {x.shape[axis]}, as the axis", got=shown(sizes))
    axis %= len(x.shape)
    before, after, level = x.shape[:axis], x.shape[axis + 1 :], x.lod_level if axis else 0
    return [TensorSpec((*before, size, *after), x.dtype, level) for size in sizes]


@split.grad
def _grad(inputs, outputs, d_outputs, sizes, axis):
    return [apply("split_grad", *inputs, *d_outputs, sizes=sizes, axis=axis)]


@split.examples
def _split_examples(rng):
    yield [rows(rng, 5)], {"sizes": (2, 0, 3), "axis": -1}
    yield [rows(rng, 5)], {"sizes": (5, 1), "axis": 0}
    yield [rng.standard_normal((2, 3, 2))], {"sizes": (1, 2), "axis": 1}


@operator(may_miss=("d",), cost=nothing, rows="each")
def split_grad(x, *d, sizes: tuple[int, ...], axis: int):
    """Return the gradient of `split`: the gradients of the pieces, concatenated, with zeros for a missing gradient."""
    whole = zeros(x.shape, x.data)
    for place, given in zip(places_along(sizes, axis % x.data.ndim), d, strict=True):
        if given is not None:
            assign(given.data, whole[place])
    return x.like(whole)


split_grad.examples(lambda rng: [([rows(rng, 3), None, rows(rng, 2)], {"sizes": (1, 2), "axis": 1})])


@split_grad.infer
def _infer_grad(x, *d, sizes, axis):
    pieces = _infer(x, sizes, axis)
    if len(d) != len(pieces):
        raise ShapeError("split_grad, d", expected=f"{len(pieces)} gradients", got=len(d))
    for number, (given, piece) in enumerate(zip(d, pieces, strict=True)):
        if given is not None:
            check_like("split_grad", f"d[{number}]", given, piece)
    return x
