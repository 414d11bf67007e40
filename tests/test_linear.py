"""The ridge of the estimators: leave-one-out equals fits without each sequence, and calibration finds the factor."""

import numpy as np
import pytest

pytest.importorskip("sklearn")

from scipy import sparse
from sklearn.linear_model import Ridge

from varlen_rnn.sklearn.linear import Linear, Targets


def problem(kind="numbers", count=20, features=35, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, features))
    x[:, 3] = 1.5  # constant
    values = x[:, :2] + 0.3 * rng.standard_normal((count, 2))
    if kind != "numbers":
        values = np.where(values > values.mean(axis=1, keepdims=True), 1.0, -1.0)
    return x.astype(np.float32), Targets(values, kind, rng.uniform(0.5, 2, count))


@pytest.mark.parametrize("form", ["sparse", "dense"])
@pytest.mark.parametrize("features", [5, 35])
def test_outputs_left_out_are_those_of_fits_without_the_sequence(form, features):
    x, targets = problem(features=features)
    if form == "dense":  # scaled once, as the statistics of all sequences say
        scaled = np.delete((x - x.mean(axis=0)) / np.where(x.std(axis=0) < 1e-5, 1, x.std(axis=0)), 3, axis=1)
    model = Linear()
    given = sparse.csr_array(x.astype(np.float64)) if form == "sparse" else x
    loss, found = model.fit_left_out(given, None if form == "sparse" else np.ones(features), targets)
    inputs = x.astype(np.float64) if form == "sparse" else scaled
    for k in range(len(x)):
        others = np.arange(len(x)) != k
        ridge = Ridge(model.penalty).fit(inputs[others], targets.values[others], targets.weights[others])
        np.testing.assert_allclose(found[k], ridge.predict(inputs[k : k + 1])[0], rtol=1e-5, atol=1e-5)
    assert loss == targets.calibrated(found)[0]
    whole = Ridge(model.penalty).fit(inputs, targets.values, targets.weights).predict(inputs)
    np.testing.assert_allclose(model.outputs(given), whole, rtol=1e-4, atol=1e-4)
    again = Linear()
    again.penalty = model.penalty
    again.fit(given, None if form == "sparse" else np.ones(features), targets)
    np.testing.assert_allclose(again.outputs(given), whole, rtol=1e-3, atol=1e-3)


def test_outputs_do_not_depend_on_other_sequences():
    x, targets = problem()
    model = Linear()
    model.fit_left_out(x, np.ones(35), targets)
    np.testing.assert_array_equal(np.concatenate([model.outputs(row[None]) for row in x]), model.outputs(x))
    far = model.outputs(np.full((1, 35), 1e30, np.float32))
    assert np.isfinite(far).all()


@pytest.mark.parametrize("kind", ["classes", "several classes"])
def test_the_factor_of_probabilities(kind):
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((4000, 2)) * 2
    if kind == "classes":
        right = rng.uniform(size=4000) < 1 / (1 + np.exp(logits[:, 1] - logits[:, 0]))
        values = np.where(np.column_stack([right, ~right]), 1.0, -1.0)
    else:
        values = np.where(rng.uniform(size=(4000, 2)) < 1 / (1 + np.exp(-logits)), 1.0, -1.0)
    targets = Targets(values, kind, np.ones(4000))
    loss, factor = targets.calibrated(logits / 5)
    assert 4.5 < factor < 5.5
    assert abs(targets.calibrated(logits * 3)[0] - loss) < 1e-4
    certain = Targets(np.tile([[1.0, -1.0]], (48, 1)), "classes", np.ones(48))
    probability = 1 / (1 + np.exp(-2 * certain.calibrated(certain.values)[1]))
    np.testing.assert_allclose(probability, 1 - 1 / 50, rtol=1e-3)  # not 1, as no error in 48 might be


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_sequences_or_constant_features(count):
    for features in (np.zeros((count, 4), np.float32), np.ones((count, 4), np.float32)):
        targets = Targets(np.where(np.arange(count)[:, None] % 2 == [0, 1], 1.0, -1.0), "classes", np.ones(count))
        model = Linear()
        loss, found = model.fit_left_out(features, np.ones(4), targets)
        assert np.isfinite(found).all()
        assert np.isfinite(loss)
        assert np.isfinite(model.outputs(features)).all()


def test_outputs_of_classes_are_logarithms_of_shares():
    rng = np.random.default_rng(0)
    labels = rng.integers(20, size=60)
    x = (np.eye(20)[labels] + 0.5 * rng.standard_normal((60, 20))).astype(np.float32)
    values, model = 2.0 * np.eye(20)[labels] - 1, Linear()
    _, left_out = model.fit_left_out(x, np.ones(20), Targets(values, "classes", np.ones(60)))
    scaled = (x - x.mean(axis=0)) / x.std(axis=0)
    logarithms = lambda found: np.log(np.maximum((1 + found) / 2, 0) + 4 / 20)
    whole = Ridge(model.penalty).fit(scaled, values)
    np.testing.assert_allclose(model.outputs(x), logarithms(whole.predict(scaled)), rtol=1e-3, atol=1e-4)
    without = Ridge(model.penalty).fit(scaled[1:], values[1:])
    np.testing.assert_allclose(left_out[0], logarithms(without.predict(scaled[:1]))[0], rtol=1e-5, atol=1e-5)
