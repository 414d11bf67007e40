"""Padding and windows in plain NumPy: one sequence, one row at a time.  Imports nothing of ours.

A batch is a list of sequences, arrays of shape `(length, ...)`.
"""

import numpy as np


def pad(sequences, value, steps):
    out = np.full((len(sequences), steps, *sequences[0].shape[1:]), value, sequences[0].dtype)
    for i, sequence in enumerate(sequences):
        for t, row in enumerate(sequence):
            out[i, t] = row
    return out


def unpad(x, lengths):
    return [x[i, :length] for i, length in enumerate(lengths)]


def mask(lengths, steps):
    return np.array([[int(j < length) for j in range(steps)] for length in lengths])
