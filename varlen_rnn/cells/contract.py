"""A cell: the equations of one unit of one sequence at one step, with the names of gates, states and slots.

A cell knows no device, no batch and no LoD.  `recurrence/` runs the batch, with one code for all cells.  Its CPU loops
compile a cell's two functions as loops over a scratch and call them by address; its CUDA kernels inline them.

For its unit, a step sees the projected inputs `x` (one per gate: `W_ih x_t + b_ih`), the recurrent products `h` (one
per gate: `W_hh h' + b_hh`) and the previous states `prev`.  It returns the new states and its slots: the numbers that
every row saves for the gradient.  The gradient pass overwrites the slots with the gradients of the gates.  The
gradients of weights read these as matrices, so slots are ordered: gradients of projected inputs are neighbours, and so
are gradients of recurrent products.
"""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from varlen_rnn.cells.derivation.derive import OF_INPUTS, Derived, Step
from varlen_rnn.cells.reads import may_read_first
from varlen_rnn.cells.registry import CellName, find_cell, register
from varlen_rnn.errors import DTypeError, ShapeError, check_list, shown
from varlen_rnn.frozen import Frozen
from varlen_rnn.runtime.jit import body

_TRIALS = 3  # random points at which a gradient is compared with central differences
_STEP, _TOLERANCE = 1e-6, 1e-5  # the step of central differences, and the largest relative error of a gradient
# Attributes that are () in a handwritten cell.
_DERIVED_ONLY = "bounded", "factors", "vectors", "vector_order", "row_inputs", "row_slots"
_Floats: TypeAlias = tuple[float, ...]
_Tuples: TypeAlias = tuple[_Floats, ...]


class Phase(NamedTuple):
    """One recurrent product of a step, and the equations that follow it, for one unit of one sequence.

    The product of the first phase reads the output of the step before.  Each later product reads the value `first` that
    the phase before it returned.  All arguments and results below are tuples of scalars; ranges are (first, end).

    Attributes
    ----------
    step : function
        `step(x, h, prev, passed, v) -> (first, states, slots, passes)`.

        * `x`: projected inputs, of all gates that have one; `h`: the phase's own products; `prev`: the states before;
          `passed`: values from earlier phases; `v`: vectors, then row inputs.
        * `first`: the operand of the next product, or the output in the last phase; `states`: the other states, in the
          last phase; `slots`: the numbers to save, in its `kept` columns; `passes`: values for later phases.  The first
          `norms` of these are normalised over all units: subtract the mean, divide by the standard deviation.
    step_grad : function
        `step_grad(slots, prev, states, operands, carried, v) -> (d_slots, carried, d_v)`; the last phase runs first.

        * `slots`: all columns; it may not read columns of later phases.  `states`: after the step; it may not read
          `states[0]`.  `operands`: operands of later products, then normalised values.  `carried`: the gradients of the
          states; with several phases then the gradient of `first`, then values from later phases, beginning with the
          gradients of normalised values.
        * `d_slots`: gradients for the phase's columns; `carried`: for the phase before, or, in the first phase, the
          gradients of the states before; `d_v`: gradients of its vectors.
    gates : int
        The number of its products.
    h_slot : int
        The first of the columns that get the gradients of its products.
    order : tuple of int
        For each of the columns from `h_slot` on, the position of the gate to which it belongs.
    slots : tuple of int
        The range of its columns.
    passes, carries : int
        The number of values that `step` hands to later phases, and of values that `step_grad` hands to earlier phases
        besides the gradients of states and operand.
    norms : int
        How many of the passed values are normalised.
    kept : tuple of int
        The range of its columns in which `step` saves a number; other columns only get gradients.
    vectors : tuple of int
        The range, in the cell's `vector_order`, of the vectors whose gradients `step_grad` returns.
    """

    step: Callable
    step_grad: Callable
    gates: int
    h_slot: int
    order: tuple[int, ...]
    slots: tuple[int, int]
    passes: int
    carries: int
    norms: int
    kept: tuple[int, int]
    vectors: tuple[int, int]


