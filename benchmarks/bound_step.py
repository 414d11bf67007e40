"""A small training step, eager and bound by `vr.bound`: time of one thread, and equal bits.

    python -m benchmarks.bound_step            # print the lines
    python -m benchmarks.bound_step --write    # write them to results/bound_step.txt

8 sequences of 5 to 20 rows, a dense table of 100 embeddings, an LSTM of 32 units, cross entropy of 5 classes, Adam.
Fifty batches come again and again, so that their sizes are bound.  Times are of the processor, medians of rounds.
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

import varlen_rnn as vr
from benchmarks.machine import describe

FILE = Path(__file__).parent / "results" / "bound_step.txt"
BATCHES, PASSES, ROUNDS = 50, 40, 15


def training():
    """Return a step function of ids and labels, and the parameters that it trains."""
    vr.manual_seed(0)
    table, lstm, output = vr.nn.Embedding(100, 32, sparse=False), vr.nn.LSTM(32, 32), vr.nn.Linear(32, 5)
    parameters = [p for module in (table, lstm, output) for p in module.parameters()]
    optimizer = vr.optim.Adam(parameters, lr=1e-3)

    def step(ids, labels):
        optimizer.zero_grad()
        y, _ = lstm(table(ids))
        loss = vr.nn.functional.cross_entropy(output(vr.sequence_pool(y, "last")), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step, parameters


def batches(rng):
    """Return pairs of ids and labels."""
    found = []
    for _ in range(BATCHES):
        lengths = rng.integers(5, 21, 8).tolist()
        ids = vr.create_lod_tensor(rng.integers(0, 100, sum(lengths)), [lengths])
        found.append((ids, rng.integers(0, 5, 8)))
    return found


def microseconds(step, given):
    """Return the time of the processor for a step, in microseconds."""
    began = time.process_time()
    for batch in given:
        step(*batch)
    return (time.process_time() - began) / len(given) * 1e6


def lines():
    """Return the lines of the result."""
    vr.set_num_threads(1)
    given = batches(np.random.default_rng(1))
    (eager, own), (plain, others) = training(), training()
    bound = vr.bound(plain)
    pairs = [(eager(*batch).item(), bound(*batch).item()) for _ in range(PASSES) for batch in given]
    different = sum(np.float32(a).tobytes() != np.float32(b).tobytes() for a, b in pairs)
    equal = all(np.array_equal(a.data, b.data) for a, b in zip(own, others, strict=True))
    times = [(microseconds(eager, given), microseconds(bound, given)) for _ in range(ROUNDS)]
    of_eager, of_bound = map(statistics.median, zip(*times, strict=True))
    return [
        f"{different} of {len(pairs)} losses differ; parameters are {'equal' if equal else 'different'}",
        bound.explain(),
        f"eager {of_eager:.0f} us, bound {of_bound:.0f} us, {of_eager / of_bound:.1f} times",
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bound_step", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the lines to the file of results")
    found = "\n".join([str(describe(1)), *lines()])
    if parser.parse_args().write:
        FILE.write_text(f"{found}\n")
    print(found)
