"""Metrics beside their oracles and scikit-learn's: rows, sequences, batches, programs, states, and nothing at all."""

import numpy as np
import pytest

import varlen_rnn as vr
from tests.oracles import metrics as oracle
from varlen_rnn import metrics

LENGTHS = [3, 0, 4, 1, 2]
RNG = np.random.default_rng(0)
N, CLASSES = 10, 4
SCORES = RNG.standard_normal((N, CLASSES)).round(1)
PREDICTED = SCORES.argmax(axis=1)
LABELS = np.where(np.arange(N) % 3, PREDICTED, RNG.integers(0, 3, N))  # the last class is mostly absent
HOLES = np.where(np.arange(N) % 4 == 3, -100, LABELS)  # the sequence of one row has none that counts
HOLES[7] = -100
COUNTED = HOLES != -100
WEIGHTS, OF_SEQUENCES = RNG.random(N), RNG.random(5)
X, Y = RNG.standard_normal((2, N, 3))
BINARY, SCORE = RNG.integers(0, 2, N), RNG.standard_normal(N).round(0)  # with ties


def lod(data):
    return vr.create_lod_tensor(data, [LENGTHS])


# name: (metric, predictions, targets)
CASES = {
    "Accuracy": (metrics.Accuracy, SCORES, HOLES),
    "Accuracy of classes": (metrics.Accuracy, PREDICTED, HOLES),
    "Accuracy, top 2": (lambda: metrics.Accuracy(2), SCORES, HOLES),
    "ConfusionMatrix": (lambda: metrics.ConfusionMatrix(CLASSES), SCORES, HOLES),
    "F1": (lambda: metrics.F1(CLASSES, average=None), PREDICTED, HOLES),
    "AUC": (metrics.AUC, SCORE, BINARY),
    "MeanAbsoluteError": (metrics.MeanAbsoluteError, X, Y),
    "MeanSquaredError": (metrics.MeanSquaredError, X, Y),
    "R2": (lambda: metrics.R2(3), X, Y),
}
PER_SEQUENCE = {
    "Accuracy": (lambda: metrics.Accuracy(per="sequence"), SCORES, HOLES, COUNTED, PREDICTED == HOLES),
    "MeanAbsoluteError": (
        lambda: metrics.MeanAbsoluteError(per="sequence"), X, Y, COUNTED | True, np.abs(X - Y).mean(axis=1)
    ),
    "MeanSquaredError": (
        lambda: metrics.MeanSquaredError(per="sequence"), X, Y, COUNTED | True, ((X - Y) ** 2).mean(axis=1)
    ),
}  # fmt: skip


def result(metric, *batches):
    for batch in batches:
        metric.update(*batch)
    return metric.compute()


def test_confusions_and_f1():
    inside = COUNTED.nonzero()[0]
    matrix = oracle.confusions(PREDICTED[inside], HOLES[inside], WEIGHTS[inside], CLASSES)
    found = result(metrics.ConfusionMatrix(CLASSES), (SCORES, HOLES, WEIGHTS))
    np.testing.assert_allclose(found, matrix, rtol=1e-12)
    assert result(metrics.ConfusionMatrix(2, ignore_index=None), ([0, 1], [1, 1])).tolist() == [[0, 0], [1, 1]]
    each = oracle.f1(matrix)
    for zero_division in (0.0, 1.0, np.nan):
        of_all = result(metrics.F1(CLASSES, None, zero_division), (SCORES, HOLES, WEIGHTS))
        np.testing.assert_allclose(of_all, np.where(np.isnan(each), zero_division, each), rtol=1e-12)
    macro = result(metrics.F1(CLASSES), (PREDICTED, HOLES, WEIGHTS))
    assert macro == pytest.approx(np.nanmean(each))
    weighted = result(metrics.F1(CLASSES, "weighted"), (PREDICTED, HOLES, WEIGHTS))
    assert weighted == pytest.approx(np.nansum(each * matrix.sum(axis=1)) / matrix.sum())
    micro = result(metrics.F1(CLASSES, "micro"), (PREDICTED, HOLES, WEIGHTS))
    assert micro == pytest.approx(np.trace(matrix) / matrix.sum())


