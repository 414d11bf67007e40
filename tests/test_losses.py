"""Losses against PyTorch in float64; what does not count; means over sequences; in programs."""

import numpy as np
import pytest

import varlen_rnn as vr
from tests.differences import slope
from varlen_rnn.nn import functional as F

torch = pytest.importorskip("torch")
T = torch.nn.functional
RNG = np.random.default_rng(4)
X, Y = RNG.standard_normal((9, 4)), RNG.standard_normal((9, 4))
LABELS = np.array([0, 3, -100, 1, 1, 2, -100, 0, 3])
PROBABILITIES = RNG.dirichlet(np.ones(4), size=9)
WEIGHT = np.array([0.5, 2.0, 0.0, 1.5])
LENGTHS = [2, 0, 3, 1, 3]


def tensor(value):
    return torch.tensor(value)


def compare(ours, theirs, x=X):
    """Compare a loss and its gradient, each a function of x alone."""
    p, q = vr.nn.Parameter(x), torch.tensor(x, requires_grad=True)
    a, b = ours(p), theirs(q)
    np.testing.assert_allclose(np.asarray(a.value.data), b.detach().numpy(), rtol=1e-10, atol=1e-12)
    a.sum().backward()
    b.sum().backward()
    np.testing.assert_allclose(p.grad, q.grad.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
@pytest.mark.parametrize("labels", [LABELS, np.maximum(LABELS, 0), PROBABILITIES], ids=["ignored", "all", "soft"])
def test_cross_entropy_is_pytorchs(labels, weight, smoothing, reduction):
    options = {"reduction": reduction, "label_smoothing": smoothing}
    compare(
        lambda x: F.cross_entropy(x, labels, weight=weight, **options),
        lambda x: T.cross_entropy(x, tensor(labels), weight=None if weight is None else tensor(weight), **options),
    )


@pytest.mark.parametrize("index", [0, 7, -1])
def test_any_class_may_be_the_one_that_is_ignored(index):
    labels = np.where(LABELS == -100, index, LABELS)
    compare(
        lambda x: F.cross_entropy(x, labels, ignore_index=index),
        lambda x: T.cross_entropy(x, tensor(labels), ignore_index=index),
    )
    with pytest.raises(vr.OutOfRangeError, match="labels, entry 2: expected 0 <= class < 4, got -100"):
        F.cross_entropy(X, LABELS, ignore_index=index)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_binary_cross_entropy_is_pytorchs(reduction):
    targets, columns = RNG.random((9, 4)), np.array([1.0, 0.5, 3.0, 2.0])
    compare(
        lambda x: F.binary_cross_entropy_with_logits(x, targets, reduction, weight=Y, pos_weight=columns),
        lambda x: T.binary_cross_entropy_with_logits(
            x, tensor(targets), reduction=reduction, weight=tensor(Y), pos_weight=tensor(columns)
        ),
    )
    large = np.array([[-1e4, 1e4, 0.0, 800.0]])
    compare(
        lambda x: F.binary_cross_entropy_with_logits(x, large * 0 + 0.5, pos_weight=columns),
        lambda x: T.binary_cross_entropy_with_logits(x, tensor(large * 0 + 0.5), pos_weight=tensor(columns)), large,
    )  # fmt: skip


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_of_numbers_are_pytorchs(reduction):
    counts = RNG.poisson(3.0, size=(9, 4)).astype(float)
    rates = RNG.random((9, 4)) + 0.1
    both = {"reduction": reduction}
    compare(lambda x: F.l1_loss(x, Y, **both), lambda x: T.l1_loss(x, tensor(Y), **both))
    compare(lambda x: F.mse_loss(x, Y, **both), lambda x: T.mse_loss(x, tensor(Y), **both))
    compare(lambda x: F.poisson_nll_loss(x, counts, **both), lambda x: T.poisson_nll_loss(x, tensor(counts), **both))
    compare(
        lambda x: F.poisson_nll_loss(x, counts, log_input=False, **both),
        lambda x: T.poisson_nll_loss(x, tensor(counts), log_input=False, **both), rates,
    )  # fmt: skip


def softmax_of(x):
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_focal_loss_against_its_formula(gamma):
    p = softmax_of(X)[np.arange(9), np.maximum(LABELS, 0)]
    counts = np.where(LABELS < 0, 0, WEIGHT[np.maximum(LABELS, 0)])
    each = -counts * (1 - p) ** gamma * np.log(p)
    options = {"gamma": gamma, "weight": WEIGHT}
    np.testing.assert_allclose(F.focal_loss(X, LABELS, "none", **options).value.data, each, rtol=1e-12)
    np.testing.assert_allclose(F.focal_loss(X, LABELS, **options).item(), each.sum() / counts.sum(), rtol=1e-12)
    check_gradient(lambda x: F.focal_loss(x, LABELS, **options))
    sure = np.array([[800.0, 0, 0, 0]])  # p is 1, and its logarithm 0
    p = vr.nn.Parameter(sure)
    F.focal_loss(p, np.array([0]), gamma=gamma).backward()
    assert np.isfinite(p.grad).all()


def check_gradient(loss, x=X):
    p = vr.nn.Parameter(x)
    loss(p).backward()
    direction = RNG.standard_normal(x.shape)
    np.testing.assert_allclose(
        (p.grad * direction).sum(), slope(lambda: loss(p), p.data, direction), rtol=1e-7, atol=1e-9
    )


def test_hinge_and_quantile_losses_are_scikit_learns():
    metrics = pytest.importorskip("sklearn.metrics")
    x, y = X.ravel(), Y.ravel()
    signs = np.sign(y)
    np.testing.assert_allclose(F.hinge_loss(x, signs).item(), metrics.hinge_loss(signs, x), rtol=1e-12)
    for q in (0.1, 0.5, 0.9):
        expected = metrics.mean_pinball_loss(y, x, alpha=q)
        np.testing.assert_allclose(F.quantile_loss(x, y, q).item(), expected, rtol=1e-12)
    several = F.quantile_loss(X[:, :3], Y[:, 0], [0.1, 0.5, 0.9])
    each = [metrics.mean_pinball_loss(Y[:, 0], X[:, k], alpha=q) for k, q in enumerate((0.1, 0.5, 0.9))]
    np.testing.assert_allclose(several.item(), np.mean(each), rtol=1e-12)
    check_gradient(lambda x: F.quantile_loss(x, Y, 0.3))
    check_gradient(lambda x: F.hinge_loss(x, np.sign(Y), margin=0.5))
    check_gradient(lambda x: F.quantile_loss(x[:, :3], Y[:, 0], [0.1, 0.5, 0.9]))


def of_sequences(values):
    """Return the rows of each sequence."""
    return np.split(values, np.cumsum(LENGTHS)[:-1])


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
@pytest.mark.parametrize("sample_weight", [None, np.array([1.0, 5.0, 0.5, 2.0, 0.0])], ids=["alike", "by sequence"])
def test_sequences_weigh_the_same(weight, sample_weight):
    """A sequence's loss is the mean of its rows that count; those that have none do not count, as the empty one."""
    labels = np.array([0, 3, -100, 1, 1, -100, 3, 0, 2])  # the fourth sequence is ignored altogether
    minus_log = -np.log(softmax_of(X))[np.arange(9), np.maximum(labels, 0)]
    counts = np.where(labels < 0, 0, np.ones(4)[0] if weight is None else weight[np.maximum(labels, 0)])
    total, weights = 0.0, 0.0
    for k, (own, each) in enumerate(zip(of_sequences(counts), of_sequences(counts * minus_log), strict=True)):
        if own.sum() > 0:
            share = 1 if sample_weight is None else sample_weight[k]
            total, weights = total + share * each.sum() / own.sum(), weights + share

    def loss(x):
        rows = vr.Variable(vr.create_lod_tensor(x, [LENGTHS])) if isinstance(x, np.ndarray) else x.with_lod([LENGTHS])
        return F.cross_entropy(rows, labels, per="sequence", weight=weight, sample_weight=sample_weight)

    np.testing.assert_allclose(loss(X).item(), total / weights, rtol=1e-12)


def test_weights_of_rows_are_a_weighted_mean():
    each = (X - Y) ** 2
    weights = RNG.random(9)
    for function, values in ((F.mse_loss, each), (F.l1_loss, np.abs(X - Y))):
        found = function(X, Y, sample_weight=weights).item()
        np.testing.assert_allclose(found, np.average(values.mean(axis=1), weights=weights), rtol=1e-12)
        np.testing.assert_allclose(
            function(X, Y, "sum", sample_weight=weights).item(), (values.T * weights).sum(), rtol=1e-12
        )
        none = function(X, Y, "none", sample_weight=weights).value.data
        np.testing.assert_allclose(none, values * weights[:, None], rtol=1e-12)
        check_gradient(lambda x, function=function: function(x, Y, sample_weight=weights))


def test_where_nothing_counts_the_mean_is_zero():
    rows = vr.create_lod_tensor(np.zeros((0, 4)), [[0, 0]])
    nothing = np.zeros(0, int)
    for per in ("row", "sequence"):
        p = vr.nn.Parameter(np.zeros((0, 4)))
        assert F.cross_entropy(rows, nothing, per=per).item() == 0
        assert F.mse_loss(rows, np.zeros((0, 4)), per=per).item() == 0
        assert F.cross_entropy(p, nothing).item() == 0
    assert F.cross_entropy(X, np.full(9, -100)).item() == 0
    assert F.cross_entropy(X, np.full(9, 2), weight=WEIGHT).item() == 0
    assert F.mse_loss(X, Y, sample_weight=np.zeros(9)).item() == 0
    p = vr.nn.Parameter(X)
    F.cross_entropy(p, np.full(9, -100)).backward()
    assert not p.grad.any()


@pytest.mark.parametrize("per", ["row", "sequence"])
def test_in_a_program_losses_have_the_same_bits(tmp_path, per):
    weights = RNG.random(9 if per == "row" else 5)
    with vr.program_guard() as program:
        x, labels = vr.feed_data("x", [-1, 4], "float64", lod_level=1), vr.feed_data("labels", [-1], "int64")
        y, w = vr.feed_data("y", [-1, 4], "float64"), vr.feed_data("w", [-1], "float64")
        fetched = [
            F.cross_entropy(x, labels, per=per),
            F.cross_entropy(x, labels, per=per, weight=WEIGHT, label_smoothing=0.1),
            F.focal_loss(x, labels, per=per, sample_weight=w), F.mse_loss(x, y, per=per, sample_weight=w),
            F.quantile_loss(x, y, 0.3, per=per), F.hinge_loss(x, y, per=per), F.poisson_nll_loss(x, y, per=per),
            F.cross_entropy(x, y.exp() / y.exp().sum(axis=1, keepdims=True), per=per),
        ]  # fmt: skip
    program.save(tmp_path / "losses")
    rows = vr.create_lod_tensor(X, [LENGTHS])
    soft = vr.Variable(Y).exp() / vr.Variable(Y).exp().sum(axis=1, keepdims=True)
    expected = [
        F.cross_entropy(rows, LABELS, per=per),
        F.cross_entropy(rows, LABELS, per=per, weight=WEIGHT, label_smoothing=0.1),
        F.focal_loss(rows, LABELS, per=per, sample_weight=weights), F.mse_loss(rows, Y, per=per, sample_weight=weights),
        F.quantile_loss(rows, Y, 0.3, per=per), F.hinge_loss(rows, Y, per=per), F.poisson_nll_loss(rows, Y, per=per),
        F.cross_entropy(rows, soft, per=per),
    ]  # fmt: skip
    feed = {"x": rows, "labels": LABELS, "y": Y, "w": weights}
    for made in (program, vr.Program.load(tmp_path / "losses")):
        found = vr.Executor().run(made, feed, [variable.name for variable in fetched])
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.cross_entropy(X, LABELS, weight=[1.0]), r"weight: expected shape \(4,\)"),
        (lambda: F.cross_entropy(X, LABELS, label_smoothing=2), "label_smoothing: expected 0 to 1"),
        (lambda: F.cross_entropy(X, LABELS, ignore_index=0.5), "ignore_index: expected an integer"),
        (lambda: F.cross_entropy(X, LABELS, sample_weight=[1.0]), r"sample_weight: expected shape \(9,\)"),
        (lambda: F.cross_entropy(X, LABELS, per="sequence"), "expected at least one level"),
        (lambda: F.cross_entropy(X, Y[:, :3]), "labels: expected shape"),
        (lambda: F.focal_loss(X, LABELS, gamma=-1), "gamma: expected finite and at least 0"),
        (lambda: F.hinge_loss(X, Y[:3]), "hinge_loss, target: expected shape"),
        (lambda: F.hinge_loss(X[:, 0], Y[:, :1]), "hinge_loss, target: expected shape"),
        (lambda: F.quantile_loss(X, Y, 1.5), "quantiles: expected between 0 and 1"),
        (lambda: F.quantile_loss(X, Y[:, 0], [0.5]), r"quantile_loss, x: expected shape \(rows, 1\)"),
        (lambda: F.poisson_nll_loss(X, Y, eps=-1), "eps: expected finite and at least 0"),
        (lambda: F.l1_loss(X[:, 0], Y[:, :1]), "target: expected shape"),
    ],
)
def test_wrong_losses_are_named(call, message):
    with pytest.raises(vr.InputError, match=message):
        call()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("sample_weight", [[1.0], [[1.0, 2.0]], 2.0, [1.0, 2.0, 3.0]])
