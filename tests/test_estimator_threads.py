"""Fitted estimators that threads share: each call answers as if it were alone, and none changes the model."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import varlen_rnn as vr
from tests.in_threads import at_once

pytest.importorskip("sklearn")

from tests.test_estimator_inputs import series
from tests.waiting import HANGS
from varlen_rnn.sklearn import SequenceClassifier, SequenceForecaster, SequenceRegressor, SequenceTagger

SMALL = {"hidden_size": 8, "random_state": 0, "max_epochs": 2}
THREADS, CALLS = 8, 12
X, Y = series(12)
TEXTS = ["the sea and the sand", "a tree and a stream", "sand", "stream a tree", "and the sea", ""] * 4
TAGS = [[len(word) > 3 for word in text.split()] for text in TEXTS]


def fitted(name):
    """Return an estimator, and its methods that threads call with the sequences, which are returned too."""
    if name == "network":
        model = SequenceClassifier(**SMALL, model="recurrent").fit(X, Y)
        return model, ["predict_proba", "predict", "transform", "integrated_gradients"], X
    if name == "ridge":
        return SequenceClassifier(**SMALL, model="convolutions").fit(X, Y), ["predict_proba", "transform"], X
    if name == "n-grams":
        model = SequenceClassifier(**SMALL, model="ngrams").fit(TEXTS, [len(text) > 5 for text in TEXTS])
        return model, ["predict_proba"], TEXTS
    if name == "numbers of rows":
        model = SequenceRegressor(**SMALL, model="recurrent").fit(X, [np.cumsum(rows[:, 0]) for rows in X])
        return model, ["predict"], X
    if name == "tagger":
        return SequenceTagger(**SMALL, crf=True).fit(TEXTS, TAGS), ["predict_proba", "predict"], TEXTS
    several = [np.sin(np.arange(40.0) + start) for start in range(4)]
    return SequenceForecaster(**SMALL, horizon=3, model="recurrent").fit(several), ["predict"], several


def parts(value):
    """Return what a call gave as a list of arrays."""
    if isinstance(value, list):
        return [np.asarray(part) for part in value]
    return [value.toarray() if hasattr(value, "toarray") else np.asarray(value)]


def differing(found, expected):
    """Return the methods of the calls that gave other numbers than expected."""
    return [method for method, given in found if not all(map(np.array_equal, given, expected[method]))]


@pytest.mark.parametrize("name", ["network", "ridge", "n-grams", "numbers of rows", "tagger", "forecaster"])
def test_calls_of_several_threads_answer_as_one_alone(name):
    model, methods, sequences = fitted(name)
    answers = lambda: [(method, parts(getattr(model, method)(sequences))) for method in methods]
    expected = dict(answers())
    module = getattr(getattr(model, "_network", model), "module_", None) or vr.nn.Module()  # a ridge has no network
    module.zero_grad()
    before, found, start = module.state_dict(), [], threading.Barrier(THREADS)

    def call(first):
        start.wait(HANGS)
        for number in range(first, first + CALLS):
            method = methods[number % len(methods)]
            found.append((method, parts(getattr(model, method)(sequences))))

    at_once(call, [(number,) for number in range(THREADS)])
    assert len(found) == THREADS * CALLS
    assert not differing(found, expected)
    assert not [name for name, array in module.state_dict().items() if not np.array_equal(array, before[name])]
    assert not [name for name, parameter in module.named_parameters() if parameter.grad is not None]
    assert not differing(answers(), expected)


@pytest.mark.parametrize("mode", [True, False])
def test_predictions_leave_modes_and_need_none(mode):
    model, methods, _ = fitted("network")
    expected = {method: parts(getattr(model, method)(X)) for method in methods}
    model.module_.train(mode).dropout.train()
    modes = [module.training for module in model.module_.modules()]
    assert not differing([(method, parts(getattr(model, method)(X))) for method in methods], expected)
    assert [module.training for module in model.module_.modules()] == modes
    with ThreadPoolExecutor(2) as pool:
        assert np.array_equal(model.predict_proba(X, executor=pool), *expected["predict_proba"])


def test_predictions_follow_changes_of_the_public_module():
    model, methods, _ = fitted("network")
    before = {method: parts(getattr(model, method)(X)) for method in methods}
    model.module_.output.weight.assign(0.0)
    assert np.ptp(model.predict_proba(X), axis=0).max() == 0
    assert all(not found.any() for found in model.integrated_gradients(X))
    model.set_params(warm_start=True).fit(X, Y)
    assert np.ptp(model.predict_proba(X), axis=0).max() > 0
    assert differing([("transform", parts(model.transform(X)))], before)
