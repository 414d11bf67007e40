"""Elementwise functions for batch normalisation: the deviation, and normalised rows."""

import math

import numpy as np

from varlen_rnn.kernels.elementwise import elementwise


def _inverse_deviation(variance, epsilon):
    deviation = np.sqrt(variance + variance.dtype.type(epsilon))
    with np.errstate(divide="ignore"):
        return np.where(deviation != 0, 1 / deviation, variance.dtype.type(0))


@elementwise(_inverse_deviation, numbers=1)
def inverse_deviation(variance, epsilon):
    """Return `1 / sqrt(variance + epsilon)`, or 0 if the root is 0."""
    deviation = math.sqrt(variance + epsilon)
    return type(variance)(1) / deviation if deviation != type(variance)(0) else type(variance)(0)


@elementwise(None)
def normalised(x, mean, factor, bias):
    """Return `(x - mean) * factor + bias`."""
    return (x - mean) * factor + bias


@elementwise(None)
def normalised_grad(d, factor, normal, slope, constant):
    """Return `d * factor - normal * slope - constant`."""
    return d * factor - normal * slope - constant
