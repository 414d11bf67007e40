"""Which operators a dry run can note: `python -m tests.native_census`.

Each operator runs on placeholders in place of the arrays of its examples (`runtime.dry_run`), so that a read of a
number, and work of NumPy between kernels, is an error.  An operator counts as native if all its examples run.
"""

import warnings

import numpy as np

from varlen_rnn.program.checker import examples_of
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.runtime.dry_run import DryRun
from varlen_rnn.runtime.placeholder import Unbound
from varlen_rnn.tape.operator import OPERATORS


def placed(value, dry_run, keeps_numbers):
    """Return a value whose numbers are placeholders; a LoD, the rows of sparse gradients and plans stay as they are.

    Floats become float32, as most networks have, except for single numbers if `keeps_numbers`.
    """
    if isinstance(value, LoDTensor):
        array = np.array(value.data)
        is_kept = array.dtype != np.float64 or (keeps_numbers and not array.ndim)
        return LoDTensor.wrap(dry_run.around(array if is_kept else array.astype(np.float32)), value.structure)
    if isinstance(value, SelectedRows):
        return SelectedRows.wrap(value.rows, dry_run.around(np.array(value.value, np.float32)), value.height)
    return value


def calls_of_examples(names=None):
    """Return the calls that examples of operators and their gradients make: {operator: [(values, constants), ...]}.

    `names` has the operators; None stands for all, and the gradient of one is found by its own operator.
    """
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
        for op in [op for name, op in OPERATORS.items() if names is None or name in names]:
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
        dry_run = DryRun()
        try:
            op.forward(*[placed(value, dry_run, bool(op.in_place)) for value in values], **constants)
        except Unbound as error:
            return str(error)
        except Exception as error:  # NumPy's own errors, because it cannot read a placeholder
            return f"{type(error).__name__}: {str(error)[:90]}"
    return None


def census():
    """Return why each operator is refused, by name; None if it is not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: refusal(OPERATORS[name], calls) for name, calls in sorted(calls_of_examples().items())}


def main():
    """Print the operators that are refused, each with the reason, and how many are not."""
    found = census()
    for name, reason in found.items():
        if reason is not None:
            print(f"{name:28} {reason}")
    print(f"{sum(reason is None for reason in found.values())} of {len(found)} operators are native")


if __name__ == "__main__":
    main()
