"""Describe a user's step: trace it into a block of operators, and lower this block to a cell.

In eager mode, each call traces the step again, because the Python function can behave differently in each call.  If an
equal step was traced before, its instructions, its cell and the description of its gradient are used again.
"""

import threading
from typing import Any, NamedTuple

from varlen_rnn.errors import DTypeError, LoDError, OutOfRangeError, ShapeError
from varlen_rnn.program.recorder import Recorder
from varlen_rnn.steps import ahead
from varlen_rnn.steps.lower import SIZES_UNKNOWN, Lowered, lower
from varlen_rnn.steps.lower import Block as StepBlock
from varlen_rnn.tape.backward import propagate
from varlen_rnn.tape.index import index_to_text
from varlen_rnn.tape.modes import grad_enabled, recorder, recording
from varlen_rnn.tape.spec import describe
from varlen_rnn.tape.variable import Variable, required


class Names(NamedTuple):
    """The names of a step's variables: first its arguments, in the order of the operator's inputs, then its results."""

    step_inputs: tuple[str, ...]
    memories: tuple[str, ...]
    captured: tuple[str, ...]
    output: str
    next_memories: tuple[str, ...]

    def taken(self):
        """Return the names of the step's arguments, in the order of the operator's inputs."""
        return [*self.step_inputs, *self.memories, *self.captured]

    def split(self, inputs):
        """Split an operator's inputs into the sequences, the initial memories, and the captured values."""
        first, second = len(self.step_inputs), len(self.step_inputs) + len(self.memories)
        return inputs[:first], inputs[first:second], inputs[second:]


def places_of(place, names):
    """Return the position of each name."""
    return [place[name] for name in names]


def describe_step(cell, xs, states, level=-1):
    """Trace a step; return the operator's constants, its sequences, the captured values, and names of early operators.

    Early operators are those that can run once, ahead of the step.  They run here, or are recorded in a program.  The
    returned sequences are `xs`, or results of early operators.  `cell` is called once.  Each entry of the LoD level
    `level` of `xs` is a step, whose inputs have the levels below `level`.
    """
    below = [_levels_below(describe(x.value).lod_level, level) for x in xs]
    into = recorder() or Recorder()
    xs, states = [[into.admit(v) for v in group] if recorder() else group for group in (xs, states)]
    with recording(into), into.block() as block:
        arguments = [block.argument("x", x, x.requires_grad, n) for x, n in zip(xs, below, strict=True)]
        # A state depends on earlier inputs, so it needs a gradient even if its initial value needs none.
        level = describe(xs[0].value).lod_level - 1 - below[0]
        for state in states:
            levels = levels_of_state(describe(state.value).lod_level, level)
            arguments.append(block.argument("state", state, state.dtype.kind == "f", levels))
        given = _called(cell, arguments)
        results = list(given) if isinstance(given, (tuple, list)) else [given]
        if len(results) != 1 + len(states):
            expected = f"a step that returns an output and {len(states)} next states"
            hint = "return (output, *next_states); if the output is a state, return it twice: return h, h"
            raise ShapeError("DynamicRNN, cell", expected=expected, got=f"{len(results)} variables", hint=hint)
        results = [into.admit(required(result, "DynamicRNN, cell")) for result in results]
        results = [result if block.stop(result) is result.value else Variable(block.stop(result)) for result in results]
        sequences, captures = arguments[: len(xs)], list(block.captures.values())
        early = ahead.split(block, sequences, results) if any(below) else None
    if early is not None:
        outside = {id(inner.value): x for inner, x in zip(sequences, xs, strict=True)}
        outside |= {id(inner.value): outer for outer, inner in captures}
        xs = ahead.run(early, outside, level + 1)
        sequences, captures = early.given, early.captured
    captured, own = zip(*captures, strict=True) if captures else ((), ())
    # The block is in a reference cycle.  With its captures, it would keep the caller's Variables alive for a long time.
    block.captures = {}
    taken = [sequences, arguments[len(below) :], own]
    block.variables = {variable.name: variable for group in (*taken, results) for variable in group}
    step_inputs, memories, captured_names, (output, *after) = [[v.name for v in group] for group in (*taken, results)]
    step = {
        "block": block, "step_inputs": tuple(step_inputs), "memories": tuple(memories),
        "captured": tuple(captured_names), "output": output, "next_memories": tuple(after),
    }  # fmt: skip
    names = () if early is None else tuple(op.type for op, *_ in early.operators)
    return (_once(step) if recorder() is None else step), xs, captured, names


def _called(cell, arguments):
    """Call a step and return its results; add the step's arguments to an error about inputs that do not fit."""
    try:
        return cell(*arguments)
    except (ShapeError, DTypeError, LoDError) as error:
        given = ", ".join(f"{v.name} {v.dtype} {list(v.value.shape)}" for v in arguments)
        raise type(error)(f"{error}; in a step of DynamicRNN, given {given}") from error


def levels_of_state(num_levels, level):
    """Return how many of a state's `num_levels` levels it has at a step; 0 if it has one row per sequence."""
    return max(0, num_levels - max(0, level))


def _levels_below(num_levels, level):
    """Return how many of `num_levels` levels are below `level`."""
    if num_levels and not -num_levels <= level < num_levels:
        raise OutOfRangeError("DynamicRNN, level", expected=f"one of the {num_levels} LoD levels of x", got=level)
    return num_levels - 1 - level % num_levels if num_levels else 0  # without levels, the operator raises the error


