"""The parsers of Parquet, Arrow and NumPy files.  Arrays keep their type; rows of Arrow files stay in the file."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from varlen_rnn.data.columns import Place, Table, places
from varlen_rnn.data.missing import without_missing
from varlen_rnn.data.options import Options
from varlen_rnn.errors import DTypeError, InputError, ShapeError, alike, count, listed
from varlen_rnn.interop import from_arrow
from varlen_rnn.interop.foreign import library
from varlen_rnn.rows.lod import LoDTensor


def parse_arrow(path: str, options: Options) -> Table:
    """Return the Table of an Arrow IPC file, which is memory-mapped."""
    pa = library("pyarrow", "pyarrow")

    def read() -> Any:
        source = pa.memory_map(path)
        try:
            return pa.ipc.open_file(source).read_all()
        except pa.ArrowInvalid:
            return pa.ipc.open_stream(source).read_all()

    return _table(path, "arrow", read)


def parse_parquet(path: str, options: Options) -> Table:
    """Return the Table of a Parquet file."""
    return _table(path, "parquet", lambda: library("pyarrow.parquet", "pyarrow").read_table(path))


def _table(path: str, format: str, read: Callable[[], Any]) -> Table:
    try:
        table = read()
    except library("pyarrow", "pyarrow").ArrowException as error:
        raise InputError(path, expected=f"a file of format {format!r}", got=str(error)[:80]) from error
    columns = zip(table.column_names, table.columns, strict=True)
    return Table(path, columns, places(path, "row", "column"), noun="column", kept=True)


def arrow_entries(column: Any, where: str, place: Place, options: Options) -> list[Any]:
    """Return the sequences in a column of an Arrow table: texts, lists, or arrays that share its memory.

    In error messages, `where` describes the column, and `place(row)` describes an entry.  Lists may contain None if
    `missing` allows it.
    """
    pa = library("pyarrow", "pyarrow")
    if _is_text(pa, column.type):
        return column.to_pylist()
    if column.null_count:
        lists = without_missing(column.to_pylist(), options.missing, place)
        column = pa.chunked_array([pa.array(lists, column.type)])
    if options.missing != "error":
        from pyarrow import compute  # because `import pyarrow` does not import it

        numbers = column
        while pa.types.is_nested(numbers.type):
            numbers = compute.list_flatten(numbers)
        if numbers.null_count:
            return column.to_pylist()
    tensors = _of_one_level([from_arrow(chunk) for chunk in column.chunks], where)
    return [_as_rows(rows) for tensor in tensors for rows in tensor.to_sequences()]


def _of_one_level(tensors: list[LoDTensor], where: str) -> list[LoDTensor]:
    """Return tensors with one LoD level: a second level of equally long lists becomes the features of rows."""
    levels = tensors[0].num_levels
    if levels == 1:
        return tensors
    if levels > 2:
        expected = "lists of numbers, or lists of equally long lists of numbers"
        raise ShapeError(where, expected=expected, got=f"lists nested {levels} levels deep")
    found = np.unique(np.concatenate([np.diff(tensor.lod()[1]) for tensor in tensors]))
    if len(found) > 1:
        expected, got = "inner lists of equal length", f"lengths from {found[0]} to {found[-1]}"
        raise ShapeError(where, expected=expected, got=got)
    width = int(found[0]) if len(found) else 1
    return [
        LoDTensor(tensor.data.reshape(tensor.lod()[0][-1], width, *tensor.shape[1:]), tensor.lod()[:1])
        for tensor in tensors
    ]


def _is_text(pa: Any, kind: Any) -> bool:
    """Return whether an Arrow type means texts, or lists of texts."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_dictionary(kind):
        kind = kind.value_type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def parse_npz(path: str, options: Options) -> Table:
    """Return the Table of a file of `np.savez`, in which the array "offsets" divides the rows into sequences."""
    try:
        with open(path, "rb") as raw:  # NumPy would leave the file open if it is no archive
            file = np.load(raw, allow_pickle=False)
            if isinstance(file, np.ndarray):
                raise ValueError("a file of np.save")
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise InputError(path, expected="a file of np.savez", got=str(error)[:80]) from error
    sequence, label = "rows" if options.sequence is None else options.sequence, options.label
    for name in (sequence, "offsets", label):
        if name is not None and name not in arrays:
            got, hint = f"only {listed(arrays)}", alike(name, arrays)
            raise InputError(f"{path}, array {name!r}", expected="an array of this name", got=got, hint=hint)
    tensor = LoDTensor(arrays[sequence], [arrays["offsets"]])
    sequences = [_as_rows(rows) for rows in tensor.to_sequences()]
    columns: list[tuple[str, Any]] = [(sequence, sequences)]
    if label is not None:
        if arrays[label].shape[:1] != (len(sequences),):
            expected, got = f"{count(len(sequences), 'label')}, one per sequence", f"shape {arrays[label].shape}"
            raise ShapeError(f"{path}, array {label!r}", expected=expected, got=got)
        columns.append((label, arrays[label].tolist()))
    return Table(path, columns, places(path, "record", "array"), noun="array", sequence="rows", kept=True)


def _as_rows(rows: np.ndarray) -> np.ndarray:
    """Return a vector of floats as rows of one feature, and any other array (such as token ids) unchanged."""
    if rows.dtype.kind not in "fiu":
        raise DTypeError("sequences", expected="numbers", got=f"data type {rows.dtype}")
    return rows[:, None] if rows.ndim == 1 and rows.dtype.kind == "f" else rows
