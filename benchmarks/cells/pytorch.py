"""What PyTorch offers for a cell of one's own: a loop of Python over the steps of a padded batch.

The inputs of equations written by hand are projected before the loop, of all steps at once; `LSTMCell` and its like
project their own.
"""

import torch
from torch.nn import functional as F

from benchmarks.cells.case import Inputs, outputs_of
from benchmarks.layers.pytorch import Padded


class Steps(torch.nn.Module):
    """Weights and a loop; a cell is its `step(x_t, *states)`, which returns the new states, the output first."""

    states = 1

    def __init__(self, case, weights):
        super().__init__()
        self.sizes = [outputs_of(case), case.hidden_size][: self.states]
        for name, array in weights.items():
            self.register_parameter(name, torch.nn.Parameter(torch.from_numpy(array)))

    def forward(self, x):
        """Return the outputs of all steps of a batch `(steps, sequences, features)`."""
        states, outputs = [x.new_zeros(x.shape[1], size) for size in self.sizes], []
        for x_t in self.project(x):
            states = self.step(x_t, *states)
            outputs.append(states[0])
        return torch.stack(outputs)

    def project(self, x):
        """Return what a step takes of the rows of all steps."""
        return F.linear(x, self.weight_ih, self.bias_ih)

    def product(self, h):
        """Return the recurrent product of all gates."""
        return F.linear(h, self.weight_hh, self.bias_hh)


class OwnSteps(Steps):
    """The loop around a cell of PyTorch's, of which `call` is the function that `LSTMCell` and its like call."""

    call = None

    def project(self, x):
        """Return the rows as they are."""
        return x

    def step(self, x, *states):
        """Return the states after a step."""
        given = states if len(states) > 1 else states[0]
        found = self.call(x, given, self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        return found if len(states) > 1 else (found,)


class LSTM(OwnSteps):
    """`torch.nn.LSTMCell` in a loop."""

    states, call = 2, staticmethod(torch.lstm_cell)


class GRU(OwnSteps):
    """`torch.nn.GRUCell` in a loop."""

    call = staticmethod(torch.gru_cell)


class RNN(OwnSteps):
    """`torch.nn.RNNCell` in a loop."""

    call = staticmethod(torch.rnn_tanh_cell)


class Peepholes(Steps):
    """An LSTM whose gates see the state c: those of input and forgetting before the step, that of output after it."""

    states = 2

    def step(self, x, h, c):
        """Return the states after a step."""
        i, f, g, o = (x + self.product(h)).chunk(4, 1)
        c = torch.sigmoid(f + self.p_f * c) * c + torch.sigmoid(i + self.p_i * c) * torch.tanh(g)
        return torch.sigmoid(o + self.p_o * c) * torch.tanh(c), c


class Projected(Steps):
    """An LSTM whose outputs are projected."""

    states = 2

    def step(self, x, h, c):
        """Return the states after a step."""
        i, f, g, o = (x + self.product(h)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return F.linear(torch.sigmoid(o) * torch.tanh(c), self.weight_hr), c


class CIFG(Steps):
    """An LSTM whose input gate is what the forget gate leaves."""

    states = 2

    def step(self, x, h, c):
        """Return the states after a step."""
        f, g, o = (x + self.product(h)).chunk(3, 1)
        c = torch.lerp(torch.tanh(g), c, torch.sigmoid(f))
        return torch.sigmoid(o) * torch.tanh(c), c


class ResetBefore(Steps):
    """A GRU that resets the state before its product."""

    def step(self, x, h):
        """Return the states after a step."""
        size = h.shape[1]
        of_gates = F.linear(h, self.weight_hh[: 2 * size], self.bias_hh[: 2 * size])
        r, z = torch.sigmoid(x[:, : 2 * size] + of_gates).chunk(2, 1)
        n = torch.tanh(x[:, 2 * size :] + F.linear(r * h, self.weight_hh[2 * size :], self.bias_hh[2 * size :]))
        return (torch.lerp(n, h, z),)


def norm(x, hidden):
    """Return each gate of rows, normalised over its units."""
    return F.layer_norm(x.unflatten(1, (-1, hidden)), (hidden,)).unbind(1)


class LayerNormLSTM(Steps):
    """An LSTM whose gates, and whose cell, are normalised over the units."""

    states = 2

    def step(self, x, h, c):
        """Return the states after a step."""
        i, f, g, o = norm(x + self.product(h), c.shape[1])
        i, f = torch.sigmoid(self.s_i * i + self.b_i), torch.sigmoid(self.s_f * f + self.b_f)
        g, o = torch.tanh(self.s_g * g + self.b_g), torch.sigmoid(self.s_o * o + self.b_o)
        c = f * c + i * g
        return o * torch.tanh(self.s_c * norm(c, c.shape[1])[0] + self.b_c), c


class LayerNormGRU(Steps):
    """A GRU whose recurrent products are normalised over the units."""

    def step(self, x, h):
        """Return the states after a step."""
        x_r, x_z, x_n = x.chunk(3, 1)
        r, z, n = norm(self.product(h), h.shape[1])
        r, z = torch.sigmoid(x_r + self.s_r * r + self.b_r), torch.sigmoid(x_z + self.s_z * z + self.b_z)
        n = torch.tanh(x_n + r * (self.s_n * n + self.b_n))
        return (torch.lerp(n, h, z),)


class Attention(Steps):
    """A step that attends to the rows of another sequence, by its state."""

    def step(self, x, h):
        """Return the states after a step."""
        context = torch.softmax(h @ self.keys, 1) @ self.values
        return (torch.tanh(x + self.product(h) + F.linear(context, self.weight_ch)),)


STEPS = {
    "LSTM": LSTM,
    "GRU": GRU,
    "RNN": RNN,
    "CIFG": CIFG,
    "lstm(peepholes=True)": Peepholes,
    "gru(reset_after=False)": ResetBefore,
    "ln_lstm": LayerNormLSTM,
    "ln_gru": LayerNormGRU,
    "LSTM(proj_size=H/2)": Projected,
    "DynamicRNN, LSTM": LSTM,
    "DynamicRNN, attention": Attention,
}


class Loop(Padded):
    """The loop, run by Python."""

    def __init__(self, case, threads):
        inputs = Inputs(case)
        self.hold(case, inputs, STEPS[case.cell](case, inputs.weights), threads)

    def run(self):
        """Return the outputs, in the rectangle."""
        return self.layer(self.x)


class CompiledStep(Loop):
    """The loop, run by Python, around a compiled step."""

    def __init__(self, case, threads):
        super().__init__(case, threads)
        self.layer.step = torch.compile(self.layer.step)


class CompiledLoop(Loop):
    """The loop, compiled as a whole: all of its steps one after another.  It is compiled when it is built."""

    def __init__(self, case, threads):
        super().__init__(case, threads)
        compiled = torch.compile(self.layer)
        self.run = lambda: compiled(self.x)
        self.training()