class Cell(Frozen):
    """The equations of a recurrent cell, checked when it is made.

    Parameters
    ----------
    name : str
        The name in programs.  Two cells may not share a name, unless the same function is defined again.
    gates : sequence of str
        Gates in the order of the rows of `weight_ih` and `weight_hh`.  A string of letters is a sequence, too: `"ifgo"`
        is four names.
    states : sequence of str
        States; the first is the output, and the operand of the recurrent product.
    slots : sequence of str
        Names of the numbers that `step` saves for `step_grad`, for every row.  The slot with the name of a gate gets
        the gradient of its projected input; these slots are neighbours, in the order of `gates`.
    step : function
        `step(x, h, prev) -> (states, slots)`: takes and returns tuples of scalars.
    step_grad : function
        `step_grad(slots, prev, states, d_states) -> (d_slots, d_prev)`; `d_prev` leaves out the recurrent product.  It
        may not read `states[0]`, the output, on any path: save the numbers that it needs in a slot.
    product_slots : dict of str to str, optional
        For a gate whose recurrent product and projected input have different gradients, the slot that gets the
        product's gradient.  With n gates, the first n slots must be those that get gradients of recurrent products.

    Attributes
    ----------
    name, gates, states, slots
        As given.
    x_gates, h_gates : tuple of str
        The gates with a projected input, and the gates with a recurrent product.
    vectors, row_inputs : tuple of str
        Parameters with one number per unit, and inputs of rows that are not projected.  Cells made by `cell` may have
        them; cells written by hand have none.
    num_kept : int
        How many columns, each as wide as the layer, a row saves for the gradient: slots, the states after the first,
        the operands of later products, and normalised values.
    reads_output : bool
        Whether a unit's equations read its own output of the step before.  Such a cell cannot have a projection.
    proj_clip : float
        The largest absolute value of a projected output; infinite by default.
    source : str, or None
        The equations that `cell` derived, as Python; None for a cell written by hand.
    phases : tuple of Phase
        The equations, as the engine takes them.

    Raises
    ------
    DTypeError, ShapeError
        If names do not fit together, if equations return tuples of other lengths, or if the gradient differs from a
        central difference of the step.

    Notes
    -----
    The equations are compiled by Numba, for float32 and float64: arithmetic, comparisons, `math`, and `sigmoid`,
    `tanh`, `relu` and `multiply_add` of `varlen_rnn.cells`.  Constants take the type of their argument,
    `one = type(x)(1)`: a literal turns float32 into float64.

    Examples
    --------
    >>> def step(x, h, prev):
    ...     y = x[0] + h[0]
    ...     return (y,), (y,)
    >>> def step_grad(slots, prev, states, d_states):
    ...     return (d_states[0],), (type(d_states[0])(0),)
    >>> Cell(name="linear", gates=["y"], states=["h"], slots=["y"], step=step, step_grad=step_grad)
    Cell('linear', gates=('y',), states=('h',), slots=('y',))
    """

    __slots__ = (
        "__weakref__", "bounded", "equations", "factors", "gates", "h_gates", "name", "num_kept", "origin", "phases",
        "proj_clip", "reads_output", "row_inputs", "row_slots", "slots", "source", "states", "vector_order", "vectors",
        "x_gates", "x_order", "x_slot",
    )  # fmt: skip

    bounded: tuple[int, ...]  # the slots whose number is from -1 to 1
    factors: tuple[int, ...]  # the slots whose number is only a factor of gradients
    equations: Step | None  # the trace; None for a cell written by hand
    gates: tuple[str, ...]
    h_gates: tuple[str, ...]
    name: str
    num_kept: int
    origin: tuple[str, str]
    phases: tuple[Phase, ...]
    proj_clip: float
    reads_output: bool
    row_slots: tuple[int, ...]
    row_inputs: tuple[str, ...]
    slots: tuple[str, ...]
    source: str | None
    states: tuple[str, ...]
    vector_order: tuple[int, ...]
    vectors: tuple[str, ...]
    x_gates: tuple[str, ...]
    x_order: tuple[int, ...]
    x_slot: int

    def __init__(
        self,
        *,
        name: str,
        gates: Sequence[str],
        states: Sequence[str],
        slots: Sequence[str],
        step: Callable,
        step_grad: Callable,
        product_slots: Mapping[str, str] | None = None,
    ) -> None:
        self._put("name", CellName(check_name(name), self))
        for what, function in (("step", step), ("step_grad", step_grad)):
            if not callable(function):
                raise DTypeError(f"cell {name!r}, {what}", expected="a function", got=type(function).__name__)
        step, step_grad = (getattr(function, "py_func", function) for function in (step, step_grad))
        for what, given in (("gates", gates), ("states", states), ("slots", slots)):
            self._put(what, _names(f"cell {name!r}, {what}", given))
        order = self._put_windows({} if product_slots is None else product_slots)
        self._put("reads_output", _check_equations(self, order, step, step_grad))
        count = len(self.gates)
        columns, (adapted, adapted_grad) = (0, len(self.slots)), _adapted(step, step_grad)
        phase = Phase(
            step=adapted, step_grad=adapted_grad, gates=count, h_slot=0, order=order, slots=columns, passes=0,
            carries=0, norms=0, kept=columns, vectors=(0, 0),
        )  # fmt: skip
        rest: dict[str, Any] = {"x_gates": self.gates, "h_gates": self.gates, "x_order": tuple(range(count))}
        rest |= {"equations": None, "source": None, "proj_clip": math.inf}
        self._put_rest((phase,), step, **rest, **dict.fromkeys(_DERIVED_ONLY, ()))
        register(self)

    def _put_rest(self, phases: tuple[Phase, ...], function: Callable, **rest: Any) -> None:
        """Set the fields that the engine reads, and `origin`, the module and name of the equations' function."""
        for what, value in rest.items():
            self._put(what, value)
        self._put("phases", phases)
        operands, norms = sum(phase.gates > 0 for phase in phases[1:]), sum(phase.norms for phase in phases)
        self._put("num_kept", len(self.slots) + len(self.states) - 1 + operands + norms)
        self._put("origin", (function.__module__, function.__qualname__))

    @classmethod
    def of_phases(
        cls,
        step: Step,
        derived: Derived,
        phases: tuple[Phase, ...],
        x_gates: tuple[str, ...],
        name: str,
        origin: Callable,
        proj_clip: float | None = None,
    ) -> Cell:
        """Return a Cell made of phases that `varlen_rnn.cells.cell` has derived from equations."""
        self, columns = cls.__new__(cls), [column for group in derived.columns for column in group]
        of_x = [(place, column.name) for place, column in enumerate(columns) if column.kind in OF_INPUTS]
        places = {column.number: place for place, column in enumerate(columns)}
        bounded = [place for place, column in enumerate(columns) if step.trace.is_bounded(column.kept)]
        d_rows = [derived.gradients.get(("row", name)) for name in step.rows]
        self._put_rest(
            phases, origin, name=CellName(name, self), gates=step.gates, states=step.states, slots=derived.slots,
            reads_output=derived.reads_output, x_slot=of_x[0][0] if of_x else 0, equations=step,
            proj_clip=math.inf if proj_clip is None else proj_clip, x_gates=x_gates, h_gates=sum(derived.gates, ()),
            source=derived.source, x_order=tuple(x_gates.index(gate) for _, gate in of_x), vectors=step.vectors,
            row_inputs=step.rows, bounded=tuple(bounded), factors=derived.factors,
            vector_order=sum(derived.vectors, ()),
            row_slots=tuple(-1 if d_row is None else places.get(d_row.number, -1) for d_row in d_rows),
        )  # fmt: skip
        register(self)
        return self

    def _put_windows(self, product_slots: Mapping[str, str]) -> tuple[int, ...]:
        """Check the order of slots; set `x_slot`, the first slot that gets the gradient of a projected input.

        Return, for each of the first slots, the position of the gate whose recurrent product's gradient the slot gets.
        """
        what, gates, slots = f"cell {self.name!r}, slots", self.gates, self.slots
        if not isinstance(product_slots, Mapping) or not all(
            isinstance(name, str) for pair in product_slots.items() for name in pair
        ):
            expected = "a dict of str to str"
            raise DTypeError(f"cell {self.name!r}, product_slots", expected=expected, got=shown(product_slots))
        unknown = set(product_slots) - set(gates)
        if unknown:
            expected = f"keys that are gates of {gates}"
            raise ShapeError(f"cell {self.name!r}, product_slots", expected=expected, got=sorted(unknown))
        own = tuple(product_slots.values())
        in_order = (*own, *gates, *(slot for slot in slots if slot not in own + gates))
        hint = f"write slots={in_order}: first the slot of each gate's recurrent product, then all gates in their order"
        x_slot = slots.index(gates[0]) if gates[0] in slots else 0
        if slots[x_slot : x_slot + len(gates)] != gates:
            raise ShapeError(what, expected=f"the gates {gates} side by side, in this order", got=slots, hint=hint)
        of_products = {product_slots.get(gate, gate): number for number, gate in enumerate(gates)}
        first = slots[: len(gates)]
        if set(first) != set(of_products) or len(of_products) != len(gates):
            raise ShapeError(what, expected=f"the slots {tuple(of_products)} first, in any order", got=slots, hint=hint)
        self._put("x_slot", x_slot)
        return tuple(of_products[slot] for slot in first)

    @property
    def may_project(self) -> bool:
        """Whether a layer can project the output to another size: no equation and no later product reads the output."""
        return not self.reads_output and not any(phase.gates for phase in self.phases[1:])

    def __reduce__(self) -> tuple[Callable[[str], Cell], tuple[str]]:
        return find_cell, (self.name,)  # copying and unpickling return the registered cell, whose code is compiled

    def __repr__(self) -> str:
        return f"Cell({self.name!r}, gates={self.gates}, states={self.states}, slots={self.slots})"


