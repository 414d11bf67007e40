"""The record of a declared operator, and the table of all operators by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from varlen_rnn.errors import InputError, ProgramError, shown
from varlen_rnn.runtime.precision import fixed_at
from varlen_rnn.tape.spec import TensorSpec

T = TypeVar("T")
TRAITS = ("each", "sum", "sequence", "batch")  # values of an operator's `rows`
_NOTHING: Mapping[str, Any] = MappingProxyType({})
# Errors of an operator's functions that are raised as they are, because they already name the input or the fault.
PASSED_ON = (InputError, MemoryError, Warning)


# Not a NamedTuple, because its attributes take several times as long to read, and each application reads some.
@dataclass(slots=True, eq=False)
class Op:
    """An operator, as `declare.operator` makes it; `vr.operator` documents the fields that are not described here.

    A last name in `inputs` or `outputs` that begins with `*` takes all further inputs or outputs; an input whose name
    ends with `?` can be missing.  The modules that declare operators set `shortcut`, `divisor` and `finds` afterwards.

    Attributes
    ----------
    forward : callable
        `forward(*values, **attrs)` returns a value or an array, or a tuple of these; `tape.run` gives arrays their LoD.
    infer : callable
        `infer(*specs, **attrs)` returns a TensorSpec, or several, one per output.
    grad : callable, optional
        `grad(inputs, outputs, d_outputs, **attrs)` returns a list: one Variable or None per input.
    passed_to : frozenset of int, optional
        Positions of the inputs for which `grad` can return a gradient; None if for all.  Other inputs, such as an input
        of which only the LoD is read, never make a result require a gradient.
    shortcut : callable, optional
        `shortcut(values, **attrs)` does the work of `infer` and `forward` at once for the most common values, and
        returns a list of values.  It returns None if `infer` or `forward` would refuse, so that they raise.
    divisor : callable, optional
        For a sum or mean over rows whose result is a single number: `divisor(*values, **attrs)` returns the total
        weight that a mean was divided by, or None for a sum.  Ranks (processes that each compute a part of a batch) use
        it to combine their results.
    precision : str, optional
        The precision of products at which its functions run (`at`); None if they run at the precision in force.
    finds : mapping
        Maps a constant that names an object, such as a cell, to the function that finds the object.
    """

    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    forward: Callable
    infer: Callable
    grad: Callable | None = None
    passed_to: frozenset[int] | None = None
    grad_operator: str | None = None  # the operator that `grad` applies, if it was declared as a function over values
    attrs: Mapping[str, str] = field(default_factory=lambda: _NOTHING)  # the constants' kinds; see `tape.constants`
    intermediate: frozenset = frozenset()
    in_place: tuple[int, ...] = ()  # if it updates inputs: for each output, the position of its input
    inference: Mapping[str, object] = field(default_factory=lambda: _NOTHING)
    overwrites: Callable | None = None
    shares: bool = False
    shortcut: Callable | None = None
    places: Callable | None = None
    cost: Callable | None = None
    rows: str | Callable | None = None
    linear: tuple[str, ...] = ()
    scalar: Callable | None = None
    ufunc: tuple[np.ufunc, ...] = ()
    onnx: str | None = None
    multiplies: bool = False
    divisor: Callable | None = None
    finds: Mapping[str, Callable] = field(default_factory=lambda: _NOTHING)
    examples: Callable | None = None  # `examples(rng)` yields pairs (inputs, attrs)
    doc: str = ""
    precision: str | None = None
    fixed: dict[str, Op] = field(init=False, repr=False, default_factory=dict)  # by precision

    def __setattr__(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
        object.__setattr__(self, "fixed", {})  # they have the old value

    def at(self, precision: str) -> Op:
        """Return the operator with its functions and its gradient fixed at a precision of products.

        It is the operator itself if it multiplies nothing, or its precision is already fixed.  The tape and programs
        hold operators at a precision, so that a gradient or a later run cannot have another one.
        """
        if not self.multiplies or self.precision is not None:
            return self
        if (found := self.fixed.get(precision)) is None:
            names = ("forward", "shortcut", "grad")
            fixed: Any = {name: fixed_at(precision, f) for name in names if (f := getattr(self, name)) is not None}
            found = self.fixed.setdefault(precision, replace(self, precision=precision, **fixed))
        return found

    def is_linear_in(self, position: int) -> bool:
        """Return whether the operator is declared to be linear in the input at `position`."""
        return self.inputs[min(position, len(self.inputs) - 1)].strip("*?") in self.linear

    def passes_to(self, position: int) -> bool:
        """Return whether a gradient can pass to the input at `position`."""
        return self.passed_to is None or min(position, len(self.inputs) - 1) in self.passed_to

    def input_name(self, position: int) -> str:
        """Return the name of an input for error messages."""
        name = self.inputs[min(position, len(self.inputs) - 1)].rstrip("?")
        return f"{name[1:]}[{position - len(self.inputs) + 1}]" if name.startswith("*") else name

    def missing(self, inputs: Iterable[object]) -> int | None:
        """Return the position of the first required input that is None, or None if there is no such input."""
        last = len(self.inputs) - 1
        for position, given in enumerate(inputs):
            if given is None and not self.inputs[min(position, last)].endswith("?"):
                return position
        return None

    def by_place(
        self, inputs: Sequence[T], outputs: Sequence[T], attrs: Mapping[str, Any]
    ) -> tuple[list[tuple[str, tuple[T, ...]]], list[tuple[str, tuple[T, ...]]]]:
        """Return pairs `(place, values)` for inputs and for outputs; places are entries of `Op.inputs`, `outputs`."""
        places = self._places(len(inputs), len(outputs), attrs)
        return _by_place(places[0], inputs), _by_place(places[1], outputs)

    def output_places(self, num_inputs: int, num_outputs: int, attrs: Mapping[str, Any]) -> Sequence[str]:
        """Return a name for each output: its place (`Op.outputs`), and a number if the place has several outputs."""
        _, places = self._places(num_inputs, num_outputs, attrs)
        if len(places) == num_outputs and not places[-1].startswith("*"):
            return places
        pairs = _by_place(places, range(num_outputs))
        return [place if len(inside) == 1 else f"{place}_{k}" for place, inside in pairs for k in range(len(inside))]

    def _places(
        self, num_inputs: int, num_outputs: int, attrs: Mapping[str, Any]
    ) -> tuple[Sequence[str], Sequence[str]]:
        return (self.inputs, self.outputs) if self.places is None else self.places(num_inputs, num_outputs, **attrs)

    def specs(self, inputs: Sequence[TensorSpec | None], attrs: Mapping[str, Any]) -> list[TensorSpec]:
        """Return the specs of the outputs, as a list, given the specs of the inputs; raise if these do not fit."""
        try:
            found = self.infer(*inputs, **attrs)
            if type(found) is TensorSpec:
                return [found]
            found = list(found)
        except PASSED_ON:
            raise
        except Exception as error:
            raise self.failed(error) from error
        for spec in found:
            if type(spec) is not TensorSpec:
                raise ProgramError(f"operator {self.type!r}, infer", expected="TensorSpecs", got=shown(spec))
        return found

    def failed(self, error: Exception) -> ProgramError:
        """Return a ProgramError with the operator's name for an error that one of its functions raised."""
        got = f"{type(error).__name__}: {error}"[:300]
        return ProgramError(f"operator {self.type!r}", expected="inputs that fit", got=got)


