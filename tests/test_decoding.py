"""Decoders, and how far what they find is from what is right: oracles, laws and errors."""

import numpy as np
import pytest

import varlen_rnn as vr
from tests.in_threads import on_threads
from tests.oracles import decoding as oracle
from varlen_rnn.kernels.edit_distance import edit_distance
from varlen_rnn.kernels.prefixes import LABEL, NODE, TOTAL, search_prefixes
from varlen_rnn.nn import functional as F

LENGTHS = [[4, 0, 7, 1], [0, 0], [0, 3, 0], [], [5]]


def ids_of(lengths, seed, dtype=np.int64, high=4):
    ids = np.random.default_rng(seed).integers(0, high, sum(lengths))
    return vr.create_lod_tensor(ids.astype(dtype), [lengths])


def lists_of(ids):
    return [sequence.tolist() for sequence in ids.to_sequences()]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8])
def test_distances_are_those_of_the_definition(lengths, dtype):
    found, right = ids_of(lengths, 0, dtype), ids_of(lengths[::-1], 1)
    distances, number = vr.edit_distance(found, right, normalized=False)
    wanted = [oracle.edit_distance(*pair) for pair in zip(lists_of(found), lists_of(right), strict=True)]
    assert np.asarray(distances).tolist() == wanted
    assert (distances.dtype, int(number)) == (np.float32, len(lengths))
    column = vr.LoDTensor(found.data[:, None], found.structure)
    assert np.asarray(vr.edit_distance(column, right, normalized=False)[0]).tolist() == wanted


def test_a_distance_is_divided_by_the_labels():
    found, right = ids_of([4, 0, 7, 1], 0), ids_of([1, 2, 9, 3], 1)
    edits = np.asarray(vr.edit_distance(found, right, normalized=False)[0])
    assert np.array_equal(np.asarray(vr.edit_distance(found, right)[0]), edits / np.float32([1, 2, 9, 3]))


def test_ignored_tokens_count_on_neither_side():
    found, right = vr.create_lod_tensor([1, 9, 2, 8], [[4]]), vr.create_lod_tensor([9, 9, 1, 2, 3], [[5]])
    distances, _ = vr.edit_distance(found, right, ignored_tokens=[8, 9])
    assert np.asarray(distances).tolist() == [np.float32(1 / 3)]


def test_levels_above_are_kept():
    found = vr.create_lod_tensor([1, 2, 3], [[2, 0, 1], [2, 1, 0]])
    distances, number = vr.edit_distance(found, ids_of([0, 0, 2], 0), normalized=False)
    assert np.asarray(distances).tolist() == [2, 1, 2]
    assert distances.lod() == [[0, 2, 2, 3]]
    assert int(number) == 3


def test_threads_and_batch_mates_change_no_distance():
    found, right = ids_of([700, 3, 1500, 0, 900], 2), ids_of([900, 5, 1200, 7, 800], 3)
    results = on_threads(lambda: vr.edit_distance(found, right))
    alone = vr.edit_distance(
        *(vr.create_lod_tensor(x.to_sequences()[2], [[n]]) for x, n in ((found, 1500), (right, 1200)))
    )
    assert np.asarray(alone[0])[0] == results[0][2]


@pytest.mark.twins
def test_distances_on_every_device(device):
    found, right = ids_of([4, 0, 7, 1], 0), ids_of([3, 2, 0, 5], 1)
    distances, scratch = device.put(np.zeros(4, np.int64)), device.put(np.zeros(14, np.int64))
    edit_distance(
        device.put(found.data), found.structure.levels[0], right.data, right.structure.levels[0], scratch, distances
    )
    wanted = [oracle.edit_distance(*pair) for pair in zip(lists_of(found), lists_of(right), strict=True)]
    assert device.get(distances).tolist() == wanted


def steps_of(lengths, classes=3, dtype=np.float64, seed=0, sharp=1.0):
    """Return logarithms of probabilities; the sharper, the more of them is in few classes."""
    logits = sharp * np.random.default_rng(seed).standard_normal((sum(lengths), classes))
    return vr.create_lod_tensor(np.asarray(F.log_softmax(logits)).astype(dtype), [lengths])


