"""Make a data set from a column whose entries are sequences: find their kind, and encode tokens, numbers and labels."""

from __future__ import annotations

import itertools
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from varlen_rnn.data.array_files import arrow_entries
from varlen_rnn.data.columns import Table
from varlen_rnn.data.dataset import Dataset
from varlen_rnn.data.frames import entries_of
from varlen_rnn.data.labels import labels_of
from varlen_rnn.data.large_ids import check_no_large_id
from varlen_rnn.data.missing import Where, filled, with_labels, without_missing
from varlen_rnn.data.options import Options
from varlen_rnn.data.vocabulary import build_vocabulary, check_vocabulary, encode_all, natural_tokens, split_text
from varlen_rnn.errors import DTypeError, InputError, ShapeError, check_list, count, shown

_NUMBERS = {int, float, type(None)}


def read_entries(table: Table, options: Options) -> Dataset:
    """Return the data set of a table whose sequences are the entries of a column: texts, or lists."""
    field, label = table.sequence if options.sequence is None else options.sequence, options.label
    column, place = table.foreign(field, "sequence"), lambda row: table.place(row, field)
    labels = None if label is None else table.labels(label, options.label_kind)
    if table.texts:
        if options.tokens == "list":
            column = [_json_list(text, place(row)) for row, text in enumerate(column)]
        if label is not None and labels is not None and (options.label_kind is not None or options.classes is not None):
            texts = table.column(label)
            labels = [None if value is None else text for value, text in zip(labels, texts, strict=True)]
    if isinstance(column, (list, tuple)):
        entries: Sequence[Any] = column
    elif table.kept:
        entries = arrow_entries(column, f"{table.name}, {table.noun} {field!r}", place, options)
    else:
        entries = entries_of(column)
    name = table.name if table.kept else pathlib.Path(table.name).name
    return dataset_of(name, entries, labels, place, lambda row: table.place(row, label), options, table.kept)


