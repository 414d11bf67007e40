"""The recurrent layer as one operator: outputs, last states, `sorted_seqs`, and what its gradient operator needs."""

import functools

import numpy as np

from varlen_rnn import recurrence
from varlen_rnn.cells import CELLS, find_cell
from varlen_rnn.device import as_operand
from varlen_rnn.errors import LoDError, ProgramError, ShapeError
from varlen_rnn.lod import LoDTensor, rows_of
from varlen_rnn.ops.cost import Cost, known
from varlen_rnn.ops.examples import LOD, rows
from varlen_rnn.plan import plan_of_rows
from varlen_rnn.tape.checks import FLOATS, check_float, check_kind, check_like, check_lod_level, check_rank, check_shape
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.kinds import LOD_RANK_TABLE, LOD_TENSOR
from varlen_rnn.tape.spec import PLAN, spec_of_tensor
from varlen_rnn.tape.variable import apply_list

_new_tuple = tuple.__new__  # of a NamedTuple, without a call of Python
_ROWS = (
    "x is (rows, features), the rows of all sequences one after another: create_lod_tensor(rows, lengths), or "
    "LoDTensor.from_sequences(list of sequences, num_levels=1)"
)
WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def _split(cell, inputs):
    """Return x, the initial states and the weights of each direction."""
    cut = 1 + len(cell.states)
    weights = inputs[cut:]
    if len(weights) not in (4, 8) or None in weights[::4] or None in weights[1::4]:
        raise ShapeError("recurrent, weights", expected=f"{WEIGHTS} of one or two directions", got=len(weights))
    return inputs[0], inputs[1:cut], (weights,) if len(weights) == 4 else (weights[:4], weights[4:])


def _operands(cell, inputs):
    """Return x and the weights of one direction from zeros, as of most layers, or None; a bias may still be missing."""
    if len(inputs) != len(cell.states) + 5:
        return None
    x, *states, w_ih, w_hh, b_ih, b_hh = inputs
    return (x, w_ih, w_hh, b_ih, b_hh) if states == [None] * len(states) else None


def _fit(cell, x, w_ih, w_hh, b_ih, b_hh):
    """Return whether rows and the weights of a direction, arrays or specs, have one data type, and shapes that fit."""
    try:
        (_, features), (gates, hidden), dtype = x.shape, w_hh.shape, x.dtype
    except ValueError:  # of other ranks
        return False
    # One comparison: tuples look first whether their items are the same objects, as data types mostly are.
    found = w_ih.shape, b_ih.shape, b_hh.shape, w_ih.dtype, w_hh.dtype, b_ih.dtype, b_hh.dtype
    wanted = (gates, features), (gates,), (gates,), dtype, dtype, dtype, dtype
    return found == wanted and gates == len(cell.gates) * hidden and dtype in FLOATS


def _infer(*inputs, cell, keep):
    cell, num_directions = find_cell(cell), 1
    operands = _operands(cell, inputs)
    if not (operands and None not in operands and _are_rows_and_weights(*operands) and _fit(cell, *operands)):
        num_directions = _check(cell, *_split(cell, inputs))
    x, weight_hh = inputs[0], inputs[len(cell.states) + 2]
    rows, hidden = x.shape[0], weight_hh.shape[1]
    y = spec_of_tensor((rows, num_directions * hidden), x.dtype, x.lod_level)
    state = spec_of_tensor((num_directions, -1, hidden), x.dtype)
    if not keep:
        return [y, *[state] * len(cell.states), PLAN]
    kept = spec_of_tensor((rows, -1), x.dtype)  # how far rows are apart is the engine's business
    return [y, *[state] * len(cell.states), PLAN, *[kept] * num_directions]


def _are_rows_and_weights(x, w_ih, w_hh, b_ih, b_hh):
    return x.lod_level and LOD_TENSOR is x.kind is w_ih.kind is w_hh.kind is b_ih.kind is b_hh.kind


