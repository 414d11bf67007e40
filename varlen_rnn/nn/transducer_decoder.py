"""`TransducerDecoder`, greedy and beam search for the texts of a transducer (RNN-T)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from varlen_rnn.errors import ShapeError, check_callable, check_int
from varlen_rnn.nn.functional import log_softmax
from varlen_rnn.nn.module import Module
from varlen_rnn.rows.checks import as_rows
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of
from varlen_rnn.runtime.device import to_host
from varlen_rnn.tape.checks import check_float, check_lod_level, check_rank
from varlen_rnn.tape.modes import no_grad
from varlen_rnn.tape.spec import describe
from varlen_rnn.tape.variable import Variable, required
from varlen_rnn.typing import Rows

Text = tuple[int, ...]
_States = tuple[np.ndarray, ...] | np.ndarray | None
_NAME = "TransducerDecoder"


class _Read(NamedTuple):
    """The predictor's results after a text: a row `(features,)`, and states `(..., 1, units)`."""

    row: np.ndarray
    states: _States


class _Sequence:
    """The search in one sequence.

    frames : (frames, features)
    beam : {text: log probability of its alignments so far}, the best first
    read : {text: _Read}
    """

    __slots__ = ("beam", "frames", "read")

    def __init__(self, frames: np.ndarray) -> None:
        self.frames = frames
        self.beam: dict[Text, float] = {(): 0.0}
        self.read: dict[Text, _Read] = {}


