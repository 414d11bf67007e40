"""A recurrence whose step is the user's own: a nested block of ordinary operators, run once for each step of a batch.

As for the built-in cells, the batch shrinks: step t runs over the sequences with more than t steps, longest first.  The
gradient runs the gradient block of the step from the last step to the first, on the values that each step saved.

Source: `RecurrentOp` and `RecurrentGradientOp` of the design document "Variable-length supported RNN"; `DynamicRNN` of
PaddlePaddle Fluid.
"""

import weakref
from typing import Any

import numpy as np

from varlen_rnn.errors import LoDError, ProgramError, ShapeError
from varlen_rnn.ops.cost import costs_of_block, known
from varlen_rnn.ops.examples import rows
from varlen_rnn.ops.sequence.movement import check_moved
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of
from varlen_rnn.rows.plan import sort_by_seq_len
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.runtime.device import as_operand, empty, zeros
from varlen_rnn.runtime.placeholder import Placeholder
from varlen_rnn.steps import fused, interpret
from varlen_rnn.steps.describe import Names, describe_gradient, describe_step, levels_of_state, lowered_step
from varlen_rnn.steps.lower import Lowered
from varlen_rnn.tape.checks import check_kind, check_lod_level, shared_lod
from varlen_rnn.tape.constants import Block, Strs
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.kinds import LOD_RANK_TABLE, LOD_TENSOR, SELECTED_ROWS, STEP_SCOPES
from varlen_rnn.tape.modes import recorder
from varlen_rnn.tape.spec import PLAN, SCOPES, Scopes, sizes_fit
from varlen_rnn.tape.variable import Variable, apply, apply_list


def _as_rows(spec, lod_level=0):
    """Return `spec` with an unknown number of rows, and with `lod_level` levels."""
    return spec._replace(shape=(-1, *spec.shape[1:]), lod_level=lod_level)


def _level_of(nested, names, xs):
    """Return the LoD level whose entries are time steps; the inputs of a step have the levels below it.

    `xs` has the number of levels of each sequence input.
    """
    levels = {x - 1 - nested.spec(name).lod_level for name, x in zip(names.step_inputs, xs, strict=True)}
    if len(levels) > 1 or min(levels) < 0:
        raise LoDError("dynamic_rnn, x", expected="steps of one level in all inputs", got=f"levels {sorted(levels)}")
    return levels.pop()


def _text(spec):
    """Return a spec as text for an error; a size of -1 is the number of sequences alive, or another unknown size."""
    if spec.dtype is None:
        return f"a {spec.kind.name}"
    kind = "" if spec.kind == LOD_TENSOR else f"{spec.kind.name} of "
    levels = f", {spec.lod_level} levels" if spec.lod_level else ""
    return f"{kind}shape {spec.shape} {spec.dtype}{levels}"


def _check_fits(what, spec, like):
    """Raise unless a variable of a step fits the value that the operator passes to it; unknown sizes fit any."""
    same = spec.kind == like.kind and spec.dtype == like.dtype and spec.lod_level == like.lod_level
    if not same or not sizes_fit(spec.shape, like.shape):
        raise ShapeError(f"DynamicRNN, {what}", expected=_text(like), got=_text(spec))


def _infer(*inputs, block, keep, **names):
    nested, names = block.nested, Names(**names)
    xs, boots, others = names.split(inputs)
    if not xs or len(others) != len(names.captured) or len(names.next_memories) != len(names.memories):
        raise ProgramError("dynamic_rnn", expected=f"one input for each name in {names}", got=f"{len(inputs)} inputs")
    taken = names.taken()
    if len(set(taken)) != len(taken) or set(taken) != set(nested.arguments):
        raise ProgramError("dynamic_rnn, block", expected=f"a block with the arguments {taken}", got=nested.arguments)
    for name, x in zip(names.step_inputs, xs, strict=True):
        check_moved("dynamic_rnn", "x", x)
        check_lod_level("dynamic_rnn", "x", x)
        _check_fits(name, nested.spec(name), _as_rows(x, nested.spec(name).lod_level))
    level = _level_of(nested, names, [x.lod_level for x in xs])
    for name, after, boot in zip(names.memories, names.next_memories, boots, strict=True):
        check_moved("dynamic_rnn", name, boot)
        if not boot.shape:
            raise ShapeError("dynamic_rnn, state", expected="a row for each sequence", got="a single number")
        of_each = _as_rows(boot, levels_of_state(boot.lod_level, level))
        _check_fits(name, nested.spec(name), of_each)
        _check_fits(f"the next {name}", nested.spec(after), of_each)
    for name, other in zip(names.captured, others, strict=True):
        _check_fits(name, nested.spec(name), other)
    out = nested.spec(names.output)
    if out.kind != LOD_TENSOR or not out.shape or out.lod_level:
        raise ShapeError("dynamic_rnn, output", expected="a row for each sequence that has not ended", got=_text(out))
    check_moved("dynamic_rnn", "output", out)
    last = [boot._replace(lod_level=levels_of_state(boot.lod_level, level)) for boot in boots]
    count = xs[0].shape[0] if level == xs[0].lod_level - 1 else -1
    y = out._replace(shape=(count, *out.shape[1:]), lod_level=level + 1)
    return [y, *last, PLAN] + [SCOPES] * keep


