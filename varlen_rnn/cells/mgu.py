r"""The minimal gated unit: one gate that forgets and resets.

    f = sigmoid(x_f + W_hf h_{t-1})    n = tanh(x_n + W_hn (f h_{t-1}))    h_t = (1 - f) h_{t-1} + f n

Source: Zhou, Wu, Zhang and Zhou (2016), "Minimal gated unit for recurrent neural networks".
"""

from varlen_rnn.cells.define import cell
from varlen_rnn.kernels.activations import sigmoid, tanh


@cell
def mgu(f, n, /, h):
    """The state is reset before the second of two products per step."""
    f = sigmoid(f)
    n = tanh(n.x + n.of(f * h))
    return h + f * (n - h)


MGU = mgu
