"""Dry runs of a program for a C library: results have arrays of their own, and each array of a run has a meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from varlen_rnn.products.tasks import UNLIMITED
from varlen_rnn.program.boxes import Counts, sizes_of
from varlen_rnn.program.dry_runs import dry_run_of
from varlen_rnn.program.instructions import Instructions
from varlen_rnn.program.replay import Ran
from varlen_rnn.rows.lod import NO_LOD, LoDTensor, rows_of
from varlen_rnn.runtime.dry_run import Call
from varlen_rnn.runtime.numba_internals import is_code
from varlen_rnn.runtime.placeholder import Placeholder, Unbound

_ADDRESSES = range(UNLIMITED + 1, 2**48)  # of arrays and code; no count is so large
Role = tuple[Any, ...]  # ("persistable", name), ("feed", name), ("level", name, level) or ("fetch", name)


def dry_run(
    instructions: Instructions,
    persistables: Mapping[str, np.ndarray],
    dtypes: Mapping[str, np.dtype],
    fetches: list[str],
    structure: Any,
    counts: Counts,
) -> Ran:
    """Return the Ran of a program, given the data types of its feeds; raise Unbound if C cannot make its calls."""
    for shape, levels, _ in sizes_of(structure, counts):
        if any(upper == 0 < lower for upper, lower in zip(levels, (*levels[1:], *shape[:1]), strict=False)):
            raise Unbound("rows are in no sequence")
    given = {name: LoDTensor.wrap(array) for name, array in persistables.items()}
    fed = {name: LoDTensor.wrap(np.empty(0, dtype)) for name, dtype in dtypes.items()}
    ran = dry_run_of(instructions, tuple(fetches), given, fed, structure, counts)
    if ran.dry_run.drawn is not None:
        raise Unbound("an operator draws random numbers")
    taken = {id(array.slot) for rows, levels in ran.fed.values() for array in (rows, *levels)}
    taken |= {id(slot) for slot in ran.dry_run.slots if slot.is_outside}
    ran.dry_run.operator = "fetch"
    for number, (name, value) in enumerate(zip(fetches, ran.fetches, strict=True)):
        lod: Any = value.structure if isinstance(value, LoDTensor) else None
        if not (lod is NO_LOD or id(lod) in ran.lods) or type(rows_of(value)) is not Placeholder:
            raise Unbound(f"the fetch {name!r} is no array, has offsets of its own, or depends on sizes alone")
        array = rows_of(value)
        if id(array.slot) in taken or array.nbytes != array.slot.form.nbytes or not array.flags.c_contiguous:
            array = array.copy()
            ran.fetches[number] = LoDTensor.wrap(array, lod)
        taken.add(id(array.slot))
    for call in ran.dry_run.calls:
        for position, (letter, word) in enumerate(zip("q" + call.letters, call.words, strict=True)):
            if kind_of(call, position, letter, word) == "number" and word in _ADDRESSES:
                raise Unbound(f"operator {call.operator!r}: kernel {call.name} takes an address of this process")
    return ran


def kind_of(call: Call, position: int, letter: str, word: int) -> str:
    """Return the kind of a word of a Call: "array", "float", "code", "null" or "number"."""
    if position in call.slots:
        return "array"
    if letter in "df":
        return "float"
    return "code" if is_code(word) else "null" if letter == "p" else "number"


def roles_of(ran: Ran, persistables: Mapping[str, np.ndarray], fetches: list[str]) -> list[Role | None]:
    """Return the role of each slot of a run, in order; None for a workspace, or for an array that never changes."""
    slots = ran.dry_run.slots
    roles: dict[int, Role] = {id(slot): ("persistable", name) for slot, name in zip(slots, persistables, strict=False)}
    for name, (rows, levels) in ran.fed.items():
        roles[id(rows.slot)] = "feed", name
        roles |= {id(level.slot): ("level", name, number) for number, level in enumerate(levels)}
    roles |= {id(rows_of(value).slot): ("fetch", name) for name, value in zip(fetches, ran.fetches, strict=True)}
    return [roles.get(id(slot)) for slot in slots]
