"""A trace: the operations that equations apply to scalars, in the order in which they ran, without duplicates.

The equation `y = x * x + 1` of one gate's input becomes four nodes; the last one is `y`:

    0  x         of gate "a"
    1  multiply  (0, 0)
    2  number    1.0
    3  add       (1, 2)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from varlen_rnn.cells.derivation.operations import COMPARISONS, NUM_OPERANDS, OPERATIONS
from varlen_rnn.errors import ProgramError, shown
from varlen_rnn.kernels.symbol import Symbol

_POWERS = range(1, 9)
# The functions of `varlen_rnn.cells` for equations.
FUNCTIONS = (
    "sigmoid", "tanh", "relu", "exp", "expm1", "log", "log1p", "sqrt", "where", "maximum", "minimum", "clip", "norm",
    "multiply_add", "constant",
)  # fmt: skip
_LARGEST = float(np.finfo(np.float32).max)


class EquationError(ProgramError):
    """The equations of a cell use an operation or a signature that `cell` does not support."""


class Node(NamedTuple):
    """A node of a trace: an operation, or a leaf.

    op: a key of OPERATIONS, or the kind of a leaf: number, x, h, of, prev, vector, row, norm, d_state, d_operand,
        d_norm
    operands: the numbers of the nodes to which the operation is applied
    `what`: the value of a number; the name (or for a state its position) of any other leaf; None for an operation
    """

    op: str
    operands: tuple[int, ...]
    what: Any = None


class Scalar(Symbol):
    """A node of a trace as equations see it: a number of one unit, whose value is not known yet."""

    __slots__ = ("number", "trace")
    number: int
    trace: Trace

    def __init__(self, trace: Trace, number: int) -> None:
        self.trace, self.number = trace, number

    def apply(self, operation: str, *operands: Any) -> Any:
        """Return the result of an operation."""
        return self.trace.apply(operation, *operands)

    def _refuse(self, *_: Any) -> Any:
        hint = "it has no value yet: use where(condition, a, b), not if, and, max; tanh of varlen_rnn.cells, not math"
        expected, got = f"one of {', '.join(OPERATIONS)}", "an operation that needs the value of a scalar"
        raise EquationError("an equation", expected=expected, got=got, hint=hint)

    __bool__ = __float__ = __int__ = __index__ = __iter__ = __len__ = __eq__ = __ne__ = _refuse
    __mod__ = __matmul__ = __floordiv__ = __rpow__ = _refuse
    __hash__ = object.__hash__

    if not TYPE_CHECKING:  # Hidden, because type checkers would accept any name.

        def __getattr__(self, name):
            hint = f" (write {name} of varlen_rnn.cells: {name}(x))" if name in FUNCTIONS else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *operands: Any, **options: Any) -> Any:
        return self.apply(ufunc.__name__ if method == "__call__" and not options else method, *operands)

    def __add__(self, other: Any) -> Scalar:
        return self.trace.apply("add", self, other)

    def __radd__(self, other: Any) -> Scalar:
        return self.trace.apply("add", other, self)

    def __sub__(self, other: Any) -> Scalar:
        return self.trace.apply("subtract", self, other)

    def __rsub__(self, other: Any) -> Scalar:
        return self.trace.apply("subtract", other, self)

    def __mul__(self, other: Any) -> Scalar:
        return self.trace.apply("multiply", self, other)

    def __rmul__(self, other: Any) -> Scalar:
        return self.trace.apply("multiply", other, self)

    def __truediv__(self, other: Any) -> Scalar:
        return self.trace.apply("divide", self, other)

    def __rtruediv__(self, other: Any) -> Scalar:
        return self.trace.apply("divide", other, self)

    def __lt__(self, other: Any) -> Scalar:
        return self.trace.apply("less", self, other)

    def __le__(self, other: Any) -> Scalar:
        return self.trace.apply("less_equal", self, other)

    def __gt__(self, other: Any) -> Scalar:
        return self.trace.apply("greater", self, other)

    def __ge__(self, other: Any) -> Scalar:
        return self.trace.apply("greater_equal", self, other)

    def __neg__(self) -> Scalar:
        return self.trace.apply("negative", self)

    def __abs__(self) -> Scalar:
        return self.trace.apply("absolute", self)

    def __pow__(self, power: Any) -> Any:
        if power not in _POWERS:
            hint = "sqrt(x) is the square root, and exp(p * log(x)) is any power p of a positive x"
            raise EquationError("a power", expected="an integer from 1 to 8", got=shown(power), hint=hint)
        half = power // 2
        return self if power == 1 else self**half * self ** (power - half) if half > 1 else self * self ** (power - 1)


class Trace:
    """Operations in an order in which they can run: `nodes[k]` reads nodes before it."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._known: dict[Any, int] = {}

    def scalar(self, number: int) -> Scalar:
        """Return node `number` as a Scalar."""
        return Scalar(self, number)

    def node(self, op: str, *operands: int, what: Any = None) -> Scalar:
        """Return the Scalar of a node; append the node unless the trace has it already."""
        order = tuple(sorted(operands)) if op in ("add", "multiply") else operands
        key = op, order, type(what), what
        if key not in self._known:
            self._known[key] = len(self.nodes)
            self.nodes.append(Node(op, operands, what))
        return self.scalar(self._known[key])

    def number_of(self, value: Any) -> int:
        """Return the number of a Scalar's node, or of the node of a constant, which is appended if it is missing."""
        if isinstance(value, Scalar):
            return value.number
        if not isinstance(value, (int, float, np.integer, np.floating)) or isinstance(value, bool):
            hint = "a parameter with one number per unit is a vector: name it after the * of the signature"
            hint = "an equation ends with return, the output and the other states" if value is None else hint
            raise EquationError("an equation", expected="numbers", got=type(value).__name__, hint=hint)
        if not abs(float(value)) <= _LARGEST:
            expected = f"a constant of at most {_LARGEST:.3g}, the largest float32"
            raise EquationError("an equation", expected=expected, got=shown(value))
        return self.node("number", what=float(value)).number

    def constant(self, value: float) -> Scalar:
        """Return a constant as a Scalar."""
        return self.scalar(self.number_of(value))

    def value(self, number: int) -> float | None:
        """Return the value of node `number` if it is a constant, else None."""
        return self.nodes[number].what if self.nodes[number].op == "number" else None

    def is_bounded(self, number: int) -> bool:
        """Return whether the value of a node is from -1 to 1, as sigmoid and tanh are; -1 stands for no node."""
        return number < 0 or self.nodes[number].op in ("sigmoid", "tanh")

    def apply(self, op: str, *operands: Any) -> Scalar:
        """Return the result of an operation, simplified if that changes no bit except signs of zero and NaN."""
        if op not in OPERATIONS or len(operands) != NUM_OPERANDS[op]:
            got = f"{op} of {len(operands)} operands"
            raise EquationError("an equation", expected=f"one of {', '.join(OPERATIONS)}", got=got)
        numbers = [self.number_of(operand) for operand in operands]
        values = [self.value(number) for number in numbers]
        if None not in values and op not in COMPARISONS:
            return self.constant(float(OPERATIONS[op].on_arrays(*values)))
        simple = self._simplified(op, numbers, values)
        return self.node(op, *numbers) if simple is None else simple

    def _simplified(self, op: str, numbers: list[int], values: list[float | None]) -> Scalar | None:
        """Return a simpler Scalar that equals an operation, such as x for x + 0, or None if there is none."""
        scalars, inner = [self.scalar(k) for k in numbers], [self.nodes[k] for k in numbers]
        first, last = scalars[0], scalars[-1]
        match op, values[0], values[-1]:
            case ("add", 0, _) | ("multiply", 1, _):
                return last
            case ("add" | "subtract", _, 0) | ("multiply" | "divide", _, 1):
                return first
            case ("subtract", 0, _) | ("multiply", -1, _):
                return -last
            case "multiply", _, -1:
                return -first
        negated = [self.scalar(node.operands[0]) if node.op == "negative" else None for node in inner]
        if op == "negative":
            return negated[0]
        if op in ("add", "subtract") and negated[1] is not None:
            return first - negated[1] if op == "add" else first + negated[1]
        if op == "add" and negated[0] is not None:
            return last - negated[0]
        if op in ("multiply", "divide") and negated[0] is not None:
            return -self.apply(op, negated[0], last)
        return None

    def reach(self, roots: Iterable[int], given: Collection[int] = ()) -> list[int]:
        """Return the numbers of `roots` and of all nodes below them, ascending; do not look below `given` nodes."""
        found, todo = set(), list(roots)
        while todo:
            k = todo.pop()
            if k not in found:
                found.add(k)
                todo += self.nodes[k].operands if k not in given else ()
        return sorted(found)

    def evaluate(
        self, given: Mapping[int, Any], roots: Iterable[int], frozen: Mapping[int, Any] | None = None
    ) -> dict[int, Any]:
        """Return the values of nodes, computed by NumPy.

        `given` maps leaves to their values.  `frozen` maps nodes of `constant()` to values used instead of computed
        ones.
        """
        values = dict(given)
        for k in self.reach(roots, values):
            if k in values:
                continue
            op, operands, what = self.nodes[k]
            if op == "number":
                values[k] = np.float64(what)
            elif op == "constant" and frozen is not None:
                values[k] = frozen[k]
            else:
                values[k] = OPERATIONS[op].on_arrays(*(values[a] for a in operands))
        return values


