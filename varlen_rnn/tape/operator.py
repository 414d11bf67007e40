"""What an operator is once it is declared, and the table of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from varlen_rnn.errors import InputError, ProgramError, shown
from varlen_rnn.tape.spec import TensorSpec

T = TypeVar("T")
_NOTHING: Mapping[str, Any] = MappingProxyType({})
# Errors of an operator's functions that already say what is wrong: with an input, or with the machine.
PASSED_ON = (InputError, MemoryError, Warning)


# No NamedTuple: reading its attributes takes several times as long, and every application of an operator reads some.
@dataclass(slots=True, eq=False)
class Op:
    """An operator, as `declare.operator` makes it; `vr.operator` documents what each field is for.

    Attributes
    ----------
    type : str
        The name.
    inputs, outputs : tuple of str
        Names of places.  A last name that begins with `*` takes all that follow; what ends with `?` may be missing.
    forward : callable
        `forward(*values, **attrs)` returns a value, or a tuple of them; what is an array gets its LoD here.
    infer : callable
        `infer(*specs, **attrs)` returns a TensorSpec, or several, one per output.
    grad : callable, optional
        `grad(inputs, outputs, d_outputs, **attrs)` returns a list: one Variable or None per input.
    grad_operator : str, optional
        The name of the operator that `grad` applies, where it was declared as a function over values.
    attrs : mapping of str to str
        The constants and their kinds, those of `tape.constants`.
    intermediate : frozenset of str
        Outputs that only the gradient reads.
    in_place : tuple of int
        Of an operator that updates: the position of the input that each output is.
    inference : mapping
        Constants that `prune` sets.
    overwrites, places, cost : callable, optional
    shortcut : callable, optional
        `shortcut(values, **attrs)` returns a list of values, or None: inference and forward in one for values as they
        mostly are.  It returns None for whatever `infer` or `forward` would refuse, and the error is then theirs.  No
        option of `vr.operator`: an operator for which it pays sets it.
    examples : callable, optional
        `examples(rng)` yields `(inputs, attrs)` pairs.
    doc : str
    """

    type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    forward: Callable
    infer: Callable
    grad: Callable | None = None
    grad_operator: str | None = None
    attrs: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    intermediate: frozenset = frozenset()
    in_place: tuple[int, ...] = ()
    inference: Mapping[str, object] = field(default_factory=lambda: _NOTHING)
    overwrites: Callable | None = None
    shortcut: Callable | None = None
    places: Callable | None = None
    cost: Callable | None = None
    examples: Callable | None = None
    doc: str = ""

    def input_name(self, position: int) -> str:
        """Return the name of an input for error messages."""
        name = self.inputs[min(position, len(self.inputs) - 1)].rstrip("?")
        return f"{name[1:]}[{position - len(self.inputs) + 1}]" if name.startswith("*") else name

    def missing(self, inputs: Iterable[object]) -> int | None:
        """Return the position of the first input that is None and may not be, or None."""
        last = len(self.inputs) - 1
        for position, given in enumerate(inputs):
            if given is None and not self.inputs[min(position, last)].endswith("?"):
                return position
        return None

    def by_place(
        self, inputs: Sequence[T], outputs: Sequence[T], attrs: Mapping[str, Any]
    ) -> tuple[list[tuple[str, tuple[T, ...]]], list[tuple[str, tuple[T, ...]]]]:
        """Return the `(place, names)` pairs of an operator's inputs, and those of its outputs."""
        places = self._places(len(inputs), len(outputs), attrs)
        return _by_place(places[0], inputs), _by_place(places[1], outputs)

    def output_places(self, num_inputs: int, num_outputs: int, attrs: Mapping[str, Any]) -> Sequence[str]:
        """Return the place of each output, with a number where a place takes several."""
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
        """Return what is known of each output, as a list, from what is known of the inputs.

        Raises
        ------
        InputError
            What does not fit.
        """
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
        """Return the error of an operator whose function raised something of its own."""
        got = f"{type(error).__name__}: {error}"[:300]
        return ProgramError(f"operator {self.type!r}", expected="inputs that fit", got=got)


def _by_place(places: Sequence[str], names: Sequence[T]) -> list[tuple[str, tuple[T, ...]]]:
    """Return `(place, names)` pairs of positional names: the last place takes the rest if it begins with `*`."""
    pairs = []
    for number, place in enumerate(places):
        end = len(names) if place.startswith("*") else number + 1
        pairs.append((place.strip("*?"), tuple(names[number:end])))
    return pairs


OPERATORS: dict[str, Op] = {}


def register(op: Op) -> None:
    """Add an operator to the table; the same function declared again, as in a notebook, takes the place of the former.

    Raises
    ------
    ProgramError
        A name that is taken.
    """
    former = OPERATORS.setdefault(op.type, op)
    if former is op:
        return
    if _origin(former) != _origin(op) or op.forward.__name__ == "<lambda>":
        got = f"that of a function of {former.forward.__module__}"
        raise ProgramError(f"operator {op.type!r}", expected="a new name", got=got)
    OPERATORS[op.type] = op
    if former.grad_operator:
        OPERATORS.pop(former.grad_operator, None)


def _origin(op: Op) -> tuple[str, str]:
    return op.forward.__module__, op.forward.__qualname__


def find(op_type: str) -> Op:
    """Return the operator of a name.

    Raises
    ------
    ProgramError
        A name that no module declared.
    """
    op = OPERATORS.get(op_type)
    if op is None:
        hint = "import the module that declares it before a program that uses it is read"
        raise ProgramError("operator", expected="one that is declared", got=repr(op_type), hint=hint)
    return op
