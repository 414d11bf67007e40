"""Bind a program: after some runs, its kernels run one after another without Python, as records.

A dry run executes the program's operators on placeholders, for one size of batch.  A batch of 8 sequences with 100 rows
has one size, whatever its numbers and its sequences' lengths are; a batch with 101 rows has another.  Dry runs at some
sizes of a box of counts (`boxes`) give records for all batches in it.  If they cannot, a size is bound alone when it
comes again.  If a dry run meets work that no record can do, the Executor runs the operators as before, and
`Binding.refusal` names the operator and the work.

Some runs are made both ways first, on copies of the values, and compared to the bit.  No other thread sees the copies.

A dry run takes as long as ten to twenty runs of small operators.  So dry runs are rationed: programs whose sizes are
seldom bound stay about as fast as without.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

from varlen_rnn.errors import ProgramError
from varlen_rnn.program.bounds import Bounds
from varlen_rnn.program.boxes import measure
from varlen_rnn.program.dry_runs import dry_run_of
from varlen_rnn.program.instructions import Instructions
from varlen_rnn.rows.lod import LoDTensor, rows_of
from varlen_rnn.runtime import device_array
from varlen_rnn.runtime.dry_run import copy_of, room
from varlen_rnn.tape.values import bits_of_value, memory_of

_RUNS_BEFORE = 3  # runs before the first dry run, so that programs that run once or twice are not bound

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
    runs : int
        How many runs were made by records.
    bounds : Bounds
    """

    def __init__(self, instructions: Instructions, fetches: tuple[str, ...], updated: tuple[str, ...]) -> None:
        self._instructions, self._fetches, self._updated = instructions, fetches, updated
        self.runs, self._before = 0, 0
        self.bounds, self._is_given_up = Bounds(), False
        # Whoever takes the only entry may run; an interrupt can lose it, and then nobody runs by records.
        self._turn, self._process, self._is_begun = [None], os.getpid(), False
        self._memory = room(0)
        self._persistables: dict[str, Any] = {}
        self._written: set[int] = set()  # ids of the memory of persistables that a run updates

    @property
    def refusal(self) -> str | None:
        """Why the last size of batch that was tried has no records; None if it has them, or none was tried."""
        return self.bounds.refusal

    def run(self, given: Mapping[str, Any], fed: Mapping[str, Any], execute: Run) -> list[Any]:
        """Return the fetches of a run on the values `given`, among them those that are `fed`.

        `execute(given)` runs the operators on values, and returns the fetches.
        """
        if self._is_given_up or self.bounds.is_given_up or device_array.in_use:
            return execute(given)
        if self._before < _RUNS_BEFORE:
            self._before += 1
            self.bounds.see(measure(fed))
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
        size = measure(fed)
        found = None if size is None else self.bounds.find(size) or self._bind(size, given, fed)
        if found is None:
            self.bounds.others += 1
            if size is None:
                self.bounds.refusal = "the kind of a feed"
            return execute(given)
        bound, free = found
        bound.place(self._memory, free)
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

    def _bind(self, size, given, fed):
        """Bind a size of batch if dry runs are worth their time; return its Bound and free counts, or None."""
        dry_run = functools.partial(dry_run_of, self._instructions, self._fetches, given, fed)
        found = self.bounds.bind(size, dry_run, self.runs)
        if found is not None and found[0].records.size > len(self._memory):
            self._memory = room(max(found[0].records.size, 2 * len(self._memory)))
        return found

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
        self._is_given_up = True
        self.bounds.forget()
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
        self.bounds.forget(seen=self._is_begun)
        self._process, self._memory, self._is_begun = os.getpid(), room(0), True
        arrays = {name: rows_of(value) for name, value in given.items()}
        self._written = {id(memory_of(given[name])) for name in self._updated}
        self._persistables = {
            name: (array, (array.shape, array.strides, array.dtype, array.flags.num)) for name, array in arrays.items()
        }


def _first_difference(some, others):
    """Return the number of the first pair of values whose bits differ, or None."""
    pairs = enumerate(zip(some, others, strict=True))
    return next((n for n, (a, b) in pairs if bits_of_value(a) != bits_of_value(b)), None)
