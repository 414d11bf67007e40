"""A layer in float32 where PyTorch is nearest: equal lengths, and ragged lengths in groups; CPU time of one thread.

    python -m benchmarks.level            # print the lines
    python -m benchmarks.level --write    # write them to results/level.txt

Each engine has its own process, and they take turns.  A line has the medians of the rounds, our share of the
multiply-add rate and of the rate of NumPy's matrix product, and the time of each peer over ours.
"""

import dataclasses
from pathlib import Path

from benchmarks import results
from benchmarks.engines import GROUPED, OURS, installed
from benchmarks.layers import Case
from benchmarks.lengths import equal, lognormal
from benchmarks.machine import publish_as_asked
from benchmarks.measure import Patience, measure

FILE = Path(__file__).parent / "results" / "level.txt"
PATIENCE = Patience(least=7, most=7, wait=0.0, clock="process_time")
CASES = [
    (Case("LSTM", 192, 256, equal(48, 90), "equal"), ("torch padded", "onnxruntime")),
    (Case("LSTM", 192, 256, lognormal(48), "lognormal"), (GROUPED,)),
    (Case("GRU", 192, 256, equal(48, 90), "equal"), ("torch padded", "onnxruntime")),
    (Case("GRU", 192, 256, lognormal(48), "lognormal"), (GROUPED,)),
]


def lines():
    """Yield the lines of the result."""
    yield "sequences, features, units; CPU time of one thread, float32"
    for case, peers in CASES:
        engines = installed((OURS, *peers))
        for mode, found in measure("layers", dataclasses.asdict(case), engines, 1, PATIENCE).items():
            line = {**case.summary(), "flops": case.flops(mode), **found}
            name = f"{case.cell} {','.join(map(str, line['size']))} {case.distribution} ({case.rows} rows), {mode}"
            if "failed" in line:
                yield f"{name}: no figures, {line['failed']}"
                continue
            ours, peak = results.seconds(line, OURS) * 1e3, results.efficiency(line)
            sgemm = results.efficiency(line, "sgemm_rates")
            over = ", ".join(f"{each} {results.ratio(line, each):.2f}" for each in line["engines"] if each != OURS)
            yield f"{name}: {ours:.1f} ms, {peak:.2f} of the multiply-add rate, {sgemm:.2f} of sgemm; over ours: {over}"


if __name__ == "__main__":
    publish_as_asked(lines(), FILE, __doc__)
