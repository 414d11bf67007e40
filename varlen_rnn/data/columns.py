"""`Table`: the columns of a file, or of a frame in memory; error messages get the place of an entry from it.

Each format has one parser, which returns a Table; `entries.py` and `tables.py` turn it into a data set.  An example:

    my.csv    id,x        fields             ["id", "x"]
              a,1         column("id")       ["a", "a"]
              a,2.5       numbers("x")       [1.0, 2.5]
                          place(1, "x")      "my.csv, line 3, field 'x'"

No library of frames is imported: NumPy converts the columns of pandas, polars and Arrow.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from numbers import Number
from typing import Any

import numpy as np

from varlen_rnn.data.labels import typed
from varlen_rnn.data.large_ids import check_no_large_id
from varlen_rnn.data.missing import EMPTY
from varlen_rnn.errors import DTypeError, InputError, alike, listed, shown

Place = Callable[..., str]  # `place(row, field=None)` says in error messages where a row is, or its entry in a field

_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_OF_OPTIONS = {
    "label": "`label=None` reads sequences without labels",
    "sequence": "`sequence` names the field of sequences",
}


@dataclasses.dataclass
class Table:
    """Columns of equal lengths by name: lists of entries, or columns of pandas, polars or pyarrow."""

    name: str  # the name of the file or frame in error messages
    columns: dataclasses.InitVar[Iterable[tuple[Any, Any]]]  # pairs of a name and a column
    place: Place  # as `places` returns it
    _: dataclasses.KW_ONLY
    head: str | None = None  # the place of the columns' names in error messages; by default `name`
    noun: str = "field"  # the word for a column in error messages
    sequence: str = "text"  # the column of sequences, unless an option names another
    texts: bool = False  # whether all entries are texts, as in CSV, so that numbers must be parsed
    kept: bool = False  # whether arrays keep their type, and are not checked, which would read memory-mapped files
    levels: Sequence[Any] = ()  # the names of the levels of a pandas index, which is no column

    def __post_init__(self, columns: Iterable[tuple[Any, Any]]) -> None:
        pairs = [(str(field), column) for field, column in columns]
        self.fields, self._columns = [field for field, _ in pairs], dict(pairs)
        if not len(self):
            hint = "is the file empty?" if self.noun == "field" else "is it empty?"
            raise InputError(self.name, expected="at least one record", got="no record", hint=hint)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def foreign(self, field: str, option: str = "field") -> Any:
        """Return a column as the object of its library, such as pandas; errors name `option`, which asked for it."""
        if not isinstance(field, str) or field not in self._columns:
            raise lacking(self.head or self.name, field, option, self.fields, self.noun, self.levels)
        if self.fields.count(field) > 1:
            self.check_names()
        return self._columns[field]

    def check_names(self) -> None:
        """Raise if two columns have one name."""
        if len(self._columns) < len(self.fields):
            hint = "the first line must name the fields: is this line missing?" if self.texts else None
            expected, got = f"{self.noun}s of different names", f"the names {listed(self.fields)}"
            raise InputError(self.head or self.name, expected=expected, got=got, hint=hint)

    def column(self, field: str, option: str = "field") -> Sequence[Any]:
        """Return a column as Python objects, an entry per row; a missing entry is None, or blank in CSV."""
        return values_of(self.foreign(field, option))

    def ids(self, field: str) -> Sequence[str]:
        """Return a column of ids as texts; a missing id is blank."""
        return self._all_texts(field, "id", "an id")

    def _all_texts(self, field: str, option: str, expected: str) -> Sequence[str]:
        """Return a column as texts, blank if missing, or raise if an entry has no text, such as a very long integer."""
        entries, texts = self.column(field, option), []
        if self.texts:
            return entries
        for row, entry in enumerate(entries):
            try:
                texts.append("" if entry is None else str(entry))
            except Exception as error:  # an object's own `__str__` may raise anything
                raise DTypeError(self.place(row, field), expected=expected, got=shown(entry)) from error
        return texts

    def labels(self, field: str, kind: str | None) -> Sequence[Any]:
        """Return a column of labels; a missing label is None or blank.

        Texts become floats if all are numbers.  Floats of a frame without a fraction become integers if `kind` names
        classes.
        """
        column = self.foreign(field, "label")
        if isinstance(column, (list, tuple)):
            return typed(column) if self.texts else column
        values = [plain(value) for value in values_of(column)]
        if kind is not None and "classes" in kind:  # pandas turns integers into floats if some are missing
            return [int(value) if type(value) is float and value.is_integer() else value for value in values]
        return values

    def numbers(self, field: str, option: str = "features") -> np.ndarray:
        """Return a column as float64; a missing entry is NaN, and an entry that is no number raises."""
        column = self.foreign(field, option)
        place = lambda row: self.place(row, field)
        # Texts do not become an array, which would pad each text to the longest.
        array = np.zeros(0, object) if self.texts else np.asarray(column)
        if array.dtype.kind in "fiub":
            found = array.astype(np.float64)
            check_no_large_id(found, array, place)
            return found
        entries = values_of(column)
        try:
            found = np.array(list(map(float, entries)))
        except (TypeError, ValueError, OverflowError):
            found = np.array([_number(entry, row, place) for row, entry in enumerate(entries)])
        check_no_large_id(found, entries, place)
        return found

    def times(self, field: str) -> np.ndarray:
        """Return a column of times as numbers in the same order."""
        column = self.foreign(field, "time")
        kind = "U" if self.texts else np.asarray(column).dtype.kind
        if kind not in "iumMf":
            return times_of(self._all_texts(field, "time", "a time"), lambda row: self.place(row, field))
        array = np.asarray(column)
        gone = np.isnat(array) if kind in "mM" else np.isnan(array)
        if gone.any():
            where = self.place(int(np.flatnonzero(gone)[0]), field)
            raise InputError(where, expected="a number, or a date", got="a missing value")
        return array.astype(np.int64) if kind in "mM" else array

    def preview(self) -> str:
        """Return the names of the columns and the first three rows, for error messages."""
        rows = zip(*(values_of(self.foreign(field)[:3]) for field in self.fields[:10]), strict=True)
        return "; ".join([listed(self.fields), *(listed(row) for row in rows)])


def places(name: str, unit: str, noun: str, numbers: Sequence[int] | None = None) -> Place:
    """Return a function `place(row, field=None)`; if `numbers` is given, it calls row k by the number `numbers[k]`."""

    def place(row: int, field: str | None = None) -> str:
        where = f"{name}, {unit} {row if numbers is None else numbers[row]}"
        return f"{where}, {noun} {field!r}" if field else where

    return place


def lacking(
    where: str, field: Any, option: str, fields: list[str], noun: str = "field", levels: Sequence[Any] = ()
) -> InputError:
    """Return the error for a field that an option names but that is not in `fields`."""
    of_index = "`frame.reset_index()` turns the index into columns" if field in levels else None
    delimiter = other_delimiter(fields) if noun == "field" else None
    hint = of_index or delimiter or alike(field, fields) or _OF_OPTIONS.get(option)
    got = f"only the {noun}{'s' * (len(fields) > 1)} {listed(fields)}" if fields else f"no {noun}s"
    return InputError(f"{where}, `{option}`", expected=f"the {noun} {shown(field)}", got=got, hint=hint)


def values_of(column: Any) -> Sequence[Any]:
    """Return the entries of a column of pandas, polars or pyarrow as Python objects; a missing entry is None."""
    if isinstance(column, (list, tuple)):
        return column
    if hasattr(column, "to_pylist"):
        return column.to_pylist()
    values = column.to_list()
    if not hasattr(column, "iloc"):
        return values
    return [None if gone else value for value, gone in zip(values, column.isna().tolist(), strict=True)]


def holds_numbers(column: Any) -> bool:
    """Return whether all entries of a column are numbers or missing."""
    kind = np.asarray(column).dtype.kind
    return kind in "fiub" or (kind == "O" and all(x is None or isinstance(x, Number) for x in values_of(column)))


def plain(value: Any) -> Any:
    """Return a label as a Python object: an array, or a column of polars inside a column, becomes a list."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return value.to_list() if hasattr(value, "to_list") else value


