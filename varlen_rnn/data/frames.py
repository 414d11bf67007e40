"""`Frame`: a data frame in memory (pandas, polars, Arrow) with the methods of a CSV file's `Table`.

No library of frames is imported: a frame is recognised by its methods, and NumPy converts its columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from typing import Any

import numpy as np

from varlen_rnn.data.columns import dataset_of_arrays
from varlen_rnn.data.dataset import Dataset
from varlen_rnn.data.large_ids import check_no_large_id, large_id
from varlen_rnn.data.missing import EMPTY, Where, filled, without_missing
from varlen_rnn.data.options import Options
from varlen_rnn.data.records import Record, dataset_of
from varlen_rnn.data.tables import FORMS, Table, no_number, times_of
from varlen_rnn.errors import DTypeError, InputError, ShapeError, alike, listed, shown
from varlen_rnn.interop.foreign import library


class Frame(Table):
    """A data frame: the names of its columns, and the values in each.

    Parameters
    ----------
    columns : list of (name, column)
        Columns of pandas, polars or pyarrow.
    name : str
        The name in error messages.
    levels : list
        The names of the levels of a pandas index, which is no column.

    Examples
    --------
    >>> import pyarrow
    >>> frame = frame_of(pyarrow.table({"id": ["a", "b"], "x": [1, None]}))
    >>> frame.fields, frame.column("id"), frame.numbers("x")
    (['id', 'x'], ['a', 'b'], array([ 1., nan]))
    """

    def __init__(self, columns: Sequence[tuple[Any, Any]], name: str = "frame", levels: Sequence[Any] = ()) -> None:
        self.name = self.head = name
        self.fields, self._columns = [str(name) for name, _ in columns], [column for _, column in columns]
        self._levels = levels
        if len(set(self.fields)) < len(self.fields):
            raise InputError(name, expected="columns of different names", got=listed(self.fields))
        if not len(self):
            raise InputError(name, expected="at least one record", got="none", hint="is it empty?")

    def __len__(self) -> int:
        return len(self._columns[0]) if self._columns else 0

    def where(self, number: int) -> str:
        """Return a description of a row for error messages."""
        return f"{self.name}, row {number}"

    def place(self, number: int, field: str) -> str:
        """Return a description of an entry for error messages."""
        return f"{self.where(number)}, column {field!r}"

    def position(self, field: str, option: str) -> int:
        """Return the position of a column, or raise an error that names the option."""
        if not isinstance(field, str) or field not in self.fields:
            hint = "`frame.reset_index()` makes the index columns" if field in self._levels else None
            hint = hint or alike(field, self.fields)
            expected, got = f"the column {shown(field)}", f"only {listed(self.fields)}"
            raise InputError(f"{self.name}, `{option}`", expected=expected, got=got, hint=hint)
        return self.fields.index(field)

    def foreign(self, field: str, option: str = "field") -> Any:
        """Return a column as its library has it."""
        return self._columns[self.position(field, option)]

    def column(self, field: str, option: str = "field") -> list[Any]:
        """Return the entry of a column in each row, as Python has it; a missing entry is None."""
        return values_of(self.foreign(field, option))

    def ids(self, field: str) -> list[str]:
        """Return a column of ids as texts; a missing id is blank."""
        return [self._text(value, number, field, "an id") for number, value in enumerate(self.column(field, "id"))]

    def _text(self, value: Any, number: int, field: str, expected: str) -> str:
        """Return an entry as a text, blank if it is missing, or raise if it has none, as an integer of many digits."""
        try:
            return "" if value is None else str(value)
        except Exception as error:  # an object's own `__str__` may raise anything
            raise DTypeError(self.place(number, field), expected=expected, got=shown(value)) from error

    def labels(self, field: str, kind: str | None) -> list[Any]:
        """Return a column of labels; whole floats are integers if the kind of labels is one of classes."""
        values = [_plain(value) for value in self.column(field, "label")]
        if kind is not None and "classes" in kind:  # pandas makes floats of integers beside missing ones
            return [int(value) if type(value) is float and value.is_integer() else value for value in values]
        return values

    def numbers(self, field: str, option: str = "features") -> np.ndarray:
        """Return a column as float64; a missing entry is NaN, and an entry that is no number raises."""
        column = self.foreign(field, option)
        array = np.asarray(column)
        place = lambda number: self.place(number, field)
        if array.dtype.kind in "fiub":
            found = array.astype(np.float64)
            check_no_large_id(found, array, place)
            return found
        values, found = values_of(column), np.empty(len(column))
        for number, value in enumerate(values):
            try:
                blank = value is None or (isinstance(value, str) and value.strip().lower() in EMPTY)
                found[number] = np.nan if blank else float(value)
            except (TypeError, ValueError, OverflowError) as error:
                hint, where = no_number(value), self.place(number, field)
                raise InputError(where, expected="a number", got=shown(value), hint=hint) from error
        check_no_large_id(found, values, place)
        return found

    def times(self, field: str) -> np.ndarray:
        """Return a column of times as numbers that have their order."""
        array = np.asarray(self.foreign(field, "time"))
        if array.dtype.kind in "iu":
            return array
        gone = np.isnat(array) if array.dtype.kind in "mM" else np.isnan(array) if array.dtype.kind == "f" else None
        if gone is None:
            texts = [self._text(value, number, field, "a time") for number, value in enumerate(self.column(field))]
            return times_of(texts, lambda number: self.place(number, field))
        if gone.any():
            where = self.place(int(np.flatnonzero(gone)[0]), field)
            raise InputError(where, expected="a number, or a date", got="none that is there")
        return array.astype(np.int64) if array.dtype.kind in "mM" else array

    def preview(self) -> str:
        """Return the names of the columns and the first three rows, for error messages."""
        rows = zip(*(values_of(column[:3]) for column in self._columns[:10]), strict=True)
        return "; ".join([listed(self.fields), *(listed(row) for row in rows)])


def frame_of(source: Any, name: str = "frame") -> Frame | None:
    """Return a `Frame` of an object that is a data frame or a table of Arrow; None if it is neither."""
    if isinstance(source, type):
        return None
    if hasattr(source, "iloc") and hasattr(source, "columns"):  # pandas
        levels = [level for level in source.index.names if level is not None]
        return Frame([(field, source.iloc[:, k]) for k, field in enumerate(source.columns)], name, levels)
    if hasattr(source, "get_columns") and hasattr(source, "columns"):  # polars
        return Frame(list(zip(source.columns, source.get_columns(), strict=True)), name)
    if hasattr(source, "column_names") and hasattr(source, "itercolumns"):  # pyarrow
        return Frame(list(zip(source.column_names, source.itercolumns(), strict=True)), name)
    if hasattr(source, "__arrow_c_stream__") and not hasattr(source, "dtype") and not hasattr(source, "type"):
        return frame_of(library("pyarrow", "pyarrow").table(source), name)  # such as a result of DuckDB
    return None


def values_of(column: Any) -> list[Any]:
    """Return the entries of a column of pandas, polars or pyarrow as Python has them; a missing entry is None."""
    if hasattr(column, "to_pylist"):
        return column.to_pylist()
    values = column.to_list()
    if not hasattr(column, "iloc"):
        return values
    return [None if gone else value for value, gone in zip(values, column.isna().tolist(), strict=True)]


def holds_numbers(column: Any) -> bool:
    """Return whether the entries of a column are numbers; some of them may be missing.

    Examples
    --------
    >>> import pyarrow
    >>> holds_numbers(pyarrow.array([1, None])), holds_numbers(pyarrow.array(["1"]))
    (True, False)
    """
    kind = np.asarray(column).dtype.kind
    return kind in "fiub" or (kind == "O" and all(x is None or isinstance(x, Number) for x in values_of(column)))


def entries_of(column: Any) -> list[Any]:
    """Return the sequences in a column: texts, lists of texts, and arrays of numbers for lists of numbers.

    Examples
    --------
    >>> import pyarrow
    >>> entries_of(pyarrow.array([[1, 2], [3]])), entries_of(pyarrow.array([["a"], ["b", "c"]]))
    ([array([1, 2]), array([3])], [['a'], ['b', 'c']])
    """
    # polars iterates over lists as views of their numbers, which `to_list` would make Python's.
    return [_entry(entry) for entry in (column if hasattr(column, "get_chunks") else values_of(column))]


def _entry(entry: Any) -> Any:
    """Return one sequence of a column as a text, a list of texts, or an array; return anything else unchanged."""
    if isinstance(entry, str) or not hasattr(entry, "__len__"):
        return entry
    if isinstance(entry, list) and any(isinstance(token, str) for token in entry):
        return entry  # no array of texts, which would pad each to the longest, and make the text "nan" of NaN
    try:
        array = np.asarray(entry)
        if array.dtype.kind == "f" and not isinstance(entry, np.ndarray) and (np.abs(array) >= 2.0**63).any():
            given = np.array(_plain(entry), object)  # as they were before they became floats
            array = array if large_id(array, given.flat) is None else given
        if array.dtype.kind in "fiub" or array.ndim == 0:
            return array if array.ndim else entry  # bytes, a dict or a set is no list
        values = _lists(array)  # lists inside of lists, as pandas reads Parquet, or numbers beside None
        if all(isinstance(token, str) for token in values):
            return values
        floats, given = np.array(values, np.float64), np.array(values, object)  # None is NaN
        return floats if large_id(floats, given.flat) is None else given
    except (ValueError, TypeError):
        return _plain(entry)


def _lists(array: np.ndarray) -> list[Any]:
    """Return an array whose entries may be arrays as lists inside of a list."""
    nested = lambda value: hasattr(value, "__len__") and not isinstance(value, str)
    return [_lists(np.asarray(value)) if nested(value) else value for value in array.tolist()]


def _plain(value: Any) -> Any:
    """Return a label as Python has it: an array, or a column of polars inside of a column, becomes a list."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "to_list"):
        return value.to_list()
    return value


