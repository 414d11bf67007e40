"""`Padded` runs a recurrent layer on a padded batch, with the same parameters and kernels.

Every sequence is padded with zero rows to the longest, the kernels process all rows, and then the valid rows are
gathered.  This is the work of an implementation with masks.  A backward direction first reverses each sequence within
its own length, so that its padding is at the end, too, and does not affect valid rows.
"""

from __future__ import annotations

from typing import Any

from varlen_rnn.nn.functional import concat, dropout
from varlen_rnn.nn.module import Module
from varlen_rnn.nn.recurrent.carries import check_cell
from varlen_rnn.nn.recurrent.layers import Recurrent
from varlen_rnn.ops.padding import Rectangle
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.plan import sort_by_seq_len
from varlen_rnn.tape.modes import grad_enabled
from varlen_rnn.tape.variable import Variable, apply, as_variable, required
from varlen_rnn.typing import Rows


class Padded(Module):
    """Run a recurrent layer on a padded batch; outputs and gradients equal the layer's, except for rounding.

    Parameters
    ----------
    layer : nn.Recurrent
        Any recurrent layer without zoneout and recurrent dropout.  Its Parameters are shared, not copied.

    Examples
    --------
    >>> import numpy as np
    >>> from varlen_rnn.rows.lod import create_lod_tensor
    >>> from varlen_rnn.nn import GRU
    >>> x = create_lod_tensor(np.ones((5, 3), np.float32), [[1, 4]])
    >>> layer = GRU(3, 4)
    >>> y, h_n = Padded(layer)(x)
    >>> bool(np.allclose(y, layer(x)[0])), Padded.rows(x)
    (True, 8)
    """

    def __init__(self, layer: Recurrent) -> None:
        check_cell("Padded, layer", layer)
        self.layer = layer

    @staticmethod
    def rows(x: Variable | LoDTensor) -> int:
        """Return the number of rows of `x` after padding: the number of sequences times the longest length."""
        return sort_by_seq_len(x).padding().padded_rows

    def forward(self, x: Rows, states: Any = None) -> tuple[Variable, Variable]:
        """Return `y, h_n` as the layer does; padding changes further states such as `c_n`, so they are left out.

        Parameters
        ----------
        x : Variable or LoDTensor, shape `(rows, input_size)`
        states : initial states, as in a call of the layer, optional
        """
        layer, x = self.layer, required(x, "Padded, x")
        states = layer.each_state(states)
        states = [as_variable(state) for state in states]
        layer.check(x, states)
        directions = [Rectangle(*apply("rectangle", x, reverse=bool(way))) for way in layer.reverse]
        attrs = {"cell": layer.cell.name, "keep": grad_enabled(), "reverse": (0,), "all_states": False}
        last: list[Variable] = []
        for number in range(layer.num_layers):
            if number:
                x = dropout(x, layer.dropout, layer.training, per=layer.dropout_per)
            outputs = []
            for direction, suffix in zip(directions, layer.suffixes(number), strict=True):
                initial = [None if s is None else s[len(last) : len(last) + 1] for s in states]
                padded, weights = apply("take_rows", x, direction.pad), layer.weights(suffix)
                y, *_ = apply("recurrent", padded, *initial, *weights, **attrs)
                outputs.append(apply("take_rows", y, direction.unpad))
                last.append(_last_state(y, initial[0], direction))
            x = layer.merged(concat(outputs))
        return x, concat(last, axis=0)


def _last_state(y: Variable, initial: Variable | None, direction: Rectangle) -> Variable:
    """Return each sequence's last output, or its initial state if it is empty, shape (1, sequences, hidden)."""
    h = apply("take_rows", y, direction.last)
    if initial is not None:
        h = h + initial.reshape(h.shape) * direction.is_empty
    return h.reshape(1, *h.shape)
