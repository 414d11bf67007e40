"""Turn predictions into one error.  For every kind of set, less is better."""

import numpy as np

BINS, TRIALS = 10, 200


def losses_of(kind, found, wanted):
    """Return the loss of each test sequence: the share of wrong labels, or the squared error over the variance.

    The loss of a forecast is its sMAPE as a share of 1: the mean of `2 |y - f| / (|y| + |f|)`.

    Examples
    --------
    >>> losses_of("series", np.array(["a", "b"]), np.array(["a", "a"]))
    array([0., 1.])
    """
    if kind == "numbers":
        return (np.asarray(found, float) - wanted) ** 2 / np.var(wanted)
    if kind == "forecasts":  # the symmetric percentage error
        return (2 * np.abs(found - wanted) / (np.abs(found) + np.abs(wanted))).mean(axis=1)
    if kind == "tags":  # weights make the mean the share of all tokens
        sizes = np.array([len(tags) for tags in wanted])
        pairs = zip(found, wanted, strict=True)
        wrong = [np.sum(np.asarray(theirs) != np.asarray(tags)) for theirs, tags in pairs]
        return np.array(wrong) / sizes.mean()
    return (np.asarray(found) != np.asarray(wanted)).astype(float)


def summary(kind, found, proba, wanted):
    """Return the error, its standard error over the test sequences, and the calibration error or the coverage if known.

    Examples
    --------
    >>> summary("series", np.zeros(16), None, np.arange(16) % 2)
    {'error': 0.5, 'of_test': 0.125}
    """
    losses = losses_of(kind, found, wanted)
    line = {"error": float(losses.mean()), "of_test": float(losses.std() / len(losses) ** 0.5)}
    if proba is not None and kind in ("numbers", "forecasts"):
        line["coverage"] = float(np.mean((proba[..., 0] <= wanted) & (wanted <= proba[..., 1])))
    elif proba is not None:
        sure = np.max(proba, axis=1)
        line |= {"calibration": calibration(sure, losses == 0), "calibration_by_chance": by_chance(sure)}
    return line


def calibration(sure, right):
    """Return the expected calibration error over ten bins of equal width (Guo and others, arXiv 1706.04599).

    Examples
    --------
    >>> calibration(np.array([0.9, 0.9]), np.array([True, True])).round(2)
    np.float64(0.1)
    """
    bins = np.minimum((sure * BINS).astype(int), BINS - 1)
    gaps = [abs(sure[bins == k].mean() - right[bins == k].mean()) * np.mean(bins == k) for k in np.unique(bins)]
    return np.float64(sum(gaps))


def by_chance(sure):
    """Return the mean calibration error of a model that is right exactly as often as it is sure, on so few sequences.

    Examples
    --------
    >>> by_chance(np.full(4, 0.5)) > by_chance(np.full(400, 0.5)) > 0
    np.True_
    """
    rng = np.random.default_rng(0)
    return np.mean([calibration(sure, rng.random(len(sure)) < sure) for _ in range(TRIALS)])
