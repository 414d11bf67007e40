"""Convert the X of estimators to rows: texts, lists of tokens, ids, numbers, frames, Arrow and Awkward columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from varlen_rnn.data import Dataset
from varlen_rnn.data.columns import Table, holds_numbers
from varlen_rnn.data.frames import entries_of, frame_of
from varlen_rnn.data.large_ids import check_no_large_id
from varlen_rnn.data.vocabulary import build_vocabulary, encode_all, natural_tokens, split_text
from varlen_rnn.errors import (
    DTypeError,
    InputError,
    LoDError,
    PlaceError,
    ShapeError,
    check_choice,
    check_flag,
    check_int,
    count,
    shown,
)
from varlen_rnn.interop import from_arrow, from_awkward
from varlen_rnn.rows.checks import check_unmasked, device_rows
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.sklearn.advice import LARGE_IDS, MEASUREMENTS, about_columns
from varlen_rnn.sklearn.columns import Columns, in_order
from varlen_rnn.sklearn.missing import Filling, without_padding
from varlen_rnn.sklearn.restored import texts_of
from varlen_rnn.sklearn.spelling import spelled, vocabulary_of_forms
from varlen_rnn.sklearn.static import Sequences, Static, divided, static_like
from varlen_rnn.tape.variable import Variable

_IDS = "ids from 0 and below 2**31"
_ONE = "if X is one sequence, pass [X]"
_GONE = 'dropna() leaves missing entries of a column out, fillna("") turns them into empty texts'
_FORMS = "pass a list of arrays, texts or lists of tokens, a column, a frame, a LoDTensor, or a 2-D or 3-D array"
_HINT = f"{_ONE}; otherwise {_FORMS}"


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The kind and vocabulary of the training sequences; `rows_of` converts other sequences in the same way."""

    kind: str  # "texts", "tokens" (lists of strings), "ids" (arrays of integers) or "numbers" (rows of features)
    size: int  # the number of tokens or ids; if rows are numbers, their columns: features, then indicators
    cut: str = "characters"  # the tokens of a text: "characters" or "words"
    vocabulary: tuple[str, ...] = ()  # the token of each id; empty for ids and numbers
    by_spelling: bool = False  # whether tokens that are not in the vocabulary have the id of their spelling
    filling: Filling | None = None  # fills missing numbers of rows; None unless rows are numbers
    static: Static | None = None  # the static features; None if there are none
    columns: Columns | None = None  # the names of features or steps; None if X has none

    @classmethod
    def restored(cls, state: dict[str, Any]) -> Inputs:
        """Return the Inputs that `state` (from `dataclasses.asdict`, or its JSON) describes, or raise."""
        kind = check_choice(state["kind"], "inputs, kind", "texts", "tokens", "ids", "numbers")
        filling = Filling.restored(state["filling"]) if kind == "numbers" else None
        vocabulary = texts_of(state["vocabulary"], "inputs, vocabulary") if kind in ("texts", "tokens") else []
        size = check_int(state["size"], "inputs, size", 1)
        wanted = size if kind == "ids" else len(vocabulary) if filling is None else filling.width
        if size != wanted:
            raise ShapeError("inputs, size", expected=wanted, got=size)
        return cls(
            kind, size, check_choice(state["cut"], "inputs, cut", "characters", "words"), tuple(vocabulary),
            check_flag(state["by_spelling"], "inputs, by_spelling"), filling,
            None if state["static"] is None else Static.restored(state["static"]), Columns.restored(state["columns"]),
        )  # fmt: skip

    @property
    def num_static(self) -> int:
        """The number of static features, with indicators."""
        return 0 if self.static is None else self.static.width

    @property
    def features(self) -> int | None:
        """The number of features of a row of X, before indicators; None unless rows are numbers."""
        return None if self.filling is None else len(self.filling.means)

    def attributes(self) -> dict[str, Any]:
        """Return the attributes by which scikit-learn's estimators describe the features of a row."""
        named = None if self.columns is None or self.columns.of_steps else np.array(self.columns.names, object)
        found = {"n_features_in_": self.features, "feature_names_in_": named}
        return {name: value for name, value in found.items() if value is not None}

    @classmethod
    def learn(
        cls,
        X: Any,
        tokens: str = "auto",
        min_count: int = 1,
        max_vocabulary: int | None = None,
        by_spelling: bool = False,
    ) -> Inputs:
        """Return the Inputs of the training sequences: their kind, size and vocabulary.

        With `by_spelling`, tokens that occur once have the id of their spelling, unless tokens are characters.
        """
        X, names, table = divided(X)
        X, columns = in_order(X)
        found = cls._of_sequences(X, tokens, min_count, max_vocabulary, by_spelling)
        static = None if table is None else Static.learn(names, table)
        return dataclasses.replace(found, static=static, columns=columns)

    @classmethod
    def _of_sequences(
        cls, X: Any, tokens: str, min_count: int, max_vocabulary: int | None, by_spelling: bool
    ) -> Inputs:
        if isinstance(X, Dataset) and X.vocabulary:
            kind = "tokens" if X.tokens == "list" else "texts"
            cut = "characters" if X.tokens == "list" else X.tokens
            if not by_spelling or X.tokens == "characters":
                return cls(kind, len(X.vocabulary), cut, tuple(X.vocabulary))
            words = [[X.vocabulary[number] for number in ids] for ids in X.sequences]
            vocabulary = vocabulary_of_forms(words, 1)
            return cls(kind, len(vocabulary), cut, tuple(vocabulary), True)
        kind, sequences = as_sequences(X)
        check_choice(tokens, "tokens", "auto", "characters", "words")
        if kind == "numbers":
            filling = Filling.learn(sequences, sequences[0].shape[1] if len(sequences) else 1)
            return cls(kind, filling.width, filling=filling)
        if kind == "ids":
            return cls(kind, 1 + max((int(sequence.max()) for sequence in sequences if len(sequence)), default=0))
        if tokens == "auto":
            tokens = natural_tokens(sequences) if kind == "texts" else "characters"
        cut = [split_text(sequence, tokens) for sequence in sequences] if kind == "texts" else sequences
        by_spelling = by_spelling and (kind == "tokens" or tokens == "words")
        vocabulary = (vocabulary_of_forms if by_spelling else build_vocabulary)(cut, min_count, max_vocabulary)
        return cls(kind, len(vocabulary), tokens, tuple(vocabulary), by_spelling)

    def rows_of(self, X: Any) -> Sequences:
        """Return the rows of each sequence: int64 ids `(rows,)`, or float32 numbers `(rows, features)`."""
        X, names, table = divided(X)
        static = static_like(self.static, names, table)
        return Sequences(self._rows_of(in_order(X, self.columns)[0]), static)

    def _rows_of(self, X: Any) -> list[np.ndarray]:
        if isinstance(X, Dataset) and X.vocabulary:
            return self._encoded_again(X)
        kind, sequences = as_sequences(X)
        if kind != self.kind and any(map(len, sequences)):
            hint = "call fit with a Dataset, so that its vocabulary is kept" if self.kind == "ids" else None
            hint = _ONE if (kind, self.kind) == ("texts", "tokens") else hint
            hint = MEASUREMENTS if {kind, self.kind} == {"ids", "numbers"} else hint
            raise DTypeError("X", expected=f"{self.kind}, as in the training", got=kind, hint=hint)
        if not any(map(len, sequences)):  # empty sequences fit every kind
            empty = np.zeros((0, self.size), np.float32) if self.kind == "numbers" else np.zeros(0, np.int64)
            return [empty] * len(sequences)
        if self.filling is not None:
            if sequences[0].shape[1] != self.features:
                got, hint = count(sequences[0].shape[1], "feature"), None
                if all(sequence.shape == (self.features, 1) for sequence in sequences):
                    hint = _ONE
                expected = f"rows of {count(len(self.filling.means), 'feature')}, as in the training"
                raise ShapeError("X", expected=expected, got=got, hint=hint)
            return [self.filling.fill(sequence) for sequence in sequences]
        if self.kind == "ids":  # ids that did not occur in the training become 0, unknown
            return [np.where(sequence < self.size, sequence, 0) for sequence in sequences]
        cut = [split_text(sequence, self.cut) for sequence in sequences] if self.kind == "texts" else sequences
        return self._encoded(cut)

    def _encoded(self, cut: Sequence[Any]) -> list[np.ndarray]:
        return encode_all(spelled(cut, self.vocabulary) if self.by_spelling else cut, self.vocabulary)

    def _encoded_again(self, data: Dataset) -> list[np.ndarray]:
        """Return a data set's sequences, with the ids of its vocabulary replaced by ids of this vocabulary."""
        kind = "tokens" if data.tokens == "list" else "texts"
        if kind != self.kind:
            raise DTypeError("X", expected=f"{self.kind}, as in the training", got=f"{data}")
        if tuple(data.vocabulary) == self.vocabulary:
            return list(data.sequences)
        (ids,) = self._encoded([data.vocabulary])
        return [ids[sequence] for sequence in data.sequences]


