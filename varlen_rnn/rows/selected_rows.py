"""`SelectedRows`: a sparse array of which only some rows are stored, such as the gradient of an embedding table.

For example, if only rows 73 and 84 of an array are not 0: `rows = [73, 84]`, `value = [[1, 2], [3, 4]]`.  Rows may be
in any order, and a row that occurs several times has the sum of its values.

Source: PaddlePaddle's design document "Selected Rows".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NoReturn, overload

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from varlen_rnn.errors import DTypeError, OutOfRangeError, PlaceError, ShapeError, check_int
from varlen_rnn.kernels.groups import group_ids, sum_groups
from varlen_rnn.kernels.rows import scatter_add_rows
from varlen_rnn.rows.checks import check_no_gradient, check_unmasked, device_rows, read_only
from varlen_rnn.rows.lod import getter, view_of
from varlen_rnn.runtime.device import as_operand, empty, host_numbers, joined, moved, on_device, place_of, zeros
from varlen_rnn.runtime.device_array import DeviceArray
from varlen_rnn.runtime.place import Place
from varlen_rnn.runtime.place import device as as_place
from varlen_rnn.runtime.placeholder import Placeholder


class SelectedRows:
    """Some rows of an array of `height` rows; all other rows are 0.

    Parameters
    ----------
    rows : (n,) array_like of int
        The row to which each entry of `value` is added, at least 0 and less than `height`.  Rows may repeat and be in
        any order.
    value : (n, ...) array_like of float32 or float64
    height : int
        The number of rows of the dense array.

    Raises
    ------
    DTypeError, ShapeError, OutOfRangeError
        If an argument is invalid; the error names it, the expected and the actual value.

    Examples
    --------
    >>> s = SelectedRows(rows=[73, 84], value=[[1.0, 2.0], [3.0, 4.0]], height=100)
    >>> s
    SelectedRows(height=100, 2 rows, 2 unique, value (2, 2) float64)
    >>> s.shape, s.to_dense()[73]
    ((100, 2), array([1., 2.]))
    """

    __slots__ = ("_height", "_rows", "_value")

    def __init__(self, rows: ArrayLike, value: ArrayLike, height: int) -> None:
        # Rows are copied before they are checked, because the caller may change its array after the checks.
        height, value, rows = check_int(height, "height", 0), _as_value(value), read_only(_as_rows(rows))
        if len(rows) != len(value):
            raise ShapeError("rows", expected=f"{len(value)} indices, one per row of value", got=len(rows))
        outside = np.flatnonzero((rows < 0) | (rows >= height))
        if len(outside):
            entry = int(outside[0])
            expected = f"at least 0 and less than {height}, the height"
            raise OutOfRangeError(f"rows, entry {entry}", expected=expected, got=int(rows[entry]))
        self._set(rows, value, height)

    def _set(self, rows: np.ndarray, value: np.ndarray, height: int) -> None:
        # Users never get these views, because kernels use the indices and the length of `value` without checks.
        self._rows, self._value, self._height = rows, value.view(), height

    def __reduce__(self) -> tuple[type[SelectedRows], tuple[np.ndarray, np.ndarray, int]]:
        # Unpickling calls the constructor with its checks, because unpickled arrays are writeable.
        return SelectedRows, (self._rows, self._value, self._height)

    rows: Final[np.ndarray] = view_of("_rows", "The indices of the stored rows, (n,) int64, as a new read-only view.")
    value: Final[np.ndarray] = view_of(
        "_value", "The values that are added to the rows, (n, ...), as a view whose entries may be changed in place."
    )
    height: Final[int] = getter("_height", "The number of rows of the dense array.")
    ndim: Final[int] = getter("_value.ndim", "The number of dimensions of the dense array.")
    dtype: Final[np.dtype] = getter("_value.dtype", "The data type of `value`.")

    @classmethod
    def wrap(cls, rows: np.ndarray, value: np.ndarray, height: int) -> SelectedRows:
        """Return a SelectedRows without checks; the arguments must be valid, and `rows` int64.

        The rows are copied, the values are not.  In a dry run, whose sizes cannot depend on numbers, an entry of
        `rows` can be -1: then its value belongs to no row.
        """
        self = cls.__new__(cls)
        if type(rows) is Placeholder:
            rows = rows.view()
            rows.flags.writeable = False  # as other rows, so that Numba compiles one kernel
        else:
            rows = read_only(rows)
        self._set(rows, value, height)
        return self

    @property
    def device(self) -> Place:
        """Where the values are: `device('cpu')` or `device('cuda:0')`; the listed rows are on the host."""
        return place_of(self._value)

    def to(self, device: str | Place) -> SelectedRows:
        """Return the same rows with the values on a device, "cpu" or "cuda"; return `self` if they are there already.

        Examples
        --------
        >>> SelectedRows([1], [[2.0]], height=3).to("cpu").device
        device('cpu')
        """
        place = as_place(device)
        return self if place == self.device else SelectedRows.wrap(self._rows, moved(self._value, place), self._height)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the dense array."""
        return (self._height, *self._value.shape[1:])

    def merge(self) -> SelectedRows:
        """Return the same array with ascending, distinct rows; the values of a repeated row are summed in their order.

        If the rows are ascending and distinct already, return `self`.

        Examples
        --------
        >>> merged = SelectedRows([4, 0, 4], [[1.0], [2.0], [3.0]], height=5).merge()
        >>> merged.rows, merged.value.ravel()
        (array([0, 4]), array([2., 4.]))
        """
        is_dry = type(self._rows) is Placeholder
        if not is_dry and (self._rows[1:] > self._rows[:-1]).all():
            return self
        ids, count = as_operand(self._rows), len(self._rows)
        counts, order, rows, starts = (empty((size,), ids) for size in (257, count, count, count + 1))
        group_ids(ids, self._height, counts, order, rows, starts)
        if not is_dry:
            rows = rows[: np.searchsorted(rows < 0, True)]
        if on_device(self._value):
            value = _sum_rows(self._value, np.searchsorted(rows, ids), len(rows))
        else:
            value = empty((len(rows), *self._value.shape[1:]), self._value)
            sum_groups(_flat(self._value), order, starts, _flat(value))
        return SelectedRows.wrap(rows, value, self._height)

    def to_dense(self) -> np.ndarray:
        """Return the dense array; values of repeated rows are summed in order.

        Examples
        --------
        >>> SelectedRows([2, 0, 2], [1.0, 2.0, 3.0], height=4).to_dense()
        array([2., 0., 4., 0.])
        """
        return _sum_rows(self._value, self._rows, self._height)

    def copy(self) -> SelectedRows:
        """Return a copy that shares no memory with this SelectedRows."""
        return SelectedRows.wrap(self.rows.copy(), self.value.copy(), self.height)

    @overload
    def __add__(self, other: SelectedRows) -> SelectedRows: ...
    @overload
    def __add__(self, other: np.ndarray) -> np.ndarray: ...
    def __add__(self, other: SelectedRows | np.ndarray) -> SelectedRows | np.ndarray:
        """Return the sum with another SelectedRows, by appending its rows, or with an array, as a dense array.

        Raises
        ------
        ShapeError, DTypeError
            If heights, shapes of rows, or data types differ; they are never mixed or broadcast silently.

        Examples
        --------
        >>> s = SelectedRows([1], [[2.0]], height=3)
        >>> (s + s).rows, (s + np.ones((3, 1))).ravel()
        (array([1, 1]), array([1., 3., 1.]))
        """
        if not isinstance(other, (SelectedRows, np.ndarray, DeviceArray)):
            return NotImplemented
        if isinstance(other, SelectedRows):
            return append([self, other])
        self._check_fits(other)
        merged, dense = self.merge(), other.copy()
        _add_rows(merged._value, merged._rows, dense)
        return dense

    def _check_fits(self, other: SelectedRows | np.ndarray) -> None:
        if other.shape != self.shape:
            raise ShapeError("SelectedRows, sum", expected=f"shape {self.shape}", got=other.shape)
        if other.dtype != self.dtype:
            raise DTypeError("SelectedRows, sum", expected=self.dtype, got=other.dtype)
        place = other.device if isinstance(other, SelectedRows) else place_of(other)
        if place != self.device:
            raise PlaceError("SelectedRows, sum", expected=f"values on {self.device}", got=f"values on {place}")

    __radd__ = __add__  # addition is commutative
    __array_ufunc__ = None  # makes NumPy call `__radd__` for `array + selected`

    def __sub__(self, other: SelectedRows | np.ndarray) -> SelectedRows | np.ndarray:
        return self + -other if isinstance(other, (SelectedRows, np.ndarray, DeviceArray)) else NotImplemented

    def __rsub__(self, other: np.ndarray) -> np.ndarray:
        return -self + other

    def __neg__(self) -> SelectedRows:
        return self * -1.0

    def __mul__(self, number: float) -> SelectedRows:
        """Return the product with a number, which is converted to the data type of the values.

        Examples
        --------
        >>> gradient = SelectedRows([1], [[2.0]], height=3)
        >>> (np.ones((3, 1)) - 0.5 * gradient).ravel()
        array([1., 0., 1.])
        """
        if not isinstance(number, (int, float, np.integer, np.floating)) or isinstance(number, bool):
            return NotImplemented
        return SelectedRows.wrap(self._rows, self._value * self.dtype.type(number), self._height)

    __rmul__ = __mul__

    def __truediv__(self, number: float) -> SelectedRows:
        if not isinstance(number, (int, float, np.integer, np.floating)) or isinstance(number, bool):
            return NotImplemented
        return SelectedRows.wrap(self._rows, self._value / self.dtype.type(number), self._height)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NoReturn:
        hint = "to_dense() returns all rows, .value the stored rows"
        raise DTypeError("SelectedRows", expected="an explicit conversion", got="np.asarray", hint=hint)

    def __repr__(self) -> str:
        count, unique = len(self.rows), len(np.unique(self.rows))
        noun = "row" if count == 1 else "rows"
        value = f"value {self.value.shape} {self.dtype}"
        return f"SelectedRows(height={self.height}, {count} {noun}, {unique} unique, {value})"


