"""A training step of layers with heads beside the same layer without heads: time of one thread.

    python -m benchmarks.heads            # print the lines
    python -m benchmarks.heads --write    # write them to results/heads.txt

64 sequences of lognormal lengths, median 60.  A step runs the layer forward and backward; its inputs have a gradient.
The layer without heads has the block-diagonal weights with zeros outside the blocks.  Times are of the processor,
medians of rounds in which both layers take turns.
"""

import statistics
import time
from pathlib import Path

import numpy as np

import varlen_rnn as vr
from benchmarks.machine import publish_as_asked

FILE = Path(__file__).parent / "results" / "heads.txt"
ROUNDS, SEQUENCES, MEDIAN = 3, 64, 60
# (name, layer, inputs, units, heads)
CASES = [
    *(("LSTM", vr.nn.LSTM, inputs, 512, 4) for inputs in (64, 192, 512)),
    ("LSTM", vr.nn.LSTM, 192, 480, 10),
    *(("SLSTM", vr.nn.SLSTM, inputs, 512, 4) for inputs in (192, 512)),
]


def dense(weight, heads):
    """Return a recurrent weight with zeros outside the blocks of its heads.

    Examples
    --------
    >>> dense(np.ones((4, 1)), 2)
    array([[1., 0.],
           [0., 1.],
           [1., 0.],
           [0., 1.]])
    """
    size = weight.shape[1]
    of_row = np.arange(len(weight)) % (heads * size) // size
    return (weight[:, None] * (of_row[:, None] == np.arange(heads))[..., None]).reshape(len(weight), -1)


def pair(layer, inputs, units, heads):
    """Return a layer with heads, and one without heads that computes the same."""
    one, other = layer(inputs, units, num_heads=heads), layer(inputs, units, num_heads=1)
    state = {name: np.asarray(value) for name, value in one.state_dict().items()}
    other.load_state_dict({n: dense(value, heads) if "weight_hh" in n else value for n, value in state.items()})
    return one, other


def seconds(layer, x, d_y):
    """Return the time of the processor for a step of training."""
    x = vr.Variable(x, requires_grad=True)
    for parameter in layer.parameters():
        parameter.grad = None
    began = time.process_time()
    y, *_ = layer(x)
    (y * d_y).sum().backward()
    return time.process_time() - began


def lines():
    """Yield the lines of the result."""
    vr.set_num_threads(1)
    rng = np.random.default_rng(0)
    lengths = np.maximum(1, np.exp(rng.normal(np.log(MEDIAN), 0.5, SEQUENCES)).astype(int))
    yield f"{SEQUENCES} sequences, {lengths.sum()} rows, float32, one thread"
    for name, layer, inputs, units, heads in CASES:
        rows = rng.standard_normal((lengths.sum(), inputs)).astype(np.float32)
        x, d_y = (
            vr.create_lod_tensor(array, [lengths.tolist()])
            for array in (rows, rng.standard_normal((len(rows), units)).astype(np.float32))
        )
        layers = pair(layer, inputs, units, heads)
        error = np.abs(np.subtract(*(np.asarray(one(x)[0]) for one in layers))).max()
        times = [[seconds(one, x, d_y) for one in layers] for _ in range(1 + ROUNDS)][1:]
        own, full = map(statistics.median, zip(*times, strict=True))
        yield (
            f"{name} ({inputs} inputs, {units} units, {heads} heads): {own * 1e3:.0f} ms, without heads "
            f"{full * 1e3:.0f} ms, {full / own:.2f} times as fast; outputs differ by at most {error:.1g}"
        )


if __name__ == "__main__":
    publish_as_asked(lines(), FILE, __doc__)
