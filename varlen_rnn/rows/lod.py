"""`LoD` and `LoDTensor`: the offsets of sequences of unequal length, and rows with these offsets.

A LoD (level of detail) is a list of levels from coarse to fine.  A level is a list of offsets that starts at 0 and
never falls.  Offsets of the last level count rows; offsets of an upper level count the sequences of the next lower
level.  For example, three articles have 3, 1 and 2 sentences, which have 3, 2, 4, 1, 2 and 3 words (rows).  Their
lengths are `[[3, 1, 2], [3, 2, 4, 1, 2, 3]]`, their offsets `[[0, 3, 4, 6], [0, 3, 5, 9, 10, 12, 15]]`.

Constructors check every LoD and LoDTensor, so kernels use them without checks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator
from operator import attrgetter
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from varlen_rnn.errors import DTypeError, LoDError, OutOfRangeError, PlaceError, check_int, count, shown
from varlen_rnn.frozen import Frozen
from varlen_rnn.kernels.plans import compare_offsets, compose_offsets
from varlen_rnn.rows.checks import (
    KEEPS_GRADIENT,
    as_indices,
    as_levels,
    as_positions,
    as_rows,
    as_sequence,
    check_cover,
    check_no_gradient,
    check_offsets,
    children_of,
    depth_of,
    join_sequences,
    offsets_of,
    read_only,
)
from varlen_rnn.runtime.device import empty, moved, on_device, place_of
from varlen_rnn.runtime.device_array import DeviceArray
from varlen_rnn.runtime.place import Place
from varlen_rnn.runtime.place import device as as_place
from varlen_rnn.runtime.placeholder import Placeholder, first_of
from varlen_rnn.typing import Lengths, Offsets, Rows

T = TypeVar("T")
_new = object.__new__  # bound once, because every operator creates tensors
rows_of = attrgetter("_data")  # returns the rows of a tensor, like `data`, for use in `map`
levels_of = attrgetter("_levels")  # returns a LoD's own arrays, which users must never get


def getter(path: str, doc: str) -> Any:
    """Return a property that reads an attribute; its getter is written in C and takes half the time of a function."""
    return property(attrgetter(path), doc=doc)


def view_of(name: str, doc: str) -> Any:
    """Return a property whose value is a new view of an array, because users must never get the array itself."""

    def view(self: Any) -> np.ndarray:
        return getattr(self, name).view()

    return property(view, doc=doc)


class LoD(Frozen):
    """The offsets of every level, from coarse to fine; a LoD is immutable, and tensors share it.

    Parameters
    ----------
    offsets : sequence of sequences of int
        One sequence of offsets per level; each starts at 0 and never falls.  Empty for an ordinary tensor.

    Attributes
    ----------
    levels : tuple of arrays, int64 and read-only
    num_levels : int
    num_rows : int, the rows that the last level covers; 0 if there is no level
    positions : array of one int64 per sequence of level 0, read-only, or None
        If this is a part of a larger batch, the position of each sequence in that batch; None for 0, 1, 2 ...  Dropout
        draws its mask by positions, so a sequence has the same mask in a part as in the whole batch.  Comparisons of
        LoDs ignore positions.
    axis : int
        The axis that runs over rows: 0.  A LoD without levels can also have positions.  Then its values have an entry
        per sequence along this axis: 0 after pooling, 1 for the last states of a layer.

    Raises
    ------
    LoDError
        If an offset is invalid; the error names level and entry, the expected value, and a hint.

    Examples
    --------
    >>> LoD([[0, 3, 4, 6], [0, 3, 5, 9, 10, 12, 15]]).num_rows
    15
    """

    __slots__ = ("_cache", "_levels", "_positions", "axis", "num_levels", "num_rows")

    num_levels: int
    num_rows: int
    axis: int
    _positions: np.ndarray | None
    _cache: dict[Hashable, Any]
    _levels: tuple[np.ndarray, ...]

    def __init__(self, offsets: LoD | Iterable[Offsets] = ()) -> None:
        if isinstance(offsets, LoD):
            self._set(offsets._levels, offsets._positions, offsets.axis)
            return
        levels = tuple(check_offsets(level, number) for number, level in enumerate(as_levels(offsets)))
        for number, (upper, lower) in enumerate(itertools.pairwise(levels)):
            if upper[-1] != len(lower) - 1:
                expected = f"{len(lower) - 1}, the number of sequences of level {number + 1}"
                got, hint = int(upper[-1]), "upper levels count the sequences of the next lower level, not rows"
                raise LoDError(f"level {number}, last entry", expected=expected, got=got, hint=hint)
        self._set(levels)

    def _set(self, levels: tuple[np.ndarray, ...], positions: np.ndarray | None = None, axis: int = 0) -> None:
        self._put("_levels", levels)
        self._put("_positions", positions)
        self._put("axis", axis)
        self._put("num_levels", len(levels))  # stored, because every operator reads it
        self._put("num_rows", int(levels[-1][-1]) if levels else 0)  # a Python int, which is faster to compare
        self._put("_cache", {})

    def __reduce__(self) -> tuple[Callable[..., LoD], tuple[Any, ...]]:
        # Unpickling calls the constructor, because unpickled arrays are writeable.
        return _restored, (self.levels, self.positions, self.axis)

    @property
    def levels(self) -> tuple[np.ndarray, ...]:
        """The offsets of each level, as new read-only views."""
        return tuple([level.view() for level in self._levels])

    @property
    def positions(self) -> np.ndarray | None:
        """The position of each sequence of level 0 in a larger batch, as a new read-only view, or None."""
        return None if self._positions is None else self._positions.view()

    def at(self, positions: ArrayLike | None) -> LoD:
        """Return a LoD of the same sequences at other positions.

        Parameters
        ----------
        positions : array_like of int, shape `(sequences of level 0,)`, or None
            The position, at least 0, of each sequence in the batch that this LoD is a part of; None for 0, 1, 2 ...

        Examples
        --------
        >>> LoD([[0, 2, 3]]).at([7, 4]).positions
        array([7, 4])
        """
        if positions is None:
            return LoD.trusted(self._levels)
        found = as_positions(positions)
        if self.num_levels and len(found) != len(self._levels[0]) - 1:
            expected = f"{len(self._levels[0]) - 1} positions, one for each sequence of level 0"
            raise LoDError("positions", expected=expected, got=len(found))
        return LoD.trusted(self._levels, found)

    def at_positions_of(self, other: LoD, axis: int = 0) -> LoD:
        """Return this LoD with the positions of another LoD, which has the same sequences of level 0.

        If this LoD has no levels, the result is for values with one entry per sequence along `axis`.

        Examples
        --------
        >>> NO_LOD.at_positions_of(LoD([[0, 2, 3]]).at([7, 4])).positions
        array([7, 4])
        """
        if other._positions is None or other.axis:
            return self
        return LoD.trusted(self._levels, other._positions, axis)

    def along(self, axis: int) -> LoD:
        """Return this LoD, which has no levels, with another `axis`, along which its values have their entries."""
        return self if self._positions is None else LoD.trusted((), self._positions, axis)

    @classmethod
    def from_lengths(cls, lengths: Iterable[Lengths]) -> LoD:
        """Return the LoD of sequences, given their lengths on each level.

        Examples
        --------
        >>> LoD.from_lengths([[2, 1], [2, 0, 3]]).offsets()
        [[0, 2, 3], [0, 2, 2, 5]]
        """
        return cls([offsets_of(level, number) for number, level in enumerate(as_levels(lengths))])

    @classmethod
    def without_numbers(cls, levels: Iterable[np.ndarray], num_rows: int) -> LoD:
        """Return a LoD for a dry run: its levels are placeholders, so that the number of rows must be given."""
        lod = cls.trusted(())
        lod._put("_levels", tuple(levels))
        lod._put("num_levels", len(lod._levels))
        lod._put("num_rows", num_rows)
        return lod

    @classmethod
    def trusted(cls, levels: Iterable[np.ndarray], positions: np.ndarray | None = None, axis: int = 0) -> LoD:
        """Return a LoD of levels and positions without checking them; they must be valid, int64 and read-only."""
        lod = cls.__new__(cls)
        lod._set(tuple(levels), positions, axis)
        return lod

    def offsets(self) -> list[list[int]]:
        """Return the offsets of each level as lists."""
        return [level.tolist() for level in self._levels]

    def lengths(self) -> list[list[int]]:
        """Return the lengths of each level as lists."""
        return [np.diff(level).tolist() for level in self._levels]

    def absolute(self) -> list[list[int]]:
        """Return the offsets of each level as lists, all counted in rows.

        Examples
        --------
        >>> LoD([[0, 3, 4, 6], [0, 3, 5, 9, 10, 12, 15]]).absolute()
        [[0, 9, 10, 15], [0, 3, 5, 9, 10, 12, 15]]
        """
        return [self.rows_of_level(level).tolist() for level in range(self.num_levels)]

    def _check_level(self, level: int) -> int:
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
            if type(rows) is Placeholder:
                upper, rows = rows, empty(rows.shape, rows)
                compose_offsets(upper, lower, rows)
            else:
                rows = lower[rows]
        return rows

    def slice(self, level: int, begin: int, end: int) -> tuple[LoD, int, int]:
        """Return the LoD of sequences `begin` to `end` of `level`, with all lower levels, and their range of rows."""
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
        return self is other or (same_depth and all(map(same_offsets, self._levels, other._levels)))

    def __hash__(self) -> int:
        return hash(tuple(level.tobytes() for level in self._levels))

    def __repr__(self) -> str:
        return f"LoD({self.offsets()})"


NO_LOD = LoD.trusted(())


def same_offsets(some: np.ndarray, others: np.ndarray) -> bool:
    """Return whether two levels are equal; in a dry run they are, and a run whose levels differ stops."""
    if type(some) is not Placeholder and type(others) is not Placeholder:
        return np.array_equal(some, others)
    if some is others or some.shape != others.shape:
        return some is others
    found = empty((1,), some if type(some) is Placeholder else others)
    compare_offsets(some, others, found)
    return bool(first_of(found, 1))


def lod_of(levels: Iterable[np.ndarray], num_rows: int) -> LoD:
    """Return the LoD of levels that an operator computed for `num_rows` rows, or took from another LoD."""
    levels = tuple(levels)
    if not any(type(level) is Placeholder for level in levels):
        return LoD.trusted([read_only(level) if level.flags.writeable else level for level in levels])
    levels = tuple(level.view() for level in levels)
    for level in levels:
        level.flags.writeable = False
    return LoD.without_numbers(levels, num_rows)


def _restored(levels: tuple[np.ndarray, ...], positions: np.ndarray | None, axis: int) -> LoD:
    if not levels and positions is None:
        return NO_LOD  # which others recognise by its identity
    lod = LoD(levels).at(positions)
    return LoD.trusted(lod._levels, lod._positions, axis) if axis else lod


def remember(lod: LoD, key: Hashable, make: Callable[..., T], *arguments: Any) -> T:
    """Return `make(*arguments)`, such as a plan, and cache it on the LoD under `key`.  The result must not be None."""
    found = lod._cache.get(key)
    # `setdefault` is atomic, so two threads that call `make` at the same time get the same result.
    return lod._cache.setdefault(key, make(*arguments)) if found is None else found


def remember_last(lod: LoD, key: Hashable, other: object, make: Callable[[], T]) -> T:
    """Return `make()`, cached on the LoD under `key` until this function is called with another `other`, often a LoD.

    Only the last result per key is cached; otherwise a long-lived LoD would collect a result for every other LoD.
    """
    found = lod._cache.get(key)
    if found is None or found[0] is not other:
        found = lod._cache[key] = other, make()
    return found[1]


def take_sequences(lod: LoD, indices: np.ndarray) -> tuple[LoD, np.ndarray]:
    """Return the LoD of chosen sequences of level 0 with all lower levels, and the indices of their rows.

    The LoD has no positions, because copies of a sequence at one position would get the same dropout.

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
        # An entry has the same distance from the beginning of its sequence in the source and in the result.
        indices = np.arange(joined[-1]) + np.repeat(begins - joined[:-1], np.diff(joined))
        levels.append(read_only(joined))
    return LoD.trusted(levels), indices


