"""The recurrent layer as one operator: outputs, last states, `sorted_seqs`, and columns saved for the gradient."""

import functools
from typing import NamedTuple

import numpy as np

from varlen_rnn import recurrence
from varlen_rnn.cells import CELLS, find_cell
from varlen_rnn.errors import LoDError, ProgramError, ShapeError
from varlen_rnn.ops.cost import Cost, known
from varlen_rnn.ops.examples import LOD, rows
from varlen_rnn.ops.recurrent import recompute
from varlen_rnn.ops.recurrent.inputs import (
    check_layer,
    flat,
    full_states,
    layer_of,
    names_of_inputs,
    of_outputs,
    operands_of,
    ways_of,
    weight_shapes,
)  # fmt: skip
from varlen_rnn.recurrence.phases import kept_by, kept_numbers
from varlen_rnn.rows.lod import LoDTensor, rows_of
from varlen_rnn.rows.plan import plan_of_rows
from varlen_rnn.runtime.device import as_operand
from varlen_rnn.tape.checks import FLOATS, check_kind, check_like
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.kinds import LOD_RANK_TABLE, LOD_TENSOR
from varlen_rnn.tape.spec import PLAN, spec_of_tensor
from varlen_rnn.tape.variable import apply_list

_new_tuple = tuple.__new__  # of a NamedTuple, without a call of Python
_ONE_WAY = {None: (False,), (0,): (False,), (1,): (True,)}  # by the constant `reverse` of one direction


def _operands(cell, inputs):
    """Return x and the weights of one direction from zeros, as of most layers, or None; a bias may still be missing."""
    if len(inputs) != len(cell.states) + 5 or cell.vectors or cell.rows:
        return None
    x, *states, w_ih, w_hh, b_ih, b_hh = inputs
    return (x, w_ih, w_hh, b_ih, b_hh) if states == [None] * len(states) else None


def _fit(cell, x, w_ih, w_hh, b_ih, b_hh):
    """Return whether rows and the weights of a direction, arrays or specs, have one data type, and shapes that fit."""
    try:
        (_, features), (gates, hidden), dtype = x.shape, w_hh.shape, x.dtype
    except ValueError:  # of other ranks
        return False
    projected = len(cell.x_gates) * hidden
    # One comparison: tuples look first whether their items are the same objects, as data types mostly are.
    found = w_ih.shape, b_ih.shape, b_hh.shape, w_ih.dtype, w_hh.dtype, b_ih.dtype, b_hh.dtype
    wanted = (projected, features), (projected,), (gates,), dtype, dtype, dtype, dtype
    return found == wanted and 0 < gates == len(cell.h_gates) * hidden and projected > 0 and dtype in FLOATS


def _infer(*inputs, cell, keep, reverse=None, all_states=False, every=None):
    cell, operands = find_cell(cell), None
    if every is not None:
        _check_every(cell, every, all_states)
    if not all_states and reverse in _ONE_WAY:
        operands = _operands(cell, inputs)
    if operands and None not in operands and _are_rows_and_weights(*operands) and _fit(cell, *operands):
        num_directions, hidden = 1, operands[2].shape[1]
        units = [hidden] * len(cell.states)
    else:
        layer = layer_of(cell, inputs)
        check_layer(cell, layer)
        num_directions, hidden = len(ways_of(reverse, len(layer.directions))), layer.hidden
        units = [layer.units(number) for number in range(len(cell.states))]
    x = inputs[0]
    widths = [-1 if size == -1 else num_directions * size for size in units]
    of_rows = [spec_of_tensor((x.shape[0], width), x.dtype, x.lod_level) for width in widths]
    last = [spec_of_tensor((num_directions, -1, size), x.dtype) for size in units]
    # The engine decides how far rows are apart, and the lengths decide how many chunks there are.
    kept = spec_of_tensor((x.shape[0], -1) if every is None else (-1, hidden), x.dtype)
    return [*(of_rows if all_states else of_rows[:1]), *last, PLAN, *([kept] * num_directions if keep else ())]


def _check_every(cell, every, all_states):
    """Raise unless a layer can keep its states at every so many steps alone."""
    if every < 0:
        raise ShapeError("recurrent, every", expected="0 or more steps, or None", got=every)
    if cell.rows or all_states:
        what = "inputs of rows" if cell.rows else "all states"
        hint = "recompute=False keeps what they need"
        raise ShapeError("recurrent, every", expected=f"None, with {what}", got=every, hint=hint)


