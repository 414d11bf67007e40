r"""The simple recurrent cell of Elman, with tanh, relu or any other activation.

Forward: $h_t = act(W_{ih} x_t + b_{ih} + W_{hh} h_{t-1} + b_{hh})$.  Gradient: the sum's is dh (1 - h_t^2) for tanh and
dh where h_t > 0 for relu; $dh_{t-1} = W_{hh}^T da$ is all product, which the recurrence adds.

Sources: Elman (1990), "Finding structure in time"; the form of `torch.nn.RNN`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from varlen_rnn.cells.contract import Cell
from varlen_rnn.cells.family import Family
from varlen_rnn.cells.named_activations import activation, check_activation
from varlen_rnn.cells.options import check_bound, clipped, equations_of, zoned
from varlen_rnn.errors import check_flag
from varlen_rnn.kernels.activations import constant, relu, tanh


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


def _check(
    activation: Any = "tanh", clip: float | None = None, zoneout: bool = False, recurrent_dropout: bool = False
) -> dict[str, Any]:
    """Return the options in their only form."""
    return {
        "activation": check_activation(activation, "activation"),
        "clip": check_bound(clip, "clip"),
        "zoneout": check_flag(zoneout, "zoneout"),
        "recurrent_dropout": check_flag(recurrent_dropout, "recurrent_dropout"),
    }


def _equations(activation: Any, clip: float | None, zoneout: bool, recurrent_dropout: bool) -> Callable:
    """Return the equations of a simple recurrent cell with options."""
    function, rows = _activation(activation), ["keep_h"] * zoneout + ["mask_h"] * recurrent_dropout

    def step(at: Mapping[str, Any]) -> Any:
        a, h = at["a"], at.get("h")
        a = a.x + a.of(constant(at["mask_h"]) * h) if recurrent_dropout else a
        now = function(clipped(a, clip))
        return zoned(now, h, at["keep_h"]) if zoneout else now

    return equations_of(step, "a", "h" if rows else "", (), rows)


_activation = activation
_family = Family("rnn", _check, _equations, RNN_TANH)


def rnn_cell(activation: Any = "tanh", **options: Any) -> Cell:
    """Return the simple recurrent cell of an activation, with options."""
    made = _family(activation=activation, **options)
    return RNN_RELU if made.name == "rnn(activation='relu')" else made
