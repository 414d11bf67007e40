"""A model of training on many ranks: seconds of a step and efficiency, from this host's costs and a network's.

    python -m benchmarks scale --ranks 256
    python -m benchmarks scale --ranks 64 --lengths pareto --sequences 128 --latency 2e-6 --bandwidth 12.5e9
    python -m benchmarks scale --ranks 16 --strong --sequences 4096

First, as many real ranks as there are cores take steps (gloo, one thread each), and so does one process.  Rank 0 has
measured the cost of steps before, and all together the cost of an exchange; the model predicts both times from these.
Then a table of a model, not of measurements, for 1, 2, 4 ... ranks on a network of the given latency and bandwidth:

    step(R) = slowest rank's per_batch + per_row rows + per_step longest + per_sequence sequences, times its noise
              + what an exchange takes beyond the half of the pass of gradients that hides it
    exchange(R) = messages * ceil(log2 R) * latency + 2 (R - 1) / R * bytes / bandwidth
"""

import argparse
import math
import statistics
import sys

import numpy as np

import varlen_rnn as vr
from benchmarks.ranks import WAYS, Case, draw, launch
from benchmarks.tables import text_row
from varlen_rnn.data import StepCost, balanced_parts

HIDDEN_SHARE = 0.5 * 2 / 3  # of a rank's seconds: the pass of gradients takes two thirds, half of which hides messages
MESSAGES = 8  # sums and gathers of a step, one after another
COLUMNS = {
    "ranks": 6, "sequences": 11, "step, ms": 10, "exchange, ms": 14, "by work": 9, "by counts": 11, "round robin": 13,
}  # fmt: skip


def exchange_seconds(ranks, num_bytes, latency, per_byte):
    """Return the seconds of the messages of a step.

    Examples
    --------
    >>> exchange_seconds(1, 1e6, 1e-5, 1e-9)
    0.0
    >>> exchange_seconds(4, 1e6, 0.0, 1e-9)
    0.0015
    """
    hops = math.ceil(math.log2(ranks))
    return MESSAGES * hops * latency + 2 * (ranks - 1) / ranks * num_bytes * per_byte


def step_seconds(lengths, parts, cost, exchange, noise=0.0, rng=None):
    """Return the seconds of a step on ranks that compute these parts of a batch.

    Examples
    --------
    >>> cost = StepCost(per_batch=1.0, per_row=1.0)
    >>> step_seconds(np.array([3, 2]), [[0], [1]], cost, exchange=0.5)
    4.0
    """
    seconds = np.array([cost.of(lengths[part]) for part in parts])
    if noise:
        seconds = seconds * np.exp(noise * rng.standard_normal(len(parts)))
    slowest = float(seconds.max())
    return slowest + max(0.0, exchange - HIDDEN_SHARE * slowest)


def most_ranks(lengths, cost):
    """Return the number of ranks beyond which no rank has work: a sequence is never divided.

    Examples
    --------
    >>> most_ranks(np.array([4, 2, 2]), StepCost(per_batch=0.0, per_row=1.0))
    2.0
    """
    return cost.of(lengths) / cost.of([lengths.max()])


def check(case, ranks):
    """Print what the model says of one process and of real ranks, and how long they took; return the costs."""
    found = launch(ranks, case=case._asdict())
    cost, exchange = StepCost(**found["cost"]), found["exchange"]
    of_gradients = found["bytes"] * ranks / (2 * (ranks - 1))  # a ring sends each byte 2 (R - 1) / R times
    seconds = exchange_seconds(ranks, of_gradients, **exchange)
    said = {"one thread": [], "work": []}
    for lengths in map(np.array, found["lengths"]):
        said["one thread"].append(cost.of(lengths))
        said["work"].append(step_seconds(lengths, balanced_parts(lengths, ranks, cost), cost, seconds))
    names = {"one thread": "one process", "work": f"{ranks} real ranks"}
    for way, name in names.items():
        model, real = statistics.median(said[way]), statistics.median(found["ways"][way]["wall"])
        words = f"the model says {1e3 * model:.1f} ms a step, measured {1e3 * real:.1f} ms"
        off = f"{100 * (model / real - 1):+.0f} %"
        print(f"{case.lengths}, {case.sequences} sequences, {name}: {words} ({off})", flush=True)
    return cost, of_gradients


def table(arguments, cost, num_bytes):
    """Print the model's table."""
    print(text_row(COLUMNS, COLUMNS.values()))
    for ranks in [2**k for k in range(arguments.ranks.bit_length()) if 2**k < arguments.ranks] + [arguments.ranks]:
        count = arguments.sequences if arguments.strong else arguments.sequences * ranks
        exchange = exchange_seconds(ranks, num_bytes, arguments.latency, 1 / arguments.bandwidth)
        rng, found = np.random.default_rng(0), {way: [] for way in WAYS}
        for _ in range(max(3, 20 // max(1, ranks // 64))):
            lengths = draw(arguments.lengths, count, rng)
            for way, divide in WAYS.items():
                parts = divide(lengths, ranks, cost)
                took = step_seconds(lengths, parts, cost, exchange, arguments.noise, np.random.default_rng(1))
                found[way].append((took, cost.of(lengths) / (ranks * took)))
        efficiency = [statistics.mean(each for _, each in found[way]) for way in WAYS]
        took = statistics.mean(seconds for seconds, _ in found["work"])
        print(text_row([ranks, count, 1e3 * took, 1e3 * exchange, *efficiency], COLUMNS.values()), flush=True)


def main(words):
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=64, help="the most ranks of the model")
    parser.add_argument("--lengths", default="lognormal", choices=["lognormal", "pareto"])
    parser.add_argument("--sequences", type=int, default=256, help="of each rank; with --strong, of all")
    parser.add_argument("--strong", action="store_true", help="the same global batch for any number of ranks")
    parser.add_argument("--hidden", type=int, default=128, help="units of each of two LSTM layers")
    parser.add_argument("--latency", type=float, default=20e-6, help="seconds of a message; 2e-6 is InfiniBand")
    parser.add_argument("--bandwidth", type=float, default=1.25e9, help="bytes per second; 1.25e9 is 10 Gbit/s")
    parser.add_argument("--noise", type=float, default=0.03, help="deviation of the logarithm of a rank's seconds")
    parser.add_argument("--batches", type=int, default=12, help="of each check")
    arguments = parser.parse_args(words)
    ranks = max(2, vr.get_num_threads())  # nobody has set it here: as many as there are cores
    for sequences in (128, 512):
        case = Case(arguments.lengths, sequences, arguments.hidden, arguments.batches)
        cost, num_bytes = check(case, ranks)
    constants = ", ".join(f"{name} {1e6 * value:.3g} us" for name, value in cost._asdict().items())
    print(f"\nA model, not measurements.  {constants}; {num_bytes / 1e6:.2f} MB of gradients; noise {arguments.noise}")
    lengths = draw(arguments.lengths, 4096, np.random.default_rng(0))
    words = f"{len(lengths)} {arguments.lengths} sequences ({lengths.sum()} rows, longest {lengths.max()})"
    print(f"No sequence is divided: of {words} no more than {most_ranks(lengths, cost):.0f} ranks have work")
    table(arguments, cost, num_bytes)


if __name__ == "__main__":
    main(sys.argv[1:])