def read_entries(frame: Frame, options: Options) -> Dataset:
    """Return the data set of a frame whose sequences are the entries of a column: texts, or lists."""
    if options.sequence is None and "text" not in frame.fields:
        raise InputError(frame.name, expected="options that define a sequence", got=frame.preview(), hint=FORMS)
    field = options.sequence or "text"
    entries = entries_of(frame.foreign(field, "sequence"))
    labels = None if options.label is None else frame.labels(options.label, options.label_kind)
    where = lambda number: frame.place(number, field)
    entries = without_missing(entries, options.missing, where)
    of_texts = [isinstance(entry, str) or (isinstance(entry, list) and bool(entry)) for entry in entries]
    if any(of_texts):
        plain = [entry.tolist() if isinstance(entry, np.ndarray) else entry for entry in entries]
        for number, entry in enumerate(plain):
            if not isinstance(entry, (str, list)):
                expected = "a text, as before" if number else "a text or a list"
                raise DTypeError(where(number), expected=expected, got=shown(entry))
        pairs = enumerate(zip(plain, labels or [None] * len(plain), strict=True))
        records = [
            Record(entry, label, where(n), f"{frame.where(n)}, column {options.label!r}") for n, (entry, label) in pairs
        ]
        return dataset_of(records, frame.name, labels is not None, options)
    sequences = _rows(entries, where, options.dtype)
    if options.missing == "error":  # the rows of a frame are in memory, so they are looked at
        filled(sequences, None, "error", where)
    return dataset_of_arrays(frame.name, sequences, labels, options)


