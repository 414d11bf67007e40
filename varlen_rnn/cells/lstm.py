r"""The long short-term memory cell, in PyTorch's gate order i f g o.

Forward, with $a_k = W_{ih,k} x_t + b_{ih,k} + W_{hh,k} h_{t-1} + b_{hh,k}$:

    i = sigmoid(a_i)    f = sigmoid(a_f)    g = tanh(a_g)    o = sigmoid(a_o)
    c_t = f c_{t-1} + i g
    h_t = o tanh(c_t)

Gradient, with dh, dc the gradients of h_t and c_t, and s = tanh(c_t); `dc` gathers what reaches c_t through h_t:

    dc   <- dc + dh o (1 - s^2)
    da_o  = dh s o (1 - o)          da_i = dc g i (1 - i)
    da_f  = dc c_{t-1} f (1 - f)    da_g = dc i (1 - g^2)
    dc_{t-1} = dc f                 dh_{t-1} = W_hh^T da, which the recurrence adds

Sources: Hochreiter and Schmidhuber (1997); Gers, Schmidhuber and Cummins (2000) for the forget gate; the form and the
order of `torch.nn.LSTM`.
"""

from varlen_rnn.cells.cell import Cell
from varlen_rnn.kernels.activations import multiply_add, sigmoid, tanh


def step(x, h, prev):
    """Return ((h, c), (i, f, g, o)) of one unit."""
    i = sigmoid(x[0] + h[0])
    f = sigmoid(x[1] + h[1])
    g = tanh(x[2] + h[2])
    o = sigmoid(x[3] + h[3])
    c = multiply_add(i, g, f * prev[1])
    return (o * tanh(c), c), (i, f, g, o)


def step_grad(slots, prev, states, d_states):
    """Return the gradients of the gates' sums and of the previous states, ((da_i, da_f, da_g, da_o), (0, dc))."""
    i, f, g, o = slots
    one = type(i)(1)
    s = tanh(states[1])
    d_h = d_states[0]
    d_c = d_states[1] + d_h * o * (one - s * s)
    d_i = d_c * g * i * (one - i)
    d_f = d_c * prev[1] * f * (one - f)
    d_g = d_c * i * (one - g * g)
    d_o = d_h * s * o * (one - o)
    return (d_i, d_f, d_g, d_o), (type(i)(0), d_c * f)


LSTM = Cell(
    name="lstm",
    gates=("i", "f", "g", "o"),
    states=("h", "c"),
    slots=("i", "f", "g", "o"),
    step=step,
    step_grad=step_grad,
)
