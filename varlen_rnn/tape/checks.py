"""Checks of operands that operators share: data type, rank, shape, LoD.  Every error names the operator `op`."""

import numpy as np

from varlen_rnn.errors import DTypeError, LoDError, ShapeError
from varlen_rnn.rows.lod import NO_LOD
from varlen_rnn.tape.kinds import LOD_TENSOR
from varlen_rnn.tape.spec import sizes_fit, spec_of_tensor

# Instances of np.dtype, because NumPy would convert scalar types such as np.float32 at every comparison.
FLOATS = frozenset({np.dtype(np.float32), np.dtype(np.float64)})


def check_float(op, **descs):
    """Raise unless all operands are tensors of one floating data type."""
    dtype = None
    for name, desc in descs.items():
        if dtype is None:
            dtype = desc.dtype
            if desc.kind is not LOD_TENSOR or dtype not in FLOATS:
                converts = desc.kind is LOD_TENSOR and desc.dtype.kind in "biu"
                hint = "x.astype(np.float32) converts" if converts else None
                raise DTypeError(f"{op}, {name}", expected="float32 or float64", got=_kind(desc), hint=hint)
        elif desc.kind is not LOD_TENSOR or desc.dtype != dtype:
            _refuse_mixed(op, name, desc, dtype, next(iter(descs)))


def check_same_dtype(op, **descs):
    """Raise unless all operands are tensors with the data type of the first one."""
    first, *others = descs
    dtype = descs[first].dtype
    for name in others:
        if descs[name].kind is not LOD_TENSOR or descs[name].dtype != dtype:
            _refuse_mixed(op, name, descs[name], dtype, first)


def _refuse_mixed(op, name, desc, dtype, first):
    hint = "convert one of them: x.astype(dtype); the library never mixes data types silently"
    if desc.kind is LOD_TENSOR and desc.dtype.kind == "b":
        hint = "functional.where(mask, x, 0.0) chooses by a mask"
    raise DTypeError(f"{op}, {name}", expected=f"{dtype}, as {first} has", got=_kind(desc), hint=hint)


def check_integer(op, **descs):
    """Raise unless all operands are tensors of integers."""
    for name, desc in descs.items():
        if desc.kind is not LOD_TENSOR or desc.dtype.kind not in "iu":
            hint = "an empty list needs a type: np.array([], np.int64)" if desc.shape[:1] == (0,) else None
            raise DTypeError(f"{op}, {name}", expected="integers", got=_kind(desc), hint=hint)


def _kind(desc):
    return str(desc.dtype) if desc.kind is LOD_TENSOR else desc.kind.name


def check_like(op, name, desc, like):
    """Raise unless a tensor has the data type and shape of `like`, as a gradient and its variable do."""
    if desc.kind is not LOD_TENSOR or desc.dtype != like.dtype:
        raise DTypeError(f"{op}, {name}", expected=str(like.dtype), got=_kind(desc))
    if not sizes_fit(desc.shape, like.shape):  # inlined, because every gradient passes this check
        check_shape(op, name, desc, like.shape)


def check_kind(op, name, desc, kind):
    """Raise unless an operand is of a kind, such as a tensor or a plan."""
    if desc.kind != kind:
        raise DTypeError(f"{op}, {name}", expected=f"a {kind.name}", got=_kind(desc))


def check_tensor(op, name, desc):
    """Raise unless an operand is a tensor, of any data type."""
    check_kind(op, name, desc, LOD_TENSOR)


def check_rank(op, name, desc, rank, hint=None):
    """Raise unless an operand has `rank` axes."""
    if len(desc.shape) != rank:
        raise ShapeError(f"{op}, {name}", expected=f"rank {rank}", got=f"shape {desc.shape}", hint=hint)


def check_shape(op, name, desc, shape, hint=None):
    """Raise unless an operand's shape fits `shape`, where -1 fits any size."""
    if not sizes_fit(desc.shape, shape):
        raise ShapeError(f"{op}, {name}", expected=f"shape {tuple(shape)}", got=f"shape {desc.shape}", hint=hint)


def check_has_rows(op, name, desc):
    """Raise unless an operand has at least one axis."""
    if not desc.shape:
        raise ShapeError(f"{op}, {name}", expected="rows, so at least one axis", got="a single number")


def check_lod_level(op, name, desc):
    """Raise unless an operand has at least one LoD level."""
    if desc.lod_level < 1:
        hint = "give the rows their lengths with create_lod_tensor"
        raise LoDError(f"{op}, {name}", expected="at least one level", got="a tensor without LoD", hint=hint)


def broadcast(op, x, y, integers=False):
    """Return the spec of an elementwise result of `x` and `y`; raise unless both have one floating data type.

    With `integers`, both can have one integer type instead.
    """
    if integers and x.dtype is not None and x.dtype.kind in "iu":
        check_same_dtype(op, x=x, y=y)
    else:
        check_float(op, x=x, y=y)
    shape = x.shape if x.shape == y.shape else broadcast_shape(op, x.shape, y.shape)
    return spec_of_tensor(shape, x.dtype, max(x.lod_level, y.lod_level))


def broadcast_shape(op, x, y):
    """Return the shape that two shapes broadcast to."""
    shape, rank = [], max(len(x), len(y))
    for a, b in zip((1,) * (rank - len(x)) + tuple(x), (1,) * (rank - len(y)) + tuple(y), strict=True):
        if a != b and 1 not in (a, b) and -1 not in (a, b):
            raise ShapeError(op, expected="shapes that broadcast", got=f"{x} and {y}")
        shape.append(b if a == 1 else a if b in (1, -1) else b)
    return tuple(shape)


def shared_lod(op, *tensors, names=None):
    """Return the LoD of an elementwise result of `tensors`; raise an error with their `names` if two LoDs differ."""
    shared = NO_LOD
    for tensor in tensors:
        lod = tensor.structure
        if lod is shared or lod is NO_LOD:
            continue
        if shared is NO_LOD or not (lod.num_levels and shared.num_levels):
            shared = lod if lod.num_levels >= shared.num_levels else shared
        elif lod == shared:
            shared = lod if shared.positions is None else shared
        else:
            lods = [tensor.structure for tensor in tensors]
            a, b = (names[k] if names else f"x[{k}]" for k in (lods.index(shared), lods.index(lod)))
            expected, got = f"one LoD: {a} has {_short(shared)}", f"another in {b}: {_short(lod)}"
            raise LoDError(op, expected=expected, got=got, hint="rows of different sequences cannot be combined")
    return shared


def _short(lod):
    levels = (str(level if len(level) <= 8 else [*level[:8], "..."]) for level in lod.lengths())
    return f"lengths [{', '.join(levels)}]"
