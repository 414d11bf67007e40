"""A model of training on many ranks: seconds of a step and efficiency, from this host's costs and a network's.

    python -m benchmarks scale --ranks 256
    python -m benchmarks scale --ranks 64 --lengths pareto --sequences 128 --latency 2e-6 --bandwidth 12.5e9
    python -m benchmarks scale --ranks 16 --strong --sequences 4096

First, on each engine that is installed, as many real ranks as there are cores take steps, one thread each, and so does
one process.  The model predicts their times from what was measured apart: the cost of steps and its noise, the work of
packing, and sums of few and of many bytes between ranks that compute.
Then a table of a model, not of measurements, for 1, 2, 4 ... ranks on a network of the given latency and bandwidth:

    step(R) = slowest rank's per_batch + per_row rows + per_step longest + per_sequence sequences, times its noise
              + packing + exchange(R), of which the pass of gradients hides some if there are many buckets
    exchange(R) = messages * ceil(log2 R) * latency + 2 (R - 1) / R * bytes / bandwidth
"""

import argparse
import math
import statistics
import sys
from typing import NamedTuple

import numpy as np

import varlen_rnn as vr
from benchmarks.quiet import wait_for_quiet
from benchmarks.ranks import WAYS, Case, draw
from benchmarks.survival import engines
from benchmarks.tables import text_row
from benchmarks.turns import prepared, started
from varlen_rnn.data import StepCost, balanced_parts

HIDDEN_SHARE = 0.5 * 2 / 3  # of a rank's seconds: the pass of gradients takes two thirds, half of which hides messages
EXPOSED_BYTES = 2 << 20  # two buckets: few parameters leave at the end of the pass
COLUMNS = {
    "ranks": 6, "sequences": 11, "step, ms": 10, "exchange, ms": 14, "by work": 9, "by counts": 11, "round robin": 13,
}  # fmt: skip


class Exchange(NamedTuple):
    """What a step sends, and how long it takes.

    Attributes
    ----------
    messages : int
        One after another.
    num_bytes : float
        Of gradients.
    latency, per_byte : float
        Seconds of a message from one rank to another.
    host : float
        Seconds of packing and unpacking.
    """

    messages: int
    num_bytes: float
    latency: float
    per_byte: float
    host: float = 0.0

    def seconds(self, ranks, num_bytes=None):
        """Return the seconds of the messages of a step.

        Examples
        --------
        >>> Exchange(8, 1e6, 1e-5, 1e-9).seconds(1)
        0.0
        >>> Exchange(8, 1e6, 0.0, 1e-9).seconds(4)
        0.0015
        """
        hops, sent = math.ceil(math.log2(ranks)), self.num_bytes if num_bytes is None else num_bytes
        return self.messages * hops * self.latency + 2 * (ranks - 1) / ranks * sent * self.per_byte

    def beyond(self, ranks, seconds):
        """Return the seconds of an exchange and of packing that the pass of a rank of these seconds does not hide.

        Examples
        --------
        >>> Exchange(2, 1e6, 0.5, 0.0, host=0.25).beyond(2, 3.0)
        1.25
        >>> Exchange(2, 5 << 20, 0.0, 2.0**-20).beyond(2, 3.0)
        4.0
        """
        if ranks == 1:
            return 0.0
        whole = self.seconds(ranks)
        exposed = self.seconds(ranks, min(self.num_bytes, EXPOSED_BYTES))
        return self.host + whole - min(whole - exposed, HIDDEN_SHARE * seconds)


def step_seconds(lengths, parts, cost, exchange, noise=0.0, rng=None):
    """Return the seconds of a step on ranks that compute these parts of a batch.

    Examples
    --------
    >>> cost = StepCost(per_batch=1.0, per_row=1.0)
    >>> step_seconds(np.array([3, 2]), [[0], [1]], cost, Exchange(1, 0, 0.5, 0.0))
    4.5
    """
    seconds = np.array([cost.of(lengths[part]) for part in parts])
    if noise:
        seconds = seconds * np.exp(noise * rng.standard_normal(len(parts)))
    slowest = float(seconds.max())
    return slowest + exchange.beyond(len(parts), slowest)


def most_ranks(lengths, cost):
    """Return the number of ranks beyond which no rank has work: a sequence is never divided.

    Examples
    --------
    >>> most_ranks(np.array([4, 2, 2]), StepCost(per_batch=0.0, per_row=1.0))
    2.0
    """
    return cost.of(lengths) / cost.of([lengths.max()])


def scaled(cost, pace):
    """Return a cost of which every term is `pace` times as large."""
    return StepCost(*(pace * term for term in cost))


def measured_exchange(team):
    """Return the Exchange of a step of real ranks; a rank that comes last does not wait for others."""
    every = team.ask_ranks("exchange")
    few, many = (statistics.median(map(min, zip(*(of[name] for of in every), strict=True))) for name in ("few", "many"))
    ranks, first = len(every), every[0]
    of_gradients = first["bytes"] * ranks / (2 * (ranks - 1))  # a ring sends each byte 2 (R - 1) / R times
    latency = few / math.ceil(math.log2(ranks))
    per_byte = max(many - few, 0.0) / (2 * (ranks - 1) / ranks * first["more"])
    return Exchange(first["messages"], of_gradients, latency, per_byte, max(team.ask_one("host"), 0.0))


