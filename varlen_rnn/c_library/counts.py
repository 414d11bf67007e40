"""Counts: the numbers by which batches of a program differ, such as rows and sequences, and which of them are equal.

A feed `x` with a LoD of one level has the counts `rows` and `sequences`.  A dense feed `h` of unknown size `-1` has the
count `h_size`, unless the program runs only if it equals an earlier count, such as `sequences`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from varlen_rnn.c_library.source import identifier, unused
from varlen_rnn.program.boxes import Box
from varlen_rnn.runtime.placeholder import Unbound
from varlen_rnn.tape.spec import TensorSpec

MOST = {"rows": 2**16, "sequences": 2**12, "size": 2**12}  # the largest counts of a batch, by the kind of a count
_TRIED = range(3, 1000, 2)  # sizes that differ, with which dry runs try which must be equal
Key = tuple[str, str, int]  # a feed, "rows", "sequences" or "size", and the level or the axis


class Counts(NamedTuple):
    """The counts of a program.

    names: their names in C
    which: {an unknown size of a feed: the number of its count}
    like: {a feed with a LoD: itself, or an earlier feed that has its LoD}
    structure: the structure of a batch, as `measure` returns it
    box: the box of all batches, whose free counts these are
    """

    names: list[str]
    which: dict[Key, int]
    like: dict[str, str]
    structure: Any
    box: Box

    def levels(self, feed: str) -> list[str]:
        """Return the names of the counts of the levels of a feed's own LoD, the outermost first, and of its rows."""
        levels = sorted(key for key in self.which if key[:2] == (feed, "sequences"))
        return [self.names[self.which[key]] for key in (*levels, (feed, "rows", 0))]


def counts_of(declared: Mapping[str, TensorSpec], run: Callable[[Any, tuple[int, ...]], object]) -> Counts:
    """Return the Counts of a program with these feeds.

    `run(structure, counts)` makes a dry run, or raises Unbound.  First all feeds with as many levels have one LoD, and
    all counts are equal.  Then each feed gets a LoD of its own, and each size changes alone, if the program still runs.
    """
    levels = {name: spec.lod_level for name, spec in declared.items() if spec.lod_level}
    like = {name: next(other for other in levels if levels[other] == levels[name]) for name in levels}
    _run(run, declared, like, dict.fromkeys(_keys(declared, like), _TRIED[0]))
    for name in [name for name, other in like.items() if name != other]:
        alone = like | {name: name}
        values = {key: _TRIED[key[0] == name] for key in _keys(declared, alone)}
        like = alone if _can_run(run, declared, alone, values) else like
    keys = _keys(declared, like)
    values, which = dict.fromkeys(keys, _TRIED[0]), dict[Key, int]()
    for key in keys:
        if key not in which:
            others = [other for other in keys if other not in which and other != key]
            number, value = len(set(which.values())), _TRIED[1 + len(which)]

            def runs(moved, value=value):
                return _can_run(run, declared, like, values | dict.fromkeys(moved, value))  # noqa: B023

            tied = _must_move(key, others, runs)
            which |= dict.fromkeys(tied, number)
            values |= dict.fromkeys(tied, value)
    first = {number: key for key, number in reversed(which.items())}
    firsts = [first[number] for number in range(len(first))]
    structure, sizes = _batch(declared, like)
    form = [(0, which[size]) if isinstance(size, tuple) else (size, None) for size in sizes]
    most = tuple(MOST[kind] for _, kind, _ in firsts)
    box = Box(form, tuple(sizes.index(key) for key in firsts), (0,) * len(firsts), most)
    return Counts(_names(firsts, declared), which, like, structure, box)


def _must_move(key, others, runs):
    """Return the sizes that must change with a size, among it and others; `runs(sizes)` tries a change."""
    if runs([key]):
        return [key]
    moved = [key, *others]
    for count in (1, 2):
        for left in itertools.combinations(others, count):
            fewer = [one for one in moved if one not in left]
            moved = fewer if set(left) <= set(moved) and runs(fewer) else moved
    return moved


def _can_run(run, declared, like, values):
    try:
        _run(run, declared, like, values)
    except Unbound:
        return False
    return True


def _run(run, declared, like, values):
    structure, sizes = _batch(declared, like)
    run(structure, tuple([values[size] if isinstance(size, tuple) else size for size in sizes]))


def _batch(declared, like):
    """Return the structure of a batch, and its counts, as `measure` does, with the Key of each unknown size."""
    numbers, structure, sizes = {name: number for number, name in enumerate(declared)}, [], list[Any]()
    for name, spec in declared.items():
        shape: list[Any] = [(name, "size", axis) if size == -1 else size for axis, size in enumerate(spec.shape)]
        if name in like:
            shape[0] = like[name], "rows", 0
        levels = range(spec.lod_level if like.get(name) == name else 0)
        sizes += [*shape, *((name, "sequences", level) for level in levels)]
        structure.append((len(shape), spec.lod_level, numbers[like[name]] if name in like else None))
    return tuple(structure), sizes


def _keys(declared, like):
    """Return the Keys of a batch, feed by feed: first rows, then sequences, then other sizes."""
    numbers, kinds = {name: number for number, name in enumerate(declared)}, list(MOST)
    found = {size for size in _batch(declared, like)[1] if isinstance(size, tuple)}
    return sorted(found, key=lambda key: (numbers[key[0]], kinds.index(key[1]), key[2]))


def _names(keys, declared):
    names: list[str] = []
    for feed, kind, number in keys:
        several = kind == "sequences" and declared[feed].lod_level > 1
        end = f"{kind}_{number}" if several or (kind == "size" and declared[feed].shape.count(-1) > 1) else kind
        names.append(end if kind != "size" and end not in names else unused(f"{identifier(feed)}_{end}", names))
    return names
