"""A step of one's own against the built-in layer: `python -m benchmarks.dynamic` prints milliseconds per training step.

The cases are a step with attention over a captured sequence, which runs operator by operator; the equations of an LSTM
in ordinary operators, beside `nn.LSTM`; and a recurrence over sentences of words, beside the two levels as flat layers.
Medians, forward and backward, of batches of unequal lengths.
"""

import statistics
import time

import numpy as np

import varlen_rnn as vr
from varlen_rnn.nn import functional as F
from varlen_rnn.tape.variable import apply

BATCH, HIDDEN, CAPTURED, REPEATS = 32, 128, 40, 15


def attention(rng):
    """Return a step that attends to the rows of a captured sequence, and its states."""
    memory = vr.Variable(rng.standard_normal((CAPTURED, HIDDEN)).astype(np.float32), requires_grad=True)
    of_x, of_context, of_h, query = (_weight(rng, HIDDEN, HIDDEN) for _ in range(4))
    bias = _weight(rng, HIDDEN)

    def step(x, h):
        scores = apply("matmul", h @ query, memory, None, transposed=True)
        context = apply("exp", F.log_softmax(scores)) @ memory
        h = F.tanh(x @ of_x + context @ of_context + h @ of_h + bias)
        return h, h

    return vr.nn.DynamicRNN(step), [_zeros()]


def lstm(rng):
    """Return the equations of an LSTM as a step, and its states."""
    of_x, of_h = _weight(rng, 4 * HIDDEN, HIDDEN), _weight(rng, 4 * HIDDEN, HIDDEN)
    bias_x, bias_h = _weight(rng, 4 * HIDDEN), _weight(rng, 4 * HIDDEN)

    def step(x, h, c):
        gates = apply("matmul", x, of_x, bias_x, transposed=True) + apply("matmul", h, of_h, bias_h, transposed=True)
        i, f, g, o = (gates[:, number * HIDDEN : (number + 1) * HIDDEN] for number in range(4))
        c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
        h = F.sigmoid(o) * F.tanh(c)
        return h, h, c

    return vr.nn.DynamicRNN(step), [_zeros(), _zeros()]


def built_in(rng):
    """Return the layer that the step of an LSTM is measured against."""
    layer = vr.nn.LSTM(HIDDEN, HIDDEN)
    return lambda x, states: layer(x), []


def nested(rng):
    """Return a layer over sentences, each read by an LSTM and pooled, and its states."""
    words, sentences = vr.nn.LSTM(HIDDEN, HIDDEN), vr.nn.LSTMCell(HIDDEN, HIDDEN)

    def step(sentence, h, c):
        h, c = sentences(vr.sequence_pool(words(sentence)[0], "mean"), (h, c))
        return h, h, c

    return vr.nn.DynamicRNN(step, level=0), [_zeros(), _zeros()]


def flat(rng):
    """Return the same as two layers, one after the other."""
    words, sentences = vr.nn.LSTM(HIDDEN, HIDDEN), vr.nn.LSTM(HIDDEN, HIDDEN)
    return lambda x, states: sentences(vr.sequence_pool(words(x)[0], "mean")), []


CASES = {"attention": attention, "lstm": lstm, "nn.LSTM": built_in, "nested": nested, "two layers": flat}


def _weight(rng, *shape):
    return vr.nn.Parameter((rng.standard_normal(shape) * 0.05).astype(np.float32))


def _zeros():
    return np.zeros((BATCH, HIDDEN), np.float32)


def measure(case, steps):
    """Return the median seconds of a training step over sequences of up to `steps` rows."""
    rng = np.random.default_rng(0)
    layer, states = CASES[case](rng)
    lengths = rng.integers(max(1, steps // 2), steps + 1, BATCH)
    lengths[0] = steps
    levels = [lengths.tolist()]
    if case in ("nested", "two layers"):
        levels.append(rng.integers(3, 30, lengths.sum()).tolist())
    rows = vr.create_lod_tensor(rng.standard_normal((sum(levels[-1]), HIDDEN)).astype(np.float32), levels)
    x, taken = vr.Variable(rows, requires_grad=True), []
    for _ in range(2 + REPEATS):
        began = time.perf_counter()
        layer(x, states)[0].sum().backward()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[2:])


if __name__ == "__main__":
    for case in CASES:
        print(case, *(f"{steps} steps: {1e3 * measure(case, steps):.2f} ms" for steps in (10, 30, 100)), sep="; ")