def as_sequences(X: Any, dtype: Any = np.float32) -> tuple[str, list[Any]]:
    """Return the kind of sequences, and a list of them: texts, lists of tokens, int64 ids or rows of numbers.

    Rows have the type `dtype`, and fit float32.  Missing numbers are NaN.  Static features of a frame are left out.
    """
    check_unmasked(X, "X")
    if isinstance(X, (str, bytes, dict)):
        raise DTypeError("X", expected="many sequences", got=shown(X), hint=_HINT)
    if hasattr(X, "toarray"):
        raise DTypeError("X", expected="dense numbers", got=f"a sparse {type(X).__name__}", hint=_HINT)
    X = X.sequences if isinstance(X, Dataset) else _opened(divided(X)[0])
    if isinstance(X, LoDTensor):
        if X.num_levels > 1:
            raise LoDError("X", expected="a LoDTensor with one level", got=f"one with {X.num_levels} levels")
        _check_on_host(X, "X")
        X = X.to_sequences() if X.num_levels else X.data
    if isinstance(X, np.ndarray) and X.dtype.kind != "O" and X.ndim > 1:
        rows = X[:, :, None] if X.ndim == 2 else X
        if X.shape[1] == 0:
            expected = "an array of sequences of at least one step"
            got = f"0 feature(s) (shape={X.shape}) while a minimum of 1 is required."
            raise ShapeError("X", expected=expected, got=got)
        if X.ndim > 3 or X.dtype.kind not in "fiub":
            expected = "numbers of shape (sequences, steps) or (sequences, steps, features)"
            what = "Complex data not supported: " if X.dtype.kind == "c" else ""
            raise ShapeError("X", expected=expected, got=f"{what}{X.dtype} of shape {X.shape}")
        unpadded = map(without_padding, rows)
        return "numbers", [_rows(sequence, dtype, f"X, sequence {number}") for number, sequence in enumerate(unpadded)]
    _check_on_host(X, "X")
    if not isinstance(X, Sequence) and not hasattr(X, "__len__"):
        hint = "pass X.collect(), which is a frame" if hasattr(X, "collect") else _HINT
        raise DTypeError("X", expected="many sequences", got=shown(X), hint=hint)
    if getattr(X, "ndim", 1) == 0:
        raise ShapeError("X", expected="many sequences", got=shown(X), hint=_HINT)
    return _of_list(list(X), dtype)


