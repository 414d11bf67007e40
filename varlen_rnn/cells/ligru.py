r"""The light GRU: no reset gate, and relu instead of tanh.

    z = sigmoid(x_z + u_z)    n = relu(x_n + u_n)    h_t = z h_{t-1} + (1 - z) n

Source: Ravanelli, Brakel, Omologo and Bengio (2018), "Light gated recurrent units for speech recognition", without its
batch normalisation of the inputs.
"""

from varlen_rnn.cells.define import cell
from varlen_rnn.kernels.activations import relu, sigmoid


@cell
def ligru(z, n, /, h):
    """Two gates share one recurrent product per step, because both read the output of the step before."""
    z, n = sigmoid(z), relu(n)
    return n + z * (h - n)


LIGRU = ligru