def _names(what: str, names: Any) -> tuple[str, ...]:
    names = tuple(names if isinstance(names, str) else check_list(names, what, "a sequence of names"))
    if not names or any(not isinstance(name, str) or not name for name in names) or len(set(names)) < len(names):
        raise ShapeError(what, expected="at least one name, and each name once", got=names)
    return names


def check_name(name: object) -> str:
    """Return `name`; raise unless it is a printable text that is not blank."""
    if not isinstance(name, str) or not name.isprintable() or not name.strip():
        raise DTypeError("Cell, name", expected="a text of printable characters, not only of spaces", got=shown(name))
    return name


def _adapted(step: Callable, step_grad: Callable) -> tuple[Callable, Callable]:
    """Return functions with the signatures of `Phase.step` and `Phase.step_grad` that call handwritten functions."""
    step, step_grad = body(step), body(step_grad)

    @body
    def of_phase(x: Any, h: Any, prev: Any, passed: Any, v: Any) -> Any:
        states, slots = step(x, h, prev)
        return states[0], states[1:], slots, ()

    @body
    def grad_of_phase(slots: Any, prev: Any, states: Any, operands: Any, carried: Any, v: Any) -> Any:
        d_slots, d_prev = step_grad(slots, prev, states, carried)
        return d_slots, d_prev, ()

    return of_phase, grad_of_phase


