"""Files of estimators in which an array or a value is wrong are refused by `load`, or predict finite numbers.

A kernel that trusts an index of such a file would end the process, so the mutants are loaded in another process.  The
test takes every fourth mutant; `python -m tests.test_damaged_estimators` takes all.
"""

import subprocess
import sys
import tempfile

import numpy as np
import pytest

import varlen_rnn as vr

pytest.importorskip("sklearn")

import pandas as pd

from tests.test_estimator_inputs import series
from varlen_rnn import sklearn as estimators

SMALL = {"hidden_size": 4, "random_state": 0, "max_epochs": 1}
X, Y = series(12)
TEXTS = ["the sea and the sand", "a tree and a stream", "sand", "stream a tree", "and the sea", ""] * 2
WRONG = (None, -1, 2, 10**12, 1.5, float("nan"), True, "x", [], [None], {}, {"x": 1})
KINDS = ["convolutions", "network", "words", "tokens", "ids", "tagger", "rows", "quantiles", "forecaster", "covariates"]

PREDICT = """
import itertools
import sys
import numpy as np
import varlen_rnn as vr
from tests import test_damaged_estimators as mutants

kind, path, step = sys.argv[1:]
first = mutants.KINDS.index(kind) % int(step)
for place, saved in itertools.islice(mutants.mutants_of(vr.load(path)), first, None, int(step)):
    vr.save(path + ".damaged", **saved)
    print(place, flush=True)  # the last line says which mutant ended the process
    try:
        model = vr.sklearn.load(path + ".damaged")
    except vr.CheckpointError:
        continue
    mutants.check(kind, model)
"""


def fitted(kind):
    """Return an estimator whose file has the arrays and values of a kind."""
    if kind == "convolutions":
        return estimators.SequenceClassifier(**SMALL).fit(frame(), Y)
    if kind == "network":
        return estimators.SequenceClassifier(**SMALL, model="recurrent").fit(frame(), Y)
    if kind == "words":
        return estimators.SequenceClassifier(**SMALL).fit(TEXTS, [len(text) > 5 for text in TEXTS])
    if kind == "tokens":
        return estimators.SequenceClassifier(**SMALL, model="recurrent").fit([text.split() for text in TEXTS], Y)
    if kind == "ids":
        return estimators.SequenceRegressor(**SMALL).fit(ids(), np.arange(12.0))
    if kind == "tagger":
        return estimators.SequenceTagger(**SMALL, crf=True).fit(TEXTS, [[len(w) for w in t.split()] for t in TEXTS])
    if kind == "rows":
        return estimators.SequenceRegressor(**SMALL, model="recurrent").fit(X, [np.cumsum(rows[:, 0]) for rows in X])
    if kind == "quantiles":
        return estimators.SequenceRegressor(**SMALL, loss="quantile").fit(X, np.arange(24.0).reshape(12, 2))
    known = [np.arange(30.0)[:, None]] * 4 if kind == "covariates" else None
    model = estimators.SequenceForecaster(3, season_length=4, model="ridge" if known else "recurrent", **SMALL)
    return model.fit(forecasted(), future_covariates=known)


def frame():
    gaps = [np.where(np.arange(len(rows))[:, None] == 1, np.nan, rows) for rows in X]
    return pd.DataFrame({"series": gaps, "age": np.arange(12.0)})


def ids():
    return [np.arange(1 + number % 4) for number in range(12)]


def forecasted():
    return [np.sin(np.arange(30.0) + start) + 2 for start in range(4)]


def given_to(kind):
    """Return the X, and further arguments, of predictions of a kind."""
    given = {"words": TEXTS, "tagger": TEXTS, "ids": ids(), "rows": X, "quantiles": X}
    given |= {"tokens": [text.split() for text in TEXTS], "convolutions": frame(), "network": frame()}
    more = {"future_covariates": [np.arange(33.0)[:, None]] * 4} if kind == "covariates" else {}
    return given.get(kind, forecasted()), more


def check(kind, model):
    """Raise unless a model predicts finite numbers of the right shapes, or says what of X does not fit."""
    X, more = given_to(kind)
    for method in ("predict", "predict_proba", "predict_quantiles"):
        if hasattr(model, method):
            try:
                found = getattr(model, method)(X, **more)
            except vr.InputError:  # another name of a column, say
                return
            assert len(found) == len(X)
            for part in found:
                part = np.asarray(part)
                assert part.dtype.kind != "f" or np.isfinite(part).all()


def mutants_of(saved):
    """Yield, for each change of an array or a value, its name and the groups of the changed file."""
    for group, content in saved.items():
        if isinstance(content, dict) and content and all(isinstance(value, np.ndarray) for value in content.values()):
            for name, array in content.items():
                for place, changed in arrays_like(array):
                    yield f"{group}, {name}: {place}", saved | {group: content | {name: changed}}
                yield f"{group}, {name}: left out", saved | {group: {k: v for k, v in content.items() if k != name}}
        else:
            for place, changed in values_like(content):
                yield f"{group}{place}", saved | {group: changed}
        yield f"{group}: left out", {name: value for name, value in saved.items() if name != group}


def arrays_like(array):
    """Yield arrays that do not fit where an array was."""
    yield "float64", array.astype(np.float64) if array.dtype != np.float64 else array.astype(np.float32)
    yield "int32", np.nan_to_num(np.atleast_1d(array)).astype(np.int32).reshape(array.shape)
    yield "an axis more", array[None]
    yield "nothing", array.reshape(-1)[:0]
    for axis in range(array.ndim):
        if array.shape[axis]:
            yield f"less of axis {axis}", np.delete(array, -1, axis)
            yield f"more of axis {axis}", np.concatenate([array, array.take([-1], axis)], axis)
    if array.size:
        for number in (-(10**6), -7, -1, 0, 9, 10**6, 2**62) if array.dtype.kind in "iu" else (np.nan, np.inf):
            for place in (0, -1, slice(None)):
                changed = array.copy()
                changed.reshape(-1)[place] = number
                yield f"{number} at {place}", changed


def values_like(value, place=""):
    """Yield places in a value, and the value with something else there."""
    for wrong in WRONG:
        yield f"{place} = {wrong!r}", wrong
    if isinstance(value, dict):
        for name in value:
            yield f"{place}, {name}: left out", {key: inner for key, inner in value.items() if key != name}
            for inner, changed in values_like(value[name], f"{place}, {name}"):
                yield inner, value | {name: changed}
    if isinstance(value, list) and value:
        yield f"{place}: one less", value[:-1]
        yield f"{place}: one twice", [*value, value[-1]]
        for number in {0, len(value) - 1}:
            for inner, changed in values_like(value[number], f"{place}, {number}"):
                yield inner, [*value[:number], changed, *value[number + 1 :]]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:fit, X. expected floating-point numbers")  # of few ids
@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_array_or_value_is_refused_or_harmless(kind, tmp_path):
    check_mutants(kind, str(tmp_path / "model"), 4)


def check_mutants(kind, path, step):
    """Raise unless each `step`-th mutant of a kind of file is refused or harmless."""
    fitted(kind).save(path)
    check(kind, estimators.load(path))
    command = [sys.executable, "-c", PREDICT, kind, path, str(step)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"after {done.stdout[-200:].splitlines()[-1:]}: {done.stderr[-2000:]}"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for each in KINDS:
            check_mutants(each, f"{folder}/model", 1)
