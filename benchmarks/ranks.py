"""One of the processes that `benchmarks.turns` launches: a rank, or the one process of as many threads.

    python -m benchmarks.ranks PORT

It does as the driver asks by a socket of this port, a line of JSON each, and sleeps between requests.
"""

import json
import socket
import sys
import time
from typing import NamedTuple

import numpy as np

import varlen_rnn as vr
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


class Echo(vr.distributed.Communicator):
    """One of two ranks, whose other sends the same without taking any time: what remains is work of the host."""

    def __init__(self):
        super().__init__()
        self.size = 2

    def _all_gather(self, array):
        return [array, array]

    def _start_all_reduce(self, array):
        return vr.distributed.Communicator().start_all_reduce(array)

    def _broadcast(self, array, root):
        pass


class Worker:
    """A process's models and batches, and its answers to requests, each as JSON.

    Of a request to ranks, all get the same, and all reply.
    """

    def __init__(self, comm):
        self._comm = comm
        vr.set_num_threads(1)

    def build(self, case):
        """Make two equal models, of which ranks replicate the second, and the batches."""
        self._case = case = Case(**case)
        self._models = [self._model(comm) for comm in (None, self._comm)]
        rng = np.random.default_rng(0)
        self._batches = [Batch(case, rng) for _ in range(case.batches)]
        return [batch.lengths.tolist() for batch in self._batches]

    def _model(self, comm):
        vr.manual_seed(0)
        model = Classifier(self._case.hidden)
        if comm is not None:
            vr.distributed.replicate(model, vr.optim.SGD(model.parameters(), lr=0.1), comm)
        return model

    def cost(self):
        """Return the cost of steps on one thread, fitted to batches of about the size of parts."""
        count, rng = self._case.sequences, np.random.default_rng(1)
        sizes = sorted({max(1, count // parts) for parts in (1, 2, 3, 4, 8)})
        cases = [self._case._replace(sequences=size, lengths=kind) for size in sizes for kind in LONGEST]
        batches = [Batch(each, rng) for each in cases for _ in range(2)]
        parts = [batch.part(np.arange(len(batch.labels))) for batch in batches]
        return measure_step_cost(lambda x, labels: gradients(self._models[0], x, labels), parts, repeats=5)

    def divide(self, cost):
        """Make the parts of this rank, for each way to divide the batches."""
        rank, ranks, cost = self._comm.rank, self._comm.size, StepCost(*cost)
        self._parts = {
            way: [batch.part(divide(batch.lengths, ranks, cost)[rank]) for batch in self._batches]
            for way, divide in WAYS.items()
        }  # fmt: skip

    def step(self, way, number, threads=1, exchange=True):
        """Return the wall and CPU seconds of the gradients of a batch, of which ranks compute a part each.

        The caches hold what this process has left there, since a step that is not timed comes first.
        """
        vr.set_num_threads(threads)
        model, part = self._models[exchange], self._parts[way][number]
        gradients(model, *part)
        self._comm.barrier()
        began, used = time.perf_counter(), time.process_time()
        gradients(model, *part)
        return time.perf_counter() - began, time.process_time() - used

    def host(self):
        """Return the seconds by which gradients take longer if they are packed and unpacked for an exchange."""
        part, models, seconds = self._parts["work"][0], (self._models[0], self._model(Echo())), ([], [])
        for _ in range(20):
            for model, its in zip(models, seconds, strict=True):
                gradients(model, *part)
                began = time.thread_time()
                gradients(model, *part)
                its.append(time.thread_time() - began)
        plain, packed = map(np.median, seconds)
        return float(packed - plain)

    def exchange(self):
        """Return how often a step sends, the bytes that this rank sends, and seconds of sums of few and of many bytes.

        As in a step, ranks have computed before each sum: an engine's threads sleep then, and caches hold other things.
        """
        part = self._parts["work"][0]
        before = self._comm.bytes_sent
        messages = _count_messages(self._comm, lambda: gradients(self._models[1], *part))
        sent, seconds = self._comm.bytes_sent - before, {}
        for size in (1, 1 << 18):
            array, seconds[size] = np.zeros(size, np.float32), []
            for _ in range(20):
                gradients(self._models[0], *part)
                began = time.perf_counter()
                self._comm.all_reduce(array)
                seconds[size].append(time.perf_counter() - began)
        few, many = seconds.values()
        return {"messages": messages, "bytes": sent, "few": few, "many": many, "more": 4 * (size - 1)}

    def look_up(self, lookups):
        """Return the distinct rows of a large table that a step looks up on this rank, and the bytes that it sends."""
        vr.manual_seed(0)
        model = vr.nn.Sequential(vr.nn.Embedding(100_000, FEATURES, sparse=True))
        vr.distributed.replicate(model, vr.optim.SGD(model.parameters(), lr=0.1), self._comm)
        ids = np.random.default_rng(self._comm.rank).integers(0, 100_000, lookups)
        before = self._comm.bytes_sent
        model(ids).sum().backward()
        return {"touched": len(np.unique(ids)), "bytes": self._comm.bytes_sent - before}


def _count_messages(comm, call):
    """Return how many sums and gathers a call begins."""
    count = 0
    names = ("all_gather", "all_reduce", "start_all_reduce")

    def counted(method):
        def counting(*arguments):
            nonlocal count
            count += 1
            return method(*arguments)

        return counting

    for name in names:
        setattr(comm, name, counted(getattr(comm, name)))
    try:
        call()
    finally:
        for name in names:
            delattr(comm, name)
    return count


def main():
    comm = vr.distributed.connect()
    worker = Worker(comm)
    with (
        socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as link,
        link.makefile("r") as requests,
        link.makefile("w") as replies,
    ):
        print(json.dumps([comm.rank, comm.size]), file=replies, flush=True)
        for line in requests:
            request = json.loads(line)
            reply = getattr(worker, request.pop("do"))(**request)
            print(json.dumps(reply), file=replies, flush=True)
    comm.close()


if __name__ == "__main__":
    main()
