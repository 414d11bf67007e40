"""Models of aeon: random convolutions, quantiles of intervals, and nearest neighbours under dynamic time warping.

They run in aeon's environment, without varlen_rnn, with aeon's defaults.
"""

import time

import numpy as np


def padded(kind, X, y, X_test, seed):
    """MiniRocket over series with zeros behind them."""
    from aeon.classification.convolution_based import MiniRocketClassifier
    from aeon.regression.convolution_based import MiniRocketRegressor

    estimator = {"series": MiniRocketClassifier, "numbers": MiniRocketRegressor}[kind]
    return _fitted(estimator(random_state=seed), y, *_with_zeros(X, X_test))


def resized(kind, X, y, X_test, seed):
    """MiniRocket over series that linear interpolation makes as long as the median one."""
    from aeon.classification.convolution_based import MiniRocketClassifier
    from aeon.regression.convolution_based import MiniRocketRegressor

    length = max(9, int(np.median(list(map(len, X)))))

    def array(some):
        places = [np.linspace(0, len(x) - 1, length) for x in some]
        rows = zip(some, places, strict=True)
        return np.array([[np.interp(at, np.arange(len(x)), column) for column in x.T] for x, at in rows], np.float32)

    estimator = {"series": MiniRocketClassifier, "numbers": MiniRocketRegressor}[kind]
    return _fitted(estimator(random_state=seed), y, array(X), array(X_test))


def hydra(kind, X, y, X_test, seed):
    """MultiRocket and Hydra together, over series with zeros behind them."""
    from aeon.classification.convolution_based import MultiRocketHydraClassifier
    from aeon.regression.convolution_based import MultiRocketHydraRegressor

    estimator = {"series": MultiRocketHydraClassifier, "numbers": MultiRocketHydraRegressor}[kind]
    shortest = 10  # MultiRocket takes the differences of steps too, which are nine then
    return _fitted(estimator(random_state=seed), y, *_with_zeros(X, X_test, shortest))


def quant(kind, X, y, X_test, seed):
    """QUANT, which is extremely random trees over quantiles of intervals, over series with zeros behind them."""
    from aeon.classification.interval_based import QUANTClassifier
    from aeon.regression.interval_based import QUANTRegressor

    estimator = {"series": QUANTClassifier, "numbers": QUANTRegressor}[kind]
    return _fitted(estimator(random_state=seed), y, *_with_zeros(X, X_test))


def neighbours(kind, X, y, X_test, seed):
    """One nearest neighbour under dynamic time warping, of series as they are; the window is a tenth."""
    from aeon.classification.distance_based import KNeighborsTimeSeriesClassifier
    from aeon.regression.distance_based import KNeighborsTimeSeriesRegressor

    estimator = {"series": KNeighborsTimeSeriesClassifier, "numbers": KNeighborsTimeSeriesRegressor}[kind]
    array = lambda some: [np.ascontiguousarray(x.T, np.float64) for x in some]
    equal = len({len(x) for x in [*X, *X_test]}) == 1
    given = (np.array(array(X)), np.array(array(X_test))) if equal else (array(X), array(X_test))
    return _fitted(estimator(distance="dtw", distance_params={"window": 0.1}), y, *given)


def _with_zeros(X, X_test, shortest=9):
    """Return both parts as arrays `(series, channels, steps)`, as long as the longest training series.

    Zeros follow shorter series; longer test series are cut.  No array has fewer steps than `shortest`.
    """
    length = max(shortest, max(map(len, X)))

    def array(some):
        found = np.zeros((len(some), some[0].shape[1], length), np.float32)
        for number, x in enumerate(some):
            found[number, :, : min(length, len(x))] = x[:length].T
        return found

    return array(X), array(X_test)


def _fitted(estimator, y, X, X_test):
    began = time.process_time()
    estimator.fit(X, y)
    seconds = time.process_time() - began
    return estimator.predict(X_test), None, seconds