@pytest.mark.parametrize("lengths", [*LENGTHS, [30, 0, 50]], ids=str)
@pytest.mark.parametrize("blank", [0, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_best_path_is_read(lengths, blank, dtype):
    steps = steps_of(lengths, dtype=dtype)
    found = vr.ctc_greedy_decoder(steps, blank=blank)
    assert lists_of(found.value) == [oracle.best_path(rows, blank) for rows in steps.to_sequences()]
    assert found.dtype == np.int64


def test_a_blank_parts_equal_labels_and_so_does_the_next_sequence():
    path = [1, 1, 0, 1, 1, 1, 2, 0, 0]
    found = vr.ctc_greedy_decoder(vr.create_lod_tensor(np.eye(3)[path], [[2, 0, 1], [5, 2, 2]]))
    assert np.asarray(found).tolist() == [1, 1, 1, 2]
    assert found.value.recursive_sequence_lengths() == [[2, 0, 1], [2, 2, 0]]


def decoded(steps, beam_size, blank=0):
    """Return, of each sequence, its texts with their scores."""
    ids, scores = vr.ctc_beam_search_decoder(steps, beam_size, blank)
    assert ids.lod()[:-1] == scores.lod()
    pairs = zip(ids.value.to_sequences(), scores.value.to_sequences(), strict=True)
    return [[(tuple(text.tolist()), float(score)) for text, score in zip(*pair, strict=True)] for pair in pairs]


@pytest.mark.parametrize("blank", [0, 2])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)], ids=["float64", "float32"])
def test_a_wide_beam_finds_all_texts_and_their_probabilities(blank, dtype, tolerance):
    steps = steps_of([4, 0, 6, 1], dtype=dtype)
    for found, rows in zip(decoded(steps, 1000, blank), steps.to_sequences(), strict=True):
        wanted = oracle.ctc_texts(rows.astype(float), blank)
        assert len(found) == len(wanted)
        assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
        np.testing.assert_allclose([score for _, score in found], [wanted[text] for text, _ in found], rtol=tolerance)


@pytest.mark.parametrize("beam_size", [1, 2, 3, 7])
@pytest.mark.parametrize("sharp", [0.3, 3.0])
def test_a_narrow_beam_keeps_what_a_search_by_dictionaries_keeps(beam_size, sharp):
    """Prefixes leave the beam and return: 40 steps of few classes."""
    steps = steps_of([40, 0, 25, 3], classes=4, sharp=sharp)
    for found, rows in zip(decoded(steps, beam_size), steps.to_sequences(), strict=True):
        wanted = oracle.prefix_beam_search(rows, beam_size, 0)
        assert [text for text, _ in found] == [text for text, _ in wanted]
        np.testing.assert_allclose(np.exp([score for _, score in found]), [p for _, p in wanted], rtol=1e-10)


def test_the_probability_of_a_text_is_that_of_its_loss():
    steps = steps_of([9], classes=3)
    ids, scores = vr.ctc_beam_search_decoder(steps, beam_size=5000)
    text = ids.value.to_sequences()[0][0]
    loss = F.ctc_loss(steps, vr.create_lod_tensor(text, [[len(text)]]), reduction="none")
    np.testing.assert_allclose(np.asarray(scores)[0], -np.asarray(loss)[0], rtol=1e-12)


def test_levels_above_texts_are_kept():
    steps = vr.LoDTensor(steps_of([2, 1]).data, [[0, 0, 2], [0, 2, 3]])
    ids, scores = vr.ctc_beam_search_decoder(steps, beam_size=2)
    assert ids.lod()[:2] == scores.lod() == [[0, 0, 2], [0, 2, 4]]


def test_what_cannot_be_is_no_text():
    with np.errstate(divide="ignore"):
        steps = vr.create_lod_tensor(np.log([[0.0, 1.0], [0.0, 0.0], [np.nan, np.nan], [1.0, 0.0]]), [[1, 1, 1, 1]])
    assert decoded(steps, 3) == [[((1,), 0.0)], [], [], [((), 0.0)]]