def _opened(X: Any) -> Any:
    """Convert a frame, a column or a Variable to another accepted form; return other X as it is."""
    if isinstance(X, Variable):
        return X.value if isinstance(X.value, LoDTensor) else X
    if (frame := frame_of(X, "X")) is not None:
        return _of_frame(frame)
    if hasattr(X, "iloc") or hasattr(X, "get_chunks"):  # a column of pandas or polars
        return entries_of(X)
    module = type(X).__module__.partition(".")[0]
    if module == "awkward":
        return X.to_list() if "string" in str(X.type) else from_awkward(X)
    if hasattr(X, "__arrow_c_stream__") or hasattr(X, "__arrow_c_array__"):
        texts = "str" in str(getattr(X, "dtype", getattr(X, "type", ""))).lower()
        to_list = getattr(X, "to_pylist", None) or getattr(X, "to_list", None)
        if texts and to_list:
            return to_list()
        rows = from_arrow(X)
        return entries_of(X) if to_list and rows.num_levels > 1 else rows  # inner lists are rows of one width
    if not isinstance(X, np.ndarray) and hasattr(X, "__array__") and not hasattr(X, "__len__"):
        return np.asarray(X)
    return X


def _of_frame(frame: Table) -> Any:
    """Return the sequences in the only column of a frame, or each row of a frame of numbers as a padded sequence."""
    columns = [frame.foreign(field) for field in frame.fields]
    if all(map(holds_numbers, columns)):
        return np.stack([frame.numbers(field) for field in frame.fields], axis=1)
    if len(columns) > 1:
        got, hint = about_columns(frame)
        expected = "a frame with one column of sequences, or only columns of numbers"
        raise DTypeError("X", expected=expected, got=got, hint=hint)
    return _opened(columns[0])


