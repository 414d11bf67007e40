r"""The simple recurrent cell of Elman, with tanh or relu.

Forward: $h_t = act(W_{ih} x_t + b_{ih} + W_{hh} h_{t-1} + b_{hh})$.  Gradient: the sum's is dh (1 - h_t^2) for tanh and
dh where h_t > 0 for relu; $dh_{t-1} = W_{hh}^T da$ is all product, which the recurrence adds.

Sources: Elman (1990), "Finding structure in time"; the form of `torch.nn.RNN`.
"""

from varlen_rnn.cells.cell import Cell
from varlen_rnn.kernels.activations import relu, tanh


def step_tanh(x, h, prev):
    """Return ((h,), (h,)) of one unit."""
    y = tanh(x[0] + h[0])
    return (y,), (y,)


def step_tanh_grad(slots, prev, states, d_states):
    """Return ((da,), (0,))."""
    y = slots[0]
    return (d_states[0] * (type(y)(1) - y * y),), (type(y)(0),)


def step_relu(x, h, prev):
    """Return ((h,), (h,)) of one unit."""
    y = relu(x[0] + h[0])
    return (y,), (y,)


def step_relu_grad(slots, prev, states, d_states):
    """Return ((da,), (0,)); the gradient at 0 is 0, as in PyTorch."""
    y = slots[0]
    zero = type(y)(0)
    return (d_states[0] if y > zero else zero,), (zero,)


RNN_TANH = Cell(name="rnn_tanh", gates=("h",), states=("h",), slots=("h",), step=step_tanh, step_grad=step_tanh_grad)
RNN_RELU = Cell(name="rnn_relu", gates=("h",), states=("h",), slots=("h",), step=step_relu, step_grad=step_relu_grad)
