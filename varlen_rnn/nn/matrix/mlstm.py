r"""The matrix LSTM of xLSTM: an exponential input gate, a normaliser n and a stabiliser m.

For each head, with a state C, and cap(x) = 15 tanh(x / 15):

    q, k, v = W_q x, W_k x, W_v x    i_t = cap(W_i x_t + b_i)    f_t = log sigmoid(cap(W_f x_t + b_f))
    m_t = max(f_t + m_{t-1}, i_t)    i'_t = exp(i_t - m_t)    f'_t = exp(f_t + m_{t-1} - m_t)
    C_t = f'_t C_{t-1} + i'_t k_t v_t^T    n_t = f'_t n_{t-1} + i'_t k_t
    h_t = C_t^T q_t / sqrt(d) / (max(|n_t . q_t| / sqrt(d), exp(-m_t)) + 1e-6)
    y_t = W_out (norm(h_t) * sigmoid(W_o x_t)), with a norm for each head

m only keeps exponents small: outputs depend on it through 1e-6 alone, and gradients count it as a constant.

Source: Beck et al. (2024), "xLSTM: extended long short-term memory", and Beck et al. (2025), "xLSTM 7B", whose layer
has these names.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from varlen_rnn.nn import functional
from varlen_rnn.nn.layers import Linear
from varlen_rnn.nn.matrix.stack import Block, MatrixRecurrent
from varlen_rnn.nn.module import Module, Parameter
from varlen_rnn.ops.linear_attention import linear_attention
from varlen_rnn.tape.variable import Variable, apply
from varlen_rnn.typing import Rows

_CAP, _EPS = 15.0, 1e-6


class HeadNorm(Module):
    """A layer norm of each head without biases, whose weights differ between heads."""

    def __init__(self, hidden_size: int, eps: float, dtype: np.dtype) -> None:
        self.hidden_size, self.eps = hidden_size, eps
        self.weight = Parameter(np.ones(hidden_size, dtype))

    def forward(self, x: Rows) -> Variable:
        """Return rows of heads, normalised and joined."""
        return functional.layer_norm(x, eps=self.eps).reshape(-1, self.hidden_size) * self.weight


def recalled(
    q: Variable, k: Variable, v: Variable, log_input: Variable, log_forget: Variable,
    states: Sequence[Variable | None], eps: float,
) -> tuple[Variable, Variable, Variable, Variable]:  # fmt: skip
    """Return `h` of all rows and heads, `(rows, heads, d)`, and the states C, n and m after the last rows."""
    c, n, m = states
    shift, level, m = apply("stabiliser", log_forget.detach(), log_input.detach(), None if m is None else m.detach())
    rate = functional.exp(log_input - level)
    before = None if c is None and n is None else (c, n)
    (y, size), (c, n) = linear_attention(q, k, v, log_forget + shift, rate, before, normalise=True)
    divisor = functional.maximum(abs(size), functional.exp(-level)) + eps
    return y / divisor[..., None], c, n, m


class MLSTMBlock(Block):
    """A layer of `MLSTM` in one direction."""

    def __init__(self, input_size: int, hidden_size: int, num_heads: int, dtype: np.dtype) -> None:
        super().__init__(hidden_size, num_heads)
        for name in "qkv":
            setattr(self, name, Linear(input_size, hidden_size, bias=False, dtype=dtype))
        self.ogate_preact = Linear(input_size, hidden_size, bias=False, dtype=dtype)
        self.igate_preact = Linear(input_size, num_heads, dtype=dtype)
        self.fgate_preact = Linear(input_size, num_heads, dtype=dtype)
        self.igate_preact.bias = Parameter(np.zeros(num_heads, dtype))  # so that rows are written from the start
        self.fgate_preact.bias = Parameter(np.linspace(3.0, 6.0, num_heads).astype(dtype))
        self.multihead_norm = HeadNorm(hidden_size, _EPS, dtype)
        self.out_proj = Linear(hidden_size, hidden_size, bias=False, dtype=dtype)
        matrix = num_heads, self.head_size, self.head_size
        self.state_shapes = ("c", matrix), ("n", matrix[:2]), ("m", matrix[:1])

    def forward(
        self, x: Rows, c: Variable | None = None, n: Variable | None = None, m: Variable | None = None
    ) -> tuple[Variable, ...]:
        """Return the outputs, and the states after the last rows."""
        q, k, v = (self.heads(getattr(self, name)(x)) for name in "qkv")
        log_input = functional.tanh(self.igate_preact(x) / _CAP) * _CAP
        log_forget = functional.log_sigmoid(functional.tanh(self.fgate_preact(x) / _CAP) * _CAP)
        y, c, n, m = recalled(q, k, v, log_input, log_forget, (c, n, m), _EPS)
        return self.out_proj(self.multihead_norm(y) * functional.sigmoid(self.ogate_preact(x))), c, n, m


class MLSTM(MatrixRecurrent):
    """The matrix LSTM of xLSTM over rows with a LoD, in place of an LSTM.

    Each head has a state of `(d, d)` numbers, `d = hidden_size / num_heads`, a normaliser of `d` numbers, and a
    stabiliser.

    A call `y, states = layer(x, states)` takes rows of shape `(rows, input_size)` and optional initial states.  It
    returns rows of `hidden_size` numbers, and three states after the last rows: matrices, normalisers and stabilisers.
    Their shapes begin with `(num_layers * num_directions, sequences, num_heads)`.  A matrix has the shape `(d, d)`
    there, a normaliser `(d,)`, and a stabiliser is a number.

    Parameters
    ----------
    input_size : int
        Features of an input row.
    hidden_size : int
        Columns of the outputs in one direction, a multiple of `num_heads`.
    num_heads : int
    num_layers : int
        Layers; each further layer reads the outputs of the layer below it.
    dropout, bidirectional, direction, dtype
        As in `GatedDeltaNet`.

    Attributes
    ----------
    l{k}, l{k}_reverse : modules
        The parameters of a layer and direction: `q`, `k`, `v`, `ogate_preact`, `igate_preact`, `fgate_preact`,
        `multihead_norm` and `out_proj`.

    Examples
    --------
    >>> x = vr.create_lod_tensor(np.zeros((5, 3), np.float32), [[2, 0, 3]])
    >>> y, (c, n, m) = MLSTM(3, 8, num_heads=2)(x)
    >>> y.shape, c.shape, n.shape, m.shape
    ((5, 8), (1, 3, 2, 4, 4), (1, 3, 2, 4), (1, 3, 2))

    Source: Beck et al. (2025), "xLSTM 7B"; the equations in `varlen_rnn.nn.matrix.mlstm`.
    """

    def _block(self, columns: int) -> MLSTMBlock:
        return MLSTMBlock(columns, self.hidden_size, self.num_heads, self._dtype)
