"""The table of file formats: their suffixes, readers, and the options that do not apply to each reader.

A format has one or several forms, each with its own reader; the options determine the form of a file.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from varlen_rnn.data.columns import arrow_table, read_columns, read_npz
from varlen_rnn.data.dataset import Dataset
from varlen_rnn.data.frames import frame_of, read_entries
from varlen_rnn.data.options import Options
from varlen_rnn.data.readers import file_text, read_csv, read_jsonl
from varlen_rnn.data.tables import FORMS, Table, other_delimiter, read_long, read_wide
from varlen_rnn.data.ts import label_fields, read_ts
from varlen_rnn.errors import InputError, shown


class Form(NamedTuple):
    """One layout of a file format, such as CSV with one row per step.

    Attributes
    ----------
    name : str
        The form's name in error messages.
    read : callable
        `read(source, options)` returns the Dataset; the source is a path, or a `Frame`.
    unused : tuple of str
        The names of options that do not apply to the form.
    applies : callable
        `applies(options)` returns whether the options choose this form.
    """

    name: str
    read: Callable[[Any, Options], Dataset]
    unused: tuple[str, ...]
    applies: Callable[[Options], bool] = lambda options: True


class Format(NamedTuple):
    """A format's suffixes, and its forms, of which the first one that applies is used."""

    suffixes: tuple[str, ...]
    forms: tuple[Form, ...]


def format_of(path: str) -> str:
    """Return the name of the format with a path's suffix, or raise if there is none.

    Examples
    --------
    >>> format_of("folder/sensors.TSV")
    'csv'
    """
    suffix = pathlib.Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        expected = f"a suffix of {', '.join(sorted(SUFFIXES))}"
        hint = "gunzip -k unpacks it" if suffix == ".gz" else "`format='csv'` reads any suffix, and so on"
        raise InputError(path, expected=expected, got=shown(suffix), hint=hint)
    return SUFFIXES[suffix]


def form_of(format: Format, options: Options) -> Form:
    """Return the form of a format that the options choose.

    Examples
    --------
    >>> form_of(FORMATS["csv"], Options(id="device")).name, form_of(FRAME, Options(wide=True)).name
    ('a long form', 'a wide form of a frame')
    """
    return next(form for form in format.forms if form.applies(options))


def fields_of(path: str, format: str, options: Options) -> list[str]:
    """Return the names of a file's fields, columns or arrays, for error messages; [] if they cannot be read."""
    try:
        if format == "csv":
            return _table(path, options).fields
        if format == "jsonl":
            return list(json.loads(next(line for line in file_text(path).split("\n") if line.strip())))
        if format == "ts":
            return label_fields(path)
        if format != "npz":
            return arrow_table(path, format).column_names
        with np.load(path) as arrays:
            return list(arrays)
    except (ValueError, OSError, StopIteration, TypeError):
        return []


def _read_jsonl(path: str, options: Options) -> Dataset:
    return read_jsonl(path, options.sequence or "text", options.label, dtype=options.dtype, **options.of_texts())


def _read_texts(path: str, options: Options) -> Dataset:
    field = options.sequence or "text"
    if options.sequence is None or options.tokens is None:
        field = _text_field(_table(path, options), options.sequence, options.tokens)
    delimiter = _delimiter(path, options)
    return read_csv(path, field, options.label, delimiter=delimiter, **options.of_texts())


def _read_wide(path: str, options: Options) -> Dataset:
    return read_wide(_table(path, options), options)


def _read_long(path: str, options: Options) -> Dataset:
    return read_long(_table(path, options), options)


def _read_frame(format: str, read: Callable[[Table, Options], Dataset], path: str, options: Options) -> Dataset:
    """Read a Parquet or Arrow file as a frame."""
    frame = frame_of(arrow_table(path, format), path)
    assert frame is not None
    return read(frame, options)


def _table(path: str, options: Options) -> Table:
    return Table(file_text(path), _delimiter(path, options), path)


def _delimiter(path: str, options: Options) -> str:
    if options.delimiter is not None:
        return options.delimiter
    return "\t" if pathlib.Path(path).suffix.lower() == ".tsv" else ","


def _text_field(table: Table, sequence: str | None, tokens: str | None) -> str:
    """Return the name of the field of texts, or raise if the file does not look like a file of texts."""
    if sequence is None and "text" not in table.fields:
        hint = other_delimiter(table.fields) or FORMS
        raise InputError(table.name, expected="options that define a sequence", got=table.preview(), hint=hint)
    field = sequence or "text"
    texts = table.column(field, "sequence")
    given = [text for text in texts if text.strip()]  # a number may be missing
    if tokens is None and given and all(map(_looks_like_numbers, given)):
        hint = "`tokens='list'` reads JSON lists such as [1.5, 2]; 'characters' takes them for texts; " + FORMS
        raise InputError(f"{table.name}, field {field!r}", expected="texts", got=table.preview(), hint=hint)
    return field


def _looks_like_numbers(text: str) -> bool:
    parts = text.strip("[] \t").replace(",", " ").replace(";", " ").split()
    try:
        return bool(parts) and all(float(part) is not None for part in parts)
    except ValueError:
        return False


def _forms(name: str, read: Callable[[Any, Options], Dataset], of_table: Callable[..., Any]) -> tuple[Form, ...]:
    """Return the forms of columns with types: sequences in a column, a row per series, or a row per step."""
    return (
        Form(f"a wide form of {name}", of_table(read_wide), ("sequence", "tokens", "time", "delimiter"), _is_wide),
        Form(f"sequences in a column of {name}", read, ("time", "features", "ignore", "delimiter"), _is_no_table),
        Form(f"a long form of {name}", of_table(read_long), ("sequence", "tokens", "delimiter")),
    )


def _is_wide(options: Options) -> bool:
    return options.wide


def _is_no_table(options: Options) -> bool:
    return options.id is None


_OF_TABLES = ("id", "time", "features", "ignore", "wide", "delimiter")
FORMATS = {
    "csv": Format(
        (".csv", ".tsv"),
        (
            Form("a wide form", _read_wide, ("sequence", "tokens", "time"), _is_wide),
            Form("texts", _read_texts, ("time", "features", "ignore"), _is_no_table),
            Form("a long form", _read_long, ("sequence", "tokens")),
        ),
    ),
    "jsonl": Format((".jsonl", ".ndjson"), (Form("a .jsonl file", _read_jsonl, _OF_TABLES),)),
    "parquet": Format(
        (".parquet",),
        _forms("a .parquet file", partial(read_columns, "parquet"), partial(partial, _read_frame, "parquet")),
    ),
    "arrow": Format(
        (".arrow", ".feather"),
        _forms("an .arrow file", partial(read_columns, "arrow"), partial(partial, _read_frame, "arrow")),
    ),
    "ts": Format((".ts",), (Form("a .ts file", read_ts, (*_OF_TABLES, "sequence", "tokens")),)),
    "npz": Format((".npz",), (Form("an .npz file", read_npz, (*_OF_TABLES, "tokens")),)),
}
FRAME = Format((), _forms("a frame", read_entries, lambda read: read))
SUFFIXES = {suffix: name for name, format in FORMATS.items() for suffix in format.suffixes}
