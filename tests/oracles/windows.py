"""Padding, windows and norms in plain NumPy: one sequence, one row at a time.  Imports nothing of ours.

A batch is a list of sequences, arrays of shape `(length, ...)`.
"""

import itertools

import numpy as np

from tests.oracles.products import matmul


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


def conv(sequences, weight, bias, start, taps, padding):
    """Return the rows of all sequences, each between its rows of padding."""
    features, up = sequences[0].shape[1], max(0, -start)
    down = max(0, start + taps - 1)
    padding = np.zeros((up + down, features)) if padding is None else padding
    out = [np.zeros((0, weight.shape[1]))]
    for x in sequences:
        longer = np.concatenate([padding[:up], x, padding[up:]])
        for t in range(len(x)):
            out.append((matmul(longer[up + t + start :][:taps].ravel(), weight) + bias)[None])
    return np.concatenate(out)


def row_conv(sequences, weight):
    """Return the rows of all sequences."""
    out = [np.zeros((0, weight.shape[1]))]
    for x in sequences:
        for t in range(len(x)):
            out.append(sum(weight[k] * x[t + k] for k in range(len(weight)) if t + k < len(x))[None])
    return np.concatenate(out)


def causal_conv(sequences, weight, bias, state):
    """Return the rows of all sequences, and the last window of each; `state` has the rows before each sequence."""
    out, last = [np.zeros((0, len(weight)))], np.zeros(state.shape)
    for i, x in enumerate(sequences):
        longer = np.concatenate([state[i], x])
        for t in range(len(x)):
            out.append((bias + (weight.T * longer[t : t + weight.shape[1]]).sum(axis=0))[None])
        last[i] = longer[len(x) :]
    return np.concatenate(out), last


def im2sequence(images, size, stride, padding):
    """Return the windows of each image."""
    up, left, down, right = padding
    found = []
    for image in np.pad(images, ((0, 0), (0, 0), (up, down), (left, right))):
        found.append([])
        for top in range(0, image.shape[1] - size[0] + 1, stride[0]):
            for first in range(0, image.shape[2] - size[1] + 1, stride[1]):
                found[-1].append(image[:, top : top + size[0], first : first + size[1]].ravel())
    return found


# Kernels write into their last argument; sequence i has rows `offsets[i]` to `offsets[i + 1]`.


def softmax(x, offsets, out):
    for a, b in itertools.pairwise(offsets):
        for j in range(x.shape[1]):
            if a < b:
                powers = np.exp(x[a:b, j] - x[a:b, j].max())
                out[a:b, j] = powers / powers.sum()


def softmax_grad(y, d_y, offsets, d_x):
    for a, b in itertools.pairwise(offsets):
        for j in range(y.shape[1]):
            d_x[a:b, j] = y[a:b, j] * (d_y[a:b, j] - (y[a:b, j] * d_y[a:b, j]).sum())


def row_conv_kernel(x, offsets, weight, direction, out):
    for a, b in itertools.pairwise(offsets):
        for row in range(a, b):
            out[row] = sum(
                weight[k] * x[row + direction * k] for k in range(len(weight)) if a <= row + direction * k < b
            )


def cumsum(x, offsets, direction, out):
    for a, b in itertools.pairwise(offsets):
        for row in range(a, b):
            out[row] = x[a : row + 1].sum(axis=0) if direction > 0 else x[row:b].sum(axis=0)


def causal_conv_weight_grad(d_out, x, offsets, state, out):
    out[:] = 0
    for i, (a, b) in enumerate(itertools.pairwise(offsets)):
        longer = np.concatenate([state[i], x[a:b]])
        for t in range(b - a):
            out += d_out[a + t] * longer[t : t + len(out)]


def layer_norm(x, weight, bias, epsilon, centres, out):
    for row in range(len(x)):
        deviations = x[row] - x[row].mean() * centres
        out[row] = deviations / np.sqrt((deviations**2).mean() + epsilon) * weight + bias


def layer_norm_grad(x, weight, d_y, epsilon, centres, d_x):
    """By the Jacobian of each row, whose entry [i, j] is what feature i changes by with feature j."""
    for row in range(len(x)):
        width, deviations = x.shape[1], x[row] - x[row].mean() * centres
        inverse = 1 / np.sqrt((deviations**2).mean() + epsilon)
        jacobian = inverse * (np.eye(width) - centres / width) - inverse**3 / width * np.outer(deviations, deviations)
        d_x[row] = matmul(weight * d_y[row], jacobian)