def _are_rows_and_weights(x, w_ih, w_hh, b_ih, b_hh):
    return x.lod_level and LOD_TENSOR is x.kind is w_ih.kind is w_hh.kind is b_ih.kind is b_hh.kind


def _forward(*inputs, cell, keep, reverse=None, all_states=False, every=None):
    cell = find_cell(cell)
    layer = layer_of(cell, inputs)
    x, plan = layer.x, plan_of_rows(layer.x.structure)
    operands, weights, initial = operands_of(cell, layer, plan)
    ways = ways_of(reverse, len(layer.directions))
    if keep and every is not None:
        y, last, kept = recompute.forward(cell, operands, weights, initial, plan, every, ways)
    else:
        y, last, kept = recurrence.forward(cell, operands, weights, initial, plan, keep or all_states, ways)
    outputs = _wrapped(cell, x.structure, y, of_outputs(layer, last), plan, kept if keep else ())
    if all_states:
        outputs[1:1] = [LoDTensor.wrap(state, x.structure) for state in _other_states(cell, layer.hidden, kept)]
    return outputs


def _other_states(cell, hidden, kept):
    """Return the states after the first at every row, (rows, directions * hidden), from the saved columns."""
    firsts = [(len(cell.slots) + number) * hidden for number in range(len(cell.states) - 1)]
    return [np.concatenate([of_way[:, first : first + hidden] for of_way in kept], axis=1) for first in firsts]


def _wrapped(cell, lod, y, last, plan, kept):
    wrap = LoDTensor.wrap
    # Loops: comprehensions and `map` take 1 us longer, and an array's own iteration four times as long as `range`.
    outputs = [wrap(y, lod)]
    for number in range(len(cell.states)):
        outputs.append(wrap(last[number]))
    outputs.append(plan)
    for slots in kept:
        outputs.append(wrap(slots))
    return outputs


def _shortcut(inputs, cell, keep, reverse=None, all_states=False, every=None):
    """Run one direction from zeros with biases, where data types and shapes fit; return None of anything else."""
    kind, ways = find_cell(cell), None if all_states or every is not None else _ONE_WAY.get(reverse)
    operands = ways and _operands(kind, inputs)
    if not operands:
        return None
    try:
        lod = operands[0].structure
        rows, w_ih, w_hh, b_ih, b_hh = map(rows_of, operands)
    except AttributeError:  # an operand has no rows
        return None
    if not (lod.num_levels and _fit(kind, rows, w_ih, w_hh, b_ih, b_hh) and rows.shape[0] == lod.num_rows):
        return None
    # Asked here: five calls that find nothing to do would take longer.
    if not (rows.flags.carray and w_ih.flags.carray and w_hh.flags.carray and b_ih.flags.carray and b_hh.flags.carray):
        rows, w_ih, w_hh, b_ih, b_hh = map(as_operand, (rows, w_ih, w_hh, b_ih, b_hh))
    direction = _new_tuple(recurrence.Direction, (w_ih, w_hh, b_ih, b_hh, None, None, None))
    plan = plan_of_rows(lod)
    y, last, kept = recurrence.forward(kind, rows, [direction], None, plan, keep, ways)
    return _wrapped(kind, lod, y, last, plan, kept)


def _grad(inputs, outputs, d_outputs, cell, keep, reverse=None, all_states=False, every=None):
    num_states = len(find_cell(cell).states)
    num_given = 2 * num_states if all_states else 1 + num_states  # outputs before the plan
    plan, *kept = outputs[num_given:]
    weights = inputs[1 + num_states :]
    # Any asks in a generator, which takes longer than most answers.
    first = weights[0] is not None and weights[0].requires_grad
    need_weights = first or any(w is not None and w.requires_grad for w in weights)
    attrs = {"cell": cell, "num_forward": len(inputs), "need_x": inputs[0].requires_grad, "need_weights": need_weights}
    attrs |= {"reverse": reverse, "all_states": all_states, "every": every}
    y = outputs[0] if every is None else None  # recomputed, it need not be held
    return apply_list("recurrent_grad", *inputs, y, plan, *kept, *d_outputs[:num_given], **attrs)


