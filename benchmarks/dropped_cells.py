"""Measure the resident memory that cells of new names leave after they were dropped.

`python -m benchmarks.dropped_cells` defines 2,000 cells in a loop, and prints the bytes a cell that are left after a
collection of garbage.  `benchmarks/results/dropped_cells.txt` has its output.  Linux only.
"""

import gc
import os
import pathlib

import varlen_rnn as vr
from varlen_rnn.cells import cell, sigmoid, tanh

CELLS = 2_000


def define(name):
    def leaky(a, b, /, h):
        return h + sigmoid(b) * (tanh(a) - h)

    cell(leaky, name=name)


def resident():
    """Return the resident memory of this process in bytes, after a collection of garbage."""
    gc.collect()
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main():
    for number in range(100):  # what is made once
        define(f"first_{number}")
    before = resident()
    for number in range(CELLS):
        define(f"cell_{number}")
    left = (resident() - before) / CELLS
    print(f"varlen_rnn {vr.__version__}: {CELLS:,} dropped cells of new names leave {left:,.0f} bytes each")


if __name__ == "__main__":
    main()
