"""Dilated convolutions of nine taps along each sequence, and shares of rows above thresholds: one number at a time."""

import itertools

import numpy as np


def convolve(x, taps, dilation, channels):
    """Return the convolution at every row: the weights are 2 at three taps, -1 at the six others."""
    out = np.zeros(len(x), x.dtype)
    for t in range(len(x)):
        for channel in channels:
            for tap in range(9):
                row = t + (tap - 4) * dilation
                if 0 <= row < len(x):
                    out[t] += (2 if tap in taps else -1) * x[row, channel]
    return out


def shares_above(x, offsets, table, channels, thresholds, out):
    """Write the share of rows at which each convolution exceeds each threshold; 0 for an empty sequence."""
    shares = out.reshape(len(offsets) - 1, *thresholds.shape)
    shares[:] = 0
    for i, (a, b) in enumerate(itertools.pairwise(offsets)):
        for k, (*taps, dilation, every_row) in enumerate(table):
            y = convolve(x[a:b], taps, dilation, [c for c in channels[k] if c >= 0])
            inside = y[4 * dilation : len(y) - 4 * dilation] if len(y) > 8 * dilation else y
            counted = y if every_row else inside
            if len(counted):
                shares[i, k] = (counted[:, None] > thresholds[k]).mean(axis=0)
