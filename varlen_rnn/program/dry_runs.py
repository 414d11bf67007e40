"""Dry runs of a program: its operators run on placeholders, for one size of batch."""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from varlen_rnn import random
from varlen_rnn.program.boxes import Counts, sizes_of
from varlen_rnn.program.instructions import Instructions
from varlen_rnn.program.replay import Ran
from varlen_rnn.rows.lod import NO_LOD, LoD, LoDTensor, rows_of
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.runtime.dry_run import DryRun
from varlen_rnn.runtime.placeholder import Unbound
from varlen_rnn.runtime.records import EXPECT
from varlen_rnn.runtime.threads import set_num_threads_here
from varlen_rnn.tape.run import run


def dry_run_of(
    instructions: Instructions,
    fetches: tuple[str, ...],
    given: Mapping[str, Any],
    fed: Mapping[str, Any],
    structure: Any,
    counts: Counts,
    once: dict[Any, Any] | None = None,
) -> Ran:
    """Return the Ran of a program; raise Unbound if its dry run meets work that no record can do.

    given: the persistables by name, as the program has them now
    fed: values by name whose data types the feeds have
    structure, counts: the size of the batch, as `measure` returns it
    once: results of earlier dry runs, as `DryRun` keeps them; None if the numbers of persistables can change
    """
    sizes = sizes_of(structure, counts)
    return contextvars.copy_context().run(_dry_run, instructions, fetches, given, fed, sizes, once)


def _dry_run(instructions, fetches, given, fed, sizes, once):
    set_num_threads_here(1)  # results do not depend on it
    dry_run = DryRun(once)
    random.note_draws(functools.partial(dry_run.refuse, "it uses the generator of random numbers"))
    try:
        ran = _ran(dry_run, instructions, fetches, given, fed, sizes)
    except Exception as error:
        dry_run.refuse(f"its dry run raises {type(error).__name__}: {error}")
    if dry_run.refusal:
        raise Unbound(dry_run.refusal)
    return ran


def _ran(dry_run, instructions, fetches, given, fed, sizes):
    fed_places, lods, place = {}, {}, instructions.place
    of_feed: list[LoD] = []
    held: list[Any] = [None] * instructions.size
    for name, value in given.items():
        if name not in fed:
            if type(value) is not LoDTensor or value.structure is not NO_LOD:
                dry_run.refuse(f"persistable {name!r} is no ordinary array")
            held[place[name]] = LoDTensor.wrap(dry_run.around(rows_of(value), dry_run.once is not None))
    for (name, value), (shape, lengths, like) in zip(fed.items(), sizes, strict=True):
        rows, levels = dry_run.empty(shape, value.dtype), []
        lod = NO_LOD if like is None else of_feed[like] if like < len(of_feed) else None
        if lod is None:
            levels = [dry_run.empty((count + 1,), np.int64) for count in lengths]
            for level in levels:
                level.flags.writeable = False
            lod = LoD.without_numbers(levels, shape[0])
            lods[id(lod)] = name
        of_feed.append(lod)
        fed_places[name] = rows, levels
        held[place[name]] = LoDTensor.wrap(rows, lod)
    first_update = _run_operators(dry_run, instructions, held)
    found = [held[place[name]] for name in fetches]
    for name, value in zip(fetches, found, strict=True):
        if type(value) not in (LoDTensor, SelectedRows):
            dry_run.refuse(f"the fetch {name!r} is no array")
    return Ran(dry_run, fed_places, lods, found, first_update, random.upcoming()[2])


def _run_operators(dry_run, instructions, held):
    """Run the operators on placeholders; return how many calls came before the first update."""
    first_update, before = None, 0
    for instruction in instructions.all:
        op = instruction.op
        dry_run.operator = op.type
        if op.in_place and first_update is None:
            first_update = len(dry_run.calls)
        try:
            results = run(op, instruction.taken(held), instruction.attrs)
        except Unbound as error:
            dry_run.refuse(f"operator {op.type!r}: {error}")
        except Exception as error:
            dry_run.refuse(f"operator {op.type!r} raises {type(error).__name__}: {error}")
        if first_update is not None and not op.in_place:
            if any(call.name == EXPECT for call in dry_run.calls[before:]):
                dry_run.refuse(f"operator {op.type!r} checks its inputs after an update")
        before = len(dry_run.calls)
        instruction.put(held, results)
    return len(dry_run.calls) if first_update is None else first_update
