r"""The minimal GRU without a recurrent product: gate and candidate depend on the inputs alone.

    z = sigmoid(x_z)    h_t = (1 - z) h_{t-1} + z x_n

The candidate is the projected input itself.  For sums of logarithms the paper's appendix applies a positive function to
it, which a step after a step does not need.

Source: Feng, Tung, Ahmed, Bengio and Hajimirsadeghi (2024), "Were RNNs all we needed?", arXiv 2410.01201, section 3.1.
"""

from varlen_rnn.cells.define import cell
from varlen_rnn.kernels.activations import sigmoid


@cell
def min_gru(z, n, /, h):
    """Project the inputs; there is no recurrent product, and a unit sees the state before only to keep a part of it."""
    return h + sigmoid(z.x) * (n.x - h)


MIN_GRU = min_gru
