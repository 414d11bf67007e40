"""The padded, masked twin of a recurrent layer: the same parameters and kernels, on a batch with padding.

Every sequence is padded with zero rows to the longest, all rows of the rectangle pass through the kernels, and the
valid rows are taken back: what a masked implementation computes and pays.  A second direction reverses each sequence
within its own length first, so padding stands at the end there too and reaches no valid row.
"""

from typing import NamedTuple

import numpy as np

from varlen_rnn.errors import DTypeError, OutOfRangeError
from varlen_rnn.kernels.rows import gather_rows, scatter_add_rows
from varlen_rnn.lod import LoD, LoDTensor
from varlen_rnn.nn.functional import concat, dropout
from varlen_rnn.nn.module import Module
from varlen_rnn.nn.recurrent import Recurrent
from varlen_rnn.ops.checks import check_float, check_integer, check_like, check_lod_level, check_rank
from varlen_rnn.ops.math import tensor_like
from varlen_rnn.ops.recurrent import WEIGHTS
from varlen_rnn.plan import sort_by_seq_len
from varlen_rnn.program.block import Variable, apply, as_variable, grad_enabled, required
from varlen_rnn.program.registry import Op, register
from varlen_rnn.program.spec import TensorSpec

# The operator `out[k] = x[index[k]]`, a zero row where the index is -1; the result has the LoD of the index.


def _infer(x, index):
    check_float("take_rows", x=x)
    check_integer("take_rows", index=index)
    check_rank("take_rows", "x", x, 2)
    check_rank("take_rows", "index", index, 1)
    return [x._replace(shape=(index.shape[0], x.shape[1]), lod_level=index.lod_level)]


def _places(index, height):
    """Return the index as int64; kernels use it unchecked."""
    places = index.data.astype(np.int64, copy=False)
    if places.size and not (-1 <= places.min() and places.max() < height):
        raise OutOfRangeError("take_rows, index", expected=f"-1 <= index < {height}, the rows of x", got=places)
    return places


def _take_rows(x, index):
    places = _places(index, len(x.data))
    out = np.zeros((len(places), x.shape[1]), x.dtype)
    if len(x.data):
        gather_rows(np.ascontiguousarray(x.data), np.maximum(places, 0), out)
        out[places < 0] = 0
    return [tensor_like(out, index)]


def _take_rows_grad(x, index, d_out):
    places = _places(index, len(x.data))
    d_x = np.zeros(x.shape, x.dtype)
    taken = places >= 0
    scatter_add_rows(np.ascontiguousarray(d_out.data[taken]), places[taken], d_x)
    return [tensor_like(d_x, x)]


def _grad(inputs, outputs, d_outputs):
    return [apply("take_rows_grad", *inputs, d_outputs[0]), None]


register(Op("take_rows", ("x", "index"), _infer, _take_rows, _grad))


def _infer_grad(x, index, d_out):
    check_like("take_rows_grad", "d_out", d_out, *_infer(x, index))
    return [x]


register(Op("take_rows_grad", ("x", "index", "d_out"), _infer_grad, _take_rows_grad))


# The operator that finds where rows go in a padded batch and where they come back from, for one direction.


class _Rectangle(NamedTuple):
    """The outputs of the operator `rectangle`: rows to take for the padded batch, to take back, and of last steps."""

    pad: Variable
    unpad: Variable
    last: Variable
    is_empty: Variable


def _infer_rectangle(x, reverse):
    check_float("rectangle", x=x)
    check_lod_level("rectangle", "x", x)
    rows = TensorSpec((-1,), np.dtype(np.int64))
    return [rows._replace(lod_level=1), rows._replace(lod_level=x.lod_level), rows, TensorSpec((-1, 1), x.dtype)]


def _rectangle(x, reverse):
    offsets = x.structure.levels[-1]
    lengths = np.diff(offsets)
    num_sequences, steps = len(lengths), int(lengths.max(initial=0))
    grid = np.arange(steps)[None, :]
    inside = grid < lengths[:, None]
    rows = offsets[:-1, None] + (lengths[:, None] - 1 - grid if reverse else grid)
    places = np.flatnonzero(inside)
    back = np.empty(int(offsets[-1]), np.int64)
    back[rows[inside]] = places
    pad = LoDTensor.wrap(np.where(inside, rows, -1).ravel(), LoD([np.arange(num_sequences + 1) * steps]))
    last = np.arange(num_sequences) * steps + lengths - 1
    is_empty = (lengths == 0)[:, None].astype(x.dtype)
    return [pad, tensor_like(back, x), LoDTensor.wrap(np.where(lengths > 0, last, -1)), LoDTensor.wrap(is_empty)]


register(Op("rectangle", ("x",), _infer_rectangle, _rectangle, outputs=_Rectangle._fields, attrs={"reverse": "bool"}))


class Padded(Module):
    """Run a recurrent layer on a padded batch; outputs and gradients equal the layer's, to rounding.

    Parameters
    ----------
    layer : nn.RNN, nn.LSTM or nn.GRU
        Its Parameters are used, not copied.

    Examples
    --------
    >>> from varlen_rnn.lod import create_lod_tensor
    >>> from varlen_rnn.nn import GRU
    >>> x = create_lod_tensor(np.ones((5, 3), np.float32), [[1, 4]])
    >>> layer = GRU(3, 4)
    >>> y, h_n = Padded(layer)(x)
    >>> bool(np.allclose(y, layer(x)[0])), Padded.rows(x)
    (True, 8)
    """

    def __init__(self, layer):
        if not isinstance(layer, Recurrent):
            raise DTypeError("Padded, layer", expected="an nn.RNN, nn.LSTM or nn.GRU", got=type(layer).__name__)
        self.layer = layer

    @staticmethod
    def rows(x):
        """Return the rows of the padded batch of `x`: sequences times the longest."""
        return sort_by_seq_len(x).padding().padded_rows

    def forward(self, x, states=None):
        """Return `y, h_n`, as the layer does; of an LSTM, `c_n` is not returned: padding has overwritten it.

        Parameters
        ----------
        x : Variable or LoDTensor, shape `(rows, input_size)`
        states : initial states as the layer takes them, optional
        """
        layer, x = self.layer, required(x, "Padded, x")
        num_states = len(layer.cell.states)
        states = (None,) * num_states if states is None else states if num_states > 1 else (states,)
        states = [as_variable(state) for state in states]
        layer.check(x, states)
        directions = [_Rectangle(*apply("rectangle", x, reverse=r)) for r in (False, True)[: layer.num_directions]]
        last = []
        for number in range(layer.num_layers):
            if number:
                x = dropout(x, layer.dropout, layer.training)
            outputs = []
            for direction, suffix in zip(directions, layer.suffixes(number), strict=True):
                initial = [None if s is None else s[len(last) : len(last) + 1] for s in states]
                weights = [getattr(layer, name + suffix) for name in WEIGHTS]
                padded = apply("take_rows", x, direction.pad)
                y, *_ = apply("recurrent", padded, *initial, *weights, cell=layer.cell.name, keep=grad_enabled())
                outputs.append(apply("take_rows", y, direction.unpad))
                last.append(_last_state(y, initial[0], direction))
            x = concat(outputs)
        return x, concat(last, axis=0)


def _last_state(y, initial, direction):
    """Return (1, sequences, hidden): the output of each last step; of an empty sequence, its initial state."""
    h = apply("take_rows", y, direction.last)
    if initial is not None:
        h = h + initial.reshape(h.shape) * direction.is_empty
    return h.reshape(1, *h.shape)
