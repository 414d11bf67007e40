"""LoD levels and LoDTensor: rows of unequal sequences one after another, and the offsets that tell them apart.

A LoD (level of detail) is a list of levels from coarse to fine; a level is a list of offsets that starts at 0 and
never falls.  Upper levels index the entries of the next lower level, the last level indexes rows.  The example of
the design documents, three articles of 3, 1 and 2 sentences: lengths `[[3, 1, 2], [3, 2, 4, 1, 2, 3]]`, offsets
`[[0, 3, 4, 6], [0, 3, 5, 9, 10, 12, 15]]`.

An invalid LoD or LoDTensor cannot exist: constructors check, so kernels may trust.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator
from operator import attrgetter
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from varlen_rnn.errors import DTypeError, LoDError, OutOfRangeError, check_int, count, shown
from varlen_rnn.frozen import Frozen
from varlen_rnn.rows.checks import (
    as_indices,
    as_levels,
    as_rows,
    as_sequence,
    check_cover,
    check_offsets,
    children_of,
    depth_of,
    join_sequences,
    offsets_of,
    read_only,
)
from varlen_rnn.typing import Lengths, Offsets, Rows

T = TypeVar("T")
_new = object.__new__  # every operator wraps its results
rows_of = attrgetter("_data")  # of a tensor, as its `data`, for `map`
levels_of = attrgetter("_levels")  # the arrays of a LoD, which are never handed out


class LoD(Frozen):
    """Offsets of every level, from coarse to fine; immutable and shared by reference.

    Parameters
    ----------
    offsets : sequence of sequences of int
        One per level; each starts at 0 and never falls.  None at all for an ordinary tensor.

    Attributes
    ----------
    levels : tuple of arrays, int64 and read-only
    num_levels : int
    num_rows : int, the rows that the last level covers; 0 when there is no level

    Raises
    ------
    LoDError
        If an offset is wrong; the error names level and entry, the expected value, and a hint.

    Examples
    --------
    >>> LoD([[0, 3, 4, 6], [0, 3, 5, 9, 10, 12, 15]]).num_rows
    15
    """

    __slots__ = ("_cache", "_levels", "num_levels", "num_rows")

    num_levels: int
    num_rows: int
    _cache: dict[Hashable, Any]
    _levels: tuple[np.ndarray, ...]

    def __init__(self, offsets: LoD | Iterable[Offsets] = ()) -> None:
        if isinstance(offsets, LoD):
            self._set(offsets._levels)
            return
        levels = tuple(check_offsets(level, number) for number, level in enumerate(as_levels(offsets)))
        for number, (upper, lower) in enumerate(itertools.pairwise(levels)):
            if upper[-1] != len(lower) - 1:
                raise LoDError(
                    f"level {number}, last entry",
                    expected=f"{len(lower) - 1}, the number of sequences of level {number + 1}",
                    got=int(upper[-1]),
                    hint="upper levels index the entries of the next lower level, not rows",
                )
        self._set(levels)

    def _set(self, levels: tuple[np.ndarray, ...]) -> None:
        self._put("_levels", levels)
        self._put("num_levels", len(levels))  # every operator asks
        self._put("num_rows", int(levels[-1][-1]) if levels else 0)  # of Python: every operator compares it
        self._put("_cache", {})

    def __reduce__(self) -> tuple[type[LoD], tuple[tuple[np.ndarray, ...]]]:
        return LoD, (self.levels,)  # through the checks: NumPy's copies of read-only arrays can be written to

    @property
    def levels(self) -> tuple[np.ndarray, ...]:
        """The offsets of each level: views that nobody else holds."""
        return tuple([level.view() for level in self._levels])

    @classmethod
    def from_lengths(cls, lengths: Iterable[Lengths]) -> LoD:
        """Return the LoD whose levels have these lengths.

        Examples
        --------
        >>> LoD.from_lengths([[2, 1], [2, 0, 3]]).offsets()
        [[0, 2, 3], [0, 2, 2, 5]]
        """
        return cls([offsets_of(level, number) for number, level in enumerate(as_levels(lengths))])

    @classmethod
    def trusted(cls, levels: Iterable[np.ndarray]) -> LoD:
        """Return a LoD of levels that are known to be valid, int64 and read-only: nothing is checked.

        Examples
        --------
        >>> LoD.trusted([read_only(np.array([0, 2]))]).num_rows
        2
        """
        lod = cls.__new__(cls)
        lod._set(tuple(levels))
        return lod

    def offsets(self) -> list[list[int]]:
        """Return the offset form as lists."""
        return [level.tolist() for level in self._levels]

    def lengths(self) -> list[list[int]]:
        """Return the length form as lists."""
        return [np.diff(level).tolist() for level in self._levels]

    def absolute(self) -> list[list[int]]:
        """Return the offset form with every level counted in rows.

        Examples
        --------
        >>> LoD([[0, 3, 4, 6], [0, 3, 5, 9, 10, 12, 15]]).absolute()
        [[0, 9, 10, 15], [0, 3, 5, 9, 10, 12, 15]]
        """
        return [self.rows_of_level(level).tolist() for level in range(self.num_levels)]

    def _check_level(self, level: int) -> int:
        """Return the number of a level, where negative ones count from the end, or raise."""
        level = check_int(level, "level")
        if not -self.num_levels <= level < self.num_levels:
            expected = f"less than {self.num_levels}, the number of levels"
            raise OutOfRangeError("level", expected=expected, got=shown(level))
        return level % self.num_levels

    def rows_of_level(self, level: int) -> np.ndarray:
        """Return the offsets of `level` counted in rows."""
        level = self._check_level(level)
        rows = self._levels[level].view()
        for lower in self._levels[level + 1 :]:
            rows = lower[rows]
        return rows

    def slice(self, level: int, begin: int, end: int) -> tuple[LoD, int, int]:
        """Return the LoD of sequences `begin` to `end` of `level` and below, and the rows that they cover."""
        level, begin, end = self._check_level(level), check_int(begin, "begin"), check_int(end, "end")
        if not 0 <= begin <= end < len(self._levels[level]):
            expected = f"0 <= begin <= end <= {len(self._levels[level]) - 1}"
            raise OutOfRangeError(f"slice of level {level}", expected=expected, got=shown((begin, end)))
        first, last, levels = begin, end, []
        for offsets in self._levels[level:]:
            part = offsets[first : last + 1]
            levels.append(read_only(part - part[0]))
            first, last = int(part[0]), int(part[-1])
        return LoD.trusted(levels), first, last

    def __len__(self) -> int:
        return self.num_levels

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LoD):
            return NotImplemented
        same_depth = len(self) == len(other)
        return self is other or (same_depth and all(map(np.array_equal, self._levels, other._levels)))

    def __hash__(self) -> int:
        return hash(tuple(level.tobytes() for level in self._levels))

    def __repr__(self) -> str:
        return f"LoD({self.offsets()})"


NO_LOD = LoD.trusted(())


def remember(lod: LoD, key: Hashable, make: Callable[..., T], *arguments: Any) -> T:
    """Return the result of the first `make(*arguments)` for `key`, never None; the LoD keeps its plans in this way."""
    found = lod._cache.get(key)
    # One call of C: if two threads make it at once, both get the object of the first.
    return lod._cache.setdefault(key, make(*arguments)) if found is None else found


def remember_last(lod: LoD, key: Hashable, other: object, make: Callable[[], T]) -> T:
    """Return the result of `make()` for `key` and this very `other`, often a second LoD; only the last is kept.

    What is made for two LoDs together would fill the memory of the one that lives longer, were all of it kept.
    """
    found = lod._cache.get(key)
    if found is None or found[0] is not other:
        found = lod._cache[key] = other, make()
    return found[1]


def take_sequences(lod: LoD, indices: np.ndarray) -> tuple[LoD, np.ndarray]:
    """Return the LoD of some sequences of level 0 and below, in this order, and the rows that they cover.

    Parameters
    ----------
    lod : LoD
    indices : array, int64
        Each a sequence of level 0, as `as_indices` returns them.

    Examples
    --------
    >>> lod, rows = take_sequences(LoD([[0, 2, 3], [0, 3, 4, 6]]), np.array([1, 0]))
    >>> lod.offsets(), rows
    ([[0, 1, 3], [0, 2, 5, 6]], array([4, 5, 0, 1, 2, 3]))
    """
    levels = []
    for offsets in lod._levels:
        begins = offsets[indices]
        joined = np.zeros(len(indices) + 1, np.int64)
        np.cumsum(offsets[indices + 1] - begins, out=joined[1:])
        # Entry e of the result lies in the source as far behind its sequence's begin as in the result.
        indices = np.arange(joined[-1]) + np.repeat(begins - joined[:-1], np.diff(joined))
        levels.append(read_only(joined))
    return LoD.trusted(levels), indices


def _getter(path: str, doc: str) -> Any:
    """Return a property that reads an attribute, in C: every operator asks, and this takes half the time."""
    return property(attrgetter(path), doc=doc)


class LoDTensor:
    """Rows of any element shape, and the LoD that cuts them into sequences, any number of levels deep.

    Parameters
    ----------
    data : array_like
        Shape `(rows, ...)`, any numeric data type; a view of it is kept, without a copy where NumPy can.
    lod : LoD or sequence of offset lists
        The offset form; `create_lod_tensor` takes the length form.

    Raises
    ------
    LoDError
        The offsets are invalid, or do not cover the rows.

    Examples
    --------
    >>> x = LoDTensor(np.arange(6.0), [[0, 3, 4, 6]])
    >>> x[2]
    LoDTensor: 2 rows of () float64, 1 level
      level 0: 1 sequence of 2 rows

    Source: PaddlePaddle's design document "LoD (Level-of-Detail) Tensor".
    """

    __slots__ = ("_data", "_lod")

    def __init__(self, data: Rows, lod: LoD | Iterable[Offsets] = NO_LOD) -> None:
        data = as_rows(data.data if isinstance(data, LoDTensor) else data)
        if lod is not NO_LOD:
            lod = lod if isinstance(lod, LoD) else LoD(lod)
            check_cover(lod, data)
        self._data, self._lod = data, lod

    @classmethod
    def wrap(cls, data: np.ndarray, lod: LoD = NO_LOD) -> LoDTensor:
        """Return a tensor of rows that are known to fit `lod`: no check, no copy."""
        tensor = _new(cls)
        tensor._data = data.view()  # whoever holds an array that owns its memory can resize it under all views
        tensor._lod = lod
        return tensor

    def __reduce__(self) -> tuple[type[LoDTensor], tuple[np.ndarray, LoD]]:
        return type(self), (self._data, self._lod)  # through the checks

    @classmethod
    def from_sequences(
        cls, sequences: list | tuple, *, num_levels: int | None = None, dtype: DTypeLike | None = None
    ) -> LoDTensor:
        """Return the LoDTensor of nested lists of sequences, to any depth.

        Every list is a level; an array is a sequence of rows; a list of numbers is a sequence of scalars.

        Parameters
        ----------
        sequences : nested list
        num_levels : int, optional
            Stop at this depth and read the items there as the rows of one sequence: 1 reads `[[[1, 2], [3, 4]]]`
            as one sequence of two rows.
        dtype : data type, optional
            By default NumPy's choice for the numbers.

        Examples
        --------
        >>> LoDTensor.from_sequences([[[1, 2], [3]], [[4, 5, 6]]]).recursive_sequence_lengths()
        [[2, 1], [2, 1, 3]]
        >>> LoDTensor.from_sequences([np.zeros((3, 8)), np.zeros((0, 8))]).data.shape
        (3, 8)
        """
        if not isinstance(sequences, (list, tuple)):
            raise LoDError("sequences", expected="a list", got=type(sequences).__name__)
        depth = num_levels
        if depth is None:
            depth = depth_of(sequences) if sequences else 1
        if (depth := check_int(depth, "num_levels")) < 1:
            raise LoDError("sequences", expected="a list of sequences", got=shown(sequences))
        level, lengths = [sequences], []
        for number in range(depth):
            lists = [children_of(item, number) for item in level]
            if number:
                lengths.append([len(item) for item in lists])
            level = list(itertools.chain.from_iterable(lists))
        try:
            dtype = None if dtype is None else np.dtype(dtype)
        except Exception as error:  # the object may raise anything when NumPy asks it
            raise DTypeError("dtype", expected="a data type", got=shown(dtype)) from error
        leaves = [as_sequence(item, number, dtype) for number, item in enumerate(level)]
        lengths.append([len(leaf) for leaf in leaves])
        return cls(join_sequences(leaves, dtype), LoD.from_lengths(lengths))

    data: Final[np.ndarray] = _getter("_data", "The rows; their values may be changed in place, their number may not.")
    shape: Final[tuple[int, ...]] = _getter("_data.shape", "The shape of the rows: `(rows, ...)`.")
    dtype: Final[np.dtype] = _getter("_data.dtype", "The data type of the rows.")
    structure: Final[LoD] = _getter("_lod", "The `LoD` object itself, which tensors share.")

    @property
    def num_levels(self) -> int:
        """The number of levels; 0 for an ordinary tensor."""
        return self._lod.num_levels

    def lod(self) -> list[list[int]]:
        """Return the offset form: one list of offsets per level."""
        return self._lod.offsets()

    def set_lod(self, offsets: LoD | Iterable[Offsets]) -> None:
        """Give this tensor another LoD, in offset form; tensors that shared the old one keep it."""
        lod = offsets if isinstance(offsets, LoD) else LoD(offsets)
        check_cover(lod, self.data)
        self._lod = lod

    def recursive_sequence_lengths(self) -> list[list[int]]:
        """Return the length form: one list of lengths per level."""
        return self._lod.lengths()

    def set_recursive_sequence_lengths(self, lengths: Iterable[Lengths]) -> None:
        """Give this tensor another LoD, in length form."""
        self.set_lod(LoD.from_lengths(lengths))

    def has_valid_recursive_sequence_lengths(self) -> bool:
        """Return whether the LoD covers the rows: yes, unless the shape of `data` was changed in place."""
        return not len(self._lod) or self.shape[:1] == (self._lod.num_rows,)

    def absolute_lod(self) -> list[list[int]]:
        """Return the offset form with every level counted in rows."""
        return self._lod.absolute()

    def num_elements(self, level: int = 0) -> int:
        """Return the number of sequences of `level`.

        Examples
        --------
        >>> create_lod_tensor(np.zeros((5, 2)), [[2, 1], [2, 0, 3]]).num_elements(1)
        3
        """
        return len(self._lod._levels[self._lod._check_level(level)]) - 1

    def slice(self, level: int, begin: int, end: int) -> LoDTensor:
        """Return sequences `begin` to `end` of `level`: a view that keeps the levels below and drops those above.

        Examples
        --------
        >>> x = create_lod_tensor(np.arange(5.0), [[2, 1], [2, 0, 3]])
        >>> x.slice(0, 1, 2).lod(), x.slice(1, 1, 3).lod()
        ([[0, 1], [0, 3]], [[0, 0, 3]])
        """
        lod, first, last = self._lod.slice(level, begin, end)
        return LoDTensor.wrap(self.data[first:last], lod)

    def like(self, rows: np.ndarray) -> LoDTensor:
        """Return rows that fit this tensor's LoD, which they share: no check, no copy."""
        return LoDTensor.wrap(rows, self._lod)

    def copy(self) -> LoDTensor:
        """Return a tensor with rows of its own; the LoD is shared, for it never changes."""
        return LoDTensor.wrap(self.data.copy(), self._lod)

    def to_sequences(self) -> list[Any]:
        """Return nested lists, one per level, whose leaves are the sequences: views of their rows.

        Examples
        --------
        >>> create_lod_tensor(np.arange(3), [[2], [1, 2]]).to_sequences()
        [[array([0]), array([1, 2])]]
        """
        if not len(self._lod):
            raise LoDError("to_sequences", expected="at least one level", got=f"a tensor of shape {self.shape}")
        items = [self.data[a:b] for a, b in itertools.pairwise(self._lod._levels[-1].tolist())]
        for offsets in reversed(self._lod._levels[:-1]):
            items = [items[a:b] for a, b in itertools.pairwise(offsets.tolist())]
        return items

    def __getitem__(self, branch: int | tuple[int, ...] | ArrayLike) -> LoDTensor:
        """Return the slice that a branch names: `x[2]` the <2>-slice, `x[2, 0]` the <2,0>-slice; views.

        An array or a list of indices, or a mask, takes these sequences of level 0, in this order: a copy.

        Examples
        --------
        >>> x = create_lod_tensor(np.arange(5.0), [[2, 1], [2, 0, 3]])
        >>> x[1].to_sequences(), x[0, 0].to_sequences()
        ([[array([2., 3., 4.])]], [array([0., 1.])])
        >>> x[[1, 0]].to_sequences(), x[np.array([False, True])].lod()
        ([[array([2., 3., 4.])], [array([0., 1.]), array([], dtype=float64)]], [[0, 1], [0, 3]])
        """
        if isinstance(branch, list) or (isinstance(branch, np.ndarray) and branch.ndim):
            return self._take(branch)
        branch = branch if isinstance(branch, tuple) else (branch,)
        if not 0 < len(branch) <= self.num_levels:
            raise OutOfRangeError("branch", expected=f"1 to {self.num_levels} indices, one per level", got=len(branch))
        begin, end = 0, self.num_elements(0)
        for level, index in enumerate(branch):
            index = check_int(index, f"branch, level {level}")
            if not begin - end <= index < end - begin:
                raise OutOfRangeError(f"branch, level {level}", expected=f"less than {end - begin}", got=index)
            entry = begin + index if index >= 0 else end + index
            if level < len(branch) - 1:
                begin, end = self._lod._levels[level][entry : entry + 2].tolist()
        return self.slice(len(branch) - 1, entry, entry + 1)

    def _take(self, indices: ArrayLike) -> LoDTensor:
        if not self.num_levels:
            raise LoDError("indices", expected="at least one level", got=f"a tensor of shape {self.shape}")
        lod, rows = take_sequences(self._lod, as_indices(indices, len(self), "indices"))
        return LoDTensor.wrap(self._data.take(rows, axis=0), lod)

    def __len__(self) -> int:
        """Return the number of sequences of level 0; of rows for an ordinary tensor."""
        return self.num_elements(0) if len(self._lod) else len(self.data)

    def __iter__(self) -> Iterator[LoDTensor]:
        return (self[index] for index in range(len(self)))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.data, dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        """Hand the memory of the rows to another library, as NumPy does."""
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.data.__dlpack_device__()

    def __repr__(self) -> str:
        # Rank 0 is a loss: one number, no rows.
        if self.data.ndim == 0:
            return f"LoDTensor: {self.data!r}"
        head = f"LoDTensor: {count(len(self.data), 'row')} of {self.shape[1:]} {self.dtype}"
        lines = [f"{head}, {count(self.num_levels, 'level')}"]
        for number, offsets in enumerate(self._lod._levels):
            unit = "row" if number == self.num_levels - 1 else "sequence"
            lines.append(f"  level {number}: {_describe_lengths(np.diff(offsets), unit)}")
        return "\n".join(lines)