def _check_batch(op, xs, boots, level):
    """Return the plan of the sequences; raise unless all inputs have the same LoD, and each state has each sequence."""
    if all(x.num_levels == level + 1 for x in xs):
        shared_lod(op, *xs)
    first = levels_of(xs[0].structure)[: level + 1]
    for number, x in enumerate(xs[1:], 1):
        if not all(map(np.array_equal, levels_of(x.structure)[: level + 1], first)):
            raise LoDError(f"{op}, x[{number}]", expected=f"LoD levels 0 to {level} as in x[0]", got="other offsets")
    plan = sort_by_seq_len(xs[0], level)
    for number, boot in enumerate(boots):
        if boot.num_levels > level:
            if boot.num_elements(level) != plan.num_sequences:
                expected, got = f"{plan.num_sequences} sequences, as x has", boot.num_elements(level)
                raise LoDError(f"{op}, states[{number}]", expected=expected, got=got)
        elif len(boot.data) != plan.num_sequences:
            expected = f"{plan.num_sequences} rows, one per sequence"
            raise ShapeError(f"{op}, states[{number}]", expected=expected, got=f"shape {boot.shape}")
    return plan


def _forward(*inputs, block, keep, names):
    nested = block.nested
    xs, boots, others = names.split(inputs)
    level = _level_of(nested, names, [x.num_levels for x in xs])
    plan = _check_batch("DynamicRNN", xs, boots, level)
    if isinstance(lowered := lowered_step(nested, names, inputs), Lowered):
        return _forward_fused(lowered, xs[0], boots, others, plan, keep)
    if type(xs[0].data) is Placeholder:
        xs[0].data.dry_run.refuse("its step runs operator by operator; DynamicRNN.explain() says why it is no cell")
    below = [nested.spec(name).lod_level for name in names.memories]
    states = [interpret.to_ranks(boot, plan, levels) for boot, levels in zip(boots, below, strict=True)]
    if plan.total_len:
        y, last, variables = interpret.run(nested, names, xs, states, others, plan, level, keep)
    else:
        spec, last, variables = nested.spec(names.output), [state.data for state in states], {}
        # A size of the output that only a run of a step determines is 0 if the batch has no steps.
        y = empty((0, *(max(size, 0) for size in spec.shape[1:])), xs[0].data, spec.dtype)
    by_rank = zip(last, boots, below, strict=True)
    ends = [interpret.to_callers_order(state, plan, boot, levels) for state, boot, levels in by_rank]
    scopes = Scopes(variables if keep else {})
    scopes.plan = plan
    lod = xs[0].structure
    if level < xs[0].num_levels - 1:
        lod = LoD.trusted(levels_of(lod)[: level + 1]).at_positions_of(lod)
    return [LoDTensor.wrap(y, lod), *ends, plan] + [scopes] * keep


def _forward_fused(lowered, x, boots, others, plan, keep):
    captured, states = [as_operand(other.data) for other in others], [boot.data for boot in boots]
    y, last, made = fused.forward(lowered, as_operand(x.data), states, captured, plan, keep)
    scopes = Scopes()
    scopes.plan, scopes.fused = plan, made
    return [x.like(y), *map(LoDTensor.wrap, last), plan] + [scopes] * keep


