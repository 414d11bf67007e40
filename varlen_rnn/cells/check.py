"""What was derived, compared with the trace that it was derived from, and with central differences."""

from __future__ import annotations

from typing import Any

import numpy as np

from varlen_rnn.cells.derive import Derived, Step
from varlen_rnn.cells.trace import EquationError

_SAMPLES, _COMPARED = 48, 6
_STEP, _TOLERANCE = 1e-5, 1e-6
_LEAVES = "x", "h", "of", "prev", "vector", "d_state", "d_operand"


def check_derived(name: str, step: Step, derived: Derived, phases: tuple[Any, ...]) -> None:
    """Raise unless the derived gradients are differences of the step, and the source computes both."""
    trace, rng = step.trace, np.random.default_rng(0)
    leaves = [k for k, node in enumerate(trace.nodes) if node.op in _LEAVES]
    given = {k: rng.normal(size=_SAMPLES) for k in leaves}
    d_states = [given[trace.node("d_state", what=number).number] for number in range(len(step.states))]
    pairs = list(zip(step.results, d_states, strict=True))
    operands = [node.what for node in trace.nodes if node.op == "d_operand"]
    pairs += [(operand, given[trace.node("d_operand", what=operand).number]) for operand in operands]
    columns = [column for group in derived.columns for column in group]
    with np.errstate(all="ignore"):
        _check_differences(name, step, derived, given, pairs)
        roots = [
            *step.results,
            *(c.kept for c in columns if c.kept >= 0),
            *(c.number for c in columns if c.number >= 0),
        ]
        d_prev = [gradient.number for (op, _), gradient in derived.gradients.items() if op == "prev"]
        values = trace.evaluate(given, [*roots, *d_prev, *operands])
    for sample in range(_COMPARED):
        _check_source(name, step, derived, phases, {k: np.broadcast_to(v, _SAMPLES)[sample] for k, v in values.items()})


def _check_differences(name: str, step: Step, derived: Derived, given: dict[int, Any], pairs: list[Any]) -> None:
    trace, ends = step.trace, [k for k, _ in pairs]
    at_rest = trace.evaluate(given, ends)
    frozen = {k: value for k, value in at_rest.items() if trace.nodes[k].op == "constant"}
    gradients = trace.evaluate(given, [gradient.number for gradient in derived.gradients.values()])
    for (op, what), gradient in derived.gradients.items():
        leaf = next(k for k, node in enumerate(trace.nodes) if node.op == op and node.what == what)
        sums = []
        for sign in (1, -1):
            moved = trace.evaluate(given | {leaf: given[leaf] + sign * _STEP}, ends, frozen)
            sums.append(sum(moved[k] * d for k, d in pairs))
        slope, found = (sums[0] - sums[1]) / (2 * _STEP), gradients[gradient.number] + np.zeros(_SAMPLES)
        sound = np.isfinite(slope) & np.isfinite(found)
        error = np.abs(slope - found)[sound] / (1 + np.abs(found) + np.abs(sums[0]))[sound]
        # A kink between the two points is no fault; one in a few samples.
        if sound.sum() < _SAMPLES // 4 or np.mean(error > _TOLERANCE) > 0.1:
            expected = "what a central difference tells"
            raise EquationError(
                f"cell {name!r}, gradient of {op} {what}",
                expected=expected,
                got=f"off by {error.max(initial=0):.1e} in {sound.sum()} samples",
            )


def _check_source(name: str, step: Step, derived: Derived, phases: tuple[Any, ...], values: dict[int, float]) -> None:
    """Raise unless the derived functions give what the trace does, for one sample of its leaves."""
    trace, columns = step.trace, [column for group in derived.columns for column in group]
    numbers = {(node.op, node.what): k for k, node in enumerate(trace.nodes)}

    def leaf(op: str, what: Any) -> float:
        return float(values.get(numbers.get((op, what), -1), np.nan))

    x = tuple(leaf("x", gate) for gate in step.gates if ("x", gate) in numbers)
    prev = tuple(leaf("prev", number) for number in range(len(step.states)))
    vectors = tuple(leaf("vector", vector) for vector in step.vectors)
    passed: tuple[float, ...] = ()
    slots: tuple[float, ...] = ()
    operands: tuple[float, ...] = ()
    for phase, gates in zip(phases, derived.gates, strict=True):
        h = tuple(leaf("h", gate) if ("h", gate) in numbers else leaf("of", gate) for gate in gates)
        first, states, mine, later = _python(phase.step)(x, h, prev, passed, vectors)
        passed, slots, operands = passed + later, slots + mine, (*operands, first)
    operands, states = operands[:-1], (operands[-1], *states)
    wanted = [values[k] for k in step.results] + [values[column.kept] for column in columns if column.kept >= 0]
    found = [*states, *(slot for slot, column in zip(slots, columns, strict=True) if column.kept >= 0)]
    carried = tuple(leaf("d_state", number) for number in range(len(step.states)))
    size = len(phases) > 1 and 1 + max(phase.carries for phase in phases)
    carried += (0.0,) * size
    states = (np.nan, *states[1:])
    by_operand = {node.what: k for k, node in enumerate(trace.nodes) if node.op == "d_operand"}
    d_slots: list[float] = [np.nan] * len(columns)
    current = list(slots)
    for number in reversed(range(len(phases))):
        phase = phases[number]
        if number < len(phases) - 1:
            operand = _operand_of(step, derived, number + 1)
            cut = len(step.states)
            carried = (*carried[:cut], float(values[by_operand[operand]]), *carried[cut + 1 :])
        mine, carried = _python(phase.step_grad)(tuple(current), prev, states, operands, carried, vectors)
        first, end = phase.slots
        d_slots[first:end] = mine
        current[first:end] = [np.nan] * (end - first)
    wanted += [values[column.number] for column in columns if column.number >= 0]
    found += [d for d, column in zip(d_slots, columns, strict=True) if column.number >= 0]
    for number in range(len(step.states)):
        gradient = derived.gradients.get(("prev", number))
        wanted.append(0.0 if gradient is None else values[gradient.number])
        found.append(carried[number])
    if not np.allclose(found, wanted, rtol=1e-9, atol=1e-12, equal_nan=True):
        raise EquationError(
            f"cell {name!r}", expected="derived functions that compute the trace", got=f"{found}, {wanted}"
        )


def _operand_of(step: Step, derived: Derived, number: int) -> int:
    """Return the node that the product of a phase reads."""
    gate = derived.gates[number][0]
    return next(node.operands[0] for node in step.trace.nodes if node.op == "of" and node.what == gate)


def _python(function: Any) -> Any:
    return getattr(function, "py_func", function)
