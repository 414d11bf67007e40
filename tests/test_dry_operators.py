"""Every operator runs in dry runs, so that programs with it are bound, but those that the page on programs lists.

Each operator runs on placeholders in place of the arrays of its examples (`runtime.dry_run`).  A read of a number, and
work of NumPy between kernels, is an error then.  `python -m tests.test_dry_operators` prints why operators are refused.
"""

import functools
import re
import sys
import warnings
from pathlib import Path

import numpy as np

from varlen_rnn.program.checker import examples_of
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of
from varlen_rnn.rows.plan import SortedSeqs, plan_of_rows
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.runtime.dry_run import DryRun, _forms
from varlen_rnn.runtime.numba_internals import address_of_code
from varlen_rnn.runtime.placeholder import Unbound
from varlen_rnn.tape.operator import OPERATORS

PAGE = Path(__file__).parent.parent / "docs" / "programs.md"


class Followed(DryRun):
    """A dry run that notes kernels instead of calls, so that none is compiled; arguments of no record still raise.

    kernels: {a kernel and the kinds of its arguments: Numba's types of the arguments}
    """

    def __init__(self):
        super().__init__()
        self.lods, self.kernels = {}, {}

    def call(self, kernel, arguments):
        kinds = [kernel]
        self._add(kernel.py_func.__name__, arguments, [], {}, [], kinds)
        if tuple(kinds) not in self.kernels:
            self.kernels[tuple(kinds)] = tuple(map(kernel.typeof_pyval, _forms(arguments)))

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


@functools.cache
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
    """Return why a dry run of one of the calls fails, or None if all run; and the kernels, as `Followed` notes them."""
    kernels = {}
    for values, constants in calls:
        dry_run = Followed()
        try:
            op.forward(*[dry_run.placed(value, bool(op.in_place)) for value in values], **constants)
        except Unbound as error:
            return str(error), kernels
        except Exception as error:  # NumPy's own errors, because it cannot read a placeholder
            return f"{type(error).__name__}: {str(error)[:90]}", kernels
        kernels |= dry_run.kernels
    return None, kernels


@functools.cache
def dry_runs():
    """Return what `refusal` returns for each operator, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: refusal(OPERATORS[name], calls) for name, calls in sorted(calls_of_examples().items())}


def refusals():
    """Return why each operator is refused, by name, without operators that run."""
    return {name: reason for name, (reason, _) in dry_runs().items() if reason is not None}


def listed():
    """Return the operators that the page lists as refused."""
    _, section = PAGE.read_text().split("## Operators that are not bound")
    return set(re.findall(r"`(\w+)`", section.split("\n## ")[0]))


def test_programs_with_any_operator_are_bound_but_those_that_the_page_lists():
    found = refusals()
    # The examples of `topk` take few elements.
    assert found.keys() - {f"{name}_grad" for name in found} == listed() - {"topk"}


def test_no_kernel_of_a_bound_operator_allocates_memory():
    kernels = {key: types for _, found in dry_runs().values() for key, types in found.items()}
    allocating = set()
    for (kernel, *_), types in kernels.items():
        address_of_code(kernel, types)
        if b"NRT_MemInfo_alloc" in kernel._cache._path(types).read_bytes():  # Numba's name of functions that allocate
            allocating.add(kernel.py_func.__name__)
    # The memory for a sequence of CTC is the product of its steps and its labels, which no record can ask for.
    assert len(kernels) > 200
    assert allocating == {"ctc_cpu"}


if __name__ == "__main__":
    sys.stdout.writelines(f"{name:32}{reason}\n" for name, reason in refusals().items())
