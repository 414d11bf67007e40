"""Check derived phases against the trace that they came from, and their gradients against central differences."""

from __future__ import annotations

from typing import Any

import numpy as np

from varlen_rnn.cells.derivation.derive import Derived, Step
from varlen_rnn.cells.derivation.trace import EquationError, Node

_SAMPLES, _COMPARED = 48, 6  # random points for differences; at the first 6, the derived source also runs
_STEP, _TOLERANCE = 1e-5, 1e-6
_LEAVES = "x", "h", "of", "prev", "vector", "row", "norm", "d_state", "d_operand", "d_norm"


def check_derived(name: str, step: Step, derived: Derived, phases: tuple[Any, ...]) -> None:
    """Raise unless the derived gradients equal central differences, and the source computes the same numbers.

    The differences are taken of the traced equations; the source must return their results and gradients.
    """
    trace, rng = step.trace, np.random.default_rng(0)
    leaves = [k for k, node in enumerate(trace.nodes) if node.op in _LEAVES]
    given = {k: rng.normal(size=_SAMPLES) for k in leaves}
    d_states = [given[trace.node("d_state", what=number).number] for number in range(len(step.states))]
    pairs = list(zip(step.results, d_states, strict=True))
    ends = [(k, node.what) for k, node in enumerate(trace.nodes) if node.op in ("d_operand", "d_norm")]
    pairs += [(value, given[k]) for k, value in ends]
    columns = [column for group in derived.columns for column in group]
    with np.errstate(all="ignore"):
        _check_differences(name, step, derived, given, pairs)
        roots = [*step.results, *(k for c in columns for k in (c.kept, c.number) if k >= 0)]
        d_norms = [gradient.number for (op, _), gradient in derived.gradients.items() if op == "norm"]
        d_prev = [gradient.number for (op, _), gradient in derived.gradients.items() if op in ("prev", "vector")]
        values = trace.evaluate(given, [*roots, *d_prev, *(value for _, value in ends), *d_norms])
    for sample in range(_COMPARED):
        _check_source(name, step, derived, phases, {k: np.broadcast_to(v, _SAMPLES)[sample] for k, v in values.items()})


def _check_differences(name: str, step: Step, derived: Derived, given: dict[int, Any], pairs: list[Any]) -> None:
    """Raise unless the derived gradients equal central differences of a loss.

    The loss is the sum of result * d over the pairs (result, d) in `pairs`.
    """
    trace, ends = step.trace, [k for k, _ in pairs]
    leaves = {_name_of(node): k for k, node in enumerate(trace.nodes)}
    at_rest = trace.evaluate(given, ends)
    frozen = {k: value for k, value in at_rest.items() if trace.nodes[k].op == "constant"}
    gradients = trace.evaluate(given, [gradient.number for gradient in derived.gradients.values()])
    for (op, what), gradient in derived.gradients.items():
        leaf, sums = leaves[op, what], []
        for sign in (1, -1):
            moved = trace.evaluate(given | {leaf: given[leaf] + sign * _STEP}, ends, frozen)
            sums.append(sum(moved[k] * d for k, d in pairs))
        slope, found = (sums[0] - sums[1]) / (2 * _STEP), gradients[gradient.number] + np.zeros(_SAMPLES)
        sound = np.isfinite(slope) & np.isfinite(found)
        error = np.abs(slope - found)[sound] / (1 + np.abs(found) + np.abs(sums[0]))[sound]
        # A kink between the two points of a difference is no error, so one sample in ten may differ.
        if sound.sum() < _SAMPLES // 4 or np.mean(error > _TOLERANCE) > 0.1:
            raise EquationError(
                f"cell {name!r}, derived gradient of {op} {what!r}",
                expected=f"relative errors of at most {_TOLERANCE:g} against central differences in most samples",
                got=f"errors of up to {error.max(initial=0):.1e} in {sound.sum()} finite samples of {_SAMPLES}",
            )


