"""A recurrence whose step is the user's own: a nested block of ordinary operators, run once for each step of a batch.

The batch shrinks as it does for the built-in cells: step t runs over the sequences that are still alive, longest first.
The gradient runs the gradient block of the step from the last step to the first, over what each step kept.

Source: `RecurrentOp` and `RecurrentGradientOp` of the design document "Variable-length supported RNN"; `DynamicRNN` of
PaddlePaddle Fluid.
"""

import weakref
from typing import Any, NamedTuple

import numpy as np

from varlen_rnn.device import as_operand
from varlen_rnn.errors import ProgramError, ShapeError
from varlen_rnn.kernels import segment
from varlen_rnn.lod import LoDTensor
from varlen_rnn.ops import fused
from varlen_rnn.ops.cost import costs_of_block
from varlen_rnn.ops.examples import rows
from varlen_rnn.ops.lowering import Block as StepBlock
from varlen_rnn.ops.lowering import Lowered, lower
from varlen_rnn.ops.sequence.movement import check_moved, flat
from varlen_rnn.ops.stages import arrange, of_rows, of_value
from varlen_rnn.ops.steps import Loop, OverSteps, rows_by_step, run_once
from varlen_rnn.ops.sums import sum_values
from varlen_rnn.plan import sort_by_seq_len
from varlen_rnn.program.recorder import Recorder
from varlen_rnn.selected_rows import SelectedRows
from varlen_rnn.tape.checks import check_kind, check_lod_level, shared_lod
from varlen_rnn.tape.constants import Block, Strs
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.kinds import LOD_RANK_TABLE, LOD_TENSOR, SELECTED_ROWS, STEP_SCOPES
from varlen_rnn.tape.modes import recorder, recording
from varlen_rnn.tape.spec import PLAN, SCOPES, Scopes, describe, sizes_fit
from varlen_rnn.tape.variable import Variable, apply, apply_list, propagate, required


class Names(NamedTuple):
    """The variables of a step: what it takes, in the order of the operator's inputs, and what it gives."""

    step_inputs: tuple[str, ...]
    memories: tuple[str, ...]
    captured: tuple[str, ...]
    output: str
    next_memories: tuple[str, ...]

    def taken(self):
        """Return the arguments of the step, in the order of the operator's inputs."""
        return [*self.step_inputs, *self.memories, *self.captured]

    def split(self, inputs):
        """Return the sequences, the initial memories, and the rest of an operator's inputs."""
        first, second = len(self.step_inputs), len(self.step_inputs) + len(self.memories)
        return inputs[:first], inputs[first:second], inputs[second:]


def _as_rows(spec):
    """Return the spec of some rows of a variable, of unknown number and without a LoD."""
    return spec._replace(shape=(-1, *spec.shape[1:]), lod_level=0)


def _text(spec):
    """Return what is known of a variable as an error says it; -1 are the sequences alive, or another unknown size."""
    if spec.dtype is None:
        return f"a {spec.kind.name}"
    kind = "" if spec.kind == LOD_TENSOR else f"{spec.kind.name} of "
    levels = f", {spec.lod_level} levels" if spec.lod_level else ""
    return f"{kind}shape {spec.shape} {spec.dtype}{levels}"


def _check_fits(what, spec, like):
    """Raise unless a variable of a step is like what the operator gives to it, whose sizes may be known later."""
    same = spec.kind == like.kind and spec.dtype == like.dtype and spec.lod_level == like.lod_level
    if not same or not sizes_fit(spec.shape, like.shape):
        raise ShapeError(f"dynamic_rnn, {what}", expected=_text(like), got=_text(spec))