@pytest.mark.parametrize("k", [1, 2, CLASSES])
def test_the_first_of_equal_scores_is_larger_and_nan_is_largest(k):
    scores = np.array([[1.0, 3, 3, 0], [np.nan, 9, np.nan, 1], [2, 2, 2, 2]])
    _, places = vr.nn.functional.topk(scores, k)
    for label in range(CLASSES):
        labels = np.full(3, label)
        wanted = (places.value.data == label).any(axis=1).mean()
        assert result(metrics.Accuracy(k), (scores, labels)) == pytest.approx(wanted)


def test_area_under_the_curve_of_scores_with_ties():
    wanted = oracle.auc(SCORE, BINARY, WEIGHTS)
    assert result(metrics.AUC(), (SCORE, BINARY, WEIGHTS)) == pytest.approx(wanted, rel=1e-12)
    ignored = np.where(np.arange(N) < 3, -100, BINARY)
    with_nan = np.where(np.arange(N) < 3, np.nan, SCORE)
    wanted = oracle.auc(SCORE[3:], BINARY[3:], WEIGHTS[3:])
    assert result(metrics.AUC(), (with_nan, ignored, WEIGHTS)) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("weights", [np.ones(5), OF_SEQUENCES])
@pytest.mark.parametrize("name", PER_SEQUENCE)
def test_a_sequence_counts_once(name, weights):
    make, predictions, targets, counted, rows = PER_SEQUENCE[name]
    wanted = oracle.mean_of_sequences(rows, counted, LENGTHS, weights)
    found = result(make(), (lod(predictions), targets, weights))
    assert found == pytest.approx(wanted, rel=1e-12)
    assert result(make(), (predictions, lod(targets), weights)) == found, "either of them may have the LoD"
    with pytest.raises(vr.LoDError, match="per='sequence'"):
        make().update(predictions, targets)
    with pytest.raises(vr.ShapeError, match="5 weights, one for each sequence"):
        make().update(lod(predictions), targets, WEIGHTS)


