"""Measure time and memory of training steps of a recurrent layer: unpadded, and padded in several ways.

A step is the forward and backward pass of the layer on a batch, because padding affects nothing else.
"""

import time
import tracemalloc
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from varlen_rnn import data
from varlen_rnn.baselines import Padded
from varlen_rnn.rows.lod import LoD, LoDTensor
from varlen_rnn.runtime.memory import release_memory
from varlen_rnn.tape.modes import no_grad
from varlen_rnn.tape.variable import Variable

# The least number of runs per batch and of steps in all; with fewer, a ratio of two means would be mostly noise.
_LEAST_RUNS, _LEAST_STEPS = 5, 30
NUMBERS_OF_GROUPS = (2, 4, 8, 16)  # into which a batch is cut; the fastest number is compared
_TRIES = 3  # how often each number of groups is tried, before the fastest is measured


class Cost(NamedTuple):
    """The number of rows in some batches, and the number of rows in the same batches after padding."""

    rows: int
    padded_rows: int


def cut(lengths, batch_size, *, shuffle, bucket, seed=0):
    """Return the lengths of each batch: a list of int64 arrays."""
    lod = LoD.from_lengths([lengths])
    sequences = LoDTensor.wrap(np.empty((lod.num_rows, 0), np.float32), lod)  # rows without features use no memory
    found = data.batches(sequences, batch_size=batch_size, shuffle=shuffle, bucket=bucket, seed=seed)
    return [lengths[found.indices(number)] for number in range(len(found))]


def divide(batch, number):
    """Return a batch cut into groups of similar lengths and about equal counts; groups without rows are left out."""
    return [group for group in np.array_split(np.sort(batch), number) if group.any()]


def cost(batches):
    """Return the cost of padding each of these batches to its longest sequence."""
    padded = (len(batch) * int(batch.max()) for batch in batches)
    return Cost(sum(int(batch.sum()) for batch in batches), sum(padded))


def runs_of(num_batches):
    """Return how often the step of each batch is measured; the result is the median of these runs."""
    return max(_LEAST_RUNS, -(-_LEAST_STEPS // num_batches))


class Measured(NamedTuple):
    """Mean rows and mean seconds of a step; the peak memory of the largest step in bytes, or None if unknown.

    `groups` is the number of groups of a batch, or None where it is not divided.
    """

    rows: float
    seconds: float
    peak: int | None
    groups: int | None = None


class Subject:
    """A layer, padded or not, and the batches on which it is measured; a batch is run in `groups` groups, or whole."""

    def __init__(self, run, batches, rows, groups=None):
        self.run, self.batches, self.rows, self.groups = run, batches, rows, groups

    def input(self, batch):
        """Return rows with a new LoD, which has no cached plan, as for a new batch in training."""
        lod = LoD.from_lengths([batch])
        return Variable(LoDTensor.wrap(self.rows[: lod.num_rows], lod), requires_grad=True)

    def step(self, batch):
        """Run the forward and backward pass on a batch; the gradients of the weights are summed over its groups."""
        for group in divide(batch, self.groups) if self.groups else [batch]:
            y, _ = self.run(self.input(group))
            y.backward(np.ones(y.shape, y.dtype))
        for parameter in self.run.parameters():
            parameter.grad = None

    def seconds(self, batch):
        """Return the seconds of a step on a batch."""
        began = time.perf_counter()
        self.step(batch)
        return time.perf_counter() - began

    def peak(self):
        """Return the peak memory of the largest step, in bytes."""
        largest = max(self.batches, key=lambda batch: cost([batch]).padded_rows)
        release_memory()  # tracemalloc would not count memory reused from earlier steps
        tracemalloc.start()
        try:
            self.step(largest)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


def random_rows(batches, input_size):
    """Return standard normal float32 rows, as many as the largest batch needs."""
    return np.random.default_rng(0).standard_normal((max(map(np.sum, batches)), input_size), np.float32)


def fastest_number(seconds_of):
    """Return the number of groups with the least `seconds_of(number)`; the shortest of several tries counts."""
    tries = [[seconds_of(number) for number in NUMBERS_OF_GROUPS] for _ in range(_TRIES)]
    return NUMBERS_OF_GROUPS[int(np.argmin(np.min(tries, axis=0)))]


def measure(layer, batches, bucketed, packed=None):
    """Return a Measured for each way: unpadded, padded, bucketed, groups, and PyTorch's, packed and torch groups.

    The ways take turns, so that other work on the machine slows all of them equally.  `batches` and `bucketed` are the
    lengths of the same sequences in as many batches, and `packed` is PyTorch's layer on them.
    """
    ways = {"unpadded": (layer, batches), "padded": (Padded(layer), batches), "bucketed": (Padded(layer), bucketed)}
    rows = random_rows([*batches, *bucketed], layer.input_size)
    subjects = {name: Subject(run, lengths, rows) for name, (run, lengths) in ways.items()}
    for subject in subjects.values():
        subject.step(subject.batches[0])  # a first step, which compiles or loads the kernels
    grouped = {number: Subject(Padded(layer), batches, rows, number) for number in NUMBERS_OF_GROUPS}
    subjects["groups"] = grouped[fastest_number(lambda number: sum(map(grouped[number].seconds, batches)))]
    theirs = {"packed": 1, "torch groups": fastest_number(lambda number: sum(packed.seconds(number)))} if packed else {}
    peaks = {name: subject.peak() for name, subject in subjects.items()}
    runs = runs_of(len(batches))
    times = {name: np.empty((runs, len(batches))) for name in (*subjects, *theirs)}
    bar = tqdm(total=runs * len(batches), desc="measuring", unit="batch", leave=False)
    for repeat in range(runs):
        for number in range(len(batches)):
            for name, subject in subjects.items():
                times[name][repeat, number] = subject.seconds(subject.batches[number])
            bar.update()
        for name, number in theirs.items():
            times[name][repeat] = packed.seconds(number)
    bar.close()
    numbers = {"groups": subjects["groups"].groups, "torch groups": theirs.get("torch groups")}
    padded = {"padded": cost(batches).padded_rows, "bucketed": cost(bucketed).padded_rows}
    for name in numbers.keys() & times.keys():
        padded[name] = cost([group for batch in batches for group in divide(batch, numbers[name])]).padded_rows
    of_way = {name: padded.get(name, cost(batches).rows) / len(batches) for name in times}
    seconds = {name: np.median(found, axis=0).mean() for name, found in times.items()}
    return {name: Measured(of_way[name], seconds[name], peaks.get(name), numbers.get(name)) for name in times}


def largest_difference(layer, batch):
    """Return the largest difference between the outputs of the layer and of the layer on a padded batch."""
    x = Subject(layer, [batch], random_rows([batch], layer.input_size)).input(batch)
    with no_grad():
        outputs = [np.asarray(run(x)[0]) for run in (layer, Padded(layer))]
    return float(np.abs(outputs[0] - outputs[1]).max(initial=0))
