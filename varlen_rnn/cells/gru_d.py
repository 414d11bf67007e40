r"""The recurrence of GRU-D: a state decays over the time since the features were last observed.

    g = exp(-max(0, decay))    h' = g h_{t-1}    r = sigmoid(x_r + W_hr h')    z = sigmoid(x_z + W_hz h')
    n = tanh(x_n + W_hn (r h'))    h_t = (1 - z) h' + z n

`decay` is an input of each row, a linear function of the time gaps.  The inputs are the filled features side by side
with the mask of observed features, so `x` holds both projections of the paper. docs/cells.md has a layer that computes
`decay` and these inputs.

Source: Che, Purushotham, Cho, Sontag and Liu (2018), "Recurrent neural networks for multivariate time series with
missing values", arXiv 1606.01865, equations 10 to 16.
"""

from varlen_rnn.cells.define import cell
from varlen_rnn.cells.derivation.trace import Row
from varlen_rnn.kernels.activations import exp, relu, sigmoid, tanh


@cell
def gru_d(r, z, n, /, h, *, decay: Row):
    """The state decays before the first product, and is reset before the second."""
    h = exp(-relu(decay)) * h
    r, z = sigmoid(r.x + r.of(h)), sigmoid(z.x + z.of(h))
    n = tanh(n.x + n.of(r * h))
    return h + z * (n - h)


GRU_D = gru_d
