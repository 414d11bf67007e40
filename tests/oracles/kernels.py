"""Kernels in plain NumPy: one row, one sequence, one element at a time.  Imports nothing of ours."""

import itertools

import numpy as np

from tests.oracles.products import matmul


def segment_inputs(x, starts, t, out):
    for k in range(len(out)):
        out[k] = x[starts[k] + t]


def concat_outputs(step, starts, t, out):
    for k in range(len(step)):
        out[starts[k] + t] = step[k]


def init_memories(boot, sorted_indices, out):
    for k, i in enumerate(sorted_indices):
        out[k] = boot[i]


def init_memories_grad(d_out, sorted_indices, d_boot):
    for k, i in enumerate(sorted_indices):
        d_boot[i] = d_out[k]


def gather_rows(table, ids, out):
    for k, row in enumerate(ids):
        out[k] = table[row] if row >= 0 else 0


def copy_runs(table, starts, places, lengths, out):
    for start, place, length in zip(starts, places, lengths, strict=True):
        out[place : place + length] = table[start : start + length]


def place_slices(offsets, begins, lengths, starts, new_offsets):
    ends = [begin + length for begin, length in zip(begins, lengths, strict=True)]
    inside = [0 <= b <= e <= n for b, e, n in zip(begins, ends, np.diff(offsets), strict=True)]
    if False in inside:
        return inside.index(False)
    starts[:], new_offsets[:] = offsets[:-1] + begins, [0, *np.cumsum(lengths)]
    return -1


def fill_between_runs(places, lengths, value, out):
    outside = set(range(len(out))).difference(*(range(p, p + n) for p, n in zip(places, lengths, strict=True)))
    out[sorted(outside)] = value


def fill_rows(listed, value, out):
    for row in listed:
        out[row] = value


def mark(ids, out):
    for k, one in enumerate(ids):
        out[k] = np.arange(out.shape[1]) == one


def multiply_matrices(a, of_a, b, of_b, out):
    for i, (left, right) in enumerate(zip(of_a, of_b, strict=True)):
        out[i] = matmul(a[left], b[right])


def negative_log_likelihood(log_probabilities, classes, out):
    for r, label in enumerate(classes):
        out[r] = 0 if label < 0 else -log_probabilities[r, label]


def cross_entropy_grad(log_probabilities, classes, d_loss, out):
    for r, label in enumerate(classes):
        out[r] = np.exp(log_probabilities[r]) * d_loss[r]
        out[r, label] -= d_loss[r]
        out[r] *= label >= 0


def sum_by_class(values, classes, out):
    out[:] = 0
    for value, label in zip(values, classes, strict=True):
        if label >= 0:
            out[label] += value


def shrink(listed, factor, param):
    for row in listed:
        param[row] *= factor


def repeat_sequences(x, offsets, times, out):
    copies = [x[a:b] for a, b, n in zip(offsets[:-1], offsets[1:], times, strict=True) for _ in range(n)]
    out[:] = np.concatenate([x[:0], *copies])


def sum_copies(x, offsets, times, out):
    place = 0
    for i, n in enumerate(times):
        length = offsets[i + 1] - offsets[i]
        copies = x[place : place + n * length].reshape(n, length, x.shape[1])
        out[offsets[i] : offsets[i + 1]] = copies.sum(axis=0)
        place += n * length


def scatter_add_rows(values, ids, out):
    for k, row in enumerate(ids):
        out[row] += values[k]


def pool_sum(x, offsets, scale, out):
    for i in range(len(out)):
        out[i] = scale[i] * x[offsets[i] : offsets[i + 1]].sum(axis=0)


def pool_sum_grad(d_out, offsets, scale, d_x):
    for i in range(len(d_out)):
        d_x[offsets[i] : offsets[i + 1]] = scale[i] * d_out[i]


def pool_max(x, offsets, out, index):
    out[:], index[:] = 0, -1
    for i in range(len(out)):
        rows = x[offsets[i] : offsets[i + 1]]
        if len(rows):
            out[i] = rows.max(axis=0)
            index[i] = offsets[i] + rows.argmax(axis=0)