def _infer(*inputs, block, keep, **names):
    nested, names = block.nested, Names(**names)
    xs, boots, others = names.split(inputs)
    if not xs or len(others) != len(names.captured) or len(names.next_memories) != len(names.memories):
        raise ProgramError("dynamic_rnn", expected=f"inputs for {names}", got=f"{len(inputs)}")
    taken = names.taken()
    if len(set(taken)) != len(taken) or set(taken) != set(nested.arguments):
        raise ProgramError("dynamic_rnn, block", expected=f"the arguments {taken}", got=nested.arguments)
    for name, x in zip(names.step_inputs, xs, strict=True):
        check_moved("dynamic_rnn", "x", x)
        check_lod_level("dynamic_rnn", "x", x)
        _check_fits(name, nested.spec(name), _as_rows(x))
    for name, after, boot in zip(names.memories, names.next_memories, boots, strict=True):
        check_moved("dynamic_rnn", name, boot)
        if not boot.shape:
            raise ShapeError("dynamic_rnn, state", expected="a row for each sequence", got="a single number")
        _check_fits(name, nested.spec(name), _as_rows(boot))
        _check_fits(f"the next {name}", nested.spec(after), _as_rows(boot))
    for name, other in zip(names.captured, others, strict=True):
        _check_fits(name, nested.spec(name), other)
    out = nested.spec(names.output)
    if out.kind != LOD_TENSOR or not out.shape or out.lod_level:
        raise ShapeError("dynamic_rnn, output", expected="a row for each sequence that is alive", got=_text(out))
    check_moved("dynamic_rnn", "output", out)
    last = [boot._replace(lod_level=0) for boot in boots]
    y = out._replace(shape=(xs[0].shape[0], *out.shape[1:]), lod_level=xs[0].lod_level)
    return [y, *last, PLAN] + [SCOPES] * keep


def _rows_of(value, count, what, like):
    """Return the rows that a step computed for the sequences alive, each like a row of `like`, unless that is None."""
    if not value.shape or len(value.data) != count:
        raise ShapeError(f"dynamic_rnn, {what}", expected=f"{count} rows, one per sequence alive", got=value.shape)
    if like is not None and (value.shape[1:] != like.shape[1:] or value.dtype != like.dtype):
        expected, got = f"rows of {like.shape[1:]} {like.dtype}", f"{value.shape[1:]} {value.dtype}"
        raise ShapeError(f"dynamic_rnn, {what}", expected=expected, got=got)
    return as_operand(value.data)


def _to_ranks(rows, plan):
    out = np.empty(rows.shape, rows.dtype)
    segment.init_memories(flat(rows), plan.sorted_indices, flat(out))
    return out


def _to_callers_order(rows, plan):
    out = np.empty(rows.shape, rows.dtype)
    segment.init_memories_grad(flat(rows), plan.sorted_indices, flat(out))
    return out


def _check_batch(op, xs, boots):
    """Return the plan of the sequences after checking that they have one LoD, and each memory one row per sequence."""
    shared_lod(op, *xs)
    plan = sort_by_seq_len(xs[0])
    for number, boot in enumerate(boots):
        if len(boot.data) != plan.num_sequences:
            expected = f"{plan.num_sequences} rows, one per sequence"
            raise ShapeError(f"{op}, state {number}", expected=expected, got=f"shape {boot.shape}")
    return plan


def _stages_of(nested, given, late, carried, summed=frozenset()):
    """Return the stages of a block: those of its last run, if the same is known of what it is given."""
    instructions = nested.instructions
    key, ready = (given, carried, summed), instructions.stages
    if ready is None or ready[0] != key:
        missing = {instructions.size - 1: of_value(None)}
        instructions.stages = ready = key, arrange(instructions.all, given | missing, late, carried, summed)
    return ready[1]


def _forward(*inputs, block, keep, names):
    nested = block.nested
    xs, boots, others = names.split(inputs)
    plan = _check_batch("dynamic_rnn", xs, boots)
    if isinstance(lowered_step(nested, names), Lowered):
        return _forward_fused(nested, names, xs[0], boots, others, plan, keep)
    states = [_to_ranks(boot.data, plan) for boot in boots]
    if plan.total_len:
        y, last, variables = _run_steps(nested, names, xs, states, others, plan, keep)
    else:
        spec, last, variables = nested.spec(names.output), states, {}
        # Of an output whose sizes only the steps tell, a batch without steps has none of them.
        y = np.empty((0, *(max(size, 0) for size in spec.shape[1:])), spec.dtype)
    ends = [LoDTensor.wrap(_to_callers_order(state, plan)) for state in last]
    scopes = Scopes(variables if keep else {})
    scopes.plan = plan
    return [xs[0].like(y), *ends, plan] + [scopes] * keep


