"""Bind a program: after some runs, its kernels run one after another without Python, as records.

For each size of batch, a dry run executes the program's operators on placeholders.  A batch of 8 sequences with 100
rows has one size, whatever its numbers and its sequences' lengths are; a batch with 101 rows has another.  Its records
serve all batches of that size.  If a dry run meets work that no record can do, the Executor runs the operators as
before, and `Binding.refusal` names the operator and the work.

Some runs are made both ways first, on copies of the values, and compared to the bit.  No other thread sees the copies.

A dry run takes as long as ten to twenty runs of small operators.  So a size is bound when it comes again, and dry runs
are rationed: programs whose sizes seldom come again stay about as fast as without.
"""

from __future__ import annotations

import contextvars
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from varlen_rnn import random
from varlen_rnn.errors import ProgramError
from varlen_rnn.program.instructions import Instructions
from varlen_rnn.program.replay import Bound, Ran
from varlen_rnn.rows.lod import NO_LOD, LoD, LoDTensor, levels_of, rows_of
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.runtime import device_array
from varlen_rnn.runtime.dry_run import DryRun, copy_of, room
from varlen_rnn.runtime.placeholder import Unbound
from varlen_rnn.runtime.threads import set_num_threads_here
from varlen_rnn.tape.run import run
from varlen_rnn.tape.values import bits_of_value, memory_of

_RUNS_BEFORE = 3  # runs before the first dry run, so that programs that run once or twice are not bound
_MOST_SIZES = 1024  # sizes of batches whose records are kept
_MOST_REFUSALS = 4  # sizes without records, beyond the number of runs by records, after which no more are tried
_MOST_WAYS = 8  # lists of kernels; a program that takes another way at each size is not worth binding
_MOST_BYTES = 2**26  # of the memory of a run: larger batches spend their time in kernels
_EXPECT = "expect"  # the name of the kernel that stops a run if a check failed
_DRY_RUNS = 8  # dry runs that are always allowed
_RUNS_EACH = 256  # runs by operators that allow one more dry run, so that dry runs take less than a tenth of their time
_RECORDS_EACH = 32  # runs by records that allow one more dry run, so that dry runs take less than they have saved
_OFTEN = 32  # times that a size comes after which its dry run is allowed in any case

Run = Callable[[Mapping[str, Any]], list[Any]]


