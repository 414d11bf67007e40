"""Run the stages of a step: some operators run once for all steps, the remaining operators in a loop over the steps."""

import numpy as np

from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.plan import step_rows
from varlen_rnn.runtime.device import joined
from varlen_rnn.tape.operator import PASSED_ON
from varlen_rnn.tape.run import run


class OverSteps:
    """The values of a variable at all steps: a single value, the rows of all steps together, or a value per step.

    known: the spec of the variable at any step; None if it can differ from step to step
    same: the value if it is the same at every step, otherwise None
    steps: a list with the value of each step; None until `at_steps` splits the rows
    """

    __slots__ = ("_whole", "known", "same", "steps")

    def __init__(self, known=None, same=None, whole=None, steps=None):
        self.known, self.same, self._whole, self.steps = known, same, whole, steps

    def whole(self):
        """Return the rows of all steps, first step first, or the value if it is the same at every step."""
        if self._whole is None and self.steps is not None:
            self._whole = LoDTensor.wrap(joined([value.data for value in self.steps]))
        return self.same if self._whole is None else self._whole

    def at_steps(self, ends):
        """Return the value of each step; the rows of step t end at row `ends[t]`."""
        if self.steps is None:
            rows, begins = self._whole.data, [0, *ends[:-1]]
            self.steps = [LoDTensor.wrap(rows[begin:end]) for begin, end in zip(begins, ends, strict=True)]
        return self.steps


def rows_by_step(plan):
    """Return the positions of the rows, sorted by step, then by rank, and the end of each step's rows in this order."""
    # The positions are copied, because Numba would compile the kernels again for a read-only array.
    return step_rows(plan, reverse=False).copy(), np.cumsum(plan.batch_sizes).tolist()


def run_once(instructions, variables, stages):
    """Run operators for all steps at once, and add their results to `variables`."""
    for op, attrs, inputs, outputs, *_ in instructions:
        given = [variables[place].whole() for place in inputs]
        for place, value in zip(outputs, run(op, given, attrs), strict=True):
            known = stages.known[place]
            is_rows = place in stages.in_rows
            variables[place] = OverSteps(known, whole=value) if is_rows else OverSteps(known, same=value)


class Loop:
    """The operators that run at every step.

    variables: an OverSteps for each position; the loop adds the variables in `recorded` that it computes
    ends: the row at which each step's rows end
    arguments: positions of the variables that `run` is given
    read: positions of the values that the caller reads after each step
    recorded: positions of the values that are read after the loop
    """

    def __init__(self, stages, variables, ends, arguments, read, recorded):
        self._loop, self._arguments = stages.loop, arguments
        made = {place for instruction, _ in stages.loop for place in instruction.outputs} | set(arguments)
        self._same, self._by_step = [None] * len(variables), []
        for place in (stages.read_in_loop() | read) - made:
            variable = variables[place]
            if variable.same is None and place != len(variables) - 1:  # the last place holds None for missing inputs
                self._by_step.append((place, variable.at_steps(ends)))
            self._same[place] = variable.same
        self._recorded = []
        for place in made & recorded:
            known = stages.known[place]
            variables[place] = OverSteps(known if place in stages.in_rows else None, steps=[None] * len(ends))
            self._recorded.append((place, variables[place].steps))

    def run(self, step, given):
        """Run a step on the values `given` for its arguments; return a list with the value at each position."""
        held = self._same.copy()
        for place, values in self._by_step:
            held[place] = values[step]
        for place, value in zip(self._arguments, given, strict=True):
            held[place] = value
        for (op, attrs, inputs, outputs, overwritten, _), is_trusted in self._loop:
            values = [held[place] for place in inputs]
            for position in overwritten:
                values[position] = values[position].copy()
            results = _trust(op, values, attrs) if is_trusted else run(op, values, attrs)
            for place, result in zip(outputs, results, strict=True):
                held[place] = result
        for place, values in self._recorded:
            values[step] = held[place]
        return held


def _trust(op, values, attrs):
    """Return the outputs of an operator as `tape.run.run` does, but without checks: its inputs are known to fit."""
    try:
        given = op.forward(*values, **attrs)
    except PASSED_ON:
        raise
    except Exception as error:
        raise op.failed(error) from error
    return (given,) if type(given) is LoDTensor else given
