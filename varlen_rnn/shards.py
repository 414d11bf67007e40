"""Names of shards (rows of a table) in saved states: `weight[1::4]` has the rows 1, 5, 9, ... of `weight`, as in NumPy.

So the states of several ranks (processes) are dicts with different names, and their union is a state of the whole
model.  Another number of ranks can load it: rank 0 of 2 needs the rows 0, 2, 4, ..., and finds them alternately in
`weight[0::4]` and in `weight[2::4]`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from varlen_rnn.errors import CheckpointError

Parts: TypeAlias = list[tuple[slice, np.ndarray]]  # pairs: a slice of the wanted rows, and their values
_NAME = re.compile(r"(.*)\[(0|[1-9][0-9]{0,8})::([1-9][0-9]{0,8})\]", re.DOTALL)


def shard_name(name: str, shard: Any) -> str:
    """Return an array's name in a state; `shard` says which rows of the parameter it has, all if it is None."""
    return name if shard is None else f"{name}[{shard.rank}::{shard.size}]"


def is_shard(name: str) -> bool:
    """Return whether a name in a state is the name of a shard of an array."""
    return _NAME.fullmatch(name) is not None


def names_of(arrays: Mapping[str, np.ndarray], name: str) -> list[str]:
    """Return the names that an array and its shards have in a state."""
    found = [name] if name in arrays else []
    return found + [other for other in arrays if (match := _NAME.fullmatch(other)) and match[1] == name]


def find_rows(arrays: Mapping[str, np.ndarray], name: str, shard: Any, like: Any, prefix: str) -> Parts | None:
    """Return the wanted rows of an array from a state, which has all rows or shards; None if a row is missing.

    `shard` determines the wanted rows, all if it is None, and `like` has their shape and data type.  Raise if an array
    has another shape or data type; the error has `prefix` before the name.

    Examples
    --------
    >>> saved = {"w[0::2]": np.array([0, 2, 4]), "w[1::2]": np.array([1, 3])}
    >>> find_rows(saved, "w", None, np.zeros(5, int), "state ")
    [(slice(0, None, 2), array([0, 2, 4])), (slice(1, None, 2), array([1, 3]))]
    """
    rank, size = (0, 1) if shard is None else (shard.rank, shard.size)
    shape = like.shape if shard is None else (shard.height, *like.shape[1:])
    if name in arrays:
        _check_like(arrays[name], shape, like.dtype, f"{prefix}{name!r}")
        return [(slice(None), arrays[name] if size == 1 else arrays[name][rank::size])]
    by_size: dict[int, dict[int, np.ndarray]] = {}
    for other in names_of(arrays, name) if shape else ():
        number, count = (int(group) for group in _NAME.fullmatch(other).groups()[1:])  # type: ignore[union-attr]
        if number < count:
            rows = (len(range(number, shape[0], count)), *shape[1:])
            _check_like(arrays[other], rows, like.dtype, f"{prefix}{other!r}")
            by_size.setdefault(count, {})[number] = arrays[other]
    for count, shards in sorted(by_size.items(), key=lambda item: (item[0] != size, item[0])):
        parts, found = [], 0
        for number, array in shards.items():
            if (places := _common(rank, size, number, count)) is not None:
                parts.append((places[0], array[places[1]]))
                found += len(parts[-1][1])
        if found == len(range(rank, shape[0], size)):
            return parts
    return None


def _common(rank: int, size: int, number: int, count: int) -> tuple[slice, slice] | None:
    """Return the rows that two shards share, as a slice of each shard's rows; None if they share no row."""
    divisor, step = math.gcd(size, count), math.lcm(size, count)
    if (number - rank) % divisor:
        return None
    # The first row that is `rank` modulo `size` and `number` modulo `count`, by the Chinese remainder theorem.
    turns = (number - rank) // divisor * pow(size // divisor, -1, count // divisor) % (count // divisor)
    first = rank + size * turns
    return slice((first - rank) // size, None, step // size), slice((first - number) // count, None, step // count)


def _check_like(array: np.ndarray, shape: tuple[int, ...], dtype: np.dtype, what: str) -> None:
    if array.shape != shape or array.dtype != dtype:
        got = f"an array of shape {array.shape} and type {array.dtype}"
        raise CheckpointError(what, expected=f"an array of shape {shape} and type {dtype}", got=got)