class _Known(threading.local):  # one cache for each thread: only the thread that traced a step can use the traced block
    def __init__(self):
        self.steps = {}


_known = _Known()
_MOST_KNOWN = 64


def _once(step):
    """Return an equal step that was described before, or `step` if there is none."""
    if (key := _key(step)) is None:
        return step
    if (found := _known.steps.get(key)) is None:
        if len(_known.steps) >= _MOST_KNOWN:
            _known.steps.clear()
        step["block"].recorder.forget_modules()
        _known.steps[key] = found = step
    return found


def _key(step):
    """Return a key that is equal for equal steps; None if the step contains another step, which a key cannot describe.

    The key leaves out the names of the operators' results, because the operators determine them.
    """
    block = step["block"]
    given = [(name, block.variables[name]) for name in (*step["step_inputs"], *step["memories"], *step["captured"])]
    operators = []
    for op, inputs, _, attrs in block.ops:
        if "block" in op.attrs.values():
            return None
        constants = tuple(_hashable(op.attrs[name], value) for name, value in attrs.items())
        operators.append((op, tuple([None if symbol is None else symbol.name for symbol in inputs]), constants))
    arguments = tuple([(name, variable.value.spec, variable.requires_grad) for name, variable in given])
    return grad_enabled(), arguments, tuple(operators), step["output"], step["next_memories"]


def _hashable(kind, value):
    if kind == "index":
        return index_to_text(value)
    return repr(value) if isinstance(value, float) else value  # -0.0 and 0.0 are different constants, but equal


class Gradient(NamedTuple):
    """The gradient of a step: its block, and the names of the block's arguments and results.

    The result for an input of the step that has no gradient is named "".
    """

    block: Any
    d_outputs: tuple[Any, ...]
    d_inputs: tuple[Any, ...]


def describe_gradient(block, names):
    """Return the Gradient of a step; trace it if `block` has none yet, or if a program is recorded."""
    into = block.recorder
    if block.gradient is None or recorder() is not None:
        roots = [block.variables[name] for name in (names.output, *names.next_memories)]
        with recording(into), into.block(differentiates=block) as grad_block:
            gradients = [Variable(grad_block.declare(into.fresh(f"d_{root.name}"), root.value.spec)) for root in roots]
            propagate(roots, gradients)
        leaves = [block.variables[name] for name in names.taken()]
        block.gradient = Gradient(
            grad_block,
            tuple(gradient.name for gradient in gradients),
            tuple("" if leaf.grad is None else leaf.grad.name for leaf in leaves),
        )
    return block.gradient


def lowered_step(nested, names, inputs=None):
    """Return a step lowered to a cell, or a text that says why it cannot be lowered.

    If the description leaves sizes unknown, they are read from `inputs`, the inputs of a run.
    """
    if (found := nested.lowered.get(None)) is None:
        found = nested.lowered[None] = _lower(nested, names, {name: nested.spec(name) for name in names.taken()})
    if inputs is None or found != SIZES_UNKNOWN:
        return found
    of_rows = len(names.step_inputs) + len(names.memories)  # the first `of_rows` inputs can have any number of rows
    shapes = [(-1, *value.shape[1:]) if number < of_rows else value.shape for number, value in enumerate(inputs)]
    if (found := nested.lowered.get(tuple(shapes))) is None:
        specs = {n: nested.spec(n)._replace(shape=shape) for n, shape in zip(names.taken(), shapes, strict=True)}
        if len(nested.lowered) >= _MOST_KNOWN:
            nested.lowered.clear()
        found = nested.lowered[tuple(shapes)] = _lower(nested, names, specs)
    return found


def explain(early, block, **names):
    """Return a text that says how a step runs, and why; it lists the operators `early`, which run ahead of the step."""
    text = _explained(lowered_step(block.nested, Names(**names)))
    return f"{text}; ahead of it, on all steps at once: {', '.join(early)}" if early else text


def _explained(lowered):
    if lowered == SIZES_UNKNOWN:
        return "runs fused if its sizes allow it; they are known only when the program runs"
    if not isinstance(lowered, Lowered):
        return f"runs operator by operator: {lowered}"
    cell = lowered.cell
    parts = [
        f"{gate} ({' + '.join(['input'] * (gate in cell.x_gates) + ['product'] * (gate in cell.h_gates))})"
        for gate in cell.gates
    ]
    states = f"{len(cell.states)} state{'s' * (len(cell.states) > 1)}"
    vectors = f", {len(cell.vectors)} vectors" if cell.vectors else ""
    kept = f"a row keeps {cell.num_kept} per unit"
    precision = "" if lowered.precision == "fp32" else f"; products in {lowered.precision}"
    return f"runs fused as a cell of gates {', '.join(parts)}; {states}{vectors}; {kept}{precision}"


def _lower(nested, names, specs):
    instructions, place = nested.instructions, nested.instructions.place
    return lower(
        StepBlock(
            instructions.all,
            inputs=tuple(places_of(place, names.step_inputs)),
            memories=tuple(places_of(place, names.memories)),
            captured=tuple(places_of(place, names.captured)),
            output=place[names.output],
            next_memories=tuple(places_of(place, names.next_memories)),
            missing=instructions.size - 1,
            specs={place[name]: spec for name, spec in specs.items()},
        )
    )
