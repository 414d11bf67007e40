"""Convert records to a Dataset: find the kind of the sequences, and encode tokens, numbers and labels."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np

from varlen_rnn.data.dataset import Dataset
from varlen_rnn.data.labels import labels_of
from varlen_rnn.data.large_ids import check_no_large_id
from varlen_rnn.data.missing import filled, with_labels, without_missing
from varlen_rnn.data.options import Options
from varlen_rnn.data.vocabulary import build_vocabulary, check_vocabulary, encode_all, natural_tokens, split_text
from varlen_rnn.errors import DTypeError, InputError, ShapeError, check_list, shown

_NUMBERS = {int, float, type(None)}


class Record(NamedTuple):
    """A sequence and its label as they were read, and descriptions of where each was read, for error messages."""

    sequence: Any
    label: Any
    where: str
    label_where: str


def dataset_of(records: list[Record], name: str, labelled: bool, options: Options) -> Dataset:
    """Return the Dataset of records, whose sequences must all be of the same kind.

    Examples
    --------
    >>> records = [Record([1, 2.5], "a", "line 1", "line 1"), Record([], "b", "line 2", "line 2")]
    >>> dataset_of(records, "two", True, Options(tokens="list")).sequences
    [array([[1. ], [2.5]], dtype=float32), array([], shape=(0, 1), dtype=float32)]
    """
    tokens, vocabulary, classes = options.tokens or "auto", options.vocabulary, options.classes
    missing = options.missing
    if labelled:
        there = with_labels([item.label for item in records], missing, lambda number: records[number].label_where)
        records = [records[number] for number in there]
    given = without_missing([item.sequence for item in records], missing, lambda number: records[number].where)
    records = [item._replace(sequence=sequence) for item, sequence in zip(records, given, strict=True)]
    kind, values = _common_kind(records, tokens), [item.label for item in records]
    if kind == "numbers":
        if vocabulary is not None:
            raise InputError("vocabulary", expected="none for sequences of numbers", got=f"{len(vocabulary)} tokens")
        sequences, values = filled(_rows(records, options.dtype), values, missing, lambda number: records[number].where)
        vocabulary, tokens = [], "list"
    else:
        tokens = "list" if kind == "tokens" else tokens
        if tokens == "auto":
            tokens = natural_tokens([item.sequence for item in records])
        cut = [item.sequence if tokens == "list" else split_text(item.sequence, tokens) for item in records]
        if vocabulary is None:
            vocabulary = build_vocabulary(cut, options.min_count, options.max_vocabulary)
        vocabulary = check_vocabulary(vocabulary)
        sequences = encode_all(cut, vocabulary)
    if not labelled:
        return Dataset(name, sequences, None, vocabulary, check_list(classes or [], "classes"), tokens)
    where, lengths = lambda number: records[number].label_where, list(map(len, sequences))
    labels, names = labels_of(values or [], lengths, where, classes, options.label_kind, gaps=missing != "error")
    return Dataset(name, sequences, labels, vocabulary, names, tokens)


def _common_kind(records: list[Record], tokens: str) -> str:
    """Return the kind of all sequences, "text", "tokens" or "numbers", or raise if they differ.

    An empty list counts as tokens or as numbers.
    """
    common = None
    for item in records:
        kind = _kind(item)
        if kind == "empty":
            continue
        if common is not None and kind != common[0]:
            expected = f"{common[0]}, as in {common[1]}"
            raise DTypeError(item.where, expected=expected, got=f"{kind}: {shown(item.sequence)}")
        common = common or (kind, item.where)
    lists = [item for item in records if isinstance(item.sequence, (list, tuple))]
    if common is None:
        return "tokens" if lists or tokens == "list" else "text"
    if common[0] == "text" and (lists or tokens == "list"):
        where = lists[0].where if lists else common[1]
        got = "an empty list" if lists else "a text"
        raise DTypeError(where, expected="text" if lists else "a list", got=got)
    return common[0]


def _kind(item: Record) -> str:
    value = item.sequence
    if isinstance(value, str):
        return "text"
    expected = "a text, a list of strings, a list of numbers, or a list of equally long lists of numbers"
    if not isinstance(value, (list, tuple)):
        raise DTypeError(item.where, expected=expected, got=shown(value))
    types = set(map(type, value))
    if not types:
        return "empty"
    if types == {str}:
        return "tokens"
    # Types are compared exactly, because `isinstance` would accept bools as integers.
    if types <= _NUMBERS or types == {list}:
        return "numbers"
    raise DTypeError(item.where, expected=expected, got=shown(value))


def _rows(records: list[Record], dtype: str) -> list[np.ndarray]:
    """Return rows of the type `dtype`, one array per record, all with the same number of features; null becomes NaN."""
    width, found = None, []
    for item in records:
        rows = [row if isinstance(row, list) else [row] for row in item.sequence]
        for number, row in enumerate(rows):
            if width is None:
                width = (len(row), item.where)
            if len(row) != width[0]:
                expected = f"{width[0]} numbers, as in {width[1]}"
                raise ShapeError(f"{item.where}, row {number}", expected=expected, got=len(row))
            if not set(map(type, row)) <= _NUMBERS:
                raise DTypeError(f"{item.where}, row {number}", expected="numbers", got=shown(row))
        found.append((item.where, rows))
    return [_floats(rows, width[0] if width else 1, where, dtype) for where, rows in found]


def _floats(rows: list[list[float]], width: int, where: str, dtype: str) -> np.ndarray:
    try:
        array = np.array(rows, np.float64).reshape(len(rows), width)
    except OverflowError:
        array = np.full((1, 1), np.inf)
    else:
        # Floats merge integers from 2**53 on, so a list of them holds hashes rather than measurements.
        check_no_large_id(array, itertools.chain.from_iterable(rows), where, bits=53)
    if (np.abs(array) > np.finfo(dtype).max).any():
        raise InputError(where, expected=f"finite numbers that fit {dtype}", got="infinity or a larger number")
    return array.astype(dtype)
