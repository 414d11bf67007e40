"""The rows of each label in forced alignments of CTC: enumeration of all paths, laws, troubles and errors."""

import numpy as np
import pytest

import varlen_rnn as vr
from tests.in_threads import on_threads
from tests.oracles import decoding as oracle
from varlen_rnn.kernels.alignment import MOVES, SCORES, align_texts, table_of_texts
from varlen_rnn.nn import functional as F


def steps_of(lengths, classes=3, dtype=np.float64, seed=0):
    logits = np.random.default_rng(seed).standard_normal((sum(lengths), classes))
    return vr.create_lod_tensor(np.asarray(F.log_softmax(2 * logits)).astype(dtype), [lengths])


def wanted(rows, texts, blank):
    """Return the begins and ends of each text in order, -1 for the labels of a text without an alignment."""
    found = [oracle.aligned(rows, text, blank) or ([-1] * len(text),) * 2 for text in texts]
    return [list(begins) for begins, _ in found], [list(ends) for _, ends in found]


def nested(ids):
    return [[text.tolist() for text in texts] for texts in ids.to_sequences()]


@pytest.mark.parametrize("blank", [0, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_text_of_a_beam_is_aligned_as_enumeration_aligns_it(blank, dtype):
    steps = steps_of([4, 0, 6, 1, 5], dtype=dtype)
    ids, _ = vr.ctc_beam_search_decoder(steps, 12, blank)
    begins, ends = vr.ctc_forced_align(steps, ids, blank)
    assert begins.lod() == ends.lod() == ids.lod()
    for rows, *found in zip(steps.to_sequences(), *(nested(x.value) for x in (ids, begins, ends)), strict=True):
        assert tuple(found[1:]) == wanted(rows.astype(float), found[0], blank)


@pytest.mark.parametrize("lengths", [[4, 0, 7, 1], [0, 0], [0, 3, 0], [], [5]], ids=str)
def test_greedy_texts_begin_where_the_best_path_begins_them(lengths):
    steps = steps_of(lengths, seed=3)
    ids = vr.ctc_greedy_decoder(steps)
    begins, ends = vr.ctc_forced_align(steps, ids)
    read = []
    for rows in steps.to_sequences():
        path = np.argmax(rows, axis=1).tolist()
        runs = [n for n, c in enumerate(path) if c and (n == 0 or c != path[n - 1])]
        read.append((runs, [next((m for m in range(n, len(path)) if path[m] != path[n]), len(path)) for n in runs]))
    assert [x.tolist() for x in begins.value.to_sequences()] == [first for first, _ in read]
    assert [x.tolist() for x in ends.value.to_sequences()] == [last for _, last in read]


@pytest.mark.parametrize("seed", range(4))
def test_ties_are_resolved_as_documented(seed):
    """Log probabilities of 0, -1 and -2 have exact sums, so many alignments are equally probable."""
    rng = np.random.default_rng(seed)
    rows, texts = -rng.integers(0, 3, (6, 3)).astype(float), [[1], [1, 1], [2, 1], [1, 2, 1], [], [2, 2, 2]]
    ids = vr.create_lod_tensor(np.array([n for text in texts for n in text]), [[6], list(map(len, texts))])
    begins, ends = vr.ctc_forced_align(vr.create_lod_tensor(rows, [[6]]), ids)
    assert (nested(begins.value)[0], nested(ends.value)[0]) == wanted(rows, texts, 0)


def test_texts_without_an_alignment_have_the_row_minus_one():
    with np.errstate(divide="ignore"):
        rows = np.log([[0.5, 0.5], [0.5, 0.5], [0.0, 1.0], [0.0, 1.0], [np.nan, 0.5], [0.5, 0.5]])
    steps = vr.create_lod_tensor(rows, [[2, 2, 2, 0]])
    ids = vr.create_lod_tensor(np.ones(8, int), [[2, 2, 1, 1], [2, 1, 2, 1, 1, 1]])
    begins, ends = vr.ctc_forced_align(steps, ids)
    assert nested(begins.value) == [[[-1, -1], [0]], [[-1, -1], [0]], [[-1]], [[-1]]]
    assert nested(ends.value)[1] == [[-1, -1], [2]]


def test_long_texts_keep_their_rows_in_float32():
    """Twenty thousand steps, each sure: sums of their log probabilities would lose the digits that decide."""
    path = np.tile([0, 1, 1, 2], 5000)
    rows = np.log(np.eye(3)[path] * 1e-3 + (1 - 1e-3) / 3)
    begins, ends = vr.ctc_forced_align(
        vr.create_lod_tensor(rows.astype(np.float32), [[len(path)]]),
        vr.create_lod_tensor(np.tile([1, 2], 5000), [[10000]]),
    )
    first = 4 * np.arange(5000)
    assert np.array_equal(np.asarray(begins).reshape(-1, 2), np.stack([first + 1, first + 3], axis=1))
    assert np.array_equal(np.asarray(ends).reshape(-1, 2), np.stack([first + 3, first + 4], axis=1))


def test_threads_and_batch_mates_change_no_row():
    steps = steps_of([300, 3, 600, 0, 200], classes=30, dtype=np.float32)
    ids, _ = vr.ctc_beam_search_decoder(steps, 8)
    on_threads(lambda: vr.ctc_forced_align(steps, ids))
    alone, _ = vr.ctc_forced_align(vr.create_lod_tensor(steps.data[303:903], [[600]]), ids.value[[2]])
    assert nested(alone.value) == nested(vr.ctc_forced_align(steps, ids)[0].value)[2:3]


@pytest.mark.twins
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_texts_on_every_device(device, dtype):
    steps, texts, sources = (
        steps_of([4, 0, 5], dtype=dtype),
        [[1, 2], [1], [], [2, 2], [1] * 4],
        np.array([0, 1, 1, 2, 2]),
    )
    labels, ends = np.array([n for text in texts for n in text]), np.cumsum([0, *map(len, texts)])
    table = table_of_texts(steps.structure.levels[0], ends, sources)
    scores = device.put(np.zeros(table[-1, SCORES], dtype))
    moves = device.put(np.zeros(table[-1, MOVES], np.int8))
    spans = device.put(np.zeros((2, len(labels)), int))
    align_texts(device.put(steps.data), steps.structure.levels[0], labels, 0, table, scores, moves, spans)
    begins, behind = device.get(spans)
    right = [wanted(steps.to_sequences()[k].astype(float), [text], 0) for k, text in zip(sources, texts, strict=True)]
    assert begins.tolist() == [n for first, _ in right for n in first[0]]
    assert behind.tolist() == [n for _, last in right for n in last[0]]


STEPS = steps_of([2, 3])


def ids_of(labels, lengths):
    return vr.create_lod_tensor(np.array(labels), lengths)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: vr.ctc_forced_align(STEPS, ids_of([1], [[1]])), vr.LoDError, "targets: expected 2 sequences, as many"),
        (lambda: vr.ctc_forced_align(STEPS, ids_of([1], [[1], [1]])), vr.LoDError, "targets: expected 2 sequences"),
        (
            lambda: vr.ctc_forced_align(STEPS, ids_of([1], [[1], [1], [1]])),
            vr.LoDError,
            "1 levels, a text .* got 3 levels",
        ),
        (
            lambda: vr.ctc_forced_align(STEPS, ids_of([3], [[1, 0]])),
            vr.OutOfRangeError,
            "targets: expected classes 0 to 2",
        ),
        (lambda: vr.ctc_forced_align(STEPS, ids_of([0], [[1, 0]])), vr.OutOfRangeError, "except the blank, 0"),
        (lambda: vr.ctc_forced_align(STEPS, ids_of([1], [[1, 0]]), 3), vr.OutOfRangeError, "blank: expected a class"),
        (lambda: vr.ctc_forced_align(STEPS, ids_of([1.0], [[1, 0]])), vr.DTypeError, "targets: expected integers"),
    ],
)
def test_errors_say_what_is_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call()