def _infer_grad(*inputs, cell, num_forward, need_x, need_weights, reverse=None, all_states=False, every=None):
    if not 0 < num_forward < len(inputs):
        raise ShapeError("recurrent_grad, num_forward", expected=f"1 to {len(inputs) - 1}", got=num_forward)
    forward, given = inputs[:num_forward], inputs[num_forward:]
    outputs = _infer(*forward, cell=cell, keep=True, reverse=reverse, all_states=all_states, every=every)
    at = outputs.index(PLAN)
    kept = outputs[at + 1 :]
    expected = [outputs[0], PLAN, *kept, *outputs[:at]]
    if len(given) != len(expected) or given[1] is None or (given[0] is None and every is None):
        raise ShapeError("recurrent_grad", expected=f"{len(expected)} inputs after the layer's", got=len(given))
    check_kind("recurrent_grad", "sorted_seqs", given[1], LOD_RANK_TABLE)
    for number, (desc, like) in enumerate(zip(given, expected, strict=True)):
        if number != 1 and not (desc is None and (number == 0 or number >= 2 + len(kept))):
            check_like("recurrent_grad", f"rest[{number}]", desc, like)
    return [forward[0], *like_states_and_weights(find_cell(cell), forward, outputs[:at])]


def like_states_and_weights(cell, inputs, outputs):
    """Return the specs of the gradients of states and weights.  A missing input counts as if it were given."""
    layer = layer_of(cell, inputs)
    last = outputs[len(outputs) - len(cell.states) :]
    states = [like if state is None else state for state, like in zip(layer.states, last, strict=True)]
    shapes = weight_shapes(cell, layer.x.shape[1], layer.hidden, layer.outputs if layer.projects else None)
    return states + [
        spec_of_tensor(shapes[name], layer.x.dtype) if weight is None else weight
        for weights in layer.directions
        for name, weight in weights.items()
    ]


def _check_plan(x, plan):
    """Raise unless a plan, which the gradient trusts, is the plan of the rows."""
    lod = x.structure
    if plan is not plan_of_rows(lod) and not np.array_equal(plan.offsets, lod.levels[-1]):
        raise LoDError("recurrent_grad, sorted_seqs", expected="the plan of x", got="another")


def _check_kept(x, kept, columns):
    """Raise unless there are kept columns, which the gradient trusts, for every row."""
    for tensor in kept:
        if tensor.shape[0] != x.shape[0] or tensor.shape[1] < columns:
            wanted, hint = f"({x.shape[0]}, {columns} or more)", "pass the saved columns of the layer"
            raise ShapeError("recurrent_grad, kept", expected=wanted, got=tensor.shape, hint=hint)
        if not (tensor.data.flags.writeable and tensor.data.flags.c_contiguous):
            raise ProgramError("recurrent_grad, kept", expected="memory of the layer's own", got="a view")


def _forward_grad(*inputs, cell, num_forward, need_x, need_weights, reverse=None, all_states=False, every=None):
    cell = find_cell(cell)
    layer = layer_of(cell, inputs[:num_forward])
    x, directions, num_states = layer.x, layer.directions, len(cell.states)
    y, plan, *rest = inputs[num_forward:]
    kept, (d_y, *d_others) = rest[: len(directions)], rest[len(directions) :]
    d_others, d_last = d_others[:-num_states], d_others[-num_states:]
    _check_plan(x, plan)
    operands, weights, initial = operands_of(cell, layer, plan)
    shape = x.shape[0], len(directions) * layer.outputs
    d_y = np.zeros(shape, x.dtype) if d_y is None else as_operand(d_y.data)
    slots = [tensor.data for tensor in kept]
    names = [f"d_{state}_n" for state in cell.states]
    d_last = full_states("recurrent_grad", layer, plan, names, d_last)
    wanted = {"need_x": need_x, "need_weights": need_weights, "reverse": ways_of(reverse, len(directions))}
    if every is None:
        _check_kept(x, kept, kept_numbers(cell, layer))
        d_x, d_weights, d_initial = recurrence.backward(
            cell, operands, weights, initial, plan, as_operand(y.data), slots, d_y, d_last,
            d_others=_d_others(layer, d_others), **wanted,
        )  # fmt: skip
    else:
        d_x, d_weights, d_initial = recompute.backward(
            cell, operands, weights, slots, plan, d_y, d_last, every=every, **wanted
        )
    d_x = x.like(d_x) if need_x else x
    # As with x, a gradient that nobody asked for is the weight itself, or zeros if the bias is missing.
    groups = d_weights if need_weights else weights
    d_inputs = [d_x, *map(LoDTensor.wrap, of_outputs(layer, d_initial) + flat(groups))]
    return with_lods(cell, layer, d_inputs) if cell.rows else d_inputs


