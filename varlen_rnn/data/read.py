"""`read`: read a file of any format, or a frame; raise an error if it can be read in several ways."""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from varlen_rnn.data.dataset import Dataset
from varlen_rnn.data.formats import FORMATS, FRAME, Format, format_of
from varlen_rnn.data.frames import frame_of
from varlen_rnn.data.missing import Missing
from varlen_rnn.data.options import Options, documented
from varlen_rnn.errors import DTypeError, InputError, check_choice, check_path, shown


@documented
def read(
    source: Any,
    *,
    format: Literal["csv", "jsonl", "parquet", "arrow", "npz", "ts"] | None = None,
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
    dtype: Literal["float32", "float64"] = "float32",
) -> Dataset:
    r"""Read a file or a data frame of sequences and return it as a Dataset.

    Parameters
    ----------
    source : path, open file, or frame
        For an open file, such as standard input, `format` is required.  A frame is a DataFrame of pandas or polars, a
        table of pyarrow, or any object that has columns by the Arrow PyCapsule interface.
    format : str, optional
        By default it follows from the suffix: .csv, .tsv, .jsonl, .ndjson, .parquet, .arrow, .feather, .npz or .ts.
    {options}

    Returns
    -------
    Dataset
        Its attribute `label_kind` is the kind of labels that was found.

    Raises
    ------
    InputError
        If the source has an invalid value, or can be read in several ways.  The error names file, line and field, and
        the expected and the actual value.

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
        min_count=min_count, max_vocabulary=max_vocabulary, dtype=dtype,
    )  # fmt: skip
    if (frame := frame_of(source)) is not None:
        if format is not None:
            raise InputError("format", expected="None, because the source is a frame", got=shown(format))
        return FRAME.read(frame, options)
    if hasattr(source, "read") and not isinstance(source, (str, pathlib.Path)):
        return _read_stream(source, format, options)
    if hasattr(source, "collect") or hasattr(source, "to_frame"):  # the source is a lazy frame or a column
        hint = f"pass `{'source.collect()' if hasattr(source, 'collect') else 'source.to_frame()'}`, which is a frame"
        raise DTypeError("source", expected="a path, an open file or a frame", got=type(source).__name__, hint=hint)
    if not isinstance(source, (str, bytes, os.PathLike)):
        raise DTypeError("source", expected="a path, an open file or a frame", got=shown(source))
    path = check_path(source, "source")
    return _format(format_of(path) if format is None else format).read(path, options)


def _format(name: str) -> Format:
    return FORMATS[check_choice(name, "format", *sorted(FORMATS))]


def _read_stream(source: Any, format: str | None, options: Options) -> Dataset:
    """Copy an open file to the disk and read the copy, because reading Parquet needs to seek."""
    if format is None:
        expected = f"one of {sorted(FORMATS)}, because the source is an open file"
        raise InputError("format", expected=expected, got="None")
    content = getattr(source, "buffer", source).read()
    content = content.encode() if isinstance(content, str) else content
    if not isinstance(content, bytes):
        raise DTypeError("source", expected="an open file", got=shown(source))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, f"input.{format}")
        path.write_bytes(content)
        try:
            return _format(format).read(str(path), options)
        except InputError as error:  # the error names the copy, so name the source instead
            what = str(error.what).replace(str(path), str(getattr(source, "name", "the open file")))
            raise type(error)(what, expected=error.expected, got=error.got, hint=error.hint) from error
