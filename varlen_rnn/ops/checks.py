"""Checks that operators share: data types, ranks, shapes and LoDs that must agree; every error names the operator."""

import numpy as np

from varlen_rnn.errors import DTypeError, LoDError, ShapeError
from varlen_rnn.lod import NO_LOD
from varlen_rnn.program.spec import LOD_TENSOR, TensorSpec


def check_float(op, **descs):
    """Raise unless all are tensors of one floating data type; return it."""
    (first, desc), *others = descs.items()
    if desc.kind != LOD_TENSOR or desc.dtype not in (np.float32, np.float64):
        raise DTypeError(f"{op}, {first}", expected="float32 or float64", got=_kind(desc))
    for name, other in others:
        if other.kind != LOD_TENSOR or other.dtype != desc.dtype:
            hint = "data types are never mixed silently: use astype"
            raise DTypeError(f"{op}, {name}", expected=f"{desc.dtype}, as {first}", got=_kind(other), hint=hint)
    return desc.dtype


def check_integer(op, **descs):
    """Raise unless all are tensors of integers."""
    for name, desc in descs.items():
        if desc.kind != LOD_TENSOR or desc.dtype.kind not in "iu":
            raise DTypeError(f"{op}, {name}", expected="integers", got=_kind(desc))


def _kind(desc):
    return str(desc.dtype) if desc.kind == LOD_TENSOR else desc.kind.name


def check_like(op, name, desc, like):
    """Raise unless a tensor has the data type and the shape of another: a gradient, that of its variable."""
    if desc.kind != LOD_TENSOR or desc.dtype != like.dtype:
        raise DTypeError(f"{op}, {name}", expected=str(like.dtype), got=_kind(desc))
    check_shape(op, name, desc, like.shape)


def check_kind(op, name, desc, kind):
    """Raise unless a variable is of a kind."""
    if desc.kind != kind:
        raise DTypeError(f"{op}, {name}", expected=f"a {kind.name}", got=_kind(desc))


def check_tensor(op, name, desc):
    """Raise unless a variable is a tensor, of any data type."""
    check_kind(op, name, desc, LOD_TENSOR)


def check_rank(op, name, desc, rank):
    """Raise unless the rank is `rank`."""
    if len(desc.shape) != rank:
        raise ShapeError(f"{op}, {name}", expected=f"rank {rank}", got=f"shape {desc.shape}")


def check_shape(op, name, desc, shape, hint=None):
    """Raise unless the shape fits `shape`, where -1 fits any size."""
    fits = len(desc.shape) == len(shape) and all(a == b or -1 in (a, b) for a, b in zip(desc.shape, shape, strict=True))
    if not fits:
        raise ShapeError(f"{op}, {name}", expected=f"shape {tuple(shape)}", got=f"shape {desc.shape}", hint=hint)


def check_lod_level(op, name, desc):
    """Raise unless there is at least one level."""
    if desc.lod_level < 1:
        hint = "give the rows their lengths with create_lod_tensor"
        raise LoDError(f"{op}, {name}", expected="at least one level", got="a tensor without LoD", hint=hint)


def broadcast(op, x, y):
    """Return the description of an elementwise result of `x` and `y`."""
    check_float(op, x=x, y=y)
    shape = []
    for a, b in zip(_padded(x.shape, y), _padded(y.shape, x), strict=True):
        if a != b and 1 not in (a, b) and -1 not in (a, b):
            raise ShapeError(op, expected="shapes that broadcast", got=f"{x.shape} and {y.shape}")
        shape.append(b if a == 1 else a if b in (1, -1) else b)
    return TensorSpec(tuple(shape), x.dtype, max(x.lod_level, y.lod_level))


def _padded(shape, other):
    return (1,) * (len(other.shape) - len(shape)) + tuple(shape)


def shared_lod(op, *named):
    """Return the LoD that an elementwise result takes from `(name, tensor)` pairs; two different ones are an error."""
    holders = [(name, tensor) for name, tensor in named if tensor.num_levels]
    if not holders:
        return NO_LOD
    (first, tensor), *others = holders
    for name, other in others:
        if other.structure != tensor.structure:
            raise LoDError(
                op,
                expected=f"one LoD: {first} has {_short(tensor)}",
                got=f"another in {name}: {_short(other)}",
                hint="rows of different sequences cannot be combined",
            )
    return tensor.structure


def _short(tensor):
    lengths = tensor.recursive_sequence_lengths()
    text = ", ".join(str(level if len(level) <= 8 else [*level[:8], "..."]) for level in lengths)
    return f"lengths [{text}]"
