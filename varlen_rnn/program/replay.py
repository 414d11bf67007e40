"""Run the records of a program for one size of batch: copy the feeds, run the records, and copy the fetches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from varlen_rnn.rows.checks import read_only
from varlen_rnn.rows.lod import NO_LOD, LoD, LoDTensor, levels_of, rows_of
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.runtime.dry_run import Copy, DryRun, Place, Records, place_of
from varlen_rnn.runtime.placeholder import Placeholder
from varlen_rnn.tape.values import plain


class Ran(NamedTuple):
    """What a dry run of a program leaves.

    lods: the names of feeds, by the id of their LoD
    fetches: the value of each fetch; its arrays are Placeholders, or ordinary arrays that depend on sizes alone
    first_update: how many calls of kernels came before the first operator that updates a persistable
    """

    dry_run: DryRun
    fed: dict[str, tuple[Any, list[Any]]]
    lods: dict[int, str]
    fetches: list[LoDTensor | SelectedRows]
    first_update: int


class Fetch(NamedTuple):
    """What a run leaves for a fetch.

    arrays: the Places of its rows or values, and then of the levels of its own LoD, or of the listed rows; an ordinary
        array depends on sizes alone
    lod: the name of the feed whose LoD it has, or None
    height: of SelectedRows, otherwise None
    """

    arrays: tuple[Place | np.ndarray, ...]
    lod: str | None
    height: int | None

    def made(self, arrays: list[np.ndarray], fed: Mapping[str, LoDTensor]) -> Any:
        """Return the value of new arrays."""
        first, *others = arrays
        if self.height is None:
            own = LoD.trusted(map(read_only, others)) if others else NO_LOD
            return plain(LoDTensor.wrap(first, own if self.lod is None else fed[self.lod].structure))
        rows = others[0]
        is_listed = rows >= 0  # the others are there because a dry run cannot know how many rows are listed
        if not is_listed.all():
            rows, first = rows[is_listed], first[is_listed]
        return SelectedRows.wrap(rows, first, self.height)


def _fetch_of(value: LoDTensor | SelectedRows, lods: dict[int, str]) -> Fetch:
    lod, height, others = None, None, ()
    if isinstance(value, SelectedRows):
        first, others, height = value.value, (value.rows,), value.height
    else:
        first, lod = rows_of(value), lods.get(id(value.structure))
        others = levels_of(value.structure) if lod is None else ()
    return Fetch(tuple([place_of(x) if type(x) is Placeholder else x.copy() for x in (first, *others)]), lod, height)


class Bound:
    """The records of a program for one size of batch."""

    def __init__(self, ran: Ran) -> None:
        self.records, self.first_update = Records(ran.dry_run), ran.first_update
        # For each feed, the place of its rows and of each level that is its own.
        self._feeds = [(name, place_of(rows), list(map(place_of, levels))) for name, (rows, levels) in ran.fed.items()]
        self._fetches = [_fetch_of(value, ran.lods) for value in ran.fetches]
        self.is_compared = False  # whether a run was compared with the operators
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
                [array.view(memory) if type(array) is Place else array for array in fetch.arrays]
                for fetch in self._fetches
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
                [place.view_of_copy(copies[id(place.outside)])
                 if type(place) is Place and id(place.outside) in copies else array
                 for array, place in zip(arrays, fetch.arrays, strict=True)]
                for arrays, fetch in zip(outputs, self._fetches, strict=True)
            ]  # fmt: skip
        return [
            fetch.made([np.array(array) for array in arrays], fed)
            for fetch, arrays in zip(self._fetches, outputs, strict=True)
        ]
