"""Linear attention over ragged rows, and by chunks in PyTorch: padded, in groups of like length, a sequence at a time.

    python -m benchmarks.linear_attention            # print the lines
    python -m benchmarks.linear_attention --write    # and replace results/linear_attention.txt

4 heads of 64 numbers, lognormal lengths; gated delta, and gated with a normaliser, as in an mLSTM.  A training step is
the sum of the outputs' squares and all gradients.  PyTorch's code is written from the equations, in chunks of 64 rows.
Each engine runs in a process of its own, with one thread.  Memory is the most that the process takes in training steps
beyond the memory that it held before the first one.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.lengths import lognormal
from benchmarks.processes import ROOT, environment
from benchmarks.transducer import resident

FILE = Path(__file__).parent / "results" / "linear_attention.txt"
HEADS, SIZE, STEPS, CHUNK, GROUPS = 4, 64, 3, 64, 4
LENGTHS = {"64 of median 60": lognormal(64, 60), "16 of median 480": tuple(8 * rows for rows in lognormal(16))}
CELLS = "gated delta", "normalised"


def inputs(lengths):
    """Return query, key, value, decay and beta; keys have length 1."""
    rng, rows = np.random.default_rng(0), sum(lengths)
    query, key, value = (rng.standard_normal((rows, HEADS, SIZE)) for _ in range(3))
    key /= np.linalg.norm(key, axis=2, keepdims=True)
    rates = -rng.gamma(1, 0.1, (rows, HEADS)), rng.uniform(0, 1, (rows, HEADS))
    return [x.astype(np.float32) for x in (query, key, value, *rates)]


def ragged(cell, lengths):
    """Return a function of varlen_rnn; it returns the sum of the squares of outputs, and of the gradients if asked."""
    import varlen_rnn as vr

    rows = [vr.create_lod_tensor(x, [list(lengths)]) for x in inputs(lengths)]

    def run(is_step):
        given = [vr.Variable(x, requires_grad=True) for x in rows]
        y, _ = vr.linear_attention(*given, delta=cell == "gated delta", normalise=cell == "normalised")
        loss = sum((x * x).sum() for x in (y if isinstance(y, tuple) else (y,)))
        if is_step:
            loss.backward()
        return loss.item(), [np.asarray(x.grad) for x in given] if is_step else None

    def forward():
        with vr.no_grad():
            return run(False)

    return forward, lambda: run(True)


def chunked(q, k, v, g, b, delta):
    """Return outputs (batch, heads, time, size) of PyTorch; rows behind the end of a sequence have keys of 0."""
    import torch

    state, outputs, last = q.new_zeros(*q.shape[:2], SIZE, v.shape[-1]), [], q.shape[2]
    for begin in range(0, last, CHUNK):
        rows = slice(begin, min(begin + CHUNK, last))
        queries, keys, values, rate = q[:, :, rows], k[:, :, rows], v[:, :, rows], b[:, :, rows, None]
        total = g[:, :, rows].cumsum(2)
        pairs = total[..., :, None] - total[..., None, :]
        lower = torch.ones(pairs.shape[-2:], dtype=torch.bool).tril()
        between, since = pairs.masked_fill(~lower, -torch.inf).exp(), total.exp()[..., None]
        if delta:
            system = (between * (keys @ keys.mT)).tril(-1) * rate.mT
            right = values - since * (keys @ state)
            values = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
        written = rate * values
        outputs.append(SIZE**-0.5 * (since * (queries @ state) + (between * (queries @ keys.mT)) @ written))
        left = between[..., -1, :, None] * keys
        state = since[:, :, -1:] * state + left.mT @ written
    return torch.cat(outputs, 2)


def padded(cell, lengths, groups):
    """Return the same function of PyTorch; each of `groups` has the numbers of its sequences."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    leaves = [torch.from_numpy(x).requires_grad_() for x in inputs(lengths)]

    def run(is_step):
        loss, parts = 0.0, [x.split(list(lengths)) for x in leaves]
        for group in groups:
            given = [pad_sequence([part[i] for i in group], batch_first=True).transpose(1, 2) for part in parts]
            if cell == "normalised":
                given[2] = torch.cat([given[2], torch.ones_like(given[2][..., :1])], -1)
            y = chunked(*given, cell == "gated delta")
            inside = torch.arange(y.shape[2]) < torch.tensor([lengths[i] for i in group])[:, None]
            part = (y.masked_fill(~inside[:, None, :, None], 0) ** 2).sum()
            if is_step:
                part.backward()
            loss += part.item()
        found = [x.grad.numpy().copy() for x in leaves] if is_step else None
        for x in leaves:
            x.grad = None
        return loss, found

    def forward():
        with torch.no_grad():
            return run(False)

    return forward, lambda: run(True)


def padded_in(count):
    """Return the function of an engine that pads `count` groups of like length; None for a group a sequence."""

    def make(cell, lengths):
        order = np.argsort(lengths, kind="stable")
        return padded(cell, lengths, [list(map(int, part)) for part in np.array_split(order, count or len(order))])

    return make


ENGINES = {
    "ragged rows": ragged,
    "PyTorch, padded": padded_in(1),
    f"PyTorch, {GROUPS} padded groups": padded_in(GROUPS),
    "PyTorch, a sequence at a time": padded_in(None),
}


def seconds_of(function):
    """Return the median of the processor seconds of some calls."""
    found = []
    for _ in range(STEPS):
        began = resource.getrusage(resource.RUSAGE_SELF)
        function()
        ended = resource.getrusage(resource.RUSAGE_SELF)
        found.append(ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime)
    return statistics.median(found)


def measure(engine, cell, lengths):
    """Return the loss, the norm of all gradients, seconds of a forward pass and of a step, and peak bytes of steps."""
    forward, step = ENGINES[engine](cell, LENGTHS[lengths])
    forward()
    of_forward, before = seconds_of(forward), resident("VmRSS")
    loss, gradients = step()  # compiles, and starts what libraries start late
    norm = float(np.sqrt(sum(np.square(x, dtype=np.float64).sum() for x in gradients)))
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    of_step = seconds_of(step)
    return loss, norm, of_forward, of_step, resident("VmHWM") - before


def lines():
    """Yield the lines of the result."""
    for cell in CELLS:
        for lengths, its in LENGTHS.items():
            yield f"{cell}, {lengths}: {sum(its):,} rows, {len(its) * max(its):,} padded"
            for engine in ENGINES:
                command = [sys.executable, "-m", "benchmarks.linear_attention", "--one", engine, cell, lengths]
                ran = subprocess.run(command, cwd=ROOT, env=environment(1), stdout=subprocess.PIPE, check=True)
                loss, norm, forward, step, peak = json.loads(ran.stdout)
                times = f"forward {forward * 1e3:.1f} ms, step {step * 1e3:.1f} ms of CPU, {peak / 2**20:.0f} MiB"
                yield f"  {engine}: {times}, loss {loss:.5g}, gradients {norm:.5g}"


def main():
    """Print the figures, and write them if asked to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.linear_attention", description=__doc__)
    parser.add_argument("--write", action="store_true", help="replace the file of results")
    parser.add_argument("--one", nargs=3, help="print the figures of an engine, a cell and lengths, as JSON")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(*given.one)))
        return
    from benchmarks.machine import describe

    found = [str(describe(1))]
    for line in lines():
        found.append(line)
        print(line, flush=True)
    if given.write:
        FILE.write_text("\n".join(found) + "\n")


if __name__ == "__main__":
    main()
