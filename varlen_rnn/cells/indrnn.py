r"""The independently recurrent network: each unit reads only its own output of the step before.

    h_t = relu(x_t + u h_{t-1})

Source: Li, Li, Cook, Zhu and Gao (2018), "Independently recurrent neural network (IndRNN)".
"""

from varlen_rnn.cells.define import cell
from varlen_rnn.kernels.activations import relu


@cell
def indrnn(a, /, h, *, u):
    """Project the inputs; there is no recurrent product, since `u` is one number per unit."""
    return relu(a.x + u * h)


INDRNN = indrnn
