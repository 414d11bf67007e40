"""What an operator is: inference, forward, and the operators of its gradient; one table for all."""

from collections.abc import Callable
from typing import NamedTuple

from varlen_rnn.errors import ProgramError


class Op(NamedTuple):
    """An operator.

    Attributes
    ----------
    type : str
    inputs : tuple of str
        Names for error messages; a last name that begins with `*` takes all inputs that follow, and a name that ends
        with `?` may be missing: None.
    infer : callable
        `infer(*descs, **attrs) -> list of TensorDesc`, one an output; raises on what does not fit.  A missing input's
        description is None.
    forward : callable
        `forward(*values, **attrs) -> list of values`, one an output.
    grad : callable, optional
        `grad(inputs, outputs, d_outputs, **attrs) -> list`, one Variable or None an input.  It applies operators, so
        the same rule serves values and descriptions.  `d_outputs` holds None where no gradient arrived.
    """

    type: str
    inputs: tuple[str, ...]
    infer: Callable
    forward: Callable
    grad: Callable | None = None

    def input_name(self, position):
        """Return the name of an input for error messages."""
        name = self._declared(position).rstrip("?")
        return f"{name[1:]}[{position - len(self.inputs) + 1}]" if name.startswith("*") else name

    def may_miss(self, position):
        """Return whether an input may be None."""
        return self._declared(position).endswith("?")

    def _declared(self, position):
        return self.inputs[min(position, len(self.inputs) - 1)]


_OPS = {}


def register(op):
    """Add an operator to the table."""
    if op.type in _OPS:
        raise ProgramError("operator", expected="a new name", got=repr(op.type))
    _OPS[op.type] = op
    return op


def find(op_type):
    """Return the operator of a name."""
    if op_type not in _OPS:
        raise ProgramError("operator", expected="one that is registered", got=repr(op_type))
    return _OPS[op_type]