class Row:
    """The annotation of an argument of equations that is an input of each row and is not projected, such as a mask."""


def norm(value: Any) -> Any:
    """Return a value normalised over the units of its row: subtract their mean, divide by their standard deviation.

    The variance gets 1e-5 added, as in PyTorch's `LayerNorm`.  The equations after a norm are a phase of their own.
    """
    if not isinstance(value, Scalar):
        raise EquationError("norm", expected="a value of the equations, such as a gate or state", got=shown(value))
    return value.trace.node("norm", value.number)


class Gate(Scalar):
    """A gate, as equations see it: the sum of its projected input and its recurrent product.

    Each part gets a node in the trace when it is first read.  `is_row` says whether the gate arrives projected, as an
    input of the row.
    """

    __slots__ = ("is_row", "name")

    def __init__(self, trace: Trace, name: str, is_row: bool) -> None:
        self.trace, self.name, self.is_row = trace, name, is_row

    @property
    def x(self) -> Scalar:
        """The projected input."""
        return self.trace.node("row" if self.is_row else "x", what=self.name)

    @property
    def h(self) -> Scalar:
        """The product with the output of the step before."""
        return self.trace.node("h", what=self.name)

    @property
    def number(self) -> int:  # type: ignore[override]
        """The number of the node of the sum `x + h`."""
        return (self.x + self.h).number

    def of(self, value: Any) -> Scalar:
        """Return the gate's product with a value of this step, instead of the output of the step before."""
        return self.trace.node("of", self.trace.number_of(value), what=self.name)
