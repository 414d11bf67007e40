"""The sets: where each comes from, and how it is divided.

The loaders import what else they need themselves, because aeon's environment has NumPy and scikit-learn alone.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from benchmarks.quality import series
from benchmarks.quality.models import models_of
from benchmarks.quality.series import forecasts

SHARE = 4  # one of four sequences is for the test, if the set has no test part of its own


class Set(NamedTuple):
    """A set of sequences and labels.

    Attributes
    ----------
    kind : {"series", "texts", "tags", "numbers", "forecasts"}
        It decides which models are compared.
    load : callable(folder) -> ((X, y), (X_test, y_test))
        `folder` has aeon's files.  For "forecasts", X are the series before the present, y of the training is a pair,
        horizon and season, and y of the test has the values that follow, `(series, horizon)`.
    tuned : bool
        Whether the defaults of the estimators were chosen on this set, among others.
    about : str
    of_aeon : bool
        Whether its files are in aeon's environment.
    of_ours : bool
        Whether varlen_rnn reads it, which aeon's environment lacks.
    origins : int
        From how many points of time forecasts begin: the last `horizon` values, and the values before them, ...  A few
        series have few forecasts from one point, and their errors belong together.
    """

    kind: str
    load: Callable
    tuned: bool
    about: str
    of_aeon: bool = False
    of_ours: bool = False
    origins: int = 1

    def divisions(self, folder):
        """Yield the training and the test part, of forecasts once for each origin."""
        whole = self.load(folder)
        yield whole
        if self.origins > 1:
            (past, (horizon, season)), (_, future) = whole
            for number in range(1, self.origins):
                series = [np.concatenate(pair)[: -number * horizon] for pair in zip(past, future, strict=True)]
                yield forecasts(series, horizon, season)


def read_ts(path):
    """Return the series of a .ts file, float32 `(steps, channels)`, and their labels as texts.

    A series that is padded with NaN ends where the padding begins.
    """
    lines = path.read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if line.lower().startswith("@data"))
    X, y = [], []
    for line in filter(str.strip, lines[begin + 1 :]):
        *columns, label = line.strip().split(":")
        numbers = [[np.nan if text == "?" else float(text) for text in column.split(",")] for column in columns]
        rows = np.array(list(zip(*numbers, strict=False)), np.float32)
        X.append(np.ascontiguousarray(rows[~np.isnan(rows).any(axis=1)]))
        y.append(label.strip())
    return X, np.array(y)


def _series(name, about, tuned=False, kind="series"):
    """Return a set of aeon, which has a training and a test part."""

    def load(folder):
        parts = [read_ts(folder / name / f"{name}_{part}.ts") for part in ("TRAIN", "TEST")]
        return tuple((X, y.astype(float)) if kind == "numbers" else (X, y) for X, y in parts)

    return name, Set(kind, load, tuned, about, of_aeon=True)


def _divided(X, y):
    """Return training and test part: a random quarter, the same in every run, is for the test."""
    order = np.random.default_rng(0).permutation(len(X))
    held = len(X) // SHARE
    chosen = lambda some, which: some[which] if isinstance(some, np.ndarray) else [some[k] for k in which]
    return tuple((chosen(X, which), chosen(y, which)) for which in (order[held:], order[:held]))


def _digits(folder):
    from sklearn.datasets import load_digits

    found = load_digits()
    return _divided(list(found.images.astype(np.float32)), found.target)


def _names(folder):
    import varlen_rnn as vr

    whole = vr.data.unicode_names()
    tokens = np.array(whole.vocabulary)
    order = np.random.default_rng(0).permutation(len(whole.sequences))[:6000]
    return _divided(["".join(tokens[whole.sequences[k]]) for k in order], np.array(whole.classes)[whole.labels[order]])


def _sentences(folder):
    import varlen_rnn as vr

    whole = vr.data.documentation_sentences()
    tokens = np.array(whole.vocabulary)
    return _divided([" ".join(tokens[ids]) for ids in whole.sequences], np.array(whole.classes)[whole.labels])


def _packages(folder):
    import varlen_rnn as vr

    whole = vr.data.standard_library_functions(["asyncio", "email", "json", "logging", "unittest", "xml"])
    texts = ["".join(whole.vocabulary[number] for number in ids) for ids in whole.sequences]
    return _divided(texts, np.array(whole.classes)[whole.labels])


def _functions():
    from benchmarks.estimators import functions

    return functions()


def _branches(folder):
    from benchmarks.estimators import lines

    pairs = [pair for text in _functions() if (pair := lines(text)) is not None]
    return _divided([x for x, _ in pairs], np.array([y for _, y in pairs]))


def _characters(folder):
    from benchmarks.estimators import characters

    pairs = [pair for text in _functions() if (pair := characters(text)) is not None]
    return _divided([list(text) for text, _ in pairs], [list(map(str, kinds)) for _, kinds in pairs])


def _code_tokens(folder):
    """Return tokens of functions with their role: as in keyword, call, attribute, argument, name, text."""
    from benchmarks.quality.code import tagged

    pairs = [pair for text in _functions() if (pair := tagged(text)) is not None]
    return _divided([tokens for tokens, _ in pairs], [tags for _, tags in pairs])


SETS = dict(
    [
        _series("GunPoint", "50 series of 150 steps", tuned=True),
        _series("ItalyPowerDemand", "67 series of 24 steps", tuned=True),
        _series("BasicMotions", "40 series of 100 steps, 6 channels", tuned=True),
        _series("PickupGestureWiimoteZ", "50 series of 29 to 361 steps", tuned=True),
        _series("JapaneseVowels", "270 series of 7 to 29 steps, 12 channels", tuned=True),
        _series("ArrowHead", "36 outlines of 251 steps"),
        _series("ACSF1", "100 series of 1,460 steps"),
        _series("OSULeaf", "200 outlines of 427 steps"),
        _series("Covid3Month_disc", "140 series of 84 steps"),
        _series("UnitTest", "20 series of 24 steps"),
        _series("Covid3Month", "140 series of 84 steps: a rate of deaths", kind="numbers"),
        _series("CardanoSentiment", "74 series of 24 steps, 2 channels", kind="numbers"),
    ]
) | {
    "digits": Set("series", _digits, False, "scikit-learn's digits, 8 steps of 8 pixels"),
    "names": Set("texts", _names, False, "6,000 names of Unicode's characters: their category"),
    "sentences": Set("texts", _sentences, False, "sentences of Python's language reference: their topic"),
    "packages": Set("texts", _packages, False, "functions of Python's library: their package"),
    "characters": Set("tags", _characters, False, "the characters of functions: the kind of token that each is in"),
    "code tokens": Set("tags", _code_tokens, False, "the tokens of functions: their role"),
    "M1 yearly": Set("forecasts", series.m1, False, "181 yearly series of the M1 competition", True),
    "fertility": Set("forecasts", series.fertility, True, "births per woman in 192 countries, yearly", True),
    "firms": Set("forecasts", series.firms, True, "investment, value and capital of 11 firms, yearly", True),
    "economy": Set("forecasts", series.economy, False, "10 quarterly series of the United States", True, origins=4),
    "sea": Set("forecasts", series.sea, True, "temperatures of the sea, 6 decades of months", True, origins=4),
    "carbon dioxide": Set(
        "forecasts", series.carbon_dioxide, False, "concentrations in the air, by month", True, origins=4
    ),
    "sales": Set("forecasts", series.sales, False, "3 monthly series of passengers, sales and orders", True),
    "branches": Set(
        "numbers", _branches, False, "the lines of functions, indent and length: how many branches", of_ours=True
    ),
}


def models_for(name):
    """Return the names of the models of a set.

    Examples
    --------
    >>> models_for("branches")
    ['varlen_rnn', 'varlen_rnn, recurrent', 'varlen_rnn, quantiles', 'boosted statistics', 'PyTorch LSTM']
    """
    return models_of(SETS[name].kind, SETS[name].of_ours)
