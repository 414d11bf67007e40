"""Counts: the numbers by which batches of a program differ, such as rows and sequences, and which of them are equal.

A feed `x` with a LoD of one level has the counts `rows` and `sequences`.  A dense feed `h` of unknown size `-1` has the
count `h_size`, unless the program runs only if it equals an earlier count, such as `sequences`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from varlen_rnn.c_library.runs import Refused, Sizes
from varlen_rnn.c_library.source import identifier
from varlen_rnn.tape.spec import TensorSpec

MOST = {"rows": 2**16, "sequences": 2**12, "size": 2**12}  # the largest counts of a batch, by the kind of a count
_TRIED = range(3, 1000, 2)  # sizes that differ, with which dry runs try which must be equal
Key = tuple[str, str, int]  # a feed, "rows", "sequences" or "size", and the level or the axis


class Counts(NamedTuple):
    """The counts of a program.

    names: their names in C
    most: their largest values
    which: the number of the count for each unknown size of a feed
    like: for each feed with a LoD, the feed that has its LoD: itself, or an earlier feed
    """

    names: list[str]
    most: tuple[int, ...]
    which: dict[Key, int]
    like: dict[str, str]

    def feeds(self, declared: Mapping[str, TensorSpec], point: tuple[int, ...]) -> dict[str, tuple[Sizes, Any]]:
        """Return the Sizes and the data type of each feed; raise Refused if rows would be in no sequence."""
        return _feeds(declared, self.like, {key: point[number] for key, number in self.which.items()})

    def levels(self, feed: str) -> list[str]:
        """Return the names of the counts of the levels of a feed's own LoD, the outermost first, and of its rows."""
        levels = sorted(key for key in self.which if key[:2] == (feed, "sequences"))
        return [self.names[self.which[key]] for key in (*levels, (feed, "rows", 0))]


def counts_of(declared: Mapping[str, TensorSpec], run: Callable[[Any], object]) -> Counts:
    """Return the Counts of a program with these feeds.

    `run(feeds)` makes a dry run, or raises Refused.  First all feeds with as many levels have one LoD, and all counts
    are equal.  Then each feed gets a LoD of its own, and each size changes alone, if the program still runs.
    """
    levels = {name: spec.lod_level for name, spec in declared.items() if spec.lod_level}
    like = {name: next(other for other in levels if levels[other] == levels[name]) for name in levels}
    run(_feeds(declared, like, dict.fromkeys(_keys(declared, like), _TRIED[0])))
    for name in [name for name, other in like.items() if name != other]:
        alone = like | {name: name}
        values = {key: _TRIED[key[0] == name] for key in _keys(declared, alone)}
        like = alone if _runs(run, declared, alone, values) else like
    keys = _keys(declared, like)
    values, which = dict.fromkeys(keys, _TRIED[0]), dict[Key, int]()
    for key in keys:
        if key not in which:
            others = [other for other in keys if other not in which and other != key]
            number, value = len(set(which.values())), _TRIED[1 + len(which)]

            def runs(moved, value=value):
                return _runs(run, declared, like, values | dict.fromkeys(moved, value))  # noqa: B023

            tied = _must_move(key, others, runs)
            which |= dict.fromkeys(tied, number)
            values |= dict.fromkeys(tied, value)
    first = {number: key for key, number in reversed(which.items())}
    names = _names([first[number] for number in range(len(first))], declared)
    return Counts(names, tuple(MOST[first[number][1]] for number in range(len(first))), which, like)


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


def _runs(run, declared, like, values):
    try:
        run(_feeds(declared, like, values))
    except Refused:
        return False
    return True


def _keys(declared, like):
    keys: list[Key] = []
    for name, spec in declared.items():
        if name in like:
            keys += [(name, "rows", 0)] * (like[name] == name)
            keys += [(name, "sequences", level) for level in range(spec.lod_level) if like[name] == name]
        first = 1 if name in like else 0
        keys += [(name, "size", axis) for axis in range(first, len(spec.shape)) if spec.shape[axis] == -1]
    return keys


def _feeds(declared, like, values):
    """Return the Sizes and the data type of each feed, given the value of each of its counts."""
    feeds = {}
    for name, spec in declared.items():
        shape = [values.get((name, "size", axis), size) for axis, size in enumerate(spec.shape)]
        levels: tuple[int, ...] = ()
        if name in like:
            shape[0] = values[like[name], "rows", 0]
            levels = tuple(values[like[name], "sequences", level] for level in range(spec.lod_level))
            if any(upper == 0 < lower for upper, lower in zip(levels, (*levels[1:], shape[0]), strict=True)):
                raise Refused("rows are in no sequence")
        shared = like[name] if like.get(name, name) != name else None
        feeds[name] = Sizes(tuple(shape), () if shared else levels, shared), spec.dtype
    return feeds


def _names(keys, declared):
    names: list[str] = []
    for feed, kind, number in keys:
        several = kind == "sequences" and declared[feed].lod_level > 1
        end = f"{kind}_{number}" if several or (kind == "size" and declared[feed].shape.count(-1) > 1) else kind
        names.append(end if kind != "size" and end not in names else f"{identifier(feed)}_{end}")
    return names
