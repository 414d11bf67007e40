"""Greedy and beam search of transducers, against the probabilities of all texts."""

import numpy as np
import pytest

import varlen_rnn as vr
from tests.oracles import transducer as oracle
from varlen_rnn.nn import TransducerDecoder
from varlen_rnn.nn import functional as F

CLASSES, UNITS = 3, 4
LENGTHS = [2, 0, 1]


class Transducer(vr.nn.Module):
    """A predictor and a joint network; states are a pair of an LSTM, or one array of a GRU."""

    def __init__(self, cls, classes=CLASSES):
        self.table = vr.nn.Embedding(classes, UNITS, dtype=np.float64)
        self.reader = cls(UNITS, UNITS, num_layers=2, dtype=np.float64)
        self.scores = vr.nn.Linear(UNITS, classes, dtype=np.float64)

    def predict(self, labels, states):
        return self.reader(self.table(vr.create_lod_tensor(labels, [[1] * len(labels)])), states)

    def join(self, frames, rows):
        return self.scores(F.tanh(vr.Variable(frames) + rows)) * 3.0

    def log_probs_of(self, frames, blank):
        """Return the function that the oracle asks, one text at a time."""

        def log_probs_of(t, text):
            states = None
            for label in (blank, *text):
                row, states = self.predict(np.array([label]), states)
            return oracle.log_softmax(np.asarray(self.join(frames[t : t + 1], np.asarray(row)))[0])

        return log_probs_of


def case(cls=vr.nn.LSTM, seed=0, lengths=LENGTHS):
    vr.manual_seed(seed)
    rows = np.random.default_rng(seed).standard_normal((sum(lengths), UNITS))
    return Transducer(cls), vr.create_lod_tensor(rows, [lengths])


def decoded(decoder, frames):
    """Return, of each sequence, its texts with their scores."""
    ids, scores = decoder(frames)
    assert ids.lod()[:-1] == scores.lod()
    pairs = zip(ids.value.to_sequences(), scores.value.to_sequences(), strict=True)
    return [[(tuple(text.tolist()), float(score)) for text, score in zip(*pair, strict=True)] for pair in pairs]


@pytest.mark.parametrize(("cls", "blank", "most"), [(vr.nn.LSTM, 0, 2), (vr.nn.GRU, 2, 1)])
def test_a_wide_beam_finds_all_texts_and_greedy_the_best_turns(cls, blank, most):
    model, frames = case(cls)
    decoder = TransducerDecoder(model.predict, model.join, 2000, blank, max_symbols=most)
    of_greedy = decoder.greedy(frames)
    assert of_greedy.lod()[0][-1] == len(of_greedy)
    everything = zip(decoded(decoder, frames), of_greedy.value.to_sequences(), frames.to_sequences(), strict=True)
    for found, text, rows in everything:
        log_probs_of = model.log_probs_of(rows, blank)
        wanted = oracle.texts(log_probs_of, len(rows), blank, most)
        assert len(found) == len(wanted)
        assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
        np.testing.assert_allclose([score for _, score in found], [wanted[text] for text, _ in found], rtol=1e-10)
        assert tuple(text.tolist()) == oracle.greedy(log_probs_of, len(rows), blank, most)


def test_scores_are_those_of_the_loss():
    """If a frame may have more labels than a text has, a score is minus the loss of its text."""
    model, frames = case(lengths=[2])
    text, score = decoded(TransducerDecoder(model.predict, model.join, 3000, max_symbols=5), frames)[0][3]
    words, _ = model.reader(model.table(vr.create_lod_tensor(np.array([0, *text]), [[1 + len(text)]])))
    rows = F.lattice_rows(frames, words)
    logits = model.scores(F.tanh(rows)) * 3.0
    loss = F.transducer_loss(logits, vr.create_lod_tensor(np.array(text, np.int64), [[len(text)]]))
    assert loss.item() == pytest.approx(-score, rel=1e-10)


