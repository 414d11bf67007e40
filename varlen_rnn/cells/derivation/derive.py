"""Split a traced step into phases, choose which numbers each row saves, and write the source of both directions.

A phase is a recurrent product and the equations after it.  The gradient runs the phases from last to first, because the
operand that a phase returns gets its gradient from the product of the next phase.  A column is a place for one number
per unit in a saved row: the forward pass can save a number there, and the gradient pass replaces it by a gradient.

An LSTM has one phase, the gates `i f g o` and the states `h, c`.  Its trace is

    i = sigmoid(x_i + h_i)    f = sigmoid(x_f + h_f)    g = tanh(x_g + h_g)    o = sigmoid(x_o + h_o)
    c' = i g + f c            h' = o tanh(c')

* `_stages` finds that every gradient is known in phase 0.  `_columns` gives each gate one column, of kind "both": the
  gradients of `x_i` and `h_i` are equal and share it.
* The gradient of `x_i` is `d_c g i (1 - i)`, where `d_c = d_c' + d_h o (1 - tanh(c')^2)`.  So the gradient needs i, f,
  g, o, c and c'.  `_free` says that c and c' need no column, because the engine has the states of all rows.
* `slots.choose` saves i, f, g and o: four numbers, each in its gate's column.  The gate's gradient replaces the number
  later.
* `_forward_source` writes `step`, which returns `h', (c',), (i, f, g, o), ()`.  `_backward_source` writes `step_grad`,
  which reads the slots and returns the gradients of the four gates, then of the states before.

A cell with `n.of(f * h)`, such as MGU, has two phases, because the product of n needs f.  Phase 0 returns f * h, the
operand of the product of phase 1.  The gradient of phase 1 carries values back to phase 0.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import NamedTuple

from varlen_rnn.cells.derivation.gradient import differentiate
from varlen_rnn.cells.derivation.operations import OPERATIONS
from varlen_rnn.cells.derivation.slots import choose
from varlen_rnn.cells.derivation.source import as_tuple, function, write
from varlen_rnn.cells.derivation.trace import EquationError, Node, Scalar, Trace

MOST_PHASES = 3
OF_INPUTS, OF_PRODUCTS = ("x", "both"), ("h", "both")  # kinds of columns
# Names that the source uses for arguments, constants and functions; no column may have such a name.
_RESERVED = {"x", "h", "prev", "passed", "v", "slots", "states", "operands", "carried"}
_RESERVED |= {"zero", "one", "two", "half", "none", "type", "float", "abs", "_", *OPERATIONS}
_TEMPORARY = re.compile(r"[tk]\d+|p_\d+")  # names of temporaries in the source


class Step(NamedTuple):
    """The traced equations of a cell.

    gates, states, vectors, rows: the names in the signature; the first state is the output
    results: the nodes of the states after the step, the output first
    """

    trace: Trace
    gates: tuple[str, ...]
    states: tuple[str, ...]
    vectors: tuple[str, ...]
    rows: tuple[str, ...]
    results: tuple[int, ...]


class Column(NamedTuple):
    """A slot of a row: the forward pass can save a number there, which the gradient pass replaces by a gradient.

    kind: whose gradient the column gets: "x" a gate's projected input, "h" its recurrent product, "both" if these two
        gradients are equal, "row" a row input, "none" if no gradient
    name: the gate or the row input
    number: the node of the gradient, or -1 if the column gets none
    kept: the node of the number that `step` saves there, or -1 if it saves none
    """

    kind: str
    name: str
    number: int
    kept: int = -1


class Derived(NamedTuple):
    """The phases of a step, derived from its trace.  Fields up to `vectors` have one item per phase.

    columns: the columns of the phase
    gates: the gates whose product belongs to the phase
    passes, carries: how many values the phase hands to later phases, and how many its gradient hands to earlier phases
    normed: the nodes that are normalised after the phase
    kept: the range of the phase's columns in which its `step` saves a number
    vectors: the positions, in the signature, of the vectors whose gradients the phase returns
    reads_output: whether an equation reads the output of the step before, unit by unit
    gradients: the gradient of each leaf, by its kind and name
    slots: the names of all columns
    factors: the positions of the columns whose saved number is only a factor of gradients
    source: the functions of all phases as Python
    """

    columns: tuple[tuple[Column, ...], ...]
    gates: tuple[tuple[str, ...], ...]
    passes: tuple[int, ...]
    carries: tuple[int, ...]
    normed: tuple[tuple[int, ...], ...]
    kept: tuple[tuple[int, int], ...]
    vectors: tuple[tuple[int, ...], ...]
    reads_output: bool
    gradients: dict[tuple[str, object], Scalar]
    slots: tuple[str, ...]
    factors: tuple[int, ...]
    source: str


def derive(step: Step) -> Derived:
    """Derive the phases of a step, and the numbers that each row saves for the gradient."""
    return _Derivation(step).derived()


class _Derivation:
    def __init__(self, step: Step) -> None:
        self.step, self.trace = step, step.trace
        self.zero = self.trace.number_of(0)
        nodes = self.trace.nodes
        self.native = set(self.trace.reach(step.results))
        self.levels = self._levels()
        self.num_phases = 1 + max(self.levels[k] for k in self.native)
        self.operands = self._operands()
        self.norms = self._norms()
        self.products = self._products()
        self.d_states = [self.trace.node("d_state", what=number) for number in range(len(step.states))]
        self.gradients = differentiate(self.trace, list(zip(step.results, self.d_states, strict=True)))
        self.levels = self._levels()  # computed again, because `differentiate` added nodes
        self.reads_output = any(nodes[k] == Node("prev", (), 0) for k in self.native)
        self.stages = self._stages()
        self.depends = {k for k, stage in enumerate(self.stages) if stage >= 0}
        of = {key: gradient.number for key, gradient in self.gradients.items()}
        self.d_prev = [of.get(("prev", number), self.zero) for number in range(len(step.states))]
        self.columns = self._columns(of)
        self.d_vectors = [of.get(("vector", name), self.zero) for name in step.vectors]
        self.vectors: list[list[int]] = [[] for _ in range(self.num_phases)]
        for number, d_vector in enumerate(self.d_vectors):
            self.vectors[max(0, self.stages[d_vector])].append(number)
        self.free = self._free()
        self._keep()

    def _levels(self) -> list[int]:
        """Return, for each node, the length of the longest chain of products and norms that must be computed before it.

        Products with the output of the step before do not count, because they are known when the step begins.
        """
        levels: list[int] = []
        for op, operands, _ in self.trace.nodes:
            levels.append(max((levels[k] for k in operands), default=0) + (op in ("of", "norm")))
        return levels

    def _operands(self) -> list[int | None]:
        """Return, for each phase after the first, the node that its product reads, or None if it has no product."""
        found: list[int | None] = []
        if self.num_phases > MOST_PHASES:
            expected = f"at most {MOST_PHASES}, counting each product or norm that reads the result of another one"
            raise EquationError("phases of a step", expected=expected, got=self.num_phases)
        for number in range(1, self.num_phases):
            leaves = [k for k in self.native if self.trace.nodes[k].op == "of" and self.levels[k] == number]
            operands = {self.trace.nodes[k].operands[0] for k in leaves}
            if len(operands) > 1:
                expected, got = "one value for all gates of a phase", f"{len(operands)} different values"
                raise EquationError("of(value)", expected=expected, got=got)
            found.append(operands.pop() if operands else None)
        return found

    def _norms(self) -> list[list[int]]:
        """Return, for each phase, the nodes that it passes on to be normalised over all units."""
        found: list[list[int]] = [[] for _ in range(self.num_phases)]
        for k in sorted(self.native):
            if self.trace.nodes[k].op == "norm":
                found[self.levels[k] - 1] += self.trace.nodes[k].operands
        return found

    def _products(self) -> tuple[tuple[str, ...], ...]:
        """Return, for each phase, the gates whose recurrent product is in the phase, in the order of the signature."""
        phase_of: dict[str, int] = {}
        for k in sorted(self.native):
            op, _, what = self.trace.nodes[k]
            if op in ("h", "of"):
                if what in phase_of:
                    hint = "declare another gate for the second product"
                    raise EquationError(f"gate {what!r}", expected="one recurrent product", got="two", hint=hint)
                phase_of[what] = self.levels[k]
        in_order = [gate for gate in self.step.gates if gate in phase_of]
        if sorted(in_order, key=phase_of.__getitem__) != in_order:
            wanted = sorted(in_order, key=phase_of.__getitem__)
            raise EquationError("signature, gates", expected=f"the order of their products: {wanted}", got=in_order)
        return tuple(tuple(g for g in in_order if phase_of[g] == number) for number in range(self.num_phases))

    def _stages(self) -> list[int]:
        """Return, for each node, the phase whose gradient knows all its operands; -1 if it depends on no gradient."""
        stages: list[int] = []
        for op, operands, what in self.trace.nodes:
            if op == "d_operand":
                stages.append(self.operands.index(what))
            elif op == "d_norm":
                stages.append(next(number for number, values in enumerate(self.norms) if what in values))
            elif op == "d_state":
                stages.append(self.num_phases - 1)
            else:
                stages.append(min((stages[k] for k in operands if stages[k] >= 0), default=-1))
        return stages

    def _columns(self, of: dict[tuple[str, object], int]) -> list[list[Column]]:
        """Return the columns of each phase, ordered so that each big product reads neighbouring columns.

        The gradients of projected inputs are the last columns of the first phase and the first ones of the last phase.
        The gradients of a phase's products are neighbours, too: the first columns of the first phase, and the last ones
        of other phases.
        """
        last, zero = self.num_phases - 1, self.zero
        phases: list[dict[str, list[Column]]] = [
            {kind: [] for kind in ("row", "h", "both", "x")} for _ in range(self.num_phases)
        ]
        reached = {(self.trace.nodes[k].op, self.trace.nodes[k].what) for k in self.native}
        for name in self.step.gates:
            phase = next((p for p, gates in enumerate(self.products) if name in gates), None)
            d_x = of.get(("x", name), zero) if ("x", name) in reached else None
            if phase is not None:
                d_h = of.get(("h", name), of.get(("of", name), zero))
                if 0 < phase < last and d_x != d_h:
                    hint = f"read only the sum {name}.x + {name}.of(value), or read {name} in the first or last phase"
                    expected = "equal gradients of its projected input and its recurrent product"
                    raise EquationError(f"gate {name!r}", expected=expected, got="different gradients", hint=hint)
                kind = "both" if d_x == d_h else "h"
                phases[phase][kind].append(Column(kind, name, d_h))
                d_x = None if kind == "both" else d_x
            if d_x is not None:
                phases[last if self.stages[d_x] == last else 0]["x"].append(Column("x", name, d_x))
        shared = {column.number for kinds in phases for columns in kinds.values() for column in columns}
        for name in self.step.rows:  # a row input that is added to a product shares the gradient of that product
            if (d_row := of.get(("row", name), zero)) not in {zero, *shared}:
                phases[last if self.stages[d_row] == last else 0]["row"].append(Column("row", name, d_row))
        first, end = ("h", "both", "x", "row"), ("x", "both", "h", "row")
        orders = [first] if last == 0 else [("row", "h", "both", "x"), *[end] * last]
        return [[c for kind in order for c in kinds[kind]] for order, kinds in zip(orders, phases, strict=True)]

    def _free(self) -> set[int]:
        """Return the nodes that the gradient can read elsewhere: states, operands, vectors, row inputs, norms."""
        free = {*self.step.results[1:], *(k for k in self.operands if k is not None)}
        for k, (op, _, what) in enumerate(self.trace.nodes):
            if op in ("vector", "row", "norm") or (op == "prev" and (what != 0 or self.reads_output)):
                free.add(k)
        return free

    def _d_norm(self, k: int) -> int:
        """Return the node of the gradient with respect to the norm of node `k`."""
        gradient = self.gradients.get(("norm", k))
        return self.zero if gradient is None else gradient.number

    def _keep(self) -> None:
        """Choose the numbers to save, and a column for each: an empty one of its gate or phase, otherwise a new one."""
        roots = [column.number for columns in self.columns for column in columns] + self.d_prev + self.d_vectors
        roots += [self._d_norm(k) for values in self.norms for k in values]
        after = [k for k in self.trace.reach(roots) if k in self.depends]
        needed = {a for k in after for a in self.trace.nodes[k].operands if a not in self.depends}
        needed = {k for k in needed if self.trace.value(k) is None}
        num_columns = sum(column.kind != "row" for columns in self.columns for column in columns)
        kept = choose(self.trace, needed, self.free, self.native, num_columns)
        gates = {k: self._gates_below(k, kept) for k in kept}
        for k in sorted(kept, key=lambda k: (len(gates[k]) != 1, k)):
            columns = self.columns[self._phase_for(k)]
            empty = [number for number, column in enumerate(columns) if column.kept < 0]
            empty.sort(key=lambda number: columns[number].kind == "row")
            mine = [number for number in empty if columns[number].name in gates[k]]
            if empty:
                number = (mine or empty)[0]
                columns[number] = columns[number]._replace(kept=k)
            else:
                name = min(gates[k]) if len(gates[k]) == 1 else "t"
                columns.insert(
                    0 if columns is self.columns[0] and self.num_phases > 1 else len(columns),
                    Column("none", name, -1, k),
                )

    def _phase_for(self, k: int) -> int:
        """Return the phase that saves node `k`: the phase that computes it if a column is empty there, else the last.

        The first phase saves it even without an empty column.
        """
        level, last = self.levels[k], self.num_phases - 1
        room = any(column.kept < 0 for column in self.columns[level])
        return level if room or level in (0, last) else last

    def _gates_below(self, k: int, kept: list[int]) -> set[str]:
        """Return the gates that node `k` depends on, not looking below other saved nodes."""
        op, operands, _ = self.trace.nodes[k]
        stops = {*kept, *self.free}
        below = self.trace.reach(operands, stops) if op in OPERATIONS else [k]
        leaves = [self.trace.nodes[a] for a in below if a == k or a not in stops]
        return {leaf.what for leaf in leaves if leaf.op in ("x", "h", "of")}

    def derived(self) -> Derived:
        self.slot_names = self._slot_names()
        forward, passes = self._forward_source()
        backward, carries = self._backward_source()
        return Derived(
            tuple(map(tuple, self.columns)), self.products, passes, carries, tuple(map(tuple, self.norms)),
            tuple(map(self._kept_columns, range(self.num_phases))), tuple(map(tuple, self.vectors)), self.reads_output,
            self.gradients, tuple(self.slot_names), self._factors(), "\n".join([*forward, *backward]),
        )  # fmt: skip

    def _factors(self) -> tuple[int, ...]:
        """Return the positions of the columns whose saved number is only a factor of gradients.

        An error of such a number is the same error, relative to the number, of a term of a gradient.  In `1 - y * y`,
        an error of y could be many times the result.
        """
        kept = [column.kept for columns in self.columns for column in columns]
        of_gradients = [column.number for columns in self.columns for column in columns if column.number >= 0]
        nodes = self.trace.reach([*of_gradients, *self.d_prev, *self.d_vectors], {*kept, *self.free})

        def is_factor(k: int) -> bool:
            users = [n for n in nodes if n not in kept and k in self.trace.nodes[n].operands]
            return all(self.trace.nodes[n].op == "multiply" and (n in self.depends or is_factor(n)) for n in users)

        return tuple(place for place, k in enumerate(kept) if k >= 0 and is_factor(k))

    def _slot_names(self) -> list[str]:
        """Return each column's name: of the number saved there, or "d_" and the gate if it only gets a gradient."""
        names: list[str] = []
        for column in (column for columns in self.columns for column in columns):
            op = self.trace.nodes[column.kept].op if column.kept >= 0 else ""
            prefix = {"h": "u_", "of": "u_", "x": "x_"}.get(op, "")
            below = self._gates_below(column.kept, []) if column.kept >= 0 else {column.name}
            name = prefix + (min(below) if len(below) == 1 else column.name)
            if column.kept < 0:
                name = f"d_{name}"
            while name in names or name in _RESERVED or _TEMPORARY.fullmatch(name):
                name += "_"
            names.append(name)
        return names

    def _forward_source(self) -> tuple[list[str], tuple[int, ...]]:
        """Return the source of each phase's `step`, and how many values each phase hands to later phases."""
        groups = self._x_gates(), self.step.vectors + self.step.rows
        index = {name: number for group in groups for number, name in enumerate(group)}
        everywhere = {"x": "x[{}]", "prev": "prev[{}]", "vector": "v[{}]", "row": "v[{}]"}
        given = {
            k: everywhere[op].format(index.get(what, what))
            for k, (op, _, what) in enumerate(self.trace.nodes)
            if op in everywhere
        }
        sources, counts = [], []
        passed: dict[int, None] = {}
        roots = [self._forward_roots(number) for number in range(self.num_phases)]
        for number in range(self.num_phases):
            here = given | {k: f"p_{place}" for place, k in enumerate(passed)}
            gates = self.products[number]
            here |= {
                k: f"h[{gates.index(what)}]"
                for k, (op, _, what) in enumerate(self.trace.nodes)
                if op in ("h", "of") and self.levels[k] == number and what in gates
            }
            later = [k for group in [*roots[number + 1 :], *self.norms[number + 1 :]] for k in group]
            normed = [self.trace.node("norm", k).number for k in self.norms[number]]
            known = {*given, *passed, *normed}
            cross = [*self.norms[number], *self._frontier(later, known, functools.partial(self._is_known, number))]
            lines, texts = write(self.trace, here, [*roots[number], *cross], "prev[0]")
            first, states, slots = self._split_forward(number, [texts[k] for k in roots[number]])
            results = first, as_tuple(states), as_tuple(slots), as_tuple(texts[k] for k in cross)
            unpacked = f"{', '.join(f'p_{place}' for place in range(len(passed)))}, = passed" if passed else ""
            name = f"step_{number}" if self.num_phases > 1 else "step"
            sources.append(function(name, "x, h, prev, passed, v", unpacked, lines, results))
            passed |= dict.fromkeys([*normed, *cross[len(normed) :]])
            counts.append(len(cross))
        return sources, tuple(counts)

    def _is_known(self, number: int, k: int) -> bool:
        """Return whether node `k` can be computed right after the product of phase `number`."""
        return self.levels[k] <= number

    def _x_gates(self) -> tuple[str, ...]:
        reached = {self.trace.nodes[k].what for k in self.native if self.trace.nodes[k].op == "x"}
        return tuple(gate for gate in self.step.gates if gate in reached)

    def _forward_roots(self, number: int) -> list[int]:
        """Return the nodes that the `step` of a phase computes, in the order of its results.

        The last phase returns the states, the output first.  Any other phase returns the operand of the next phase's
        product, or zero if that phase has none.  The numbers that the phase saves come last.
        """
        zero, last = self.zero, number == self.num_phases - 1
        first, end = self._kept_columns(number)
        slots = [column.kept if column.kept >= 0 else zero for column in self.columns[number][first:end]]
        operand = zero if last else self.operands[number]
        return [*(self.step.results if last else [zero if operand is None else operand]), *slots]

    def _kept_columns(self, number: int) -> tuple[int, int]:
        """Return the range of a phase's columns, counted within the phase, in which its `step` saves a number."""
        kept = [place for place, column in enumerate(self.columns[number]) if column.kept >= 0]
        return (kept[0], kept[-1] + 1) if kept else (0, 0)

    def _split_forward(self, number: int, texts: list[str]) -> tuple[str, list[str], list[str]]:
        first, end = self._kept_columns(number)
        cut = len(texts) - (end - first)
        return texts[0], texts[1:cut], texts[cut:]

    def _frontier(self, roots: list[int], given: set[int], is_known: Callable[[int], bool]) -> list[int]:
        """Return the nodes that a phase must hand to other phases so that they can compute `roots`.

        A walk from `roots` to their operands stops at `given` nodes, and at nodes that this phase knows.  It returns
        the nodes that this phase knows.
        """
        found, seen, todo = set(), set(given), list(roots)
        while todo:
            k = todo.pop()
            if k in seen or self.trace.value(k) is not None:
                continue
            seen.add(k)
            if is_known(k):
                found.add(k)
            elif self.trace.nodes[k].op in OPERATIONS:
                todo += self.trace.nodes[k].operands
        return sorted(found)

    def _backward_source(self) -> tuple[list[str], tuple[int, ...]]:
        """Return the source of each phase's `step_grad`, last phase first, and how many values a phase carries back."""
        step, zero = self.step, self.zero
        given = {k: f"prev[{n.what}]" for k, n in enumerate(self.trace.nodes) if n.op == "prev" and k in self.free}
        others = [("vector", name) for name in step.vectors] + [("row", name) for name in step.rows]
        given |= {self.trace.node(op, what=name).number: f"v[{n}]" for n, (op, name) in enumerate(others)}
        operands = [k for k in self.operands if k is not None]
        operands += [self.trace.node("norm", k).number for values in self.norms for k in values]
        given |= {k: f"operands[{n}]" for n, k in enumerate(operands) if k not in given}
        given |= {k: f"states[{n}]" for n, k in enumerate(step.results) if n and k not in given}
        given |= {d.number: f"carried[{n}]" for n, d in enumerate(self.d_states)}
        sources, counts = [], []
        carried: list[int] = []
        roots = [[c.number if c.number >= 0 else zero for c in columns] for columns in self.columns]
        of_vectors = [[self.d_vectors[k] for k in vectors] for vectors in self.vectors]
        roots[0] = roots[0] + self.d_prev
        ends = [sum(map(len, self.columns[: number + 1])) for number in range(self.num_phases)]
        kept = [column.kept for columns in self.columns for column in columns]
        size = len(step.states) + (self.num_phases > 1)
        for number in reversed(range(self.num_phases)):
            known = given | {k: self.slot_names[n] for n, k in enumerate(kept[: ends[number]]) if k >= 0}
            arriving = list(enumerate(carried, size))[len(self.norms[number]) :]
            here = known | {k: f"carried[{n}]" for n, k in arriving if k not in known}
            if number < self.num_phases - 1 and self.operands[number] is not None:
                here |= self._arriving("d_operand", self.operands[number], f"carried[{size - 1}]")
            for n, k in enumerate(self.norms[number]):
                here |= self._arriving("d_norm", k, f"carried[{size + n}]")
            cross: list[int] = []
            if number:
                earlier = {*given, *kept[: ends[number - 1]]} - {-1}
                later = [k for group in roots[:number] + of_vectors[:number] for k in group]
                later += [self._d_norm(k) for values in self.norms[: number - 1] for k in values]
                cross = [self._d_norm(k) for k in self.norms[number - 1]]
                cross += self._carried(later, earlier, {*kept[ends[number - 1] :]}, number)
            mine = roots[number]
            lines, texts = write(self.trace, here, [*mine, *cross, *of_vectors[number]], "carried[0]")
            slots = [texts[k] for k in mine[: len(self.columns[number])]]
            onward = [texts[k] for k in mine[len(self.columns[number]) :]]
            if number:
                onward = [f"carried[{n}]" for n in range(len(step.states))]
            d_vectors = as_tuple(texts[k] for k in of_vectors[number])
            sources.append((number, here, lines, slots, onward, [texts[k] for k in cross], d_vectors))
            carried = cross
            counts.append(len(cross))
        counts.reverse()
        return [self._gradient_function(*parts, max(counts)) for parts in sources], tuple(counts)

    def _arriving(self, op: str, what: int | None, text: str) -> dict[int, str]:
        """Return {node: text} for the gradient that a product or norm sends back; {} if the trace has no such node."""
        node = Node(op, (), what)
        return {self.trace.nodes.index(node): text} if node in self.trace.nodes else {}

    def _carried(self, later: list[int], earlier: set[int], kept: set[int], number: int) -> list[int]:
        """Return the nodes that the gradients of earlier phases read but cannot compute.

        The gradient of phase `number` or of a later phase computes these nodes, or slots of these phases hold them.
        """
        return self._frontier(later, earlier, lambda k: k in kept or self.stages[k] >= number)

    def _gradient_function(self, number, here, lines, slots, onward, cross, d_vectors, most) -> str:
        if self.num_phases > 1:
            lines = [*lines, "none = type(carried[0])(0)"]
            onward = [*onward, "none", *cross, *["none"] * (most - len(cross))]
        names = [name if name in here.values() else "_" for name in self.slot_names]
        unpacked = f"{', '.join(names)}, = slots" if set(names) != {"_"} else ""
        name = f"step_grad_{number}" if self.num_phases > 1 else "step_grad"
        arguments = "slots, prev, states, operands, carried, v"
        return function(name, arguments, unpacked, lines, (as_tuple(slots), as_tuple(onward), d_vectors))
