"""Decide which operators of a step run once for all rows, before or after the loop, and which run at every step.

A step depends on the step before it only through its memories (states).  Operators that do not depend on memories run
before the loop, on the rows of all steps.  Operators whose results neither memories nor the loop read run after it.  In
a step `h = tanh(x @ w + h @ u)`, `x @ w` runs before the loop as one product; `h @ u`, the sum and tanh run inside it.
In the gradient, the sum of the gradient of `w` over the steps is one product after the loop.
"""

from typing import NamedTuple

from varlen_rnn.tape.axes import Known, follow


class Stages(NamedTuple):
    """The operators of a block, divided by the stage in which they run; a position is the number of a variable."""

    before: list
    loop: list  # pairs (Instruction, True if it needs no checks)
    after: list
    in_rows: frozenset[int]  # positions of values that have one row per sequence alive
    totals: frozenset[int]  # positions of values that are sums over all steps
    known: dict[int, Known | None]  # specs by position; None if they differ from step to step

    def read_in_loop(self):
        """Return the positions of the values that the loop reads."""
        return {place for instruction, _ in self.loop for place in instruction.inputs}


def arrange(instructions, given, late, carried, summed):
    """Return the stages of a block.

    given: the spec of each argument of a step, by position; None if nothing is known
    late: positions of arguments that are known only when their step runs
    carried: positions of values that a step hands to the next step
    summed: positions of values whose sum over steps is all that the caller needs
    """
    return _Arrangement(instructions, given, late, set(carried), set(summed)).stages()


def _is_rows(known):
    return known is not None and known.axis == 0


def _is_fixed(known):
    return known is not None and known.axis is None


class _Arrangement:
    def __init__(self, instructions, given, late, carried, summed):
        self.all, self.known, self.carried, self.summed = instructions, dict(given), carried, summed
        self.traits = [self._follow(instruction) for instruction in instructions]
        self.early = {place for place, known in given.items() if known is not None and place not in late}
        # If an operator updates an array in place, hoist nothing, because any other operator could read that array.
        self.in_order = any(instruction.op.in_place for instruction in instructions)
        self.is_early = [self._runs_before(number) for number in range(len(instructions))]

    def _follow(self, instruction):
        """Record the specs of an operator's outputs, and return its trait."""
        given = [self.known.get(place) for place in instruction.inputs]
        trait, found = follow(instruction.op, instruction.attrs, given)
        if found is None or any(known is None or known.axis not in (None, 0) for known in found):
            trait, found = None, [None] * len(instruction.outputs)
        self.known.update(zip(instruction.outputs, found, strict=True))
        return trait

    def _is_regular(self, number):
        """Return whether the sizes of an operator's outputs are known for any number of rows."""
        return None not in [self.known[place] for place in self.all[number].outputs]

    def _runs_before(self, number):
        inputs, outputs = self.all[number].inputs, self.all[number].outputs
        is_same = self.traits[number] == "same" and not self.summed & set(outputs)
        if self.in_order or not (self.early.issuperset(inputs) and (is_same or self.traits[number] == "each")):
            return False
        self.early.update(outputs)
        return True

    def stages(self):
        """Return the Stages; an operator runs after the loop if it can, and if no operator in the loop reads it."""
        held = set(range(len(self.all))) if self.in_order else set()
        late, wrong = self._after(held)
        while wrong is not None:
            held.add(wrong)
            late, wrong = self._after(held)
        numbered = list(enumerate(self.all))
        inside = [(n, one) for n, one in numbered if not self.is_early[n] and n not in late]
        # The results of this package's own operators need no checks.
        is_ours = lambda one: one.op.forward.__module__.startswith("varlen_rnn.")
        return Stages(
            [one for n, one in numbered if self.is_early[n]],
            [(one, self._is_regular(n) and is_ours(one)) for n, one in inside],
            [one for n, one in numbered if n in late],
            frozenset(place for place, known in self.known.items() if _is_rows(known)),
            frozenset(self.totals),
            self.known,
        )

    def _after(self, held):
        """Return the numbers of the operators to run after the loop, and None.

        If one of these operators cannot run after the loop, return the list so far and the number of this operator.
        `held` lists operators that must stay in the loop.  Operators whose results they read stay in the loop, too.
        """
        needed, late = set(self.carried), []
        for number in range(len(self.all) - 1, -1, -1):
            if not self.is_early[number]:
                if number in held or not self._is_regular(number) or needed.intersection(self.all[number].outputs):
                    needed.update(self.all[number].inputs)
                else:
                    late.append(number)
        self.totals = set()
        for number in reversed(late):
            outputs = self.all[number].outputs
            if self._is_total(number):
                self.totals.update(outputs)
            elif self.summed.intersection(outputs) or not (self.traits[number] == "each" and self._are_whole(number)):
                return late, number
        return frozenset(late), None

    def _are_whole(self, number):
        return all(_is_rows(self.known[place]) or place in self.early for place in self.all[number].inputs)

    def _is_total(self, number):
        """Return whether one run of an operator, on all rows or on sums over steps, gives the sum of its results."""
        op, _, inputs, outputs, *_ = self.all[number]
        if not self.summed or not all(_is_fixed(self.known[place]) for place in outputs):
            return False
        sums = [place in self.totals for place in inputs]
        if not any(sums):
            return self.traits[number] == "sum" and self._are_whole(number)
        given = [self.known[place].specs[0] is not None for place in inputs]  # whether each input is given
        linear = [is_given and op.is_linear_in(position) for position, is_given in enumerate(given)]
        others = [place in self.early for place, is_sum in zip(inputs, sums, strict=True) if not is_sum]
        return sums == linear and all(others)
