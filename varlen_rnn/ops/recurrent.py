"""The recurrent layer as one operator: outputs, last states, `sorted_seqs`, and what its gradient operator needs."""

import numpy as np

from varlen_rnn import recurrence
from varlen_rnn.cells import CELLS
from varlen_rnn.errors import ProgramError
from varlen_rnn.lod import LoDTensor
from varlen_rnn.ops.checks import check_float, check_lod_level, check_rank, check_shape
from varlen_rnn.ops.math import tensor_like
from varlen_rnn.ops.shape import apply_list
from varlen_rnn.plan import sort_by_seq_len
from varlen_rnn.program.block import grad_enabled
from varlen_rnn.program.desc import PLAN
from varlen_rnn.program.registry import Op, register

WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def _cell(name):
    if name not in CELLS:
        raise ProgramError("recurrent, cell", expected=f"one of {sorted(CELLS)}", got=repr(name))
    return CELLS[name]


def _split(cell, inputs):
    """Return x, the initial states and the weights of each direction."""
    cut = 1 + len(cell.states)
    weights = inputs[cut:]
    return inputs[0], inputs[1:cut], [weights[at : at + 4] for at in range(0, len(weights), 4)]


def _infer(*inputs, cell):
    cell = _cell(cell)
    x, states, directions = _split(cell, inputs)
    present = {f"weights[{i}]": desc for i, desc in enumerate(sum(directions, ())) if desc}
    present |= {f"{name}_0": desc for name, desc in zip(cell.states, states, strict=True) if desc}
    check_float("recurrent", x=x, **present)
    check_rank("recurrent", "x", x, 2)
    check_lod_level("recurrent", "x", x)
    hidden, num_gates = directions[0][1].shape[1], len(cell.gates)
    for weight_ih, weight_hh, *biases in directions:
        hint = "input_size is the number of features of a row"
        check_shape("recurrent", "x", x, (-1, weight_ih.shape[1]), hint)
        check_shape("recurrent", "weight_ih", weight_ih, (num_gates * hidden, x.shape[1]))
        check_shape("recurrent", "weight_hh", weight_hh, (num_gates * hidden, hidden))
        for name, bias in zip(WEIGHTS[2:], biases, strict=True):
            if bias:
                check_shape("recurrent", name, bias, (num_gates * hidden,))
    for name, desc in zip(cell.states, states, strict=True):
        if desc:
            check_shape("recurrent", f"{name}_0", desc, (len(directions), -1, hidden))
    state = x._replace(shape=(len(directions), -1, hidden), lod_level=0)
    residuals = [
        x._replace(shape=(x.shape[0], len(cell.slots) * hidden), lod_level=0),
        x._replace(shape=(len(cell.states) - 1, x.shape[0], hidden), lod_level=0),
    ]
    y = x._replace(shape=(x.shape[0], len(directions) * hidden))
    return [y, *[state] * len(cell.states), PLAN, *residuals * len(directions)]


def _arrays(cell, x, states, directions, plan):
    """Return the operands of the engine: contiguous, with zeros where a bias is missing."""
    shape = (len(directions), plan.num_sequences, directions[0][1].shape[1])
    initial = None
    if any(states):
        for name, state in zip(cell.states, states, strict=True):
            if state is not None:
                hint = "one row of initial states for each sequence"
                check_shape("recurrent", f"{name}_0", state, shape, hint)
        initial = np.stack([np.zeros(shape, x.dtype) if state is None else state.data for state in states])
    arrays = []
    for weight_ih, weight_hh, *biases in directions:
        filled = [np.zeros(len(weight_hh.data), x.dtype) if bias is None else bias.data for bias in biases]
        weights = (weight_ih.data, weight_hh.data, *filled)
        arrays.append(recurrence.Direction(*map(np.ascontiguousarray, weights)))
    return np.ascontiguousarray(x.data), arrays, initial


def _forward(*inputs, cell):
    cell = _cell(cell)
    x, states, directions = _split(cell, inputs)
    plan = sort_by_seq_len(x)
    rows, weights, initial = _arrays(cell, x, states, directions, plan)
    y, last, residuals = recurrence.forward(cell, rows, weights, initial, plan, keep=grad_enabled())
    kept = [LoDTensor.wrap(array) for residual in residuals for array in residual]
    return [tensor_like(y, x), *map(LoDTensor.wrap, last), plan, *kept]


def _grad(inputs, outputs, d_outputs, cell):
    num_states = len(_cell(cell).states)
    y, (plan, *residuals) = outputs[0], outputs[1 + num_states :]
    d_y, d_last = d_outputs[0], d_outputs[1 : 1 + num_states]
    attrs = {"cell": cell, "num_inputs": len(inputs), "need_x": inputs[0].requires_grad}
    return apply_list("recurrent_grad", *inputs, y, plan, *residuals, d_y, *d_last, **attrs)


def _infer_grad(*inputs, cell, num_inputs, need_x):
    return [desc if desc is not None else inputs[0] for desc in inputs[:num_inputs]]


def _forward_grad(*inputs, cell, num_inputs, need_x):
    cell = _cell(cell)
    x, states, directions = _split(cell, inputs[:num_inputs])
    num_residuals = 2 * len(directions)
    y, plan, *rest = inputs[num_inputs:]
    residuals, (d_y, *d_last) = rest[:num_residuals], rest[num_residuals:]
    rows, weights, initial = _arrays(cell, x, states, directions, plan)
    shape = (len(directions), plan.num_sequences, directions[0][1].shape[1])
    pairs = [recurrence.Residual(a.data, b.data) for a, b in zip(residuals[::2], residuals[1::2], strict=True)]
    d_y = np.zeros(y.shape, x.dtype) if d_y is None else np.ascontiguousarray(d_y.data)
    d_states = np.zeros((len(d_last), *shape), x.dtype)
    for d_state, d in zip(d_states, d_last, strict=True):
        if d is not None:
            d_state[...] = d.data
    d_x, d_weights, d_initial = recurrence.backward(
        cell, rows, weights, initial, plan, y.data, pairs, d_y, d_states, need_x
    )
    d_x = tensor_like(d_x, x) if need_x else x
    return [d_x, *map(LoDTensor.wrap, d_initial), *(LoDTensor.wrap(d) for group in d_weights for d in group)]


register(Op("recurrent", ("x", "*states_and_weights?"), _infer, _forward, _grad))
register(Op("recurrent_grad", ("x", "*rest?"), _infer_grad, _forward_grad))
