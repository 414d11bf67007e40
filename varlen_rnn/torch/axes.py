"""Check tensors by the names of their axes.

For example, if `x` has the axes "batch steps heads" and `A` the axis "heads", the shapes (2, 5, 4) and (3,) raise
"A: expected shape (heads,) with heads = 4, got shape (3,)".
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from varlen_rnn.errors import DTypeError, ShapeError

Axes = tuple[tuple[str, str], ...]  # the argument of `check_axes`
_MAY_BE_EMPTY = frozenset(("batch", "steps", "sequences"))
_DIVISORS = "key_heads", "groups"  # the sizes of these axes divide the size of "heads"
_REMEMBERED = 256  # how many combinations of shapes are remembered: a model has one for each of its functions


def common_type(*tensors: Tensor | None) -> torch.dtype:
    """Return the type that all tensors are computed in: float64 if one of them has it, otherwise float32."""
    is_double = any(tensor is not None and tensor.dtype == torch.float64 for tensor in tensors)
    return torch.float64 if is_double else torch.float32


def check_axes(name: str, axes: Axes, *tensors: Tensor | None, **sizes: int) -> dict[str, int]:
    """Return the sizes of axes by name; raise unless all arguments are tensors of floats whose axes have equal sizes.

    Parameters
    ----------
    name : str
        The function, for the message of an error.
    axes : pairs of str
        The name of each argument, with "?" behind it if the argument may be None, and the names of its axes, with
        spaces in between.
    tensors : Tensor or None
        The arguments in the same order.
    sizes : int
        Sizes of axes that are known already.
    """
    shapes: list[Any] = []
    for (argument, _), tensor in zip(axes, tensors, strict=True):
        if tensor is None and argument[-1] == "?":
            shapes.append(None)
        elif isinstance(tensor, Tensor) and tensor.dtype.is_floating_point:
            shapes.append(tensor.shape)
        else:
            got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise DTypeError(f"{name}, {argument.rstrip('?')}", expected="a tensor of floats", got=got)
    return _sizes(name, axes, tuple(shapes), tuple(sizes.items()))


@functools.lru_cache(maxsize=_REMEMBERED)
def _sizes(
    name: str, axes: Axes, shapes: tuple[tuple[int, ...] | None, ...], known: tuple[tuple[str, int], ...]
) -> dict[str, int]:
    sizes = dict(known)
    for (argument, text), shape in zip(axes, shapes, strict=True):
        if shape is not None:
            names = text.split()
            if len(shape) != len(names) or any(
                sizes.get(one, size) != size or (not size and one not in _MAY_BE_EMPTY)
                for one, size in zip(names, shape, strict=True)
            ):
                raise _wrong(f"{name}, {argument.rstrip('?')}", names, shape, sizes)
            sizes.update(zip(names, shape, strict=True))
    for divisor in _DIVISORS:
        if sizes.get("heads", 0) % sizes.get(divisor, 1):
            expected = f"a number of heads that is a multiple of the number of {divisor}"
            raise ShapeError(name, expected=expected, got=f"{sizes['heads']} heads for {sizes[divisor]}")
    return sizes


def _wrong(what: str, names: list[str], shape: tuple[int, ...], sizes: dict[str, int]) -> ShapeError:
    known = ", ".join(f"{one} = {sizes[one]}" for one in names if one in sizes)
    expected = f"shape ({', '.join(names)}{',' if len(names) == 1 else ''})" + (f" with {known}" if known else "")
    hint = "only batches, steps and sequences may be 0" if 0 in shape else None
    return ShapeError(what, expected=expected, got=f"shape {tuple(shape)}", hint=hint)