def _rows(entries: list[Any], where: Where, dtype: str) -> list[np.ndarray]:
    """Return entries as int64 ids, or as rows of one width and the type `dtype`, or raise if an entry is neither."""
    found: list[np.ndarray] = []
    for number, entry in enumerate(entries):
        array = np.zeros(0) if isinstance(entry, list) and not entry else entry
        if isinstance(array, np.ndarray) and array.dtype.kind in "uO":
            check_no_large_id(array.astype(np.float64), array.flat, where(number))
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub" or array.ndim not in (1, 2):
            raise DTypeError(where(number), expected="a text or a list", got=shown(entry))
        found.append(array)
    some = [array for array in found if len(array)]
    if some and all(array.ndim == 1 and array.dtype.kind in "iu" for array in some):
        return [array.astype(np.int64) for array in found]
    found = [array[:, None] if array.ndim == 1 else array for array in found]
    width = next((array.shape[1] for array in found if len(array)), 1)
    return [_floats(array, width, where(number), dtype) for number, array in enumerate(found)]


def _floats(array: np.ndarray, width: int, where: str, dtype: str) -> np.ndarray:
    if not len(array):
        return np.zeros((0, width), dtype)
    if array.shape[1] != width:
        raise ShapeError(where, expected=f"rows of {width} numbers, as before", got=array.shape[1])
    if np.abs(np.nan_to_num(array, posinf=np.inf, neginf=np.inf)).max() > np.finfo(dtype).max:
        raise InputError(where, expected=f"finite numbers that fit {dtype}", got="infinity or a larger number")
    return array.astype(dtype).view()
