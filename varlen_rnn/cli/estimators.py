"""The estimators and their scores, for the commands `train`, `predict` and `evaluate`."""

import numpy as np

from varlen_rnn.interop.foreign import library

# The estimator for each kind of labels.
KIND_OF = {
    "classes": "SequenceClassifier",
    "several classes": "SequenceClassifier",
    "numbers": "SequenceRegressor",
    "classes of rows": "SequenceTagger",
}
LABEL_KIND_OF = {estimator: kind for kind, estimator in KIND_OF.items()}


def estimators():
    """Return the module of estimators; if scikit-learn is missing, raise an error that says how to install it."""
    library("sklearn", "scikit-learn")
    from varlen_rnn import sklearn

    return sklearn


def metrics_of(model, data):
    """Return the scores of a model on a data set with labels, by name; {} if the data set is empty."""
    from sklearn import metrics

    from varlen_rnn.sklearn.base import labels_of_data

    if not len(data):
        return {}
    y, found = labels_of_data(data, None), model.predict(data)
    if isinstance(y, list):
        y, found = np.concatenate(y), np.concatenate(found)
    if not hasattr(model, "classes_"):
        return {"R2": metrics.r2_score(y, found), "mean absolute error": metrics.mean_absolute_error(y, found)}
    f1 = metrics.f1_score(y, found, average="macro", zero_division=0.0)
    return {"accuracy": metrics.accuracy_score(y, found), "macro F1": f1}


def print_metrics(found, what):
    """Print the names and values of scores in one line that begins with `what`."""
    numbers = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
    print(f"{what}: {numbers or 'none'}")
