"""Run the records of a program for one size of batch: copy the feeds, run the records, and copy the fetches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from varlen_rnn.rows.lod import NO_LOD, LoDTensor, levels_of, rows_of
from varlen_rnn.runtime.dry_run import Copy, DryRun, Place, Records, place_of
from varlen_rnn.runtime.placeholder import Placeholder
from varlen_rnn.tape.values import plain


class Ran(NamedTuple):
    """What a dry run of a program leaves.

    fetches: the value of each fetch; its array is a Placeholder, or an ordinary array that depends on sizes alone
    first_update: how many calls of kernels came before the first operator that updates a persistable
    """

    dry_run: DryRun
    fed: dict[str, tuple[Any, list[Any]]]
    lods: dict[int, str]
    fetches: list[LoDTensor]
    first_update: int


class Bound:
    """The records of a program for one size of batch."""

    def __init__(self, ran: Ran) -> None:
        self.records, self.first_update = Records(ran.dry_run), ran.first_update
        # For each feed, the place of its rows and of each level that is its own.
        self._feeds = [(name, place_of(rows), list(map(place_of, levels))) for name, (rows, levels) in ran.fed.items()]
        self._fetches: list[tuple[Place | np.ndarray, str | None]] = []
        self.is_compared = False  # whether a run was compared with the operators
        for value in ran.fetches:
            array = rows_of(value)
            lod = None if value.structure is NO_LOD else ran.lods[id(value.structure)]
            self._fetches.append((place_of(array) if type(array) is Placeholder else array.copy(), lod))
        self._memory: np.ndarray | None = None

    def place(self, memory: np.ndarray) -> None:
        """From now on, run in `memory`."""
        if memory is not self._memory:
            self.records.place(memory)
            self._memory = memory
            self._inputs = [
                (name, rows.view(memory), [level.view(memory) for level in levels])
                for name, rows, levels in self._feeds
            ]
            self._outputs = [
                (array.view(memory) if type(array) is Place else array, lod) for array, lod in self._fetches
            ]

    def run(self, fed: Mapping[str, LoDTensor], copies: Mapping[int, Copy] | None = None) -> int:
        """Copy the feeds, and run the records; return the number of the record that failed, or -1.

        copies: as `Records.run` takes it
        """
        for name, rows, levels in self._inputs:
            value = fed[name]
            rows[...] = rows_of(value)
            if levels:
                for target, level in zip(levels, levels_of(value.structure), strict=True):
                    target[...] = level
        return self.records.run(copies)

    def results(self, fed: Mapping[str, LoDTensor], copies: Mapping[int, Copy] | None = None) -> list[Any]:
        """Return copies of the fetches of the last run, which had the same arguments, as the Executor returns them."""
        outputs = self._outputs
        if copies:
            outputs = [
                (place.view_of_copy(copies[id(place.outside)]), lod)
                if type(place) is Place and id(place.outside) in copies else one
                for one, (place, lod) in zip(outputs, self._fetches, strict=True)
            ]  # fmt: skip
        return [
            plain(LoDTensor.wrap(np.array(array), NO_LOD if lod is None else fed[lod].structure))
            for array, lod in outputs
        ]