def measured_steps(team, case):
    """Return for each batch the seconds of one process, of each rank without an exchange, and of ranks with one."""
    one, alone, together = [], [], []
    for number in range(case.batches):
        wait_for_quiet(case.wait)
        one.append(team.step("one thread", number)[0])
        alone.append([wall for wall, _ in team.ask_ranks("step", way="work", number=number, exchange=False)])
        together.append(team.step("work", number)[0])
    return np.array(one), np.array(alone), np.array(together)


def check(engine, case, ranks):
    """Print the model's and the measured seconds of one process and of real ranks; return the measurements.

    Every other batch tells the pace of the ranks, which compute at once, and its noise; the others are predicted.
    """
    with started(engine, ranks) as team:
        lengths, cost = prepared(team, case)
        lengths, cost = list(map(np.array, lengths)), StepCost(*cost)
        parts = [balanced_parts(each, ranks, cost) for each in lengths]
        one, alone, together = measured_steps(team, case)
        exchange = measured_exchange(team)
    whole = np.array([cost.of(each) for each in lengths])
    of_parts = np.array([[cost.of(each[part]) for part in its] for each, its in zip(lengths, parts, strict=True)])
    pace, errors = np.median(one[::2] / whole[::2]), np.log(alone[::2] / of_parts[::2])
    noise, rng = float(errors.std()), np.random.default_rng(0)
    of_ranks, said = scaled(cost, float(np.exp(np.median(errors)))), []
    for each, its in list(zip(lengths, parts, strict=True))[1::2]:
        draws = [step_seconds(each, its, of_ranks, exchange, noise, rng) for _ in range(20)]
        said.append(statistics.mean(draws))
    pairs = {"one process": (pace * whole[1::2], one[1::2]), f"{ranks} real ranks": (said, together[1::2])}
    for name, (model, real) in pairs.items():
        model, real = np.median(model), np.median(real)
        words = f"the model says {1e3 * model:.1f} ms a step, measured {1e3 * real:.1f} ms"
        off = f"{100 * (model / real - 1):+.0f} %"
        print(f"{engine}, {case.lengths}, {case.sequences} sequences, {name}: {words} ({off})", flush=True)
    said_of = (
        f"{1e3 * exchange.host:.1f} ms of packing, {exchange.messages} messages of {1e6 * exchange.latency:.0f} us"
    )
    print(f"    {said_of}, {1e9 * exchange.per_byte:.2f} ns a byte, noise of {noise:.3f}", flush=True)
    return of_ranks, exchange


def table(arguments, cost, exchange):
    """Print the model's table."""
    print(text_row(COLUMNS, COLUMNS.values()))
    for ranks in [2**k for k in range(arguments.ranks.bit_length()) if 2**k < arguments.ranks] + [arguments.ranks]:
        count = arguments.sequences if arguments.strong else arguments.sequences * ranks
        rng, found = np.random.default_rng(0), {way: [] for way in WAYS}
        for _ in range(max(3, 20 // max(1, ranks // 64))):
            lengths = draw(arguments.lengths, count, rng)
            for way, divide in WAYS.items():
                parts = divide(lengths, ranks, cost)
                took = step_seconds(lengths, parts, cost, exchange, arguments.noise, np.random.default_rng(1))
                found[way].append((took, cost.of(lengths) / (ranks * took)))
        efficiency = [statistics.mean(each for _, each in found[way]) for way in WAYS]
        took = statistics.mean(seconds for seconds, _ in found["work"])
        print(
            text_row([ranks, count, 1e3 * took, 1e3 * exchange.seconds(ranks), *efficiency], COLUMNS.values()),
            flush=True,
        )


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
    parser.add_argument("--batches", type=int, default=24, help="of each check")
    arguments = parser.parse_args(words)
    ranks = max(2, vr.get_num_threads())  # nobody has set it here: as many as there are cores
    for engine in engines():
        for sequences in (128, 512):
            case = Case(arguments.lengths, sequences, arguments.hidden, arguments.batches)
            cost, exchange = check(engine, case, ranks)
    exchange = exchange._replace(latency=arguments.latency, per_byte=1 / arguments.bandwidth)
    constants = ", ".join(f"{name} {1e6 * value:.3g} us" for name, value in cost._asdict().items())
    of_gradients = f"{exchange.num_bytes / 1e6:.2f} MB of gradients"
    print(f"\nA model, not measurements.  {constants}; {of_gradients}; noise {arguments.noise}")
    lengths = draw(arguments.lengths, 4096, np.random.default_rng(0))
    words = f"{len(lengths)} {arguments.lengths} sequences ({lengths.sum()} rows, longest {lengths.max()})"
    print(f"No sequence is divided: of {words} no more than {most_ranks(lengths, cost):.0f} ranks have work")
    table(arguments, cost, exchange)


if __name__ == "__main__":
    main(sys.argv[1:])
