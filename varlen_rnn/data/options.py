"""`Options`: the options of a file reader in one record, checked once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from varlen_rnn.data.labels import KINDS
from varlen_rnn.data.missing import MISSING
from varlen_rnn.data.vocabulary import TOKENS
from varlen_rnn.errors import DTypeError, check_choice, check_flag, check_list, shown


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options for reading a file, which `data.read` documents; None means that an option was not given.

    Examples
    --------
    >>> Options(label="y", wide=True).label
    'y'
    >>> Options(missing="ignore")
    Traceback (most recent call last):
    varlen_rnn.errors.ShapeError: missing: expected one of 'error', 'drop', 'zero', 'forward' or 'keep', got 'ignore'
    """

    sequence: str | None = None
    label: str | None = None
    id: str | None = None
    time: str | None = None
    features: Sequence[str] | None = None
    ignore: Sequence[str] | None = None
    wide: bool = False
    tokens: str | None = None
    delimiter: str | None = None
    missing: str = "error"
    label_kind: str | None = None
    vocabulary: Sequence[str] | None = None
    classes: Iterable[str] | None = None
    min_count: int = 1
    max_vocabulary: int | None = None
    dtype: Literal["float32", "float64"] = "float32"  # of measurements

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

    def of_texts(self) -> dict[str, Any]:
        """Return the options that `from_texts`, `read_jsonl` and `read_csv` share."""
        return {
            "tokens": self.tokens or "auto",
            "vocabulary": self.vocabulary,
            "classes": self.classes,
            "min_count": self.min_count,
            "max_vocabulary": self.max_vocabulary,
            "label_kind": self.label_kind,
            "missing": self.missing,
        }
