"""Time ranks of one thread against one process of as many threads; `torchrun` launches it for the suite and the model.

    torchrun --nproc-per-node 2 -m benchmarks.ranks CASE RESULT

CASE is a `Case` as JSON, RESULT the file that rank 0 writes.  Under gloo a rank that waits sleeps, so it does not
disturb the process whose threads have its core meanwhile.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

import varlen_rnn as vr
from benchmarks.processes import ROOT
from benchmarks.quiet import wait_for_quiet
from varlen_rnn.data import StepCost, balanced_parts, measure_step_cost

TOKENS, CLASSES, FEATURES = 1000, 10, 64
LONGEST = {"lognormal": 1500, "pareto": 1500}  # steps


class Case(NamedTuple):
    """Global batches that ranks divide.

    Attributes
    ----------
    lengths : str
        "lognormal" or "pareto".
    sequences : int
        Of a global batch.
    hidden : int
        Units of each of two LSTM layers.
    batches : int
        How many global batches are timed, each in all ways.
    wait : float
        Seconds to wait at most, before each batch, for others to leave the machine alone.
    """

    lengths: str
    sequences: int
    hidden: int = 128
    batches: int = 12
    wait: float = 5.0


class Classifier(vr.nn.Module):
    """Two LSTM layers over an embedding; `varlen_rnn.data.STEP_COST` was measured for this one, of 128 units."""

    def __init__(self, hidden):
        self.embedding = vr.nn.Embedding(TOKENS, FEATURES)
        self.lstm = vr.nn.LSTM(FEATURES, hidden, num_layers=2)
        self.output = vr.nn.Linear(hidden, CLASSES)

    def forward(self, ids):
        """Return the scores of the classes for each sequence."""
        return self.output(vr.sequence_pool(self.lstm(self.embedding(ids))[0], "mean"))


def draw(lengths, count, rng):
    """Return random lengths: a lognormal distribution of median 20, or a Pareto distribution with a heavy tail.

    Examples
    --------
    >>> draw("lognormal", 5, np.random.default_rng(0))
    array([22, 17, 33, 21, 13])
    """
    if lengths == "lognormal":
        found = rng.lognormal(np.log(20), 0.8, count)
    else:
        found = np.ceil(8 * (1 + rng.pareto(1.3, count)))
    return np.clip(found, 1, LONGEST[lengths]).astype(np.int64)


def by_counts(lengths, parts, cost):
    """Return parts of as many neighbours each, which is what most loaders do."""
    return np.array_split(np.arange(len(lengths)), parts)


def round_robin(lengths, parts, cost):
    """Return parts that get the sequences in turn, longest first, there and back.

    Examples
    --------
    >>> [part.tolist() for part in round_robin(np.array([9, 5, 4, 3]), 2, None)]
    [[0, 3], [1, 2]]
    """
    order = np.argsort(-lengths, kind="stable")
    turn = np.arange(len(order)) % (2 * parts)
    owner = np.minimum(turn, 2 * parts - 1 - turn)
    return [np.sort(order[owner == part]) for part in range(parts)]


WAYS = {"work": balanced_parts, "counts": by_counts, "round robin": round_robin}


class Batch:
    """A global batch, of which parts are made and passed through a model."""

    def __init__(self, case, rng):
        self.lengths = draw(case.lengths, case.sequences, rng)
        self.ids = [rng.integers(0, TOKENS, length) for length in self.lengths]
        self.labels = rng.integers(0, CLASSES, case.sequences)

    def part(self, indices):
        """Return the inputs and labels of a part."""
        x = vr.LoDTensor.from_sequences([self.ids[k] for k in indices], dtype=np.int64)
        return x, self.labels[indices]


def gradients(model, x, labels):
    """Compute the gradients of the mean loss."""
    for parameter in model.parameters():
        parameter.grad = None
    vr.nn.functional.cross_entropy(model(x), labels).backward()


def measured_cost(model, case, comm):
    """Return the cost of steps on this host: rank 0 measures it, and all others sleep."""
    found = np.zeros(4)
    if comm.rank == 0:
        rng = np.random.default_rng(1)
        sizes = [size for size in (1, 4, 16, 64, 128, 256, 512, 1024) if size <= case.sequences]
        cases = [case._replace(sequences=size, lengths=kind) for size in sizes for kind in LONGEST]
        batches = [Batch(each, rng) for each in cases for _ in range(2)]
        parts = [batch.part(np.arange(len(batch.labels))) for batch in batches]
        wait_for_quiet(case.wait)
        found[:] = measure_step_cost(lambda x, labels: gradients(model, x, labels), parts, repeats=5)
    comm.broadcast(found)
    return StepCost(*found.tolist())


def measured_exchange(comm):
    """Return the seconds of a sum of nothing, and the seconds of each byte, over all ranks."""
    seconds = []
    for size in (1, 1 << 20):
        array, times = np.zeros(size, np.float32), []
        for _ in range(20):
            comm.barrier()
            began = time.perf_counter()
            comm.all_reduce(array)
            times.append(time.perf_counter() - began)
        seconds.append(np.median(times))
    return {"latency": float(seconds[0]), "per_byte": float(max(seconds[1] - seconds[0], 0) / (4 << 20))}


def timed(comm, call):
    """Return the wall seconds of the slowest rank, and the CPU seconds of all ranks."""
    comm.barrier()
    began, used = time.perf_counter(), time.process_time()
    call()
    took = np.array([[time.perf_counter() - began, time.process_time() - used]])
    every = np.concatenate(comm.all_gather(took))
    return float(every[:, 0].max()), float(every[:, 1].sum())


def measure(case, comm):
    """Return wall and CPU seconds of each way for each batch, the costs, and the bytes that a rank sends."""
    vr.set_num_threads(1)
    vr.manual_seed(0)
    alone, shared = Classifier(case.hidden), Classifier(case.hidden)
    vr.distributed.replicate(shared, vr.optim.SGD(shared.parameters(), lr=0.1), comm)
    rng = np.random.default_rng(0)
    batches = [Batch(case, rng) for _ in range(case.batches)]
    cost = measured_cost(alone, case, comm)

    def run(way, batch):
        if way in WAYS:
            gradients(shared, *batch.part(WAYS[way](batch.lengths, comm.size, cost)[comm.rank]))
        elif comm.rank == 0:
            vr.set_num_threads(1 if way == "one thread" else comm.size)
            gradients(alone, *batch.part(np.arange(case.sequences)))
            vr.set_num_threads(1)

    ways = ("one thread", "threads", *WAYS)
    for way in ways:
        run(way, batches[0])
    found = {way: {"wall": [], "cpu": []} for way in ways}
    for batch in batches:
        if comm.rank == 0:
            wait_for_quiet(case.wait)
        for way in ways:
            wall, cpu = timed(comm, lambda way=way, batch=batch: run(way, batch))
            found[way]["wall"].append(wall)
            found[way]["cpu"].append(cpu)
    before = comm.bytes_sent
    run("work", batches[0])
    sent = comm.bytes_sent - before
    return {
        "ways": found, "cost": cost._asdict(), "exchange": measured_exchange(comm), "bytes": sent,
        "lengths": [batch.lengths.tolist() for batch in batches],
    }  # fmt: skip


def bytes_of_rows(lookups, comm):
    """Return the distinct rows of a large table that a step looks up on rank 0, and the bytes that the rank sends."""
    vr.manual_seed(0)
    model = vr.nn.Sequential(vr.nn.Embedding(100_000, FEATURES, sparse=True))
    vr.distributed.replicate(model, vr.optim.SGD(model.parameters(), lr=0.1), comm)
    ids = np.random.default_rng(comm.rank).integers(0, 100_000, lookups)
    before = comm.bytes_sent
    model(ids).sum().backward()
    return {"touched": len(np.unique(ids)), "bytes": comm.bytes_sent - before}


def launch(ranks, **request):
    """Return the result of a request to ranks of gloo: `case`, the fields of a `Case`, or `lookups`."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command = [*torchrun, "-m", "benchmarks.ranks", json.dumps(request), str(result)]
        subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True)
        return json.loads(result.read_text())


def main():
    request, result = json.loads(sys.argv[1]), Path(sys.argv[2])
    comm = vr.distributed.connect()
    if "lookups" in request:
        found = bytes_of_rows(request["lookups"], comm)
    else:
        found = measure(Case(**request["case"]), comm)
    if comm.rank == 0:
        result.write_text(json.dumps(found))
    comm.close()


if __name__ == "__main__":
    main()
