"""Norms of the gradients at every operator of a backward pass, to find where a gradient became NaN or zero.

For `loss = (x * w).mean()` of four rows of ones, the pass reaches two operators, the last applied one first:

    reduce_mean   arrived: out 1      passed on: x 0.5             (four gradients of 1/4)
    mul           arrived: out 0.5    passed on: y 0.5             (x requires no gradient)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from varlen_rnn.errors import DTypeError, ProgramError, count, shown
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.tape.backward import first_gradient, propagate
from varlen_rnn.tape.gradient import Leaves, Pass, Record, reachable
from varlen_rnn.tape.modes import recorder
from varlen_rnn.tape.spec import Value
from varlen_rnn.tape.variable import Variable
from varlen_rnn.typing import Rows

_MOST_LINES = 60  # the most operators that a printed report shows: the first and the last ones, as in pandas


@dataclass(frozen=True)
class OperatorGradients:
    """The Euclidean norms of the gradients that one operator received and passed on.

    Attributes
    ----------
    number : int
        The operator's position in the pass: 0 for the operator that was applied last.
    operator : str
        The operator's name.
    arrived : dict of str to float
        The norm of the gradient that arrived at each output, by the output's name; outputs without one are left out.
    passed : dict of str to float or None
        The norm of the gradient passed to each input that requires one, by the input's name; None if there was none.
    """

    number: int
    operator: str
    arrived: dict[str, float]
    passed: dict[str, float | None]


@dataclass(frozen=True)
class LeafGradient:
    """The gradient of one leaf: the Variable's name or "", its shape, and the Euclidean norm over the pass."""

    name: str
    shape: tuple[int, ...]
    norm: float


@dataclass(frozen=True, repr=False)
class GradientReport:
    """The result of `inspect_gradients`; it prints as a table.

    Attributes
    ----------
    operators : list of OperatorGradients
        In the order of the pass, which begins at the loss.  Each has `number`, `operator`, `arrived` and `passed`.
    leaves : list of LeafGradient
        In the order in which a gradient reached them.  Each has `name`, `shape` and `norm`.
    first_nan : OperatorGradients or None
        The first operator that received or passed on a NaN.
    first_zero : OperatorGradients or None
        The first operator that passed a gradient of zeros, or none at all, to an input that requires one.
    """

    operators: list[OperatorGradients]
    leaves: list[LeafGradient]
    first_nan: OperatorGradients | None
    first_zero: OperatorGradients | None

    def __repr__(self) -> str:
        rows = [("", "operator", "arrived", "passed on")]
        rows += [(str(o.number), o.operator, _listed(o.arrived), _listed(o.passed)) for o in self.operators]
        if len(rows) > _MOST_LINES + 1:
            half = _MOST_LINES // 2
            rows[half + 1 : -half] = [("...", f"{len(rows) - 1 - 2 * half} more", "", "")]
        lines = [f"gradients through {count(len(self.operators), 'operator')}, from the loss back", *_aligned(rows)]
        leaves = [(leaf.name or "leaf", str(leaf.shape), _shown(leaf.norm)) for leaf in self.leaves]
        lines += ["leaves", *_aligned(leaves)]
        for name, found in (("NaN", self.first_nan), ("zero", self.first_zero)):
            lines.append(f"first {name}: " + ("none" if found is None else f"{found.number} {found.operator}"))
        return "\n".join(lines)


def inspect_gradients(
    loss: Variable, gradient: Rows | None = None, names: Iterable[tuple[str, Variable]] = ()
) -> GradientReport:
    """Return the norms of the gradients that each operator receives and passes on, with the first NaN and zero.

    It runs the pass that `loss.backward()` would run, with its hooks, but no `grad` changes and nothing is used up:
    `loss.backward()` is possible afterwards.  A recurrent layer's residuals are copied, one layer at a time.

    Parameters
    ----------
    loss : Variable
        A single number, unless `gradient` is given.
    gradient : array_like or number, optional
        The gradient of `loss`, as `backward` takes it.
    names : iterable of (str, Variable), optional
        Names of leaves for the report, as `model.named_parameters()` returns them.

    Returns
    -------
    GradientReport

    Raises
    ------
    ProgramError
        If nothing requires a gradient, if `backward` has already used up the records, or in a program.

    Examples
    --------
    >>> x = Variable([3.0, 4.0], requires_grad=True, name="x")
    >>> loss = ((x - 3.0).sqrt() * np.array([0.0, 1.0])).sum()  # the slope of the root is infinite at 0
    >>> report = inspect_gradients(loss)
    >>> report
    gradients through 4 operators, from the loss back
         operator    arrived    passed on
      0  reduce_sum  out 1      x 1.414
      1  mul         out 1.414  x 1
      2  sqrt        out 1      x nan
      3  sub         out nan    x nan
    leaves
      x  (2,)  nan
    first NaN: 2 sqrt
    first zero: none
    >>> report.first_nan.arrived, x.grad
    ({'out': 1.0}, None)
    """
    if recorder() is not None:
        hint = "fetch the program's gradients from a run: they are its variables `name@GRAD`"
        raise ProgramError("inspect_gradients", expected="eager mode", got="a program being recorded", hint=hint)
    try:
        known = {id(variable): name for name, variable in names}
    except (TypeError, ValueError) as error:
        expected, hint = "pairs of a name and a Variable", "model.named_parameters()"
        raise DTypeError("inspect_gradients, names", expected=expected, got=shown(names), hint=hint) from error
    return propagate([loss], [first_gradient(loss, gradient, "inspect_gradients")], _Inspection).report(known)