def _check(cell, x, states, directions):
    """Return the number of directions; raise unless everything fits."""
    check_float("recurrent", x=x)
    check_rank("recurrent", "x", x, 2, _ROWS)
    check_lod_level("recurrent", "x", x)
    check_rank("recurrent", "weight_hh", directions[0][1], 2)
    hidden = directions[0][1].shape[1]
    for weights in directions:
        check_rank("recurrent", "weight_ih", weights[0], 2)
        rows, features = len(cell.gates) * hidden, weights[0].shape[1]
        check_shape("recurrent", "x", x, (-1, features), "input_size is the number of features of a row")
        shapes = (rows, features), (rows, hidden), (rows,), (rows,)
        for name, weight, shape in zip(WEIGHTS, weights, shapes, strict=True):
            if weight is not None:
                check_float("recurrent", x=x, **{name: weight})
                check_shape("recurrent", name, weight, shape)
    for name, state in zip(cell.states, states, strict=True):
        if state is not None:
            check_float("recurrent", x=x, **{f"{name}_0": state})
            check_shape("recurrent", f"{name}_0", state, (len(directions), -1, hidden))
    return len(directions)


def _arrays(cell, x, states, directions, plan):
    """Return the operands of the engine, with zeros where a bias is missing."""
    shape = (len(directions), plan.num_sequences, directions[0][1].shape[1])
    initial = None
    if any(states):
        for name, state in zip(cell.states, states, strict=True):
            if state is not None:
                hint = "one row of initial states for each sequence"
                check_shape("recurrent", f"{name}_0", state, shape, hint)
        initial = np.stack([np.zeros(shape, x.dtype) if state is None else state.data for state in states])
    return as_operand(x.data), [_direction(weights) for weights in directions], initial


def _direction(weights):
    rows = weights[1].shape[:1]
    return recurrence.Direction(
        *[np.zeros(rows, weights[1].dtype) if w is None else as_operand(w.data) for w in weights]
    )


def _forward(*inputs, cell, keep):
    cell = find_cell(cell)
    x, states, directions = _split(cell, inputs)
    plan = plan_of_rows(x.structure)
    rows, weights, initial = _arrays(cell, x, states, directions, plan)
    return _run(cell, x.structure, rows, weights, initial, plan, keep)


def _run(cell, lod, rows, weights, initial, plan, keep):
    y, last, kept = recurrence.forward(cell, rows, weights, initial, plan, keep)
    wrap = LoDTensor.wrap
    # Loops: comprehensions and `map` take 1 us longer, and an array's own iteration four times as long as `range`.
    outputs = [wrap(y, lod)]
    for number in range(len(cell.states)):
        outputs.append(wrap(last[number]))
    outputs.append(plan)
    for slots in kept:
        outputs.append(wrap(slots))
    return outputs


def _shortcut(inputs, cell, keep):
    """Run one direction from zeros with biases, where data types and shapes fit; return None of anything else."""
    kind = find_cell(cell)
    operands = _operands(kind, inputs)
    if not operands:
        return None
    try:
        lod = operands[0].structure
        rows, w_ih, w_hh, b_ih, b_hh = map(rows_of, operands)
    except AttributeError:  # what has no rows
        return None
    if not (lod.num_levels and _fit(kind, rows, w_ih, w_hh, b_ih, b_hh) and rows.shape[0] == lod.num_rows):
        return None
    # Asked here: five calls that find nothing to do would take longer.
    if not (rows.flags.carray and w_ih.flags.carray and w_hh.flags.carray and b_ih.flags.carray and b_hh.flags.carray):
        rows, w_ih, w_hh, b_ih, b_hh = map(as_operand, (rows, w_ih, w_hh, b_ih, b_hh))
    direction = _new_tuple(recurrence.Direction, (w_ih, w_hh, b_ih, b_hh, None, None))
    return _run(kind, lod, rows, [direction], None, plan_of_rows(lod), keep)


def _grad(inputs, outputs, d_outputs, cell, keep):
    num_states = len(find_cell(cell).states)
    y, (plan, *kept) = outputs[0], outputs[1 + num_states :]
    d_y, d_last = d_outputs[0], d_outputs[1 : 1 + num_states]
    weights = inputs[1 + num_states :]
    # Any asks in a generator, which takes longer than most answers.
    need_weights = weights[0].requires_grad or any(w is not None and w.requires_grad for w in weights)
    attrs = {"cell": cell, "num_forward": len(inputs), "need_x": inputs[0].requires_grad, "need_weights": need_weights}
    return apply_list("recurrent_grad", *inputs, y, plan, *kept, d_y, *d_last, **attrs)


