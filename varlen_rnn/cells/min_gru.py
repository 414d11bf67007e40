r"""The minimal GRU without a recurrent product: gate and candidate depend on the inputs alone.

    z = sigmoid(x_z)    h_t = (1 - z) h_{t-1} + z x_n

The candidate is the projected input itself.  The paper's appendix makes the candidate positive, so that it can sum
logarithms; this layer runs step by step and needs no logarithms.

Source: Feng, Tung, Ahmed, Bengio and Hajimirsadeghi (2024), "Were RNNs all we needed?", arXiv 2410.01201, section 3.1.
"""

from varlen_rnn.cells.define import cell
from varlen_rnn.kernels.activations import sigmoid


@cell
def min_gru(z, n, /, h):
    """Project the inputs; without a recurrent product, the previous state is only mixed with the candidate."""
    return h + sigmoid(z.x) * (n.x - h)


MIN_GRU = min_gru