def _by_place(places: Sequence[str], names: Sequence[T]) -> list[tuple[str, tuple[T, ...]]]:
    """Return pairs `(place, names)` for names in the order of places; a last place `*x` takes all remaining names."""
    pairs = []
    for number, place in enumerate(places):
        end = len(names) if place.startswith("*") else number + 1
        pairs.append((place.strip("*?"), tuple(names[number:end])))
    return pairs


OPERATORS: dict[str, Op] = {}
UFUNCS: dict[np.ufunc, str] = {}  # the operator that each function of NumPy applies


def register(op: Op) -> None:
    """Add an operator to the table; raise if its name is taken, unless the same function declares it again."""
    former = OPERATORS.get(op.type)
    if former is not None and (_origin(former) != _origin(op) or op.forward.__name__ == "<lambda>"):
        got = f"the name of an operator that {former.forward.__module__} declared"
        raise ProgramError(f"operator {op.type!r}", expected="a new name", got=got)
    for ufunc in op.ufunc:
        if UFUNCS.get(ufunc, op.type) != op.type:
            got = f"np.{ufunc.__name__}, which belongs to the operator {UFUNCS[ufunc]!r}"
            expected = "a function of NumPy that belongs to no operator"
            raise ProgramError(f"operator {op.type!r}, ufunc", expected=expected, got=got)
    OPERATORS[op.type] = op
    UFUNCS.update(dict.fromkeys(op.ufunc, op.type))
    if former is not None and former.grad_operator:
        OPERATORS.pop(former.grad_operator, None)


def _origin(op: Op) -> tuple[str, str]:
    return op.forward.__module__, op.forward.__qualname__


def find(op_type: str) -> Op:
    """Return the operator with a name, or raise if no module declared one."""
    op = OPERATORS.get(op_type)
    if op is None:
        hint = "import the module that declares it before a program that uses it is read"
        raise ProgramError("operator", expected="the name of a declared operator", got=repr(op_type), hint=hint)
    return op