def with_lods(cell, layer, d_inputs):
    """Return gradients; the gradients of row inputs get the LoD of these inputs."""
    own = len(layer.directions[0])
    for way, weights in enumerate(layer.directions):
        end = 1 + len(cell.states) + (way + 1) * own
        for place, name in enumerate(cell.rows, end - len(cell.rows)):
            d_inputs[place] = weights[name].like(d_inputs[place].data)
    return d_inputs


def _d_others(layer, given):
    """Return the gradients of the states but the first of every row, side by side for each direction, or None."""
    if all(d is None for d in given):
        return None
    hidden = layer.hidden
    d_others = [np.zeros((layer.x.shape[0], len(given) * hidden), layer.x.dtype) for _ in layer.directions]
    for way, rows_of_way in enumerate(d_others):
        for number, d in enumerate(given):
            if d is not None:
                rows_of_way[:, number * hidden : (number + 1) * hidden] = d.data[:, way * hidden : (way + 1) * hidden]
    return d_others


def _overwritten(num_inputs, cell, **attrs):
    """Return the positions of the columns that each direction kept: the gradient writes there."""
    if attrs.get("every") is not None:
        return ()
    first, num_states = attrs["num_forward"] + 2, len(find_cell(cell).states)
    num_gradients = 2 * num_states if attrs.get("all_states") else 1 + num_states
    return tuple(range(first, num_inputs - num_gradients))


@functools.lru_cache
def _places(num_inputs, num_outputs, cell, keep, reverse=None, all_states=False, every=None):
    """Return the names of inputs, and of outputs: y, other states, the last states, the plan, the kept columns."""
    cell = find_cell(cell)
    inputs, ends = names_of_inputs(cell, num_inputs)
    others = (f"{state}_all" for state in cell.states[1:] if all_states)
    kept = ("kept" + end for end in ends if keep)
    return inputs, ("y", *others, *(f"{state}_n" for state in cell.states), "sorted_seqs", *kept)


def _places_grad(
    num_inputs, num_outputs, cell, num_forward, need_x, need_weights, reverse=None, all_states=False, every=None
):
    inputs, outputs = _places(num_forward, 0, cell, True, reverse, all_states, every)
    at = outputs.index("sorted_seqs")
    given = [*inputs, outputs[0], *outputs[at:], *(f"d_{name}" for name in outputs[:at])]
    return given, [f"d_{name}" for name in inputs]


class _Sizes(NamedTuple):
    """Of a layer: rows, features of a row, hidden units, units of an output, directions; 1 where only values tell."""

    rows: int
    features: int
    hidden: int
    outputs: int
    directions: int


def _sizes(inputs, cell):
    layer = layer_of(cell, inputs)
    rows, features, hidden, outputs = map(known, (*layer.x.shape, layer.hidden, layer.outputs))
    return _Sizes(rows, features, hidden, outputs, len(layer.directions)), layer.projects


def _kept_bytes(cell, sizes, projects, dtype):
    """Return the bytes that a layer keeps beyond its first column: rows are as long as the engine likes."""
    return sizes.directions * sizes.rows * (kept_by(cell, projects) * sizes.hidden - 1) * dtype.itemsize


def _flops_of_products(cell, sizes, projects):
    """Return the operations of the products with inputs, and of the products of a step."""
    of_x = 2 * sizes.rows * len(cell.x_gates) * sizes.hidden * sizes.features
    of_step = len(cell.h_gates) * sizes.hidden * sizes.outputs + projects * sizes.outputs * sizes.hidden
    return sizes.directions * of_x, sizes.directions * 2 * sizes.rows * of_step


