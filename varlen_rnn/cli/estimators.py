"""The estimators and their scores, for the commands `train`, `predict` and `evaluate`."""

import numpy as np

from varlen_rnn.errors import InputError
from varlen_rnn.interop.foreign import library

# The estimator for each kind of labels.
KIND_OF = {
    "classes": "SequenceClassifier",
    "several classes": "SequenceClassifier",
    "numbers": "SequenceRegressor",
    "classes of rows": "SequenceTagger",
    "numbers of rows": "SequenceRegressor",
}


def label_kind_of(model):
    """Return the kind of labels that a model was trained on, or None for a forecaster, which has no labels."""
    kinds = [kind for kind, estimator in KIND_OF.items() if estimator == type(model).__name__]
    return next((kind for kind in kinds if kind.endswith("of rows") == model._labels.by_row), None)


def estimators():
    """Return the module of estimators; if scikit-learn is missing, raise an error that says how to install it."""
    library("sklearn", "scikit-learn")
    from varlen_rnn import sklearn

    return sklearn


def metrics_of(model, data):
    """Return the scores of a model on a data set with labels, by name; {} if the data set is empty."""
    from varlen_rnn.sklearn.labels import labels_of_data

    if not len(data):
        return {}
    y, found = labels_of_data(data, None), model.predict(data)
    if isinstance(y, list) and any(np.ndim(rows) == 2 for rows in found):
        expected = "a model that predicts one number per row"
        raise InputError("evaluate, MODEL", expected=expected, got="a model that predicts several numbers per row")
    of_steps = isinstance(y, list)
    log = model.predict_log_proba(data) if hasattr(model, "predict_log_proba") and (of_steps or y.ndim == 1) else None
    more = _coverage(model, data, y) if hasattr(model, "predict_quantiles") else {}
    if of_steps:
        y, found = np.concatenate(y), np.concatenate(found)
        there = np.not_equal(y, None)  # steps without a label do not count
        y, found, log = y[there].tolist(), found[there], None if log is None else np.concatenate(log)[there]
    more |= {} if log is None else _calibration(model, log, y)
    return _scores(y, found, hasattr(model, "classes_")) | more


def _calibration(model, log, y):
    """Return the log loss and the expected calibration error of probabilities of classes; {} if y has other classes.

    Sequences, or steps, are sorted into 15 bins of equal width by the probability of the class that is predicted.  The
    error is the mean difference of this probability and the accuracy (Guo et al., 2017, "On calibration of modern
    neural networks").
    """
    names = [str(name) for name in model.classes_]
    if not all(label in names for label in set(map(str, y))):
        return {}
    places = {name: place for place, name in enumerate(names)}
    right = np.array([places[str(label)] for label in y])
    best, gaps = np.exp(log.max(axis=1)), np.exp(log.max(axis=1)) - (log.argmax(axis=1) == right)
    by_bin = np.bincount(np.minimum((best * 15).astype(int), 14), weights=gaps)
    return {"log loss": -log[np.arange(len(y)), right].mean(), "calibration error": np.abs(by_bin).sum() / len(y)}


def _coverage(model, data, y):
    if len(model.quantiles) < 2:
        return {}
    found, low, high = model.predict_quantiles(data), model.quantiles[0], model.quantiles[-1]
    if isinstance(y, list):
        found, y = np.concatenate(found), np.concatenate(y)
    inside = (found[..., 0] <= y) & (y <= found[..., -1])
    return {f"between the quantiles {low:g} and {high:g}": inside.mean()}


def baseline_of(model, train, test):
    """Return the scores on `test` of the constant that is best on `train`, and a description of this constant.

    The constant is the most frequent class, or the mean of numbers.
    """
    from varlen_rnn.sklearn.labels import labels_of_data

    known, y = (labels_of_data(data, None) for data in (train, test))
    if isinstance(y, list):  # labels of steps; some steps may have none
        known, y = (np.array([label for row in rows for label in row if label is not None]) for rows in (known, y))
    of_classes = hasattr(model, "classes_")
    if of_classes and y.ndim == 1:
        names, counts = np.unique(known, return_counts=True)
        constant = names[counts.argmax()]
        text = f"always the most frequent class, {str(constant)!r}"
    elif of_classes:  # a sequence may have several classes
        constant = (known.mean(axis=0) > 0.5).astype(y.dtype)
        text = "always the classes that more than half of the sequences have"
    else:
        constant = known.mean(axis=0, dtype=np.float64)
        text = "always the mean" + (f", {constant:.4g}" if y.ndim == 1 else "")
    return _scores(y, np.broadcast_to(constant, y.shape), of_classes), text


def _scores(y, found, of_classes):
    from sklearn import metrics

    if not of_classes:
        return {"R2": metrics.r2_score(y, found), "mean absolute error": metrics.mean_absolute_error(y, found)}
    f1 = metrics.f1_score(y, found, average="macro", zero_division=0.0)
    return {"accuracy": metrics.accuracy_score(y, found), "macro F1": f1}


def print_metrics(found, what):
    """Print the names and values of scores in one line that begins with `what`."""
    numbers = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
    print(f"{what}: {numbers or 'none'}")
