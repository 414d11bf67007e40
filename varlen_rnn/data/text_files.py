"""The parsers of CSV and JSON Lines.

Files must be UTF-8, with or without a byte order mark.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import pathlib
from typing import Any

from varlen_rnn.data.columns import Table, lacking, other_delimiter, places
from varlen_rnn.data.options import Options
from varlen_rnn.errors import DTypeError, InputError, check_path, count, shown
from varlen_rnn.typing import StrPath


def parse_csv(path: str, options: Options) -> Table:
    """Return the Table of a CSV file, whose first line names the fields.

    If a column holds sequences, a line may end before its last fields, unless the sequence or the label is among them.
    """
    delimiter = options.delimiter
    if delimiter is None:
        delimiter = "\t" if pathlib.Path(path).suffix.lower() == ".tsv" else ","
    text = file_text(path)
    read = lambda: csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        reader = read()
    except (TypeError, ValueError) as error:
        raise DTypeError("delimiter", expected="a text of one character", got=shown(delimiter)) from error
    try:
        fields, lines = next(reader, []), list(reader)
        numbers = list(range(2, len(lines) + 2))
        if reader.line_num > len(lines) + 1 or not {len(fields)}.issuperset(map(len, lines)):
            # Some entries have several lines, or some lines are blank or incomplete, so check each line.
            reader, lines, numbers = read(), [], []
            next(reader)
            for line in filter(None, reader):
                whole = len(line) == len(fields)
                lines.append(line if whole else _completed(line, fields, f"{path}, line {reader.line_num}", options))
                numbers.append(reader.line_num)
    except csv.Error as error:
        hint = "csv.field_size_limit(size) raises the limit" if "limit" in str(error) else None
        raise InputError(f"{path}, line {reader.line_num}", expected="valid CSV", got=error, hint=hint) from error
    # `zip(*lines)` would take longer, because it makes an iterator for each line.
    columns = [(field, [line[position] for line in lines]) for position, field in enumerate(fields)]
    return Table(path, columns, places(path, "line", "field", numbers), head=f"{path}, line 1", texts=True)


def _completed(line: list[str], fields: list[str], where: str, options: Options) -> list[str]:
    """Return a line with blanks for its missing fields; raise if it has too many fields, or lacks one that is read."""
    if len(line) > len(fields) or options.form != "entries":
        hint = other_delimiter(fields) or "put a text that contains the delimiter into quotes"
        expected, got = count(len(fields), "field"), count(len(line), "field")
        raise InputError(where, expected=expected, got=got, hint=hint)
    for option, field in (
        ("sequence", "text" if options.sequence is None else options.sequence),
        ("label", options.label),
    ):
        if field in fields[len(line) :]:
            raise lacking(where, field, option, fields[: len(line)])
    return line + [""] * (len(fields) - len(line))


class _Records(Table):
    """The objects of a JSON Lines file, which may have different fields; the list of objects is the column ""."""

    def foreign(self, field: str, option: str = "field") -> list[Any]:
        """Return the entry of a field in each object, or raise an error that names the first line without it."""
        records = self._columns[""]
        for row, record in enumerate(records):
            if not isinstance(field, str) or field not in record:
                raise lacking(self.place(row), field, option, list(record))
        return [record[field] for record in records]


def parse_jsonl(path: str, options: Options) -> Table:
    """Return the Table of a JSON Lines file, which has one JSON object per line."""
    records, numbers = [], []
    # `splitlines` would also split at other separators, which JSON strings may contain.
    for number, line in enumerate(file_text(path).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(where, expected="a JSON object", got=f"{line[:60]!r}: {error}") from error
        if not isinstance(record, dict):
            raise DTypeError(where, expected='a JSON object, {"field": value ...}', got=line.strip()[:80])
        if options.label is not None and options.missing != "error":
            record.setdefault(options.label)
        records.append(record)
        numbers.append(number)
    columns = [("", records), *((field, records) for field in (records or [{}])[0] if field)]
    return _Records(path, columns, places(path, "line", "field", numbers))


def file_text(path: StrPath) -> str:
    """Return the text of a UTF-8 file, or raise an error that names the first line that is not UTF-8."""
    raw = pathlib.Path(check_path(path, "path")).read_bytes()
    if raw.startswith(b"\x1f\x8b"):
        raise InputError(path, expected="text in UTF-8", got="a gzip file", hint="unpack it with gunzip -k")
    if (encoding := _wide_encoding(raw)) is not None:
        hint = f"convert it with iconv -f {encoding} -t utf-8, or save it as UTF-8"
        raise InputError(f"{path}, line 1", expected="text in UTF-8", got=encoding.upper(), hint=hint)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        got, hint = f"the byte 0x{raw[error.start]:02x}", "if it is Latin-1, convert it with iconv -f latin1 -t utf-8"
        raise InputError(f"{path}, line {line}", expected="text in UTF-8", got=got, hint=hint) from error


def _wide_encoding(raw: bytes) -> str | None:
    """Return the name of UTF-16 or UTF-32 if a file's first bytes show such an encoding, otherwise None."""
    if raw.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if len(raw) > 1 and 0 in raw[:2] and any(raw[:2]):  # the first character is ASCII, in two bytes
        return "utf-16-be" if raw[0] == 0 else "utf-16-le"
    return None
