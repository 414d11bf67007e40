r"""The long short-term memory cell, in PyTorch's gate order i f g o, and its options.

With $a_k = W_{ih,k} x_t + b_{ih,k} + W_{hh,k} h_{t-1} + b_{hh,k}$:

    i = sigmoid(a_i)    f = sigmoid(a_f)    g = tanh(a_g)    o = sigmoid(a_o)
    c_t = f c_{t-1} + i g
    h_t = o tanh(c_t)

The options have the names that ONNX and TensorFlow's cells use.  With zoneout, the masks keep_h and keep_c are 1 for
units that keep their state.  With recurrent dropout, the mask mask_h multiplies the operand of the recurrent products.

Sources: Hochreiter and Schmidhuber (1997); Gers, Schmidhuber and Cummins (2000) for the forget gate; Gers and
Schmidhuber (2000) for peepholes; Greff et al. (2017) for coupled gates; Krueger et al. (2017) for zoneout; Gal and
Ghahramani (2016) for the dropout; the form and the order of `torch.nn.LSTM`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from varlen_rnn.cells.family import Family
from varlen_rnn.cells.named_activations import activation
from varlen_rnn.cells.options import MASKS, activations_of, bound, clipped, equations_of, flag, zoned
from varlen_rnn.errors import ShapeError
from varlen_rnn.kernels.activations import constant, multiply_add

_OPTIONS = {
    "peepholes": flag(
        False,
        "Whether the gates i and f also read the cell state before the step, and o the cell state after it, weighted "
        "by the vectors `p_i`, `p_f` and `p_o`.",
        in_onnx=True,
    ),
    "coupled": flag(
        False,
        "Whether the forget gate is 1 - i instead of having its own weights (ONNX's `input_forget`).",
        in_onnx=True,
    ),
    "forget_gate": flag(True, "Whether there is a forget gate; without it, the cell state is never scaled down."),
    "cell_clip": bound("the cell state"),
    "proj_clip": bound("a projected output"),
    "clip": bound("the arguments of the gates' and the candidate's activations, as in onnxruntime", in_onnx=True),
    "activations": activations_of(gates="sigmoid", candidate="tanh", output="tanh"),
    **MASKS,
}


def _equations(options: Mapping[str, Any]) -> Callable:
    """Return the equations of an LSTM with options; f is 1 - i if gates are coupled, and 1 without a forget gate."""
    peepholes, coupled, clip, zoneout = (options[name] for name in ("peepholes", "coupled", "clip", "zoneout"))
    if coupled and not options["forget_gate"]:
        expected, got = "coupled=False or forget_gate=True", "coupled=True and forget_gate=False"
        raise ShapeError("lstm_cell", expected=expected, got=got)
    gate, candidate, output = map(activation, options["activations"])
    gates = "ifgo" if options["forget_gate"] and not coupled else "igo"
    vectors = [f"p_{name}" for name in gates if name != "g"] if peepholes else []
    rows = ["keep_h", "keep_c"] * zoneout + ["mask_h"] * options["recurrent_dropout"]

    def total(at: Mapping[str, Any], name: str, seen: Any = None) -> Any:
        a = at[name]
        a = a.x + a.of(constant(at["mask_h"]) * at["h"]) if "mask_h" in rows else a
        return clipped(a if seen is None or not peepholes else a + at[f"p_{name}"] * seen, clip)

    def step(at: Mapping[str, Any]) -> Any:
        c = at["c"]
        i = gate(total(at, "i", c))
        f = gate(total(at, "f", c)) if "f" in gates else 1 - i if coupled else 1
        now = clipped(multiply_add(i, candidate(total(at, "g")), f * c), options["cell_clip"])
        h = gate(total(at, "o", now)) * output(now)
        return (zoned(h, at["h"], at["keep_h"]), zoned(now, c, at["keep_c"])) if zoneout else (h, now)

    return equations_of(step, gates, ["h", "c"] if rows else ["c"], vectors, rows)


lstm_cell = Family("lstm", _OPTIONS, _equations, {"lstm": {}})
LSTM = lstm_cell()
