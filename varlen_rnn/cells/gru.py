r"""The gated recurrent unit that resets after the product, in PyTorch's gate order r z n, and its options.

With $x_k = W_{ih,k} x_t + b_{ih,k}$ and $u_k = W_{hh,k} h_{t-1} + b_{hh,k}$:

    r = sigmoid(x_r + u_r)    z = sigmoid(x_z + u_z)    n = tanh(x_n + r u_n)
    h_t = (1 - z) n + z h_{t-1}

Options: a reset before the product, n = tanh(x_n + W_hn (r h_{t-1}) + b_hn), a second product per step; Fluid's other
`origin_mode`, h_t = z n + (1 - z) h_{t-1}; `clip` bounds the arguments of activations; `activations` of gates and
candidate; `zoneout` and `recurrent_dropout` as in the LSTM.

Sources: Cho et al. (2014), "On the properties of neural machine translation"; reset after the product as in cuDNN,
`torch.nn.GRU` and ONNX `linear_before_reset=1`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from varlen_rnn.cells.family import Family
from varlen_rnn.cells.named_activations import activation, check_activation
from varlen_rnn.cells.options import check_bound, check_names, clipped, equations_of, zoned
from varlen_rnn.errors import check_flag
from varlen_rnn.kernels.activations import constant


def _check(
    reset_after: bool = True,
    origin_mode: bool = True,
    clip: float | None = None,
    activations: tuple[Any, ...] = ("sigmoid", "tanh"),
    zoneout: bool = False,
    recurrent_dropout: bool = False,
) -> dict[str, Any]:
    """Return the options in canonical form."""
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


gru_cell = Family("gru", _check, _equations, {"gru": {}})
GRU = gru_cell()