class TransducerDecoder(Module):
    """Greedy and beam search for the texts of a transducer, as `transducer_loss` trains it.

    Parameters
    ----------
    predictor : callable
        `predictor(labels, states)` returns a row for each text, and the next states.  `labels` is an int64 array of the
        last label of each text, or `blank` for the empty text.  `states` is None for the empty text, otherwise the
        states that the predictor returned: None, an array, or a tuple of arrays.  The last axis but one of an array
        runs over the texts.
    joint : callable
        `joint(frames, rows)` returns scores of classes `(texts, classes)`, from a frame of the encoder and a row of the
        predictor for each text; the search applies the softmax.
    beam_size : int
        The largest number of texts to keep, and to return, per sequence.
    blank : int
    max_symbols : int
        The largest number of labels that a text gets at one frame.

    Raises
    ------
    DTypeError, ShapeError, LoDError, OutOfRangeError

    Notes
    -----
    The score of a text is the logarithm of its probability, a sum over its alignments with at most `max_symbols` labels
    per frame.  It is exact if the beam has room for all texts, otherwise a lower bound.  All sequences of a batch share
    the calls of `predictor` and `joint`; with layers of this library, a text does not depend on other sequences.  The
    search runs on the host, and there is no gradient.  Parameters of `predictor` and `joint` do not become parameters
    of the decoder.

    Examples
    --------
    >>> def predictor(labels, states):
    ...     return np.eye(3)[labels], None
    >>> def joint(frames, rows):  # after label 1 comes label 2, then the blank
    ...     return np.log(frames + rows @ [[0.0, 9.0, 0.0], [0.0, 0.0, 9.0], [9.0, 0.0, 0.0]])
    >>> decoder = TransducerDecoder(predictor, joint, beam_size=4)
    >>> frames = vr.create_lod_tensor(np.ones((1, 3)), [[1]])
    >>> ids, scores = decoder(frames)
    >>> ids.value.to_sequences()[0][0], np.exp(np.asarray(scores)[:1]).round(3)
    (array([1, 2]), array([0.579]))
    >>> decoder.greedy(frames).value.to_sequences()
    [array([1, 2])]

    Source: time-synchronous decoding of Saon, Tüske and Audhkhasi (2020), "Alignment-length synchronous decoding for
    RNN transducer"; the greedy search of Graves (2012), "Sequence transduction with recurrent neural networks".
    """

    def __init__(
        self, predictor: Callable, joint: Callable, beam_size: int = 10, blank: int = 0, *, max_symbols: int = 10
    ) -> None:
        functions = check_callable(predictor, "predictor"), check_callable(joint, "joint")
        self._functions = lambda: functions  # modules among them would become parts of this module
        self.beam_size, self.blank = check_int(beam_size, "beam_size", 1), check_int(blank, "blank", 0)
        self.max_symbols = check_int(max_symbols, "max_symbols", 1)

    def forward(self, encoder: Rows) -> tuple[Variable, Variable]:
        """Return the ids of the best texts of each sequence, best first, and the score of each text.

        Parameters
        ----------
        encoder : Variable, shape `(frames, features)`
            The last LoD level gives the sequences.

        Returns
        -------
        ids : Variable, int64, shape `(ids,)`
            Its LoD has the levels above the last, the texts of each sequence, and the ids of each text.
        scores : Variable, shape `(texts,)`, of the data type of `encoder`
            A sequence without frames has the empty text, with the score 0.
        """
        rows, above, sequences = self._sequences(encoder)
        with no_grad(), np.errstate(invalid="ignore"):  # scores that are NaN leave the beam
            for t in range(max((len(each.frames) for each in sequences), default=0)):
                self._frame([each for each in sequences if t < len(each.frames)], t)
        texts = [text for each in sequences for text in each.beam]
        scores = np.array([score for each in sequences for score in each.beam.values()], rows.dtype)
        counts = np.cumsum([0, *(len(each.beam) for each in sequences)])
        levels = LoD([*above, counts, np.cumsum([0, *map(len, texts)])])
        return Variable(LoDTensor(_ids(texts), levels)), Variable(LoDTensor(scores, LoD([*above, counts])))

    def greedy(self, encoder: Rows) -> Variable:
        """Return the ids of the text that takes the best class at each turn, for each sequence.

        Parameters
        ----------
        encoder : Variable, shape `(frames, features)`

        Returns
        -------
        Variable, int64, shape `(ids,)`, with as many LoD levels as `encoder`
        """
        _, above, sequences = self._sequences(encoder)
        texts: list[Text] = [()] * len(sequences)
        places, emitted = [0] * len(sequences), [0] * len(sequences)
        with no_grad():
            while waiting := [k for k, each in enumerate(sequences) if places[k] < len(each.frames)]:
                asked = [(sequences[k], places[k], texts[k]) for k in waiting]
                for k, log_probs in zip(waiting, self._log_probs(asked), strict=True):
                    best = int(log_probs.argmax())
                    if best == self.blank or emitted[k] == self.max_symbols:
                        places[k], emitted[k] = places[k] + 1, 0
                    else:
                        texts[k], emitted[k] = (*texts[k], best), emitted[k] + 1
        return Variable(LoDTensor(_ids(texts), LoD([*above, np.cumsum([0, *map(len, texts)])])))

    def extra_repr(self) -> str:
        """Return the options as text for `repr`."""
        return f"beam_size={self.beam_size}, blank={self.blank}, max_symbols={self.max_symbols}"

    def _sequences(self, encoder: Rows) -> tuple[np.ndarray, list[np.ndarray], list[_Sequence]]:
        given = required(encoder, f"{_NAME}, encoder")
        spec = describe(given.value)
        check_float(_NAME, encoder=spec)
        check_lod_level(_NAME, "encoder", spec)
        check_rank(_NAME, "encoder", spec, 2)
        *above, offsets = levels_of(given.value.structure)
        rows = to_host(given.value.data)
        return rows, above, [_Sequence(rows[begin:end]) for begin, end in itertools.pairwise(offsets)]

    def _frame(self, sequences: list[_Sequence], t: int) -> None:
        """Read frame t: each text of a beam gets up to `max_symbols` labels, and then the blank."""
        waiting, ended = [each.beam for each in sequences], [dict[Text, float]() for _ in sequences]
        for count in range(self.max_symbols + 1):
            asked = [(each, t, text) for each, texts in zip(sequences, waiting, strict=True) for text in texts]
            if not asked:
                break
            found = iter(self._log_probs(asked))
            for k, texts in enumerate(waiting):
                extended: dict[Text, float] = {}
                for text, score in texts.items():
                    log_probs = next(found) + score
                    ended[k][text] = np.logaddexp(ended[k].get(text, -np.inf), log_probs[self.blank])
                    log_probs[self.blank] = -np.inf
                    for label in np.argsort(-log_probs, kind="stable")[: self.beam_size].tolist():
                        extended[*text, label] = float(log_probs[label])
                kept = [*_best(ended[k], self.beam_size, -np.inf).values()]
                least = kept[-1] if len(kept) == self.beam_size else -np.inf
                # A text below all that the beam keeps cannot enter it: its score only falls.
                waiting[k] = {} if count == self.max_symbols else _best(extended, self.beam_size, least)
        for each, texts in zip(sequences, ended, strict=True):
            each.beam = _best(texts, self.beam_size, -np.inf)
            each.read = {text: each.read[text] for text in each.beam}

    def _log_probs(self, asked: list[tuple[_Sequence, int, Text]]) -> np.ndarray:
        """Return the log probabilities of classes, in float64, after texts at frames: `(texts, classes)`."""
        self._predict([(each, text) for each, _, text in asked if text not in each.read])
        frames = np.stack([each.frames[t] for each, t, _ in asked])
        rows = np.stack([each.read[text].row for each, _, text in asked])
        scores = _array(self._functions()[1](frames, rows), "joint")
        if scores.ndim != 2 or len(scores) != len(asked) or scores.shape[1] <= self.blank:
            expected = f"shape ({len(asked)}, classes), a row for each text, with more than {self.blank} classes"
            raise ShapeError(f"{_NAME}, joint", expected=expected, got=f"shape {scores.shape}")
        return np.asarray(log_softmax(scores.astype(np.float64)))

    def _predict(self, asked: list[tuple[_Sequence, Text]]) -> None:
        """Run the predictor for texts that are one label longer than texts it has read; remember the results."""
        for is_first in (True, False):
            chosen = [(each, text) for each, text in asked if is_first != bool(text)]
            if chosen:
                labels = np.array([text[-1] if text else self.blank for _, text in chosen], np.int64)
                before = [None if is_first else each.read[text[:-1]].states for each, text in chosen]
                for (each, text), read in zip(chosen, self._read(labels, before), strict=True):
                    each.read[text] = read

    def _read(self, labels: np.ndarray, before: list[_States]) -> list[_Read]:
        """Return the predictor's row and states after the last label of each text, given the states before it."""
        found = self._functions()[0](labels, _joined(before))
        if not isinstance(found, tuple) or len(found) != 2:
            raise ShapeError(f"{_NAME}, predictor", expected="a tuple of rows and states", got=type(found).__name__)
        rows, after = _array(found[0], "predictor"), found[1]
        if rows.ndim != 2 or len(rows) != len(labels):
            expected = f"shape ({len(labels)}, features), a row for each label"
            raise ShapeError(f"{_NAME}, predictor", expected=expected, got=f"shape {rows.shape}")
        if after is None:
            return [_Read(row, None) for row in rows]
        is_single = not isinstance(after, (list, tuple))
        arrays = [_array(state, "predictor, states") for state in ([after] if is_single else after)]
        for array in arrays:
            if array.ndim < 2 or array.shape[-2] != len(labels):
                expected = f"{len(labels)} texts on the last axis but one of each state"
                raise ShapeError(f"{_NAME}, predictor", expected=expected, got=f"shape {array.shape}")
        parts = [tuple(array[..., k : k + 1, :] for array in arrays) for k in range(len(rows))]
        return [_Read(row, part[0] if is_single else part) for row, part in zip(rows, parts, strict=True)]


def _joined(states: list[_States]) -> _States:
    """Return the states of several texts as one."""
    given: list[Any] = states
    if given[0] is None or isinstance(given[0], np.ndarray):
        return None if given[0] is None else np.concatenate(given, axis=-2)
    return tuple(np.concatenate(each, axis=-2) for each in zip(*given, strict=True))


def _array(value: Any, name: str) -> np.ndarray:
    """Return the result of a user's function as an array on the host, or raise."""
    value = value.detach() if isinstance(value, Variable) else value
    return to_host(as_rows(value.data if isinstance(value, LoDTensor) else value, f"{_NAME}, {name}"))


def _best(texts: dict[Text, float], count: int, least: float) -> dict[Text, float]:
    """Return the best texts with a score above `least`, best first; texts with probability 0 or NaN are left out."""
    kept = [(text, score) for text, score in texts.items() if score > least]
    return dict(sorted(kept, key=lambda pair: -pair[1])[:count])


def _ids(texts: Iterable[Text]) -> np.ndarray:
    return np.array([label for text in texts for label in text], np.int64)
