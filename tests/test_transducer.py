"""The transducer loss and the rows of its lattices: by enumeration, by a recursion in float64, and their laws."""

import numpy as np
import pytest

import varlen_rnn as vr
from tests.in_threads import on_threads
from tests.oracles import transducer as oracle
from varlen_rnn.kernels import lattice, transducer
from varlen_rnn.nn import functional as F

FRAMES, LABELS = [3, 2, 0, 1, 4, 0, 3], [[1, 2], [1, 1], [], [2], [], [2], [1, 2, 1]]  # one has a label, but no frame


def case(frames, labels, classes=3, dtype=np.float64, seed=0, scale=1.0):
    rng, counts = np.random.default_rng(seed), [t * (len(target) + 1) for t, target in zip(frames, labels, strict=True)]
    logits = (scale * rng.standard_normal((sum(counts), classes))).astype(dtype)
    ids = np.array([label for target in labels for label in target], np.int64)
    return vr.create_lod_tensor(logits, [counts]), vr.create_lod_tensor(ids, [[len(target) for target in labels]])


def lattices(logits, labels):
    """Return each sequence's scores, shape `(T, U + 1, classes)`."""
    pairs = zip(logits.to_sequences(), labels, strict=True)
    return [np.asarray(rows, float).reshape(-1, len(target) + 1, rows.shape[1]) for rows, target in pairs]


@pytest.mark.parametrize("blank", [0, 2])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 2e-6)], ids=["float64", "float32"])
def test_is_the_sum_over_all_alignments(blank, dtype, tolerance):
    targets = [[label if label != blank else 0 for label in target] for target in LABELS]
    logits, labels = case(FRAMES, targets, dtype=dtype)
    found = F.transducer_loss(logits, labels, blank=blank, reduction="none")
    assert found.dtype == dtype
    pairs = zip(lattices(logits, targets), targets, strict=True)
    wanted = np.array([oracle.by_enumeration(scores, target, blank) for scores, target in pairs])
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=tolerance)
    assert np.isinf(wanted[5])
    assert wanted[2] == 0
    for reduction, right in (("sum", wanted.sum()), ("mean", wanted.mean())):
        np.testing.assert_allclose(F.transducer_loss(logits, labels, blank, reduction).item(), right, rtol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-11), (np.float32, 1e-5)], ids=["float64", "float32"])
def test_the_gradient_is_that_of_the_recursion(dtype, tolerance):
    rng, frames = np.random.default_rng(1), [9, 30, 4, 50, 1]
    targets = [rng.integers(1, 7, n).tolist() for n in (3, 12, 9, 0, 2)]
    logits, labels = case(frames, targets, classes=7, dtype=dtype, scale=3.0)
    x, scales = vr.Variable(logits, requires_grad=True), np.arange(1, 6).astype(dtype)
    losses = F.transducer_loss(x, labels, reduction="none")
    (losses * scales).sum().backward()
    pairs = zip(lattices(logits, targets), targets, strict=True)
    wanted = [oracle.by_recursion(scores, target, 0) for scores, target in pairs]
    np.testing.assert_allclose(np.asarray(losses), [loss for loss, _ in wanted], rtol=tolerance)
    gradient = np.concatenate([scale * d.reshape(-1, 7) for scale, (_, d) in zip(scales, wanted, strict=True)])
    assert np.linalg.norm(np.asarray(x.grad) - gradient) <= tolerance * np.linalg.norm(gradient)


@pytest.mark.slow
def test_losses_and_gradients_are_those_of_warprnnt_numba():
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("warprnnt_numba.rnnt_loss.rnnt_pytorch").RNNTLossNumba(blank=0, reduction="none")
    frames, counts, classes, rng = [12, 30, 5, 21], [4, 9, 5, 1], 11, np.random.default_rng(0)
    labels = [rng.integers(1, classes, count) for count in counts]
    scores = [rng.standard_normal((t, u + 1, classes)).astype(np.float32) for t, u in zip(frames, counts, strict=True)]
    padded, targets = torch.zeros(4, 30, 10, classes), torch.zeros(4, 9, dtype=torch.int32)
    for number, (one, symbols) in enumerate(zip(scores, labels, strict=True)):
        padded[number, : one.shape[0], : one.shape[1]] = torch.from_numpy(one)
        targets[number, : len(symbols)] = torch.from_numpy(symbols)
    loss = theirs(padded.requires_grad_(), targets, *(torch.tensor(n, dtype=torch.int32) for n in (frames, counts)))
    loss.sum().backward()
    rows, lengths = (
        np.concatenate([one.reshape(-1, classes) for one in scores]),
        [len(one) * one.shape[1] for one in scores],
    )
    x = vr.Variable(vr.create_lod_tensor(rows, [lengths]), requires_grad=True)
    ours = F.transducer_loss(x, vr.create_lod_tensor(np.concatenate(labels), [counts]), reduction="none")
    ours.sum().backward()
    np.testing.assert_allclose(np.asarray(ours), loss.detach().numpy().ravel(), rtol=1e-6)
    of_rows = [padded.grad[n, : one.shape[0], : one.shape[1]].reshape(-1, classes) for n, one in enumerate(scores)]
    expected = torch.cat(of_rows).numpy()
    assert np.linalg.norm(np.asarray(x.grad) - expected) < 2e-5 * np.linalg.norm(expected)


