"""Lower a step of ordinary operators to a cell: products with weights become gates, other operators equations.

The equations of a cell compute one unit of one row.  To find them, the block is interpreted on the scalars of one unit:
a variable of `k * hidden` columns becomes a list of `k` scalars.  Only products with a captured weight may mix units:
if any other operator mixes rows or units, the step is refused.
"""

import hashlib
import itertools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from varlen_rnn.cells import find_cell
from varlen_rnn.cells.contract import Cell
from varlen_rnn.cells.define import cell_of_step
from varlen_rnn.cells.derivation.derive import Step
from varlen_rnn.cells.derivation.operations import OPERATIONS
from varlen_rnn.cells.derivation.trace import EquationError, Scalar, Trace
from varlen_rnn.tape.checks import FLOATS
from varlen_rnn.tape.kinds import LOD_TENSOR

_ONE_WAY = None, (0,)  # the values of a layer's constant `reverse` that mean a single forward direction
_INPUT = "x"  # represents, in a list of scalars, all columns of the step's input
SIZES_UNKNOWN = "its sizes are known only when it runs"
_MIXES = "can mix rows or units: use products with weights and elementwise operators instead"
_MOST_NODES = 400  # the most nodes of a step, because the time to derive a cell grows faster than their number


class Refused(Exception):
    """A step cannot be lowered; the message says why."""


class Part(NamedTuple):
    """A block of `hidden` units of a captured weight or vector, which begins at unit `block * hidden`."""

    number: int  # its position among the captured values
    block: int
    transposed: bool = True  # True if the weight has one row per unit, False if it has one column per unit
    begin: int = 0  # the first column of the weight, if it has one row per unit
    end: int | None = None  # the column after the last column


class Product(NamedTuple):
    """A product that gives `hidden` units: its kind, its weight, and its bias or None.

    The kind names the left operand: "x" is the step's input, "h" the output of the step before, "of" any other value.
    """

    kind: str
    weight: Part
    bias: Part | None


class Lowered(NamedTuple):
    """A step lowered to a cell, and the positions of its weights among the captured values.

    states: for each state of the cell, the number of the step's memory (state); the first state is the output
    of_x, of_h: the products of the input and of a state, each in the order of the cell's gates
    precision: of all its products
    """

    cell: Cell
    states: tuple[int, ...]
    of_x: tuple[Product, ...]
    of_h: tuple[Product, ...]
    vectors: tuple[Part, ...]
    precision: str


class Block(NamedTuple):
    """A step: its operators, the positions of its variables, and the specs of its arguments."""

    instructions: list
    inputs: tuple[int, ...]
    memories: tuple[int, ...]
    captured: tuple[int, ...]
    output: int
    next_memories: tuple[int, ...]
    missing: int  # the position that represents a missing input of an operator
    specs: dict


def lower(block):
    """Return a step lowered to a cell, or a text that says why it cannot be lowered."""
    operators = [(sorted(one.attrs.items()), one.inputs, one.outputs) for one in block.instructions]
    operators += [find_cell(one.attrs["cell"]).source for one in block.instructions if one.op.type == "recurrent"]
    text = repr((block[1:-1], sorted(block.specs.items()), operators))
    # The key holds the operators themselves, because another operator can be declared later under the same name.
    key = text, *(one.op for one in block.instructions)
    if (found := _known.get(key)) is None:
        try:
            found = _Lowering(block).lowered()
        except Refused as reason:
            found = str(reason)
        except EquationError as error:
            found = f"its equations do not form a cell: {error}"
        if len(_known) >= _MOST:
            _known.clear()
        _known[key] = found
    return found


_MOST = 256
# A cache of lowered steps by content, because lowering takes longer than running many steps.
_known: dict[tuple[Any, ...], Any] = {}
_cells: dict[str, Cell] = {}  # {equations: cell}, because a cell does not depend on sizes
_MOST_NUMBERS = 8
_numbers_of: dict[str, int] = {}  # {equations without constants: how many cells differ only in constants}