class LoDTensor:
    """Rows of any element shape, and a LoD that divides them into sequences on any number of levels.

    Parameters
    ----------
    data : array_like
        Shape `(rows, ...)`, of any numeric data type.  The tensor shares its memory if it is an array, on the host or
        on a CUDA device, as a tensor of PyTorch can be.
    lod : LoD or sequence of offset lists
        The offsets of each level; `create_lod_tensor` takes lengths instead.

    Raises
    ------
    LoDError
        If the offsets are invalid, or do not cover exactly the rows.

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
        data = as_rows(data.data if isinstance(data, LoDTensor) else data, hint=KEEPS_GRADIENT)
        if lod is not NO_LOD:
            lod = lod if isinstance(lod, LoD) else LoD(lod)
            check_cover(lod, data)
        self._data, self._lod = data, lod

    @classmethod
    def wrap(cls, data: np.ndarray | DeviceArray, lod: LoD = NO_LOD) -> LoDTensor:
        """Return a tensor of rows without a check or copy; the rows must fit `lod`."""
        tensor = _new(cls)
        view: Any = data.view()
        tensor._data = view  # it cannot be resized, unlike an array that owns its memory
        tensor._lod = lod
        return tensor

    def __reduce__(self) -> tuple[type[LoDTensor], tuple[np.ndarray, LoD]]:
        return type(self), (self._data, self._lod)  # unpickling calls the constructor, which checks

    @classmethod
    def from_sequences(
        cls, sequences: list | tuple, *, num_levels: int | None = None, dtype: DTypeLike | None = None
    ) -> LoDTensor:
        """Return a LoDTensor of sequences in lists that may be nested to any depth.

        Each depth of lists becomes a level.  An array is a sequence of rows, a list of numbers is a sequence of
        scalars.

        Parameters
        ----------
        sequences : nested list
        num_levels : int, optional
            The number of levels; lists nested deeper are rows instead of sequences.  For example, 1 reads
            `[[[1, 2], [3, 4]]]` as one sequence of two rows.  By default, all depths are levels.
        dtype : data type, optional
            By default, the data type that NumPy chooses for the numbers.

        Raises
        ------
        LoDError, ShapeError
            If lists are not nested equally deep, or rows differ in shape.
        ProgramError
            If a sequence is a Variable that requires a gradient, outside of `no_grad`, because the gradient would be
            lost: `nn.functional.concat(variables, axis=0).with_lod(offsets)` keeps it.

        Examples
        --------
        >>> LoDTensor.from_sequences([[[1, 2], [3]], [[4, 5, 6]]]).recursive_sequence_lengths()
        [[2, 1], [2, 1, 3]]
        >>> LoDTensor.from_sequences([np.zeros((3, 8)), np.zeros((0, 8))]).data.shape
        (3, 8)
        """
        if not isinstance(sequences, (list, tuple)):
            raise LoDError("sequences", expected="a list", got=type(sequences).__name__)
        check_no_gradient(sequences, "sequences", KEEPS_GRADIENT)
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
        except Exception as error:  # `np.dtype` runs code of the object, which may raise anything.
            raise DTypeError("dtype", expected="a data type", got=shown(dtype)) from error
        leaves = [as_sequence(item, number, dtype) for number, item in enumerate(level)]
        lengths.append([len(leaf) for leaf in leaves])
        return cls(join_sequences(leaves, dtype), LoD.from_lengths(lengths))

    data: Final[np.ndarray] = getter("_data", "The rows; their values may be changed in place, their number may not.")
    shape: Final[tuple[int, ...]] = getter("_data.shape", "The shape of the rows: `(rows, ...)`.")
    dtype: Final[np.dtype] = getter("_data.dtype", "The data type of the rows.")
    structure: Final[LoD] = getter("_lod", "The `LoD` object itself, which tensors share.")
    num_levels: Final[int] = getter("_lod.num_levels", "The number of levels; 0 for an ordinary tensor.")

    @property
    def device(self) -> Place:
        """Where the rows are: `device('cpu')` or `device('cuda:0')`; the LoD is on the host."""
        return place_of(self._data)

    def to(self, device: str | Place) -> LoDTensor:
        """Return the same rows and LoD with the rows on a device; return this tensor if its rows are there already.

        Parameters
        ----------
        device : {"cpu", "cuda"} or the result of `vr.device`

        Raises
        ------
        PlaceError
            If there is no such device.
        InputError
            If numba-cuda is not installed, or finds no GPU.

        Examples
        --------
        >>> x = LoDTensor(np.zeros((3, 2)), [[0, 1, 3]])
        >>> x.to("cpu") is x, x.device
        (True, device('cpu'))

        Source: `Tensor.to` of PyTorch.
        """
        place = as_place(device)
        return self if place == self.device else LoDTensor.wrap(moved(self._data, place), self._lod)

    def lod(self) -> list[list[int]]:
        """Return a list of offsets for each level."""
        return self._lod.offsets()

    def set_lod(self, offsets: LoD | Iterable[Offsets]) -> None:
        """Give this tensor another LoD, by offsets; other tensors that share the old LoD do not change."""
        lod = offsets if isinstance(offsets, LoD) else LoD(offsets)
        check_cover(lod, self.data)
        self._lod = lod

    def recursive_sequence_lengths(self) -> list[list[int]]:
        """Return a list of lengths for each level."""
        return self._lod.lengths()

    def set_recursive_sequence_lengths(self, lengths: Iterable[Lengths]) -> None:
        """Give this tensor another LoD, by lengths."""
        self.set_lod(LoD.from_lengths(lengths))

    def has_valid_recursive_sequence_lengths(self) -> bool:
        """Return whether the LoD covers the rows; False only if the shape of `data` was changed in place."""
        return not len(self._lod) or self.shape[:1] == (self._lod.num_rows,)

    def absolute_lod(self) -> list[list[int]]:
        """Return a list of offsets for each level, all counted in rows."""
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
        """Return the sequences `begin` to `end` of `level` with all lower levels; their rows are a view.

        Examples
        --------
        >>> x = create_lod_tensor(np.arange(5.0), [[2, 1], [2, 0, 3]])
        >>> x.slice(0, 1, 2).lod(), x.slice(1, 1, 3).lod()
        ([[0, 1], [0, 3]], [[0, 0, 3]])
        """
        lod, first, last = self._lod.slice(level, begin, end)
        return LoDTensor.wrap(self.data[first:last], lod)

    def like(self, rows: np.ndarray) -> LoDTensor:
        """Return other rows with this tensor's LoD, without a check or copy; the rows must fit the LoD."""
        return LoDTensor.wrap(rows, self._lod)

    def copy(self) -> LoDTensor:
        """Return a tensor with copied rows and the same LoD, which is immutable."""
        return LoDTensor.wrap(self.data.copy(), self._lod)

    def to_sequences(self) -> list[Any]:
        """Return lists of sequences, nested once per level; each sequence is a view of its rows.

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
        """Return one sequence as a view: `x[2]` is sequence 2 of level 0, `x[2, 0]` is its first sub-sequence.

        A list or array of indices, or a mask, returns a copy of the chosen sequences of level 0, in this order.

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
            expected = f"1 to {self.num_levels} indices, at most one per level"
            raise OutOfRangeError("branch", expected=expected, got=len(branch))
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
        if on_device(self._data):
            what, hint = "indices of a LoDTensor", "x.to('cpu') copies it to the host"
            raise PlaceError(what, expected="rows on cpu", got=f"rows on {self.device}", hint=hint)
        if not self.num_levels:
            raise LoDError("indices", expected="at least one level", got=f"a tensor of shape {self.shape}")
        lod, rows = take_sequences(self._lod, as_indices(indices, len(self), "indices"))
        return LoDTensor.wrap(self._data.take(rows, axis=0), lod)

    def __len__(self) -> int:
        """Return the number of sequences of level 0, or the number of rows if there is no level."""
        return self.num_elements(0) if len(self._lod) else len(self.data)

    def __iter__(self) -> Iterator[LoDTensor]:
        return (self[index] for index in range(len(self)))

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.data, dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.data.__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory of the rows for another library; rows on the host have no such attribute."""
        return interface_of(self._data)

    def __repr__(self) -> str:
        # A tensor of rank 0, such as a loss, is a single number without rows.
        if self.data.ndim == 0:
            return f"LoDTensor: {self.data!r}"
        where = f" on {self.device}" if on_device(self._data) else ""
        head = f"LoDTensor: {count(len(self.data), 'row')} of {self.shape[1:]} {self.dtype}{where}"
        return "\n".join([f"{head}, {count(self.num_levels, 'level')}", *lines_of_levels(self._lod)])


def interface_of(data: Any) -> dict[str, Any]:
    """Return the `__cuda_array_interface__` of an array on a CUDA device; raise an AttributeError on the host."""
    if on_device(data):
        return data.__cuda_array_interface__
    raise AttributeError("__cuda_array_interface__: the numbers are on the host")


def lines_of_levels(lod: LoD) -> list[str]:
    """Return, for each level from coarse to fine, a line of text about the lengths of its sequences."""
    lines = []
    for number, offsets in enumerate(lod._levels):
        unit = "row" if number == len(lod._levels) - 1 else "sequence"
        lines.append(f"  level {number}: {_describe_lengths(np.diff(offsets), unit)}")
    return lines


def create_lod_tensor(data: Rows, recursive_seq_lens: Iterable[Lengths]) -> LoDTensor:
    """Return a LoDTensor of `data`, divided into sequences by the lengths of each level.

    Parameters
    ----------
    data : array_like or LoDTensor
        Rows, shape `(rows, ...)`.  Of a LoDTensor, only the rows are used; they are shared, not copied.
    recursive_seq_lens : sequence of sequences of int
        A list of lengths for each level, from coarse to fine.  Lengths of the last level count rows; lengths of an
        upper level count the sequences of the next lower level.

    Raises
    ------
    LoDError
        If a length is negative, levels do not fit together, or the last level does not cover exactly the rows.
    ProgramError
        If `data` is a Variable that requires a gradient, outside of `no_grad`: `data.with_lod(offsets)` keeps it.

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
