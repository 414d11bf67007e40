"""`Options`: all options for reading a file, each with its default, its meaning, and its command-line argument.

`Options(...)` checks options once.  `documented` writes their meanings into docstrings, and `cli/reading.py` into the
help of commands.
"""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

from varlen_rnn.data.labels import KINDS
from varlen_rnn.data.missing import MISSING
from varlen_rnn.data.vocabulary import TOKENS
from varlen_rnn.errors import DTypeError, check_choice, check_flag, check_list, shown

F = TypeVar("F", bound=Callable[..., Any])


class Option(NamedTuple):
    """How an option is documented, and where it applies."""

    kind: str  # its type in docstrings
    text: str  # its meaning in docstrings; the first sentence is the help of commands
    forms: str  # the forms that it applies to: some of "wide", "entries" and "long"
    command: dict[str, Any]  # arguments of `ArgumentParser.add_argument`; empty if no command takes it


def _option(default: Any, kind: str, text: str, forms: str = "wide entries long", /, **command: Any) -> Any:
    return dataclasses.field(default=default, metadata={"option": Option(kind, text, forms, command)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options for reading a file; None means that an option was not given.

    Examples
    --------
    >>> Options(label="y", wide=True).form
    'wide'
    >>> Options(missing="ignore")
    Traceback (most recent call last):
    varlen_rnn.errors.ShapeError: missing: expected one of 'error', 'drop', 'zero', 'forward' or 'keep', got 'ignore'
    """

    # fmt: off
    sequence: str | None = _option(None, "str, optional", (
        'The field that holds the sequence; by default "text", if the file has this field.  In a .npz file, the array '
        'that holds the rows of all sequences, by default "rows"; the array "offsets" divides it into sequences.'
    ), "entries", metavar="COLUMN")
    label: str | None = _option(None, "str, optional", (
        "The field of the labels; by default sequences have no labels."
    ), metavar="COLUMN")
    id: str | None = _option(None, "str, optional", (
        "The field that identifies the sequence, in a table with one row per step.  Rows of an id need not be "
        "neighbours.  If the label is the same in all rows of each id, it is a label of the sequence, otherwise of the "
        "row.  In wide form, the field that names the sequence."
    ), "long wide", metavar="COLUMN")
    time: str | None = _option(None, "str, optional", (
        "The field that orders the steps of an id: numbers or dates.  Steps of equal time stay in the file's order."
    ), "long", metavar="COLUMN")
    features: Sequence[str] | None = _option(None, "list of str, optional", (
        "The fields that hold the numbers of a row; by default all fields that no other option names."
    ), "long wide", metavar="COLUMNS")
    ignore: Sequence[str] | None = _option(None, "list of str, optional", (
        "Fields of a table in long or wide form that are not read; the table need not have them."
    ), "long wide", metavar="COLUMNS")
    wide: bool = _option(False, "bool", (
        "Whether each row of a table is a whole sequence, whose fields are the steps.  The fields `id` and `label` are "
        "no steps, and blank fields at the end are left out."
    ), "wide", action="store_true", default=None)
    tokens: str | None = _option(None, '{"characters", "words", "list"}, optional', (
        "How a text is divided into tokens; by default into words if the median text has at least ten words, otherwise "
        'into characters.  "list" reads a text of a CSV file as a JSON list, such as `[1.5, 2]`.'
    ), "entries", choices=TOKENS)
    delimiter: str | None = _option(None, "str, optional", (
        "The character between fields; by default a comma, or a tab in a .tsv file."
    ), metavar="CHARACTER")
    missing: str = _option("error", '{"error", "drop", "zero", "forward", "keep"}', (
        "How to treat missing numbers (empty, NaN, null): raise an error, drop the row, use 0, use the previous number "
        'or keep NaN, which estimators fill.  In Arrow and NumPy files, "error" does not check for NaN.  The other '
        "choices also drop sequences without a label, and give rows without a label the class -100."
    ), choices=MISSING)
    label_kind: str | None = _option(None, "str, optional", (
        'The kind of the labels; by default it is guessed.  "classes", "numbers", "several classes", "classes of rows" '
        'or "numbers of rows".'
    ), choices=KINDS)
    vocabulary: Sequence[str] | None = _option(None, "list of str, optional", (
        "The vocabulary of another data set, such as the training set; by default the tokens in the order of their "
        "frequency."
    ))
    classes: Iterable[str] | None = _option(None, "list of str, optional", (
        "The classes of another data set; by default those of the labels, sorted (by value if all are integers)."
    ))
    min_count: int = _option(1, "int", "A new vocabulary contains only tokens that occur at least so many times.")
    max_vocabulary: int | None = _option(None, "int, optional", (
        'The largest size of a new vocabulary, including "<unk>".'
    ))
    dtype: Literal["float32", "float64"] = _option("float32", '{"float32", "float64"}', (
        "The data type of numbers in rows; float32 has seven digits.  Arrow files whose lists have no nulls and NumPy "
        "files keep the type that they have."
    ))
    # fmt: on

    def __post_init__(self) -> None:
        check_choice(self.missing, "missing", *MISSING)
        check_choice(self.dtype, "dtype", "float32", "float64")
        object.__setattr__(self, "wide", check_flag(self.wide, "wide"))
        if self.ignore is not None:
            object.__setattr__(self, "ignore", check_list(self.ignore, "ignore", "a list of fields"))
        if self.label_kind is not None:
            check_choice(self.label_kind, "label_kind", *KINDS)
        if self.tokens is not None:
            check_choice(self.tokens, "tokens", *TOKENS, "auto")
        named = [(name, getattr(self, name)) for name in ("sequence", "label", "id", "time")]
        for name, field in (*named, *(("ignore", field) for field in self.ignore or ())):
            if field is not None and not isinstance(field, str):
                raise DTypeError(name, expected="the name of a field", got=shown(field))

    @property
    def form(self) -> str:
        """The form of a table with these options: "wide", "entries" (sequences in a column) or "long"."""
        return "wide" if self.wide else "entries" if self.id is None else "long"


OPTIONS: dict[str, Option] = {field.name: field.metadata["option"] for field in dataclasses.fields(Options)}


def documented(function: F) -> F:
    """Replace a line `{name name ...}` of a docstring by the entries of these options, `{options}` by all entries.

    Examples
    --------
    >>> def read(label): "{label}"
    >>> print(documented(read).__doc__)
    label : str, optional
        The field of the labels; by default sequences have no labels.
    """

    def entries(match: re.Match[str]) -> str:
        found, indent = [], match[1] + "    "
        for name in OPTIONS if match[2] == "options" else match[2].split():
            filled = textwrap.fill(OPTIONS[name].text, 120, initial_indent=indent, subsequent_indent=indent)
            found.append(f"{match[1]}{name} : {OPTIONS[name].kind}\n{filled}")
        return "\n".join(found)

    if function.__doc__ is not None:  # `python -OO` drops docstrings
        function.__doc__ = re.sub(r"(?m)^( *)\{([\w ]+)\}$", entries, function.__doc__)
    return function
