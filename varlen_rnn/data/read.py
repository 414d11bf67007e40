"""Read files of every kind: options, or the content, decide the kind; an ambiguous file is an error."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from varlen_rnn.data.dataset import Dataset
from varlen_rnn.data.formats import FORMATS, form_of, format_of
from varlen_rnn.data.missing import Missing
from varlen_rnn.data.options import Options
from varlen_rnn.errors import DTypeError, InputError, check_choice, check_path, shown


def read(
    source: Any,
    *,
    format: Literal["csv", "jsonl", "parquet", "arrow", "npz"] | None = None,
    sequence: str | None = None,
    label: str | None = None,
    id: str | None = None,
    time: str | None = None,
    features: Sequence[str] | None = None,
    ignore: Sequence[str] | None = None,
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
    ignore : list of str, optional
        Fields of a CSV file in long or wide form that hold no numbers, if the file has them.
    wide : bool
        Whether a row of a CSV file is a series: its fields except `id` and `label` are steps; blanks at the end are no
        steps.
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
    options = Options(
        sequence=sequence, label=label, id=id, time=time, features=features, ignore=ignore, wide=wide, tokens=tokens,
        delimiter=delimiter, missing=missing, label_kind=label_kind, vocabulary=vocabulary, classes=classes,
        min_count=min_count, max_vocabulary=max_vocabulary,
    )  # fmt: skip
    if hasattr(source, "read") and not isinstance(source, (str, pathlib.Path)):
        return _read_stream(source, format, options)
    path = check_path(source, "source")
    return _read_file(path, format_of(path) if format is None else format, options)


def _read_file(path: str, format: str, options: Options) -> Dataset:
    """Read a file, or raise if an option was given that does not apply to its form."""
    form = form_of(check_choice(format, "format", *sorted(FORMATS)), options)
    for name in form.unused:
        value = getattr(options, name)
        if value is not None and value is not False:
            raise InputError(f"read, {name}", expected=f"none of {form.name}", got=shown(value))
    return form.read(path, options)


def _read_stream(source: Any, format: str | None, options: Options) -> Dataset:
    """Read an open file from a copy on the disk, because Parquet wants to seek."""
    if format is None:
        raise InputError("format", expected=f"one of {sorted(FORMATS)} for an open file", got="None")
    content = getattr(source, "buffer", source).read()
    content = content.encode() if isinstance(content, str) else content
    if not isinstance(content, bytes):
        raise DTypeError("source", expected="an open file", got=shown(source))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, f"input.{format}")
        path.write_bytes(content)
        return _read_file(str(path), format, options)
