"""`Dataset`: sequences, their labels, the vocabulary of their token ids, and the names of their classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sized

import numpy as np
from numpy.typing import ArrayLike

from varlen_rnn.data.vocabulary import TOKENS, encode_all, split_text
from varlen_rnn.errors import (
    SHARE,
    DTypeError,
    InputError,
    ShapeError,
    check_choice,
    check_flag,
    check_int,
    check_list,
    check_number,
    shown,
)
from varlen_rnn.rows.checks import as_indices, check_unmasked


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Sequences with labels, a vocabulary and classes.

    Attributes
    ----------
    name : str
        The source of the sequences; data sets that come with Python add the version that determines their content.
    sequences : list of array
        Token ids, int64 of shape `(tokens,)`, or measurements, floats of shape `(rows, features)`.
    labels : array, list or None
        For one class per sequence, indices into `classes`, int64 of shape `(num_sequences,)`.  For several classes,
        float32 of shape `(num_sequences, classes)` with 1 for each class of a sequence.  For numbers, float32 of shape
        `(num_sequences,)` or `(num_sequences, targets)`.  For labels of rows, a list with one array per sequence.
    vocabulary : list of str
        The token of each id; id 0 is "<unk>", for unknown tokens and padding.  Empty for measurements.
    classes : list of str
        The name of each class; empty for labels that are numbers.
    tokens : str
        How a text is divided into tokens: "characters", "words", or "list" if tokens were given as lists.
    features : tuple of str
        The names of the features of a row, or of the steps in a wide file, if the file has names.
    ids : tuple of str
        The id of each sequence in a file of time series.

    Examples
    --------
    >>> data = Dataset("two", [np.array([1, 2]), np.array([2])], np.array([0, 1]), ["<unk>", "a", "b"], ["x", "y"])
    >>> data
    Dataset two: 2 sequences of 1 to 2 tokens, median 1.5; vocabulary of 3; 2 classes
    >>> data.encode("bad")
    array([2, 1, 0])
    """

    name: str
    sequences: list[np.ndarray]
    labels: np.ndarray | list | None
    vocabulary: list[str]
    classes: list[str]
    tokens: str = "characters"
    features: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        if "__getitem__" in vars(cls):  # as data sets for PyTorch do
            hint = "without a data set: data.batches(sequences, labels, batch_size=32) takes lists and arrays"
            expected = "an object Dataset(name, sequences, labels, vocabulary, classes)"
            raise DTypeError("a data set", expected=expected, got="a subclass that defines __getitem__", hint=hint)

    def __post_init__(self) -> None:
        for name in ("sequences", "vocabulary", "classes"):
            if not isinstance(getattr(self, name), list):
                object.__setattr__(self, name, check_list(getattr(self, name), name))
        if not isinstance(self.labels, (list, np.ndarray, type(None))):
            object.__setattr__(self, "labels", check_list(self.labels, "labels"))
        check_unmasked(self.labels, "labels")
        for name, entries in (("name", [self.name]), ("vocabulary", self.vocabulary), ("classes", self.classes)):
            for number, entry in enumerate(entries):
                if not isinstance(entry, str):
                    raise DTypeError(f"{name}, entry {number}", expected="a text", got=shown(entry))
        check_choice(self.tokens, "tokens", *TOKENS)
        for number, sequence in enumerate(self.sequences):
            if not _has_length(sequence):
                raise DTypeError(f"sequences, entry {number}", expected="an array or a list", got=shown(sequence))
        if self.labels is not None and not (_has_length(self.labels) and len(self.labels) == len(self)):
            raise ShapeError("labels", expected=f"{len(self)} labels, one per sequence", got=shown(self.labels))

    @property
    def lengths(self) -> np.ndarray:
        """The length of each sequence, int64, shape `(num_sequences,)`."""
        return np.fromiter(map(len, self.sequences), np.int64, len(self))

    @property
    def label_kind(self) -> str | None:
        """The kind of the labels, or None: "[several ]classes", "numbers", "classes of rows" or "numbers of rows".

        Examples
        --------
        >>> Dataset("one", [np.array([1])], np.array([0.5]), ["<unk>", "a"], []).label_kind
        'numbers'
        """
        if self.labels is None:
            return None
        kind = np.asarray(self.labels[0]).dtype.kind if len(self.labels) else "i"
        if isinstance(self.labels, list) and any(np.ndim(label) for label in self.labels):
            kind = next((np.asarray(label).dtype.kind for label in self.labels if np.size(label)), "i")
            return "numbers of rows" if kind == "f" else "classes of rows"
        if np.ndim(self.labels) == 2 and self.classes:
            return "several classes"
        return "numbers" if kind == "f" else "classes"

    def encode(self, text: str | Iterable[str]) -> np.ndarray:
        """Return the token ids of a text or of a list of tokens, int64, shape `(tokens,)`; an unknown token is 0.

        Raises
        ------
        InputError
            If the data set has no vocabulary, or `text` is a str although the data set's tokens were given as lists.

        Examples
        --------
        >>> data = Dataset("words", [], None, ["<unk>", "the", "cat"], [], "words")
        >>> data.encode("The black cat!"), data.encode(["cat", "The"])
        (array([1, 0, 2]), array([2, 0]))
        """
        if not self.vocabulary:
            raise InputError("encode", expected="a data set with a vocabulary", got=f"rows of numbers in {self.name}")
        if isinstance(text, str):
            if self.tokens == "list":
                hint = "divide the text into tokens yourself, because this data set was made of lists of tokens"
                raise DTypeError("encode", expected="a list of tokens", got=shown(text), hint=hint)
            text = split_text(text, self.tokens)
        else:
            text = check_list(text, "encode", "a text or a list of strings")
            wrong = [token for token in text if not isinstance(token, str)]
            if wrong:
                raise DTypeError("encode", expected="a text or a list of strings", got=shown(wrong[0]))
        return encode_all([text], self.vocabulary)[0]

    def take(self, indices: ArrayLike, name: str | None = None) -> Dataset:
        """Return a data set of the chosen sequences, in the given order, with the same vocabulary and classes.

        Parameters
        ----------
        indices : array_like of int or of bool
            Negative indices count from the end.  With bools, one per sequence, the sequences marked True are taken.
        name : str, optional

        Raises
        ------
        DTypeError, ShapeError, OutOfRangeError
            If `indices` are not int or bool, or an index is out of range.

        Examples
        --------
        >>> data = Dataset("three", [np.array([k]) for k in range(3)], np.array([0, 1, 0]), ["<unk>"], ["x", "y"])
        >>> data.take([2, 1]).labels
        array([0, 1])
        """
        indices, labels = as_indices(indices, len(self), "take, indices"), self.labels
        if labels is not None:
            is_array = isinstance(labels, np.ndarray)
            labels = labels[indices].view() if is_array else [labels[index] for index in indices]
        sequences = [self.sequences[index] for index in indices]
        ids = tuple(self.ids[index] for index in indices) if self.ids else ()
        name = self.name if name is None else name
        return dataclasses.replace(self, name=name, sequences=sequences, labels=labels, ids=ids)

    def split(
        self, test_fraction: float = 0.1, seed: int = 0, stratify: bool = False, groups: ArrayLike | None = None
    ) -> tuple[Dataset, Dataset]:
        """Return a training and a test set, both in random order; every sequence is in exactly one of them.

        Parameters
        ----------
        test_fraction : float
            The share of sequences in the test set, 0 to 1.
        seed : int
            The same seed gives the same split.
        stratify : bool
            Whether to give both sets about the same share of each class.  A class with two or more sequences then has
            at least one in each set, unless `test_fraction` is 0 or 1.
        groups : array, shape `(num_sequences,)`, optional
            The group of each sequence, such as a person.  All sequences of a group go to the same set, so the size of
            the test set is only approximate.

        Examples
        --------
        >>> data = Dataset("ten", [np.array([k]) for k in range(10)], None, ["<unk>"], [])
        >>> train, test = data.split(0.2)
        >>> len(train), len(test)
        (8, 2)
        """
        test_fraction = check_number(test_fraction, "test_fraction", *SHARE)
        order = np.random.default_rng(check_int(seed, "seed", 0)).permutation(len(self))
        stratify = check_flag(stratify, "stratify")
        if groups is not None and stratify:
            raise InputError("split", expected="stratify or groups", got="both")
        if stratify:
            held = self._of_each_class(order, test_fraction)
        elif groups is not None:
            held = self._of_groups(order, test_fraction, groups)
        else:
            held = np.arange(len(self)) < round(len(self) * test_fraction)
        return self.take(order[~held], f"{self.name}, train"), self.take(order[held], f"{self.name}, test")

    def _of_each_class(self, order: np.ndarray, share: float) -> np.ndarray:
        """Return a mask of the positions in `order` that go to the test set: the given share of each class."""
        if self.label_kind != "classes":
            raise InputError("split, stratify", expected="labels that are classes", got=str(self.label_kind))
        labels, held = np.asarray(self.labels)[order], np.zeros(len(self), bool)
        for name in np.unique(labels):
            places = np.flatnonzero(labels == name)
            number = round(len(places) * share)
            if 0 < share < 1 and len(places) > 1:
                number = min(max(number, 1), len(places) - 1)
            held[places[:number]] = True
        return held

    def _of_groups(self, order: np.ndarray, share: float, groups: ArrayLike) -> np.ndarray:
        """Return a mask of the positions in `order` that go to the test set.

        Groups go to the test set as a whole, in the order in which they first occur, until it has its share.
        """
        try:
            given = np.asarray(groups)
        except (ValueError, TypeError, RecursionError) as error:
            raise ShapeError("split, groups", expected="an array", got=shown(groups)) from error
        if given.dtype.kind == "O":
            raise DTypeError("split, groups", expected="numbers or texts", got=shown(groups))
        if given.shape != (len(self),):
            raise ShapeError("split, groups", expected=f"shape ({len(self)},)", got=f"shape {given.shape}")
        _, first, group, sizes = np.unique(given[order], return_index=True, return_inverse=True, return_counts=True)
        by_place = np.argsort(first)
        before = np.cumsum(sizes[by_place]) - sizes[by_place]
        return np.isin(group, by_place[before < round(len(self) * share)])

    def __len__(self) -> int:
        return len(self.sequences)

    def __repr__(self) -> str:
        unit = "token" if self.vocabulary else "row"
        parts = [f"Dataset {self.name}: {len(self)} sequences"]
        if len(self):
            lengths = self.lengths
            parts[0] += f" of {lengths.min()} to {lengths.max()} {unit}s, median {np.median(lengths):g}"
        if self.vocabulary:
            parts.append(f"vocabulary of {len(self.vocabulary)}")
        if self.labels is None:
            parts.append("no labels")
        else:
            kind = f"{len(self.classes)} classes" if self.classes else "labels that are numbers"
            parts.append(kind + " of rows" * str(self.label_kind).endswith(" of rows"))
        return "; ".join(parts)


def _has_length(value: object) -> bool:
    return value.ndim > 0 if isinstance(value, np.ndarray) else isinstance(value, Sized)