def _number(entry: Any, row: int, place: Callable[[int], str]) -> float:
    try:
        return np.nan if entry is None or (isinstance(entry, str) and entry.strip().lower() in EMPTY) else float(entry)
    except (TypeError, ValueError, OverflowError) as error:
        lists = "for tokens, put each sequence into a row, as a list: frame.groupby(id).agg(list).reset_index()"
        hint = f"name the columns of numbers with `features`, or the other columns with `ignore`; {lists}"
        if isinstance(entry, str) and _DECIMAL_COMMA.fullmatch(entry.strip()):
            hint = "for decimal commas, pass the frame pandas.read_csv(path, decimal=',', ...) to data.read"
        raise InputError(place(row), expected="a number", got=shown(entry), hint=hint) from error


def other_delimiter(fields: Sequence[str]) -> str | None:
    """Return a hint if the first line seems to use another delimiter, otherwise None."""
    found = [sign for sign in ";\t|" if len(fields) == 1 and sign in fields[0]]
    return f"`delimiter={found[0]!r}`" if found else None


def times_of(texts: Sequence[str], place: Callable[[int], str]) -> np.ndarray:
    """Return times as numbers; dates become nanoseconds or microseconds since 1970."""
    try:
        return np.array(list(map(int, texts)), np.int64)  # not float64, which would round nanoseconds since 1970
    except (ValueError, OverflowError):
        pass
    try:
        found = np.array(list(map(float, texts)))
        if not np.isnan(found).any():
            return found
    except ValueError:
        pass
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no explicit representation of timezones")
        dates = [_date(text, place(row)) for row, text in enumerate(texts)]
    years = np.array([date.astype("datetime64[Y]") for date in dates]).astype(np.int64) + 1970
    # 64 bits hold nanoseconds only for the years 1678 to 2261, but microseconds for all years.
    unit = "ns" if years.min() > 1677 and years.max() < 2262 else "us"
    return np.array([date.astype(f"datetime64[{unit}]") for date in dates]).astype(np.int64)


def _date(text: str, where: str) -> np.datetime64:
    """Return a date, converted to UTC if it has a time zone, or raise."""
    try:
        date = np.datetime64(text.strip())
        if not np.isnat(date):
            return date
    except ValueError:
        pass
    hint = "convert other dates first, for example: frame[time] = pandas.to_datetime(frame[time], dayfirst=True)"
    raise InputError(where, expected="a number, or a date such as 2026-01-31T12:00", got=shown(text), hint=hint)
