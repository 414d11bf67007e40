"""The models by kind of set: the estimators with their defaults, and the baselines that a reader would try first."""

import importlib
import importlib.util
from importlib import metadata
from typing import NamedTuple

OURS, RECURRENT, QUANTILES = OWN = "varlen_rnn", "varlen_rnn, recurrent", "varlen_rnn, quantiles"
SEEDS = 5
DISTRIBUTIONS = {"sklearn": "scikit-learn", "sklearn_crfsuite": "sklearn-crfsuite"}  # by the name that is imported


class Model(NamedTuple):
    """Where a model is, and how it is run.

    Attributes
    ----------
    where : str
        A function of this package, "module.function", called with training X and y, test X and a seed.  It returns the
        predictions, probabilities (of numbers and forecasts, low and high ends of intervals) or None, and the seconds
        of processor time of the fit.
    kinds : tuple of str
        The kinds of sets that it is for.
    needs : tuple of str
        Packages; "aeon" means that it runs in aeon's environment.
    seeded : bool
        Whether the seed changes the result; otherwise it is run once.
    """

    where: str
    kinds: tuple
    needs: tuple = ()
    seeded: bool = True


MODELS = {
    OURS: Model("ours.default", ("series", "texts", "tags", "numbers", "forecasts")),
    RECURRENT: Model("ours.recurrent", ("series", "texts", "numbers", "forecasts")),
    QUANTILES: Model("ours.quantiles", ("numbers",)),
    "MiniRocket, padded": Model("rocket.padded", ("series", "numbers"), ("aeon",)),
    "MiniRocket, resized": Model("rocket.resized", ("series", "numbers"), ("aeon",)),
    "MultiRocketHydra": Model("rocket.hydra", ("series", "numbers"), ("aeon",)),
    "QUANT": Model("rocket.quant", ("series", "numbers"), ("aeon",)),
    "KNN-DTW": Model("rocket.neighbours", ("series", "numbers"), ("aeon",), seeded=False),
    "n-grams, SVM": Model("ngrams.machine", ("texts",), ("sklearn",), seeded=False),
    "n-grams, logistic": Model("ngrams.logistic", ("texts",), ("sklearn",), seeded=False),
    "CRF": Model("crf.field", ("tags",), ("sklearn_crfsuite",), seeded=False),
    "boosted statistics": Model("boosting.statistics", ("series", "numbers"), ("sklearn",), seeded=False),
    "naive": Model("forecasts.naive", ("forecasts",), seeded=False),
    "seasonal naive": Model("forecasts.seasonal", ("forecasts",), seeded=False),
    "boosted lags": Model("forecasts.boosted", ("forecasts",), ("sklearn",)),
    "PyTorch LSTM": Model("pytorch.lstm", ("series", "texts", "tags", "numbers"), ("torch",)),
}


def models_of(kind, of_ours=False):
    """Return the names of the models of a kind of sets; if varlen_rnn reads the set, those outside aeon's environment.

    Examples
    --------
    >>> models_of("tags")
    ['varlen_rnn', 'CRF', 'PyTorch LSTM']
    """
    return [name for name, its in MODELS.items() if kind in its.kinds and not (of_ours and "aeon" in its.needs)]


def seeds_of(name):
    """Return how many seeds a model is run with.

    Examples
    --------
    >>> seeds_of("CRF"), seeds_of("PyTorch LSTM")
    (1, 5)
    """
    return SEEDS if MODELS[name].seeded else 1


def function_of(name):
    """Return the function of a model."""
    module, _, function = MODELS[name].where.partition(".")
    return getattr(importlib.import_module(f"benchmarks.quality.{module}"), function)


def versions_of(name):
    """Return the versions of the packages that a model needs, by the names of their distributions.

    Examples
    --------
    >>> versions_of("naive")
    {}
    """
    needed = [DISTRIBUTIONS.get(package, package) for package in MODELS[name].needs]
    return {package: metadata.version(package) for package in needed}


def lacking(name, aeon):
    """Return the packages that a model needs and that are not installed; `aeon` is whether it has its environment."""
    there = lambda package: aeon if package == "aeon" else importlib.util.find_spec(package) is not None
    return [package for package in MODELS[name].needs if not there(package)]
