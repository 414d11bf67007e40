r"""The simple recurrent unit: each gate reads only the state of its own unit.

    f = sigmoid(x_f + v_f c_{t-1})    r = sigmoid(x_r + v_r c_{t-1})
    c_t = f c_{t-1} + (1 - f) x_a     h_t = r c_t + (1 - r) x_skip

`x_skip` is a projection of the inputs, so that they may have any number of features.

Source: Lei, Zhang, Wang, Dai and Artzi (2018), "Simple recurrent units for highly parallelizable recurrence".
"""

from varlen_rnn.cells.define import cell
from varlen_rnn.kernels.activations import sigmoid


@cell
def sru(a, f, r, skip, /, c, *, v_f, v_r):
    """Project the inputs; there is no recurrent product."""
    f = sigmoid(f.x + v_f * c)
    r = sigmoid(r.x + v_r * c)
    c = f * c + (1 - f) * a.x
    return r * c + (1 - r) * skip.x, c


SRU = sru
