"""Errors of float32 over long sequences and of large scores, against float64, and what threads cost on one sequence.

python -m benchmarks.long_sequences            # print
python -m benchmarks.long_sequences --write    # and replace results/long_sequences.txt
"""

import argparse
import gc
import statistics
import time
from pathlib import Path

import numpy as np

import varlen_rnn as vr
from benchmarks.machine import describe
from varlen_rnn.nn import functional as F

FILE = Path(__file__).parent / "results" / "long_sequences.txt"
LENGTHS = 200, 1_000, 10_000, 30_000, 100_000
TYPES = np.float32, np.float64


def main():
    """Print the figures, and write them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="replace the file of results")
    given, lines = parser.parse_args(), [header()]
    for part in (crf, ctc, attention, weights, threads):
        for line in part():
            lines.append(line)
            print(line, flush=True)
    if given.write:
        FILE.write_text("\n".join(lines) + "\n")


def header():
    """Return a line on the machine."""
    machine = describe(vr.get_num_threads())
    return ", ".join(
        f"{name} {machine[name]}" for name in ("date", "processor", "cores", "varlen_rnn", "numpy", "numba")
    )


def distance(found, exact):
    """Return the norm of the difference of two arrays over the norm of the second."""
    exact = np.asarray(exact, np.float64)
    return np.linalg.norm(np.asarray(found, np.float64) - exact) / np.linalg.norm(exact)


def sequence(rows):
    """Return one sequence as a Variable that needs a gradient."""
    return vr.Variable(vr.create_lod_tensor(rows, [[len(rows)]]), requires_grad=True)


def crf():
    """Yield the relative errors of the cost of a CRF and of its gradients."""
    for length in LENGTHS:
        rng, found = np.random.default_rng(length), []
        emission, transition = 2 * rng.standard_normal((length, 5)), rng.standard_normal((7, 5))
        emission, transition = emission.astype(np.float32), transition.astype(np.float32)
        label = vr.create_lod_tensor(rng.integers(0, 5, length), [[length]])
        for dtype in TYPES:
            x, w = sequence(emission.astype(dtype)), vr.Variable(transition.astype(dtype), requires_grad=True)
            cost = vr.linear_chain_crf(x, label, w).sum()
            cost.backward()
            found.append((cost.item(), np.asarray(x.grad), w.grad))
        (cost, d_x, d_w), (exact, *grads) = found
        errors = abs(cost - exact) / abs(exact), distance(d_x, grads[0]), distance(d_w, grads[1])
        yield "CRF, {:,} rows: cost {:.1e}, gradient of emissions {:.1e}, of transitions {:.1e}".format(length, *errors)


def ctc():
    """Yield the relative errors of the CTC loss and of its gradient, and how far posteriors of a row are from 1."""
    for length in LENGTHS:
        rng, found = np.random.default_rng(length), []
        log_probs = np.log(rng.dirichlet(np.ones(5), length)).astype(np.float32)
        labels = vr.create_lod_tensor(rng.integers(1, 5, 40), [[40]])
        for dtype in TYPES:
            x = sequence(log_probs.astype(dtype))
            loss = F.ctc_loss(x, labels, reduction="sum")
            loss.backward()
            found.append((loss.item(), np.asarray(x.grad)))
        (loss, grad), (exact, exact_grad) = found
        off = np.abs(-grad.sum(axis=1, dtype=np.float64) - 1).max()
        errors = abs(loss - exact) / abs(exact), distance(grad, exact_grad), off
        yield "CTC, {:,} rows: loss {:.1e}, gradient {:.1e}, posteriors of a row from 1 {:.1e}".format(length, *errors)


def attention():
    """Yield how far the weights of a query, as the gradient pass computes them, are from a sum of 1."""
    rng, queries, keys = np.random.default_rng(0), 20, 30
    near_one = (1 + rng.integers(0, 4, (keys, 3)) * 2.0**-23).astype(np.float32)
    for size in (1.0, 1e6, 1e7, 1e8, 1e9):
        q = sequence(np.full((queries, 3), size, np.float32))
        k, v = sequence(near_one), sequence(np.ones((keys, 1), np.float32))
        F.scaled_dot_product_attention(q, k, v, scale=0.3).sum().backward()
        total = np.asarray(v.grad).sum(dtype=np.float64) / queries
        yield f"attention, scores of {size:.0e}: weights sum to {total:.7g} in the gradient"


def weights():
    """Yield the error of the gradient of a weight, as a part of the sum of |x| |d|."""
    for rows in (10_000, 100_000, 1_000_000):
        x = np.full((rows, 3), 0.1, np.float32)
        layer = vr.nn.Linear(3, 4)
        (layer(x) * np.float32(0.1)).sum().backward()
        exact = rows * float(np.float32(0.1)) ** 2
        error = np.abs(layer.weight.grad.astype(np.float64) - exact).max() / exact
        yield f"gradient of a weight, {rows:,} rows of 0.1: {error:.1e} of the sum of |x| |d|"


def threads():
    """Yield the medians of a training step over one long sequence, by one thread and by two, in turns."""
    x = np.random.default_rng(0).standard_normal((4_000, 256)).astype(np.float32)
    layer, taken = vr.nn.Recurrent(vr.cells.INDRNN, 256, 256), {1: [], 2: []}

    def step():
        y, _ = layer(vr.create_lod_tensor(x, [[len(x)]]))
        (y * y).mean().backward()

    gc.collect()
    for _ in range(30):
        for number in taken:
            vr.set_num_threads(number)
            began = time.perf_counter()
            step()
            taken[number].append(1e3 * (time.perf_counter() - began))
    one, two = (statistics.median(times[3:]) for times in taken.values())
    yield f"IndRNN, one sequence of 4,000 steps, 256 units: {one:.1f} ms by one thread, {two:.1f} ms by two"


if __name__ == "__main__":
    main()
