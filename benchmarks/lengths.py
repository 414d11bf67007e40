"""Lengths of the sequences of a batch.

Those of a distribution are its quantiles, not draws: a batch of 8 then has the shape of a batch of 128, and no figure
hangs on a lucky longest sequence.  Those of a data set are draws, for there the luck is part of the truth.
"""

import functools
from statistics import NormalDist

import numpy as np

import varlen_rnn as vr

SHORTEST, LONGEST = 5, 400
DATA_SETS = {
    "names": vr.data.unicode_names,
    "sentences": vr.data.documentation_sentences,
    "functions": vr.data.standard_library_functions,
}


def equal(batch_size, length):
    """Return `batch_size` times the same length."""
    return (length,) * batch_size


def lognormal(batch_size, median=60, sigma=0.8):
    """Return the quantiles of a lognormal distribution, within 5 to 400 steps.

    Examples
    --------
    >>> lognormal(4)
    (77, 24, 46, 151)
    """
    normal = NormalDist(np.log(median), sigma)
    return _batch([np.exp(normal.inv_cdf(level)) for level in _levels(batch_size)])


def pareto(batch_size, shortest=10, alpha=1.2):
    """Return the quantiles of a Pareto distribution, within 5 to 400 steps: a heavy tail.

    Examples
    --------
    >>> pareto(4)
    (23, 11, 15, 57)
    """
    return _batch(shortest * (1 - _levels(batch_size)) ** (-1 / alpha))


def of_data_set(batch_size, name):
    """Return the lengths of a random batch of an embedded data set, at most 400 steps."""
    lengths = _all_lengths(name)
    chosen = np.random.default_rng(0).choice(len(lengths), batch_size, replace=False)
    return _batch(lengths[chosen])


def _levels(batch_size):
    return (np.arange(batch_size) + 0.5) / batch_size


def _batch(lengths):
    """Return lengths in bounds and in an order that is not sorted, the same each time."""
    lengths = np.clip(np.rint(lengths), SHORTEST, LONGEST).astype(int)
    return tuple(np.random.default_rng(0).permutation(lengths).tolist())


@functools.cache
def _all_lengths(name):
    return DATA_SETS[name]().lengths