def pick_ends(x, offsets, last, out):
    for i, (begin, end) in enumerate(itertools.pairwise(offsets)):
        out[i] = 0 if begin == end else x[end - 1 if last else begin]


def pick_ends_grad(d_out, offsets, last, d_x):
    d_x[:] = 0
    for i, (begin, end) in enumerate(itertools.pairwise(offsets)):
        if begin < end:
            d_x[end - 1 if last else begin] = d_out[i]


def reverse_rows(x, offsets, out):
    for begin, end in itertools.pairwise(offsets):
        out[begin:end] = x[begin:end][::-1]


def pick_rows(x, index, out):
    for i, j in np.ndindex(index.shape):
        out[i, j] = x[index[i, j], j] if index[i, j] >= 0 else 0


def pick_rows_grad(d_out, index, d_x):
    d_x[:] = 0
    for i, j in np.ndindex(index.shape):
        if index[i, j] >= 0:
            d_x[index[i, j], j] += d_out[i, j]


def sgd(rows, grad, lr, param):
    for g, r in zip(grad, rows, strict=True):
        param[r] -= lr * g


def momentum(rows, grad, lr, mu, nesterov, velocity, param):
    for g, r in zip(grad, rows, strict=True):
        velocity[r] = mu * velocity[r] + g
        param[r] -= lr * (g + mu * velocity[r] if nesterov else velocity[r])


def adagrad(rows, grad, lr, epsilon, moment, param):
    for g, r in zip(grad, rows, strict=True):
        moment[r] += g**2
        param[r] -= lr * g / (np.sqrt(moment[r]) + epsilon)


def adam(rows, grad, lr, beta1, beta2, epsilon, moment1, moment2, param):
    for g, r in zip(grad, rows, strict=True):
        moment1[r] = beta1 * moment1[r] + (1 - beta1) * g
        moment2[r] = beta2 * moment2[r] + (1 - beta2) * g**2
        param[r] -= lr * moment1[r] / (np.sqrt(moment2[r]) + epsilon)


def rmsprop(rows, grad, lr, alpha, mu, epsilon, square, velocity, param):
    for g, r in zip(grad, rows, strict=True):
        square[r] = alpha * square[r] + (1 - alpha) * g**2
        velocity[r] = mu * velocity[r] + g / (np.sqrt(square[r]) + epsilon)
        param[r] -= lr * velocity[r]


def adadelta(rows, grad, lr, rho, epsilon, square, delta, param):
    for g, r in zip(grad, rows, strict=True):
        square[r] = rho * square[r] + (1 - rho) * g**2
        d = g * np.sqrt(delta[r] + epsilon) / np.sqrt(square[r] + epsilon)
        delta[r] = rho * delta[r] + (1 - rho) * d**2
        param[r] -= lr * d


def product(a, weight, c, transposed, bias, accumulate):
    result = matmul(a, weight.T if transposed else weight) + (0 if bias is None else bias)
    c[:] = c + result if accumulate else result


def row_product(a, b, b_first, b_rows):
    total = np.zeros((a.shape[1], b.shape[1]))
    for k, row in enumerate(b_rows):
        total += np.outer(a[k], b[row] if row >= 0 else b_first[-1 - row])
    return total


def largest(x, offsets, limits, out):
    for i in range(len(offsets) - 1):
        rows = range(offsets[i], offsets[i + 1])
        by_size = sorted(rows, key=lambda row: (not np.isnan(x[row]), -x[row]))
        out[limits[i] : limits[i + 1]] = by_size[: limits[i + 1] - limits[i]]


def folded_sum(x):
    """Add numbers in lanes of 64 bytes, and the halves of the lanes until one number is left."""
    lanes = 64 // x.itemsize
    total, padded = np.zeros(lanes, x.dtype), np.append(x, np.zeros(-len(x) % lanes, x.dtype))
    for vector in padded.reshape(-1, lanes):
        total = total + vector
    while len(total) > 1:
        total = total[: len(total) // 2] + total[len(total) // 2 :]
    return total[0]