# By a step's description: in eager mode each call makes the same one again, and need not make it ready again.
_lowered: dict[Any, Any] = {}
_MOST_LOWERED = 64


def lowered_step(nested, names):
    """Return a step as a cell, or a text that says why it is none."""
    if nested.lowered is None:
        key = nested.block, names
        if (found := _lowered.get(key)) is None:
            found = _lower(nested, names)
            if len(_lowered) >= _MOST_LOWERED:
                _lowered.clear()
            _lowered[key] = found
        nested.lowered = found
    return nested.lowered


def explain(block, **names):
    """Return a text that says how a step runs, and why."""
    lowered = lowered_step(block.nested, Names(**names))
    if not isinstance(lowered, Lowered):
        return f"runs operator by operator: {lowered}"
    cell = lowered.cell
    parts = [
        f"{gate} ({' + '.join(['input'] * (gate in cell.x_gates) + ['product'] * (gate in cell.h_gates))})"
        for gate in cell.gates
    ]
    states = f"{len(cell.states)} state{'s' * (len(cell.states) > 1)}"
    vectors = f", {len(cell.vectors)} vectors" if cell.vectors else ""
    return f"runs fused as a cell of gates {', '.join(parts)}; {states}{vectors}; a row keeps {cell.num_kept} per unit"


def _lower(nested, names):
    instructions = nested.instructions
    place = instructions.place
    given = (tuple(_places_of(place, group)) for group in (names.step_inputs, names.memories, names.captured))
    specs = {place[name]: nested.spec(name) for name in names.taken()}
    after = tuple(_places_of(place, names.next_memories))
    return lower(StepBlock(instructions.all, *given, place[names.output], after, instructions.size - 1, specs))


def _forward_fused(nested, names, x, boots, others, plan, keep):
    captured, states = [as_operand(other.data) for other in others], [boot.data for boot in boots]
    y, last, made = fused.forward(nested.lowered, as_operand(x.data), states, captured, plan, keep)
    scopes = Scopes()
    scopes.plan, scopes.fused = plan, made
    return [x.like(y), *map(LoDTensor.wrap, last), plan] + [scopes] * keep


def _backward_fused(inputs, scopes, y, d_y, d_last, names, need_x):
    """Return the gradients of all inputs."""
    (x,), boots, others = names.split(inputs)
    d_y = np.zeros(y.shape, y.dtype) if d_y is None else as_operand(d_y.data)
    d_last = [np.zeros(boot.shape, boot.dtype) if d is None else d.data for boot, d in zip(boots, d_last, strict=True)]
    d_x, d_boots, totals = fused.backward(
        scopes.fused, as_operand(x.data), as_operand(y.data), scopes.plan, d_y, d_last,
        [other.data for other in others], need_x,
    )  # fmt: skip
    d_others = [other.like(d) for other, d in zip(others, totals, strict=True)]
    d_boots = [boot.like(d) for boot, d in zip(boots, d_boots, strict=True)]
    return [x.like(d_x) if need_x else x, *d_boots, *d_others]


