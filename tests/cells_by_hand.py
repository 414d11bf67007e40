"""The built-in cells with gradients by hand, which those derived from their equations have the bits of.

With dh, dc the gradients of h_t and c_t, s = tanh(c_t), and dc <- dc + dh o (1 - s^2), those of the LSTM's sums are

    da_o = dh s o (1 - o)    da_i = dc g i (1 - i)    da_f = dc c_{t-1} f (1 - f)    da_g = dc i (1 - g^2)

and those of the GRU's inputs x and products u:

    dx_n = dh (1 - z) (1 - n^2)    du_n = dx_n r
    dx_r = du_r = dx_n u_n r (1 - r)    dx_z = du_z = dh (h_{t-1} - n) z (1 - z)
"""

from varlen_rnn.cells import Cell, multiply_add, relu, sigmoid, tanh


def lstm_step(x, h, prev):
    """Return ((h, c), (i, f, g, o)) of one unit."""
    i = sigmoid(x[0] + h[0])
    f = sigmoid(x[1] + h[1])
    g = tanh(x[2] + h[2])
    o = sigmoid(x[3] + h[3])
    c = multiply_add(i, g, f * prev[1])
    return (o * tanh(c), c), (i, f, g, o)


def lstm_step_grad(slots, prev, states, d_states):
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
    name="lstm by hand",
    gates=("i", "f", "g", "o"),
    states=("h", "c"),
    slots=("i", "f", "g", "o"),
    step=lstm_step,
    step_grad=lstm_step_grad,
)


def gru_step(x, h, prev):
    """Return ((h,), (u_n, r, z, n)) of one unit."""
    r = sigmoid(x[0] + h[0])
    z = sigmoid(x[1] + h[1])
    n = tanh(x[2] + r * h[2])
    return (n + z * (prev[0] - n),), (h[2], r, z, n)


def gru_step_grad(slots, prev, states, d_states):
    """Return the gradients of the slots and the direct gradient of the previous state."""
    u, r, z, n = slots
    one = type(u)(1)
    d_h = d_states[0]
    d_n = d_h * (one - z) * (one - n * n)
    d_r = d_n * u * r * (one - r)
    d_z = d_h * (prev[0] - n) * z * (one - z)
    return (d_n * r, d_r, d_z, d_n), (d_h * z,)


GRU = Cell(
    name="gru by hand",
    gates=("r", "z", "n"),
    states=("h",),
    slots=("u_n", "r", "z", "n"),
    product_slots={"n": "u_n"},
    step=gru_step,
    step_grad=gru_step_grad,
)


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


RNN_TANH = Cell(
    name="rnn_tanh by hand", gates=("h",), states=("h",), slots=("h",), step=step_tanh, step_grad=step_tanh_grad
)
RNN_RELU = Cell(
    name="rnn_relu by hand", gates=("h",), states=("h",), slots=("h",), step=step_relu, step_grad=step_relu_grad
)