class _Noted(Leaves):
    """A sink for the gradients of leaves that stores them here instead of adding them to `grad`."""

    def __init__(self, *functions: Any) -> None:
        super().__init__(*functions)
        self.gradients: dict[Variable, list[Variable]] = {}

    def add(self, variable: Variable, gradient: Variable) -> None:
        if variable.record is None:
            self.gradients.setdefault(variable, []).append(gradient)


class _Inspection(Pass):
    """A pass that changes neither records nor leaves, and notes the norms of the gradients."""

    def __init__(self, apply: Any, variables_of: Any, gradient_like: Any) -> None:
        super().__init__(apply, variables_of, gradient_like)
        self.leaves: _Noted = _Noted(apply, gradient_like)
        self._taken: list[tuple[Record, Any, Any]] = []
        self._operators: list[OperatorGradients] = []
        self._first_zero: OperatorGradients | None = None

    def run(self, pairs: Any) -> None:
        try:
            # Without the watcher of `Pass.run`, which would add the gradients of other ranks.
            self.over(pairs, reachable([variable for variable, _ in pairs]))
        finally:
            for record, inputs, values in self._taken:
                record.inputs, record.values = inputs, values

    def _take(self, records: Any) -> Any:
        self._taken = super()._take(records)
        return list(self._taken)

    def _gradients(self, record: Record, inputs: Any, outputs: Any, summed: Any) -> Any:
        taken, given = record.op.by_place(range(len(inputs)), range(len(outputs)), record.attrs)
        for place, positions in given:  # the gradient of a recurrent layer overwrites its residuals
            for position in positions if place in record.op.intermediate else ():
                if isinstance(outputs[position].value, LoDTensor):
                    outputs[position].value = outputs[position].value.copy()
        gradients = super()._gradients(record, inputs, outputs, summed)
        arrived = {name: _norm(summed[k].value) for name, k in _named(given) if summed[k] is not None}
        passed: dict[str, float | None] = {}
        has_zero = False
        for name, position in _named(taken):
            if inputs[position] is None or not inputs[position].requires_grad:
                continue
            value = None if gradients[position] is None else gradients[position].value
            passed[name] = None if value is None else _norm(value)
            has_zero = has_zero or value is None or (passed[name] == 0 and math.prod(value.shape) > 0)
        self._operators.append(OperatorGradients(len(self._operators), record.op.type, arrived, passed))
        if has_zero and self._first_zero is None:
            self._first_zero = self._operators[-1]
        return gradients

    def report(self, names: dict[int, str]) -> GradientReport:
        """Return the noted norms as a report; `names` maps the identity of a leaf to its name."""
        leaves = []
        for variable, gradients in self.leaves.gradients.items():
            total = gradients[0] if len(gradients) == 1 else self._apply("sum", *gradients)
            name = names.get(id(variable)) or variable.name or ""
            leaves.append(LeafGradient(name, variable.shape, _norm(total.value)))
        first_nan = next((o for o in self._operators if _has_nan(o)), None)
        return GradientReport(self._operators, leaves, first_nan, self._first_zero)


def _named(places: list[tuple[str, tuple[int, ...]]]) -> list[tuple[str, int]]:
    """Return (name, position) for each input or output; if a place `x` has several, they are named x[0], x[1], ..."""
    return [
        (place if len(positions) == 1 else f"{place}[{k}]", position)
        for place, positions in places
        for k, position in enumerate(positions)
    ]


def _has_nan(operator: OperatorGradients) -> bool:
    norms = *operator.arrived.values(), *operator.passed.values()
    return any(norm is not None and math.isnan(norm) for norm in norms)


def _norm(value: Value) -> float:
    """Return the Euclidean norm, computed in float64 and without overflow; NaN if any element is NaN."""
    array = value.merge().value if isinstance(value, SelectedRows) else getattr(value, "data", np.zeros(0))
    largest = float(np.abs(array).max()) if array.size else 0.0
    if not 0 < largest < math.inf:
        return largest
    return largest * float(np.linalg.norm(np.divide(array, largest, dtype=np.float64).ravel()))


def _listed(norms: Any) -> str:
    return ", ".join(f"{name} {_shown(norm)}" for name, norm in norms.items())


def _shown(norm: float | None) -> str:
    return "none" if norm is None else f"{norm:.4g}"


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return a line of text per row, with each column as wide as its widest entry."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
