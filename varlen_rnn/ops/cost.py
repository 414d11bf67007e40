"""What operators cost, from descriptions alone: operations on floating numbers, and bytes read and written.

Every size that only values tell counts as one: of a program over rows, that is the cost of a row.  Counted are

* a product of (m, k) and (k, n): 2 m k n, and m n for a bias;
* a recurrent layer, a direction: 2 gates hidden (input + hidden) a row; its equations are left out.  Its gradient: the
  same for the weights, 2 gates hidden^2 for the states, and 2 gates hidden input for its inputs where they are wanted;
* a recurrence of the user's own: the operators of its step, or of its gradient, once;
* a reduction, a pooling or a sum: an addition an element of the inputs;
* clipping by the global norm: 3 an element, for the norm and the factor;
* everything else that computes: 1 an element of the outputs, whatever the function;
* what only moves, picks or reshapes rows: nothing;
* bytes: all inputs once and all outputs once, weights and what is updated too; plans and lists: none.
"""

import math
from typing import NamedTuple

from varlen_rnn.cells import find_cell
from varlen_rnn.program.attrs import decode
from varlen_rnn.program.feed import EDGES
from varlen_rnn.program.instructions import Nested
from varlen_rnn.tape.operator import find


class Cost(NamedTuple):
    """Operations on floating numbers, and bytes."""

    flops: int
    bytes: int


def costs(desc):
    """Return the operators of the outermost block that compute, each with its cost: `(OpDesc, Cost)` pairs.

    Examples
    --------
    >>> import numpy as np
    >>> from varlen_rnn.tape.variable import Variable
    >>> from varlen_rnn.program.guard import data, program_guard
    >>> with program_guard() as program:
    ...     y = data("x", shape=[-1, 4], dtype="float32") @ Variable(np.ones((4, 3), np.float32))
    >>> [(op.type, tuple(cost)) for op, cost in costs(program.desc)]
    [('matmul', (24, 76))]
    """
    return _costs(Nested(desc, 0))


def _costs(nested):
    return [(op, _cost(op, nested)) for op in nested.block.ops if op.type not in EDGES]


def _cost(op, nested):
    inputs, outputs = ([nested.specs.get(name) for name in names] for names in (op.input_names(), op.output_names()))
    attrs = decode(find(op.type), op.attrs, lambda index: Nested(nested.desc, index))
    flops = 0 if op.type in _FREE else _FLOPS.get(op.type, _elementwise)(inputs, outputs, **attrs)
    unsaid = _kept_bytes(inputs, **attrs) if op.type in ("recurrent", "recurrent_grad") else 0
    return Cost(flops, sum(map(_bytes, inputs + outputs)) + unsaid)


def _size(spec):
    """Return the number of elements, an unknown size being one."""
    return math.prod(map(_known, spec.shape))


def _known(size):
    return 1 if size == -1 else size


def _bytes(spec):
    return 0 if spec is None or spec.dtype is None else _size(spec) * spec.dtype.itemsize


def _elementwise(inputs, outputs, **attrs):
    return sum(_size(spec) for spec in outputs if spec.dtype is not None)


def _elements_read(inputs, outputs, **attrs):
    return _size(inputs[0])


def _sum(inputs, outputs):
    return (len(inputs) - 1) * _size(outputs[0])


def _matmul(inputs, outputs, transposed):
    x, _, bias = inputs
    return (2 * _known(x.shape[-1]) + (bias is not None)) * _size(outputs[0])


def _row_product(inputs, outputs):
    return 2 * _size(inputs[0]) * _known(inputs[1].shape[-1])


def _of_block(inputs, outputs, block, grad_block=None, **names):
    return sum(cost.flops for _, cost in _costs(grad_block or block))


def _recurrent_sizes(inputs, cell):
    """Return gates * hidden * rows, the features of a row, the hidden size, and the directions."""
    x, weights = inputs[0], inputs[1 + len(find_cell(cell).states) :]
    gates, hidden = map(_known, weights[1].shape)
    return gates * _known(x.shape[0]), _known(weights[0].shape[1]), hidden, len(weights) // 4


def _kept_bytes(inputs, cell, keep=True, num_forward=None, need_x=None):
    """Return the bytes of what a layer keeps beyond those of one column: its rows are as long as an engine likes."""
    _, _, hidden, directions = _recurrent_sizes(inputs[:num_forward], cell)
    columns = find_cell(cell).num_kept * hidden - 1
    return directions * _known(inputs[0].shape[0]) * columns * inputs[0].dtype.itemsize if keep else 0


def _recurrent(inputs, outputs, cell, keep):
    gates, features, hidden, directions = _recurrent_sizes(inputs, cell)
    return directions * 2 * gates * (features + hidden)


def _recurrent_grad(inputs, outputs, cell, num_forward, need_x):
    gates, features, hidden, directions = _recurrent_sizes(inputs[:num_forward], cell)
    return directions * 2 * gates * ((features + hidden) + hidden + (features if need_x else 0))


_FREE = {
    "assign", "concat", "concat_outputs", "embedding", "fill_constant", "getitem", "getitem_grad", "init_memories",
    "init_memories_grad", "lod_rank_table", "reduce_grad", "reshape", "reshape_grad", "segment_inputs",
    "rectangle", "segment_inputs_grad", "split_like", "take_rows", "zeros_of_sequences",
}  # fmt: skip
_FLOPS = {
    "clip_by_global_norm": lambda inputs, outputs, max_norm: 3 * sum(map(_size, inputs)),
    "dynamic_rnn": _of_block,
    "dynamic_rnn_grad": _of_block,
    "embedding_grad": lambda inputs, outputs, **attrs: _size(inputs[2]),
    "matmul": _matmul,
    "recurrent": _recurrent,
    "recurrent_grad": _recurrent_grad,
    "reduce_mean": _elements_read,
    "reduce_sum": _elements_read,
    "row_product": _row_product,
    "row_sum": _elements_read,
    "sequence_pool": _elements_read,
    "sum": _sum,
    "sum_to": _elements_read,
    "take_rows_grad": lambda inputs, outputs: _size(inputs[2]),
}
