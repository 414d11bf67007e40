"""Sums of gradients over ranks by the engine, which begin while the pass of gradients goes on.

Buckets hold the gradients of several parameters, the last parameters first, as passes finish them.  A bucket is begun
only after those before it, so that all ranks begin them in one order, whatever their graphs are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from varlen_rnn.communicator import Communicator, Pending
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.selected_rows import SelectedRows, append
from varlen_rnn.tape.variable import Variable

Gradient: TypeAlias = LoDTensor | SelectedRows
BUCKET_BYTES = 1 << 20
DENSE, SPARSE = 1, 2  # bits of a parameter: the gradients that any rank may have


class Layout:
    """Which parameters share a bucket: all but those whose gradients are sparse, or that no rank reaches.

    Attributes
    ----------
    buckets : list of list of Variables
    sparse : list of Variables
    bucket_of : dict of Variable to int
    """

    def __init__(self, parameters: Sequence[Variable], kinds: Sequence[int], itemsize: int = 0) -> None:
        pairs = list(zip(parameters, kinds, strict=True))
        self.sparse = [parameter for parameter, kind in pairs if kind == SPARSE]
        self.buckets: list[list[Variable]] = []
        size = 0
        for parameter in (parameter for parameter, kind in reversed(pairs) if kind & DENSE):
            array = parameter.value.data
            added = array.size * (itemsize or array.dtype.itemsize)
            if not self.buckets or size + added > BUCKET_BYTES or array.dtype != self.buckets[-1][0].dtype:
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(parameter)
            size += added
        self.bucket_of = {parameter: n for n, bucket in enumerate(self.buckets) for parameter in bucket}


class EngineSum:
    """The gradients of one pass, summed over ranks in the order that the engine chooses.

    Sums begin during the pass, unless they must wait for its end: an engine needs all collectives in one order.
    """

    def __init__(self, comm: Communicator, layout: Layout, must_wait: bool = False) -> None:
        self._comm, self._layout, self._must_wait = comm, layout, must_wait
        self._gradients: dict[Variable, Gradient | None] = {}
        self._missing = [len(bucket) for bucket in layout.buckets]
        self._begun: list[tuple[np.ndarray, Pending]] = []

    def ready(self, leaf: Variable, gradient: Gradient | None) -> None:
        """Take the final gradient of a leaf."""
        self._gradients[leaf] = gradient
        for _, handle in self._begun:
            handle.test()  # MPI makes progress when it is asked
        if (number := self._layout.bucket_of.get(leaf)) is not None:
            self._missing[number] -= 1
            while not self._must_wait and len(self._begun) < len(self._missing) and not self._missing[len(self._begun)]:
                self._begin()

    def _begin(self) -> None:
        bucket = self._layout.buckets[len(self._begun)]
        flat = np.zeros(sum(p.value.data.size for p in bucket) + len(bucket), bucket[0].dtype)
        place = 0
        for number, parameter in enumerate(bucket):
            gradient, size = self._gradients.pop(parameter, None), parameter.value.data.size
            if gradient is not None:
                flat[place : place + size] = dense(gradient).reshape(-1)
                flat[len(flat) - len(bucket) + number] = 1  # the sum tells whether any rank has a gradient
            place += size
        self._begun.append((flat, self._comm.start_all_reduce(flat)))

    def end_of_pass(self) -> None:
        """Begin the buckets of which some leaves were not reached."""
        while len(self._begun) < len(self._missing):
            self._begin()

    def finish(self) -> Iterator[tuple[Variable, np.ndarray | SelectedRows]]:
        """Yield each leaf of which any rank has a gradient, and the sum."""
        for parameter in self._layout.sparse:
            rows = as_rows_of(parameter, self._gradients.pop(parameter, None))
            parts = zip(self._comm.all_gather(rows.rows), self._comm.all_gather(rows.value), strict=True)
            yield parameter, append([SelectedRows.wrap(r, v, rows.height) for r, v in parts]).merge()
        for bucket, (flat, handle) in zip(self._layout.buckets, self._begun, strict=True):
            handle.wait()
            place = 0
            for parameter, ranks in zip(bucket, flat[len(flat) - len(bucket) :], strict=True):
                array = parameter.value.data
                if ranks:
                    yield parameter, flat[place : place + array.size].reshape(array.shape).copy()
                place += array.size


def dense(gradient: Gradient) -> np.ndarray:
    """Return a gradient as an array of all rows."""
    return gradient.to_dense() if isinstance(gradient, SelectedRows) else gradient.data


def as_rows_of(parameter: Variable, gradient: Gradient | None) -> SelectedRows:
    """Return a gradient as distinct, ascending rows; no rows if there is none."""
    if isinstance(gradient, SelectedRows):
        return gradient.merge()
    array = parameter.value.data
    if gradient is None:
        return SelectedRows.wrap(np.zeros(0, np.int64), np.zeros((0, *array.shape[1:]), array.dtype), len(array))
    return SelectedRows.wrap(np.arange(len(array)), gradient.data, len(array))


def sums_over(comm: Communicator, *sums: np.ndarray) -> list[np.ndarray]:
    """Return the sums of arrays over all ranks, in one exchange.

    Examples
    --------
    >>> sums_over(Communicator(), np.int64(3), np.ones(2, np.float32))
    [array(3), array([1., 1.], dtype=float32)]
    """
    arrays = [np.asarray(array) for array in sums]
    flat = np.concatenate([array.ravel().astype(np.float64) for array in arrays])
    comm.all_reduce(flat)
    parts = np.split(flat, np.cumsum([array.size for array in arrays])[:-1])
    pairs = zip(parts, arrays, strict=True)
    return [np.asarray(part.reshape(array.shape).astype(array.dtype)) for part, array in pairs]
