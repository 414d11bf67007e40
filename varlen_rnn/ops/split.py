"""Split of a Variable along an axis.  The pieces keep the LoD unless the axis is the rows."""

from varlen_rnn.errors import ShapeError, shown
from varlen_rnn.kernels.copies import assign, divided, places_along
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import rows
from varlen_rnn.rows.lod import NO_LOD, LoDTensor
from varlen_rnn.runtime.device import zeros
from varlen_rnn.tape.checks import check_like, check_tensor
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import apply


@operator(outputs=("*out",), cost=nothing, rows="each")
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
        raise ShapeError("split, sizes", expected="at least one, and none negative", got=shown(sizes))
    if sum(sizes) != x.shape[axis] != -1:
        raise ShapeError("split, sizes", expected=f"{x.shape[axis]} in sum, as the axis", got=shown(sizes))
    axis %= len(x.shape)
    before, after, level = x.shape[:axis], x.shape[axis + 1 :], x.lod_level if axis else 0
    return [TensorSpec((*before, size, *after), x.dtype, level) for size in sizes]


@split.grad
def _grad(inputs, outputs, d_outputs, sizes, axis):
    return [apply("split_grad", *inputs, *d_outputs, sizes=sizes, axis=axis)]


@split.examples
def _examples(rng):
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