def cost_of_layer(inputs, outputs, cell, keep, reverse=None, all_states=False, every=None):
    """2 gates hidden (input + output), and 2 hidden output for a projection, per row and direction."""
    cell = find_cell(cell)
    sizes, projects = _sizes(inputs, cell)
    more = _kept_bytes(cell, sizes, projects, inputs[0].dtype) if keep and every is None else 0
    return Cost(sum(_flops_of_products(cell, sizes, projects)), more)


def cost_of_gradient(
    inputs, outputs, cell, num_forward, need_x, need_weights, reverse=None, all_states=False, every=None
):
    """Twice the layer's, once more if it recomputes, less the products for gradients that nobody asks for."""
    cell = find_cell(cell)
    sizes, projects = _sizes(inputs[:num_forward], cell)
    of_x, of_step = _flops_of_products(cell, sizes, projects)
    flops, times = of_step + (of_x + of_step) * need_weights + of_x * need_x, 1
    if every is not None:  # the forward pass runs again, and keeps its columns this time
        flops, times = flops + of_x + of_step, 2
    return Cost(flops, times * _kept_bytes(cell, sizes, projects, inputs[0].dtype))


def _by_sequence(specs, axes, cell, **constants):
    """Return the trait of a layer over sequences: its states are missing, or have one row for each sequence."""
    states = range(1, 1 + len(find_cell(cell).states))
    is_right = axes[0] == 0 and all(specs[number] is None or axes[number] == 1 for number in states)
    return "sequence" if is_right else None


@operator(
    outputs=("*y",),
    intermediate=("kept", "kept_reverse"),
    may_miss=("states_and_weights",),
    cost=cost_of_layer,
    inference={"keep": False, "every": None},
    places=_places,
    rows=_by_sequence,
)
def recurrent(
    x,
    *states_and_weights,
    cell: str,
    keep: bool,
    reverse: tuple[int, ...] | None = None,
    all_states: bool = False,
    every: int | None = None,
):
    """Return the outputs and last states of a recurrent layer over rows with a LoD, in one or two directions.

    With `every`, it keeps for the gradient the states at every so many steps alone, and the gradient computes the
    others again; 0 is the square root of the longest length.
    """
    constants = {"reverse": reverse, "all_states": all_states, "every": every}
    return _forward(x, *states_and_weights, cell=cell, keep=keep, **constants)


recurrent.infer(_infer)
recurrent.grad(_grad)
recurrent.op.shortcut = _shortcut


@recurrent.examples
def _examples(rng):
    sequences, hidden = len(LOD.levels[-1]) - 1, 4
    for name, directions, outputs, constants in (
        ("lstm", 2, None, {}),
        ("gru", 2, None, {}),
        ("rnn_tanh", 2, None, {}),
        ("gru", 1, None, {"reverse": (1,)}),
        ("lstm", 2, 3, {"reverse": (1, 0), "all_states": True}),
        ("lstm", 2, 3, {"reverse": (0, 1), "every": 2}),
        ("gru", 1, None, {"reverse": (1,), "every": 0}),
        ("rnn_tanh", 1, None, {"reverse": (0,), "every": 1}),
    ):
        cell = CELLS[name]
        units = [outputs or hidden, *[hidden] * (len(cell.states) - 1)]
        states = [rng.standard_normal((directions, sequences, size)) for size in units]
        shapes = [*weight_shapes(cell, 3, hidden, outputs).values()] * directions
        constants = {"cell": name, "keep": True, "reverse": None, "all_states": False, "every": None, **constants}
        yield [rows(rng, 3), *states, *map(rng.standard_normal, shapes)], constants


@operator(outputs=("*d",), may_miss=("rest",), cost=cost_of_gradient, overwrites=_overwritten, places=_places_grad)
def recurrent_grad(
    x,
    *rest,
    cell: str,
    num_forward: int,
    need_x: bool,
    need_weights: bool,
    reverse: tuple[int, ...] | None = None,
    all_states: bool = False,
    every: int | None = None,
):
    """Return the gradients of a recurrent layer's inputs; they overwrite the columns that the layer kept."""
    constants = {"num_forward": num_forward, "need_x": need_x, "need_weights": need_weights, "every": every}
    return _forward_grad(x, *rest, cell=cell, reverse=reverse, all_states=all_states, **constants)


recurrent_grad.infer(_infer_grad)