def test_a_narrow_beam_gives_lower_bounds_and_batch_mates_change_no_bit():
    model, frames = case(lengths=[9, 0, 4, 12])
    decoder = TransducerDecoder(model.predict, model.join, beam_size=3)
    together, greedy = decoded(decoder, frames), decoder.greedy(frames).value.to_sequences()
    wide = decoded(TransducerDecoder(model.predict, model.join, beam_size=30), frames)
    for found, all_texts, text, rows in zip(together, wide, greedy, frames.to_sequences(), strict=True):
        alone = vr.create_lod_tensor(rows, [[len(rows)]])
        assert decoded(decoder, alone) == [found]
        assert np.array_equal(np.asarray(decoder.greedy(alone)), text)
        assert len(found) == min(3, len(all_texts))
        assert found[0][1] <= all_texts[0][1] + 1e-9
    assert together[1] == [((), 0.0)]


def test_levels_above_texts_are_kept_and_no_sequences_are_legal():
    model, frames = case(lengths=[2, 1])
    decoder = TransducerDecoder(model.predict, model.join, beam_size=2)
    nested = vr.LoDTensor(frames.data.astype(np.float32), [[0, 0, 2], [0, 2, 3]])
    ids, scores = TransducerDecoder(model.predict, lambda f, r: model.join(f.astype(float), r), 2)(nested)
    assert ids.lod()[:2] == scores.lod() == [[0, 0, 2], [0, 2, 4]]
    assert scores.dtype == np.float32
    none = vr.LoDTensor(np.zeros((0, UNITS)), [[0]])
    assert decoded(decoder, none) == []
    assert decoder.greedy(none).lod() == [[0]]
    broken = TransducerDecoder(model.predict, lambda f, r: np.full((len(f), 3), np.nan))
    assert decoded(broken, frames) == [[], []]
    assert list(decoder.parameters()) == []


def test_a_text_whose_scores_are_nan_hides_no_other_text():
    """The text (1,), one of two in the beam, has NaN scores; (2, 2) is better than the empty text."""
    after = np.log([[0.001, 0.5, 0.499], [np.nan] * 3, [0.5, 0.1, 0.4]])  # scores after the blank and labels 1 and 2
    decoder = TransducerDecoder(lambda labels, _: (after[labels], None), lambda _, rows: rows, 2)
    texts, probabilities = zip(*decoded(decoder, vr.create_lod_tensor(np.ones((1, 1)), [[1]]))[0], strict=True)
    assert texts == ((2,), (2, 2))
    np.testing.assert_allclose(np.exp(probabilities), [0.499 * 0.5, 0.499 * 0.4 * 0.5])


def without_states(labels, states):
    assert states is None
    return np.ones((len(labels), 2)), None


def joint(frames, rows):
    return np.zeros((len(frames), 3))


FRAMES = vr.create_lod_tensor(np.ones((2, 4)), [[2]])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: TransducerDecoder(3, joint), vr.DTypeError, "predictor: expected a function"),
        (lambda: TransducerDecoder(without_states, joint, 0), vr.InputError, "beam_size"),
        (lambda: TransducerDecoder(without_states, joint, max_symbols=0), vr.InputError, "max_symbols"),
        (lambda: TransducerDecoder(without_states, joint)(FRAMES.data), vr.LoDError, "encoder: expected at least one"),
        (lambda: TransducerDecoder(without_states, joint, blank=3)(FRAMES), vr.ShapeError, "more than 3 classes"),
        (lambda: TransducerDecoder(without_states, lambda f, r: f[0])(FRAMES), vr.ShapeError, "joint: expected shape"),
        (lambda: TransducerDecoder(lambda n, s: n, joint)(FRAMES), vr.ShapeError, "a tuple of rows and states"),
        (lambda: TransducerDecoder(lambda n, s: (n, s), joint)(FRAMES), vr.ShapeError, "a row for each label"),
        (
            lambda: TransducerDecoder(lambda n, s: (np.ones((len(n), 2)), np.ones(3)), joint)(FRAMES),
            vr.ShapeError,
            "texts on the last axis but one",
        ),
    ],
)
def test_errors_say_what_is_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call()
