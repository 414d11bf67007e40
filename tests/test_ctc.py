"""The loss of connectionist temporal classification: by enumeration, by PyTorch, and its laws."""

import numpy as np
import pytest

import varlen_rnn as vr
from tests.differences import slope
from tests.in_threads import on_threads
from tests.oracles import structured as oracle
from varlen_rnn.kernels.ctc import ctc, places_of
from varlen_rnn.nn import functional as F

STEPS, TARGETS = [4, 3, 0, 1, 5, 2], [[1, 2], [1, 1], [], [2], [], [1, 2, 1]]  # the last one is too long


def case(steps, targets, classes=3, dtype=np.float64, seed=0):
    logits = np.random.default_rng(seed).standard_normal((sum(steps), classes)).astype(dtype)
    labels = np.array([label for target in targets for label in target], np.int64)
    return vr.create_lod_tensor(logits, [steps]), vr.create_lod_tensor(labels, [[len(t) for t in targets]])


@pytest.mark.parametrize("blank", [0, 2])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-5)], ids=["float64", "float32"])
def test_is_the_sum_over_all_paths(blank, dtype, tolerance):
    targets = [[label if label != blank else 0 for label in target] for target in TARGETS]
    logits, labels = case(STEPS, targets, dtype=dtype)
    log_probs = F.log_softmax(logits)
    found = F.ctc_loss(log_probs, labels, blank=blank, reduction="none")
    rows, ends = np.asarray(log_probs).astype(float), np.cumsum([0, *STEPS])
    wanted = [oracle.ctc(rows[ends[i] : ends[i + 1]], target, blank) for i, target in enumerate(targets)]
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=tolerance)
    assert found.dtype == dtype
    assert np.isinf(wanted[-1])
    finite = np.array([0.0 if np.isinf(loss) else loss for loss in wanted])
    per_label = finite / np.maximum(1, [len(target) for target in targets])
    for reduction, right in (("sum", finite.sum()), ("mean", per_label.mean())):
        loss = F.ctc_loss(log_probs, labels, blank=blank, reduction=reduction, zero_infinity=True)
        np.testing.assert_allclose(loss.item(), right, rtol=tolerance)


@pytest.mark.slow
@pytest.mark.twins
@pytest.mark.parametrize(("steps", "labels", "blank"), [(200, 0, 0), (200, 60, 3), (10_000, 200, 0), (100_000, 40, 3)])
def test_float32_keeps_its_digits_over_long_sequences(device, steps, labels, blank):
    rng = np.random.default_rng(steps)
    logits = rng.standard_normal((steps, 4))
    rows = (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)
    target = (blank + rng.integers(1, 4, labels)) % 4
    loss, wanted = oracle.ctc_of_many_steps(rows.astype(float), target, blank)
    ends, of_target = np.array([0, steps]), np.array([0, labels])
    places = places_of(ends, of_target)
    losses, scales, d = (device.put(np.ones(shape, np.float32)) for shape in (1, 1, rows.shape))
    scratch = device.put(np.empty(places[-1], np.float32))
    ctc(device.put(rows), ends, target, of_target, blank, scratch, places, losses, scales, d)
    np.testing.assert_allclose(device.get(losses)[0], loss, rtol=1e-6)
    np.testing.assert_allclose(device.get(d).sum(axis=1, dtype=float), -1, rtol=5e-6)
    assert np.linalg.norm(device.get(d) - wanted) <= 5e-3 * np.linalg.norm(wanted)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_is_that_of_pytorch(reduction):
    torch = pytest.importorskip("torch")
    rng, steps = np.random.default_rng(1), [30, 12, 50, 7]
    targets = [rng.integers(1, 6, n).tolist() for n in (9, 5, 20, 7)]
    given, labels = case(steps, targets, classes=6)
    ours = vr.Variable(given, requires_grad=True)
    loss = F.ctc_loss(F.log_softmax(ours), labels, reduction=reduction, zero_infinity=True)
    loss.backward()
    padded = torch.zeros(max(steps), 4, 6, dtype=torch.float64)
    ends = np.cumsum([0, *steps])
    for i, n in enumerate(steps):
        padded[:n, i] = torch.tensor(np.asarray(given)[ends[i] : ends[i + 1]])
    padded.requires_grad_(True)
    lengths = torch.tensor(steps), torch.tensor([len(target) for target in targets])
    theirs = torch.nn.functional.ctc_loss(
        padded.log_softmax(2), torch.tensor(np.asarray(labels)), *lengths, reduction=reduction, zero_infinity=True
    )
    theirs.backward()
    np.testing.assert_allclose(loss.item(), theirs.item(), rtol=1e-9)
    wanted = np.concatenate([padded.grad[:n, i].numpy() for i, n in enumerate(steps)])
    np.testing.assert_allclose(np.asarray(ours.grad), wanted, rtol=1e-9, atol=1e-12)


