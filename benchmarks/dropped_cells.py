"""Measure the resident memory that cells of new names leave after they were dropped.

`python -m benchmarks.dropped_cells` prints the bytes a cell that are left after a collection of garbage: for cells that
are only defined, for cells in the layer of a program that is described and read again, and for cells in a layer that
takes a step.  A cell that ran stays, with its compiled code.  `benchmarks/results/dropped_cells.txt` has the output.
Linux only.
"""

import gc
import os
import pathlib
from collections.abc import Callable

import numpy as np

import varlen_rnn as vr
from varlen_rnn.cells import Cell, cell, sigmoid, tanh


def define(name: str) -> Cell:
    def leaky(a, b, /, h):
        return h + sigmoid(b) * (tanh(a) - h)

    return cell(leaky, name=name)


def describe(name: str) -> None:
    """Describe the training step of a layer, and read its program again."""
    with vr.program_guard() as program:
        x = vr.feed_data("x", [-1, 3], "float32", lod_level=1)
        y, _ = vr.nn.Recurrent(define(name), 3, 2)(x)
        y.sum().backward()
    vr.Program.from_bytes(program.to_bytes())


def step(name: str) -> None:
    """Take a training step of a layer."""
    y, _ = vr.nn.Recurrent(define(name), 3, 2)(vr.create_lod_tensor(np.ones((5, 3), np.float32), [[2, 3]]))
    y.sum().backward()


CASES = {"defined": (define, 2_000), "in a program": (describe, 500), "in a layer after a step": (step, 50)}


def resident() -> int:
    """Return the resident memory of this process in bytes, after a collection of garbage."""
    gc.collect()
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def left_by(use: Callable[[str], object], count: int) -> float:
    """Return the bytes that each of `count` cells leaves."""
    for number in range(count // 5):  # to fill caches first
        use(f"{use.__name__}_first_{number}")
    before = resident()
    for number in range(count):
        use(f"{use.__name__}_{number}")
    return (resident() - before) / count


def main() -> None:
    print(f"varlen_rnn {vr.__version__}: bytes that a dropped cell of a new name leaves")
    for words, (use, count) in CASES.items():
        print(f"  {words}, {count:,} cells: {left_by(use, count):,.0f}")


if __name__ == "__main__":
    main()
