"""Features of texts, tokens and ids for a linear model: n-grams of words and characters, weighted by tf-idf."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer

from varlen_rnn.sklearn.inputs import Inputs
from varlen_rnn.sklearn.restored import finite_of, texts_of

_MOST = 60_000  # the most n-grams of each kind (words, characters, tokens)


def _as_it_is(tokens: list[str]) -> list[str]:
    return tokens


def _vectorizers(kind: str, **options: Any) -> dict[str, TfidfVectorizer]:
    """Return vectorizers by name: for texts, "words" and "characters" (inside words); otherwise only "tokens"."""
    options |= {"sublinear_tf": True, "dtype": np.float32, "max_features": _MOST}
    if kind != "texts":
        return {
            "tokens": TfidfVectorizer(
                tokenizer=_as_it_is, preprocessor=_as_it_is, token_pattern=None, ngram_range=(1, 3), **options
            )
        }
    return {
        "words": TfidfVectorizer(token_pattern=r"\w+|[^\w\s]", ngram_range=(1, 2), **options),
        "characters": TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), **options | {"min_df": 2}),
    }


class Text(np.ndarray):
    """The ids of a text's tokens, with the text itself: n-grams also use words that have no id.

    Attributes
    ----------
    text : str or None
        None for a slice of the ids.
    """

    text: str | None = None

    @classmethod
    def of(cls, ids: np.ndarray, text: str) -> Text:
        """Return ids with the text that they come from."""
        found = ids.view(cls)
        found.text = text
        return found


class TextFeatures:
    """Compute the weights of the n-grams in sequences of ids; `inputs` has the token of each id."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.vectorizers: dict[str, TfidfVectorizer] = {}

    def fit(self, sequences: list[np.ndarray], rng: np.random.Generator) -> None:
        """Learn the n-grams and their weights."""
        self._learn(sequences)

    def _learn(self, sequences: list[np.ndarray]) -> None:
        texts = self._texts(sequences)
        for name, vectorizer in _vectorizers(self.inputs.kind).items():
            try:
                self.vectorizers[name] = vectorizer.fit(texts)
            except ValueError:  # raised if no text has a token
                continue

    def extend(self, sequences: list[np.ndarray]) -> None:
        """Learn the n-grams and their weights anew, from more sequences."""
        self._learn(sequences)

    def choices(self, features: Any) -> Iterator[tuple[Any, Any]]:
        """Yield the only choice: all features."""
        yield None, features

    def factors(self, choice: Any) -> None:
        """Return None, because features are not scaled."""

    def choose(self, choice: Any) -> None:
        """Choose nothing, because there is only one choice."""

    def transform(self, sequences: list[np.ndarray]) -> Any:
        """Return the weights of n-grams, a sparse array of shape `(sequences, features)`."""
        texts = self._texts(sequences)
        parts = [vectorizer.transform(texts) for vectorizer in self.vectorizers.values()]
        constant = sparse.csr_array(np.ones((len(texts), 1), np.float32))  # so that texts without tokens have a feature
        return sparse.csr_array(sparse.hstack([constant, *parts]))

    def state(self) -> tuple[dict[str, np.ndarray], Any]:
        """Return the weights of the n-grams by kind, and the n-grams by kind, in the order of features, for JSON."""
        arrays = {name: np.asarray(vectorizer.idf_) for name, vectorizer in self.vectorizers.items()}
        return arrays, {
            name: vectorizer.get_feature_names_out().tolist() for name, vectorizer in self.vectorizers.items()
        }

    def restore(self, arrays: dict[str, np.ndarray], values: Any) -> None:
        """Restore the result of `state`, or raise unless each n-gram has a weight."""
        for name in _vectorizers(self.inputs.kind):
            if name in values:
                names = texts_of(values[name], f"n-grams of {name}")
                self.vectorizers[name] = _vectorizers(self.inputs.kind, vocabulary=names)[name]
                self.vectorizers[name].idf_ = finite_of(arrays, name, (len(names),))

    @property
    def width(self) -> int:
        """The number of columns of the result of `transform`."""
        return 1 + sum(len(vectorizer.vocabulary_) for vectorizer in self.vectorizers.values())

    def _texts(self, sequences: list[np.ndarray]) -> list[Any]:
        """Return texts, or lists of tokens; tokens that the training did not have are left out."""
        if self.inputs.kind == "ids":
            return [[str(number) for number in sequence] for sequence in sequences]
        vocabulary = ["", *self.inputs.vocabulary[1:]]
        between = "" if self.inputs.cut == "characters" else " "

        def text_of(sequence: np.ndarray) -> Any:
            if (text := getattr(sequence, "text", None)) is not None:
                return text
            tokens = [vocabulary[number] for number in sequence if number]
            return tokens if self.inputs.kind == "tokens" else between.join(tokens)

        return list(map(text_of, sequences))
