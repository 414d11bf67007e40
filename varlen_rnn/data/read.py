"""Read files of every kind: options, or the content, decide the kind; an ambiguous file is an error."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from varlen_rnn.data.columns import read_columns, read_npz
from varlen_rnn.data.dataset import Dataset
from varlen_rnn.data.labels import KINDS
from varlen_rnn.data.missing import MISSING
from varlen_rnn.data.readers import Missing, file_text, from_texts, read_csv, read_jsonl
from varlen_rnn.data.tables import Table, read_long, read_wide
from varlen_rnn.errors import DTypeError, InputError, check_choice, check_flag, check_path, shown

FORMATS = {
    ".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".arrow": "arrow",
    ".feather": "arrow", ".npz": "npz",
}  # fmt: skip


# Options that do not apply, by the kind of source.
_OF_TABLES = ("id", "time", "features", "wide", "delimiter")
NOT_OF = {
    "a .jsonl file": _OF_TABLES, "a .parquet file": _OF_TABLES, "an .arrow file": _OF_TABLES,
    "an .npz file": (*_OF_TABLES, "tokens"), "texts": ("time", "features"),
    "a long form": ("sequence", "tokens"), "a wide form": ("sequence", "tokens", "time"),
}  # fmt: skip


def form_of(format: str, id: str | None, wide: bool) -> str:
    """Return the kind of source, a key of `NOT_OF`.

    Examples
    --------
    >>> form_of("csv", "device", False), form_of("npz", None, False)
    ('a long form', 'an .npz file')
    """
    if format != "csv":
        return f"{'an' if format in ('arrow', 'npz') else 'a'} .{format} file"
    return "a wide form" if wide else "texts" if id is None else "a long form"


def read(
    source: Any,
    *,
    format: Literal["csv", "jsonl", "parquet", "arrow", "npz"] | None = None,
    sequence: str | None = None,
    label: str | None = None,
    id: str | None = None,
    time: str | None = None,
    features: Sequence[str] | None = None,
    wide: bool = False,
    tokens: Literal["characters", "words", "list"] | None = None,
    delimiter: str | None = None,
    missing: Missing = "error",
    label_kind: str | None = None,
    vocabulary: Sequence[str] | None = None,
    classes: Iterable[str] | None = None,
    min_count: int = 1,
    max_vocabulary: int | None = None,
) -> Dataset:
    r"""Return the data set of a file.

    Parameters
    ----------
    source : path, or an open file
        An open file, such as standard input, needs a format.
    format : str, optional
        By default from the suffix: .csv, .tsv, .jsonl, .parquet, .arrow or .feather, .npz.
    sequence : str, optional
        The field that holds the sequence; by default "text" if there is one.  In a .npz file, the array of rows, by
        default "rows", which the array "offsets" cuts into sequences.
    label : str, optional
        The field of the labels; without it there are none.
    id, time : str, optional
        For a CSV file in long form, one row per step: the field that identifies the sequence, and the field that orders
        its steps (numbers or dates).  Equal times keep the order of the file, and rows of one id need not be
        neighbours. A label that is the same in all rows of each id belongs to the sequence, otherwise to the row.
    features : list of str, optional
        The fields of numbers; by default all other fields.
    wide : bool
        Whether a row of a CSV file is a series: its fields except `id` are steps; blanks at the end are no steps.
    tokens : {"characters", "words", "list"}, optional
        The tokens of a text; by default words if the median text has ten or more words, else characters.
    delimiter : str, optional
        Between fields: a comma by default, in a .tsv file a tab.
    missing : {"error", "drop", "zero", "forward"}
        How to treat missing numbers (empty, NaN, null): raise, leave the row out, use 0, or use the last number before.
        "error" does not look for NaN in Arrow and NumPy files.  With the other choices, sequences without a label are
        left out, and rows without a label get the class -100.
    label_kind : str, optional
        "classes", "numbers", "several classes", "classes of rows" or "numbers of rows"; by default guessed.
    vocabulary, classes, min_count, max_vocabulary
        As `from_texts` has them.

    Returns
    -------
    Dataset
        Its `label_kind` names the kind of labels.

    Raises
    ------
    InputError
        If the file has a wrong value, or can be read in more than one way.  The error names file, line and field, the
        expected value and the found one.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "series.csv")
    >>> _ = path.write_text("id,t,x,y\na,1,0.5,up\nb,1,2,down\na,0,0.25,up\n")
    >>> data = read(path, id="id", time="t", label="y")
    >>> data.sequences, data.labels, data.classes
    ([array([[0.25], [0.5 ]], dtype=float32), array([[2.]], dtype=float32)], array([1, 0]), ['down', 'up'])
    """
    options = {name: value for name, value in locals().items() if name not in ("source", "format")}
    check_choice(missing, "missing", *MISSING)
    wide = check_flag(wide, "wide")
    if label_kind is not None:
        check_choice(label_kind, "label_kind", *KINDS)
    for name, field in (("sequence", sequence), ("label", label), ("id", id), ("time", time)):
        if field is not None and not isinstance(field, str):
            raise DTypeError(name, expected="the name of a field", got=shown(field))
    if hasattr(source, "read") and not isinstance(source, (str, pathlib.Path)):
        return _of_stream(source, format, options)
    path = check_path(source, "source")
    suffix = pathlib.Path(path).suffix.lower()
    if format is None and suffix not in FORMATS:
        raise InputError(path, expected=f"a suffix of {sorted(FORMATS)}, or a format", got=shown(suffix))
    format = check_choice(FORMATS[suffix] if format is None else format, "format", *sorted(set(FORMATS.values())))
    form = form_of(format, id, wide)
    for name in NOT_OF[form]:
        if options[name] is not None and options[name] is not False:
            raise InputError(f"read, {name}", expected=f"none of {form}", got=shown(options[name]))
    texts: dict[str, Any] = {
        "vocabulary": vocabulary, "classes": classes, "min_count": min_count, "max_vocabulary": max_vocabulary,
        "label_kind": label_kind, "missing": missing,
    }  # fmt: skip
    if format == "jsonl":
        return read_jsonl(path, sequence or "text", label, tokens=tokens or "auto", **texts)
    if format == "npz":
        return read_npz(path, sequence or "rows", label, missing, classes, label_kind)
    if format in ("parquet", "arrow"):
        as_texts = lambda sequences, labels: from_texts(sequences, labels, tokens=tokens or "auto", **texts)
        return read_columns(path, format, sequence or "text", label, missing, classes, label_kind, as_texts)
    if delimiter is None:
        delimiter = "\t" if suffix == ".tsv" else ","
    if form == "texts":
        table = None if sequence is not None and tokens is not None else _table(path, delimiter)
        if table is not None:
            sequence = _text_field(table, sequence, label, tokens)
        return read_csv(path, sequence or "text", label, tokens=tokens or "auto", delimiter=delimiter, **texts)
    table = _table(path, delimiter)
    if wide or id is None:
        return read_wide(table, id, features, label, missing, classes, label_kind)
    return read_long(table, id, time, features, label, missing, classes, label_kind)


def _of_stream(source: Any, format: str | None, options: dict[str, Any]) -> Dataset:
    """Read an open file by way of a file of our own: Parquet wants to seek."""
    if format is None:
        raise InputError("format", expected=f"one of {sorted(set(FORMATS.values()))} for an open file", got="None")
    content = getattr(source, "buffer", source).read()
    content = content.encode() if isinstance(content, str) else content
    if not isinstance(content, bytes):
        raise DTypeError("source", expected="an open file", got=shown(source))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, f"input.{format}")
        path.write_bytes(content)
        return read(path, **options | {"format": format})


def _table(path: str, delimiter: str) -> Table:
    return Table(file_text(path), delimiter, path)


def _text_field(table: Table, sequence: str | None, label: str | None, tokens: str | None) -> str:
    """Return the field of texts, or raise where the file does not look like one of texts."""
    hint = "`sequence` names the field of texts; `id` (and `time`) read a row per step; `wide` a series per row"
    if sequence is None and "text" not in table.fields:
        raise InputError(table.name, expected="options that define a sequence", got=table.preview(), hint=hint)
    field = sequence or "text"
    texts = table.column(field, "sequence")
    if tokens is None and all(_looks_like_numbers(text) for text in texts):
        hint = "tokens 'list' reads JSON lists such as [1.5, 2]; 'characters' takes them for texts; " + hint
        raise InputError(f"{table.name}, field {field!r}", expected="texts", got=table.preview(), hint=hint)
    return field


def _looks_like_numbers(text: str) -> bool:
    parts = text.strip("[] \t").replace(",", " ").replace(";", " ").split()
    try:
        return bool(parts) and all(float(part) is not None for part in parts)
    except ValueError:
        return False
