"""Layers of varlen_rnn of any cell: fused, or a step of ordinary operators."""

import numpy as np

import varlen_rnn as vr
from benchmarks.cells.case import ATTENDED, KINDS, Inputs
from benchmarks.layers.ours import Unpadded
from varlen_rnn.cells import Cell, find_cell, sigmoid, tanh
from varlen_rnn.nn import functional as F


def _step(x, h, prev):
    f, g, o = sigmoid(x[0] + h[0]), tanh(x[1] + h[1]), sigmoid(x[2] + h[2])
    c = g + f * (prev[1] - g)
    return (o * tanh(c), c), (f, g, o)


def _step_grad(slots, prev, states, d_states):
    f, g, o = slots
    one, s = type(f)(1), tanh(states[1])
    d_c = d_states[1] + d_states[0] * o * (one - s * s)
    d_f, d_g = d_c * (prev[1] - g) * f * (one - f), d_c * (one - f) * (one - g * g)
    return (d_f, d_g, d_states[0] * s * o * (one - o)), (type(f)(0), d_c * f)


# The user's own cell of docs/cells.md.
CIFG = Cell(name="benchmarks.cifg", gates="fgo", states="hc", slots="fgo", step=_step, step_grad=_step_grad)


class LSTMStep(vr.nn.Module):
    """The step of an LSTM, in ordinary operators."""

    def __init__(self, case):
        self.ih = vr.nn.Linear(case.input_size, 4 * case.hidden_size)
        self.hh = vr.nn.Linear(case.hidden_size, 4 * case.hidden_size)
        self.sizes = [(case.hidden_size,)] * 2

    def forward(self, x, h, c):
        """Return the output and both states."""
        gates, size = self.ih(x) + self.hh(h), self.hh.weight.shape[1]
        i, f, g, o = (gates[:, at : at + size] for at in range(0, 4 * size, size))
        c = F.sigmoid(f) * c + F.sigmoid(i) * F.tanh(g)
        h = F.sigmoid(o) * F.tanh(c)
        return h, h, c


class AttentionStep(vr.nn.Module):
    """A step that attends to the rows of a captured sequence, by its state."""

    def __init__(self, case):
        hidden = case.hidden_size
        self.ih, self.hh = vr.nn.Linear(case.input_size, hidden), vr.nn.Linear(hidden, hidden)
        self.ch = vr.nn.Linear(hidden, hidden, bias=False)
        self.keys = vr.nn.Parameter(np.zeros((hidden, ATTENDED), np.float32))
        self.values = vr.nn.Parameter(np.zeros((ATTENDED, hidden), np.float32))
        self.sizes = [(hidden,)]

    def forward(self, x, h):
        """Return the output and the state."""
        context = F.softmax(h @ self.keys) @ self.values
        h = F.tanh(self.ih(x) + self.hh(h) + self.ch(context))
        return h, h


class Layer(Unpadded):
    """A layer of the cell of a case."""

    def __init__(self, case, threads):
        inputs, (layer, module) = Inputs(case), layer_of(case)
        names = {name: name_of(name) for name, _ in module.named_parameters()}
        module.load_state_dict({name: inputs.weights[its] for name, its in names.items()})
        self.hold(case, inputs, layer, {names[name]: weight for name, weight in module.named_parameters()}, threads)


class BuiltIn(Layer):
    """The built-in layer that a case is compared with."""

    def __init__(self, case, threads):
        super().__init__(case.of_built_in(), threads)


def layer_of(case):
    """Return what is called with rows, and the module that has its parameters."""
    sizes = case.input_size, case.hidden_size
    if case.cell.startswith("DynamicRNN"):
        step = (AttentionStep if KINDS[case.cell].attends else LSTMStep)(case)
        layer = vr.nn.DynamicRNN(step)
        return (lambda x: layer(x, step.sizes)), step
    if KINDS[case.cell].projected:
        layer = vr.nn.LSTM(*sizes, proj_size=case.hidden_size // 2)
    elif case.cell in ("LSTM", "GRU", "RNN"):
        layer = getattr(vr.nn, case.cell)(*sizes)
    else:
        layer = vr.nn.Recurrent(CIFG if case.cell == "CIFG" else find_cell(case.cell), *sizes)
    return layer, layer


def name_of(name):
    """Return what a case calls a parameter.

    Examples
    --------
    >>> name_of("weight_ih_l0"), name_of("ih.weight")
    ('weight_ih', 'weight_ih')
    """
    return "_".join(reversed(name.removesuffix("_l0").split(".")))
