r"""The scalar LSTM of xLSTM: exponential gates, a normaliser n and a stabiliser m.

    m_t = max(f + m_{t-1}, i)    i' = exp(i - m_t)    f' = exp(f + m_{t-1} - m_t)
    c_t = f' c_{t-1} + i' tanh(z)    n_t = f' n_{t-1} + i'    h_t = sigmoid(o) c_t / n_t

m only keeps exponents small. n and m begin at 0 unless initial states are given.

Source: Beck et al. (2024), "xLSTM: extended long short-term memory", with the exponential forget gate.
"""

from varlen_rnn.cells.define import cell
from varlen_rnn.kernels.activations import exp, maximum, sigmoid, tanh


@cell
def slstm(i, f, z, o, /, c, n, m):
    """Four states: the output, the cell, the normaliser, and the stabiliser."""
    f_m = f + m
    m = maximum(f_m, i)
    i, f = exp(i - m), exp(f_m - m)
    c = f * c + i * tanh(z)
    n = f * n + i
    return sigmoid(o) * c / n, c, n, m


SLSTM = slstm
