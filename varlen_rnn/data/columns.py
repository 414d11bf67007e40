"""Columns of Arrow and Parquet files, and arrays of NumPy: sequences on the memory that they have."""

from __future__ import annotations

from typing import Any

import numpy as np

from varlen_rnn.data.dataset import Dataset
from varlen_rnn.data.labels import labels_of
from varlen_rnn.data.missing import filled, with_labels
from varlen_rnn.errors import DTypeError, InputError, ShapeError, check_list
from varlen_rnn.interop import from_arrow
from varlen_rnn.interop.foreign import library
from varlen_rnn.lod import LoDTensor


def read_columns(
    path: str,
    format: str,
    sequence: str,
    label: str | None,
    missing: str,
    classes: Any,
    label_kind: str | None,
    as_texts: Any,
) -> Dataset:
    """Return the data set of a Parquet or an Arrow IPC file; the latter's rows stay in the file (a memory map)."""
    pa = library("pyarrow", '"varlen_rnn[arrow]"')
    table = _table(pa, path, format)
    for field in (sequence, label):
        if field is not None and field not in table.column_names:
            got = f"only {', '.join(map(repr, table.column_names))}"
            raise InputError(f"{path}, column {field!r}", expected="this column", got=got)
    column = table.column(sequence)
    values = None if label is None else table.column(label).to_pylist()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or _of_texts(pa, column.type):
        return as_texts(column.to_pylist(), values)
    if column.null_count:
        raise InputError(f"{path}, column {sequence!r}", expected="no nulls", got=f"{column.null_count} of them")
    if missing != "error" and _null_numbers(pa, column):
        sequences = [np.array(rows, np.float32) for rows in column.to_pylist()]  # a null becomes NaN
    else:
        sequences = [rows for chunk in column.chunks for rows in from_arrow(chunk).to_sequences()]
    return _dataset(path, [_as_rows(rows) for rows in sequences], values, missing, classes, label_kind)


def _null_numbers(pa: Any, column: Any) -> bool:
    """Return whether any number in lists of them is null."""
    while pa.types.is_nested(column.type):
        column = pa.compute.list_flatten(column)
    return column.null_count > 0


def _table(pa: Any, path: str, format: str) -> Any:
    try:
        if format == "parquet":
            return library("pyarrow.parquet", '"varlen_rnn[arrow]"').read_table(path)
        source = pa.memory_map(path)
        try:
            return pa.ipc.open_file(source).read_all()
        except pa.ArrowInvalid:
            return pa.ipc.open_stream(source).read_all()
    except pa.ArrowException as error:
        raise InputError(path, expected=f"a file of format {format!r}", got=str(error)[:80]) from error


def _of_texts(pa: Any, kind: Any) -> bool:
    return (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_string(kind.value_type)


def read_npz(
    path: str, sequence: str, label: str | None, missing: str, classes: Any, label_kind: str | None
) -> Dataset:
    """Return the data set of a file of `np.savez`: rows one after another, "offsets", and labels.

    Rows are the array `sequence`, cut at `offsets`, of shape `(sequences + 1,)`.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise InputError(path, expected="a file of np.savez", got=str(error)[:80]) from error
    for name in (sequence, "offsets", label):
        if name is not None and name not in arrays:
            got = f"only {', '.join(map(repr, arrays))}"
            raise InputError(f"{path}, array {name!r}", expected="this array", got=got)
    tensor = LoDTensor(arrays[sequence], [arrays["offsets"]])
    values = None if label is None else arrays[label].tolist()
    return _dataset(path, [_as_rows(rows) for rows in tensor.to_sequences()], values, missing, classes, label_kind)


def _as_rows(rows: np.ndarray) -> np.ndarray:
    """Return ids as they are, and numbers as rows of features."""
    if rows.dtype.kind not in "fiu":
        raise DTypeError("sequences", expected="numbers", got=f"data type {rows.dtype}")
    return rows[:, None] if rows.ndim == 1 and rows.dtype.kind == "f" else rows


def _dataset(
    path: str,
    sequences: list[np.ndarray],
    values: list[Any] | None,
    missing: str,
    classes: Any,
    label_kind: str | None,
) -> Dataset:
    if not sequences:
        raise InputError(path, expected="at least one record", got="none", hint="is the file empty?")
    if values is not None and len(values) != len(sequences):
        raise ShapeError(f"{path}, labels", expected=f"{len(sequences)}, one per sequence", got=len(values))
    if missing != "error":  # otherwise they may stay in the file
        sequences, values = filled(sequences, values, missing, lambda number: f"{path}, record {number}")
    if values is None:
        return Dataset(path, sequences, None, [], check_list(classes or [], "classes"), "list")
    there = with_labels(values, missing, lambda number: f"{path}, label of record {number}")
    sequences, values = [sequences[number] for number in there], [values[number] for number in there]
    where = lambda number: f"{path}, label of record {there[number]}"
    labels, names = labels_of(values, list(map(len, sequences)), where, classes, label_kind, gaps=missing != "error")
    return Dataset(path, sequences, labels, [], names, "list")
