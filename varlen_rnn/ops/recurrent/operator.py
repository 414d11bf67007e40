"""The recurrent layer as one operator, which returns outputs, last states, the plan, and columns for its gradient.

A column is a number per row that the forward pass saves, such as the value of a gate.
"""

import functools

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
from varlen_rnn.recurrence.phases import kept_numbers
from varlen_rnn.rows.lod import NO_LOD, LoDTensor, rows_of
from varlen_rnn.rows.plan import plan_of_rows
from varlen_rnn.runtime.device import as_operand, copy_into, joined, zeros
from varlen_rnn.tape.checks import FLOATS, check_kind, check_like
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.kinds import LOD_RANK_TABLE, LOD_TENSOR
from varlen_rnn.tape.spec import PLAN, spec_of_tensor
from varlen_rnn.tape.variable import apply_list

_new_tuple = tuple.__new__  # makes a NamedTuple without calling its Python constructor
_ONE_WAY = {
    None: (False,),
    (0,): (False,),
    (1,): (True,),
}  # whether a single direction runs backward, by the constant `reverse`


def _operands(cell, inputs):
    """Return x and the weights if there is one direction and no initial state, as in most layers; otherwise None.

    A missing bias is None among them.
    """
    if len(inputs) != len(cell.states) + 5 or cell.vectors or cell.row_inputs:
        return None
    x, *states, w_ih, w_hh, b_ih, b_hh = inputs
    return (x, w_ih, w_hh, b_ih, b_hh) if states == [None] * len(states) else None


def _fit(cell, x, w_ih, w_hh, b_ih, b_hh):
    """Return whether rows and the weights of a direction, as arrays or specs, have one data type and fitting shapes."""
    try:
        (_, features), (gates, hidden), dtype = x.shape, w_hh.shape, x.dtype
    except ValueError:  # a shape has another number of axes
        return False
    projected = len(cell.x_gates) * hidden
    # Compare two tuples, which is fast: it first tests whether items are the same object, as data types mostly are.
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
    # The engine chooses the width of saved rows; with `every`, the lengths determine the number of saved states.
    kept = spec_of_tensor((x.shape[0], -1) if every is None else (-1, hidden), x.dtype)
    return [*(of_rows if all_states else of_rows[:1]), *last, PLAN, *([kept] * num_directions if keep else ())]


def _check_every(cell, every, all_states):
    """Raise unless `every` is valid, and the layer can recompute its steps from states saved every `every` steps."""
    if every < 0:
        raise ShapeError("recurrent, every", expected="0 or more steps, or None", got=every)
    if cell.row_inputs or all_states:
        reason = "the cell has inputs of rows" if cell.row_inputs else "all states are returned"
        hint = "pass recompute=False to the layer"
        raise ShapeError("recurrent, every", expected=f"None, because {reason}", got=every, hint=hint)


def _are_rows_and_weights(x, w_ih, w_hh, b_ih, b_hh):
    return x.lod_level and LOD_TENSOR is x.kind is w_ih.kind is w_hh.kind is b_ih.kind is b_hh.kind


def _wrapped(cell, lod, y, last, plan, kept):
    wrap = LoDTensor.wrap
    # Loops and `last[number]` are used because comprehensions take 1 us longer, and iterating over an array 4 times as
    # long.
    outputs, of_last = [wrap(y, lod)], NO_LOD.at_positions_of(lod, 1) if lod.num_levels == 1 else NO_LOD
    for number in range(len(cell.states)):
        outputs.append(wrap(last[number], of_last))
    outputs.append(plan)
    for slots in kept:
        outputs.append(wrap(slots))
    return outputs


