r"""The gated recurrent unit that resets after the product, in PyTorch's gate order r z n, and its options.

With $x_k = W_{ih,k} x_t + b_{ih,k}$ and $u_k = W_{hh,k} h_{t-1} + b_{hh,k}$:

    r = sigmoid(x_r + u_r)    z = sigmoid(x_z + u_z)    n = tanh(x_n + r u_n)
    h_t = (1 - z) n + z h_{t-1}

One option resets before the product: n = tanh(x_n + W_hn (r h_{t-1}) + b_hn).  Another option computes the output as
Fluid does: h_t = z n + (1 - z) h_{t-1}.  Masks are as in the LSTM.

Sources: Cho et al. (2014), "On the properties of neural machine translation"; reset after the product as in cuDNN,
`torch.nn.GRU` and ONNX `linear_before_reset=1`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from varlen_rnn.cells.family import Family
from varlen_rnn.cells.named_activations import activation
from varlen_rnn.cells.options import MASKS, activations_of, bound, clipped, equations_of, flag, zoned
from varlen_rnn.kernels.activations import constant

_OPTIONS = {
    "reset_after": flag(
        True,
        "Whether the reset gate multiplies the recurrent product, as in PyTorch.  Otherwise it multiplies the operand "
        "of the product, which takes a second product per step.",
        in_onnx=True,
    ),
    "origin_mode": flag(
        True,
        "Whether the update gate multiplies the previous output, as in PyTorch; otherwise it multiplies the candidate.",
    ),
    "clip": bound("the arguments of activations", in_onnx=True),
    "activations": activations_of(gates="sigmoid", candidate="tanh"),
    **MASKS,
}


def _equations(options: Mapping[str, Any]) -> Callable:
    clip, zoneout, masked = (options[name] for name in ("clip", "zoneout", "recurrent_dropout"))
    gate, candidate = map(activation, options["activations"])
    rows = ["keep_h"] * zoneout + ["mask_h"] * masked

    def step(at: Mapping[str, Any]) -> Any:
        r, z, n, h = (at[name] for name in "rznh")
        seen = constant(at["mask_h"]) * h if masked else h
        product = lambda gate: gate.of(seen) if masked else gate.h
        r, z = (gate(clipped(g.x + product(g), clip)) for g in (r, z))
        n = candidate(clipped(n.x + (r * product(n) if options["reset_after"] else n.of(r * seen)), clip))
        now = n + z * (h - n) if options["origin_mode"] else h + z * (n - h)
        return zoned(now, h, at["keep_h"]) if zoneout else now

    return equations_of(step, "rzn", "h", (), rows)


gru_cell = Family("gru", _OPTIONS, _equations, {"gru": {}})
GRU = gru_cell()
