"""A call of a prepared LSTM: 4 sequences of 5 steps, 32 units, beside its kernel alone and onnxruntime, on one thread.

    python -m benchmarks.prepared_call            # print the lines
    python -m benchmarks.prepared_call --write    # write them to results/prepared_call.txt

Rows and offsets are given as arrays, or as a LoDTensor.  A loop in compiled code calls the kernel, on the same arrays.
A prepared layer returns outputs and last states; onnxruntime is timed with the same results, and with outputs alone.
Outputs are compared first.  Times are of the processor, medians of rounds in which all take turns.
"""

from pathlib import Path

import numba
import numpy as np

import varlen_rnn as vr
from benchmarks.clock import seconds_in_turns
from benchmarks.layers.case import Case
from benchmarks.layers.ort import Session
from benchmarks.layers.serving import Prepared
from benchmarks.lengths import equal
from benchmarks.machine import publish_as_asked
from varlen_rnn.nn.recurrent.packed_layers import Records, packed_directions
from varlen_rnn.recurrence.packed import run_few

FILE = Path(__file__).parent / "results" / "prepared_call.txt"
CASE = Case("LSTM", 32, 32, equal(4, 5), "equal")
CALLS, ROUNDS = 200, 301


@numba.njit(nogil=True)
def call_kernel(calls, few, x, offsets, states, y):
    """Call the kernel of a layer with one direction, without Python."""
    for _ in range(calls):
        run_few(few, x, offsets, 0, False, states, y)


def kernel_of(engine):
    """Return a function of a number of calls of the kernel of a prepared layer."""
    count, units = len(CASE.lengths), CASE.hidden_size
    records = Records(packed_directions(engine.layer, "prepare"), count)
    ((_, (few,)),) = records.layers
    states, y = np.zeros((2, 1, count, units), np.float32), np.empty((CASE.rows, units), np.float32)
    kept = engine.x, engine.offsets, states, y, records  # the kernel gets addresses
    return lambda calls: call_kernel(calls, few, *map(id, kept[:4]))


def repeated(call):
    """Return a function of a number of calls."""

    def run(calls):
        for _ in range(calls):
            call()

    return run


def lines():
    """Return the lines of the results."""
    ours = Prepared(CASE, 1)
    x = vr.create_lod_tensor(ours.x, [list(CASE.lengths)])
    sessions = [Session(CASE, 1, outputs) for outputs in (("Y", "Y_h", "Y_c"), ("Y",))]
    wanted = ours.inference()["y"]
    difference = max(np.abs(one.arrays(one.inference())["y"] - wanted).max() for one in sessions)
    runs = {
        "arrays": repeated(lambda: ours.run(ours.x, offsets=ours.offsets)),
        "a LoDTensor": repeated(lambda: ours.run(x)),
        "its kernel alone": kernel_of(ours),
        "onnxruntime": repeated(sessions[0].all_outputs),
        "onnxruntime without last states": repeated(sessions[1].all_outputs),
    }
    works = [lambda run=run: run(CALLS) for run in runs.values()]
    found = {name: seconds / CALLS * 1e6 for name, seconds in zip(runs, seconds_in_turns(works, ROUNDS), strict=True)}
    given = found["arrays"]
    return [
        f"outputs differ by at most {difference:.0e}",
        *(f"{name}: {time:.2f} us" for name, time in found.items()),
        f"arrays: {given - found['its kernel alone']:.2f} us beside the kernel, {given / found['onnxruntime']:.2f} of "
        f"onnxruntime's time",
    ]


if __name__ == "__main__":
    publish_as_asked(lines(), FILE, __doc__)
