"""Arrow columns of lists: from pyarrow, polars, pandas, DuckDB, or any library with the PyCapsule interface."""

from __future__ import annotations

from typing import Any

import numpy as np

from varlen_rnn.errors import DTypeError, LoDError, ShapeError
from varlen_rnn.interop.foreign import Levels, library, tensor_of
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.typing import Rows


def from_arrow(column: Any) -> LoDTensor:
    """Return a LoDTensor of a column of lists of numbers; its rows share the column's memory, which is read-only.

    Parameters
    ----------
    column : object with `__arrow_c_array__` or `__arrow_c_stream__`
        A pyarrow array or chunked array, a polars or pandas series, a table of one column, a DuckDB result, or a slice
        of these.  Each depth of lists becomes a level; innermost lists of a fixed size are the numbers of a row.
        Several chunks are joined, which copies their rows.

    Returns
    -------
    LoDTensor
        Its offsets are copied as int64, its rows are not copied.

    Raises
    ------
    LoDError, DTypeError, ShapeError
        If a list or number is missing (null), the type is not lists of numbers, or a table has several columns.

    Examples
    --------
    >>> import pyarrow
    >>> of_rows = pyarrow.list_(pyarrow.list_(pyarrow.float32(), 2))
    >>> x = from_arrow(pyarrow.array([[[1.0, 2.0]], [], [[3.0, 4.0], [5.0, 6.0]]], of_rows))
    >>> x.lod(), x.shape
    ([[0, 1, 1, 3]], (3, 2))
    """
    pa = library("pyarrow")
    array, levels = _one_array(pa, column), Levels()
    while (offsets_and_values := _list_of(pa, array, len(levels.offsets))) is not None:
        offsets, values = offsets_and_values
        first, end = levels.add(offsets)
        array = values.slice(first, end - first)
    if not levels.offsets:
        hint = "each sequence must be a list in the column"
        raise LoDError("from_arrow, column", expected="lists of numbers", got=str(array.type), hint=hint)
    return levels.over(_numbers(pa, array))


def _one_array(pa: Any, column: Any) -> Any:
    if isinstance(column, (pa.Table, pa.RecordBatch)):
        column = _only_column(column)
    elif hasattr(column, "__arrow_c_stream__"):
        column = pa.chunked_array(column)
    elif hasattr(column, "__arrow_c_array__"):
        column = pa.array(column)
    else:
        expected = "an object with __arrow_c_array__ or __arrow_c_stream__"
        raise DTypeError("from_arrow, column", expected=expected, got=type(column).__name__)
    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if pa.types.is_struct(column.type):  # a table that was passed as a stream
        table = pa.Table.from_batches([pa.RecordBatch.from_struct_array(column)])
        return _one_array(pa, _only_column(table))
    return column


def _only_column(table: Any) -> Any:
    if table.num_columns != 1:
        hint = "pass only the column of the sequences"
        got = f"the columns {table.column_names}"
        raise ShapeError("from_arrow, column", expected="a table of one column", got=got, hint=hint)
    return table.column(0)


def _list_of(pa: Any, array: Any, level: int) -> tuple[np.ndarray, Any] | None:
    """Return the offsets of a list array, and the array of all lists' entries; None if the array holds rows."""
    kind = array.type
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        _refuse_nulls(array, f"level {level}, sequence")
        return np.append(0, np.cumsum(array.sizes.to_numpy())), array.flatten()  # `flatten` copies
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        _refuse_nulls(array, f"level {level}, sequence")
        return array.offsets.to_numpy(), array.values
    if pa.types.is_fixed_size_list(kind) and _has_lists(pa, kind.value_type):
        _refuse_nulls(array, f"level {level}, sequence")
        return (np.arange(len(array) + 1) + array.offset) * kind.list_size, array.values
    return None


def _has_lists(pa: Any, kind: Any) -> bool:
    """Return whether a type has lists of unequal sizes inside of lists of fixed size."""
    while pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return pa.types.is_nested(kind) and not isinstance(kind, pa.BaseExtensionType)


def _numbers(pa: Any, array: Any) -> np.ndarray:
    """Return the numbers of an array as rows that share its memory."""
    shape = [len(array)]
    if isinstance(array.type, pa.FixedShapeTensorType):
        _refuse_nulls(array, "row")
        if array.type.permutation not in (None, list(range(len(array.type.shape)))):
            raise ShapeError("from_arrow, column", expected="tensors without a permutation", got=str(array.type))
        shape += array.type.shape
        array = array.storage
        array = array.values.slice(array.offset * array.type.list_size, len(array) * array.type.list_size)
    while pa.types.is_fixed_size_list(array.type):
        _refuse_nulls(array, "row")
        size = array.type.list_size
        shape.append(size)
        array = array.values.slice(array.offset * size, len(array) * size)
    kind = array.type
    if pa.types.is_boolean(kind):  # stored as bits, so a copy is needed
        _refuse_nulls(array, "row")
        return array.to_numpy(zero_copy_only=False).reshape(shape)
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        hint = "varlen_rnn.data.from_texts converts texts to ids" if "string" in str(kind) else "cast it to numbers"
        raise DTypeError("from_arrow, column", expected="lists of numbers", got=f"lists of {kind}", hint=hint)
    _refuse_nulls(array, "number")
    return array.to_numpy().reshape(shape)


def _refuse_nulls(array: Any, what: str) -> None:
    if array.null_count:
        place = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        hint = "call fill_null or drop_null of the column first"
        raise LoDError(f"from_arrow, {what} {place}", expected="a value", got="null", hint=hint)


def to_arrow(x: Rows) -> Any:
    """Return rows with a LoD as a pyarrow array of lists that shares their memory.

    Parameters
    ----------
    x : LoDTensor or Variable
        Rows with at least one level; rows that are not C-contiguous are copied.

    Returns
    -------
    pyarrow.LargeListArray
        Lists nested once per level.  A row of several numbers is a list of fixed size.  Bools are copied, because Arrow
        stores them as bits.

    Examples
    --------
    >>> to_arrow(LoDTensor(np.array([[1, 2], [3, 4], [5, 6]]), [[0, 1, 3]])).to_pylist()
    [[[1, 2]], [[3, 4], [5, 6]]]
    """
    pa = library("pyarrow")
    tensor = tensor_of(x, "to_arrow, x")
    array = pa.array(np.ascontiguousarray(tensor.data).reshape(-1))
    for size in reversed(tensor.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    for offsets in reversed(tensor.structure.levels):
        array = pa.LargeListArray.from_arrays(pa.array(offsets), array)
    return array
