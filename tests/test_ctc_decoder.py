"""CTC beam search with a language model and hot words, against the scores of all texts."""

import numpy as np
import pytest

import varlen_rnn as vr
from tests.oracles import decoding as oracle
from varlen_rnn.nn import CTCDecoder
from varlen_rnn.nn import functional as F

CLASSES = 4


def steps_of(lengths, classes=CLASSES, dtype=np.float64, seed=0):
    logits = np.random.default_rng(seed).standard_normal((sum(lengths), classes))
    return vr.create_lod_tensor(np.asarray(F.log_softmax(logits)).astype(dtype), [lengths])


def by_labels(labels):
    """Return scores that depend on all labels before; some labels are forbidden."""
    scores = np.log(np.random.default_rng([7, *labels]).dirichlet(np.ones(CLASSES)))
    return np.where((np.arange(CLASSES) == 2) & (len(labels) == 1), -np.inf, scores)


def by_words(words, word):
    if word == (3, 1):
        return -np.inf
    return -np.random.default_rng([len(words), *sum(words[-1:], ()), *(word or (9,))]).exponential()


def decoded(steps, **options):
    """Return, of each sequence, its texts with their scores."""
    ids, scores = CTCDecoder(**options)(steps)
    assert ids.lod()[:-1] == scores.lod()
    pairs = zip(ids.value.to_sequences(), scores.value.to_sequences(), strict=True)
    return [[(tuple(text.tolist()), float(score)) for text, score in zip(*pair, strict=True)] for pair in pairs]


OPTIONS = [
    {"scorer": by_labels, "lm_weight": 0.7, "word_score": 0.3},
    {"scorer": by_words, "lm_weight": 1.5, "word_score": -0.4, "boundary": 2},
    {"hotwords": [[1, 2], [1, 2, 1], [3], [1, 1]], "hotword_weight": 2.0},
    {"hotwords": [[1], [1, 3], [1, 2, 3], [1, 2, 1]], "hotword_weight": 2.0, "boundary": 2},
    {"scorer": by_words, "word_score": 1.0, "boundary": 1, "hotwords": [[3, 2], [3]], "hotword_weight": -1.0},
    {"word_score": 0.5, "boundary": 1},
    {},
]


@pytest.mark.parametrize("blank", [0, 3])
@pytest.mark.parametrize("case", range(len(OPTIONS)))
def test_a_wide_beam_finds_all_texts_and_their_scores(case, blank):
    options, steps = OPTIONS[case], steps_of([4, 0, 6, 1])
    if blank == 3:  # which these words have
        options = options | {"hotwords": [w for w in options.get("hotwords", []) if blank not in w]}
    known = {"weight" if key == "hotword_weight" else key: value for key, value in options.items()}
    for found, rows in zip(decoded(steps, beam_size=2000, blank=blank, **options), steps.to_sequences(), strict=True):
        wanted = oracle.fused_texts(rows, blank, **({"weight": 10.0} | known))
        assert len(found) == len(wanted)
        assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
        np.testing.assert_allclose([score for _, score in found], [wanted[text] for text, _ in found], rtol=1e-11)


def test_without_a_scorer_it_is_the_search_of_the_operator():
    steps = steps_of([40, 0, 25, 3], dtype=np.float32)
    ids, scores = vr.ctc_beam_search_decoder(steps, 5)
    for one, two in zip(CTCDecoder(5)(steps), (ids, scores), strict=True):
        assert (one.dtype, one.lod()) == (two.dtype, two.lod())
        assert np.array_equal(np.asarray(one), np.asarray(two))


@pytest.mark.parametrize("case", range(len(OPTIONS)))
def test_batch_mates_change_no_bit(case):
    steps = steps_of([30, 3, 0, 20], dtype=np.float32)
    together = decoded(steps, beam_size=6, **OPTIONS[case])
    for found, rows in zip(together, steps.to_sequences(), strict=True):
        assert decoded(vr.create_lod_tensor(rows, [[len(rows)]]), beam_size=6, **OPTIONS[case]) == [found]


def test_a_beginning_keeps_a_hot_word_in_a_narrow_beam():
    """After two steps of three, the beginning of the hot word is less probable than other prefixes."""
    steps = vr.create_lod_tensor(np.log([[0.02, 0.6, 0.28, 0.1], [0.02, 0.6, 0.28, 0.1], [0.1, 0.1, 0.2, 0.6]]), [[3]])
    assert decoded(steps, beam_size=1)[0][0][0] == (1, 3)
    assert decoded(steps, beam_size=1, hotwords=[[2, 1, 3]], hotword_weight=6.0)[0][0][0] == (2, 1, 3)


def test_a_scorer_may_return_a_variable_that_requires_a_gradient():
    scores = np.log([0.1, 0.2, 0.3, 0.4])
    with_a_gradient = vr.Variable(scores, requires_grad=True)
    assert decoded(STEPS, scorer=lambda labels: with_a_gradient) == decoded(STEPS, scorer=lambda labels: scores)


def test_levels_above_texts_are_kept_and_no_sequences_are_legal():
    steps = vr.LoDTensor(steps_of([2, 1]).data, [[0, 0, 2], [0, 2, 3]])
    ids, scores = CTCDecoder(2)(steps)
    assert ids.lod()[:2] == scores.lod() == [[0, 0, 2], [0, 2, 4]]
    assert decoded(steps_of([])) == []
    assert decoded(vr.create_lod_tensor(np.full((2, 3), np.nan), [[2]])) == [[]]


STEPS = steps_of([2, 3])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: CTCDecoder(0), vr.InputError, "beam_size"),
        (lambda: CTCDecoder(2**17)(STEPS), vr.OutOfRangeError, "beam_size: expected 1 to 65536"),
        (lambda: CTCDecoder(blank=4)(STEPS), vr.OutOfRangeError, "blank: expected a class, 0 to 3, got 4"),
        (lambda: CTCDecoder(scorer=3), vr.DTypeError, "scorer: expected a function"),
        (lambda: CTCDecoder(scorer=lambda labels: np.zeros(3))(STEPS), vr.ShapeError, r"scorer: expected .* \(4,\)"),
        (
            lambda: CTCDecoder(scorer=lambda labels: np.full(4, np.nan))(STEPS),
            vr.OutOfRangeError,
            "scorer: expected log",
        ),
        (lambda: CTCDecoder(scorer=lambda a, b: np.inf, boundary=1)(STEPS), vr.OutOfRangeError, "scorer: expected log"),
        (lambda: CTCDecoder(scorer=lambda labels: "a")(STEPS), vr.DTypeError, "scorer: expected numbers"),
        (lambda: CTCDecoder(lm_weight=np.nan), vr.InputError, "lm_weight: expected a finite number"),
        (lambda: CTCDecoder(hotwords=[[1, 0]]), vr.OutOfRangeError, "hotwords: expected labels except the blank"),
        (lambda: CTCDecoder(hotwords=[[]]), vr.OutOfRangeError, "hotwords: expected labels except the blank"),
        (lambda: CTCDecoder(hotwords=[[4]])(STEPS), vr.OutOfRangeError, "classes 0 to 3 as boundary and in hotwords"),
        (lambda: CTCDecoder(boundary=2, hotwords=[[1, 2]]), vr.OutOfRangeError, "hotwords: expected labels except"),
        (lambda: CTCDecoder()(STEPS.data), vr.LoDError, "log_probs: expected at least one level"),
    ],
)
def test_errors_say_what_is_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call()
