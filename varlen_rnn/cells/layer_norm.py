r"""LSTM and GRU with layer normalisation: each gate is normalised over its units, then scaled and shifted unit by unit.

LSTM, with $a_k = W_{ih,k} x_t + b_{ih,k} + W_{hh,k} h_{t-1} + b_{hh,k}$ and LN_k(a) = s_k (a - mean a) / std a + b_k:

    c_t = sigmoid(LN_f(a_f)) c_{t-1} + sigmoid(LN_i(a_i)) tanh(LN_g(a_g))
    h_t = sigmoid(LN_o(a_o)) tanh(LN_c(c_t))

GRU, in which only the products are normalised: r, z = sigmoid(x + LN(u)), n = tanh(x_n + r LN_n(u_n)).

Source: Ba, Kiros and Hinton (2016), "Layer normalization"; gate by gate as in TensorFlow's `LayerNormBasicLSTMCell`.
"""

from varlen_rnn.cells.define import cell
from varlen_rnn.cells.derivation.trace import norm
from varlen_rnn.kernels.activations import sigmoid, tanh


@cell
def ln_lstm(i, f, g, o, /, c, *, s_i, s_f, s_g, s_o, s_c, b_i, b_f, b_g, b_o, b_c):
    """Three phases: the product, the equations after the norms of gates, and the equations after the norm of `c`."""
    i, f = sigmoid(s_i * norm(i) + b_i), sigmoid(s_f * norm(f) + b_f)
    g, o = tanh(s_g * norm(g) + b_g), sigmoid(s_o * norm(o) + b_o)
    c = f * c + i * g
    return o * tanh(s_c * norm(c) + b_c), c


@cell
def ln_gru(r, z, n, /, h, *, s_r, s_z, s_n, b_r, b_z, b_n):
    """Two phases: the product, and the equations after the norms of gates."""
    r = sigmoid(r.x + s_r * norm(r.h) + b_r)
    z = sigmoid(z.x + s_z * norm(z.h) + b_z)
    n = tanh(n.x + r * (s_n * norm(n.h) + b_n))
    return n + z * (h - n)


LN_LSTM, LN_GRU = ln_lstm, ln_gru