def test_weights_of_sequences_have_one_number_for_each(reduction, sample_weight):
    logits = vr.create_lod_tensor(np.zeros((5, 3), np.float32), [[2, 3]])
    with pytest.raises(vr.InputError, match="sample_weight"):
        F.cross_entropy(logits, np.array([0, 1, 2, 0, 1]), reduction, per="sequence", sample_weight=sample_weight)


@pytest.mark.parametrize("name", ["weight", "pos_weight"])
def test_weights_of_elements_do_not_make_a_matrix_of_two_vectors(name):
    with pytest.raises(vr.InputError, match=name):
        F.binary_cross_entropy_with_logits([1.0, 2.0], [0.0, 1.0], **{name: [[1.0], [2.0]]})


def test_a_class_weight_of_soft_targets_has_every_class():
    with pytest.raises(vr.InputError, match="cross_entropy, weight"):
        F.cross_entropy(np.ones((5, 3)), np.ones((5, 3)), weight=[2.0])


def test_a_target_of_several_quantiles_has_every_row():
    for target in (np.ones(1), np.array(1.0)):
        with pytest.raises(vr.InputError, match="quantile_loss, target"):
            F.quantile_loss(np.ones((2, 2)), target, [0.1, 0.9])
    assert F.quantile_loss([1.0], [2.0], np.float32(0.5)).item() == 0.5