def _json_list(text: str, where: str) -> list[Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(where, expected="a JSON list", got=shown(text)) from error
    if not isinstance(value, list):
        raise DTypeError(where, expected="a JSON list", got=shown(text))
    return value


def dataset_of(
    name: str,
    entries: Sequence[Any],
    labels: Sequence[Any] | None,
    place: Where,
    label_place: Where,
    options: Options,
    kept: bool = False,
) -> Dataset:
    """Return the Dataset of sequences, which must all be of the same kind, and of their labels.

    `place(k)` and `label_place(k)` describe sequence k and its label for error messages.  If `kept`, arrays are not
    converted.
    """
    missing, tokens, vocabulary = options.missing, options.tokens or "auto", options.vocabulary
    there: Sequence[int] = range(len(entries))
    if labels is not None:
        there = with_labels(labels, missing, label_place)
        entries, labels = [entries[row] for row in there], [labels[row] for row in there]
    where, label_where = (lambda k: place(there[k])), (lambda k: label_place(there[k]))
    given: list[Any] = without_missing(entries, missing, where)
    if any(isinstance(entry, str) or (isinstance(entry, list) and entry) for entry in given):
        given = [entry.tolist() if isinstance(entry, np.ndarray) else entry for entry in given]
    kind = _common_kind(given, where, tokens)
    if kind in ("numbers", "arrays"):
        if vocabulary is not None:
            expected = "no vocabulary, because the sequences are numbers"
            raise InputError("vocabulary", expected=expected, got=f"{len(vocabulary)} tokens")
        sequences, vocabulary, tokens = given, [], "list"
        if not kept or kind == "numbers":
            sequences = (_rows if kind == "numbers" else _rows_of_arrays)(given, where, options.dtype)
        if not kept or missing != "error":  # otherwise no check for NaN, which would read memory-mapped rows
            sequences, labels = filled(sequences, labels, missing, where)
    else:
        tokens = "list" if kind == "tokens" else tokens
        if tokens == "auto":
            tokens = natural_tokens(given)
        cut = [entry if tokens == "list" else split_text(entry, tokens) for entry in given]
        if vocabulary is None:
            vocabulary = build_vocabulary(cut, options.min_count, options.max_vocabulary)
        vocabulary = check_vocabulary(vocabulary)
        sequences = encode_all(cut, vocabulary)
    if labels is None:
        return Dataset(name, sequences, None, vocabulary, check_list(options.classes or [], "classes"), tokens)
    lengths, gaps = list(map(len, sequences)), missing != "error"
    found, names = labels_of(labels, lengths, label_where, options.classes, options.label_kind, gaps=gaps)
    return Dataset(name, sequences, found, vocabulary, names, tokens)


def _common_kind(entries: Sequence[Any], where: Where, tokens: str) -> str:
    """Return the kind of all sequences, "text", "tokens", "numbers" or "arrays", or raise if they differ.

    An empty list fits tokens, numbers and arrays.
    """
    kinds = [_kind(entry, where, number) for number, entry in enumerate(entries)]
    first = next((number for number, kind in enumerate(kinds) if kind != "empty"), None)
    if first is None:
        return "tokens" if kinds or tokens == "list" else "text"
    common = kinds[first]
    for number, kind in enumerate(kinds):
        if kind != common and (kind != "empty" or common == "text"):
            expected = f"{common}, as in {where(first)}"
            raise DTypeError(where(number), expected=expected, got=f"{kind}: {shown(entries[number])}")
    if common == "text" and tokens == "list":
        raise DTypeError(where(first), expected="a list of tokens, because of tokens='list'", got="a text")
    return common


def _kind(entry: Any, where: Where, number: int) -> str:
    if isinstance(entry, (str, np.ndarray)):
        return "text" if isinstance(entry, str) else "arrays"
    if not isinstance(entry, (list, tuple)):
        raise DTypeError(where(number), expected="a text or a list", got=shown(entry))
    types = set(map(type, entry))
    if types <= {str}:
        return "tokens" if types else "empty"
    # Types are compared exactly, because `isinstance` would accept bools as integers.
    if types <= _NUMBERS or types == {list}:
        return "numbers"
    expected = "a text, a list of strings, a list of numbers, or a list of equally long lists of numbers"
    raise DTypeError(where(number), expected=expected, got=shown(entry))


def _rows(entries: Sequence[Any], where: Where, dtype: str) -> list[np.ndarray]:
    """Return lists of numbers as rows of one width and the type `dtype`; null becomes NaN."""
    found = [[row if isinstance(row, list) else [row] for row in entry] for entry in entries]
    first = next((number for number, rows in enumerate(found) if rows), None)
    width = 1 if first is None else len(found[first][0])
    for number, rows in enumerate(found):
        for index, row in enumerate(rows):
            if len(row) != width:
                expected = f"{width} numbers, as in {where(first or 0)}"
                raise ShapeError(f"{where(number)}, row {index}", expected=expected, got=count(len(row), "number"))
            if not set(map(type, row)) <= _NUMBERS:
                raise DTypeError(f"{where(number)}, row {index}", expected="numbers", got=shown(row))
    return [_floats(rows, width, where(number), dtype) for number, rows in enumerate(found)]


def _floats(rows: list[list[float]], width: int, where: str, dtype: str) -> np.ndarray:
    try:
        array = np.array(rows, np.float64).reshape(len(rows), width)
    except OverflowError:
        array = np.full((1, 1), np.inf)
    else:
        # A list with integers of 2**53 and more is refused as hashes: float64 cannot tell them apart.
        check_no_large_id(array, itertools.chain.from_iterable(rows), where, bits=53)
    return _as_type(array, where, dtype)


def _rows_of_arrays(entries: Sequence[Any], where: Where, dtype: str) -> list[np.ndarray]:
    """Return arrays as int64 ids, or as rows of one width and the type `dtype`, or raise if an array is neither."""
    found: list[np.ndarray] = []
    for number, entry in enumerate(entries):
        array = np.asarray(entry)  # an entry that is a list is empty
        if array.dtype.kind in "uO":
            check_no_large_id(array.astype(np.float64), array.flat, where(number))
        if array.dtype.kind not in "fiub" or array.ndim not in (1, 2):
            raise DTypeError(where(number), expected="a text or a list", got=shown(entry))
        found.append(array)
    some = [array for array in found if len(array)]
    if some and all(array.ndim == 1 and array.dtype.kind in "iu" for array in some):
        return [array.astype(np.int64) for array in found]
    found = [array[:, None] if array.ndim == 1 else array for array in found]
    width = some[0].shape[1] if some and some[0].ndim == 2 else 1
    for number, array in enumerate(found):
        if len(array) and array.shape[1] != width:
            got = f"rows of {count(array.shape[1], 'number')}"
            raise ShapeError(where(number), expected=f"rows of {width} numbers, as in the first sequence", got=got)
    return [_as_type(array.reshape(len(array), width), where(k), dtype) for k, array in enumerate(found)]


def _as_type(array: np.ndarray, where: str, dtype: str) -> np.ndarray:
    if (np.abs(array) > np.finfo(dtype).max).any():
        raise InputError(where, expected=f"finite numbers that fit {dtype}", got="infinity or a larger number")
    return array.astype(dtype).view()
