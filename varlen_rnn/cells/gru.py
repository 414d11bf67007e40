r"""The gated recurrent unit that resets after the product, in PyTorch's gate order r z n, and its options.

Forward, with $x_k = W_{ih,k} x_t + b_{ih,k}$ and $u_k = W_{hh,k} h_{t-1} + b_{hh,k}$:

    r = sigmoid(x_r + u_r)    z = sigmoid(x_z + u_z)    n = tanh(x_n + r u_n)
    h_t = (1 - z) n + z h_{t-1}

Gradient, with dh the gradient of h_t:

    dx_n = dh (1 - z) (1 - n^2)           du_n = dx_n r
    dx_r = du_r = dx_n u_n r (1 - r)
    dx_z = du_z = dh (h_{t-1} - n) z (1 - z)
    dh_{t-1} = dh z + W_hh^T du, whose product the recurrence adds

The candidate's two gradients differ, so it has two slots: (u_n, r, z, n), overwritten by (du_n, dr, dz, dx_n).

Options: a reset before the product, n = tanh(x_n + W_hn (r h_{t-1}) + b_hn), a second product per step; Fluid's other
`origin_mode`, h_t = z n + (1 - z) h_{t-1}; `clip` of what goes into activations; `activations` of gates and candidate;
`zoneout` and `recurrent_dropout` as of the LSTM.

Sources: Cho et al. (2014), "On the properties of neural machine translation"; reset after the product as in cuDNN,
`torch.nn.GRU` and ONNX `linear_before_reset=1`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from varlen_rnn.cells.contract import Cell
from varlen_rnn.cells.family import Family
from varlen_rnn.cells.named_activations import activation, check_activation
from varlen_rnn.cells.options import check_bound, check_names, clipped, equations_of, zoned
from varlen_rnn.errors import check_flag
from varlen_rnn.kernels.activations import constant, sigmoid, tanh


def step(x, h, prev):
    """Return ((h,), (u_n, r, z, n)) of one unit."""
    r = sigmoid(x[0] + h[0])
    z = sigmoid(x[1] + h[1])
    n = tanh(x[2] + r * h[2])
    return (n + z * (prev[0] - n),), (h[2], r, z, n)


def step_grad(slots, prev, states, d_states):
    """Return the gradients of the slots and the direct gradient of the previous state."""
    u, r, z, n = slots
    one = type(u)(1)
    d_h = d_states[0]
    d_n = d_h * (one - z) * (one - n * n)
    d_r = d_n * u * r * (one - r)
    d_z = d_h * (prev[0] - n) * z * (one - z)
    return (d_n * r, d_r, d_z, d_n), (d_h * z,)


GRU = Cell(
    name="gru",
    gates=("r", "z", "n"),
    states=("h",),
    slots=("u_n", "r", "z", "n"),
    product_slots={"n": "u_n"},
    step=step,
    step_grad=step_grad,
)


def _check(
    reset_after: bool = True,
    origin_mode: bool = True,
    clip: float | None = None,
    activations: tuple[Any, ...] = ("sigmoid", "tanh"),
    zoneout: bool = False,
    recurrent_dropout: bool = False,
) -> dict[str, Any]:
    """Return the options in their only form."""
    return {
        "reset_after": check_flag(reset_after, "reset_after"),
        "origin_mode": check_flag(origin_mode, "origin_mode"),
        "clip": check_bound(clip, "clip"),
        "activations": check_names(activations, "activations", ("gates", "candidate"), check_activation),
        "zoneout": check_flag(zoneout, "zoneout"),
        "recurrent_dropout": check_flag(recurrent_dropout, "recurrent_dropout"),
    }


def _equations(
    reset_after: bool, origin_mode: bool, clip: float | None, activations: tuple, zoneout: bool, recurrent_dropout: bool
) -> Callable:
    """Return the equations of a GRU with options."""
    gate, candidate = map(activation, activations)
    rows = ["keep_h"] * zoneout + ["mask_h"] * recurrent_dropout

    def step(at: Mapping[str, Any]) -> Any:
        r, z, n, h = (at[name] for name in "rznh")
        seen = constant(at["mask_h"]) * h if recurrent_dropout else h
        product = lambda gate: gate.of(seen) if recurrent_dropout else gate.h
        r, z = (gate(clipped(g.x + product(g), clip)) for g in (r, z))
        n = candidate(clipped(n.x + (r * product(n) if reset_after else n.of(r * seen)), clip))
        now = n + z * (h - n) if origin_mode else h + z * (n - h)
        return zoned(now, h, at["keep_h"]) if zoneout else now

    return equations_of(step, "rzn", "h", (), rows)


gru_cell = Family("gru", _check, _equations, GRU)
