r"""Mamba-2: a state space model with one decay for each head and row.

For each head, with a state S (d_state, d), all heads sharing B and C:

    z, xBC, dt = parts of W_in x    x, B, C = silu(conv(xBC))    dt_t = softplus(dt_t + dt_bias)
    S_t = e^{-dt_t exp(A_log)} S_{t-1} + dt_t B_t x_t^T    o_t = S_t^T C_t + D x_t
    y_t = W_out norm(o_t * silu(z_t)), with the norm over all heads

Source: Dao and Gu (2024), "Transformers are SSMs"; names of the layer `Mamba2` of mamba_ssm.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from varlen_rnn.errors import NO_BATCH_AXIS, NO_DEVICE, check_int, hinting
from varlen_rnn.nn import functional
from varlen_rnn.nn.layers import Linear, RMSNorm
from varlen_rnn.nn.matrix.stack import Block, MatrixRecurrent, ShortConvolution, biases_of_steps, log_rates
from varlen_rnn.nn.module import Parameter
from varlen_rnn.nn.recurrent.options import Way
from varlen_rnn.ops.linear_attention import linear_attention
from varlen_rnn.tape.variable import Variable
from varlen_rnn.typing import Rows


class Mamba2Block(Block):
    """A layer of `Mamba2` in one direction."""

    def __init__(self, input_size: int, sizes: tuple[int, int, int, int], dtype: np.dtype) -> None:
        hidden_size, num_heads, self.d_state, d_conv = sizes
        super().__init__(hidden_size, num_heads)
        columns = hidden_size + 2 * self.d_state
        self.in_proj = Linear(input_size, hidden_size + columns + num_heads, bias=False, dtype=dtype)
        self.conv1d = ShortConvolution(columns, d_conv, True, dtype)
        self.dt_bias, self.A_log = biases_of_steps(num_heads, dtype), log_rates(num_heads, dtype)
        self.D = Parameter(np.ones(num_heads, dtype))
        self.norm = RMSNorm(hidden_size, 1e-5, dtype=dtype)
        self.out_proj = Linear(hidden_size, hidden_size, bias=False, dtype=dtype)
        state = num_heads, self.d_state, self.head_size
        self.state_shapes = ("state", state), ("window", (self.conv1d.width - 1, columns))

    def forward(
        self, x: Rows, state: Variable | None = None, window: Variable | None = None
    ) -> tuple[Variable, Variable, Variable]:
        """Return the outputs, and the states after the last rows."""
        hidden, d_state = self.hidden_size, self.d_state
        z, xbc, dt = functional.split(self.in_proj(x), [hidden, hidden + 2 * d_state, self.num_heads])
        xbc, window = self.conv1d(xbc, window)
        values, b, c = functional.split(xbc, [hidden, d_state, d_state])
        values, dt = self.heads(values), functional.softplus(dt + self.dt_bias)
        b, c = (part.reshape(-1, 1, d_state) for part in (b, c))
        decay = dt * -functional.exp(self.A_log)
        y, state = linear_attention(c, b, values, decay, dt, state, scale=1.0)
        y = (y + values * self.D.reshape(-1, 1)).reshape(-1, hidden)
        return self.out_proj(self.norm(y * functional.silu(z))), state, window


class Mamba2(MatrixRecurrent):
    """Mamba-2 over rows with a LoD, in place of an LSTM.

    Each head has a state of `(d_state, d)` numbers, `d = hidden_size / num_heads`, which decays at a rate that depends
    on the input.

    A call `y, states = layer(x, states)` takes rows of shape `(rows, input_size)` and optional initial states.  It
    returns rows of `hidden_size` numbers, and the pair of states after the last rows: matrices of shape
    `(num_layers * num_directions, sequences, num_heads, d_state, d)`, and the windows of the convolution,
    `(num_layers * num_directions, sequences, d_conv - 1, hidden_size + 2 * d_state)`.  mamba_ssm has both with the last
    two axes exchanged.

    Parameters
    ----------
    input_size : int
        Features of an input row.
    hidden_size : int
        Columns of the outputs in one direction, a multiple of `num_heads`; `d_inner` in mamba_ssm.
    num_heads : int
    num_layers : int
        Layers; each further layer reads the outputs of the layer below it.
    d_state : int
        Rows of a state.
    d_conv : int
        The rows that the convolution reads.
    dropout, bidirectional, direction, dtype
        As in `GatedDeltaNet`.

    Attributes
    ----------
    l{k}, l{k}_reverse : modules
        The parameters of a layer and direction: `in_proj`, `conv1d`, `dt_bias`, `A_log`, `D`, `norm` and `out_proj`.

    Examples
    --------
    >>> x = vr.create_lod_tensor(np.zeros((5, 3), np.float32), [[2, 0, 3]])
    >>> y, (state, window) = Mamba2(3, 8, num_heads=2, d_state=16)(x)
    >>> y.shape, state.shape, window.shape
    ((5, 8), (1, 3, 2, 16, 4), (1, 3, 3, 40))

    Source: Dao and Gu (2024), "Transformers are SSMs"; the equations in `varlen_rnn.nn.matrix.mamba2`.
    """

    @hinting(batch_first=NO_BATCH_AXIS, device=NO_DEVICE)
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_heads: int = 4,
        num_layers: int = 1,
        *,
        d_state: int = 64,
        d_conv: int = 4,
        dropout: float = 0.0,
        bidirectional: bool = False,
        direction: Way | None = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        self._d_state, self._d_conv = check_int(d_state, "d_state", 1), check_int(d_conv, "d_conv", 1)
        super().__init__(
            input_size, hidden_size, num_heads, num_layers, dropout=dropout, bidirectional=bidirectional,
            direction=direction, dtype=dtype,
        )  # fmt: skip

    def _block(self, columns: int) -> Mamba2Block:
        return Mamba2Block(columns, (self.hidden_size, self.num_heads, self._d_state, self._d_conv), self._dtype)
