"""What an installation compiles at first: `python -m tests.installation PYTHON`, after `pip install .` into it.

Each first step runs in a process of its own on an empty cache, and must compile nothing; LSTM's also from the root of
the checkout, and all with the kernels of a lower level, where those are installed.  Then an example, on an empty cache
and on a warm one, and the other examples on a few lines of data.
Exits with 1 where something is compiled.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from varlen_rnn.runtime.cache.level import variables_of

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
    "convolution": """
for layer in (nn.SequenceConv(16, 4, 3, dtype=dtype), nn.RowConv(16, 2, dtype=dtype)):
    layer(x).sum().backward()
""",
    "gates": """
gates = nn.functional.concat([x, x], 1)
nn.functional.slstm(gates, nn.Parameter(np.ones((32, 4), dtype)), forget="sigmoid")[0].sum().backward()
""",
    "functions": "for name in ('exp', 'log', 'tanh', 'sigmoid', 'softplus', 'elu'): getattr(nn.functional, name)(x)",
    "many rows": "nn.Linear(4, 3, dtype=dtype)(np.ones((9000, 4), dtype)).sum().backward()",
    "prepare": "nn.LSTM(16, 32, dtype=dtype).prepare()(x)",
    "stream": "nn.GRU(16, 32, dtype=dtype).stream(3)(np.asarray(x)[:3])",
    "optimizers": OPTIMIZE,
}
# Prints the installed levels that this host can run and does not take, with their folders.
LOWER = """
from varlen_rnn.runtime.cache import installed_bundles, usable_bundles
from varlen_rnn.runtime.cache.level import runs_here
for folder in installed_bundles():
    level = folder.description.split()[-1]
    if folder.path not in usable_bundles() and runs_here(level):
        print(level, folder.path)
"""
EXAMPLE = ["--steps", "20", "--epochs", "1"]
# The options of the other examples, and the k-th line of their data; these two make their own.
EXAMPLES = {
    "compare_padding.py": (["--steps", "1"], None),
    "data_parallel.py": (["--steps", "2"], None),
    "attention_classify.py": ([], lambda k: {"text": "a b c"[: k % 6], "label": k % 2}),
    "classify_functions.py": ([], lambda k: {"text": "ab\n" * (1 + k % 3), "label": k % 2}),
    "language_model.py": (["--width", "4", "--chunk", "2"], lambda k: {"text": "x " * (3 + k % 4)}),
    "match_answers.py": (["--batch-size", "8"], lambda k: {"query": f"which is {k % 6}", "answer": f"{k % 6} is " * 9}),
    "recommend.py": (["--negatives", "4"], lambda k: {"items": [f"{(i + k) % 9}" for i in range(4 + k % 5)]}),
    "restore_vowels.py": ([], lambda k: {"text": "to" + "m" * (k % 8) + "ato" + "n" * (k // 8)}),
    "tag_tokens.py": ([], lambda k: {"tokens": ["a", "b" * (1 + k % 3)], "tags": ["first", f"{k % 2}"]}),
    "word_vectors.py": (["--words", "64"], lambda k: {"text": "sun moon sky"[k % 2 :]}),
}


def run(command, cache, folder, **added):
    """Run a command with a cache folder in another; return what it wrote to the standard output."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    variables |= {"NUMBA_CACHE_DIR": cache, "VARLEN_RNN_QUIET": "1", "MPLBACKEND": "Agg"} | added
    return subprocess.run(command, cwd=folder, env=variables, check=True, stdout=subprocess.PIPE, text=True).stdout


def first_step(python, step, dtype, folder, level=None):
    """Return the seconds of a first step on an empty cache, and the names of the kernels that it compiled.

    `level` is a level that is not this host's and the folder of its kernels: they are the cache then.
    """
    variables = {}
    with tempfile.TemporaryDirectory() as cache:
        if level is not None:
            name, kernels = level
            variables = variables_of(name)
            shutil.copytree(kernels, Path(cache) / "varlen_rnn" / Path(kernels).name)
        command = [python, "-c", BEGIN.format(dtype=dtype) + step + END]
        seconds, *saved = run(command, cache, folder, **variables).split()
    return float(seconds), saved


def places(python, elsewhere):
    """Return what first steps run with: {description: (folder to run in, names of steps, level)}."""
    found = {"": (elsewhere, STEPS, None), " in the checkout": (ROOT, ["LSTM"], None)}
    with tempfile.TemporaryDirectory() as cache:
        lower = run([python, "-c", LOWER], cache, elsewhere).splitlines()
    return found | {f" for {line.split()[0]}": (elsewhere, STEPS, line.split()) for line in lower}


def seconds_of_example(python, cache, folder):
    """Return the seconds of the example of the README, from the start of Python."""
    began = time.perf_counter()
    run([python, ROOT / "examples" / "classify_names.py", *EXAMPLE, "--out", folder], cache, folder)
    return time.perf_counter() - began


def compiled_by_example(python, name, folder):
    """Return the names of the kernels that an example compiles on an empty cache."""
    options, line = EXAMPLES[name]
    if line is not None:
        data = Path(folder) / "own.jsonl"
        data.write_text("".join(json.dumps(line(k)) + "\n" for k in range(60)))
        options = [*options, "--epochs", "1", "--data", data]
    with tempfile.TemporaryDirectory() as cache:
        run([python, ROOT / "examples" / name, *options], cache, folder)
        return [path.name for path in Path(cache).rglob("*.nbc")]


def main(python):
    """Print a line for each first step and example; return whether nothing was compiled."""
    compiled = []
    with tempfile.TemporaryDirectory() as elsewhere:
        for where, (folder, names, level) in places(python, elsewhere).items():
            for name, dtype in itertools.product(names, ("float32", "float64")):
                seconds, saved = first_step(python, STEPS[name], dtype, folder, level)
                print(f"{name:11} {dtype} {seconds:6.2f} s, compiled {saved or 'nothing'}{where}", flush=True)
                compiled += saved
        with tempfile.TemporaryDirectory() as cache:
            rounds = [seconds_of_example(python, cache, elsewhere) for _ in range(2)]
            compiled += [path.name for path in Path(cache).rglob("*.nbc")]
        print(f"classify_names.py {' '.join(EXAMPLE)}: {rounds[0]:.1f} s on an empty cache, {rounds[1]:.1f} s then")
        for name in EXAMPLES:
            saved = compiled_by_example(python, name, elsewhere)
            print(f"{name:22} compiled {saved or 'nothing'}", flush=True)
            compiled += saved
    print(f"compiled: {', '.join(compiled) or 'nothing'}")
    return not compiled


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1]))
