r"""Read a .ts file, the format of the UCR, UEA and TSER archives of time series.

Lines before `@data` describe the file.  Each line after it is a series: colons separate its channels, commas separate
the numbers of a channel, and at the end comes a class or a number to predict.  A series of two channels, two steps and
a class:

    @classLabel true up down
    @data
    1.5,2.0:0.1,0.2:up

Source: https://www.timeseriesclassification.com, and the readers of sktime and aeon.
"""

from __future__ import annotations

import math
from typing import Any

from varlen_rnn.data.columns import Table, places
from varlen_rnn.data.missing import EMPTY
from varlen_rnn.data.options import Options
from varlen_rnn.data.text_files import file_text
from varlen_rnn.errors import InputError, ShapeError, shown

_LABELS = {"classlabel": "class", "targetlabel": "target"}  # the field that a line such as `@classLabel true` declares


def parse_ts(path: str, options: Options) -> Table:
    """Return the Table of a .ts file: a column of series, and a column "class", or "target" if labels are numbers."""
    lines = [line.strip() for line in file_text(path).splitlines()]
    start = next((index for index, line in enumerate(lines) if line.lower() == "@data"), None)
    if start is None:
        hint = "in a .ts file, this line separates the description from the series"
        raise InputError(path, expected="a line '@data'", got="no such line", hint=hint)
    field = next((field for key, field in _LABELS.items() for line in lines[:start] if _is_true(line, key)), None)
    if options.label not in (None, field):
        hint = f"pass `label={field!r}`" if field else "the file has no labels"
        raise InputError(f"{path}, `label`", expected=repr(field), got=shown(options.label), hint=hint)
    if any(_is_true(line, "timestamps") for line in lines[:start]):
        hint = "for times, use a table with a row per step, and pass `id` and `time`"
        raise InputError(path, expected="series without time stamps", got="@timeStamps true", hint=hint)
    series, labels, numbers = [], [], []
    for number, line in enumerate(lines[start + 1 :], start + 2):
        if line and not line.startswith("#"):
            rows, label = _series(line, field, f"{path}, line {number}")
            series.append(rows)
            labels.append(label)
            numbers.append(number)
    columns = [("", series), *([(field, labels)] if field else [])]
    return Table(path, columns, places(path, "line", "field", numbers), sequence="")


def _is_true(line: str, key: str) -> bool:
    return line.lower().split()[:2] == [f"@{key}", "true"]


def _series(line: str, field: str | None, where: str) -> tuple[list[Any], Any]:
    """Return the series of a line (a list of numbers, or of rows if there are several channels), and its label."""
    channels = line.split(":")
    label: Any = channels.pop().strip() if field else None
    columns = [_numbers(channel, where) for channel in channels]
    if not columns:
        raise InputError(where, expected=f"numbers, a colon, and the {field}", got=shown(line))
    if len(set(map(len, columns))) > 1:
        got = f"channels of the lengths {shown(list(map(len, columns)))}"
        raise ShapeError(where, expected="channels of equal lengths", got=got)
    if field == "target":
        found = _numbers(label, f"{where}, target")
        if len(found) > 1:
            raise InputError(f"{where}, target", expected="one number", got=shown(found))
        label = found[0] if found else None
    return columns[0] if len(columns) == 1 else [list(row) for row in zip(*columns, strict=True)], label


def _numbers(text: str, where: str) -> list[float]:
    try:
        parts = [part.strip().lower() for part in text.split(",")] if text.strip() else []
        return [math.nan if part in EMPTY else float(part) for part in parts]
    except ValueError as error:
        raise InputError(where, expected="numbers", got=shown(text)) from error