def _run_steps(nested, names, xs, states, others, plan, keep):
    """Return the outputs, the states after the last steps by rank, and the variables of the step by name."""
    place, (order, ends) = nested.instructions.place, rows_by_step(plan)
    memories, after, output = (
        _places_of(place, names.memories),
        _places_of(place, names.next_memories),
        place[names.output],
    )
    variables = [None] * (nested.instructions.size - 1) + [OverSteps()]
    for name, x in zip(names.step_inputs, xs, strict=True):
        rows = LoDTensor.wrap(np.take(x.data, order, 0))
        variables[place[name]] = OverSteps(of_rows(describe(rows)), whole=rows)
    for name, other in zip(names.captured, others, strict=True):
        variables[place[name]] = OverSteps(of_value(describe(other)), same=other)
    given = {p: variable.known for p, variable in enumerate(variables[:-1]) if variable is not None}
    given |= {p: of_rows(describe(LoDTensor.wrap(state))) for p, state in zip(memories, states, strict=True)}
    stages = _stages_of(nested, given, set(memories), set(after))
    run_once(stages.before, variables, stages)
    recorded = range(len(variables)) if keep else {output, *(p for one in stages.after for p in one.inputs)}
    loop = Loop(stages, variables, ends, memories, {output, *after} - (stages.in_rows - {*after}), set(recorded))
    outputs, last = _run_loop(stages, loop, plan.batch_sizes.tolist(), states, memories, after, output, names)
    run_once(stages.after, variables, stages)
    rows = variables[output].whole().data if output in stages.in_rows else np.concatenate(outputs)
    y = np.empty(rows.shape, rows.dtype)
    y[order] = rows
    return y, last, {name: variables[p] for name, p in place.items() if variables[p] is not None}


def _places_of(place, names):
    return [place[name] for name in names]


def _run_loop(stages, loop, sizes, states, memories, after, output, names):
    """Return the outputs of each step, if they are to be checked, and the states after the last step of each rank."""
    last = [np.empty_like(state) for state in states]
    for end, state in zip(last, states, strict=True):
        end[sizes[0] :] = state[sizes[0] :]  # of sequences without steps
    is_known = [stages.known.get(p) == stages.known[memory] for p, memory in zip(after, memories, strict=True)]
    given, outputs = [LoDTensor.wrap(state[: sizes[0]]) for state in states], []
    for t, (alive, remain) in enumerate(zip(sizes, [*sizes[1:], 0], strict=True)):
        held = loop.run(t, given)
        if output not in stages.in_rows:
            outputs.append(_rows_of(held[output], alive, "output", outputs[0] if t else None))
        for number, (p, end, name) in enumerate(zip(after, last, names.next_memories, strict=True)):
            value = held[p]
            rows = value.data if is_known[number] else _rows_of(value, alive, name, end)
            if remain < alive:
                end[remain:alive] = rows[remain:]
            given[number] = value if is_known[number] and remain == alive else LoDTensor.wrap(rows[:remain])
    return outputs, last


def _grad(inputs, outputs, d_outputs, block, keep, **names):
    """Describe the gradient of the step as a block beside it, and apply the operator that runs it.

    A step that ran as a cell needs no description of its gradient, unless it is to be recorded.
    """
    of_step, into = Names(**names), block.recorder
    if recorder() is None and outputs[-1].value.fused is not None:
        values = [variable.value for variable in inputs]
        d_y, *d_last = (None if d is None else d.value for d in d_outputs[: 1 + len(of_step.memories)])
        given = values, outputs[-1].value, outputs[0].value, d_y, d_last, of_step, inputs[0].requires_grad
        return [Variable(value) for value in _backward_fused(*given)]
    roots = [block.variables[name] for name in (of_step.output, *of_step.next_memories)]
    with recording(into), into.block(differentiates=block) as grad_block:
        gradients = [Variable(grad_block.declare(into.fresh(f"d_{root.name}"), root.value.spec)) for root in roots]
        propagate(roots, gradients)
    leaves = [block.variables[name] for name in of_step.taken()]
    plan, scopes = outputs[-2:]
    return apply_list(
        "dynamic_rnn_grad", *inputs, plan, scopes, outputs[0], *d_outputs[: len(roots)],
        block=block, grad_block=grad_block, **names,
        d_outputs=tuple(gradient.name for gradient in gradients),
        d_inputs=tuple("" if leaf.grad is None else leaf.grad.name for leaf in leaves),
    )  # fmt: skip


