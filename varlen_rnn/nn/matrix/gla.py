r"""Gated linear attention: each row of a state, a number of the keys, decays at a rate of its own.

For each head, with a state S and log decays g, one for each number of a key:

    q, k, v = W_q x, W_k x, W_v x    g_t = log sigmoid(W_2 W_1 x_t + b) / 16
    S_t = diag(e^{g_t}) S_{t-1} + k_t v_t^T    o_t = S_t^T q_t / sqrt(d)    y_t = W_o (norm(o_t) * silu(W_g x_t))

Source: Yang, Wang, Shen, Panda and Kim (2024), "Gated linear attention transformers with hardware-efficient training";
names of the layer of flash-linear-attention.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from varlen_rnn.errors import NO_BATCH_AXIS, NO_DEVICE, check_int, hinting
from varlen_rnn.nn import functional
from varlen_rnn.nn.containers import Sequential
from varlen_rnn.nn.layers import Linear, RMSNorm
from varlen_rnn.nn.matrix.stack import Block, MatrixRecurrent
from varlen_rnn.nn.recurrent.options import Way
from varlen_rnn.ops.linear_attention import linear_attention
from varlen_rnn.tape.variable import Variable
from varlen_rnn.typing import Rows

_NORMALIZER = 16  # log decays are divided by it, so that states begin with a long memory


class GatedLinearAttentionBlock(Block):
    """A layer of `GatedLinearAttention` in one direction."""

    def __init__(self, input_size: int, hidden_size: int, num_heads: int, low_rank: int, dtype: np.dtype) -> None:
        super().__init__(hidden_size, num_heads)
        for name in ("q_proj", "k_proj", "v_proj", "g_proj"):
            setattr(self, name, Linear(input_size, hidden_size, bias=False, dtype=dtype))
        self.gk_proj = Sequential(
            Linear(input_size, low_rank, bias=False, dtype=dtype), Linear(low_rank, hidden_size, dtype=dtype)
        )
        self.g_norm_swish_gate = RMSNorm(self.head_size, 1e-5, dtype=dtype)
        self.o_proj = Linear(hidden_size, hidden_size, bias=False, dtype=dtype)
        self.state_shapes = (("state", (num_heads, self.head_size, self.head_size)),)

    def forward(self, x: Rows, state: Variable | None = None) -> tuple[Variable, Variable]:
        """Return the outputs, and the states after the last rows."""
        q, k, v, gate = (self.heads(getattr(self, name)(x)) for name in ("q_proj", "k_proj", "v_proj", "g_proj"))
        decay = functional.log_sigmoid(self.heads(self.gk_proj(x))) / _NORMALIZER
        y, state = linear_attention(q, k, v, decay, None, state)
        return self.o_proj(self.g_norm_swish_gate(y, gate).reshape(-1, self.hidden_size)), state


class GatedLinearAttention(MatrixRecurrent):
    """Gated linear attention over rows with a LoD, in place of an LSTM.

    Each head has a state of `(d, d)` numbers, `d = hidden_size / num_heads`.  Each row of a state decays at a rate that
    depends on the input.

    A call `y, state = layer(x, state)` takes rows of shape `(rows, input_size)` and an optional initial state.  It
    returns rows of `hidden_size` numbers, and the states after the last rows, of shape
    `(num_layers * num_directions, sequences, num_heads, d, d)`.  In float32, rows whose inputs are so large (from about
    3e6) that the norm overflows become 0.

    Parameters
    ----------
    input_size : int
        Features of an input row.
    hidden_size : int
        Columns of the outputs in one direction, a multiple of `num_heads`.
    num_heads : int
    num_layers : int
        Layers; each further layer reads the outputs of the layer below it.
    gate_low_rank_dim : int
        The numbers between the two products that compute the decays.
    dropout, bidirectional, direction, dtype
        As in `GatedDeltaNet`.

    Attributes
    ----------
    l{k}, l{k}_reverse : modules
        The parameters of a layer and direction: `q_proj`, `k_proj`, `v_proj`, `gk_proj`, `g_proj`,
        `g_norm_swish_gate` and `o_proj`.

    Examples
    --------
    >>> x = vr.create_lod_tensor(np.zeros((5, 3), np.float32), [[2, 0, 3]])
    >>> y, state = GatedLinearAttention(3, 8, num_heads=2)(x)
    >>> y.shape, state.shape
    ((5, 8), (1, 3, 2, 4, 4))

    Source: Yang, Wang, Shen, Panda and Kim (2024), "Gated linear attention transformers with hardware-efficient
    training"; the equations in `varlen_rnn.nn.matrix.gla`.
    """

    @hinting(batch_first=NO_BATCH_AXIS, device=NO_DEVICE)
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_heads: int = 4,
        num_layers: int = 1,
        *,
        gate_low_rank_dim: int = 16,
        dropout: float = 0.0,
        bidirectional: bool = False,
        direction: Way | None = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        self._low_rank = check_int(gate_low_rank_dim, "gate_low_rank_dim", 1)
        super().__init__(
            input_size, hidden_size, num_heads, num_layers, dropout=dropout, bidirectional=bidirectional,
            direction=direction, dtype=dtype,
        )  # fmt: skip

    def _block(self, columns: int) -> GatedLinearAttentionBlock:
        return GatedLinearAttentionBlock(columns, self.hidden_size, self.num_heads, self._low_rank, self._dtype)