def append(parts: Sequence[SelectedRows]) -> SelectedRows:
    """Return the sum of SelectedRows: their rows one after another, without merging equal rows; each is copied once."""
    first = parts[0]
    for other in parts[1:]:
        first._check_fits(other)
    rows = np.concatenate([part._rows for part in parts])
    return SelectedRows.wrap(rows, joined([part._value for part in parts]), first.height)


def _sum_rows(value: Any, rows: np.ndarray, count: int) -> Any:
    """Return an array of `count` rows; row k is the sum, in order, of `value[i]` for all i with `rows[i] == k`."""
    out = zeros((count, *value.shape[1:]), value)
    _add_rows(value, rows, out)
    return out


def _add_rows(value: Any, rows: np.ndarray, out: Any) -> None:
    scatter_add_rows(_flat(value), as_operand(rows), _flat(out))


def _flat(rows: Any) -> Any:
    return as_operand(rows).reshape(len(rows), math.prod(rows.shape[1:]))


def _as_value(value: ArrayLike) -> np.ndarray:
    check_no_gradient(value, "value")
    check_unmasked(value, "value")
    try:
        array: Any = device_rows(value)
        array = np.asarray(value) if array is None else array
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ShapeError("value", expected="rows of one shape", got=type(value).__name__) from error
    if array.dtype not in (np.float32, np.float64):
        raise DTypeError("value", expected="float32 or float64", got=f"data type {array.dtype}")
    if array.ndim == 0:
        raise ShapeError("value", expected="at least one dimension", got="a single number")
    return array


def _as_rows(rows: ArrayLike) -> np.ndarray:
    check_unmasked(rows, "rows")
    try:
        found = device_rows(rows)
        array = np.asarray(rows) if found is None else host_numbers(found)
    except (ValueError, TypeError, OverflowError) as error:
        raise ShapeError("rows", expected="a flat list of integers", got=type(rows).__name__) from error
    if array.ndim != 1:
        raise ShapeError("rows", expected="a flat list of integers", got=f"an array of shape {array.shape}")
    if array.size == 0 and not isinstance(rows, np.ndarray):  # NumPy reads an empty list as float64
        return np.empty(0, np.int64)
    wide = array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max
    if array.dtype.kind not in "iu" or wide:
        raise DTypeError("rows", expected="integers that fit int64", got=f"data type {array.dtype}")
    return array.astype(np.int64, copy=False)
