r"""Read a .ts file, the format of the UCR, UEA and TSER archives of time series.

Lines before `@data` describe the file.  Each line after it is a series: its channels between colons, the numbers of a
channel between commas, and at the end a class or a number to predict.  A series of two channels, two steps and a class:

    @classLabel true up down
    @data
    1.5,2.0:0.1,0.2:up

Source: https://www.timeseriesclassification.com, and the readers of sktime and aeon.
"""

from __future__ import annotations

import math
import pathlib
from typing import Any

from varlen_rnn.data.dataset import Dataset
from varlen_rnn.data.missing import EMPTY
from varlen_rnn.data.options import Options
from varlen_rnn.data.readers import file_text
from varlen_rnn.data.records import Record, dataset_of
from varlen_rnn.errors import InputError, ShapeError, shown

_LABELS = {"classlabel": "class", "targetlabel": "target"}  # the field that each line of the description declares


def read_ts(path: str, options: Options) -> Dataset:
    """Return the data set of a .ts file; the label is the field "class", or "target" if it is a number."""
    lines = [line.strip() for line in file_text(path).splitlines()]
    start = _start(lines, path)
    field = _label_of(lines[:start])
    if options.label not in (None, field):
        hint = f"`label={field!r}`" if field else "the file has no labels"
        raise InputError(f"{path}, `label`", expected=repr(field), got=shown(options.label), hint=hint)
    if any(_is_true(line, "timestamps") for line in lines[:start]):
        hint = "a table with a row per step, and `id` and `time`, has times"
        raise InputError(path, expected="series without time stamps", got="@timeStamps true", hint=hint)
    records = [
        _record(line, field, f"{path}, line {number}")
        for number, line in enumerate(lines[start + 1 :], start + 2)
        if line and not line.startswith("#")
    ]
    if not records:
        raise InputError(path, expected="at least one record", got="none", hint="is the file empty?")
    return dataset_of(records, pathlib.Path(path).name, options.label is not None, options)


def label_fields(path: str) -> list[str]:
    """Return the names of a file's labels, "class" or "target", for error messages; [] if it has none."""
    lines = [line.strip() for line in file_text(path).splitlines()]
    field = _label_of(lines[: _start(lines, path)])
    return [field] if field else []


def _start(lines: list[str], path: str) -> int:
    """Return the index of the line `@data`, or raise."""
    for index, line in enumerate(lines):
        if line.lower() == "@data":
            return index
    raise InputError(path, expected="a line '@data'", got="none", hint="a .ts file describes its series first")


def _label_of(description: list[str]) -> str | None:
    return next((field for key, field in _LABELS.items() for line in description if _is_true(line, key)), None)


def _is_true(line: str, key: str) -> bool:
    return line.lower().split()[:2] == [f"@{key}", "true"]


def _record(line: str, field: str | None, where: str) -> Record:
    """Return the series of a line, as a list of numbers, or of rows if there are several channels."""
    channels = line.split(":")
    label: Any = channels.pop().strip() if field else None
    columns = [_numbers(channel, where) for channel in channels]
    if not columns:
        raise InputError(where, expected=f"numbers, and the {field}", got=shown(line))
    if len(set(map(len, columns))) > 1:
        raise ShapeError(where, expected="channels of equal lengths", got=shown(list(map(len, columns))))
    if field == "target":
        label = None if label.lower() in EMPTY else _numbers(label, f"{where}, target")
        if label is not None and len(label) != 1:
            raise InputError(f"{where}, target", expected="one number", got=shown(label))
        label = None if label is None else label[0]
    rows = columns[0] if len(columns) == 1 else [list(row) for row in zip(*columns, strict=True)]
    return Record(rows, label, where, f"{where}, {field}")


def _numbers(text: str, where: str) -> list[float]:
    """Return the numbers between commas; a missing one is NaN."""
    try:
        parts = [part.strip().lower() for part in text.split(",")] if text.strip() else []
        return [math.nan if part in EMPTY else float(part) for part in parts]
    except ValueError as error:
        raise InputError(where, expected="numbers", got=shown(text)) from error