def _infer_grad(*inputs, block, grad_block, d_outputs, d_inputs, **names):
    of_step, nested, count = Names(**names), grad_block.nested, len(d_inputs)
    forward, (plan, scopes, y, *d) = inputs[:count], inputs[count:]
    check_kind("dynamic_rnn_grad", "sorted_seqs", plan, LOD_RANK_TABLE)
    check_kind("dynamic_rnn_grad", "step_scopes", scopes, STEP_SCOPES)
    if count != len(of_step.taken()) or not len(d) == len(d_outputs) == 1 + len(of_step.memories):
        raise ProgramError("dynamic_rnn_grad", expected=f"gradients of {of_step}", got=f"{d_inputs}, {d_outputs}")
    if set(d_outputs) != set(nested.arguments) or nested.block.forward_block_idx != block.nested.block.idx:
        raise ProgramError("dynamic_rnn_grad, grad_block", expected="the gradient of its step", got=nested.arguments)
    likes = _infer(*forward, block=block, keep=True, **names)[: len(d)]
    for name, spec, like in zip(("y", "y", *of_step.memories), (y, *d), (likes[0], *likes), strict=True):
        if spec is not None:
            _check_fits(f"the gradient of {name}", spec, like)
    xs, boots, others = of_step.split(forward)
    specs = []
    for name, spec, like in zip(d_inputs, forward, (*map(_as_rows, (*xs, *boots)), *others), strict=True):
        kind = nested.spec(name).kind if name else LOD_TENSOR
        if name:
            level = like.lod_level if kind == LOD_TENSOR else 0
            _check_fits(f"{name!r}", nested.spec(name), like._replace(kind=kind, lod_level=level))
        specs.append(spec._replace(kind=kind))
    return specs


def _backward(*inputs, block, grad_block, d_outputs, d_inputs, names):
    count = len(d_inputs)
    (plan, scopes, y, d_y, *d_last), nested = inputs[count:], grad_block.nested
    xs, boots, others = names.split(inputs[:count])
    of_x = _check_batch("dynamic_rnn_grad", xs, boots)
    is_kept = not plan.total_len or scopes.keys() >= set(names.taken())
    if scopes.fused is not None:
        is_kept = scopes.fused.lowered == lowered_step(block.nested, names)
    if not (is_kept and all(np.array_equal(one.offsets, plan.offsets) for one in (of_x, scopes.plan))):
        raise ProgramError("dynamic_rnn_grad, sorted_seqs", expected="the plan and the scopes of x", got="others")
    if scopes.fused is not None:
        given = inputs[:count], scopes, y, d_y, d_last
        return _backward_fused(*given, names, need_x=d_inputs[0] != "")
    d_y = np.zeros(y.shape, y.dtype) if d_y is None else as_operand(d_y.data)
    # By rank: what reaches the memories from the ends of sequences.
    d_states = [
        np.zeros(boot.shape, boot.dtype) if d is None else _to_ranks(d.data, plan)
        for boot, d in zip(boots, d_last, strict=True)
    ]
    d_xs = [np.zeros(x.shape, x.dtype) for x in xs]
    totals = [None] * len(others)
    if plan.total_len:
        d_states, totals = _run_steps_back(nested, names, d_outputs, d_inputs, scopes, plan, d_y, d_states, d_xs)
    d_boots = [boot.like(_to_callers_order(d, plan)) for d, boot in zip(d_states, boots, strict=True)]
    d_others = [
        _nothing(other, nested.spec(name).kind if name else LOD_TENSOR) if total is None else total
        for total, other, name in zip(totals, others, names.split(d_inputs)[2], strict=True)
    ]
    return [*(x.like(d) for d, x in zip(d_xs, xs, strict=True)), *d_boots, *d_others]


