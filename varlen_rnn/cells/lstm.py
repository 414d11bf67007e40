r"""The long short-term memory cell, in PyTorch's gate order i f g o, and its options.

With $a_k = W_{ih,k} x_t + b_{ih,k} + W_{hh,k} h_{t-1} + b_{hh,k}$:

    i = sigmoid(a_i)    f = sigmoid(a_f)    g = tanh(a_g)    o = sigmoid(a_o)
    c_t = f c_{t-1} + i g
    h_t = o tanh(c_t)

Options, with the names that ONNX and TensorFlow's cells use:

* `peepholes`: weights from c_{t-1} to i and f, and from c_t to o.
* `coupled`: f = 1 - i (ONNX `input_forget`).  `forget_gate=False`: f = 1.
* `cell_clip` bounds c_t, `proj_clip` bounds projected outputs.  `clip` bounds the arguments of the activations of gates
  and candidate; as in onnxruntime, it does not bound c_t.
* `activations`: of gates, candidate and output.
* `zoneout`: the masks keep_h and keep_c are 1 for units that keep their state.
* `recurrent_dropout`: the mask mask_h multiplies the operand of the recurrent products.

Sources: Hochreiter and Schmidhuber (1997); Gers, Schmidhuber and Cummins (2000) for the forget gate; Gers and
Schmidhuber (2000) for peepholes; Greff et al. (2017) for coupled gates; Krueger et al. (2017) for zoneout; Gal and
Ghahramani (2016) for the dropout; the form and the order of `torch.nn.LSTM`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from varlen_rnn.cells.family import Family
from varlen_rnn.cells.named_activations import activation
from varlen_rnn.cells.options import BOUND, MASKS, Option, activations_of, clipped, equations_of, zoned
from varlen_rnn.errors import ShapeError, check_flag
from varlen_rnn.kernels.activations import constant, multiply_add

_OPTIONS = {
    "peepholes": Option(False, check_flag),
    "coupled": Option(False, check_flag),
    "forget_gate": Option(True, check_flag),
    "cell_clip": BOUND,
    "proj_clip": BOUND,
    "clip": BOUND,
    "activations": activations_of(gates="sigmoid", candidate="tanh", output="tanh"),
    **MASKS,
}


def _equations(options: Mapping[str, Any]) -> Callable:
    """Return the equations of an LSTM with options; f is 1 - i if gates are coupled, and 1 without a forget gate."""
    peepholes, coupled, clip, zoneout = (options[name] for name in ("peepholes", "coupled", "clip", "zoneout"))
    if coupled and not options["forget_gate"]:
        raise ShapeError("lstm_cell", expected="coupled gates or no forget gate", got="both")
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
