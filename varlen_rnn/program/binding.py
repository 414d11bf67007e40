"""Bind a program: after some runs, its kernels run one after another without Python, as records.

For each size of batch, a dry run executes the program's operators on placeholders.  A batch of 8 sequences with 100
rows has one size, whatever its numbers and its sequences' lengths are; a batch with 101 rows has another.  Its records
serve all batches of that size.  If a dry run meets work that no record can do, the Executor runs the operators as
before, and `Binding.refusal` names the operator and the work.

Some runs are made both ways, from the same values, and compared to the bit.
"""

from __future__ import annotations

import contextvars
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from varlen_rnn import random
from varlen_rnn.errors import ProgramError
from varlen_rnn.program.instructions import Instructions
from varlen_rnn.rows.lod import NO_LOD, LoD, LoDTensor, levels_of, rows_of
from varlen_rnn.runtime import device_array
from varlen_rnn.runtime.dry_run import DryRun, Place, Records, place_of, room
from varlen_rnn.runtime.placeholder import Placeholder, Unbound
from varlen_rnn.runtime.threads import set_num_threads_here
from varlen_rnn.tape.run import run
from varlen_rnn.tape.values import plain

_RUNS_BEFORE = 3  # runs before the first dry run, so that programs that run once or twice are not bound
_MOST_SIZES = 1024  # sizes of batches whose records are kept
_MOST_REFUSALS = 4  # sizes without records, beyond the number of runs by records, after which no more are tried
_MOST_WAYS = 8  # lists of kernels; a program that takes another way at each size is not worth binding
_MOST_BYTES = 2**26  # of the memory of a run: larger batches spend their time in kernels
_EXPECT = "expect"  # the name of the kernel that stops a run if a check failed
_EVERY = 1024  # runs between two that are compared, after runs 1, 2, 4, 8 ...

Run = Callable[[], list[Any]]


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

    def run(self, fed: Mapping[str, LoDTensor]) -> int:
        """Copy the feeds, and run the records; return the number of the record that failed, or -1."""
        for name, rows, levels in self._inputs:
            value = fed[name]
            rows[...] = rows_of(value)
            if levels:
                for target, level in zip(levels, levels_of(value.structure), strict=True):
                    target[...] = level
        return self.records.run()

    def results(self, fed: Mapping[str, LoDTensor]) -> list[Any]:
        """Return copies of the fetches of the last run, as the Executor returns them."""
        return [
            plain(LoDTensor.wrap(np.array(array), NO_LOD if lod is None else fed[lod].structure))
            for array, lod in self._outputs
        ]