def _shortcut(inputs, cell, keep, reverse=None, all_states=False, every=None):
    """Run a layer of one direction with biases and no initial state if its inputs fit; otherwise return None."""
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
    # Test the flags here, because five calls of `as_operand` that change nothing would take longer.
    if not (rows.flags.carray and w_ih.flags.carray and w_hh.flags.carray and b_ih.flags.carray and b_hh.flags.carray):
        rows, w_ih, w_hh, b_ih, b_hh = map(as_operand, (rows, w_ih, w_hh, b_ih, b_hh))
    direction = _new_tuple(recurrence.Direction, (w_ih, w_hh, b_ih, b_hh, None, None, None))
    plan = plan_of_rows(lod)
    y, last, kept = recurrence.forward(kind, rows, [direction], None, plan, keep, ways)
    return _wrapped(kind, lod, y, last, plan, kept)


def _grad(inputs, outputs, d_outputs, cell, keep, reverse=None, all_states=False, every=None):
    num_states = len(find_cell(cell).states)
    num_given = 2 * num_states if all_states else 1 + num_states  # the number of outputs before the plan
    plan, *kept = outputs[num_given:]
    weights = inputs[1 + num_states :]
    # Test the first weight on its own, because to start the generator of `any` takes longer than the test.
    first = weights[0] is not None and weights[0].requires_grad
    need_weights = first or any(w is not None and w.requires_grad for w in weights)
    attrs = {"cell": cell, "num_forward": len(inputs), "need_x": inputs[0].requires_grad, "need_weights": need_weights}
    attrs |= {"reverse": reverse, "all_states": all_states, "every": every}
    y = outputs[0] if every is None else None  # it is recomputed, so it need not be held
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
        if desc == like or (desc is None and (number == 0 or number >= 2 + len(kept))):
            continue
        check_like("recurrent_grad", f"rest[{number}]", desc, like)
    return [forward[0], *_like_states_and_weights(find_cell(cell), forward, outputs[:at])]


def _like_states_and_weights(cell, inputs, outputs):
    """Return the specs of the gradients of states and weights, also for a missing input."""
    layer = layer_of(cell, inputs)
    last = outputs[len(outputs) - len(cell.states) :]
    states = [like if state is None else state for state, like in zip(layer.states, last, strict=True)]
    shapes = layer.weight_shapes(cell, layer.x.shape[1])
    return states + [
        spec_of_tensor(shapes[name], layer.x.dtype) if weight is None else weight
        for weights in layer.directions
        for name, weight in weights.items()
    ]


def _check_plan(x, plan):
    """Raise unless `plan` is the plan of the rows of `x`, because the gradient does not check it again."""
    lod = x.structure
    if plan is not plan_of_rows(lod) and not np.array_equal(plan.offsets, lod.levels[-1]):
        raise LoDError("recurrent_grad, sorted_seqs", expected="the plan of x", got="another plan")


def _check_kept(x, kept, columns):
    """Raise unless there are saved columns for every row, because the gradient does not check them again."""
    for tensor in kept:
        if tensor.shape[0] != x.shape[0] or tensor.shape[1] < columns:
            wanted, hint = f"({x.shape[0]}, {columns} or more)", "pass the saved columns of the layer"
            raise ShapeError("recurrent_grad, kept", expected=wanted, got=tensor.shape, hint=hint)
        if not (tensor.data.flags.writeable and tensor.data.flags.c_contiguous):
            expected, got = "a contiguous array that can be overwritten", "a read-only or strided array"
            raise ProgramError("recurrent_grad, kept", expected=expected, got=got)


def _with_lods(cell, layer, d_inputs):
    """Return all gradients, after giving the gradient of each row input the LoD of this input."""
    own = len(layer.directions[0])
    for way, weights in enumerate(layer.directions):
        end = 1 + len(cell.states) + (way + 1) * own
        for place, name in enumerate(cell.row_inputs, end - len(cell.row_inputs)):
            d_inputs[place] = weights[name].like(d_inputs[place].data)
    return d_inputs