def _cell_of(step):
    """Return the known cell with the same equations, or make a new one.

    If a step's constants change from call to call, refuse it, because compiling a cell for each call takes too long.
    """
    key = repr((step.gates, step.vectors, step.results, step.trace.nodes))
    if (cell := _cells.get(key)) is None:
        nodes = [(node.op, node.operands) if node.op == "number" else node for node in step.trace.nodes]
        others = repr((step.gates, step.vectors, step.results, nodes))
        if _numbers_of.get(others, 0) >= _MOST_NUMBERS:
            raise Refused("its numbers change from call to call: put them into a vector with one number per unit")
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        _cells[key] = cell = cell_of_step(step, f"step {digest}", lower)
        _numbers_of[others] = _numbers_of.get(others, 0) + 1
    return cell


class _Lowering:
    def __init__(self, block):
        self.block, self.specs = block, block.specs
        self.hidden, self.order = self._checked()
        self.features = block.specs[block.inputs[0]].shape[1]
        self.numbers = {place: number for number, place in enumerate(block.captured)}

    def _checked(self):
        """Return the number of units, and the numbers of the memories, the output's first; raise if it is no cell."""
        block, specs = self.block, self.specs
        if len(block.inputs) != 1:
            told = "concat them before the layer, and multiply the result by a weight"
            raise Refused(f"it has {len(block.inputs)} inputs, but a cell has one: {told}")
        if specs[block.inputs[0]].lod_level:
            raise Refused("its input at each step is a sequence, but a cell takes rows")
        if not block.memories:
            raise Refused("it has no state")
        if any(specs[memory].lod_level for memory in block.memories):
            raise Refused("one of its states is a sequence, but the states of a cell are rows")
        if block.output not in block.next_memories:
            raise Refused("its output is none of its next states: return the output as a state, too")
        if len({spec.dtype for spec in specs.values()}) > 1 or specs[block.inputs[0]].dtype not in FLOATS:
            raise Refused("its input, states and weights do not all have the same data type, float32 or float64")
        if len({specs[p].shape[1:] for p in block.memories}) > 1 or len(specs[block.memories[0]].shape) != 2:
            raise Refused("its states do not all have the same number of units")
        if any(spec.kind is not LOD_TENSOR or -1 in spec.shape[1:] for spec in specs.values()):
            raise Refused(SIZES_UNKNOWN)
        hidden = specs[block.memories[0]].shape[1]
        if hidden < 1 or len(specs[block.inputs[0]].shape) != 2:
            raise Refused("its input and states do not have shape (rows, columns)")
        first = block.next_memories.index(block.output)
        return hidden, (first, *(n for n in range(len(block.memories)) if n != first))

    def lowered(self):
        # The first interpretation finds pairs of products of which only the sum is read: such a pair is one gate.
        pairs = self._pairs(*self._interpret({}))
        names = {key: f"g{number}" for number, pair in enumerate(pairs) for key in pair if key is not None}
        trace, results = self._interpret(names)
        gates = tuple(f"g{number}" for number in range(len(pairs)))
        states = tuple(f"s{number}" for number in range(len(self.order)))
        vectors = tuple(f"v{number}" for number in range(len(self.vectors)))
        if not gates:
            raise Refused("it has no product with a weight")
        cell = _cell_of(Step(trace, gates, ("h", *states[1:]), vectors, (), results))
        of: dict[str, dict[bool, Product]] = {names[key]: {} for key in names}
        for key, gate in names.items():
            of[gate][key.kind == _INPUT] = key
        return Lowered(
            cell, self.order, tuple(of[gate][True] for gate in cell.x_gates),
            tuple(of[gate][False] for gate in cell.h_gates), tuple(self.vectors), self._precision(),
        )  # fmt: skip

    def _precision(self):
        """Return the precision of the step's products, which the cell has for all of them."""
        found = {one.op.precision for one in self.block.instructions if one.op.multiplies}
        if len(found) > 1:
            raise Refused(f"its products have different precisions: {', '.join(sorted(found))}")
        return found.pop()

    def _pairs(self, trace, results):
        """Return the gates of the cell: pairs (product of the input, product of a state), or (other product, None).

        The step reads the two products of a pair only as their sum.
        """
        reached = trace.reach(results)
        used = [a for k in reached for a in trace.nodes[k].operands]
        keys = {k: trace.nodes[k].what for k in reached if trace.nodes[k].op in ("x", "h", "of")}
        pairs = []
        for k in reached:
            op, operands, _ = trace.nodes[k]
            both = sorted((keys[a] for a in operands if a in keys), key=lambda key: key.kind != _INPUT)
            is_pair = op == "add" and len(both) == 2 and both[0].kind == _INPUT != both[1].kind
            if is_pair and all(used.count(a) == 1 and a not in results for a in operands):
                pairs.append((both[0], both[1]))
        paired = {key for pair in pairs for key in pair}
        alone = [(key, None) for key in keys.values() if key not in paired]
        levels: list[int] = []
        level_of: dict[Product, int] = {}
        for op, operands, what in trace.nodes:  # a level counts the products, one after another, before a node
            levels.append(max((levels[a] for a in operands), default=0) + (op == "of"))
            level_of[what] = levels[-1]
        return sorted(pairs + alone, key=lambda pair: level_of[pair[1] or pair[0]])

    def _interpret(self, names):
        """Return a trace of the step, and the nodes of its next states, the output first."""
        self.trace, self.names, self.vectors = Trace(), names, []
        self.values: dict[int, list[Any]] = {self.block.inputs[0]: [_INPUT]}
        self.of_layers = set[int]()  # positions of states that recurrent layers return: (1, rows, units), not rows
        for state, memory in enumerate(self.order):
            self.values[self.block.memories[memory]] = [self.trace.node("prev", what=state)]
        for number, instruction in enumerate(self.block.instructions):
            if len(self.trace.nodes) > _MOST_NODES:
                raise Refused(f"it has more than {_MOST_NODES} operations per unit")
            self._interpret_one(number, *instruction[:4])
        results = []
        for memory in self.order:
            value = self.values.get(self.block.next_memories[memory])
            if value is None or len(value) != 1 or value[0] is _INPUT:
                raise Refused(f"its next state {memory} is the input itself, or a captured value")
            results.append(self.trace.number_of(value[0]))
        return self.trace, tuple(results)

    def _interpret_one(self, number, op, attrs, inputs, outputs):
        where = f"operator {number}, {op.type}"
        if op.type not in ("recurrent", "reshape") and not self.of_layers.isdisjoint(inputs):
            raise Refused(f"{where}: it reads the state of a layer, which has three axes: reshape it to rows")
        if op.type in self.MOVES:
            found = self.MOVES[op.type](self, where, attrs, inputs)
        elif op.scalar is not None:
            found = [self._elementwise(where, op.scalar, attrs, [self._scalars(where, place) for place in inputs])]
        else:
            raise Refused(f"{where}, {_MIXES}")
        if op.type == "recurrent":
            self.of_layers.update(outputs[1:])
        elif op.type == "reshape" and len(attrs["shape"]) == 3:
            self.of_layers.update(outputs)
        self.values.update(zip(outputs, found, strict=False))

    def _concat(self, where, attrs, inputs):
        if attrs["axis"] not in (1, -1):
            raise Refused(f"{where}, {_MIXES}")
        return [[block for place in inputs for block in self._blocks(where, place)]]

    def _single_rows(self, where, attrs, inputs):
        return [self._blocks(where, inputs[0])]

    def _number(self, where, attrs, inputs):
        if attrs["shape"] != ():
            raise Refused(f"{where}: it is a constant that is not a single number")
        return [[float(attrs["value"])]]

    def _detached(self, where, attrs, inputs):
        raise Refused(f"{where}: it stops the gradient; fused, constant(value) in a vr.cell does so")

    def _reshaped(self, where, attrs, inputs):
        """Return the blocks of columns of a variable unchanged; raise unless the new shape has the same rows."""
        value, shape = self._blocks(where, inputs[0]), attrs["shape"]
        width = None if any(block is _INPUT for block in value) else len(value) * self.hidden
        if shape not in ((-1, width), (1, -1, width)):
            raise Refused(f"{where}: a reshape must keep the rows, each with all of its columns")
        return [value]

    def _cell(self, where, attrs, inputs):
        """Replace a recurrent layer, which runs one step here, by the equations of its cell.

        Return a list: None in place of the layer's output, then each state after the step.
        """
        cell = find_cell(attrs["cell"])
        states = inputs[1 : 1 + len(cell.states)]
        weights = inputs[1 + len(states) :]
        given = [self.values.get(place) or [] for place in states]
        of_gates = cell.equations is not None and not cell.vectors and not cell.row_inputs
        if not of_gates or len(weights) != 4 or attrs["reverse"] not in _ONE_WAY:
            raise Refused(f"{where}: a layer in a step needs one direction, and a cell without vectors and row inputs")
        if any(len(value) != 1 or not isinstance(value[0], Scalar) for value in given):
            raise Refused(f"{where}: each of its states must be a state of the step, or computed from these states")
        w_ih, w_hh, b_ih, b_hh = weights
        of_x = dict(zip(cell.x_gates, self._product(where, True, inputs[0], w_ih, b_ih), strict=True))
        of_h = dict(zip(cell.h_gates, self._product(where, True, states[0], w_hh, b_hh), strict=True))
        found = self._replayed(where, cell.equations, of_x, of_h, [value[0] for value in given])
        return [None, *([value] for value in found)]

    def _replayed(self, where, equations, of_x, of_h, states):
        """Return the results of a cell's equations for the given gates and states."""
        nodes, found = equations.trace.nodes, dict[int, Any]()
        leaves = {"x": of_x.get, "h": of_h.get, "prev": states.__getitem__, "number": float}
        for k in equations.trace.reach(equations.results):
            op, operands, what = nodes[k]
            if op in leaves:
                found[k] = leaves[op](what)
            elif op in OPERATIONS:
                found[k] = self.trace.apply(op, *(found[a] for a in operands))
            else:
                raise Refused(f"{where}: its cell has products that depend on other gates")
        return [found[k] for k in equations.results]

    def _matmul(self, where, attrs, inputs):
        return [self._product(where, attrs["transposed"], *inputs)]

    def _product(self, where, transposed, left, weight, bias):
        """Return the scalars of a product; if `left` has several blocks of columns, each is a sum of products."""
        values = self._blocks(where, left)
        if weight not in self.numbers:
            raise Refused(f"{where}: its weight is computed in the step; compute the weight outside")
        spec = self.specs[weight]
        columns, depth = spec.shape if transposed else spec.shape[::-1]
        if spec.shape[0] < 0 or columns % self.hidden or not columns or spec.lod_level:
            raise Refused(f"{where}: its weight gives {columns} columns, no multiple of {self.hidden} units")
        of_bias = self.specs[bias] if bias in self.numbers else None
        if of_bias is None and bias != self.block.missing:
            raise Refused(f"{where}: its bias is computed in the step; compute the bias outside")
        ends = list(itertools.accumulate(self.features if value is _INPUT else self.hidden for value in values))
        if ends[-1] != depth or (of_bias is not None and of_bias.shape != (columns,)):
            raise Refused(f"{where}: its weight or bias does not fit: operand {ends[-1]} columns, weight {depth}")
        results = []
        for block in range(columns // self.hidden):
            biases, total = of_bias and Part(self.numbers[bias], block), None
            for begin, end, value in zip([0, *ends], ends, values, strict=False):
                part = Part(self.numbers[weight], block, transposed, begin, end)
                leaf = self._leaf(Product(self._kind(where, value), part, biases), value)
                biases, total = None, leaf if total is None else self.trace.apply("add", total, leaf)
            results.append(total)
        return results

    def _kind(self, where, value):
        """Return the kind of a product (see Product), given its left operand."""
        if value is _INPUT:
            return "x"
        if not isinstance(value, Scalar):
            raise Refused(f"{where}: it multiplies a constant number by a weight")
        return "h" if value.number == self.trace.node("prev", what=0).number else "of"

    def _blocks(self, where, place):
        """Return the scalars of a variable; if it is the step's input, [_INPUT]."""
        value = self.values.get(place)
        return self._scalars(where, place) if value is None else value

    def _leaf(self, key, value):
        operand = [value.number] if key.kind == "of" else []
        return self.trace.node(key.kind, *operand, what=self.names.get(key, key))

    def _columns(self, where, attrs, inputs):
        index, place = attrs["index"] if isinstance(attrs["index"], tuple) else (attrs["index"],), inputs[0]
        rank = len(self.specs[place].shape) if place in self.numbers else 2
        if len(index) != rank or any(not isinstance(part, slice) or part.step not in (None, 1) for part in index):
            raise Refused(f"{where}: only blocks of columns can be taken, such as x[:, a:b]")
        scalars = self._scalars(where, place)
        columns, last = len(scalars) * self.hidden, index[-1]
        begin, end, _ = last.indices(columns)
        if any(part != slice(None) for part in index[:-1]) or begin % self.hidden or end % self.hidden or begin >= end:
            raise Refused(f"{where}: columns {begin} to {end} are not whole blocks of {self.hidden} units")
        return [scalars[begin // self.hidden : end // self.hidden]]

    def _pieces(self, where, attrs, inputs):
        if attrs["axis"] not in (1, -1):
            raise Refused(f"{where}, {_MIXES}")
        scalars, sizes = iter(self._scalars(where, inputs[0])), attrs["sizes"]
        if any(size % self.hidden or not size for size in sizes):
            raise Refused(f"{where}: pieces of {sizes} columns are not whole blocks of {self.hidden} units")
        return [list(itertools.islice(scalars, size // self.hidden)) for size in sizes]

    def _scalars(self, where, place):
        """Return the scalars of a variable; a captured vector becomes a vector of the cell, one number per unit."""
        value = self.values.get(place)
        if value is not None:
            if any(block is _INPUT for block in value):
                raise Refused(f"{where}: it reads the step's input itself: multiply it by a weight from outside first")
            return value
        if place not in self.numbers:
            raise Refused(f"{where}: it reads the output of a layer of one step: read the layer's last state instead")
        spec = self.specs[place]
        columns = spec.shape[-1] if spec.shape else 0
        if spec.shape not in ((columns,), (1, columns)) or columns % self.hidden or not columns or spec.lod_level:
            told = "not one number per unit; values computed from weights alone belong outside of the step"
            raise Refused(f"{where}: it reads a captured value of shape {spec.shape}, {told}")
        self.values[place] = [self._vector(Part(self.numbers[place], block)) for block in range(columns // self.hidden)]
        return self.values[place]

    def _vector(self, part):
        if part not in self.vectors:
            self.vectors.append(part)
        return self.trace.node("vector", what=f"v{self.vectors.index(part)}")

    def _elementwise(self, where, scalar, attrs, operands):
        width = max(map(len, operands))
        if any(len(s) != width and not (len(s) == 1 and isinstance(s[0], float)) for s in operands):
            widths = " and ".join(str(len(s) * self.hidden) for s in operands)
            raise Refused(f"{where}: its operands have {widths} columns")
        numbers = [[self.trace.scalar(self.trace.number_of(value)) for value in scalars] for scalars in operands]
        try:
            columns = zip(*(scalars if len(scalars) == width else scalars * width for scalars in numbers), strict=True)
            return [scalar(*values, **attrs) for values in columns]
        except EquationError as error:
            raise Refused(f"{where}: {error}") from error

    # For each operator that is not elementwise, the method that returns the scalars of its outputs.
    MOVES: ClassVar[dict[str, Callable[..., list[Any]]]] = {
        "matmul": _matmul, "getitem": _columns, "concat": _concat, "split": _pieces, "reshape": _reshaped,
        "single_rows": _single_rows, "recurrent": _cell, "fill_constant": _number, "detach": _detached,
    }  # fmt: skip
