"""Digests of layers in bfloat16: AMX, its instructions in software and its emulation have the same.

    python -m tests.amx_layers                          # a line for each layer and kind of numbers
    tests/on_amx /var/tmp/amx tests.amx_layers          # in software, and by the unit of an emulated processor

A digest is of the outputs and of all gradients of training steps with several batches, for one thread and for two,
which must be equal.  Which NaN a number is, no processor promises, so all NaNs count as one.
"""

import re
from pathlib import Path

import numpy as np

import varlen_rnn as vr
from tests.one_hash import RUNS, digest_of, numbers
from tests.test_bfloat16_layers import FEATURES, LAYERS, LENGTHS
from varlen_rnn.products import bfloat16
from varlen_rnn.recurrence import schedule
from varlen_rnn.runtime import threads

FILE = Path(__file__).parent.parent / "benchmarks" / "results" / "amx_layers.txt"
BATCHES = LENGTHS, [3] * 20, [1]
ODD = np.array([np.nan, np.inf, -np.inf, 2.0**-127, -(2.0**-149), -0.0, 3.4e38, -3.4e38], np.float32)


def plain(seed, *shape):
    """Return float32 numbers between -2 and 2."""
    return numbers(*shape, seed=seed)


def of_many_magnitudes(seed, *shape):
    """Return float32 numbers of magnitudes from 1 down to the least denormal number."""
    exponents = np.random.default_rng(seed + 9).integers(-140, 1, shape)
    return np.ldexp(numbers(*shape, seed=seed), exponents).astype(np.float32)


def with_infinities_and_NaN(seed, *shape):
    """Return numbers of which one in 50 is odd; the second half of the rows has none."""
    rng = np.random.default_rng(seed + 9)
    is_odd = rng.random(shape) < 0.02
    is_odd[len(is_odd) // 2 :] = False
    return np.where(is_odd, rng.choice(ODD, shape), numbers(*shape, seed=seed))


KINDS = plain, of_many_magnitudes, with_infinities_and_NaN


@vr.float32_matmul_precision("bf16")
@np.errstate(all="ignore")
def step(name, draw, lengths):
    """Return the outputs of a layer, then the gradients of its rows and weights."""
    vr.manual_seed(1)
    layer = LAYERS[name](np.float32)
    x = vr.Variable(vr.create_lod_tensor(draw(0, sum(lengths), FEATURES), [lengths]), requires_grad=True)
    y = layer(x, x, x) if name == "MultiheadAttention" else layer(x)
    y = y[0] if isinstance(y, tuple) else y
    (y * draw(2, *y.shape)).sum().backward()
    found = y, x.grad, *(weight.grad for weight in layer.parameters())
    return [np.where(np.isnan(array), np.float32(np.nan), array) for array in map(np.asarray, found)]


def digests():
    """Yield a line for each layer and kind of numbers."""
    threads.SMALL_WORK = schedule._BARRIER_COST = 0  # so that two threads divide the units of all sequences
    for name in LAYERS:
        for draw in KINDS:
            found = set()
            for count in (1, 2):
                vr.set_num_threads(count)
                found.add(digest_of([array for lengths in BATCHES for array in step(name, draw, lengths)]))
            yield f"{' or '.join(found)}  {name}, {draw.__name__.replace('_', ' ')}"
    yield f"{RUNS['layers in bf16']()}  layers in bf16 (tests.one_hash)"


def recorded():
    """Return the recorded lines."""
    return [line for line in FILE.read_text().splitlines() if re.match("[0-9a-f]{16}  ", line)]


if __name__ == "__main__":
    print("by AMX" if bfloat16.has_instruction("bf16") else "emulated", flush=True)
    for line in digests():
        print(line, flush=True)