def _d_others(layer, given):
    """Return, for each direction, the gradients of all states but the first, side by side; None if all are missing."""
    if all(d is None for d in given):
        return None
    hidden = layer.hidden
    d_others = [zeros((layer.x.shape[0], len(given) * hidden), layer.x.data) for _ in layer.directions]
    for way, rows_of_way in enumerate(d_others):
        for number, d in enumerate(given):
            if d is not None:
                columns = slice(number * hidden, (number + 1) * hidden)
                copy_into(rows_of_way[:, columns], d.data[:, way * hidden : (way + 1) * hidden])
    return d_others


def _overwritten(num_inputs, cell, num_forward, all_states=False, every=None, **constants):
    """Return the positions of the inputs that the gradient overwrites: the saved columns of each direction."""
    if every is not None:
        return ()
    num_states = len(find_cell(cell).states)
    return tuple(range(num_forward + 2, num_inputs - (2 * num_states if all_states else 1 + num_states)))


def _places(num_inputs, num_outputs, cell, keep, all_states=False, **constants):
    """Return the names of the inputs, and of the outputs: y, other states, last states, the plan, the saved columns."""
    cell = find_cell(cell)
    return _named_places(cell.states, names_of_inputs(cell, num_inputs), keep, all_states)


@functools.lru_cache
def _named_places(states, names_and_ends, keep, all_states):
    inputs, ends = names_and_ends
    others = (f"{state}_all" for state in states[1:] if all_states)
    kept = ("kept" + end for end in ends if keep)
    return inputs, ("y", *others, *(f"{state}_n" for state in states), "sorted_seqs", *kept)


def _places_grad(num_inputs, num_outputs, cell, num_forward, all_states=False, **constants):
    inputs, outputs = _places(num_forward, 0, cell, True, all_states)
    at = outputs.index("sorted_seqs")
    given = [*inputs, outputs[0], *outputs[at:], *(f"d_{name}" for name in outputs[:at])]
    return given, [f"d_{name}" for name in inputs]


