"""Files of estimators that an earlier version wrote, in `tests/files_of_estimators`, with their predictions.

`python -m tests.saved_estimators` writes them anew.  That is right only after an incompatible change of files, because
`test_saved_estimators.py` holds that files once written are loaded and predict the same.
"""

import warnings
from pathlib import Path

import numpy as np

import varlen_rnn as vr
from tests.test_damaged_estimators import KINDS, SMALL, TEXTS, X, Y, fitted, forecasted, given_to
from varlen_rnn import sklearn as estimators
from varlen_rnn.sklearn import choice, convolutions

FOLDER = Path(__file__).parent / "files_of_estimators"
METHODS = "predict", "predict_proba", "predict_quantiles"
TAGS = [list(text) for text in TEXTS]
GAPS = [np.where(np.arange(len(rows)) % 3 == 1, np.nan, rows[:, 0]) for rows in X]

OTHERS = {
    "both": (lambda: estimators.SequenceClassifier(**SMALL).fit(X, np.random.default_rng(2).integers(0, 2, 12)), X),
    "held back": (lambda: estimators.SequenceRegressor(**SMALL, loss="mae").fit(X, Y, eval_set=(X[:5], Y[:5])), X),
    "several": (lambda: estimators.SequenceClassifier(**SMALL).fit(TEXTS, np.stack([Y, 1 - Y], axis=1)), TEXTS),
    "calibrated": (lambda: estimators.SequenceTagger(**SMALL, early_stopping=True).fit(TEXTS, TAGS), TEXTS),
    "rows in quantiles": (lambda: estimators.SequenceRegressor(**SMALL, loss="quantile").fit(X, GAPS), X),
    "naive": (lambda: estimators.SequenceForecaster(3, **SMALL).fit([[1.0, 2.0, 4.0]]), forecasted()),
    "chosen forecaster": (lambda: estimators.SequenceForecaster(2, **SMALL).fit(forecasted()), forecasted()),
}
ALL = [*KINDS, *OTHERS]


def given(kind):
    """Return the X, and further arguments, of predictions of a kind of file."""
    return given_to(kind) if kind in KINDS else (OTHERS[kind][1], {})


def predictions_of(kind, model):
    """Return the predictions of a model by method, each as one flat array."""
    X, more = given(kind)
    found = {name: getattr(model, name)(X, **more) for name in METHODS if hasattr(model, name)}
    return {name: np.concatenate([np.ravel(part) for part in parts]) for name, parts in found.items()}


def main():
    """Write the files and the predictions."""
    FOLDER.mkdir(exist_ok=True)
    warnings.simplefilter("ignore")
    convolutions._MOST_FEATURES = 84  # a small file
    choice._LEAST_SEQUENCES = 10
    predictions = {}
    for kind in ALL:
        model = fitted(kind) if kind in KINDS else OTHERS[kind][0]()
        model.save(FOLDER / kind.replace(" ", "_"))
        predictions[kind] = {
            name: {"values": found.tolist(), "kind": found.dtype.str}
            for name, found in predictions_of(kind, model).items()
        }
    vr.save(FOLDER / "predictions", predictions=predictions)


if __name__ == "__main__":
    main()