def _run_steps_back(nested, names, d_outputs, d_inputs, scopes, plan, d_y, d_states, d_xs):
    """Fill the gradients of sequences; return those of the first states, by rank, and of the captured."""
    place, (order, ends) = nested.instructions.place, rows_by_step(plan)
    of_y, *of_states = _places_of(place, d_outputs)
    to_xs, to_states, to_others = names.split([place[name] if name else None for name in d_inputs])
    variables = [None] * (nested.instructions.size - 1) + [OverSteps()]
    for name in place.keys() & scopes.keys():
        variables[place[name]] = scopes[name]
    rows = LoDTensor.wrap(np.take(d_y, order, 0))
    variables[of_y] = OverSteps(of_rows(describe(rows)), whole=rows)
    given = {p: variable.known for p, variable in enumerate(variables[:-1]) if variable is not None}
    given |= {p: of_rows(describe(LoDTensor.wrap(d))) for p, d in zip(of_states, d_states, strict=True)}
    carried, summed = ({p for p in group if p is not None} for group in (to_states, to_others))
    stages = _stages_of(nested, given, set(of_states), carried, summed)
    run_once(stages.before, variables, stages)
    by_step = {p for p in to_xs if p is not None and p not in stages.in_rows}
    later = {p for one in stages.after for p in one.inputs} | {p for p in to_xs if p is not None}
    added = summed - stages.totals
    loop = Loop(stages, variables, ends, of_states, carried | by_step | added, later)
    sums = {p: [] for p in added}
    for held, alive in _states_back(loop, plan, d_states, to_states, names, d_inputs):
        for p, total in sums.items():
            _collect(total, held[p])
        for p in by_step:
            number = to_xs.index(p)
            _rows_of(held[p], alive, d_inputs[number], d_xs[number])
    run_once(stages.after, variables, stages)
    for p, d_x in zip(to_xs, d_xs, strict=True):
        if p is not None:
            d_x[order] = variables[p].whole().data
    totals = [
        None if p is None else variables[p].same if p in stages.totals else sum_values(sums[p]) for p in to_others
    ]
    return d_states, totals


def _states_back(loop, plan, d_states, to_states, names, d_inputs):
    """Run the steps from the last to the first; yield each one's values, and how many were alive.

    `d_states`, by rank, become the gradients of the states before the first steps.
    """
    sizes = plan.batch_sizes.tolist()
    arriving, later = [d[:0] for d in d_states], 0
    for t in range(len(sizes) - 1, -1, -1):
        alive = sizes[t]
        if alive > later:  # sequences that end here
            arriving = [np.concatenate([d, end[later:alive]]) for d, end in zip(arriving, d_states, strict=True)]
        held = loop.run(t, map(LoDTensor.wrap, arriving))
        yield held, alive
        arriving = [
            np.zeros_like(d) if p is None else _rows_of(held[p], alive, name, d)
            for p, d, name in zip(to_states, arriving, names.split(d_inputs)[1], strict=True)
        ]
        later = alive
    for d_state, d in zip(d_states, arriving, strict=True):
        d_state[:later] = d


def _collect(total, value):
    """Add the gradient of a step to those of later steps: sparse ones are put together when all are there.

    Dense ones are added at once, for each has the memory of a whole parameter.
    """
    if total and isinstance(value, LoDTensor):
        total[0] = sum_values([total[0], value])
    else:
        total.append(value)


def _nothing(value, kind):
    """Return the gradient of a batch without steps: no rows, which update nothing, where it is sparse."""
    if kind == SELECTED_ROWS:
        rows = np.empty((0, *value.shape[1:]), value.dtype)
        return SelectedRows.wrap(np.empty(0, np.int64), rows, len(value.data))
    return value.like(np.zeros(value.shape, value.dtype))


def _given(names):
    """Return the places of an operator's inputs: sequences, initial memories, and what the step reads from outside."""
    counted = (("x", names.step_inputs), ("state", names.memories), ("captured", names.captured))
    return [f"{place}_{number}" for place, of_step in counted for number in range(len(of_step))]


def _places(num_inputs, num_outputs, block, keep, **names):
    names = Names(**names)
    last = [f"last_{number}" for number in range(len(names.memories))]
    return _given(names), ["y", *last, "sorted_seqs", "step_scopes"][: 2 + len(last) + keep]


def _places_grad(num_inputs, num_outputs, block, grad_block, d_outputs, d_inputs, **names):
    names = Names(**names)
    given = _given(names)
    d_last = [f"d_last_{number}" for number in range(len(names.memories))]
    return [*given, "sorted_seqs", "step_scopes", "y", "d_y", *d_last], [f"d_{place}" for place in given]