def _infer_grad(*inputs, cell, num_forward, need_x, need_weights):
    if not 0 < num_forward < len(inputs):
        raise ShapeError("recurrent_grad, num_forward", expected=f"1 to {len(inputs) - 1}", got=num_forward)
    forward, given = inputs[:num_forward], inputs[num_forward:]
    y, *last_and_plan = _infer(*forward, cell=cell, keep=True)
    num_states = len(find_cell(cell).states)
    last, kept = last_and_plan[:num_states], last_and_plan[num_states + 1 :]
    expected = [y, PLAN, *kept, y, *last]
    if len(given) != len(expected) or given[0] is None or given[1] is None:
        raise ShapeError("recurrent_grad", expected=f"{len(expected)} inputs after the layer's", got=len(given))
    check_kind("recurrent_grad", "sorted_seqs", given[1], LOD_RANK_TABLE)
    for number, (desc, like) in enumerate(zip(given, expected, strict=True)):
        if number != 1 and not (desc is None and number >= 2 + len(kept)):
            check_like("recurrent_grad", f"rest[{number}]", desc, like)
    states = [state if desc is None else desc for desc, state in zip(forward[1:], last, strict=False)]
    weights = [like if desc is None else desc for desc, like in zip(*_weights(forward, num_states), strict=True)]
    return [forward[0], *states, *weights]