@pytest.mark.slow
@pytest.mark.parametrize(("frames", "count"), [(2000, 300), (5000, 20), (300, 300)])
@pytest.mark.parametrize("scale", [1.0, 6.0])
def test_float32_keeps_its_digits_over_long_sequences(frames, count, scale):
    rng = np.random.default_rng(frames)
    target = rng.integers(1, 8, count).tolist()
    logits, labels = case([frames], [target], classes=8, dtype=np.float32, scale=scale)
    x = vr.Variable(logits, requires_grad=True)
    loss = F.transducer_loss(x, labels)
    loss.backward()
    wanted, d = oracle.by_recursion(lattices(logits, [target])[0], target, 0)
    np.testing.assert_allclose(loss.item(), wanted, rtol=1e-7)
    assert np.linalg.norm(np.asarray(x.grad) - d.reshape(-1, 8)) <= 3e-5 * np.linalg.norm(d)


def test_sequences_without_an_alignment_or_without_labels():
    logits, labels = case([0, 0, 3], [[1], [], []])
    x = vr.Variable(logits, requires_grad=True)
    losses = F.transducer_loss(x, labels, reduction="none")
    blanks = oracle.log_softmax(np.asarray(logits))[:, 0]
    np.testing.assert_allclose(np.asarray(losses), [np.inf, 0, -blanks.sum()], rtol=1e-12)
    losses.sum().backward()
    assert np.isfinite(np.asarray(x.grad)).all()
    none = vr.create_lod_tensor(np.zeros((0, 3)), [[]]), vr.create_lod_tensor(np.zeros(0, np.int64), [[]])
    assert F.transducer_loss(*none).item() == 0
    # A score of minus infinity takes the only alignment away.
    blocked = np.zeros((2, 3))
    blocked[1, 0] = -np.inf
    x = vr.Variable(vr.create_lod_tensor(blocked, [[2]]), requires_grad=True)
    loss = F.transducer_loss(x, vr.create_lod_tensor(np.array([1]), [[1]]))
    loss.backward()
    assert loss.item() == np.inf
    assert not np.asarray(x.grad).any()


def test_scores_that_are_large_or_not_numbers_stay_in_their_sequence():
    frames, targets = [4, 5, 3], [[1, 2], [2], [1]]
    logits, labels = case(frames, targets, dtype=np.float32)
    rows = np.asarray(logits).copy()
    rows[:12] *= 3000
    rows[13, 1] = np.nan
    x = vr.Variable(vr.LoDTensor(rows, logits.lod()), requires_grad=True)
    losses = F.transducer_loss(x, labels, reduction="none")
    losses.sum().backward()
    found, wanted = np.asarray(losses), oracle.by_recursion(rows[:12].reshape(4, 3, 3), targets[0], 0)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-6)
    assert np.isnan(found[1])
    np.testing.assert_allclose(found[2], oracle.by_enumeration(lattices(logits, targets)[2], [1], 0), rtol=1e-6)
    assert np.isfinite(np.asarray(x.grad)[np.r_[:12, 22:28]]).all()


def trained(frames, words, labels):
    """Return the losses, and the gradients of the frames, of the predictor's rows and of a layer's weight."""
    e, p = (vr.Variable(x, requires_grad=True) for x in (frames, words))
    w = vr.Variable(np.random.default_rng(3).standard_normal((24, 20)).astype(np.float32), requires_grad=True)
    losses = F.transducer_loss(F.lattice_rows(e, p).tanh() @ w, labels, reduction="none")
    losses.sum().backward()
    return [np.asarray(each) for each in (losses, e.grad, p.grad, w.grad)]


