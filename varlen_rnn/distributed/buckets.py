"""Sums of gradients over ranks (processes) that begin while the backward pass still runs.

The engine (MPI or gloo) sends only arrays on the host, so a gradient on a device is copied to the host, and its sum is
copied back.

A bucket holds the gradients of several parameters, the last parameters first, because passes finish these first.  All
ranks begin the sums of buckets in the order of the buckets' numbers, even if the graphs of the ranks differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from varlen_rnn.communicator import Communicator, Pending
from varlen_rnn.distributed.rows import row_bytes
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.selected_rows import SelectedRows, append
from varlen_rnn.runtime.device import empty, moved, on_device, overwrite, place_of
from varlen_rnn.runtime.place import HOST
from varlen_rnn.tape.values import moved_value
from varlen_rnn.tape.variable import Variable

Gradient: TypeAlias = LoDTensor | SelectedRows
BUCKET_BYTES = 1 << 20
# Bits of a parameter: which kinds of gradients a rank can have, and whether a sparse gradient has half of all rows.
DENSE, SPARSE, CROWDED = 1, 2, 4


class Layout:
    """The buckets of parameters; a parameter with a sparse gradient, or that no rank reaches, is in no bucket.

    If a rank's sparse gradient has half of the rows of a table, the table's gradients go into a bucket, too: all rows
    have at most twice the bytes, and need no separate exchange.

    buckets: the parameters of each bucket
    sparse: parameters with sparse gradients; ranks send only their rows with values
    crowded: parameters whose sparse gradients are in buckets
    bucket_of: for each parameter in a bucket, the number of the bucket
    """

    def __init__(self, parameters: Sequence[Variable], kinds: Sequence[int], itemsize: int = 0) -> None:
        pairs = list(zip(parameters, kinds, strict=True))
        self.sparse = [parameter for parameter, kind in pairs if kind == SPARSE]
        self.crowded = {parameter for parameter, kind in pairs if kind == SPARSE | CROWDED}
        self.buckets: list[list[Variable]] = []
        size = 0
        for parameter in (parameter for parameter, kind in reversed(pairs) if kind & (DENSE | CROWDED)):
            array = parameter.value.data
            added = array.size * (itemsize or array.dtype.itemsize)
            if not self.buckets or size + added > BUCKET_BYTES or array.dtype != self.buckets[-1][0].dtype:
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(parameter)
            size += added
        self.bucket_of = {parameter: n for n, bucket in enumerate(self.buckets) for parameter in bucket}

    def flat(self, number: int) -> np.ndarray:
        """Return memory for a bucket: the numbers and the marks (see `_write`) of each of its parameters."""
        bucket = self.buckets[number]
        size = sum(p.value.data.size + (len(p.value.data) if p in self.crowded else 1) for p in bucket)
        return empty((size,), np.empty(0, bucket[0].dtype))

    def parts(self, number: int, flat: np.ndarray) -> Iterator[tuple[Variable, np.ndarray, np.ndarray]]:
        """Yield triples: a parameter of a bucket, a view of its numbers in its shape, and a view of its marks."""
        place = 0
        for parameter in self.buckets[number]:
            array = parameter.value.data
            middle = place + array.size
            end = middle + (len(array) if parameter in self.crowded else 1)
            yield parameter, flat[place:middle].reshape(array.shape), flat[middle:end]
            place = end


class EngineSum:
    """The gradients of one pass, summed over ranks in the order that the engine chooses.

    Sums begin during the pass, or with `must_wait` at its end.  They must wait if the passes of ranks could sum other
    numbers (moments) in different orders, because an engine needs the same order of collectives on all ranks.
    """

    def __init__(self, comm: Communicator, layout: Layout, must_wait: bool = False) -> None:
        self._comm, self._layout, self._must_wait = comm, layout, must_wait
        self._gradients: dict[Variable, Gradient | None] = {}
        self._missing = [len(bucket) for bucket in layout.buckets]
        self._begun: list[tuple[np.ndarray, Pending]] = []

    def ready(self, leaf: Variable, gradient: Gradient | None) -> None:
        """Take the final gradient of a leaf, or None; a gradient on a device is copied to the host."""
        self._gradients[leaf] = moved_value(gradient, HOST)
        for _, handle in self._begun:
            handle.progress()
        if (number := self._layout.bucket_of.get(leaf)) is not None:
            self._missing[number] -= 1
            while not self._must_wait and len(self._begun) < len(self._missing) and not self._missing[len(self._begun)]:
                self._begin()

    def _begin(self) -> None:
        number = len(self._begun)
        flat = self._layout.flat(number)
        for parameter, numbers, marks in self._layout.parts(number, flat):
            _write(self._gradients.pop(parameter, None), numbers, marks, parameter in self._layout.crowded)
        self._begun.append((flat, self._comm.start_all_reduce(flat)))

    def end_of_pass(self) -> None:
        """Begin the sums of the buckets that still wait for leaves, because the pass did not reach these leaves."""
        while len(self._begun) < len(self._missing):
            self._begin()

    def finish(self) -> Iterator[tuple[Variable, np.ndarray | SelectedRows]]:
        """Yield pairs `(leaf, sum of its gradients)` for the leaves that have a gradient on at least one rank."""
        sparse = self._layout.sparse
        mine = [as_rows_of(parameter, self._gradients.pop(parameter, None)) for parameter in sparse]
        every = gather_rows(self._comm, [(of.rows, of.value) for of in mine])
        for parameter, of, parts in zip(sparse, mine, every, strict=True):
            yield parameter, append([SelectedRows.wrap(r, v, of.height) for r, v in parts]).merge()
        for number, (flat, handle) in enumerate(self._begun):
            handle.wait()
            for parameter, numbers, marks in self._layout.parts(number, flat):
                if parameter in self._layout.crowded:
                    rows = np.flatnonzero(marks)
                    yield parameter, SelectedRows.wrap(rows, numbers[rows], len(numbers))
                elif marks[0]:
                    yield parameter, numbers.copy()


def _write(gradient: Gradient | None, numbers: np.ndarray, marks: np.ndarray, has_rows: bool) -> None:
    """Write a gradient into `numbers`, and 1 or 0 into `marks`: for each row with `has_rows`, otherwise for all."""
    numbers[...] = 0 if gradient is None else dense(gradient)
    if has_rows and isinstance(gradient, SelectedRows):
        marks[...] = 0
        marks[gradient.rows] = 1
    else:
        marks[...] = gradient is not None


def dense(gradient: Gradient) -> np.ndarray:
    """Return a gradient, dense or sparse, as an array of all rows."""
    return gradient.to_dense() if isinstance(gradient, SelectedRows) else gradient.data


def as_rows_of(parameter: Variable, gradient: Gradient | None) -> SelectedRows:
    """Return a gradient as SelectedRows with distinct, ascending rows; they have no rows if there is no gradient."""
    if isinstance(gradient, SelectedRows):
        return gradient.merge()
    array = parameter.value.data
    if gradient is None:
        return SelectedRows.wrap(np.zeros(0, np.int64), np.zeros((0, *array.shape[1:]), array.dtype), len(array))
    return SelectedRows.wrap(np.arange(len(array)), gradient.data, len(array))


Listed: TypeAlias = tuple[np.ndarray, np.ndarray]  # indices of rows, and the values of these rows


def gather_rows(comm: Communicator, tables: Sequence[Listed]) -> list[list[Listed]]:
    """Return, for each table, a list of each rank's pair (rows, values); one exchange sends all tables."""
    if not tables:
        return []
    # Values are sent as words of 8 bytes, because engines count at most 2^31 elements.
    sent = [np.array([len(rows) for rows, _ in tables])]
    for rows, values in tables:
        words = np.zeros(-(-values.nbytes // 8), np.int64)
        words.view(np.uint8)[: values.nbytes] = values.reshape(-1).view(np.uint8)
        sent += [rows, words]
    every: list[list[Listed]] = [[] for _ in tables]
    for words in comm.all_gather(np.concatenate(sent)):
        place = len(tables)
        for found, (_, values), count in zip(every, tables, words[: len(tables)].tolist(), strict=True):
            size = count * row_bytes(values)
            begin, end = place + count, place + count - (-size // 8)
            array = words[begin:end].view(np.uint8)[:size].view(values.dtype)
            found.append((words[place:begin], array.reshape(count, *values.shape[1:])))
            place = end
    return every


def sums_over(comm: Communicator, *sums: np.ndarray) -> list[np.ndarray]:
    """Return the sums of arrays over all ranks, in one exchange; arrays on a device are copied to the host and back."""
    places, arrays = map(place_of, sums), [np.asarray(moved(array, HOST)) for array in sums]
    flat = np.concatenate([array.ravel().astype(np.float64) for array in arrays])
    comm.all_reduce(flat)
    parts = np.split(flat, np.cumsum([array.size for array in arrays])[:-1])
    return [
        moved(np.asarray(part.reshape(array.shape).astype(array.dtype)), place)
        for part, array, place in zip(parts, arrays, places, strict=True)
    ]


def share(comm: Communicator, variable: Variable) -> None:
    """Give a Variable on all ranks the numbers of rank 0; numbers on a device are copied to the host and back."""
    array = variable.value.data
    here = moved(array, HOST)
    comm.broadcast(here)
    if on_device(array):
        overwrite(array, ..., here)