def _weights(inputs, num_states):
    """Return the weights' specs, and for a bias that is missing what its gradient is like: the rows of a weight."""
    weights = inputs[1 + num_states :]
    rows = [weights[number // 4 * 4] for number in range(len(weights))]
    return weights, [weight._replace(shape=weight.shape[:1]) for weight in rows]


def _check_kept(x, plan, kept, columns):
    """Raise unless the plan is that of the rows, and what was kept is of them: the gradient trusts both."""
    lod = x.structure
    if plan is not plan_of_rows(lod) and not np.array_equal(plan.offsets, lod.levels[-1]):
        raise LoDError("recurrent_grad, sorted_seqs", expected="the plan of x", got="another")
    for tensor in kept:
        if tensor.shape[0] != x.shape[0] or tensor.shape[1] < columns:
            wanted = f"({x.shape[0]}, {columns} or more)"
            raise ShapeError("recurrent_grad, kept", expected=wanted, got=tensor.shape, hint="what the layer kept")
        if not (tensor.data.flags.writeable and tensor.data.flags.c_contiguous):
            raise ProgramError("recurrent_grad, kept", expected="memory of the layer's own", got="a view")


def _forward_grad(*inputs, cell, num_forward, need_x, need_weights):
    cell = find_cell(cell)
    x, states, directions = _split(cell, inputs[:num_forward])
    y, plan, *rest = inputs[num_forward:]
    kept, (d_y, *d_last) = rest[: len(directions)], rest[len(directions) :]
    _check_kept(x, plan, kept, cell.num_kept * directions[0][1].shape[1])
    rows, weights, initial = _arrays(cell, x, states, directions, plan)
    shape = (len(directions), plan.num_sequences, directions[0][1].shape[1])
    d_y = np.zeros(y.shape, x.dtype) if d_y is None else as_operand(d_y.data)
    d_states = np.zeros((len(d_last), *shape), x.dtype)
    for name, d_state, d in zip(cell.states, d_states, d_last, strict=True):
        if d is not None:
            check_shape("recurrent_grad", f"d_{name}_n", d, shape)
            d_state[...] = d.data
    slots = [tensor.data for tensor in kept]
    d_x, d_weights, d_initial = recurrence.backward(
        cell, rows, weights, initial, plan, as_operand(y.data), slots, d_y, d_states, need_x, need_weights
    )
    d_x = x.like(d_x) if need_x else x
    # As of x, what nobody asked for is the weight itself, or what stood for a bias that is missing.
    groups = d_weights if need_weights else weights
    return [d_x, *map(LoDTensor.wrap, d_initial), *(LoDTensor.wrap(d) for group in groups for d in group[:4])]


def _overwritten(num_inputs, cell, **attrs):
    """Return the positions of what each direction kept: the gradient writes there."""
    first = attrs["num_forward"] + 2
    return tuple(range(first, num_inputs - 1 - len(find_cell(cell).states)))


@functools.lru_cache
def _places(num_inputs, num_outputs, cell, keep):
    """Return the names of inputs, and of outputs: y, the last states, the plan, what each direction keeps."""
    states = find_cell(cell).states
    ends = ["", "_reverse"][: (num_inputs - 1 - len(states)) // 4]
    inputs = "x", *(f"{state}_0" for state in states), *(name + end for end in ends for name in WEIGHTS)
    kept = ("kept" + end for end in ends if keep)
    return inputs, ("y", *(f"{state}_n" for state in states), "sorted_seqs", *kept)


def _places_grad(num_inputs, num_outputs, cell, num_forward, need_x, need_weights):
    inputs, (y, *rest) = _places(num_forward, 0, cell, True)
    num_states = len(find_cell(cell).states)
    last, (plan, *kept) = rest[:num_states], rest[num_states:]
    given = [*inputs, y, plan, *kept, f"d_{y}", *(f"d_{name}" for name in last)]
    return given, [f"d_{name}" for name in inputs]


def _sizes(inputs, cell):
    """Return gates * hidden * rows, the features of a row, the hidden size, and the directions."""
    x, weights = inputs[0], inputs[1 + len(find_cell(cell).states) :]
    gates, hidden = map(known, weights[1].shape)
    return gates * known(x.shape[0]), known(weights[0].shape[1]), hidden, len(weights) // 4


def _kept_bytes(inputs, cell, directions, hidden):
    """Return the bytes of what a layer keeps beyond those of one column: its rows are as long as an engine likes."""
    columns = find_cell(cell).num_kept * hidden - 1
    return directions * known(inputs[0].shape[0]) * columns * inputs[0].dtype.itemsize


def _cost(inputs, outputs, cell, keep):
    """2 gates hidden (input + hidden) per row and direction."""
    gates, features, hidden, directions = _sizes(inputs, cell)
    more = _kept_bytes(inputs, cell, directions, hidden) if keep else 0
    return Cost(directions * 2 * gates * (features + hidden), more)


def _cost_of_grad(inputs, outputs, cell, num_forward, need_x, need_weights):
    """2 gates hidden (input + 2 hidden) per row and direction, without frozen weights (hidden), (input) more for x."""
    gates, features, hidden, directions = _sizes(inputs[:num_forward], cell)
    flops = directions * 2 * gates * (hidden + (features + hidden) * need_weights + features * need_x)
    return Cost(flops, _kept_bytes(inputs, cell, directions, hidden))


@operator(
    outputs=("*y",),
    intermediate=("kept", "kept_reverse"),
    may_miss=("states_and_weights",),
    cost=_cost,
    inference={"keep": False},
    shortcut=_shortcut,
    places=_places,
)
def recurrent(x, *states_and_weights, cell: str, keep: bool):
    """Return the outputs and last states of a recurrent layer over rows with a LoD, in one or two directions."""
    return _forward(x, *states_and_weights, cell=cell, keep=keep)


recurrent.infer(_infer)
recurrent.grad(_grad)


@recurrent.examples
def _examples(rng):
    hidden, features, sequences = 4, 3, len(LOD.levels[-1]) - 1
    for name, directions in (("lstm", 2), ("gru", 2), ("rnn_tanh", 2), ("gru", 1)):
        cell = CELLS[name]
        gates = len(cell.gates) * hidden
        states = [rng.standard_normal((directions, sequences, hidden)) for _ in cell.states]
        shapes = [(gates, features), (gates, hidden), (gates,), (gates,)] * directions
        yield [rows(rng, features), *states, *map(rng.standard_normal, shapes)], {"cell": name, "keep": True}


@operator(outputs=("*d",), may_miss=("rest",), cost=_cost_of_grad, overwrites=_overwritten, places=_places_grad)
def recurrent_grad(x, *rest, cell: str, num_forward: int, need_x: bool, need_weights: bool):
    """Return the gradients of a recurrent layer's inputs, which overwrite what it kept."""
    return _forward_grad(x, *rest, cell=cell, num_forward=num_forward, need_x=need_x, need_weights=need_weights)


recurrent_grad.infer(_infer_grad)
