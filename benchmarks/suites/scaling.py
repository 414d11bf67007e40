"""An LSTM of 256 units as threads, sequences, rows and padding grow."""

import numpy as np

from benchmarks.engines import OURS, PYTORCH, TWIN
from benchmarks.layers import Case
from benchmarks.lengths import equal, lognormal, pareto
from benchmarks.suites.layers import Point

BATCH_SIZE, MEAN_LENGTH = 64, 80


def points(quick, threads):
    """Return the points of four sections: threads, batch, rows, padding; all of them training."""
    width = 32 if quick else 256
    sections = {"threads": _threads, "batch": _batch, "rows": _rows, "padding": _padding}
    engines = {"threads": (OURS, *PYTORCH), "batch": (OURS, *PYTORCH), "rows": (OURS, "torch packed")}
    return [
        Point(Case("LSTM", width, width, lengths, name), count, engines.get(section, (OURS, TWIN, *PYTORCH)),
              ("training",), section)
        for section, make in sections.items()
        for name, lengths, count in make(quick, threads)
    ]  # fmt: skip


def _threads(quick, threads):
    counts = [2**k for k in range(threads.bit_length()) if 2**k < threads]
    return [("lognormal", lognormal(BATCH_SIZE), count) for count in ([] if quick else counts) + [threads]]


def _batch(quick, threads):
    sizes = [2] if quick else [1, 2, 4, 8, 16, 32, 64, 128]
    return [("equal", equal(size, MEAN_LENGTH), threads) for size in sizes]


def _rows(quick, threads):
    """Return batches of very different shapes; what they cost should depend on their rows alone."""
    batches = [("lognormal", lognormal(16)), ("equal", equal(64, 20)), ("pareto", pareto(64))]
    batches += [("lognormal", lognormal(size)) for size in (64, 128, 256)] + [("pareto", pareto(256))]
    return [(name, lengths, threads) for name, lengths in batches[: 1 if quick else None]]


def _padding(quick, threads):
    """Return batches of the same number of rows, about, whose lengths spread more and more."""
    sigmas = [0.5] if quick else [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    medians = [MEAN_LENGTH * np.exp(-(sigma**2) / 2) for sigma in sigmas]
    return [
        (f"lognormal {sigma}", lognormal(BATCH_SIZE, median, sigma or 1e-9), threads)
        for sigma, median in zip(sigmas, medians, strict=True)
    ]