@pytest.mark.parametrize("name", CASES)
def test_batches_merged_and_saved_are_as_one(name, tmp_path):
    make, predictions, targets = CASES[name]
    whole = result(make(), (predictions, targets, WEIGHTS))
    first, second = make(), make()
    first.update(vr.Variable(predictions[:3]), targets[:3], WEIGHTS[:3])
    first.update(predictions[:0], targets[:0])
    second.update(predictions[3:].copy(), vr.LoDTensor(targets[3:]), WEIGHTS[3:])
    vr.save(tmp_path / "state", metric=first.state_dict())
    third = make()
    third.update(predictions, targets)  # which loading forgets
    third.load_state_dict(vr.load(tmp_path / "state")["metric"])
    third.merge(second)
    first.merge(second)
    np.testing.assert_allclose(first.compute(), whole, rtol=1e-12)
    assert np.array_equal(third.compute(), first.compute())
    first.reset()
    assert np.array_equal(first.compute(), make().compute(), equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_what_is_returned_is_no_view_of_the_counts(name):
    make, predictions, targets = CASES[name]
    metric = make()
    metric.update(predictions, targets)
    before = metric.compute()
    metric.state_dict()["counts"][...] = 7
    if isinstance(before, np.ndarray):
        metric.compute()[...] = 7
    assert np.array_equal(metric.compute(), before)


@pytest.mark.parametrize("name", CASES)
def test_counts_of_a_program_are_fetched(name):
    make, predictions, targets = CASES[name]
    metric = make()
    with vr.program_guard() as program:
        x = vr.feed_data("x", [-1, *predictions.shape[1:]], predictions.dtype.name)
        counts = metric.counts(
            x * 1 if x.dtype.kind == "f" else x, vr.feed_data("y", [-1, *targets.shape[1:]], targets.dtype.name)
        )
    for ran in (program, vr.Program.from_bytes(program.to_bytes())):
        (fetched,) = vr.Executor().run(ran, {"x": predictions, "y": targets}, [counts.name])
        metric.update_counts(fetched)
    both = result(make(), (predictions, targets), (predictions, targets))
    assert np.array_equal(metric.compute(), both, equal_nan=True)
    with pytest.raises(vr.ProgramError, match=r"Executor\(\).run"):
        metric.update_counts(counts)


@pytest.mark.parametrize("name", [name for name in CASES if "Accuracy" not in name])
def test_what_weighs_nothing_may_be_anything(name):
    make, predictions, targets = CASES[name]
    weights = np.where(np.arange(N) % 3, WEIGHTS, 0.0)
    wanted = result(make(), (predictions[weights != 0], targets[weights != 0], weights[weights != 0]))
    if predictions.dtype.kind == "f":
        column = predictions.reshape(N, -1)[:, :1].reshape(N, *[1] * (predictions.ndim - 1))
        predictions = np.where((weights == 0).reshape(column.shape), np.nan, predictions)
    np.testing.assert_allclose(result(make(), (predictions, targets, weights)), wanted, rtol=1e-12)


def test_nothing_at_all():
    for make in (metrics.Accuracy, metrics.MeanAbsoluteError, metrics.MeanSquaredError, metrics.R2, metrics.AUC,
                 metrics.Mean, lambda: metrics.F1(3, zero_division=np.nan)):  # fmt: skip
        assert np.isnan(make().compute())
    assert metrics.F1(3).compute() == metrics.F1(3, "micro").compute() == metrics.F1(3, "weighted").compute() == 0
    assert metrics.F1(3, None, 1.0).compute().tolist() == [1, 1, 1]
    assert np.isnan(result(metrics.AUC(), (SCORE, np.ones(N, int)))), "of one label only"
    assert np.isnan(result(metrics.Accuracy(), (SCORES, np.full(N, -100))))
    empty = vr.create_lod_tensor(np.zeros((0, 3)), [[0, 0]])
    for metric in (metrics.MeanAbsoluteError(per="sequence"), metrics.Accuracy(per="sequence")):
        metric.update(empty, np.zeros((0, 3)) if metric.op == "error_counts" else np.zeros(0, int))
        assert np.isnan(metric.compute())


def test_determination_where_targets_do_not_differ():
    assert result(metrics.R2(), (np.ones(3), np.ones(3))) == 1
    assert result(metrics.R2(), (np.zeros(3), np.ones(3))) == 0
    far = 1e8 + np.arange(6.0)
    found = result(metrics.R2(), *((far[n : n + 2] + 0.5, far[n : n + 2]) for n in (0, 2, 4)))
    assert found == pytest.approx(1 - 6 * 0.25 / 17.5, rel=1e-12), "sums of batches do not cancel"


def test_the_mean_of_losses():
    mean = metrics.Mean()
    mean.update(vr.Variable(np.array(0.5, np.float32)), 3)
    mean.update(np.array([1.0, 2.0]), np.array([0.0, 2.0]))
    assert mean.compute() == pytest.approx((1.5 + 4) / 5)
    with pytest.raises(vr.ShapeError, match="the shape of `values`"):
        mean.update(np.ones(2), 1.0)
    with pytest.raises(vr.OutOfRangeError, match="at least 0"):
        mean.update(1.0, -1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.ConfusionMatrix(3).update(SCORES, LABELS), "predictions: .*one column for each class"),
        (lambda: metrics.ConfusionMatrix(3).update([0, 3], [0, 1]), "predictions, entry 1"),
        (lambda: metrics.F1(3).update([0, 1], [0, -1]), "targets, entry 1: expected 0 <= class < 3, got -1"),
        (lambda: metrics.Accuracy().update(SCORES, np.full(N, CLASSES)), "targets, entry 0"),
        (lambda: metrics.Accuracy().update(SCORE, BINARY), r"\(scores > 0\).astype\(int\)"),
        (lambda: metrics.Accuracy(5).update(SCORES, LABELS), "top_k: expected 1 to 4"),
        (lambda: metrics.Accuracy(2).update(PREDICTED, LABELS), "top_k: expected 1 to 1"),
        (lambda: metrics.Accuracy().update(lod(SCORES), vr.create_lod_tensor(LABELS, [[5, 5]])), "one LoD"),
        (lambda: metrics.AUC().update(SCORES[:, :2], BINARY), r"scores\[:, 1\] - scores\[:, 0\]"),
        (lambda: metrics.AUC().update(np.full(N, np.nan), BINARY), "NaN"),
        (lambda: metrics.AUC().update(SCORE, BINARY + 1), "targets, entry"),
        (lambda: metrics.R2().update(X, Y), r"counts: expected shape \(4, 1\), got shape \(4, 3\) \(num_outputs"),
        (lambda: metrics.MeanSquaredError().update(X, Y[:, :1]), "targets"),
        (lambda: metrics.MeanSquaredError().update(X, Y, -WEIGHTS), "sample_weight, entry 0: .*at least 0"),
        (lambda: metrics.MeanSquaredError().update(X, Y, np.full(N, np.nan)), "sample_weight, entry 0"),
        (lambda: metrics.MeanSquaredError().update(X, Y, WEIGHTS[:1]), "sample_weight"),
        (lambda: metrics.Accuracy().merge(metrics.Accuracy(2)), "same options"),
        (lambda: metrics.Accuracy().merge(metrics.AUC()), "another Accuracy"),
        (lambda: metrics.Accuracy().load_state_dict({"counts": np.zeros(3)}), r"shape \(2,\)"),
        (lambda: metrics.Accuracy().load_state_dict({"count": np.zeros(2)}), "'counts'"),
        (lambda: metrics.Accuracy().load_state_dict({"counts": np.zeros(2, int)}), "float64"),
        (lambda: metrics.ConfusionMatrix(5000), "at most 4096"),
        (lambda: metrics.F1(3, "binary"), "average"),
        (lambda: metrics.F1(3, zero_division=2.0), "zero_division"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(vr.InputError, match=message):
        call()


def test_after_an_error_nothing_has_changed():
    metric = metrics.ConfusionMatrix(3)
    metric.update([0, 1], [0, 1])
    before = metric.compute()
    for call in (
        lambda: metric.update([0, 1], [0, 7]),
        lambda: metric.update_counts(np.zeros((2, 2))),
        lambda: metric.load_state_dict({"counts": np.zeros(1)}),
        lambda: metric.merge(metrics.ConfusionMatrix(2)),
    ):
        with pytest.raises(vr.InputError):
            call()
        assert np.array_equal(metric.compute(), before)


@pytest.mark.parametrize("seed", range(5))
def test_scikit_learn_says_the_same(seed):
    theirs = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    rng = np.random.default_rng(seed)
    scores, labels, w = rng.random((30, 5)), rng.integers(0, 4, 30), rng.random(30)  # no row of the last class
    predicted, x, y = scores.argmax(axis=1), *rng.standard_normal((2, 30, 2))
    binary, score = rng.integers(0, 2, 30), rng.random(30).round(1)
    cases = [
        (metrics.Accuracy(), scores, labels, theirs.accuracy_score(labels, predicted, sample_weight=w)),
        (metrics.Accuracy(2), scores, labels,
         theirs.top_k_accuracy_score(labels, scores, k=2, sample_weight=w, labels=range(5))),
        (metrics.ConfusionMatrix(5), scores, labels,
         theirs.confusion_matrix(labels, predicted, sample_weight=w, labels=range(5))),
        *((metrics.F1(5, average), predicted, labels,
           theirs.f1_score(labels, predicted, average=average, sample_weight=w))
          for average in ("macro", "micro", "weighted")),
        (metrics.F1(7, None, 1.0), predicted, labels, theirs.f1_score(
            labels, predicted, average=None, sample_weight=w, labels=range(7), zero_division=1.0)),
        (metrics.AUC(), score, binary, theirs.roc_auc_score(binary, score, sample_weight=w)),
        (metrics.MeanAbsoluteError(), x, y, theirs.mean_absolute_error(y, x, sample_weight=w)),
        (metrics.MeanSquaredError(), x, y, theirs.mean_squared_error(y, x, sample_weight=w)),
        (metrics.MeanSquaredError(root=True), x[:, 0], y[:, 0],
         theirs.mean_squared_error(y[:, 0], x[:, 0], sample_weight=w) ** 0.5),
        (metrics.R2(2), x, y, theirs.r2_score(y, x, sample_weight=w)),
    ]  # fmt: skip
    for metric, predictions, targets, wanted in cases:
        halves = ((predictions[part], targets[part], w[part]) for part in (slice(0, 11), slice(11, None)))
        np.testing.assert_allclose(result(metric, *halves), wanted, rtol=1e-12, err_msg=type(metric).__name__)