def create_lod_tensor(data: Rows, recursive_seq_lens: Iterable[Lengths]) -> LoDTensor:
    """Return a LoDTensor of `data` cut by lengths, from coarse to fine.

    Parameters
    ----------
    data : array_like or LoDTensor
        Rows, shape `(rows, ...)`; the LoD of a LoDTensor is replaced in the result, its rows are shared.
    recursive_seq_lens : sequence of sequences of int
        The length form: one list per level, upper levels counting the sequences of the next lower level.

    Raises
    ------
    LoDError
        A length is negative, levels do not fit together, or the last level does not cover the rows.

    Examples
    --------
    >>> x = create_lod_tensor(np.zeros((15, 2)), [[3, 1, 2], [3, 2, 4, 1, 2, 3]])
    >>> x.lod()
    [[0, 3, 4, 6], [0, 3, 5, 9, 10, 12, 15]]
    """
    return LoDTensor(data, LoD.from_lengths(recursive_seq_lens))


def _describe_lengths(lengths: np.ndarray, unit: str) -> str:
    head = count(len(lengths), "sequence")
    if len(lengths) == 0:
        return head
    low, middle, high = int(lengths.min()), float(np.median(lengths)), int(lengths.max())
    if low == high:
        return f"{head} of {count(low, unit)}"
    return f"{head} of {low} to {high} {unit}s, median {middle:g}"