def is_run_both_ways(number: int) -> bool:
    """Return whether the run of this number is made both ways: runs 1, 2, 4, 8 and so on, and each 1024th."""
    return number & (number - 1) == 0 or number % 1024 == 0


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
        self._others, self._dry_runs = 0, 0  # runs by operators after the first ones, and dry runs
        # Whoever takes the only entry may run; an interrupt can lose it, and then nobody runs by records.
        self._turn, self._process, self._is_begun = [None], os.getpid(), False
        self._memory = room(0)
        self._persistables: dict[str, Any] = {}
        self._written: set[int] = set()  # ids of the memory of persistables that a run updates
        self._sizes: dict[Any, Bound | str] = {}
        self._ways: set[Any] = set()
        self._seen: dict[Any, int] = {}  # {a size without records: how many times it came}

    def run(self, given: Mapping[str, Any], fed: Mapping[str, Any], execute: Run) -> list[Any]:
        """Return the fetches of a run on the values `given`, among them those that are `fed`.

        `execute(given)` runs the operators on values, and returns the fetches.
        """
        if self._is_given_up or device_array.in_use:
            return execute(given)
        if self._before < _RUNS_BEFORE:
            self._before += 1
            self._seen[_size_of(fed)] = 1
            return execute(given)
        try:
            self._turn.pop()
        except IndexError:  # another thread is running
            return execute(given)
        try:
            return self._run(given, fed, execute)
        finally:
            self._turn.append(None)

    def _run(self, given, fed, execute):
        if self._process != os.getpid() or not self._knows(given):
            self._forget({name: value for name, value in given.items() if name not in fed})
        if self._written and any(id(memory_of(value)) in self._written for value in fed.values()):
            return execute(given)  # an update changes the feed, but not the copy of it that records read
        size = _size_of(fed)
        bound = self._sizes.get(size) if size is not None else "the kind of a feed"
        if bound is None and self._is_worth_binding(size):
            bound = self._bind(size, given, fed)
        if not isinstance(bound, Bound):
            self._others += 1
            self.refusal = self.refusal if bound is None else bound
            return execute(given)
        bound.place(self._memory)
        self.runs += 1
        if not bound.is_compared or is_run_both_ways(self.runs):
            if not self._is_right(bound, given, fed, execute):
                return execute(given)
        stopped = bound.run(fed)
        if stopped < 0:
            return bound.results(fed)
        if stopped < bound.first_update:
            return execute(given)  # nothing has changed, and the operator raises its error
        # Earlier updates are kept, as in a run of the operators.
        expected, got = "updates whose states are valid", f"one whose kernel {bound.records.names[stopped][0]!r} raised"
        raise ProgramError("bound program", expected=expected, got=got)

    def _is_worth_binding(self, size):
        """Return whether a size without records came before, and a dry run is allowed."""
        if len(self._seen) >= 4 * _MOST_SIZES:
            self._seen.clear()
        times = self._seen[size] = self._seen.get(size, 0) + 1
        allowed = _DRY_RUNS + self._others // _RUNS_EACH + self.runs // _RECORDS_EACH
        return times > 1 and (times > _OFTEN or self._dry_runs < allowed)

    def _is_right(self, bound, given, fed, execute):
        """Run both ways on copies, which no other thread changes; return False if one way fails.

        Raise if a bit differs.  Arrays that no run updates are copied only if bits differ, because tables can be large.
        """
        fed = {name: value.copy() for name, value in fed.items()}
        for names in (self._updated, tuple(self._persistables)):
            arrays = {name: rows_of(given[name]) for name in names}
            ours, theirs = ({name: copy_of(array) for name, array in arrays.items()} for _ in range(2))
            copies = {id(array): ours[name] for name, array in arrays.items()}
            values = {name: LoDTensor.wrap(copy.array) for name, copy in theirs.items()}
            if bound.run(fed, copies) >= 0:
                return False
            found = bound.results(fed, copies)
            try:
                wanted = execute({**given, **fed, **values})
            except Exception:  # the run itself raises it
                return False
            found += [ours[name].array for name in self._updated]
            wanted += [theirs[name].array for name in self._updated]
            different = _first_difference(found, wanted)
            if different is None:
                bound.is_compared = True
                return True
        name = (*self._fetches, *self._updated)[different]
        self._is_given_up, self._sizes = True, {}
        got, hint = "other bits than those of the operators", "please report it; later runs are not bound"
        what = f"bound program, {name!r} of operator {self._maker_of(name)!r}"
        raise ProgramError(what, expected="equal bits", got=got, hint=hint)

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
        if self._is_begun:
            self._seen.clear()
        self._sizes, self._process, self._memory, self._is_begun = {}, os.getpid(), room(0), True
        arrays = {name: rows_of(value) for name, value in given.items()}
        self._written = {id(memory_of(given[name])) for name in self._updated}
        self._persistables = {
            name: (array, (array.shape, array.strides, array.dtype, array.flags.num)) for name, array in arrays.items()
        }

    def _bind(self, size, given, fed):
        """Return the Bound of a size of batch, or why there is none."""
        if len(self._sizes) >= _MOST_SIZES:
            oldest = next(iter(self._sizes))
            del self._sizes[oldest]
            self._seen.pop(oldest, None)  # so that sizes do not replace each other at each run
        self._dry_runs += 1
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
        except Exception as error:
            return f"its dry run raises {type(error).__name__}: {error}"
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
            if type(value) not in (LoDTensor, SelectedRows):
                dry_run.refuse(f"the fetch {name!r} is no array")
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


def _first_difference(some, others):
    """Return the number of the first pair of values whose bits differ, or None."""
    pairs = enumerate(zip(some, others, strict=True))
    return next((n for n, (a, b) in pairs if bits_of_value(a) != bits_of_value(b)), None)


def _lengths(lod):
    return tuple(map(len, levels_of(lod)))