def _work(inputs, cell):
    """Return three numbers: operations of products with inputs, operations of products in steps, and bytes saved.

    The bytes leave out one column, because the unknown width of saved rows is already counted as 1.
    """
    layer = layer_of(cell, inputs)
    rows, features, hidden, outputs = map(known, (*layer.x.shape, layer.hidden, layer.outputs))
    rows *= len(layer.directions)
    of_step = len(cell.h_gates) * hidden * (outputs // layer.heads) + layer.projects * outputs * hidden
    saved = recurrence.saved_numbers(cell, layer._replace(hidden=hidden), layer.x.dtype)
    kept = rows * (saved - 1) * layer.x.dtype.itemsize
    return 2 * rows * len(cell.x_gates) * hidden * features, 2 * rows * of_step, kept


def _cost(inputs, outputs, cell, keep, every=None, **constants):
    """2 gates hidden (input + output / heads) operations, plus 2 hidden output for a projection, per row and way."""
    of_x, of_step, kept = _work(inputs, find_cell(cell))
    return Cost(of_x + of_step, kept if keep and every is None else 0)


def _cost_of_gradient(inputs, outputs, cell, num_forward, need_x, need_weights, every=None, **constants):
    """Twice the cost of the layer, three times if it recomputes, minus products of gradients that are not needed."""
    of_x, of_step, kept = _work(inputs[:num_forward], find_cell(cell))
    flops = of_step + (of_x + of_step) * need_weights + of_x * need_x
    if every is not None:  # the forward pass runs again, and saves its columns this time
        return Cost(flops + of_x + of_step, 2 * kept)
    return Cost(flops, kept)


def _by_sequence(specs, axes, cell, **constants):
    """Return the trait "sequence" if each state is missing or has one row for each sequence, otherwise None."""
    states = range(1, 1 + len(find_cell(cell).states))
    is_right = axes[0] == 0 and all(specs[number] is None or axes[number] == 1 for number in states)
    return "sequence" if is_right else None


@operator(
    outputs=("*y",),
    intermediate=("kept", "kept_reverse"),
    may_miss=("states_and_weights",),
    cost=_cost,
    inference={"keep": False, "every": None},
    places=_places,
    rows=_by_sequence,
    multiplies=True,
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

    If `every` is given, only the states at every `every`-th step are saved (0 means the square root of the longest
    length), and the gradient computes the other states again.
    """
    cell, plan = find_cell(cell), plan_of_rows(x.structure)
    layer = layer_of(cell, (x, *states_and_weights))
    operands, weights, initial = operands_of(cell, layer, plan)
    ways = ways_of(reverse, len(layer.directions))
    if keep and every is not None:
        y, last, kept = recompute.forward(cell, operands, weights, initial, plan, every, ways)
    else:
        y, last, kept = recurrence.forward(cell, operands, weights, initial, plan, keep or all_states, ways)
    outputs = _wrapped(cell, x.structure, y, of_outputs(layer, last), plan, kept if keep else ())
    if all_states:  # the saved columns have all states except the first
        spared = kept_numbers(cell, layer) - recurrence.saved_numbers(cell, layer, x.dtype)  # in front of the states
        firsts = [(len(cell.slots) + number) * layer.hidden - spared for number in range(len(cell.states) - 1)]
        others = [joined([of_way[:, first : first + layer.hidden] for of_way in kept], axis=1) for first in firsts]
        outputs[1:1] = [LoDTensor.wrap(state, x.structure) for state in others]
    return outputs


recurrent.infer(_infer)
recurrent.grad(_grad)
recurrent.op.shortcut = _shortcut
recurrent.op.finds = {"cell": find_cell}


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


@operator(
    outputs=("*d",), may_miss=("rest",), cost=_cost_of_gradient, overwrites=_overwritten, places=_places_grad,
    multiplies=True,
)  # fmt: skip
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
    """Return the gradients of a recurrent layer's inputs; this overwrites the columns that the layer saved."""
    cell, inputs = find_cell(cell), (x, *rest)
    layer = layer_of(cell, inputs[:num_forward])
    directions, num_states = layer.directions, len(cell.states)
    y, plan, *rest = inputs[num_forward:]
    kept, (d_y, *d_others) = rest[: len(directions)], rest[len(directions) :]
    d_others, d_last = d_others[:-num_states], d_others[-num_states:]
    _check_plan(x, plan)
    operands, weights, initial = operands_of(cell, layer, plan)
    shape = x.shape[0], len(directions) * layer.outputs
    d_y = zeros(shape, x.data) if d_y is None else as_operand(d_y.data)
    slots = [tensor.data for tensor in kept]
    d_last = full_states("recurrent_grad", "d_{}_n", cell, layer, plan, d_last)
    wanted = {"need_x": need_x, "need_weights": need_weights, "reverse": ways_of(reverse, len(directions))}
    arriving = recurrence.Arriving(d_y, d_last, _d_others(layer, d_others))
    if every is None:
        _check_kept(x, kept, recurrence.saved_numbers(cell, layer, x.dtype))
        saved = recurrence.Saved(as_operand(y.data), slots)
        d_x, d_weights, d_initial = recurrence.backward(
            cell, operands, weights, initial, plan, saved, arriving, **wanted
        )
    else:
        d_x, d_weights, d_initial = recompute.backward(
            cell, operands, weights, slots, plan, arriving, every=every, **wanted
        )
    d_x = x.like(d_x) if need_x else x
    # If the gradients of weights are not needed, return the weights in their place (zeros for a missing bias).
    groups = d_weights if need_weights else weights
    d_inputs = [d_x, *map(LoDTensor.wrap, of_outputs(layer, d_initial) + flat(cell, groups))]
    return _with_lods(cell, layer, d_inputs) if cell.row_inputs else d_inputs


recurrent_grad.infer(_infer_grad)
recurrent_grad.op.finds = {"cell": find_cell}