def describe_step(cell, xs, states):
    """Return the step of a cell as constants of the operator, and the Variables that it reads from outside.

    Parameters
    ----------
    cell : callable
        As that of `nn.DynamicRNN`; it is called once.
    xs, states : lists of Variables
    """
    into = recorder() or Recorder()
    xs, states = [[into.admit(v) for v in group] if recorder() else group for group in (xs, states)]
    with recording(into), into.block() as block:
        arguments = [block.argument("x", x, x.requires_grad) for x in xs]
        # A state takes up what the step reads, so a gradient passes through it whether it began with one or not.
        arguments += [block.argument("state", state, state.dtype.kind == "f") for state in states]
        given = cell(*arguments)
        results = list(given) if isinstance(given, (tuple, list)) else [given]
        if len(results) != 1 + len(states):
            expected = f"an output and {len(states)} next states"
            raise ShapeError("DynamicRNN, cell", expected=expected, got=f"{len(results)} variables")
        results = [into.admit(required(result, "DynamicRNN, cell")) for result in results]
    captured, own = zip(*block.captures.values(), strict=True) if block.captures else ((), ())
    block.captures = {}  # Variables of the caller: the block is part of a cycle, which would free them late
    block.variables = {variable.name: variable for variable in (*arguments, *own, *results)}
    names = [[variable.name for variable in group] for group in (arguments, own, results)]
    return {
        "block": block, "step_inputs": tuple(names[0][: len(xs)]), "memories": tuple(names[0][len(xs) :]),
        "captured": tuple(names[1]), "output": names[2][0], "next_memories": tuple(names[2][1:]),
    }, captured  # fmt: skip


# Without it, where each block has two operators that run the next one, the time would double with each block.
_flops_of_blocks: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def _cost_of_step(inputs, outputs, block, grad_block=None, **names):
    """That of the operators of the step, or of its gradient, once."""
    nested = grad_block or block
    if nested not in _flops_of_blocks:
        _flops_of_blocks[nested] = sum(cost.flops for _, cost in costs_of_block(nested))
    return _flops_of_blocks[nested]


@operator(intermediate=("step_scopes",), cost=_cost_of_step, inference={"keep": False}, places=_places)
def dynamic_rnn(
    *x,
    block: Block,
    keep: bool,
    step_inputs: Strs,
    memories: Strs,
    captured: Strs,
    output: str,
    next_memories: Strs,
):
    """Return the outputs and last states of a nested block that runs once for each step of a batch."""
    return _forward(*x, block=block, keep=keep, names=Names(step_inputs, memories, captured, output, next_memories))


dynamic_rnn.infer(_infer)
dynamic_rnn.grad(_grad)


@dynamic_rnn.examples
def _examples(rng):
    def constants(x, h, w):
        def cell(x_t, state):  # `w` is read from outside
            state = apply("tanh", x_t + (state @ w)[:, 1:] * 0.5).reshape(-1, 2) * (state[:, :2] - 1.5)
            return state[:, 0] * x_t[:, 1], apply("concat", state, x_t[:, :1], axis=-1)

        step, _ = describe_step(cell, [x], [h])
        return {"keep": True, **step}

    yield [rows(rng, 2), rng.standard_normal((4, 3)), rng.standard_normal((3, 3))], constants


@operator(may_miss=("x",), cost=_cost_of_step, places=_places_grad)
def dynamic_rnn_grad(
    *x,
    block: Block,
    grad_block: Block,
    d_outputs: Strs,
    d_inputs: Strs,
    step_inputs: Strs,
    memories: Strs,
    captured: Strs,
    output: str,
    next_memories: Strs,
):
    """Return the gradients of the inputs of `dynamic_rnn`, from the last step to the first."""
    names = Names(step_inputs, memories, captured, output, next_memories)
    return _backward(*x, block=block, grad_block=grad_block, d_outputs=d_outputs, d_inputs=d_inputs, names=names)


dynamic_rnn_grad.infer(_infer_grad)
