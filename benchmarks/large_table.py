"""A table of more than 2^31 elements is looked up, updated, saved and loaded, in 256 MiB of memory of its own.

python -m benchmarks.large_table --folder DIR            # print; DIR needs 17 GiB of disk for a moment
python -m benchmarks.large_table --folder DIR --write    # and replace results/large_table.txt

The system refuses the process more private memory than that (RLIMIT_DATA): a copy of the table would be an error.
Pages of files do not count: the system takes them back when it needs them.
"""

import resource
import tempfile
import time
from pathlib import Path

import numpy as np

import varlen_rnn as vr
from benchmarks.machine import publish
from benchmarks.processes import options

FILE = Path(__file__).parent / "results" / "large_table.txt"
WIDTH = 64
HEIGHT = 2**31 // WIDTH + 1000
IDS = np.array([5, HEIGHT - 1, HEIGHT // 2, HEIGHT - 1])
LIMIT = 2**28  # bytes


def private():
    """Return the bytes of private memory that this process may write to."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmData"))


def table(path):
    """Return a layer whose table is a new map."""
    array = np.memmap(path, np.float32, "w+", shape=(HEIGHT, WIDTH))
    return vr.nn.Embedding.from_pretrained(array, freeze=False)


def step(layer, optimizer):
    """Look rows up, and update them."""
    optimizer.zero_grad()
    rows = layer(IDS % layer.num_embeddings)
    (rows * rows).sum().backward()
    vr.optim.clip_grad_norm_([layer.weight], 1.0)
    optimizer.step()


def figures(folder):
    """Yield lines on the table, and on the seconds and the private memory of each part."""
    small = vr.nn.Embedding(8, WIDTH)
    step(small, vr.optim.Adagrad([small.weight], lr=0.5))  # compiles the kernels
    vr.save(folder / "small", a=small.state_dict())
    vr.load(folder / "small", mmap=True)
    began = private()
    resource.setrlimit(resource.RLIMIT_DATA, (began + LIMIT, -1))
    size = HEIGHT * WIDTH
    yield f"{HEIGHT:,} rows of {WIDTH} float32: {size:,} elements, 2^31 + {size - 2**31:,}; {size * 4 / 2**30:.2f} GiB"

    def line(name, seconds):
        return f"{name}: {seconds:.3f} s, {(private() - began) / 2**20:.1f} MiB of private memory more than before"

    layer, again, path = table(folder / "a"), table(folder / "b"), folder / "saved"
    layer.weight.data[IDS] = 1
    optimizer = vr.optim.Adagrad([layer.weight], lr=0.5)
    parts = {
        "look up, clip and update by Adagrad, the first time": lambda: step(layer, optimizer),
        "look up, clip and update by Adagrad": lambda: step(layer, optimizer),
        "save": lambda: vr.save(path, model=layer.state_dict(copy=False)),
        "load as maps": lambda: vr.load(path, mmap=True),
        "load into another map": lambda: again.load_state_dict(vr.load(path, mmap=True)["model"]),
    }
    for name, part in parts.items():
        start = time.perf_counter()
        part()
        yield line(name, time.perf_counter() - start)
    same = np.array_equal(again.weight.data[IDS], layer.weight.data[IDS])
    moved = (layer.weight.data[IDS] != 1).all()
    yield f"the rows that were updated have moved: {moved}; they came back from the file: {same}"


if __name__ == "__main__":
    where = {"help": "where the files are, for a moment; the system's folder by default"}
    given = options(__doc__, folder=where)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        publish(figures(Path(folder)), FILE if given.write else None)