def test_threads_and_batch_mates_change_no_text():
    steps = steps_of([300, 3, 600, 0, 200], classes=30, dtype=np.float32)
    on_threads(lambda: vr.ctc_beam_search_decoder(steps, 8))
    alone = vr.create_lod_tensor(steps.data[303:903], [[600]])
    assert decoded(alone, 8)[0] == decoded(steps, 8)[2]


@pytest.mark.twins
@pytest.mark.parametrize(("dtype", "rtol"), [(np.float32, 1e-6), (np.float64, 1e-12)])
def test_prefixes_on_every_device(device, dtype, rtol):
    steps, beam = steps_of([4, 0, 3], dtype=dtype), 3
    nodes, kept, counts = (device.put(np.zeros(shape, np.int64)) for shape in ((7 * beam + 3, 6), (9, 4), 3))
    chances = device.put(np.zeros((9, 5), dtype))
    search_prefixes(device.put(steps.data), steps.structure.levels[0], 0, beam, nodes, kept, chances, counts)
    for i, rows in enumerate(steps.to_sequences()):
        wanted = oracle.prefix_beam_search(rows, beam, 0)
        assert device.get(counts)[i] == len(wanted)
        found = slice(i * beam, i * beam + len(wanted))
        np.testing.assert_allclose(np.exp(device.get(chances)[found, TOTAL]), [p for _, p in wanted], rtol=rtol)
        last = device.get(nodes)[device.get(kept)[found, NODE], LABEL]
        assert last.tolist() == [text[-1] if text else -1 for text, _ in wanted]


IDS, STEPS = ids_of([2, 3], 0), steps_of([2, 3])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: vr.edit_distance(IDS, ids_of([5], 0)), vr.LoDError, "label: expected 2 sequences, as many"),
        (lambda: vr.edit_distance(IDS, ids_of([5, 0], 0)), vr.LoDError, "labels .* got none in sequence 1"),
        (lambda: vr.edit_distance(IDS, IDS.like(np.zeros(5))), vr.DTypeError, "label: expected integers"),
        (lambda: vr.edit_distance(IDS.data, IDS), vr.LoDError, "input: expected at least one level"),
        (
            lambda: vr.edit_distance(IDS, IDS.like(np.zeros((5, 2), int))),
            vr.ShapeError,
            "label: expected one id per row",
        ),
        (
            lambda: vr.edit_distance(STEPS, IDS, ignored_tokens=[1]),
            vr.DTypeError,
            "edit_distance, input: expected integers",
        ),
        (lambda: vr.ctc_greedy_decoder(STEPS, 3), vr.OutOfRangeError, "blank: expected a class, 0 to 2, got 3"),
        (lambda: vr.ctc_greedy_decoder(STEPS.data), vr.LoDError, "log_probs: expected at least one level"),
        (lambda: vr.ctc_greedy_decoder(IDS), vr.DTypeError, "log_probs: expected float32 or float64"),
        (lambda: vr.ctc_beam_search_decoder(STEPS, 0), vr.OutOfRangeError, "beam_size: expected 1 to 65536, got 0"),
        (lambda: vr.ctc_beam_search_decoder(STEPS, 2**16 + 1), vr.OutOfRangeError, "beam_size: expected 1 to 65536"),
        (lambda: vr.ctc_beam_search_decoder(STEPS, 2, -1), vr.OutOfRangeError, "blank: expected a class, 0 to 2"),
        (lambda: vr.ctc_beam_search_decoder(IDS.like(np.zeros(5))), vr.ShapeError, "log_probs: expected rank 2"),
        (lambda: vr.edit_distance(IDS, IDS, ignored_tokens=[0, 1, 2, 3]), vr.LoDError, "got none in sequence 0"),
    ],
)
def test_errors_say_what_is_wrong(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_ids_that_int64_has_not_are_told():
    """As int64, 2**64 - 1 would be -1."""
    lod = [[0, 1]]
    given = vr.LoDTensor(np.array([2**64 - 1], np.uint64), lod), vr.LoDTensor(np.array([-1]), lod)
    with pytest.raises(vr.OutOfRangeError, match="edit_distance, input: expected ids that int64 can hold"):
        vr.edit_distance(*given)
