"""Read your own data: texts in memory, JSON Lines files and CSV files.

A sequence is a text, a list of strings (tokens), a list of numbers, or a list of equally long lists of numbers.
Files must be UTF-8, with or without a byte order mark.  Errors name file, line and field.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import numpy as np

from varlen_rnn.data.dataset import Dataset
from varlen_rnn.data.entries import dataset_of, read_entries
from varlen_rnn.data.missing import Missing
from varlen_rnn.data.options import Options, documented
from varlen_rnn.data.text_files import parse_csv, parse_jsonl
from varlen_rnn.errors import InputError, check_list, check_path, count
from varlen_rnn.rows.checks import check_unmasked
from varlen_rnn.typing import StrPath

Tokens: TypeAlias = Literal["characters", "words", "list", "auto"]


@documented
def from_texts(
    texts: Iterable[str | Sequence[str]],
    labels: Iterable[str | int] | np.ndarray | None = None,
    *,
    vocabulary: Sequence[str] | None = None,
    classes: Iterable[str] | None = None,
    tokens: Tokens = "characters",
    min_count: int = 1,
    max_vocabulary: int | None = None,
    label_kind: str | None = None,
    missing: Missing = "error",
    name: str = "texts",
) -> Dataset:
    """Return a Dataset of texts and their labels.

    Parameters
    ----------
    texts : sequence of str, or of lists of str
        A list of strings is a list of tokens.
    labels : sequence, optional
        One label per text.  A str, int or bool is a class, a float is a number.  A list with one entry per token labels
        the tokens; any other list of str means several classes, any other list of numbers several targets.
    tokens : "characters", "words" or "auto"
        How a text is divided into tokens; words are in lower case and without punctuation.  "auto" means words if the
        median text has at least ten words, otherwise characters.
    {vocabulary classes min_count max_vocabulary label_kind missing}
    name : str
        The name of the data set.

    Raises
    ------
    InputError
        If an entry is invalid; the error names the entry, the expected and the actual value.

    Examples
    --------
    >>> data = from_texts(["Good food", "bad"], ["yes", "no"], tokens="words")
    >>> data.vocabulary, data.classes, data.labels
    (['<unk>', 'bad', 'food', 'good'], ['no', 'yes'], array([1, 0]))
    """
    options = Options(
        tokens=tokens, vocabulary=vocabulary, classes=classes, min_count=min_count, max_vocabulary=max_vocabulary,
        label_kind=label_kind, missing=missing,
    )  # fmt: skip
    texts = check_list(texts, "texts", "a list of texts")
    if labels is not None:
        check_unmasked(labels, "labels")
        values = [value.item() if isinstance(value, np.generic) else value for value in check_list(labels, "labels")]
        if len(values) != len(texts):
            raise InputError("labels", expected=f"{count(len(texts), 'label')}, one per text", got=len(values))
    places = lambda number: f"texts, entry {number}", lambda number: f"labels, entry {number}"
    return dataset_of(name, texts, None if labels is None else values, *places, options)


@documented
def read_jsonl(
    path: StrPath,
    sequence: str = "text",
    label: str | None = "label",
    *,
    tokens: Tokens = "characters",
    vocabulary: Sequence[str] | None = None,
    classes: Iterable[str] | None = None,
    min_count: int = 1,
    max_vocabulary: int | None = None,
    label_kind: str | None = None,
    missing: Missing = "error",
    dtype: Literal["float32", "float64"] = "float32",
) -> Dataset:
    r"""Return the Dataset of a JSON Lines file, which has one JSON object per line.

    Parameters
    ----------
    path : path
    sequence : str
        The field that holds the sequence: a string, a list of strings, a list of numbers (rows of one feature)
        or a list of equally long lists of numbers (rows).  It must be of the same kind on every line.
    label : str or None
        The field that holds the label; None if there is none.
    tokens : "characters", "words", "list" or "auto"
        As in `from_texts`.
    {vocabulary classes min_count max_vocabulary label_kind missing dtype}

    Raises
    ------
    InputError
        If the file has an invalid value; the error names file, line and field, the expected and the actual value.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "walks.jsonl")
    >>> _ = path.write_text('{"x": [[0, 1], [2, 3]], "label": "up"}\n{"x": [[4, 5]], "label": "down"}\n')
    >>> read_jsonl(path, "x")
    Dataset walks.jsonl: 2 sequences of 1 to 2 rows, median 1.5; 2 classes
    """
    options = Options(
        sequence=sequence, label=label, tokens=tokens, vocabulary=vocabulary, classes=classes, min_count=min_count,
        max_vocabulary=max_vocabulary, label_kind=label_kind, missing=missing, dtype=dtype,
    )  # fmt: skip
    return read_entries(parse_jsonl(check_path(path, "path"), options), options)


@documented
def read_csv(
    path: StrPath,
    sequence: str = "text",
    label: str | None = "label",
    *,
    tokens: Tokens = "characters",
    vocabulary: Sequence[str] | None = None,
    classes: Iterable[str] | None = None,
    min_count: int = 1,
    max_vocabulary: int | None = None,
    delimiter: str = ",",
    label_kind: str | None = None,
    missing: Missing = "error",
) -> Dataset:
    r"""Return the Dataset of a CSV file whose first line names the fields.

    Parameters
    ----------
    path : path
    sequence : str
        The field that holds the sequence, a text.
    label : str or None
        The field that holds the label; None if there is none.
    tokens : "characters", "words", "list" or "auto"
        As in `from_texts`; "list" reads a text as a JSON list of strings or numbers, such as `[1.5, 2]`.
    delimiter : str
        The character between fields.
    {vocabulary classes min_count max_vocabulary label_kind missing}

    Raises
    ------
    InputError
        If the file has an invalid value; the error names file, line and field, the expected and the actual value.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "reviews.csv")
    >>> _ = path.write_text('text,label\n"good, cheap",1\nbad,0\n')
    >>> read_csv(path, tokens="words").labels
    array([1, 0])
    """
    options = Options(
        sequence=sequence, label=label, tokens=tokens, vocabulary=vocabulary, classes=classes, min_count=min_count,
        max_vocabulary=max_vocabulary, delimiter=delimiter, label_kind=label_kind, missing=missing,
    )  # fmt: skip
    return read_entries(parse_csv(check_path(path, "path"), options), options)
