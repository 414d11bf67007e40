"""The table of file formats: their suffixes, parsers, and forms.

A parser returns the `Table` of a file.  A form says where the sequences of a table are: each row is a sequence
("wide"), a column holds the sequences ("entries"), or each row is a step ("long").  Options choose the form
(`Options.form`).
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from varlen_rnn.data.array_files import parse_arrow, parse_npz, parse_parquet
from varlen_rnn.data.columns import Table, other_delimiter
from varlen_rnn.data.dataset import Dataset
from varlen_rnn.data.entries import read_entries
from varlen_rnn.data.options import OPTIONS, Options
from varlen_rnn.data.tables import read_long, read_wide
from varlen_rnn.data.text_files import parse_csv, parse_jsonl
from varlen_rnn.data.ts import parse_ts
from varlen_rnn.errors import InputError, shown

_READERS = {"wide": read_wide, "entries": read_entries, "long": read_long}
_HINT = "pass `sequence` for a column of texts or lists, `id` (and `time`) for rows of steps, `wide` for rows of series"


class Format(NamedTuple):
    """How files of a format are read."""

    suffixes: tuple[str, ...]
    parse: Callable[[Any, Options], Table]  # takes a path and the options
    forms: Mapping[str, str]  # the name of each form in error messages
    without: tuple[str, ...] = ("delimiter",)  # options that do not apply to this format, whatever its form

    def form_of(self, options: Options) -> str:
        """Return the form that the options choose, or the format's only form."""
        return options.form if len(self.forms) > 1 else next(iter(self.forms))

    def unused(self, form: str) -> list[str]:
        """Return the names of options that do not apply to a form.

        Examples
        --------
        >>> FORMATS["parquet"].unused("entries")
        ['id', 'time', 'features', 'ignore', 'wide', 'delimiter']
        """
        return [name for name, option in OPTIONS.items() if form not in option.forms or name in self.without]

    def read(self, source: Any, options: Options) -> Dataset:
        """Return the data set of a file or a frame, or raise if an option is given that does not apply to its form."""
        form = self.form_of(options)
        for name in self.unused(form):
            value = getattr(options, name)
            if value is not None and value is not False:
                raise InputError(f"read, {name}", expected=f"no such option for {self.forms[form]}", got=shown(value))
        table = self.parse(source, options)
        table.check_names()
        if form == "entries" and len(self.forms) > 1:
            _check_entries(table, options)
        return _READERS[form](table, options)


def _check_entries(table: Table, options: Options) -> None:
    field = table.sequence if options.sequence is None else options.sequence
    if options.sequence is None and field not in table.fields:
        hint = (other_delimiter(table.fields) if table.texts else None) or _HINT
        expected = "options that say where the sequences are"
        raise InputError(table.name, expected=expected, got=f"the columns {table.preview()}", hint=hint)
    if table.texts and options.tokens is None:
        given = [text for text in table.column(field, "sequence") if text.strip()]  # a blank may be a missing number
        if given and all(map(_looks_like_numbers, given)):
            hint = "for JSON lists such as [1.5, 2], pass `tokens='list'`; for texts, `tokens='characters'`; " + _HINT
            got = f"numbers; the columns are {table.preview()}"
            raise InputError(f"{table.name}, field {field!r}", expected="texts", got=got, hint=hint)


def _looks_like_numbers(text: str) -> bool:
    parts = text.strip("[] \t").replace(",", " ").replace(";", " ").split()
    try:
        return bool(parts) and all(float(part) is not None for part in parts)
    except ValueError:
        return False


def format_of(path: str) -> str:
    """Return the name of the format that has the suffix of `path`, or raise if no format has it."""
    suffix = pathlib.Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        expected = f"a suffix among {', '.join(sorted(SUFFIXES))}"
        hint = "unpack it with gunzip -k" if suffix == ".gz" else "for another suffix, pass the format: `format='csv'`"
        raise InputError(path, expected=expected, got=shown(suffix), hint=hint)
    return SUFFIXES[suffix]


def fields_of(path: str, format: str, options: Options) -> list[str]:
    """Return the names of a file's fields, columns or arrays, for error messages; [] if they cannot be read."""
    try:
        return [field for field in FORMATS[format].parse(path, options).fields if field]
    except (ValueError, OSError):
        return []


def _forms(name: str) -> dict[str, str]:
    return {
        "wide": f"a wide form of {name}",
        "entries": f"sequences in a column of {name}",
        "long": f"a long form of {name}",
    }


FORMATS = {
    "csv": Format((".csv", ".tsv"), parse_csv, {"wide": "a wide form", "entries": "texts", "long": "a long form"}, ()),
    "jsonl": Format((".jsonl", ".ndjson"), parse_jsonl, {"entries": "a .jsonl file"}),
    "parquet": Format((".parquet",), parse_parquet, _forms("a .parquet file")),
    "arrow": Format((".arrow", ".feather"), parse_arrow, _forms("an .arrow file")),
    "ts": Format((".ts",), parse_ts, {"entries": "a .ts file"}, ("sequence", "tokens", "delimiter")),
    "npz": Format((".npz",), parse_npz, {"entries": "an .npz file"}, ("tokens", "delimiter")),
}
FRAME = Format((), lambda table, options: table, _forms("a frame"))
SUFFIXES = {suffix: name for name, format in FORMATS.items() for suffix in format.suffixes}
