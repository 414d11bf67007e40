"""Beam search against a search in Python, the whole tree of texts, and the cases of the original."""

import itertools

import numpy as np
import pytest

import varlen_rnn as vr

END = 0


def searched(before, had, ids, scores, sources, beam, is_accumulated=True):
    """Return, of each hypothesis before, its continuations that are kept: pairs of a symbol and a score."""
    kept = [[] for _ in before]
    for begin, end in itertools.pairwise(sources):
        candidates = []
        for row in range(begin, end):
            if before[row] == END:
                candidates.append((-had[row], row, 0, END))
                continue
            for column, score in enumerate(scores[row]):
                total = score if is_accumulated else had[row] + np.log(score)
                candidates.append((-total, row, column, column if ids is None else ids[row, column]))
        best = sorted(candidates)[:beam]
        if not all(symbol == END and before[row] == END for _, row, _, symbol in best):
            for cost, row, _, symbol in best:
                kept[row].append((symbol, -cost))
    return kept


@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize("accumulated", [True, False])
@pytest.mark.parametrize("sources", [[0, 2, 2, 5], [0, 0, 5], [0, 5, 5], [0, 1, 2, 3, 4, 5]])
def test_equals_a_search_in_python(sources, accumulated, beam):
    rng = np.random.default_rng(beam)
    for has_ids, ended in itertools.product([True, False], [0.0, 0.4, 1.0]):
        before = np.where(rng.random(5) < ended, END, rng.integers(1, 5, 5))
        had, scores = np.round(rng.standard_normal(5), 1), np.round(rng.random((5, 3)), 1) + 0.1
        ids = rng.integers(0, 5, (5, 3)) if has_ids else None
        x = vr.create_lod_tensor(scores, [np.diff(sources)])
        symbols, totals, parents = vr.beam_search(before, had, ids, x, beam, END, is_accumulated=accumulated)
        wanted = searched(before, had, ids, scores, sources, beam, accumulated)
        assert symbols.value.recursive_sequence_lengths() == [np.diff(sources).tolist(), [len(part) for part in wanted]]
        assert totals.lod() == symbols.lod()
        assert np.asarray(symbols).tolist() == [symbol for part in wanted for symbol, _ in part]
        np.testing.assert_array_equal(np.asarray(totals), [score for part in wanted for _, score in part])
        assert np.asarray(parents).tolist() == [row for row, part in enumerate(wanted) for _ in part]


def test_the_case_of_the_original():
    scores = np.array([[0.6, 0.3, 0.5], [0.2, 0.3, 0.1], [0.9, 0.5, 0.1], [0.7, 0.5, 0.1]])
    ids = np.array([[4, 2, 5], [2, 1, 3], [3, 5, 2], [8, 2, 1]])
    x = vr.create_lod_tensor(scores, [[2, 2], [1, 1, 1, 1]])
    symbols, totals, parents = vr.beam_search(np.array([[1], [2], [3], [4]]), np.full((4, 1), 0.1), ids, x, 2, 0)
    assert np.asarray(symbols).tolist() == [4, 5, 3, 8]
    assert np.asarray(parents).tolist() == [0, 0, 2, 3]
    assert symbols.lod() == [[0, 2, 4], [0, 2, 2, 3, 4]]
    assert np.asarray(totals).tolist() == [0.6, 0.5, 0.9, 0.7]


def chances(seed, length=4, symbols=3):
    """Return the probabilities of a symbol after another, at each step, of two sources."""
    p = np.random.default_rng(seed).random((2, length, symbols, symbols)) + 0.05
    return p / p.sum(axis=-1, keepdims=True)


def texts_of(p, length):
    """Return all texts of a source that end, or have all symbols, with the logarithms of their probabilities."""
    found, symbols = {}, p.shape[-1]
    for text in itertools.product(range(symbols), repeat=length):
        cut = text.index(END) + 1 if END in text else length
        before, score = 1, 0.0
        for step, symbol in enumerate(text[:cut]):
            score, before = score + np.log(p[step, before, symbol]), symbol
        found[text[:cut]] = score
    return sorted(found.items(), key=lambda item: -item[1])


@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_finds_the_best_of_all_texts(seed):
    p, length = chances(seed), 4
    ids, scores = [vr.create_lod_tensor(np.ones(2, np.int64), [[1, 1], [1, 1]])], []
    scores.append(ids[0].like(np.zeros(2)))
    beam, source = 100, np.arange(2)
    for step in range(length):
        before = np.asarray(ids[-1])
        following = ids[-1].like(p[source, step, before])
        symbols, totals, parents = vr.beam_search(
            before, np.asarray(scores[-1]), None, following, beam, END, is_accumulated=False
        )
        ids.append(symbols.value)
        scores.append(totals.value)
        source = source[np.asarray(parents)]
    texts, totals = vr.beam_search_decode(ids, scores, beam_size=5, end_id=END)
    for number, (found, of_prefixes) in enumerate(
        zip(texts.value.to_sequences(), totals.value.to_sequences(), strict=True)
    ):
        wanted = texts_of(p[number], length)[:5]
        assert [tuple(text[1:].tolist()) for text in found] == [text for text, _ in wanted]
        np.testing.assert_allclose([score[-1] for score in of_prefixes], [score for _, score in wanted], rtol=1e-12)


