"""Integers that are affine in counts: found from their values at some points, and verified at all others.

Take the bytes of an array of float32 with 4 columns, and of one number more, for batches of `rows` and `sequences`:

    rows, sequences    bytes
    5, 3               84       the highest corner of a box
    2, 3               36       so each row adds (84 - 36) / 3 = 16
    5, 2               84       each sequence adds 0, and the constant is 84 - 16 * 5 = 4
    1, 1, and 3, 2     20, 52   verified: 4 + 16 * 1, and 4 + 16 * 3

A condition such as `rows > 2`, with which code takes another way, is monotone in each count.  So it holds at all points
of a box or at none, if it holds at all of its corners or at none.  Where corners differ, numbers are not affine, or the
lists of kernels differ.  Other conditions are found at the points inside.
"""

from typing import NamedTuple

import numpy as np


class Affine(NamedTuple):
    """Integers that are affine in `k` counts.

    Attributes
    ----------
    constants : (n,) array of int64
        The integers that do not vary; other entries mean nothing.
    varying : (v,) array of int64
        Positions of the integers that vary.
    bases, coefficients : (v,) array of int64, (v, k) array of int64
        The integers that vary are `bases + coefficients @ counts`.
    """

    constants: np.ndarray
    varying: np.ndarray
    bases: np.ndarray
    coefficients: np.ndarray

    def at(self, counts):
        """Return the integers for `counts`, (k,) integers, as a list."""
        found = self.constants.copy()
        found[self.varying] = self.bases + self.coefficients @ np.asarray(counts, np.int64)
        return found.tolist()

    def also_varying(self, places):
        """Return the Affine in which the integers at `places` are among those that vary, whether they do or not."""
        more = np.setdiff1d(places, self.varying)
        bases = np.concatenate([self.bases, self.constants[more]])
        coefficients = np.concatenate([self.coefficients, np.zeros((len(more), self.coefficients.shape[1]), np.int64)])
        return Affine(self.constants, np.concatenate([self.varying, more]), bases, coefficients)

    def part(self, first, end):
        """Return the integers `first` to `end` as an Affine."""
        inside = (self.varying >= first) & (self.varying < end)
        places = self.varying[inside] - first
        return Affine(self.constants[first:end], places, self.bases[inside], self.coefficients[inside])


def fit(points, numbers, unread):
    """Return the Affine of numbers at points, and the position of the first number that is not affine, or None.

    Parameters
    ----------
    points : (m, k) array of int64
        For each count that varies, a point differs from the first point in this count alone; the first such is taken.
    numbers : (m, n) array of int64
        Arithmetic wraps around, as it does when the numbers are computed again.
    unread : (m, n) array of bool
        Whether nobody reads a number at a point, so that it need not be affine there.
    """
    count = points.shape[1]
    varying = np.nonzero((numbers != numbers[0]).any(axis=0))[0]
    found = numbers[:, varying]
    differs = points != points[0]
    is_alone = differs & (differs.sum(axis=1, keepdims=True) == 1)
    coefficients = np.zeros((len(varying), count), np.int64)
    for j in np.nonzero(differs.any(axis=0))[0]:
        other = is_alone[:, j].argmax()
        coefficients[:, j] = (found[other] - found[0]) // (points[other, j] - points[0, j])
    bases = found[0] - coefficients @ points[0]
    wrong = ((found != bases + points @ coefficients.T) & np.logical_not(unread[:, varying])).any(axis=0)
    first = int(varying[wrong][0]) if wrong.any() else None
    return Affine(numbers[0], varying, bases, coefficients), first
