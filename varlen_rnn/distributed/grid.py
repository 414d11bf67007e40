"""Sum gradients so that any order gives the same bits: gradients are rounded to a grid, and added as integers.

An example: shards (parts of a batch) with the gradients 0.75, 2^-70 and -0.5.  The largest magnitude is below 1 = 2^0,
and sums of 4 shards must fit 62 bits, so grid lines are 2^-60 apart.  As integers, the gradients are 0.75 * 2^60, 0 and
-0.5 * 2^60.  Their sum is exact, in any order and grouping of shards.  A gradient is rounded by at most half the
distance of lines, here 2^-61; float32 numbers near the largest magnitude are 2^-24 apart.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from varlen_rnn.communicator import Communicator
from varlen_rnn.distributed.buckets import Gradient, Layout, as_rows_of, dense, gather_rows
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.runtime.place import HOST
from varlen_rnn.tape.variable import Variable

_BITS = 62  # the most bits of a sum, without its sign


class GridSum:
    """The sum, over ranks, of the gradients of several passes, one per shard; its bits depend on the shards alone."""

    def __init__(self, comm: Communicator, layout: Layout, shards: int) -> None:
        self._comm, self._layout = comm, layout
        self._bits = _BITS - (shards - 1).bit_length()
        self._parts: dict[Variable, list[Gradient]] = {}  # gradients of passes, held until the grid is known

    def ready(self, leaf: Variable, gradient: Gradient | None) -> None:
        """Take the final gradient of a leaf; a gradient on a device is copied to the host."""
        if gradient is not None:
            gradient = gradient.to(HOST)
            merged = gradient.merge() if isinstance(gradient, SelectedRows) else gradient
            self._parts.setdefault(leaf, []).append(merged)

    def end_of_pass(self) -> None:
        """End the pass of one shard; sums begin only in `finish`."""

    def finish(self) -> Iterator[tuple[Variable, np.ndarray | SelectedRows]]:
        """Yield pairs `(leaf, sum of its gradients)` for the leaves that have a gradient on at least one rank."""
        layout = self._layout
        listed = [*layout.sparse, *(parameter for bucket in layout.buckets for parameter in bucket)]
        exponents = self._exponents(listed)
        mine = [self._rows_on_grid(parameter, exponents[parameter]) for parameter in layout.sparse]
        for parameter, parts in zip(layout.sparse, gather_rows(self._comm, mine), strict=True):
            rows, sums = _added([rows for rows, _ in parts], [values for _, values in parts])
            array, exponent = parameter.value.data, exponents[parameter] or 0
            yield parameter, SelectedRows.wrap(rows, from_grid(sums, exponent, array.dtype), len(array))
        begun = []
        for bucket in layout.buckets:
            flat = np.concatenate([self._on_grid(parameter, exponents[parameter]) for parameter in bucket])
            begun.append((flat, self._comm.start_all_reduce(flat)))
        for bucket, (flat, handle) in zip(layout.buckets, begun, strict=True):
            handle.wait()
            place = 0
            for parameter in bucket:
                array, exponent = parameter.value.data, exponents[parameter]
                if exponent is not None:
                    sums = flat[place : place + array.size].reshape(array.shape)
                    yield parameter, from_grid(sums, exponent, array.dtype)
                place += array.size

    def _exponents(self, parameters: list[Variable]) -> dict[Variable, int | None]:
        """Return each parameter's exponent: grid lines are `2**-exponent` apart; None if no rank has a gradient."""
        tops = np.full(len(parameters), -1.0)
        for number, parameter in enumerate(parameters):
            for part in self._parts.get(parameter, ()):
                tops[number] = max(tops[number], _largest(part))
        self._comm.all_reduce(tops, "max")
        pairs = zip(parameters, tops, strict=True)
        return {parameter: None if top < 0 else exponent_of(top, self._bits) for parameter, top in pairs}

    def _on_grid(self, parameter: Variable, exponent: int | None) -> np.ndarray:
        """Return the sum of this rank's gradients of a parameter as a flat array of integers on the grid."""
        total = np.zeros(parameter.value.data.size, np.int64)
        for part in self._parts.pop(parameter, ()):
            total += to_grid(dense(part).reshape(-1), exponent or 0)
        return total

    def _rows_on_grid(self, parameter: Variable, exponent: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of a table for which this rank has gradients, and their sums as integers on the grid."""
        parts = [as_rows_of(parameter, part) for part in self._parts.pop(parameter, [None])]
        return _added([part.rows for part in parts], [to_grid(part.value, exponent or 0) for part in parts])


_NO_GRID = 1 << 20  # the exponent of a parameter that has an infinite or NaN gradient


def exponent_of(top: float, bits: int) -> int:
    """Return the exponent of the grid on which numbers below `top` have fewer than `bits` bits."""
    return bits - int(np.frexp(top)[1]) if np.isfinite(top) else _NO_GRID


def to_grid(array: np.ndarray, exponent: int) -> np.ndarray:
    """Return numbers as int64 multiples of the grid's step, `2**-exponent`, rounded to the nearest."""
    if exponent == _NO_GRID:
        return np.zeros(array.shape, np.int64)
    return np.rint(np.ldexp(array.astype(np.float64), exponent)).astype(np.int64)


def from_grid(array: np.ndarray, exponent: int, dtype: np.dtype) -> np.ndarray:
    """Return integers times the grid's step, `2**-exponent`; NaN if a gradient was infinite or NaN."""
    if exponent == _NO_GRID:
        return np.full(array.shape, np.nan, dtype)
    return np.ldexp(array.astype(np.float64), -exponent).astype(dtype)


def _largest(gradient: Gradient) -> float:
    """Return the largest magnitude; infinity if any number is NaN, because engines differ in the maximum of NaNs."""
    array = gradient.value if isinstance(gradient, SelectedRows) else gradient.data
    top = float(np.abs(array).max(initial=0))
    return np.inf if np.isnan(top) else top


def _added(rows: list[np.ndarray], values: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct rows in ascending order, and for each row the sum of its integers."""
    joined, every = np.concatenate(rows), np.concatenate(values)
    order = np.argsort(joined, kind="stable")
    joined, every = joined[order], every[order]
    begins = np.flatnonzero(np.diff(joined, prepend=-1))
    return joined[begins], np.add.reduceat(every, begins, axis=0) if len(begins) else every
