r"""The minimal LSTM without a recurrent product: two gates, whose sum is 1 after a division, and a candidate.

    f = sigmoid(x_f)    i = sigmoid(x_i)    h_t = f / (f + i) h_{t-1} + i / (f + i) x_n

The share of the input, i / (f + i), is computed as a / (a + b) with a = e^-m + e^(-x_f - m) and
b = e^-m + e^(-x_i - m), where m is the largest of 0, -x_f and -x_i.  So two closed gates do not cause a division by 0.

Source: Feng, Tung, Ahmed, Bengio and Hajimirsadeghi (2024), "Were RNNs all we needed?", arXiv 2410.01201, section 3.2.
"""

from varlen_rnn.cells.define import cell
from varlen_rnn.kernels.activations import constant, exp, maximum


@cell
def min_lstm(f, i, n, /, h):
    """Project the inputs.  The share a / (a + b) does not depend on m, so m is a constant for the gradient."""
    f, i = f.x, i.x
    m = constant(maximum(maximum(-f, -i), 0))
    one = exp(-m)
    a, b = one + exp(-f - m), one + exp(-i - m)
    return h + a / (a + b) * (n.x - h)


MIN_LSTM = min_lstm