def _backward_fused(inputs, scopes, y, d_y, d_last, names, need_x):
    """Return the gradients of all inputs of a step that ran as a cell."""
    (x,), boots, others = names.split(inputs)
    d_y = zeros(y.shape, y.data) if d_y is None else as_operand(d_y.data)
    d_last = [zeros(boot.shape, boot.data) if d is None else d.data for boot, d in zip(boots, d_last, strict=True)]
    d_x, d_boots, totals = fused.backward(
        scopes.fused, as_operand(x.data), as_operand(y.data), scopes.plan, d_y, d_last,
        [other.data for other in others], need_x,
    )  # fmt: skip
    d_others = [other.like(d) for other, d in zip(others, totals, strict=True)]
    d_boots = [boot.like(d) for boot, d in zip(boots, d_boots, strict=True)]
    return [x.like(d_x) if need_x else x, *d_boots, *d_others]


def _grad(inputs, outputs, d_outputs, block, keep, **names):
    """Describe the gradient of the step as a block beside it, and apply the operator that runs this block.

    If the step ran as a cell and no program is recorded, compute the gradient from the cell instead.
    """
    of_step = Names(**names)
    if recorder() is None and outputs[-1].value.fused is not None:
        values = [variable.value for variable in inputs]
        d_y, *d_last = (None if d is None else d.value for d in d_outputs[: 1 + len(of_step.memories)])
        given = values, outputs[-1].value, outputs[0].value, d_y, d_last, of_step, inputs[0].requires_grad
        return [Variable(value) for value in _backward_fused(*given)]
    gradient = describe_gradient(block, of_step)
    plan, scopes = outputs[-2:]
    return apply_list(
        "dynamic_rnn_grad", *inputs, plan, scopes, outputs[0], *d_outputs[: len(gradient.d_outputs)],
        block=block, grad_block=gradient.block, **names, d_outputs=gradient.d_outputs, d_inputs=gradient.d_inputs,
    )  # fmt: skip


def _infer_grad(*inputs, block, grad_block, d_outputs, d_inputs, **names):
    of_step, nested, count = Names(**names), grad_block.nested, len(d_inputs)
    forward, (plan, scopes, y, *d) = inputs[:count], inputs[count:]
    check_kind("dynamic_rnn_grad", "sorted_seqs", plan, LOD_RANK_TABLE)
    check_kind("dynamic_rnn_grad", "step_scopes", scopes, STEP_SCOPES)
    if count != len(of_step.taken()) or not len(d) == len(d_outputs) == 1 + len(of_step.memories):
        expected = f"a gradient for each name in {of_step}"
        raise ProgramError("dynamic_rnn_grad", expected=expected, got=f"{d_inputs} and {d_outputs}")
    if set(d_outputs) != set(nested.arguments) or nested.block.forward_block_idx != block.nested.block.idx:
        expected, got = "the gradient block of `block`", f"a block with the arguments {nested.arguments}"
        raise ProgramError("dynamic_rnn_grad, grad_block", expected=expected, got=got)
    likes = _infer(*forward, block=block, keep=True, **names)[: len(d)]
    for name, spec, like in zip(("y", "y", *of_step.memories), (y, *d), (likes[0], *likes), strict=True):
        if spec is not None:
            _check_fits(f"the gradient of {name}", spec, like)
    xs, boots, others = of_step.split(forward)
    specs = []
    steps = [_as_rows(x, block.nested.spec(name).lod_level) for name, x in zip(of_step.step_inputs, xs, strict=True)]
    states = [_as_rows(boot, block.nested.spec(n).lod_level) for n, boot in zip(of_step.memories, boots, strict=True)]
    for name, spec, like in zip(d_inputs, forward, (*steps, *states, *others), strict=True):
        kind = nested.spec(name).kind if name else LOD_TENSOR
        if name:  # the gradient of a captured value has no LoD if it comes from a product
            _check_fits(f"{name!r}", nested.spec(name), like._replace(kind=kind, lod_level=nested.spec(name).lod_level))
        specs.append(spec._replace(kind=kind))
    return specs


