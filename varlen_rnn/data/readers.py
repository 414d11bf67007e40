"""Read your own data: texts in memory, JSON Lines files and CSV files.

A sequence is a text, a list of strings (tokens), a list of numbers, or a list of equally long lists of numbers.
Files must be UTF-8, with or without a byte order mark.  Errors name file, line and field.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import pathlib
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from varlen_rnn.data.dataset import Dataset
from varlen_rnn.data.labels import typed
from varlen_rnn.data.missing import Missing
from varlen_rnn.data.options import Options
from varlen_rnn.data.records import Record, dataset_of
from varlen_rnn.data.tables import other_delimiter
from varlen_rnn.errors import DTypeError, InputError, alike, check_list, check_path, listed, shown
from varlen_rnn.rows.checks import check_unmasked
from varlen_rnn.typing import StrPath

Tokens: TypeAlias = Literal["characters", "words", "list", "auto"]


def from_texts(
    texts: Iterable[str | Sequence[str]],
    labels: Iterable[str | int] | np.ndarray | None = None,
    *,
    vocabulary: Sequence[str] | None = None,
    classes: Iterable[str] | None = None,
    tokens: Tokens = "characters",
    min_count: int = 1,
    max_vocabulary: int | None = None,
    label_kind: str | None = None,
    missing: Missing = "error",
    name: str = "texts",
) -> Dataset:
    """Return a Dataset of texts and their labels.

    Parameters
    ----------
    texts : sequence of str, or of lists of str
        A list of strings is a list of tokens.
    labels : sequence, optional
        One label per text.  A str, int or bool is a class, a float is a number.  A list with one entry per token labels
        the tokens; any other list of str means several classes, any other list of numbers several targets.
    vocabulary, classes : list of str, optional
        The vocabulary and classes of another data set, such as the training set.  By default they are built from
        `texts` and `labels`: tokens in the order of their frequency, classes sorted (by value if all are integers).
    tokens : "characters", "words" or "auto"
        How a text is divided into tokens; words are in lower case and without punctuation.  "auto" means words if the
        median text has at least ten words, otherwise characters.
    min_count, max_vocabulary : int, optional
        A new vocabulary contains only tokens that occur at least `min_count` times, and at most `max_vocabulary`
        entries, including "<unk>".
    label_kind : str, optional
        "classes", "numbers", "several classes", "classes of rows" or "numbers of rows"; by default it is guessed.
    missing : "error", "drop", "zero", "forward" or "keep"
        How to treat missing labels (None, NaN, blank): "error" raises an error; the other choices drop sequences
        without a label, and give rows without a label the class -100.  Missing numbers in rows are treated as in
        `read`.
    name : str
        The name of the data set.

    Raises
    ------
    InputError
        If an entry is invalid; the error names the entry, the expected and the actual value.

    Examples
    --------
    >>> data = from_texts(["Good food", "bad"], ["yes", "no"], tokens="words")
    >>> data.vocabulary, data.classes, data.labels
    (['<unk>', 'bad', 'food', 'good'], ['no', 'yes'], array([1, 0]))
    """
    options = Options(
        tokens=tokens, vocabulary=vocabulary, classes=classes, min_count=min_count, max_vocabulary=max_vocabulary,
        label_kind=label_kind, missing=missing,
    )  # fmt: skip
    texts = check_list(texts, "texts", "a list of texts")
    values = [None] * len(texts)
    if labels is not None:
        check_unmasked(labels, "labels")
        values = [value.item() if isinstance(value, np.generic) else value for value in check_list(labels, "labels")]
        if len(values) != len(texts):
            raise InputError("labels", expected=f"{len(texts)}, one per text", got=len(values))
    pairs = enumerate(zip(texts, values, strict=True))
    records = [Record(text, label, f"texts, entry {n}", f"labels, entry {n}") for n, (text, label) in pairs]
    return dataset_of(records, name, labels is not None, options)


def read_jsonl(
    path: StrPath,
    sequence: str = "text",
    label: str | None = "label",
    *,
    tokens: Tokens = "characters",
    vocabulary: Sequence[str] | None = None,
    classes: Iterable[str] | None = None,
    min_count: int = 1,
    max_vocabulary: int | None = None,
    label_kind: str | None = None,
    missing: Missing = "error",
    dtype: Literal["float32", "float64"] = "float32",
) -> Dataset:
    r"""Return the Dataset of a JSON Lines file, which has one JSON object per line.

    Parameters
    ----------
    path : path
    sequence : str
        The field that holds the sequence: a string, a list of strings, a list of numbers (rows of one feature)
        or a list of equally long lists of numbers (rows).  It must be of the same kind on every line.
    label : str or None
        The field that holds the label; None if there is none.
    tokens, vocabulary, classes, min_count, max_vocabulary, label_kind, missing
        As in `from_texts`.
    dtype : {"float32", "float64"}
        The data type of numbers in rows.

    Raises
    ------
    InputError
        If the file has an invalid value; the error names file, line and field, the expected and the actual value.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "walks.jsonl")
    >>> _ = path.write_text('{"x": [[0, 1], [2, 3]], "label": "up"}\n{"x": [[4, 5]], "label": "down"}\n')
    >>> read_jsonl(path, "x")
    Dataset walks.jsonl: 2 sequences of 1 to 2 rows, median 1.5; 2 classes
    """
    options = Options(
        tokens=tokens, vocabulary=vocabulary, classes=classes, min_count=min_count, max_vocabulary=max_vocabulary,
        label_kind=label_kind, missing=missing, dtype=dtype,
    )  # fmt: skip
    records = []
    # `splitlines` would also split at other separators, which JSON strings may contain.
    for number, line in enumerate(file_text(path).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(where, expected="a JSON object", got=f"{line[:60]!r}: {error}") from error
        if not isinstance(value, dict):
            raise DTypeError(where, expected='a JSON object, {"field": value ...}', got=line.strip()[:80])
        if label is not None and missing != "error":
            value.setdefault(label)
        records.append(_record(value, sequence, label, where))
    _check_any(records, path)
    return dataset_of(records, pathlib.Path(path).name, label is not None, options)


def read_csv(
    path: StrPath,
    sequence: str = "text",
    label: str | None = "label",
    *,
    tokens: Tokens = "characters",
    vocabulary: Sequence[str] | None = None,
    classes: Iterable[str] | None = None,
    min_count: int = 1,
    max_vocabulary: int | None = None,
    delimiter: str = ",",
    label_kind: str | None = None,
    missing: Missing = "error",
) -> Dataset:
    r"""Return the Dataset of a CSV file whose first line names the fields.

    Parameters
    ----------
    path : path
    sequence : str
        The field that holds the sequence, a text.
    label : str or None
        The field that holds the label; None if there is none.
    tokens : "characters", "words" or "list"
        How a text is divided into tokens; "list" reads it as a JSON list of strings or numbers, such as `[1.5, 2]`.
    delimiter : str
        The character between fields.
    vocabulary, classes, min_count, max_vocabulary, label_kind, missing
        As in `from_texts`.

    Raises
    ------
    InputError
        If the file has an invalid value; the error names file, line and field, the expected and the actual value.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "reviews.csv")
    >>> _ = path.write_text('text,label\n"good, cheap",1\nbad,0\n')
    >>> read_csv(path, tokens="words").labels
    array([1, 0])
    """
    options = Options(
        tokens=tokens, vocabulary=vocabulary, classes=classes, min_count=min_count, max_vocabulary=max_vocabulary,
        label_kind=label_kind, missing=missing,
    )  # fmt: skip
    text, records = file_text(path), []
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    except (TypeError, ValueError) as error:
        raise DTypeError("delimiter", expected="a character", got=shown(delimiter)) from error
    try:
        fields = reader.fieldnames or ()
        if not fields:
            _check_any([], path)
        _check_fields(fields, sequence, label, f"{path}, line 1")
        for value in reader:
            where = f"{path}, line {reader.line_num}"
            if None in value:
                got = len(fields) + len(value[None])
                hint = "a text with the delimiter in it needs quotes"
                raise InputError(where, expected=f"{len(fields)} fields", got=got, hint=hint)
            # DictReader fills the missing fields of a short line with None; removing them makes the line lack these
            # fields.
            value = {field: entry for field, entry in value.items() if entry is not None}
            record = _record(value, sequence, label, where)
            records.append(record._replace(sequence=_json_list(record)) if tokens == "list" else record)
    except csv.Error as error:
        hint = "csv.field_size_limit raises the limit" if "limit" in str(error) else None
        # The line number is read from the inner reader, because DictReader has not counted the failing line yet.
        raise InputError(f"{path}, line {reader.reader.line_num}", expected="CSV", got=error, hint=hint) from error
    _check_any(records, path)
    if label is not None:
        values = typed([record.label for record in records])
        as_text = label_kind is not None or classes is not None
        pairs = zip(records, values, strict=True)
        records = [one if as_text and value is not None else one._replace(label=value) for one, value in pairs]
    return dataset_of(records, pathlib.Path(path).name, label is not None, options)


def file_text(path: StrPath) -> str:
    """Return the text of a UTF-8 file, or raise an error that names the first line that is not UTF-8."""
    raw = pathlib.Path(check_path(path, "path")).read_bytes()
    if raw.startswith(b"\x1f\x8b"):
        raise InputError(path, expected="UTF-8", got="a file of gzip", hint="gunzip -k unpacks it")
    if (encoding := _wide_encoding(raw)) is not None:
        hint = f"iconv -f {encoding} -t utf-8 converts it, or 'Save as' with UTF-8"
        raise InputError(f"{path}, line 1", expected="UTF-8", got=encoding.upper(), hint=hint)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        got, hint = f"byte 0x{raw[error.start]:02x}", "iconv -f latin1 -t utf-8 converts a file, if it is in Latin-1"
        raise InputError(f"{path}, line {line}", expected="UTF-8", got=got, hint=hint) from error


def _wide_encoding(raw: bytes) -> str | None:
    """Return the name of UTF-16 or UTF-32 if the first bytes of a file say so.

    Examples
    --------
    >>> _wide_encoding("id,x".encode("utf-16")), _wide_encoding("id,x".encode("utf-16-be")), _wide_encoding(b"id,x")
    ('utf-16', 'utf-16-be', None)
    """
    if raw.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if len(raw) > 1 and 0 in raw[:2] and any(raw[:2]):  # the first character is one of ASCII
        return "utf-16-be" if raw[0] == 0 else "utf-16-le"
    return None


def _check_fields(fields: Collection[str], sequence: str, label: str | None, where: str) -> None:
    for name, field in (("sequence", sequence), ("label", label)):
        if not isinstance(field, str) and (name == "sequence" or field is not None):
            raise DTypeError(name, expected="the name of a field", got=shown(field))
        if field is not None and field not in fields:
            hint = "`label=None` reads sequences without labels" if field == label else None
            hint = (
                other_delimiter(list(fields))
                or alike(field, fields)
                or hint
                or "`sequence` names the field of sequences"
            )
            got = f"only {listed(fields)}" if fields else "no field"
            raise InputError(f"{where}, `{name}`", expected=f"the field {field!r}", got=got, hint=hint)


def _record(value: dict[str, Any], sequence: str, label: str | None, where: str) -> Record:
    _check_fields(value, sequence, label, where)
    found = None if label is None else value[label]
    return Record(value[sequence], found, f"{where}, field {sequence!r}", f"{where}, field {label!r}")


def _json_list(record: Record) -> list:
    try:
        value = json.loads(record.sequence)
    except (ValueError, RecursionError) as error:
        raise InputError(record.where, expected="a JSON list", got=shown(record.sequence)) from error
    if not isinstance(value, list):
        raise DTypeError(record.where, expected="a JSON list", got=shown(record.sequence))
    return value


def _check_any(records: list[Record], path: StrPath) -> None:
    if not records:
        raise InputError(path, expected="at least one record", got="none", hint="is the file empty?")