def _of_list(entries: list[Any], dtype: Any) -> tuple[str, list[Any]]:
    if all(isinstance(entry, str) for entry in entries):
        return ("texts" if entries else "numbers"), entries
    if entries and isinstance(entries[0], str):
        number, entry = next((k, entry) for k, entry in enumerate(entries) if not isinstance(entry, str))
        hint = _GONE if entry is None else None
        raise DTypeError(f"X, sequence {number}", expected="a text, as in sequence 0", got=shown(entry), hint=hint)
    kinds: dict[str, int] = {}  # the index of the first sequence of each kind
    found = []
    for number, entry in enumerate(entries):
        kind, sequence = _of_entry(entry, dtype, f"X, sequence {number}")
        found.append(sequence)
        if len(sequence):
            kinds.setdefault(kind, number)
    if len(kinds) > 1:
        (first, before), (second, number), *_ = kinds.items()
        raise DTypeError(f"X, sequence {number}", expected=f"{first}, as in sequence {before}", got=second)
    kind = next(iter(kinds), "numbers")
    if kind != "numbers":
        empty: Any = np.zeros(0, np.int64) if kind == "ids" else []
        return kind, [sequence if len(sequence) else empty for sequence in found]
    of_empty = max((s.shape[1] for s in found if np.ndim(s) == 2), default=1)
    width, first = next(((s.shape[1], k) for k, s in enumerate(found) if len(s)), (of_empty, 0))
    for number, sequence in enumerate(found):
        if len(sequence) and sequence.shape[1] != width:
            expected = f"{width} features, as in sequence {first}"
            raise ShapeError(f"X, sequence {number}", expected=expected, got=count(sequence.shape[1], "feature"))
    return kind, [s if len(s) else np.zeros((0, width), dtype) for s in found]


def _check_on_host(values: Any, where: str) -> None:
    """Raise if values are on a device, because estimators run on the host."""
    found = device_rows(values)
    if found is not None:
        hint = "copy it to the host with x.to('cpu')"
        raise PlaceError(where, expected="an array on cpu", got=f"an array on {found.device}", hint=hint)


def _of_entry(entry: Any, dtype: Any, where: str) -> tuple[str, Any]:
    """Return the kind of one sequence ("tokens", "ids" or "numbers"), and the sequence converted to this kind."""
    if isinstance(entry, (list, tuple)) and entry and all(isinstance(token, str) for token in entry):
        return "tokens", entry
    if isinstance(entry, (str, bytes, dict)) or not hasattr(entry, "__len__"):
        hint = _GONE if entry is None else None
        if isinstance(entry, (int, float, np.generic)):
            hint = f"{_ONE}. Reshape your data: X.reshape(-1, 1) has sequences of one step"
        raise DTypeError(where, expected="a sequence: an array, or a list", got=shown(entry), hint=hint)
    _check_on_host(entry, where)
    try:
        rows = np.asarray(entry)
    except (ValueError, TypeError) as error:
        raise ShapeError(where, expected="rows of one width", got=shown(entry)) from error
    if rows.dtype.kind in "UT" and rows.ndim == 1:
        for number, token in enumerate(entry if isinstance(entry, (list, tuple)) else ()):
            if not isinstance(token, str):
                raise DTypeError(f"{where}, entry {number}", expected="a text, because others are", got=shown(token))
        return "tokens", rows.tolist()
    if rows.ndim == 1 and rows.dtype.kind in "fO" and len(rows) and all(isinstance(each, Integral) for each in entry):
        raise InputError(where, expected=_IDS, got=shown(entry), hint=LARGE_IDS)  # NumPy has no integers that large
    if rows.dtype.kind == "O":
        try:
            rows = rows.astype(np.float64)
        except (ValueError, TypeError) as error:
            raise DTypeError(where, expected="numbers", got=shown(entry)) from error
    if rows.dtype.kind not in "fiub" or rows.ndim not in (1, 2):
        expected = "numbers of shape (steps,) or (steps, features), or a list of tokens"
        raise DTypeError(where, expected=expected, got=f"{rows.dtype} of shape {rows.shape}")
    if rows.ndim == 1 and rows.dtype.kind == "f" and isinstance(entry, (list, tuple)):
        check_no_large_id(rows, entry, where)
    if rows.ndim == 1 and rows.dtype.kind in "iu":
        if len(rows) and rows.min() < 0:
            raise InputError(where, expected="ids of at least 0", got=shown(rows), hint=MEASUREMENTS)
        if len(rows) and rows.max() >= 2**31:  # because an embedding has a row for each id up to the largest
            raise InputError(where, expected=_IDS, got=shown(rows), hint=LARGE_IDS)
        return "ids", rows.astype(np.int64)
    return "numbers", _rows(rows if rows.ndim == 2 else rows[:, None], dtype, where)


def _rows(rows: np.ndarray, dtype: Any, where: str) -> np.ndarray:
    if rows.dtype.kind == "u" and rows.max(initial=0) >= 2**63:
        hint = f"{LARGE_IDS}; for measurements, pass x.astype(float)"
        raise InputError(where, expected="measurements", got=f"a large integer, {rows.max()}", hint=hint)
    if (np.abs(rows) > np.finfo(np.float32).max).any():  # NaNs are missing numbers
        expected, hint = "finite numbers that fit float32", "use NaN for a missing number"
        raise InputError(where, expected=expected, got="infinity or a larger number", hint=hint)
    return np.ascontiguousarray(rows, dtype)
