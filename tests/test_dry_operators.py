"""Every operator runs in dry runs, so that programs with it are bound, but those that the page on programs lists.

Each operator runs on placeholders in place of the arrays of its examples (`runtime.dry_run`).  A read of a number, and
work of NumPy between kernels, is an error then.  `python -m tests.test_dry_operators` prints why operators are refused.
"""

import re
import sys
import warnings
from pathlib import Path

import numpy as np

from varlen_rnn.program.checker import examples_of
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of
from varlen_rnn.rows.plan import SortedSeqs, plan_of_rows
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.runtime.dry_run import DryRun
from varlen_rnn.runtime.placeholder import Unbound
from varlen_rnn.tape.operator import OPERATORS

PAGE = Path(__file__).parent.parent / "docs" / "programs.md"


class Followed(DryRun):
    """A dry run that notes no calls, so that no kernel is compiled; a call still raises for arguments of no record."""

    def __init__(self):
        super().__init__()
        self.lods = {}

    def call(self, kernel, arguments):
        self._add(kernel.py_func.__name__, arguments, [], {}, [], [])

    def lod_of(self, levels, num_rows):
        """Return a LoD of placeholders; values that had one LoD get one."""
        key = tuple(level.tobytes() for level in levels)
        if key not in self.lods:
            made = [self.around(np.array(level)) for level in levels]
            for level in made:
                level.flags.writeable = False
            self.lods[key] = LoD.without_numbers(made, num_rows)
        return self.lods[key]

    def placed(self, value, keeps_numbers):
        """Return a value whose numbers are placeholders.

        Floats become float32, as most networks have, except for single numbers if `keeps_numbers`.
        """
        if isinstance(value, LoDTensor):
            array, lod = np.array(value.data), value.structure
            is_kept = array.dtype != np.float64 or (keeps_numbers and not array.ndim)
            lod = self.lod_of(levels_of(lod), lod.num_rows) if lod.num_levels else lod
            return LoDTensor.wrap(self.around(array if is_kept else array.astype(np.float32)), lod)
        if isinstance(value, SelectedRows):
            rows, numbers = self.around(np.array(value.rows)), self.around(np.array(value.value, np.float32))
            return SelectedRows.wrap(rows, numbers, value.height)
        if isinstance(value, SortedSeqs):
            return plan_of_rows(self.lod_of([value.offsets], value.total_len))
        return value


def calls_of_examples():
    """Return the calls that examples of operators and their gradients make: {operator: [(values, constants), ...]}."""
    calls = {name: [] for name in OPERATORS}

    def noted(name, forward):
        def call(*values, **constants):
            calls[name].append(([value.copy() if hasattr(value, "copy") else value for value in values], constants))
            return forward(*values, **constants)

        return call

    before = {name: op.forward for name, op in OPERATORS.items()}
    try:
        for name, op in OPERATORS.items():
            op.forward = noted(name, before[name])
        for op in OPERATORS.values():
            for trial in examples_of(op):
                _, shown = trial.apply(trial.variables())
                for output in [output for output in shown if output.requires_grad][:1]:
                    output.backward(gradient=np.ones(output.shape, output.dtype))
    finally:
        for name, op in OPERATORS.items():
            op.forward = before[name]
    return {name: found for name, found in calls.items() if found}


def refusal(op, calls):
    """Return why a dry run of one of the calls fails, or None if all run."""
    for values, constants in calls:
        dry_run = Followed()
        try:
            op.forward(*[dry_run.placed(value, bool(op.in_place)) for value in values], **constants)
        except Unbound as error:
            return str(error)
        except Exception as error:  # NumPy's own errors, because it cannot read a placeholder
            return f"{type(error).__name__}: {str(error)[:90]}"
    return None


def refusals():
    """Return why each operator is refused, by name, without operators that run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {name: refusal(OPERATORS[name], calls) for name, calls in sorted(calls_of_examples().items())}
    return {name: reason for name, reason in found.items() if reason is not None}


def listed():
    """Return the operators that the page lists as refused."""
    _, section = PAGE.read_text().split("## Operators that are not bound")
    return set(re.findall(r"`(\w+)`", section.split("\n## ")[0]))


def test_programs_with_any_operator_are_bound_but_those_that_the_page_lists():
    found = refusals()
    # The examples of `topk` take few elements.
    assert found.keys() - {f"{name}_grad" for name in found} == listed() - {"topk"}


if __name__ == "__main__":
    sys.stdout.writelines(f"{name:32}{reason}\n" for name, reason in refusals().items())
