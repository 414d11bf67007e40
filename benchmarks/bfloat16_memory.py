"""By how much the resident memory of a fresh process rises in a training step, in float32 and in bfloat16.

    python -m benchmarks.bfloat16_memory            # print the lines
    python -m benchmarks.bfloat16_memory --write    # write them to results/bfloat16_memory.txt

A step computes outputs and the gradients of rows and weights.  Rows, weights and the gradient of the outputs exist
before.  Steps of a small layer have loaded the code.  Precisions take the same memory on each processor, because an
emulation has the arrays of the instruction.
"""

from pathlib import Path

import numpy as np

import varlen_rnn as vr
from benchmarks.clock import peak_bytes
from benchmarks.machine import publish_as_asked
from benchmarks.processes import output_of

FILE = Path(__file__).parent / "results" / "bfloat16_memory.txt"
MIB = 2**20
SEQUENCES, STEPS, WIDTH, SMALL_WIDTH = 64, 100, 256, 32
PRECISIONS = "fp32", "bf16", "bf16-avx512"
CELLS = "LSTM", "GRU", "RNN"


def step_of(cell, width, recompute):
    """Return a function that runs a training step of a layer with `width` features and units."""
    layer = getattr(vr.nn, cell)(width, width, recompute=recompute)
    rng, lengths = np.random.default_rng(0), [[STEPS] * SEQUENCES]
    x, d_y = (rng.standard_normal((SEQUENCES * STEPS, width), np.float32) for _ in range(2))
    rows = vr.Variable(vr.create_lod_tensor(x, lengths), requires_grad=True)

    def step():
        y = layer(rows)[0]
        y.backward(d_y)
        return y

    return step


def peak_of(cell, precision, recompute):
    """Return the bytes by which this process grows in its first large training step."""
    vr.set_num_threads(1)
    with vr.float32_matmul_precision(precision):
        step_of(cell, SMALL_WIDTH, recompute)()
        vr.release_memory()
        return peak_bytes(step_of(cell, WIDTH, recompute))


def lines():
    """Yield the lines of the result."""
    yield f"MiB of a training step of {SEQUENCES} sequences of {STEPS} steps, {WIDTH} features and units"
    for cell in CELLS:
        for recompute in (False, True):
            code = f"from benchmarks import bfloat16_memory as its; print(its.peak_of({cell!r}, {{!r}}, {recompute}))"
            found = {precision: int(output_of("-c", code.format(precision))) for precision in PRECISIONS}
            shares = {precision: found[precision] / found["fp32"] for precision in PRECISIONS[1:]}
            each = ", ".join(f"{precision} {number / MIB:.1f}" for precision, number in found.items())
            of_float32 = ", ".join(f"{precision} {share:.2f}" for precision, share in shares.items())
            yield f"  {cell}{', recomputed' * recompute}: {each}; of fp32: {of_float32}"


if __name__ == "__main__":
    publish_as_asked(lines(), FILE, __doc__)
