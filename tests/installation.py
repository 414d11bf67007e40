"""What an installation compiles at first: `python -m tests.installation PYTHON`, after `pip install .` into it.

Each first step runs in a process of its own on an empty cache, and must compile nothing; LSTM's also from the root of
the checkout.  Then an example, on an empty cache and on a warm one.  Exits with 1 where something is compiled.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent

BEGIN = """
import time
import numpy as np
import varlen_rnn as vr
from varlen_rnn.runtime.cache.disk import DiskCache
saved = []
def save(self, *arguments, save=DiskCache.save_overload):
    saved.append(self._function.__name__)
    save(self, *arguments)
DiskCache.save_overload = save
nn, dtype = vr.nn, np.dtype({dtype!r})
x = vr.create_lod_tensor(np.random.default_rng(0).standard_normal((50, 16)).astype(dtype), [[20, 10, 20]])
began = time.perf_counter()
"""
END = """
print(time.perf_counter() - began, *saved)
"""
TRAIN = """
layer = nn.{name}(16, 32, dtype=dtype)
pooled = vr.sequence_pool(layer(x)[0], "max")
(pooled * pooled).mean().backward()
vr.optim.Adam(layer.parameters(), lr=1e-3).step()
"""
OPTIMIZE = """
table, weight = nn.Embedding(9, 16, dtype=dtype), nn.Linear(16, 3, dtype=dtype)
weight(table(vr.create_lod_tensor(np.arange(5), [[2, 3]]))).sum().backward()
for name in vr.optim.__all__:
    rule = getattr(vr.optim, name)
    if isinstance(rule, type) and issubclass(rule, vr.optim.Optimizer) and rule is not vr.optim.Optimizer:
        rule([*table.parameters(), *weight.parameters()], lr=1e-3).step()
"""
STEPS = {
    **{name: TRAIN.format(name=name) for name in ("LSTM", "GRU", "RNN")},
    "attention": "layer = nn.MultiheadAttention(16, 2, dtype=dtype)\nlayer(x, x, x).sum().backward()",
    "CRF": """
tags = vr.create_lod_tensor(np.zeros(50, np.int64), x.recursive_sequence_lengths())
nn.LinearChainCRF(16, dtype=dtype)(vr.Variable(x), tags).sum().backward()
""",
    "prepare": "nn.LSTM(16, 32, dtype=dtype).prepare()(x)",
    "stream": "nn.GRU(16, 32, dtype=dtype).stream(3)(np.asarray(x)[:3])",
    "optimizers": OPTIMIZE,
}
EXAMPLE = ["--steps", "20", "--epochs", "1"]


def run(command, cache, folder):
    """Run a command with a cache folder in another; return what it wrote to the standard output."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    variables |= {"NUMBA_CACHE_DIR": cache, "VARLEN_RNN_QUIET": "1", "MPLBACKEND": "Agg"}
    return subprocess.run(command, cwd=folder, env=variables, check=True, stdout=subprocess.PIPE, text=True).stdout


def first_step(python, step, dtype, folder):
    """Return the seconds of a first step on an empty cache, and the names of the kernels that it compiled."""
    with tempfile.TemporaryDirectory() as cache:
        seconds, *saved = run([python, "-c", BEGIN.format(dtype=dtype) + step + END], cache, folder).split()
    return float(seconds), saved


def seconds_of_example(python, cache, folder):
    """Return the seconds of the example of the README, from the start of Python."""
    began = time.perf_counter()
    run([python, ROOT / "examples" / "classify_names.py", *EXAMPLE, "--out", folder], cache, folder)
    return time.perf_counter() - began


def main(python):
    """Print a line for each first step; return whether nothing was compiled."""
    compiled = []
    with tempfile.TemporaryDirectory() as elsewhere:
        for folder in (elsewhere, ROOT):
            for name, step in STEPS.items() if folder is elsewhere else [("LSTM", STEPS["LSTM"])]:
                for dtype in ("float32", "float64"):
                    seconds, saved = first_step(python, step, dtype, folder)
                    where = " in the checkout" if folder is ROOT else ""
                    print(f"{name:10} {dtype} {seconds:6.2f} s, compiled {saved or 'nothing'}{where}", flush=True)
                    compiled += saved
        with tempfile.TemporaryDirectory() as cache:
            rounds = [seconds_of_example(python, cache, elsewhere) for _ in range(2)]
            compiled += [path.name for path in Path(cache).rglob("*.nbc")]
    print(
        f"examples/classify_names.py {' '.join(EXAMPLE)}: {rounds[0]:.1f} s on an empty cache, {rounds[1]:.1f} s then"
    )
    print(f"compiled: {', '.join(compiled) or 'nothing'}")
    return not compiled


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1]))
