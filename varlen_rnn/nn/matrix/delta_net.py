r"""DeltaNet and Gated DeltaNet: a value replaces the state's own value for its key.

For each head, with a state S, keys k and queries q of length 1, rates b and log decays g (0 in DeltaNet):

    q, k, v = silu(conv(W_q x)), silu(conv(W_k x)), silu(conv(W_v x)), each convolution causal and of one channel
    b_t = sigmoid(W_b x_t)    g_t = -exp(A_log) softplus(W_a x_t + dt_bias)
    u_t = v_t - (e^{g_t} S_{t-1})^T k_t    S_t = e^{g_t} S_{t-1} + b_t k_t u_t^T    o_t = S_t^T q_t / sqrt(d)
    y_t = W_o (norm(o_t) * silu(W_g x_t)), in DeltaNet without the gate

Source: Yang, Wang, Zhang, Shen and Kim (2024), "Parallelizing linear transformers with the delta rule over sequence
length"; Yang, Kautz and Hatamizadeh (2024), "Gated delta networks"; names of the layers of flash-linear-attention.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from varlen_rnn.errors import NO_BATCH_AXIS, NO_DEVICE, check_flag, hinting
from varlen_rnn.nn import functional
from varlen_rnn.nn.layers import Linear, RMSNorm
from varlen_rnn.nn.matrix.stack import MatrixRecurrent, ThreeConvolutions, biases_of_steps, log_rates
from varlen_rnn.nn.recurrent.options import Way
from varlen_rnn.ops.linear_attention import linear_attention
from varlen_rnn.tape.variable import Variable
from varlen_rnn.typing import Rows


class DeltaNetBlock(ThreeConvolutions):
    """A layer of `DeltaNet` or `GatedDeltaNet` in one direction."""

    def __init__(
        self,
        input_size: int,
        sizes: tuple[int, int, int],
        gated: bool,
        allow_neg_eigval: bool,
        dtype: np.dtype,
    ) -> None:
        hidden_size, num_heads, conv_size = sizes
        super().__init__(input_size, hidden_size, num_heads, conv_size, dtype)
        self.most_rate, self.gated = (2.0 if check_flag(allow_neg_eigval, "allow_neg_eigval") else 1.0), gated
        self.b_proj = Linear(input_size, num_heads, bias=False, dtype=dtype)
        if gated:
            self.a_proj = Linear(input_size, num_heads, bias=False, dtype=dtype)
            self.A_log, self.dt_bias = log_rates(num_heads, dtype), biases_of_steps(num_heads, dtype)
            self.g_proj = Linear(input_size, hidden_size, bias=False, dtype=dtype)
        self.o_norm = RMSNorm(self.head_size, 1e-5, dtype=dtype)
        self.o_proj = Linear(hidden_size, hidden_size, bias=False, dtype=dtype)

    def forward(
        self, x: Rows, state: Variable | None = None, window: Variable | None = None
    ) -> tuple[Variable, Variable, Variable]:
        """Return the outputs, and the states after the last rows."""
        (q, k, v), window = self.convolved(x, window)
        decay, gate, beta = None, None, functional.sigmoid(self.b_proj(x))
        if self.gated:
            decay = functional.softplus(self.a_proj(x) + self.dt_bias) * -functional.exp(self.A_log)
            gate = self.heads(self.g_proj(x))
        beta = beta if self.most_rate == 1 else beta * self.most_rate
        y, state = linear_attention(self.units(q), self.units(k), self.heads(v), decay, beta, state, delta=True)
        return self.o_proj(self.o_norm(y, gate).reshape(-1, self.hidden_size)), state, window


class GatedDeltaNet(MatrixRecurrent):
    """Gated DeltaNet over rows with a LoD, in place of an LSTM; the sequences of the last LoD level are the batch.

    Each head has a state of `(d, d)` numbers, `d = hidden_size / num_heads`.  A step decays it, and writes the row's
    value under the row's key in place of the state's own value for this key.

    A call `y, states = layer(x, states)` takes rows of shape `(rows, input_size)` and optional initial states.  It
    returns rows of `hidden_size` numbers, and the pair of states after the last rows: matrices of shape
    `(num_layers * num_directions, sequences, num_heads, d, d)`, and the windows of convolutions,
    `(num_layers * num_directions, sequences, conv_size - 1, 3 * hidden_size)`.

    Parameters
    ----------
    input_size : int
        Features of an input row.
    hidden_size : int
        Columns of the outputs in one direction, a multiple of `num_heads`.
    num_heads : int
    num_layers : int
        Layers; each further layer reads the outputs of the layer below it.
    conv_size : int
        The rows that the convolutions of queries, keys and values read.
    allow_neg_eigval : bool
        Whether rates lie between 0 and 2; otherwise they lie between 0 and 1.
    dropout : float
        Probability of zeroing an element between layers, in training.
    bidirectional : bool
        The same as `direction="both"`.
    direction : {"forward", "backward", "both"}, optional
        "backward" runs each sequence from its last row to its first.
    dtype : data type
        float32 or float64.

    Attributes
    ----------
    l{k}, l{k}_reverse : modules
        The parameters of a layer and direction: `q_proj`, `k_proj`, `v_proj`, `q_conv1d`, `k_conv1d`, `v_conv1d`,
        `b_proj`, `a_proj`, `A_log`, `dt_bias`, `g_proj`, `o_norm` and `o_proj`.

    Examples
    --------
    >>> x = vr.create_lod_tensor(np.zeros((5, 3), np.float32), [[2, 0, 3]])
    >>> y, (state, window) = GatedDeltaNet(3, 8, num_heads=2)(x)
    >>> y.shape, state.shape, window.shape
    ((5, 8), (1, 3, 2, 4, 4), (1, 3, 3, 24))

    Source: Yang, Kautz and Hatamizadeh (2024), "Gated delta networks"; the equations in
    `varlen_rnn.nn.matrix.delta_net`.
    """

    _gated = True

    @hinting(batch_first=NO_BATCH_AXIS, device=NO_DEVICE)
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_heads: int = 4,
        num_layers: int = 1,
        *,
        conv_size: int = 4,
        allow_neg_eigval: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        direction: Way | None = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        self._conv_size, self._allow_neg_eigval = conv_size, allow_neg_eigval
        super().__init__(
            input_size, hidden_size, num_heads, num_layers, dropout=dropout, bidirectional=bidirectional,
            direction=direction, dtype=dtype,
        )  # fmt: skip

    def _block(self, columns: int) -> DeltaNetBlock:
        sizes = self.hidden_size, self.num_heads, self._conv_size
        return DeltaNetBlock(columns, sizes, self._gated, self._allow_neg_eigval, self._dtype)


class DeltaNet(GatedDeltaNet):
    """DeltaNet over rows with a LoD: `GatedDeltaNet` without decays and without gates of the outputs.

    A call, the states, the parameters and the options are as in `GatedDeltaNet`.

    Parameters
    ----------
    input_size : int
        Features of an input row.
    hidden_size : int
        Columns of the outputs in one direction, a multiple of `num_heads`.
    num_heads, num_layers, conv_size, allow_neg_eigval, dropout, bidirectional, direction, dtype
        As in `GatedDeltaNet`.

    Attributes
    ----------
    l{k}, l{k}_reverse : modules
        The parameters of a layer and direction: `q_proj`, `k_proj`, `v_proj`, `q_conv1d`, `k_conv1d`, `v_conv1d`,
        `b_proj`, `o_norm` and `o_proj`.

    Examples
    --------
    >>> x = vr.create_lod_tensor(np.zeros((5, 3), np.float32), [[2, 0, 3]])
    >>> DeltaNet(3, 8, num_heads=2, bidirectional=True)(x)[0].shape
    (5, 16)

    Source: Yang, Wang, Zhang, Shen and Kim (2024), "Parallelizing linear transformers with the delta rule over sequence
    length".
    """

    _gated = False
