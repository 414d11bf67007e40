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
import operator
import os
from collections.abc import Callable, Mapping
from typing import Any

from varlen_rnn import random
from varlen_rnn.errors import ProgramError
from varlen_rnn.program.bounds import Bounds
from varlen_rnn.program.boxes import measure
from varlen_rnn.program.dry_runs import dry_run_of
from varlen_rnn.program.instructions import Instructions
from varlen_rnn.rows.lod import LoDTensor, rows_of
from varlen_rnn.runtime import device_array
from varlen_rnn.runtime.dry_run import copy_of, room
from varlen_rnn.runtime.forms import Forms
from varlen_rnn.tape.gradient import updates_of, was_updated
from varlen_rnn.tape.values import bits_of_value, memory_of
from varlen_rnn.tape.variable import Variable

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
    variables : dict of str to Variable
        The Variables of the persistables.
    is_frozen : bool
        Whether the numbers of the persistables never change.

    Attributes
    ----------
    runs : int
        How many runs were made by records.
    bounds : Bounds
    """

    def __init__(
        self,
        instructions: Instructions,
        fetches: tuple[str, ...],
        updated: tuple[str, ...],
        variables: Mapping[str, Variable],
        is_frozen: bool = False,
    ) -> None:
        self._instructions, self._fetches, self._updated = instructions, fetches, updated
        self.runs, self._before = 0, 0
        self._once: dict[Any, Any] | None = {} if is_frozen else None  # results of dry runs
        self.bounds, self._is_given_up = Bounds(), False
        self._turns: dict[int, list[None]] = {}  # for each process, a list: whoever takes its only entry may run
        self._process, self._is_begun = os.getpid(), False
        self._memory = room(0)
        self._variables, self._held = dict(variables), list(variables.values())
        self._updated_variables = [self._variables[name] for name in updated]
        self._values: list[Any] = []  # of the persistables, as dry runs met them
        self._forms = Forms([])  # of the arrays of these values
        self._written_ids: set[int] = set()  # ids of the memory of persistables that a run updates
        self._updates: list[Any] = []

    @property
    def refusal(self) -> str | None:
        """Why the last size of batch that was tried has no records; None if it has them, or none was tried."""
        return self.bounds.refusal

    def run(self, fed: Mapping[str, Any], execute: Run) -> list[Any]:
        """Return the fetches of a run on the feeds `fed`, and on the values that persistables have now.

        `execute(values)` runs the operators on values by name, and returns the fetches.
        """
        if self._is_given_up or self.bounds.is_given_up or device_array.in_use:
            return self._executed(fed, execute)
        if self._before < _RUNS_BEFORE:
            self._before += 1
            self.bounds.see(measure(fed))
            return self._executed(fed, execute)
        turn = self._turns.setdefault(os.getpid(), [None])
        taken: list[None] = []
        try:
            try:
                taken.extend(map(list.pop, (turn,)))  # one call of C, so that no interrupt loses the entry
            except IndexError:
                taken.clear()  # another thread is running
            return self._run(fed, execute) if taken else self._executed(fed, execute)
        finally:
            turn.extend(taken)

    def give_up(self) -> None:
        """From now on, run the operators only."""
        self._is_given_up = True

    def _executed(self, fed, execute):
        """Run the operators."""
        try:
            return execute(self._given(fed))
        finally:  # even after an error, because some updates may have run
            was_updated(*self._updated_variables)

    def _given(self, fed):
        return {name: variable.value for name, variable in self._variables.items()} | dict(fed)

    def _run(self, fed, execute):
        if self._process != os.getpid() or not self._knows():
            self._forget()
        size = measure(fed)
        found = None if size is None else self.bounds.find(size) or self._bind(size, fed)
        if found is not None and found[0].copies_feeds and self._is_written(fed):
            return self._executed(fed, execute)  # an update changes the feed, but not the copy of it that records read
        if found is None:
            self.bounds.others += 1
            if size is None:
                self.bounds.refusal = "the kind of a feed"
            return self._executed(fed, execute)
        bound, free = found
        bound.place(self._memory, free)
        self.runs += 1
        if not bound.is_compared or is_run_both_ways(self.runs):
            if not self._is_right(bound, self._given(fed), fed, execute):
                return self._executed(fed, execute)
        try:
            stopped = bound.run(fed)
        finally:
            if self._updated:
                was_updated(updates=self._updates)
        if stopped < 0:
            if bound.draws:
                random.advance(bound.draws)
            return bound.results(fed)
        if stopped < bound.first_update:
            return self._executed(fed, execute)  # nothing has changed, and the operator raises its error
        # Earlier updates are kept, as in a run of the operators.
        expected, got = "updates whose states are valid", f"one whose kernel {bound.records.names[stopped][0]!r} raised"
        raise ProgramError("bound program", expected=expected, got=got)

    def _is_written(self, fed):
        """Return whether a feed has memory of a persistable that a run updates."""
        return not self._written_ids.isdisjoint(map(id, map(memory_of, fed.values())))

    def _bind(self, size, fed):
        """Bind a size of batch if dry runs are worth their time; return its Bound and free counts, or None."""
        given = self._given(fed)
        dry_run = functools.partial(dry_run_of, self._instructions, self._fetches, given, fed, once=self._once)
        found = self.bounds.bind(size, dry_run, self.runs)
        if found is not None and found[0].records.size > len(self._memory):
            self._memory = room(max(found[0].records.size, 2 * len(self._memory)))
        return found

    def _is_right(self, bound, given, fed, execute):
        """Run both ways on copies, which no other thread changes; return False if one way fails.

        Raise if a bit differs.  Arrays that no run updates are copied only if bits differ, because tables can be large.
        """
        fed = {name: value.copy() for name, value in fed.items()}
        for names in (self._updated, tuple(self._variables)):
            arrays = {name: rows_of(given[name]) for name in names}
            ours, theirs = ({name: copy_of(array) for name, array in arrays.items()} for _ in range(2))
            copies = {id(array): ours[name] for name, array in arrays.items()}
            values = {name: LoDTensor.wrap(copy.array) for name, copy in theirs.items()}
            if bound.run(fed, copies) >= 0:
                return False
            if bound.records.restore_constants():  # the next run would read other numbers
                self._is_given_up, self.bounds.refusal = True, "a kernel writes to a constant"
                return False
            found, (_, _, call) = bound.results(fed, copies), random.upcoming()
            try:
                wanted = execute({**given, **fed, **values})
            except Exception:  # the run itself raises it
                return False
            finally:
                random.rewind(call)
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

    def _knows(self):
        """Return whether the persistables have the values that dry runs met, and nobody changed their forms in place.

        A LoDTensor keeps its array, and equals only itself.
        """
        return self._is_begun and list(map(_value_of, self._held)) == self._values and self._forms.hold()

    def _forget(self):
        self.bounds.forget(seen=self._is_begun)
        self._process, self._memory, self._is_begun = os.getpid(), room(0), False
        self._values = list(map(_value_of, self._held))
        self._forms = Forms(map(rows_of, self._values))
        self._written_ids = set(map(id, map(memory_of, map(_value_of, self._updated_variables))))
        self._updates = updates_of(self._updated_variables)
        self._is_begun = True


_value_of = operator.attrgetter("value")


def _first_difference(some, others):
    """Return the number of the first pair of values whose bits differ, or None."""
    pairs = enumerate(zip(some, others, strict=True))
    return next((n for n, (a, b) in pairs if bits_of_value(a) != bits_of_value(b)), None)