def test_threads_and_batch_mates_change_no_bit():
    rng, counts, num_labels = np.random.default_rng(2), [90, 3, 120, 0, 61], [20, 2, 33, 0, 7]
    targets = vr.create_lod_tensor(rng.integers(1, 20, sum(num_labels)), [num_labels])
    frames = vr.create_lod_tensor(rng.standard_normal((sum(counts), 24)).astype(np.float32), [counts])
    words = [n + 1 for n in num_labels]
    words = vr.create_lod_tensor(rng.standard_normal((sum(words), 24)).astype(np.float32), [words])
    one = on_threads(lambda: trained(frames, words, targets))
    alone = trained(*(x.slice(0, 2, 3) for x in (frames, words, targets)))
    for found, of_all in zip(alone, (one[0][2:3], one[1][93:213], one[2][24:58]), strict=False):
        np.testing.assert_array_equal(found, of_all)


def test_pieces_of_sequences_have_the_bits_of_the_whole():
    rng, counts, num_labels = np.random.default_rng(4), [30, 0, 12, 41], [7, 0, 3, 9]
    values = [
        vr.create_lod_tensor(rng.standard_normal((sum(lengths), 8)).astype(np.float32), [lengths])
        for lengths in (counts, [n + 1 for n in num_labels])
    ]
    labels = vr.create_lod_tensor(rng.integers(1, 6, sum(num_labels)), [num_labels])
    w = vr.Variable(rng.standard_normal((8, 6)).astype(np.float32), requires_grad=True)

    def gradients(begin, end):
        leaves = [vr.Variable(value.slice(0, begin, end), requires_grad=True) for value in values]
        rows = F.lattice_rows(*leaves).tanh()
        loss = F.transducer_loss(rows @ w, labels.slice(0, begin, end), reduction="sum") / len(counts)
        loss.backward()
        return [np.asarray(leaf.grad) for leaf in leaves]

    parts = [gradients(0, 2), gradients(2, 3), gradients(3, 4)]
    of_weight, w.grad = np.asarray(w.grad), None
    whole = gradients(0, 4)
    for found, wanted in zip(zip(*parts, strict=True), whole, strict=True):
        np.testing.assert_array_equal(np.concatenate(found), wanted)
    np.testing.assert_allclose(of_weight, np.asarray(w.grad), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_lattice_rows_join_every_frame_with_every_row(dtype):
    rng = np.random.default_rng(0)
    e = vr.Variable(vr.create_lod_tensor(rng.standard_normal((60, 2)).astype(dtype), [[2, 2], [2, 0, 55, 3]]), True)
    p = vr.Variable(vr.create_lod_tensor(rng.standard_normal((56, 2)).astype(dtype), [[3, 1, 50, 2]]), True)
    rows = F.lattice_rows(e, p)
    sizes = [6, 0, 2750, 6]
    assert rows.value.recursive_sequence_lengths() == [[2, 2], sizes]
    weights, starts, others = rng.standard_normal(rows.shape).astype(dtype), [0, 2, 2, 57, 60], [0, 3, 4, 54, 56]
    (rows * weights).sum().backward()
    parts = np.split(weights.astype(float), np.cumsum(sizes)[:-1])
    for i, part in enumerate(parts):
        a, b = (np.asarray(x)[ends[i] : ends[i + 1]] for x, ends in ((e, starts), (p, others)))
        np.testing.assert_array_equal(np.asarray(rows)[sum(sizes[:i]) :][: sizes[i]], (a[:, None] + b).reshape(-1, 2))
        part = part.reshape(len(a), len(b), 2)
        tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == np.float32 else {"rtol": 1e-12, "atol": 1e-12}
        np.testing.assert_allclose(np.asarray(e.grad)[starts[i] : starts[i + 1]], part.sum(1), **tolerance)
        np.testing.assert_allclose(np.asarray(p.grad)[others[i] : others[i + 1]], part.sum(0), **tolerance)


@pytest.mark.twins
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_on_every_device(device, dtype):
    logits, labels = case(FRAMES, LABELS, dtype=dtype)
    places, ends, classes = (
        np.cumsum([0, *logits.recursive_sequence_lengths()[0]]),
        np.cumsum([0, *map(len, LABELS)]),
        3,
    )
    rows, scales = np.asarray(logits), np.arange(1, 8).astype(dtype)
    given, ids = device.put(rows), np.asarray(labels)
    made = (device.put(np.zeros(shape, dtype)) for shape in ((len(rows), 6), (len(rows), 2), rows.shape, 7))
    found, shares, d, losses = made
    later = device.put(np.zeros((len(ids) + 7, 2), dtype))
    transducer.emissions(given, places, ids, ends, 0, found)
    transducer.transducer(found, places, ends, losses)
    transducer.transducer_shares(found, places, ends, device.put(scales), later, shares)
    transducer.transducer_grad(given, places, ids, ends, 0, found, shares, d)
    tolerance = 1e-12 if dtype == np.float64 else 2e-6
    for i, (scores, target) in enumerate(zip(lattices(logits, LABELS), LABELS, strict=True)):
        np.testing.assert_allclose(device.get(losses)[i], oracle.by_enumeration(scores, target, 0), rtol=tolerance)
        if len(scores):
            wanted = scales[i] * oracle.by_recursion(scores, target, 0)[1].reshape(-1, classes)
            gradient = device.get(d)[places[i] : places[i + 1]]
            np.testing.assert_allclose(gradient, wanted, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.twins
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_lattice_rows_on_every_device(device, dtype):
    rng, offsets, ends = np.random.default_rng(0), np.array([0, 3, 3, 5]), np.array([0, 2, 3, 6])
    e, p = (rng.standard_normal((n, 3)).astype(dtype) for n in (5, 6))
    places = lattice.lattice_places(offsets, ends)
    out = device.put(np.zeros((places[-1], 3), dtype))
    lattice.lattice_rows(device.put(e), offsets, device.put(p), ends, places, out)
    wanted = [(e[:3, None] + p[:2]).reshape(-1, 3), (e[3:, None] + p[3:]).reshape(-1, 3)]
    np.testing.assert_array_equal(device.get(out), np.concatenate(wanted))


@pytest.mark.parametrize("options", [{}, {"blank": 3, "reduction": "sum"}, {"reduction": "none"}], ids=str)
def test_the_module_remembers_its_options(options):
    logits, labels = case(FRAMES[:5], LABELS[:5], classes=4)
    found = vr.nn.TransducerLoss(**options)(logits, labels)
    assert np.array_equal(np.asarray(found), np.asarray(F.transducer_loss(logits, labels, **options)))


def test_the_module_shows_and_checks_its_options():
    assert repr(vr.nn.TransducerLoss(blank=1)) == "TransducerLoss(blank=1, reduction='mean')"
    for options, message in (({"reduction": "max"}, "reduction: expected one of"), ({"blank": -1}, "blank: expected")):
        with pytest.raises(vr.InputError, match=message):
            vr.nn.TransducerLoss(**options)


LOGITS, IDS = case([2, 3], [[1], [2, 1]])
FRAME_ROWS = vr.create_lod_tensor(np.zeros((3, 2)), [[1, 2]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.transducer_loss(LOGITS, case([1], [[1]])[1]), "labels: expected 2 sequences, as many as logits"),
        (lambda: F.transducer_loss(LOGITS, case([2, 3], [[1], [2, 3]])[1]), "labels: expected classes 0 to 2, except"),
        (lambda: F.transducer_loss(LOGITS, IDS, blank=1), "except the blank, 1"),
        (lambda: F.transducer_loss(LOGITS, IDS, blank=3), "blank: expected a class, 0 to 2, got 3"),
        (lambda: F.transducer_loss(LOGITS, IDS, blank=-1), "blank"),
        (lambda: F.transducer_loss(LOGITS, IDS, reduction="max"), "reduction"),
        (lambda: F.transducer_loss(np.zeros((3, 2)), IDS), "logits: expected at least one level"),
        (lambda: F.transducer_loss(LOGITS, np.array([1, 2])), "labels: expected at least one level"),
        (lambda: F.transducer_loss(IDS, IDS), "logits: expected float32 or float64"),
        (lambda: F.transducer_loss(LOGITS, LOGITS), "labels: expected integers"),
        (
            lambda: F.transducer_loss(LOGITS, case([2, 3], [[1, 2], [2, 1]])[1]),
            "logits, sequence 0: expected a multiple of 3 rows, .* got 4 rows",
        ),
        (lambda: F.lattice_rows(FRAME_ROWS, np.zeros((3, 2))), "predictor: expected at least one level"),
        (lambda: F.lattice_rows(FRAME_ROWS, FRAME_ROWS.like(np.zeros((3, 4)))), "predictor: expected 2 features"),
        (lambda: F.lattice_rows(FRAME_ROWS, FRAME_ROWS.like(np.zeros((3, 2), np.float32))), "expected float64, as enc"),
        (lambda: F.lattice_rows(FRAME_ROWS, vr.create_lod_tensor(np.zeros((3, 2)), [[3]])), "expected 2 sequences"),
    ],
)
def test_errors_say_what_is_wrong(call, message):
    with pytest.raises(vr.InputError, match=message):
        call()