def test_decoding_the_steps_of_the_original():
    """Prefixes as in `beam_search_decode_op_test.cc`: hypotheses of both sources end at different steps."""
    lods = [
        [[0, 1, 2], [0, 1, 2]],
        [[0, 1, 2], [0, 1, 4]],
        [[0, 1, 4], [0, 1, 1, 3, 5]],
        [[0, 1, 5], [0, 1, 2, 2, 3, 5]],
        [[0, 1, 5], [0, 0, 0, 1, 1, 2]],
    ]
    values = [[1, 0], [2, 3, 4, 5], [6, 7, 8, 9, 10], [11, 12, 13, 0, 14], [15, 16]]
    ids = [vr.LoDTensor(np.array(part), lod) for part, lod in zip(values, lods, strict=True)]
    scores = [one.like(one.data.astype(np.float64)) for one in ids]
    texts, totals = vr.beam_search_decode(ids, scores, beam_size=3, end_id=99)
    wanted = [walked(ids, source) for source in range(2)]
    assert [[text.tolist() for text in found] for found in texts.value.to_sequences()] == wanted
    assert totals.lod() == texts.lod()
    np.testing.assert_array_equal(np.asarray(totals), np.asarray(texts).astype(np.float64))


def walked(ids, source):
    """Return the texts of a source, symbol by symbol from the last step that has some."""
    last = max(step for step, one in enumerate(ids) if one.slice(0, source, source + 1).data.size)
    found = []
    for row in range(*np.asarray(ids[last].absolute_lod()[0])[source : source + 2]):
        text, at = [], row
        for step in range(last, -1, -1):
            text.append(int(ids[step].data[at]))
            at = next(k for k, (a, b) in enumerate(itertools.pairwise(ids[step].lod()[1])) if a <= at < b)
        found.append(text[::-1])
    return sorted(found, key=lambda text: -text[-1])


def test_an_end_is_kept_once():
    steps = [([5], [[0, 1], [0, 1]]), ([END, 2], [[0, 1], [0, 2]]), ([END, 3], [[0, 2], [0, 1, 2]])]
    ids = [vr.LoDTensor(np.array(part), lod) for part, lod in steps]
    scores = [one.like(np.linspace(-1.0, -2.0, len(one.data))) for one in ids]
    texts, _ = vr.beam_search_decode(ids, scores, 4, END)
    assert [text.tolist() for text in texts.value.to_sequences()[0]] == [[5, END], [5, 2, 3]]


def test_sources_without_texts_and_none_at_all():
    empty = vr.LoDTensor(np.zeros(0, np.int64), [[0, 0], [0]])
    texts, _ = vr.beam_search_decode([empty], [empty.like(np.zeros(0))], 2, END)
    assert texts.lod() == [[0, 0], [0]]
    nobody = vr.create_lod_tensor(np.zeros((0, 3)), [[]])
    symbols, *_ = vr.beam_search(np.zeros(0, np.int64), np.zeros(0), None, nobody, 2, END)
    assert symbols.lod() == [[0], [0]]


X = vr.create_lod_tensor(np.ones((3, 2)), [[1, 2]])
IDS, HAD = np.array([1, 2, 3]), np.zeros(3)
ONE = vr.LoDTensor(np.array([1, 2]), [[0, 1], [0, 2]])
WRONG = {
    "no LoD": (lambda: vr.beam_search(IDS, HAD, None, np.ones((3, 2)), 2, 0), vr.LoDError, "a LoD with level 0"),
    "level": (lambda: vr.beam_search(IDS, HAD, None, X, 2, 0, level=1), vr.LoDError, "a LoD with level 1"),
    "beam": (lambda: vr.beam_search(IDS, HAD, None, X, 0, 0), vr.OutOfRangeError, "beam_size: expected at least 1"),
    "rows": (lambda: vr.beam_search(IDS[:2], HAD, None, X, 2, 0), vr.ShapeError, "pre_ids"),
    "end": (lambda: vr.beam_search(IDS, HAD, None, X, 2, 2**63), vr.OutOfRangeError, "end_id: expected a number"),
    "ids": (lambda: vr.beam_search(IDS, HAD, IDS, X, 2, 0), vr.ShapeError, "beam_search, ids"),
    "types": (lambda: vr.beam_search(HAD, HAD, None, X, 2, 0), vr.DTypeError, "pre_ids: expected integers"),
    "no steps": (lambda: vr.beam_search_decode([], [], 2, 0), vr.ShapeError, "at least one step"),
    "another chain": (
        lambda: vr.beam_search_decode([ONE, ONE], [ONE.like(HAD[:2])] * 2, 2, 0), vr.LoDError, "2 sequences, one per",
    ),
    "one level": (lambda: vr.beam_search_decode([X.like(IDS)], [X.like(HAD)], 2, 0), vr.LoDError, "expected 2 levels"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_told(call, error, message):
    with pytest.raises(error, match=message):
        call()
