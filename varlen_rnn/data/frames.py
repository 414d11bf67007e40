"""Recognise data frames in memory (pandas, polars, Arrow), and convert the sequences in their columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from varlen_rnn.data.columns import Table, places, plain, values_of
from varlen_rnn.data.large_ids import large_id
from varlen_rnn.interop.foreign import library


def frame_of(source: Any, name: str = "frame") -> Table | None:
    """Return the Table of an object that is a data frame or a table of Arrow; None if it is neither.

    No library of frames is imported: a frame is recognised by its methods.
    """
    if isinstance(source, type):
        return None
    levels: list[Any] = []
    if hasattr(source, "iloc") and hasattr(source, "columns"):  # pandas
        levels = [level for level in source.index.names if level is not None]
        columns = [(field, source.iloc[:, k]) for k, field in enumerate(source.columns)]
    elif hasattr(source, "get_columns") and hasattr(source, "columns"):  # polars
        columns = list(zip(source.columns, source.get_columns(), strict=True))
    elif hasattr(source, "column_names") and hasattr(source, "itercolumns"):  # pyarrow
        columns = list(zip(source.column_names, source.itercolumns(), strict=True))
    elif hasattr(source, "__arrow_c_stream__") and not hasattr(source, "dtype") and not hasattr(source, "type"):
        return frame_of(library("pyarrow", "pyarrow").table(source), name)  # for example, the result of a DuckDB query
    else:
        return None
    table = Table(name, columns, places(name, "row", "column"), noun="column", levels=levels)
    table.check_names()
    return table


def entries_of(column: Any) -> list[Any]:
    """Return the sequences in a column: texts, lists of texts, and arrays of numbers for lists of numbers.

    Examples
    --------
    >>> import pyarrow
    >>> entries_of(pyarrow.array([[1, 2], [3]])), entries_of(pyarrow.array([["a"], ["b", "c"]]))
    ([array([1, 2]), array([3])], [['a'], ['b', 'c']])
    """
    # Iterating over a polars column gives views of its lists; `to_list` would make Python objects of all numbers.
    return [_entry(entry) for entry in (column if hasattr(column, "get_chunks") else values_of(column))]


def _entry(entry: Any) -> Any:
    """Return a sequence as a text, a list of texts, or an array; return an entry that is no sequence unchanged."""
    if isinstance(entry, str) or not hasattr(entry, "__len__"):
        return entry
    if isinstance(entry, list) and any(isinstance(token, str) for token in entry):
        return entry  # no array, because it would pad each text to the longest, and turn NaN into the text "nan"
    try:
        array = np.asarray(entry)
        if array.dtype.kind == "f" and not isinstance(entry, np.ndarray) and (np.abs(array) >= 2.0**63).any():
            given = np.array(plain(entry), object)  # the integers before they became floats
            array = array if large_id(array, given.flat) is None else given
        if array.dtype.kind in "fiub" or array.ndim == 0:
            return array if array.ndim else entry  # bytes, a dict or a set is not a sequence
        values = _lists(array)  # lists inside lists, as pandas reads them from Parquet, or numbers and None
        if all(isinstance(token, str) for token in values):
            return values
        floats, given = np.array(values, np.float64), np.array(values, object)  # None is NaN
        return floats if large_id(floats, given.flat) is None else given
    except (ValueError, TypeError):
        return plain(entry)


def _lists(array: np.ndarray) -> list[Any]:
    """Return an array as a list; entries that are arrays become lists, too."""
    nested = lambda value: hasattr(value, "__len__") and not isinstance(value, str)
    return [_lists(np.asarray(value)) if nested(value) else value for value in array.tolist()]
