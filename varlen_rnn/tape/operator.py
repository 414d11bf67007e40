"""What an operator is: inference, forward, and the operators of its gradient; one table for all."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from varlen_rnn.errors import ProgramError

_NOTHING = MappingProxyType({})


# No NamedTuple: reading its attributes takes several times as long, and every application of an operator reads some.
@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """An operator.

    Attributes
    ----------
    type : str
    inputs : tuple of str
        Names of places; a last name that begins with `*` takes all inputs that follow, and those of a last name that
        ends with `?` may be missing: None.
    infer : callable
        `infer(*specs, **attrs) -> list of TensorSpec`, one an output; raises on what does not fit.  A missing input's
        spec is None.  With sizes of -1 it serves descriptions, with those of values it is the check before `forward`.
    forward : callable
        `forward(*values, **attrs) -> list of values`, one an output.  No value that passed `infer` may make it read or
        write out of bounds: what only the values tell (ids, LoDs, plans), it checks itself.
    grad : callable, optional
        `grad(inputs, outputs, d_outputs, **attrs) -> list`, one Variable or None an input.  It applies operators, so
        the same rule serves values and descriptions.  `d_outputs` holds None where no gradient arrived.
    outputs : tuple of str
        Names of places, as those of the inputs.
    attrs : mapping of str to str
        The constants and their kinds, those of `program.attrs`.
    in_place : tuple of int
        Of an operator that updates: the position of the input that each output is.
    inference : mapping
        Constants that `prune` sets: no dropout, nothing kept for a gradient.
    overwrites : callable, optional
        `overwrites(number of inputs, **attrs) -> positions` of inputs whose memory the operator uses for its outputs.
        In a program it gets copies, unless it is `name_grad`, alone reads them, and `name` made them.
    shortcut : callable, optional
        `shortcut(values, **attrs) -> list of values, or None`: inference and forward in one for values as they mostly
        are, where descriptions take longer than the checks.  It refuses, by None, whatever `infer` or `forward` would,
        and may refuse more: the values then go the long way, which says what is wrong with them, if anything.
    places : callable, optional
        `places(number of inputs, number of outputs, **attrs) -> inputs, outputs`: names of places for descriptions, of
        an operator whose constants decide what stands where.
    """

    type: str
    inputs: tuple[str, ...]
    infer: Callable
    forward: Callable
    grad: Callable | None = None
    outputs: tuple[str, ...] = ("out",)
    attrs: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    in_place: tuple[int, ...] = ()
    inference: Mapping[str, object] = field(default_factory=lambda: _NOTHING)
    overwrites: Callable | None = None
    shortcut: Callable | None = None
    places: Callable | None = None

    def input_name(self, position):
        """Return the name of an input for error messages."""
        name = _declared(self.inputs, position).rstrip("?")
        return f"{name[1:]}[{position - len(self.inputs) + 1}]" if name.startswith("*") else name

    def missing(self, inputs):
        """Return the position of the first input that is None and may not be, or None."""
        last_may_miss = self.inputs and self.inputs[-1].endswith("?")
        required = inputs[: len(self.inputs) - 1] if last_may_miss else inputs
        return required.index(None) if None in required else None

    def by_place(self, inputs, outputs, attrs):
        """Return the `(place, names)` pairs of an operator's inputs, and those of its outputs."""
        places = self._places(len(inputs), len(outputs), attrs)
        return _by_place(places[0], inputs), _by_place(places[1], outputs)

    def output_places(self, num_inputs, num_outputs, attrs):
        """Return the place of each output, with a number where a place takes several."""
        _, places = self._places(num_inputs, num_outputs, attrs)
        if len(places) == num_outputs and not places[-1].startswith("*"):
            return places
        pairs = _by_place(places, range(num_outputs))
        return [place if len(inside) == 1 else f"{place}_{k}" for place, inside in pairs for k in range(len(inside))]

    def _places(self, num_inputs, num_outputs, attrs):
        return (self.inputs, self.outputs) if self.places is None else self.places(num_inputs, num_outputs, **attrs)


def _declared(places, position):
    return places[min(position, len(places) - 1)]


def _by_place(places, names):
    """Return `(place, names)` pairs of positional names: the last place takes the rest if it begins with `*`."""
    pairs = []
    for number, place in enumerate(places):
        end = len(names) if place.startswith("*") else number + 1
        pairs.append((place.strip("*?"), tuple(names[number:end])))
    return pairs


_OPS = {}


def register(op):
    """Add an operator to the table."""
    if op.type in _OPS:
        raise ProgramError("operator", expected="a new name", got=repr(op.type))
    if any(name.endswith("?") for name in op.inputs[:-1]):
        raise ProgramError(f"operator {op.type!r}", expected="only a last input that may be missing", got=op.inputs)
    if op.in_place and op.grad:
        raise ProgramError(f"operator {op.type!r}", expected="an update, or a gradient", got="both")
    if op.in_place and len(op.in_place) != len(op.outputs):
        raise ProgramError(f"operator {op.type!r}, in_place", expected="an input for each output", got=op.in_place)
    _OPS[op.type] = op
    return op


def find(op_type):
    """Return the operator of a name."""
    op = _OPS.get(op_type)
    if op is None:
        raise ProgramError("operator", expected="one that is registered", got=repr(op_type))
    return op
