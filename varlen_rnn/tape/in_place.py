"""Update Variables in place, after checking all of them: an optimizer's step updates all parameters or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from varlen_rnn.errors import InputError, ProgramError
from varlen_rnn.runtime import device_array
from varlen_rnn.tape.gradient import was_updated
from varlen_rnn.tape.modes import RECORDER
from varlen_rnn.tape.operator import find
from varlen_rnn.tape.places import check_places
from varlen_rnn.tape.run import check_in_place, raise_from
from varlen_rnn.tape.spec import Symbol, describe
from varlen_rnn.tape.variable import apply, as_variable


def prepared(op_type: str, groups: Mapping[str, Sequence[Any]], **attrs: Any) -> Callable[[], None]:
    """Check groups of inputs, whose keys name them in errors; return a function that updates each group in place."""
    op, is_recording = find(op_type), RECORDER.get() is not None
    ready = []
    for name, given in groups.items():
        try:
            variables = [as_variable(value) for value in given]
            values = [variable.value for variable in variables]
            op.specs([describe(value) for value in values], attrs)
            if device_array.in_use:
                check_places(op, values)
            check_in_place(op, values)
            if not is_recording and any(isinstance(value, Symbol) for value in values):
                raise ProgramError(op_type, expected="Variables with values", got="a variable of a program")
        except InputError as error:
            raise type(error)(f"{name}, {error}") from error
        ready.append((variables, values))

    def run_all() -> None:
        for variables, values in ready:
            if is_recording:
                apply(op_type, *variables, **attrs)
                continue
            try:
                op.forward(*values, **attrs)
            except Exception as error:
                raise_from(op, values, error)
            finally:  # even after an interrupt
                for position in op.in_place:
                    was_updated(variables[position])

    return run_all
