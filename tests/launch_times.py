"""Measure how long Python takes to launch a step of an LSTM on CUDA, without a GPU: `python -m tests.launch_times`."""

import statistics
import time
from pathlib import Path

import numpy as np

from benchmarks.machine import describe
from tests.emulated.driver_calls import Binding, OnHost, numba_packs, replace_driver
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import Prepared, launch, to_device
from varlen_rnn.runtime.parameters import Parameters

PATH = Path(__file__).parent.parent / "benchmarks" / "results" / "launches.txt"
TURNS, CALLS = 25, 200


class WithoutGpu(Binding):
    """Calls that do nothing."""

    def cuLaunchKernel(self, *arguments):
        return (0,)


class WithoutCode(OnHost):
    """A driver that compiles nothing."""

    def compile(self, kernel, kinds):
        return None


def arguments():
    """Return the arguments of an LSTM's forward step in two directions, as `recurrence.cuda.run_steps` has them."""
    floats, both = lambda *shape: to_device(np.ones(shape, np.float32)), lambda array: (array, array)
    ranks = *(to_device(np.ones(4, np.int64)) for _ in range(3)), (True, False)
    of_rows = both(floats(9, 32)), both(floats(1, 1)), both(floats(1, 8)), both(floats(9, 40))
    layer, product = (floats(2, 2, 4, 8), *of_rows, floats(9, 16), 8), (both(floats(8, 32)), both(floats(32)), 0, 8, 0)
    return 0, 0, ranks, layer, product, floats(2, 1, 4, 8), -1


def microseconds(function):
    """Return the median of the time of a call, in microseconds."""
    times = []
    for _ in range(TURNS):
        begin = time.perf_counter()
        for _ in range(CALLS):
            function()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) / CALLS * 1e6


def main():
    """Write the times, and where they were measured."""
    replace_driver(setattr, WithoutGpu(), WithoutCode())
    given, kernel = arguments(), cuda.Kernel(microseconds)  # never compiled
    parameters, prepared = Parameters(given), Prepared(kernel, *given)
    times = {
        "numba-cuda packs the arguments": microseconds(numba_packs(given, parameters.kinds)),
        "a launch": microseconds(lambda: launch(kernel, 512, *given)),
        "a prepared launch": microseconds(lambda: prepared.launch(512, 3, 4)),
    }
    about = ", ".join(f"{key} {value}" for key, value in describe(1).items())
    lines = [f"{name}: {value:.3g}" for name, value in times.items()]
    head = f"{about}; microseconds of Python, where CUDA's calls do nothing; {len(parameters.numbers)} numbers\n\n"
    PATH.write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