class Binding:
    """Runs a program by records where it can; one thread at a time, others run the operators.

    Parameters
    ----------
    instructions : Instructions
    fetches : tuple of str
    updated : tuple of str
        The names of the persistables that a run updates.

    Attributes
    ----------
    refusal : str or None
        Why the last size of batch that was tried has no records; None if it has them, or none was tried.
    runs : int
        How many runs were made by records.
    """

    def __init__(self, instructions: Instructions, fetches: tuple[str, ...], updated: tuple[str, ...]) -> None:
        self._instructions, self._fetches, self._updated = instructions, fetches, updated
        self.refusal: str | None = None
        self.runs, self._before, self._refusals, self._is_given_up = 0, 0, 0, False
        # Whoever takes the only entry may run; an interrupt can lose it, and then nobody runs by records.
        self._turn, self._process, self._is_begun = [None], os.getpid(), False
        self._memory = room(0)
        self._persistables: dict[str, Any] = {}
        self._sizes: dict[Any, Bound | str] = {}
        self._ways: set[Any] = set()

    def run(self, given: Mapping[str, Any], fed: Mapping[str, Any], execute: Run) -> list[Any]:
        """Return the fetches of a run on the values `given`, among them those that are `fed`.

        `execute()` runs the operators and returns the fetches.
        """
        if self._is_given_up or device_array.in_use:
            return execute()
        if self._before < _RUNS_BEFORE:
            self._before += 1
            return execute()
        try:
            self._turn.pop()
        except IndexError:  # another thread is running
            return execute()
        try:
            return self._run(given, fed, execute)
        finally:
            self._turn.append(None)

    def _run(self, given, fed, execute):
        if self._process != os.getpid() or not self._knows(given):
            self._forget({name: value for name, value in given.items() if name not in fed})
        size = _size_of(fed)
        bound = self._sizes.get(size) if size is not None else "the kind of a feed"
        if bound is None:
            bound = self._bind(size, given, fed)
        if isinstance(bound, str):
            self.refusal = bound
            return execute()
        bound.place(self._memory)
        self.runs += 1
        if self.runs & (self.runs - 1) == 0 or self.runs % _EVERY == 0:
            return self._compared(bound, given, fed, execute)
        stopped = bound.run(fed)
        if stopped >= 0:
            return self._after_failure(bound, stopped, execute)
        return bound.results(fed)

    def _after_failure(self, bound, stopped, execute):
        if stopped < bound.first_update:
            return execute()  # nothing has changed, and the operator raises its error
        # Earlier updates are kept, as in a run of the operators.
        expected, got = "updates whose states are valid", f"one whose kernel {bound.records.names[stopped][0]!r} raised"
        raise ProgramError("bound program", expected=expected, got=got)

    def _compared(self, bound, given, fed, execute):
        """Run both ways from the same values; raise if a byte differs."""
        arrays = [rows_of(given[name]) for name in self._updated]
        before = [array.copy() for array in arrays]
        stopped = bound.run(fed)
        if stopped >= 0:
            return self._after_failure(bound, stopped, execute)
        ours, after = bound.results(fed), [array.copy() for array in arrays]
        for array, old in zip(arrays, before, strict=True):
            array[...] = old
        results = execute()
        names, pairs = [*self._fetches, *self._updated], zip([*ours, *after], [*results, *arrays], strict=True)
        for name, (one, other) in zip(names, pairs, strict=True):
            if np.asarray(one).tobytes() != np.asarray(other).tobytes():
                self._is_given_up, self._sizes = True, {}
                got, hint = "other bits than those of the operators", "please report it; later runs are not bound"
                what = f"bound program, {name!r} of operator {self._maker_of(name)!r}"
                raise ProgramError(what, expected="equal bits", got=got, hint=hint)
        return results

    def _maker_of(self, name):
        place = self._instructions.place[name]
        return next((one.op.type for one in reversed(self._instructions.all) if place in one.outputs), None)

    def _knows(self, given):
        """Return whether the persistables are the arrays that dry runs met."""
        for name, (array, about) in self._persistables.items():
            value = rows_of(given[name])
            if value is not array or (value.shape, value.strides, value.dtype, value.flags.num) != about:
                return False
        return self._is_begun

    def _forget(self, given):
        self._sizes, self._process, self._memory, self._is_begun = {}, os.getpid(), room(0), True
        arrays = {name: rows_of(value) for name, value in given.items()}
        self._persistables = {
            name: (array, (array.shape, array.strides, array.dtype, array.flags.num)) for name, array in arrays.items()
        }

    def _bind(self, size, given, fed):
        """Return the Bound of a size of batch, or why there is none."""
        if len(self._sizes) >= _MOST_SIZES:
            self._sizes.pop(next(iter(self._sizes)))
        context = contextvars.copy_context()
        bound = context.run(self._bound, size, given, fed)
        self._sizes[size] = bound
        if isinstance(bound, str):
            self._refusals += 1
            self._is_given_up = self._refusals > _MOST_REFUSALS + self.runs
        else:
            if bound.records.size > len(self._memory):
                self._memory = room(max(bound.records.size, 2 * len(self._memory)))
        return bound

    def _bound(self, size, given, fed):
        set_num_threads_here(1)  # results do not depend on it
        dry_run = DryRun()
        random.refuse_draws(functools.partial(dry_run.refuse, "it draws random numbers"))
        try:
            ran = self._dry_run(dry_run, size, given, fed)
        except Unbound:
            return dry_run.refusal
        if dry_run.refusal:
            return dry_run.refusal
        bound = Bound(ran)
        if bound.records.size > _MOST_BYTES:
            return f"a run takes {bound.records.size} bytes, more than {_MOST_BYTES}"
        self._ways.add(bound.records.names)
        return bound if len(self._ways) <= _MOST_WAYS else f"more than {_MOST_WAYS} lists of kernels"

    def _dry_run(self, dry_run, size, given, fed):
        fed_places, lods = {}, {}
        of_feed: list[LoD] = []
        held: list[Any] = [None] * self._instructions.size
        for name, value in given.items():
            if name not in fed:
                if type(value) is not LoDTensor or value.structure is not NO_LOD:
                    dry_run.refuse(f"persistable {name!r} is no ordinary array")
                held[self._instructions.place[name]] = LoDTensor.wrap(dry_run.around(rows_of(value)))
        for (name, value), (shape, lengths, like) in zip(fed.items(), size, strict=True):
            rows, levels = dry_run.empty(shape, value.dtype), []
            lod = NO_LOD if like is None else of_feed[like] if like < len(of_feed) else None
            if lod is None:
                levels = [dry_run.empty((count,), np.int64) for count in lengths]
                for level in levels:
                    level.flags.writeable = False
                lod = LoD.without_numbers(levels, shape[0])
                lods[id(lod)] = name
            of_feed.append(lod)
            fed_places[name] = rows, levels
            held[self._instructions.place[name]] = LoDTensor.wrap(rows, lod)
        first_update = self._operators(dry_run, held)
        fetches = [held[self._instructions.place[name]] for name in self._fetches]
        for name, value in zip(self._fetches, fetches, strict=True):
            if type(value) is not LoDTensor or not (value.structure is NO_LOD or id(value.structure) in lods):
                dry_run.refuse(f"the fetch {name!r} is no array, or has offsets of its own")
        return Ran(dry_run, fed_places, lods, fetches, first_update)

    def _operators(self, dry_run, held):
        """Run the operators on placeholders; return how many calls came before the first update."""
        first_update, before = None, 0
        for op, attrs, inputs, outputs, overwritten, done in self._instructions.all:
            if op.in_place and first_update is None:
                first_update = len(dry_run.calls)
            try:
                values = [held[place] for place in inputs]
                for position in overwritten:
                    values[position] = values[position].copy()
                results = run(op, values, attrs)
            except Unbound as error:
                dry_run.refuse(f"operator {op.type!r}: {error}")
            except Exception as error:
                dry_run.refuse(f"operator {op.type!r} raises {type(error).__name__}: {error}")
            if first_update is not None and not op.in_place:
                if any(call.name == _EXPECT for call in dry_run.calls[before:]):
                    dry_run.refuse(f"operator {op.type!r} checks its inputs after an update")
            before = len(dry_run.calls)
            for place, result in zip(outputs, results, strict=True):
                held[place] = result
            for place in done:
                held[place] = None
        return len(dry_run.calls) if first_update is None else first_update


def _size_of(fed):
    """Return the size of a batch: for each feed its shape, the numbers of its offsets, and which feed has its LoD.

    Return None if a feed is no LoDTensor, or has positions.
    """
    size: list[Any] = []
    lods: list[LoD] = []
    for value in fed.values():
        if type(value) is not LoDTensor:
            return None
        lod, like, lengths = value.structure, None, ()
        if lod is not NO_LOD:
            if not lod.num_levels or lod.positions is not None:
                return None
            like, lengths = next((k for k, other in enumerate(lods) if lod == other), len(lods)), _lengths(lod)
        lods.append(lod)
        size.append((value.shape, lengths, like))
    return tuple(size)


def _lengths(lod):
    return tuple(map(len, levels_of(lod)))
