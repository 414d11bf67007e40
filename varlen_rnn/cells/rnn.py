r"""The simple recurrent cell of Elman, with tanh, relu or any other activation.

$h_t = act(W_{ih} x_t + b_{ih} + W_{hh} h_{t-1} + b_{hh})$; the gradient of relu at 0 is 0, as in PyTorch.

Sources: Elman (1990), "Finding structure in time"; the form of `torch.nn.RNN`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from varlen_rnn.cells.family import Family
from varlen_rnn.cells.named_activations import activation, check_activation
from varlen_rnn.cells.options import ACTIVATION, MASKS, Option, bound, clipped, equations_of, zoned
from varlen_rnn.kernels.activations import constant

_OPTIONS = {
    "activation": Option("tanh", check_activation, "activation", f"The activation: {ACTIVATION}.", in_onnx=True),
    "clip": bound("the activation's argument", in_onnx=True),
    **MASKS,
}


def _equations(options: Mapping[str, Any]) -> Callable:
    function, clip, zoneout = activation(options["activation"]), options["clip"], options["zoneout"]
    rows = ["keep_h"] * zoneout + ["mask_h"] * options["recurrent_dropout"]

    def step(at: Mapping[str, Any]) -> Any:
        a, h = at["a"], at.get("h")
        a = a.x + a.of(constant(at["mask_h"]) * h) if "mask_h" in rows else a
        now = function(clipped(a, clip))
        return zoned(now, h, at["keep_h"]) if zoneout else now

    return equations_of(step, "a", "h" if rows else "", (), rows)


rnn_cell = Family("rnn", _OPTIONS, _equations, {"rnn_tanh": {}, "rnn_relu": {"activation": "relu"}})
RNN_TANH, RNN_RELU = rnn_cell(), rnn_cell(activation="relu")
