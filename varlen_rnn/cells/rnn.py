r"""The simple recurrent cell of Elman, with tanh, relu or any other activation.

$h_t = act(W_{ih} x_t + b_{ih} + W_{hh} h_{t-1} + b_{hh})$; the gradient of relu at 0 is 0, as in PyTorch.

Sources: Elman (1990), "Finding structure in time"; the form of `torch.nn.RNN`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from varlen_rnn.cells.family import Family
from varlen_rnn.cells.named_activations import activation, check_activation
from varlen_rnn.cells.options import check_bound, clipped, equations_of, zoned
from varlen_rnn.errors import check_flag
from varlen_rnn.kernels.activations import constant


def _check(
    activation: Any = "tanh", clip: float | None = None, zoneout: bool = False, recurrent_dropout: bool = False
) -> dict[str, Any]:
    """Return the options in canonical form."""
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
rnn_cell = Family("rnn", _check, _equations, {"rnn_tanh": {}, "rnn_relu": {"activation": "relu"}})
RNN_TANH, RNN_RELU = rnn_cell(), rnn_cell(activation="relu")