def _backward(*inputs, block, grad_block, d_outputs, d_inputs, names):
    count = len(d_inputs)
    (plan, scopes, y, d_y, *d_last), nested = inputs[count:], grad_block.nested
    xs, boots, others = names.split(inputs[:count])
    level = _level_of(block.nested, names, [x.num_levels for x in xs])
    of_x = _check_batch("dynamic_rnn_grad", xs, boots, level)
    is_kept = not plan.total_len or scopes.keys() >= set(names.taken())
    if scopes.fused is not None:
        is_kept = scopes.fused.lowered == lowered_step(block.nested, names, inputs[:count])
    # A LoD has one plan, so that a dry run, in which nobody can compare numbers, compares no offsets.
    is_same = all(one is plan or np.array_equal(one.offsets, plan.offsets) for one in (of_x, scopes.plan))
    if not (is_kept and is_same):
        expected, got = "the plan and the saved values of the run on x", "a plan or saved values of other rows"
        raise ProgramError("dynamic_rnn_grad, sorted_seqs", expected=expected, got=got)
    if scopes.fused is not None:
        given = inputs[:count], scopes, y, d_y, d_last
        return _backward_fused(*given, names, need_x=d_inputs[0] != "")
    d_y = zeros(y.shape, y.data) if d_y is None else as_operand(d_y.data)
    # The gradients of the last memories, in the order of ranks.
    below = [block.nested.spec(name).lod_level for name in names.memories]
    d_states = [
        interpret.to_ranks(boot.like(zeros(boot.shape, boot.data) if d is None else d.data), plan, levels)
        for boot, d, levels in zip(boots, d_last, below, strict=True)
    ]
    d_xs = [x.like(zeros(x.shape, x.data)) for x in xs]
    totals, d_rows = [None] * len(others), [d.data for d in d_states]
    if plan.total_len:
        given = d_outputs, d_inputs, scopes, plan, level, d_y, d_states, d_xs
        d_rows, totals = interpret.run_back(nested, names, *given)
    by_rank = zip(d_rows, boots, below, strict=True)
    d_boots = [boot.like(interpret.to_callers_order(d, plan, boot, levels).data) for d, boot, levels in by_rank]
    kinds = [nested.spec(name).kind if name else LOD_TENSOR for name in names.split(d_inputs)[2]]
    return [*d_xs, *d_boots, *map(_of_captured, others, totals, kinds)]


def _of_captured(value, total, kind):
    """Return the gradient of a captured value as a tensor; if no step ran (`total` is None), all zeros.

    A sparse gradient of zeros has no rows.
    """
    if total is not None:
        return value.like(total.data) if isinstance(total, LoDTensor) else total
    if kind == SELECTED_ROWS:
        rows = empty((0, *value.shape[1:]), value.data)
        return SelectedRows.wrap(np.empty(0, np.int64), rows, len(value.data))
    return value.like(zeros(value.shape, value.data))


def _given(names):
    """Return numbered names of the operator's inputs, such as x_0, state_0 and captured_0."""
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


# A cache, because blocks nest: if each block contained the next one twice, each level would double the time to count.
_flops_of_blocks: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def _cost_of_step(inputs, outputs, block, grad_block=None, **names):
    """The arithmetic operations of the step (or of its gradient) for one row, times the number of rows."""
    nested = grad_block or block
    if nested not in _flops_of_blocks:
        _flops_of_blocks[nested] = sum(cost.flops for _, cost in costs_of_block(nested))
    with_rows = [spec for spec in inputs if spec is not None and spec.lod_level]
    return _flops_of_blocks[nested] * max((known(spec.shape[0]) for spec in with_rows), default=1)


@operator(intermediate=("step_scopes",), cost=_cost_of_step, inference={"keep": False}, places=_places, rows="batch")
def dynamic_rnn(
    *x, block: Block, keep: bool, step_inputs: Strs, memories: Strs, captured: Strs, output: str, next_memories: Strs
):
    """Return the outputs and last states of a nested block that runs once for each step of a batch."""
    return _forward(*x, block=block, keep=keep, names=Names(step_inputs, memories, captured, output, next_memories))


dynamic_rnn.infer(_infer)
dynamic_rnn.grad(_grad)


@dynamic_rnn.examples
def _examples(rng):
    def constants(x, h, w):
        def cell(x_t, state):  # `w` is captured from outside
            state = apply("tanh", x_t + (state @ w)[:, 1:] * 0.5).reshape(-1, 2) * (state[:, :2] - 1.5)
            return state[:, 0] * x_t[:, 1], apply("concat", state, x_t[:, :1], axis=-1)

        step, *_ = describe_step(cell, [x], [h])
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