def _check_equations(cell: Cell, order: tuple[int, ...], step: Callable, step_grad: Callable) -> bool:
    """Raise unless `step_grad` is the gradient of `step`; return whether either can read the previous step's output."""
    if _may_read_first(cell, "step_grad", step_grad, 2):
        hint = "save that number in a slot; read other states by constant indices, as states[1], without unpacking"
        got = "code that can read it"
        raise ShapeError(f"cell {cell.name!r}, step_grad", expected="no use of states[0]", got=got, hint=hint)
    draw = random.Random(0)
    for _ in range(_TRIALS):
        x, h, prev, d_states = (
            tuple(draw.uniform(-1, 1) for _ in range(count))
            for count in (len(cell.gates), len(cell.gates), len(cell.states), len(cell.states))
        )
        states, slots = _run(cell, "step", step, (x, h, prev), ("states", "slots"))
        given = slots, prev, (math.nan, *states[1:]), d_states
        d_slots, d_prev = _run(cell, "step_grad", step_grad, given, ("slots", "states"))
        loss = lambda given, d=d_states: sum(map(operator.mul, d, step(*given)[0]))
        _check_gradient(cell, order, loss, (x, h, prev), d_slots, d_prev)
    return _may_read_first(cell, "step", step, 2) or _may_read_first(cell, "step_grad", step_grad, 1)


