"""Measure start-up in fresh processes: the import over Numba's, and the first training step, warm and cold.

    python benchmarks/startup.py [--repeats N]

The step is that of the examples: embedding, LSTM, mean pooling, linear layer, loss, backward, Adam.  Times are those of
whole processes, from before the interpreter starts until it has ended.  Kernels go to a temporary folder.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

STEP = """
import numpy as np
import varlen_rnn as vr

embedding, lstm, output = vr.nn.Embedding(100, 64), vr.nn.LSTM(64, 128), vr.nn.Linear(128, 3)
optimizer = vr.optim.Adam([p for layer in (embedding, lstm, output) for p in layer.parameters()], lr=1e-3)
y, _ = lstm(embedding(vr.create_lod_tensor(np.arange(20), [[5, 0, 15]])))
vr.nn.functional.cross_entropy(output(vr.sequence_pool(y, "mean")), np.array([0, 1, 2])).backward()
optimizer.step()
"""


def seconds(program, folder):
    """Return the seconds of a process that runs `program` with its kernels in `folder`."""
    environment = os.environ | {"NUMBA_CACHE_DIR": folder, "VARLEN_RNN_QUIET": "1"}
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)
    return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9, help="processes of each kind but the cold one; default 9")
    repeats = parser.parse_args().repeats
    programs = {"import numba": "import numba", "import varlen_rnn": "import varlen_rnn", "first step, warm": STEP}
    with tempfile.TemporaryDirectory() as folder:
        cold = seconds(STEP, folder)
        # In turn, so that whatever else the machine does slows all.
        times = [{name: seconds(program, folder) for name, program in programs.items()} for _ in range(repeats)]
    print(f"{'seconds':32}{'median':>8}{'least':>8}")
    # The least is what other work on the machine disturbs least.
    figures = {name: [f([of_all[name] for of_all in times]) for f in (statistics.median, min)] for name in programs}
    over = [ours - below for ours, below in zip(figures["import varlen_rnn"], figures["import numba"], strict=True)]
    figures |= {"import varlen_rnn, over numba": over, "first step, cold (one process)": [cold, cold]}
    for name, (median, least) in figures.items():
        print(f"{name:32}{median:8.2f}{least:8.2f}")


if __name__ == "__main__":
    main()