class _Run:
    """Runs the derived functions on one sample of the leaves, phase by phase, as the engine does."""

    def __init__(self, step: Step, derived: Derived, values: dict[int, float]) -> None:
        self.step, self.derived, self.values, trace = step, derived, values, step.trace
        self.numbers = {_name_of(node): k for k, node in enumerate(trace.nodes)}
        self.read = {_name_of(trace.nodes[k]) for k in trace.reach(step.results)}
        self.prev = tuple(self.leaf("prev", number) for number in range(len(step.states)))
        others = [("vector", name) for name in step.vectors] + [("row", name) for name in step.rows]
        self.v = tuple(self.leaf(op, name) for op, name in others)
        self.slots: tuple[float, ...] = ()
        self.states: tuple[float, ...] = ()
        self.operands: tuple[float, ...] = ()

    def leaf(self, op: str, what: Any) -> float:
        """Return the value of a leaf, or NaN if the trace does not have this leaf."""
        return float(self.values.get(self.numbers.get((op, what), -1), np.nan))

    def forward(self, phases: tuple[Any, ...]) -> None:
        """Run the step; it fills `states`, `slots` and `operands`."""
        x = tuple(self.leaf("x", gate) for gate in self.step.gates if ("x", gate) in self.read)
        passed: tuple[float, ...] = ()
        normed: tuple[float, ...] = ()
        for number, (phase, gates) in enumerate(zip(phases, self.derived.gates, strict=True)):
            h = tuple(self.leaf("h" if ("h", gate) in self.read else "of", gate) for gate in gates)
            first, states, slots, later = _python(phase.step)(x, h, self.prev, passed, self.v)
            of_norms = tuple(self.leaf("norm", k) for k in self.derived.normed[number])
            passed, normed = passed + of_norms + later[phase.norms :], normed + of_norms
            before, after = phase.kept[0] - phase.slots[0], phase.slots[1] - phase.kept[1]
            self.slots += (np.nan,) * before + slots + (np.nan,) * after
            if number == len(phases) - 1:
                self.states = (first, *states)
            elif phases[number + 1].gates:
                self.operands += (first,)
        self.operands += normed

    def backward(self, phases: tuple[Any, ...]) -> tuple[list[float], tuple[float, ...], list[float]]:
        """Run the gradients of all phases, last phase first.

        Return the gradients in the slots, the gradients that the first phase carries back, and a list of the gradients
        of norms, then of vectors.
        """
        count, several = len(self.step.states), len(phases) > 1
        most = max(phase.carries for phase in phases)
        carried = tuple(self.leaf("d_state", number) for number in range(count)) + (np.nan,) * (
            several + several * most
        )
        d_slots, slots, states = [np.nan] * len(self.slots), list(self.slots), (np.nan, *self.states[1:])
        d_norms: list[float] = []
        d_vectors: list[float] = []
        for number in reversed(range(len(phases))):
            phase, first = phases[number], count + 1
            if number < len(phases) - 1:
                d_norms += carried[first : first + phase.norms]
                of_norms = [self.leaf("d_norm", k) for k in self.derived.normed[number]]
                carried = (*carried[:count], self._d_operand(number + 1), *of_norms, *carried[first + phase.norms :])
            arguments = tuple(slots), self.prev, states, self.operands, carried, self.v
            mine, carried, of_vectors = _python(phase.step_grad)(*arguments)
            d_vectors = [*of_vectors, *d_vectors]
            d_slots[slice(*phase.slots)] = mine
            slots[slice(*phase.slots)] = [np.nan] * len(mine)
        return d_slots, carried, d_norms + d_vectors

    def _d_operand(self, number: int) -> float:
        """Return the gradient that the product of a phase sends back, or NaN if the phase has no product."""
        gates = self.derived.gates[number]
        read = (node.operands[0] for node in self.step.trace.nodes if node.op == "of" and node.what in gates)
        return self.leaf("d_operand", next(read, None))


def _check_source(name: str, step: Step, derived: Derived, phases: tuple[Any, ...], values: dict[int, float]) -> None:
    """Raise unless the derived functions compute the values of the trace, on one sample of the leaves."""
    columns, run = [column for group in derived.columns for column in group], _Run(step, derived, values)
    run.forward(phases)
    d_slots, carried, d_others = run.backward(phases)
    found, wanted = list(run.states), [values[k] for k in step.results]
    for column, slot, d_slot in zip(columns, run.slots, d_slots, strict=True):
        found += [slot] * (column.kept >= 0) + [d_slot] * (column.number >= 0)
        wanted += [values[k] for k in (column.kept, column.number) if k >= 0]
    for number in range(len(step.states)):
        gradient = derived.gradients.get(("prev", number))
        found.append(carried[number])
        wanted.append(0.0 if gradient is None else values[gradient.number])
    found += d_others
    of_norms = [derived.gradients.get(("norm", k)) for group in reversed(derived.normed) for k in group]
    wanted += [0.0 if gradient is None else values[gradient.number] for gradient in of_norms]
    for vector in (step.vectors[k] for group in derived.vectors for k in group):
        gradient = derived.gradients.get(("vector", vector))
        wanted.append(0.0 if gradient is None else values[gradient.number])
    if not np.allclose(found, wanted, rtol=1e-9, atol=1e-12, equal_nan=True):
        expected = f"{wanted}, the values of the equations"
        raise EquationError(f"cell {name!r}, results of the derived functions", expected=expected, got=str(found))


def _name_of(node: Node) -> tuple[str, Any]:
    """Return the key of a node among gradients: its kind, and its name (for a norm, the node that it normalises)."""
    return node.op, node.operands[0] if node.op == "norm" else node.what


def _python(function: Any) -> Any:
    return getattr(function, "py_func", function)