def test_threads_and_batch_mates_change_no_bit():
    rng, steps = np.random.default_rng(2), [400, 3, 900, 250, 0, 700]
    targets = [rng.integers(1, 20, n // 3).tolist() for n in steps]
    given, labels = case(steps, targets, classes=20, dtype=np.float32)

    def step():
        x = vr.Variable(given, requires_grad=True)
        losses = F.ctc_loss(F.log_softmax(x), labels, reduction="none")
        losses.sum().backward()
        return losses, x.grad

    found = on_threads(step)
    alone, its = case([900], [targets[2]], classes=20, dtype=np.float32)
    rows = vr.create_lod_tensor(np.asarray(given)[403:1303], [[900]])
    assert alone.shape == rows.shape
    loss = F.ctc_loss(F.log_softmax(rows), its, reduction="none")
    assert np.asarray(loss)[0] == found[0][2]


@pytest.mark.twins
def test_on_every_device(device):
    logits, labels = case(STEPS, TARGETS)
    rows = np.asarray(F.log_softmax(logits))
    ends, of_targets = np.cumsum([0, *STEPS]), np.cumsum([0, *map(len, TARGETS)])
    places, scales = places_of(ends, of_targets), np.arange(1.0, 7.0)
    wanted = [oracle.ctc(rows[ends[i] : ends[i + 1]], target, 0) for i, target in enumerate(TARGETS)]
    losses, d, scratch = (device.put(np.zeros(shape)) for shape in (6, rows.shape, places[-1]))
    given = device.put(rows), ends, np.asarray(labels), of_targets, 0, scratch, places, losses, device.put(scales), d
    ctc(*given)
    np.testing.assert_allclose(device.get(losses), wanted, rtol=1e-12)
    difference = slope(lambda: oracle.ctc(rows[4:7], TARGETS[1], 0), rows, at=(5, 1))
    np.testing.assert_allclose(device.get(d)[5, 1], 2 * difference, rtol=1e-7)


@pytest.mark.parametrize(
    "options", [{}, {"blank": 3, "reduction": "sum"}, {"reduction": "none", "zero_infinity": True}], ids=str
)
def test_the_module_remembers_its_options(options):
    logits, labels = case(STEPS, TARGETS, classes=4)
    ours, same = (vr.Variable(logits, requires_grad=True) for _ in range(2))
    loss = vr.nn.CTCLoss(**options)(F.log_softmax(ours), labels)
    wanted = F.ctc_loss(F.log_softmax(same), labels, **options)
    assert np.array_equal(np.asarray(loss), np.asarray(wanted))
    loss.sum().backward()
    wanted.sum().backward()
    assert np.array_equal(np.asarray(ours.grad), np.asarray(same.grad))


def test_the_module_shows_and_checks_its_options():
    assert repr(vr.nn.CTCLoss(blank=1)) == "CTCLoss(blank=1, reduction='mean', zero_infinity=False)"
    for options, message in (({"reduction": "max"}, "reduction: expected one of"), ({"blank": -1}, "blank: expected")):
        with pytest.raises(vr.InputError, match=message):
            vr.nn.CTCLoss(**options)


LOGITS, LABELS = case([2, 3], [[1], [2, 1]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.ctc_loss(LOGITS, case([1], [[1]])[1]), "targets: expected 2 sequences, as many as log_probs"),
        (lambda: F.ctc_loss(LOGITS, case([2, 3], [[1], [3]])[1]), "targets: expected classes 0 to 2, except"),
        (lambda: F.ctc_loss(LOGITS, LABELS, blank=1), "except the blank, 1"),
        (lambda: F.ctc_loss(LOGITS, LABELS, blank=3), "blank: expected a class, 0 to 2, got 3"),
        (lambda: F.ctc_loss(np.zeros((3, 2)), LABELS), "log_probs: expected at least one level"),
        (lambda: F.ctc_loss(LOGITS, np.array([1, 2])), "targets: expected at least one level"),
        (lambda: F.ctc_loss(LOGITS, LABELS, reduction="max"), "reduction"),
    ],
)
def test_errors_say_what_is_wrong(call, message):
    with pytest.raises(vr.InputError, match=message):
        call()
