"""Time the pieces of a layer's training step in this checkout and in another: `python -m benchmarks against OTHER`.

OTHER is the root of the other checkout, or a level of processors, as x86-64-v3: then it is this checkout with kernels
for the level, and the first one has kernels for this very processor.  Each has two processes, for those of one binary
differ by 2 to 5 %, by where their pages fall: a difference between checkouts counts where it is larger than that
between twins.  Processes take turns; in each round, times are divided by those of the first process.
"""

import argparse
import contextlib
import dataclasses
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np

import varlen_rnn as vr
from benchmarks.engines import OURS
from benchmarks.layers import Case
from benchmarks.layers.case import GATES
from benchmarks.lengths import DATA_SETS, equal, lognormal, of_data_set, pareto
from benchmarks.measure import check_outputs, watched
from benchmarks.processes import ROOT, EngineError, Process
from benchmarks.quiet import undisturbed, wait_for_quiet
from benchmarks.tables import text_row
from varlen_rnn.runtime.cache.level import LEVELS, runs_here, variables_of

COLUMNS = {"process": 10, "piece": 10, "ms": 9, "lower quartile": 16, "median": 9, "upper quartile": 16, "rounds": 8}
DISTRIBUTIONS = {"lognormal": lognormal, "pareto": pareto}
WAIT = 5.0  # seconds, at most, for others to leave the machine alone before a turn


def main(arguments):
    """Run the command with these arguments."""
    options = _parser().parse_args(arguments)
    batch_size, *width = options.size
    case = Case(options.cell, *width, lengths_of(options.lengths, batch_size), options.lengths)
    print(f"{case.cell} {tuple(options.size)} {case.distribution}, {case.rows} rows, threads {options.threads}")
    print("A step is forward and backward; times over those of the first process, in the same round.\n")
    turns = run(case, options.other, options.threads, options.rounds)
    print(text_row(COLUMNS, COLUMNS.values()))
    for cells in rows_of(turns):
        print(text_row(cells, COLUMNS.values()))


def run(case, other, threads, rounds):
    """Return what each process took: {label: list of ({piece: seconds}, cores that others took)}.

    Parameters
    ----------
    case : Case
    other : Path or str
        The root of the other checkout, or a level.
    threads, rounds : int
    """
    this, that = (ROOT, {}), (other, {})
    if other in LEVELS:
        this, that = (ROOT, {"NUMBA_CPU_NAME": llvm.get_host_cpu_name()}), (ROOT, variables_of(other))
    with contextlib.ExitStack() as stack:
        processes = []
        for label, (root, variables) in {"this 1": this, "other 1": that, "this 2": this, "other 2": that}.items():
            processes.append(Process(OURS, threads, label, variables))
            stack.callback(processes[-1].stop)
            found = processes[-1].ask("look_in", folder=str(root))
            if Path(found) != root / "varlen_rnn":
                raise EngineError(f"{label}: found varlen_rnn in {found}, not in {root}")
            processes[-1].send_build("layers", dataclasses.asdict(case))
            processes[-1].receive()
        if failed := check_outputs(processes, "training"):
            raise EngineError(f"no figures, for results differ: {failed}")
        return _take_turns(processes, rounds)


def _take_turns(processes, rounds):
    """Return the turns of each process; every other round goes from the last to the first."""
    turns = {process.label: [] for process in processes}
    for number in range(rounds):
        for process in processes[:: -1 if number % 2 else 1]:
            wait_for_quiet(WAIT)
            turns[process.label].append(watched(process, "pieces"))
    return turns


def rows_of(turns):
    """Return the rows of the table: of rounds that nobody disturbed, unless others disturbed all.

    Examples
    --------
    >>> turns = [({"step": 0.002}, 0.0), ({"step": 0.004}, 0.0)]
    >>> rows_of({"this 1": turns, "other 1": turns[::-1]})[1]
    ['other 1', 'step', 3.0, '0.875', '1.250', '1.625', 2]
    """
    rows, firsts = [], next(iter(turns.values()))
    for label, its in turns.items():
        both = list(zip(its, firsts, strict=True))
        disturbed = [max(mine[1], first[1]) for mine, first in both]
        for piece in its[0][0]:
            pairs = np.array(undisturbed([(mine[0][piece], first[0][piece]) for mine, first in both], disturbed))
            quartiles = np.quantile(pairs[:, 0] / pairs[:, 1], (0.25, 0.5, 0.75))
            ms = float(np.median(pairs[:, 0])) * 1e3
            rows.append([label, piece, ms, *(f"{ratio:.3f}" for ratio in quartiles), len(pairs)])
    return rows


def lengths_of(name, batch_size):
    """Return the lengths of a distribution or data set; of a number, as many steps for each sequence."""
    if name.isdecimal():
        return equal(batch_size, int(name))
    return of_data_set(batch_size, name) if name in DATA_SETS else DISTRIBUTIONS[name](batch_size)


def _parser():
    parser = argparse.ArgumentParser(prog="python -m benchmarks against", description=__doc__)
    text = f"the root of the other checkout, or a level of processors: {', '.join(LEVELS)}"
    parser.add_argument("other", type=_other, metavar="OTHER", help=text)
    parser.add_argument("--cell", choices=GATES, default="LSTM", help="default LSTM")
    parser.add_argument("--size", type=_size, default=(64, 256, 256), metavar="B,D,H", help="default 64,256,256")
    parser.add_argument("--lengths", type=_lengths, default="lognormal", metavar="LENGTHS",
                        help=f"a number of steps, or one of {', '.join((*DISTRIBUTIONS, *DATA_SETS))}")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="turns of each process; default 15")
    parser.add_argument("--threads", type=int, default=vr.get_num_threads(), metavar="N", help="default all cores")
    return parser


def _size(text):
    batch_size, input_size, hidden_size = map(int, text.split(","))
    return batch_size, input_size, hidden_size


def _other(text):
    if text in LEVELS and not runs_here(text):
        raise argparse.ArgumentTypeError(f"this processor lacks features of {text}")
    return text if text in LEVELS else Path(text).resolve()


def _lengths(text):
    if not text.isdecimal() and text not in DISTRIBUTIONS | DATA_SETS:
        raise argparse.ArgumentTypeError(f"no lengths {text}")
    return text
