"""What estimators give beside predictions: embeddings of sequences, and attributions of their rows."""

import numpy as np
import pytest

import varlen_rnn as vr

pytest.importorskip("sklearn")

from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from tests.test_estimator_inputs import people, series, with_gaps
from varlen_rnn.sklearn import SequenceClassifier, SequenceRegressor, choosing
from varlen_rnn.sklearn.attributions import integrated

SMALL = {"hidden_size": 8, "random_state": 0, "max_epochs": 8}
RECURRENT = SMALL | {"model": "recurrent"}
pytestmark = pytest.mark.filterwarnings("error:The attributions")
TEXTS = ["the sea and the sand", "a tree and a stream", "sand", "stream a tree", "and the sea", ""] * 4
PLACES = ["beach", "forest", "beach", "forest", "beach", "forest"] * 4


def test_an_embedding_has_what_the_linear_layer_takes(monkeypatch):
    monkeypatch.setattr("varlen_rnn.sklearn.recurrent.ROWS", 20)
    X, y = series(60)
    model = SequenceClassifier(**RECURRENT).fit(X, y)
    embedding = model.transform(X)
    assert embedding.dtype == np.float32
    assert embedding.shape == (60, len(model.get_feature_names_out())) == (60, 2 * 8 * 3 + 64)
    outputs = embedding @ np.asarray(model.module_.output.weight).T + np.asarray(model.module_.output.bias)
    np.testing.assert_allclose(outputs * model._shares["recurrent"], model._outputs(X, None)[1], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(np.concatenate([model.transform(X[k : k + 1]) for k in range(60)]), embedding)


@pytest.mark.parametrize(("X", "y"), [series(30), (TEXTS, PLACES)])
def test_an_embedding_of_a_ridge_has_its_features(monkeypatch, X, y):
    monkeypatch.setattr("varlen_rnn.sklearn.described._AT_ONCE", 10)
    model = SequenceClassifier(**SMALL).fit(X, y)
    embedding, linear = model.transform(X), next(iter(model._candidates.values())).linear
    assert sparse.issparse(embedding) == isinstance(X[0], str)
    assert embedding.dtype == np.float32
    (share,) = model._shares.values()
    shares = (1 + embedding @ linear.weight + linear.bias) / 2
    found = share * np.log(np.maximum(shares, 0) + 2)  # four over the number of classes
    np.testing.assert_allclose(found, model._outputs(X, None)[1], rtol=1e-3, atol=1e-3)
    assert embedding.shape == (len(X), len(model.get_feature_names_out()))
    both = SequenceClassifier(**RECURRENT).fit(X, y)
    both._candidates |= model._candidates
    both._shares = model._shares | {"recurrent": 1.0}
    parts = [embedding, SequenceClassifier(**RECURRENT).fit(X, y).transform(X)]
    joined = both.transform(X)
    whole = [part.toarray() if sparse.issparse(part) else part for part in (joined, *parts)]
    np.testing.assert_array_equal(whole[0], np.concatenate(whole[1:], axis=1))


def test_an_estimator_may_stand_before_another():
    X, y = series(60)
    for model in (SequenceClassifier(**RECURRENT), SequenceRegressor(**RECURRENT)):
        assert make_pipeline(model, LogisticRegression(max_iter=1000)).fit(X, y).score(X, y) > 0.7
        np.testing.assert_array_equal(clone(model).fit_transform(X, y), model.transform(X))
    assert make_pipeline(SequenceClassifier(**SMALL), LogisticRegression()).fit(TEXTS, PLACES).score(TEXTS, PLACES) == 1


def test_integrated_gradients_of_a_function_that_has_them_in_closed_form():
    """For f = x1^2 x2 and the baseline 0, they are 2/3 and 1/3 of f; three nodes integrate them without error."""
    rng = np.random.default_rng(0)
    rows = vr.create_lod_tensor(rng.standard_normal((6, 2)), [[3, 0, 1, 2]])
    found = integrated(lambda x: vr.sequence_pool(x[:, 0] * x[:, 0] * x[:, 1], "sum"), rows, np.zeros(2), 2)
    product = rows.data[:, 0] ** 2 * rows.data[:, 1]
    np.testing.assert_allclose(found, product[:, None] * [2 / 3, 1 / 3], rtol=1e-12)


def check_complete(found, differences, share=0.02):
    sums = np.array([attribution.sum(dtype=np.float64) for attribution in found])
    assert np.abs(differences).max() > 0.05
    np.testing.assert_allclose(sums, differences, atol=share * np.abs(differences).max())


def baselines(model, X):
    return [np.tile(np.array(model._inputs.filling.means, np.float32), (len(x), 1)) for x in X]


@pytest.mark.parametrize("gaps", [[], [0], [0, 1]])
def test_attributions_add_up_to_the_logarithm_of_a_probability(monkeypatch, gaps):
    monkeypatch.setattr(choosing, "ROWS", 120)
    X, y = series(60)
    X = [*with_gaps(X, gaps), np.zeros((0, 2), np.float32)]
    model = SequenceClassifier(**RECURRENT).fit(X, [*y, 0])
    before = np.array(model.module_.output.weight.grad)
    found = model.integrated_gradients(X, steps=64)
    np.testing.assert_array_equal(model.module_.output.weight.grad, before)
    assert [part.shape for part in found] == [x.shape for x in X]
    assert found[0].dtype == np.float32
    best, rows = model.predict(X), np.arange(len(X))
    logs = [model.predict_log_proba(part)[rows, best] for part in (X, baselines(model, X))]
    check_complete(found, logs[0] - logs[1])
    found = model.integrated_gradients(X, target=1, steps=64)
    logs = [model.predict_log_proba(part)[:, 1] for part in (X, baselines(model, X))]
    check_complete(found, logs[0] - logs[1])
    assert model.module_.training
    assert all(parameter.requires_grad for parameter in model.module_.output.parameters())
    alone = model.integrated_gradients(X[5:6], target=1, steps=64)
    np.testing.assert_allclose(alone[0], found[5], rtol=1e-3, atol=1e-5)


def test_attributions_of_numbers_of_several_classes_and_of_static_features():
    X, y = series(60)
    targets = np.column_stack([1000 + 50 * np.array([x[:, 0].max() for x in X]), [x[-1, 1] for x in X]])
    regressor = SequenceRegressor(**RECURRENT).fit(X, targets)
    for target in (0, 1):
        parts = [regressor.predict(part)[:, target] for part in (X, baselines(regressor, X))]
        check_complete(regressor.integrated_gradients(X, target=target, steps=64), parts[0] - parts[1])
    several = SequenceClassifier(**RECURRENT).fit(X, np.column_stack([y, 1 - y, np.ones(60, int)]))
    parts = [several.predict_log_proba(part)[:, 1] for part in (X, baselines(several, X))]
    check_complete(several.integrated_gradients(X, target=1, steps=64), parts[0] - parts[1])
    frame, y = people()
    beside = SequenceClassifier(**RECURRENT).fit(frame, y)
    without = frame.copy()
    for k, rows in enumerate(baselines(beside, frame["series"])):
        without.at[k, "series"] = rows
    parts = [beside.predict_log_proba(part)[:, 1] for part in (frame, without)]
    check_complete(beside.integrated_gradients(frame, target=1, steps=64), parts[0] - parts[1])


def test_attributions_of_tokens_compare_with_embeddings_of_zeros():
    model = SequenceClassifier(**RECURRENT, tokens="words").fit(TEXTS, PLACES)
    found = model.integrated_gradients(TEXTS, target="beach", steps=64)
    assert [part.shape for part in found] == [(len(text.split()),) for text in TEXTS]
    logs = model.predict_log_proba(TEXTS)[:, 0]
    model.module_.embedding.weight.assign(np.zeros(model.module_.embedding.weight.shape, np.float32))
    check_complete(found, logs - model.predict_log_proba(TEXTS)[:, 0])


def test_too_few_steps_are_mentioned():
    X, y = series(40)
    model = SequenceClassifier(**RECURRENT).fit(X, y)
    model.module_.output.weight.assign(100 * np.asarray(model.module_.output.weight))
    with pytest.warns(ConvergenceWarning, match=r"attributions of \d+ sequences of 40 do not add up.*Try more steps"):
        model.integrated_gradients(X, target=1, steps=1)


def test_a_feature_without_effect_has_no_attribution():
    X, y = series(40)
    X = [np.column_stack([x, np.full(len(x), 3.0)]) for x in X]
    found = SequenceClassifier(**RECURRENT).fit(X, y).integrated_gradients(X)
    assert all((part[:, 2] == 0).all() for part in found)
    assert any(part[:, :2].any() for part in found)


def test_attributions_that_there_are_not_are_errors():
    X, y = series(30)
    ridge, model = SequenceClassifier(**SMALL).fit(X, y), SequenceClassifier(**RECURRENT).fit(X, y)
    with pytest.raises(
        vr.InputError, match=r"predicts by a network alone, got one by convolutions .*model='recurrent'"
    ):
        ridge.integrated_gradients(X)
    for target in (7, "a", np.ones(2), [0]):
        with pytest.raises(vr.InputError, match="integrated_gradients, target: expected one of the classes, 0, 1"):
            model.integrated_gradients(X, target=target)
    with pytest.raises(vr.InputError, match="integrated_gradients, steps"):
        model.integrated_gradients(X, steps=0)
    regressor = SequenceRegressor(**RECURRENT).fit(X, y * 1.0)
    with pytest.raises(vr.InputError, match="integrated_gradients, target: expected less than 1"):
        regressor.integrated_gradients(X, target=1)
