"""Read sequences from columns of Arrow and Parquet files, and from arrays in .npz files."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from varlen_rnn.data.dataset import Dataset
from varlen_rnn.data.labels import labels_of
from varlen_rnn.data.large_ids import check_no_large_id
from varlen_rnn.data.missing import filled, with_labels, without_missing
from varlen_rnn.data.options import Options
from varlen_rnn.data.readers import from_texts
from varlen_rnn.data.tables import FORMS
from varlen_rnn.errors import DTypeError, InputError, ShapeError, alike, check_list, listed
from varlen_rnn.interop import from_arrow
from varlen_rnn.interop.foreign import library
from varlen_rnn.rows.lod import LoDTensor


def read_columns(format: str, path: str, options: Options) -> Dataset:
    """Return the data set of a Parquet or Arrow IPC file; rows of an Arrow file stay in the file, memory-mapped."""
    pa = library("pyarrow", "pyarrow")
    sequence, label = options.sequence or "text", options.label
    table = arrow_table(path, format)
    for field in (sequence, label):
        if field is not None and field not in table.column_names:
            if options.sequence is None and field == sequence:
                got = f"only the columns {listed(table.column_names)}"
                raise InputError(path, expected="options that define a sequence", got=got, hint=FORMS)
            got, hint = f"only {listed(table.column_names)}", alike(field, table.column_names)
            raise InputError(f"{path}, column {field!r}", expected="this column", got=got, hint=hint)
    if not table.num_rows:
        raise InputError(path, expected="at least one record", got="none", hint="is the file empty?")
    column = table.column(sequence)
    values = None if label is None else table.column(label).to_pylist()
    if _is_text(pa, column.type) or _of_texts(pa, column.type):
        return from_texts(column.to_pylist(), values, **options.of_texts())
    if column.null_count:
        place = lambda number: f"{path}, column {sequence!r}, record {number}"
        lists = without_missing(column.to_pylist(), options.missing, place)
        column = pa.chunked_array([pa.array(lists, column.type)])
    where = f"{path}, column {sequence!r}"
    if options.missing != "error" and _null_numbers(pa, column):
        sequences = _with_nan(column.to_pylist(), where, options.dtype)
    else:
        tensors = _of_one_level([from_arrow(chunk) for chunk in column.chunks], where)
        sequences = [_as_rows(rows) for tensor in tensors for rows in tensor.to_sequences()]
    return dataset_of_arrays(path, sequences, values, options)


def _null_numbers(pa: Any, column: Any) -> bool:
    """Return whether a column of lists of numbers contains a null."""
    from pyarrow import compute  # which `import pyarrow` does not import

    while pa.types.is_nested(column.type):
        column = compute.list_flatten(column)
    return column.null_count > 0


def _with_nan(lists: list[list[Any]], where: str, dtype: str) -> list[np.ndarray]:
    """Return each list of numbers, or of rows of numbers, as rows of the type `dtype`; null becomes NaN."""
    width = next((np.size(rows[0]) for rows in lists if rows), 1)
    try:
        found = [np.array(rows, np.float64).reshape(len(rows), width) for rows in lists]
    except ValueError as error:
        raise ShapeError(where, expected=f"rows of {width} numbers, some of them null", got=str(error)[:80]) from error
    for number, (floats, rows) in enumerate(zip(found, lists, strict=True)):
        check_no_large_id(floats, _each(rows), f"{where}, record {number}")
    return [floats.astype(dtype) for floats in found]


def _each(rows: list[Any]) -> Iterator[Any]:
    """Yield each number of a list, or of a list of lists; nothing is computed before the first is taken."""
    yield from np.array(rows, object).flat


def _of_one_level(tensors: list[LoDTensor], where: str) -> list[LoDTensor]:
    """Return tensors with one LoD level: a second level of equally long lists becomes the features of rows."""
    levels = tensors[0].num_levels
    if levels == 1:
        return tensors
    if levels > 2:
        expected = "lists of numbers, or of equally long lists of them"
        raise ShapeError(where, expected=expected, got=f"lists of {levels} levels")
    found = np.unique(np.concatenate([np.diff(tensor.lod()[1]) for tensor in tensors]))
    if len(found) > 1:
        expected, got = "lists of equally long lists", f"lists of {found[0]} to {found[-1]}"
        raise ShapeError(where, expected=expected, got=got)
    width = int(found[0]) if len(found) else 1
    return [
        LoDTensor(tensor.data.reshape(tensor.lod()[0][-1], width, *tensor.shape[1:]), tensor.lod()[:1])
        for tensor in tensors
    ]


def arrow_table(path: str, format: str) -> Any:
    """Return the pyarrow table of a Parquet or Arrow IPC file."""
    pa = library("pyarrow", "pyarrow")
    try:
        if format == "parquet":
            return library("pyarrow.parquet", "pyarrow").read_table(path)
        source = pa.memory_map(path)
        try:
            return pa.ipc.open_file(source).read_all()
        except pa.ArrowInvalid:
            return pa.ipc.open_stream(source).read_all()
    except pa.ArrowException as error:
        raise InputError(path, expected=f"a file of format {format!r}", got=str(error)[:80]) from error


def _is_text(pa: Any, kind: Any) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _of_texts(pa: Any, kind: Any) -> bool:
    return (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _is_text(pa, kind.value_type)


def read_npz(path: str, options: Options) -> Dataset:
    """Return the data set of a file of `np.savez`.

    The array named by the option `sequence` holds the rows of all sequences.  The array "offsets" of shape
    `(sequences + 1,)` divides them into sequences.  The option `label` names the array of labels.
    """
    try:
        with open(path, "rb") as raw:  # NumPy would not close a file that is no archive
            file = np.load(raw, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise ValueError("a file of np.save")
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise InputError(path, expected="a file of np.savez", got=str(error)[:80]) from error
    sequence, label = options.sequence or "rows", options.label
    for name in (sequence, "offsets", label):
        if name is not None and name not in arrays:
            got, hint = f"only {listed(arrays)}", alike(name, arrays)
            raise InputError(f"{path}, array {name!r}", expected="this array", got=got, hint=hint)
    tensor = LoDTensor(arrays[sequence], [arrays["offsets"]])
    if label is not None and arrays[label].ndim == 0:
        expected = f"{len(tensor.lod()[0]) - 1} labels, one per sequence"
        raise ShapeError(f"{path}, array {label!r}", expected=expected, got="shape ()")
    values = None if label is None else arrays[label].tolist()
    return dataset_of_arrays(path, [_as_rows(rows) for rows in tensor.to_sequences()], values, options)


def _as_rows(rows: np.ndarray) -> np.ndarray:
    """Return ids unchanged, and a vector of floats as rows of one feature."""
    if rows.dtype.kind not in "fiu":
        raise DTypeError("sequences", expected="numbers", got=f"data type {rows.dtype}")
    return rows[:, None] if rows.ndim == 1 and rows.dtype.kind == "f" else rows


def dataset_of_arrays(path: str, sequences: list[np.ndarray], values: list[Any] | None, options: Options) -> Dataset:
    """Return the Dataset of ids or of rows of numbers, and of labels as they were read."""
    missing, classes = options.missing, options.classes
    if not sequences:
        raise InputError(path, expected="at least one record", got="none", hint="is the file empty?")
    if values is not None and len(values) != len(sequences):
        raise ShapeError(f"{path}, labels", expected=f"{len(sequences)}, one per sequence", got=len(values))
    if missing != "error":  # checking for NaN would read memory-mapped rows
        sequences, values = filled(sequences, values, missing, lambda number: f"{path}, record {number}")
    if values is None:
        return Dataset(path, sequences, None, [], check_list(classes or [], "classes"), "list")
    there = with_labels(values, missing, lambda number: f"{path}, label of record {number}")
    sequences, values = [sequences[number] for number in there], [values[number] for number in there]
    where = lambda number: f"{path}, label of record {there[number]}"
    lengths, kind = list(map(len, sequences)), options.label_kind
    labels, names = labels_of(values, lengths, where, classes, kind, gaps=missing != "error")
    return Dataset(path, sequences, labels, [], names, "list")