def _may_read_first(cell: Cell, what: str, function: Callable, position: int) -> bool:
    try:
        return may_read_first(function, position, len(cell.states))
    except Exception as error:
        expected = "a function that Numba can compile"
        raise ShapeError(f"cell {cell.name!r}, {what}", expected=expected, got=repr(error)[:200]) from error


def _run(cell: Cell, what: str, function: Callable, arguments: _Tuples, names: tuple[str, str]) -> _Tuples:
    """Return the two tuples that a cell's function returns; raise unless they have the declared lengths."""
    wanted = [len(getattr(cell, name)) for name in names]
    expected = f"a tuple of length {wanted[0]} for {names[0]}, and a tuple of length {wanted[1]} for {names[1]}"
    try:
        result = function(*arguments)
    except Exception as error:
        raise ShapeError(f"cell {cell.name!r}, {what}", expected=expected, got=repr(error)[:200]) from error
    if not isinstance(result, tuple) or [len(part) if isinstance(part, tuple) else -1 for part in result] != wanted:
        raise ShapeError(f"cell {cell.name!r}, {what}", expected=expected, got=shown(result))
    return result


def _check_gradient(
    cell: Cell,
    order: tuple[int, ...],
    loss: Callable[[_Tuples], float],
    arguments: _Tuples,
    d_slots: _Floats,
    d_prev: _Floats,
) -> None:
    """Raise unless `d_slots` and `d_prev` equal central differences of the loss."""
    of_products = {gate: d_slots[slot] for slot, gate in enumerate(order)}
    gradients = (
        d_slots[cell.x_slot : cell.x_slot + len(cell.gates)],
        tuple(of_products[gate] for gate in range(len(cell.gates))),
        d_prev,
    )
    names = [f"projected {gate}" for gate in cell.gates], [f"product of {gate}" for gate in cell.gates], cell.states
    for place, gradient in enumerate(gradients):
        for number, given in enumerate(gradient):
            right = _difference(loss, arguments, place, number)
            if not abs(given - right) <= _TOLERANCE * max(1, abs(right)):
                what = f"cell {cell.name!r}, gradient of the {'previous ' * (place == 2)}{names[place][number]}"
                raise ShapeError(what, expected=f"{right:.6g}, the central difference of step", got=f"{given:.6g}")


def _difference(loss: Callable[[_Tuples], float], arguments: _Tuples, place: int, number: int) -> float:
    def at(change: float) -> float:
        moved = list(arguments[place])
        moved[number] += change
        return loss((*arguments[:place], tuple(moved), *arguments[place + 1 :]))

    return (at(_STEP) - at(-_STEP)) / (2 * _STEP)
