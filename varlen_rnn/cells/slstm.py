r"""The scalar LSTM of xLSTM: exponential gates, a normaliser n and a stabiliser m.

With $a_k = W_{ih,k} x_t + b_{ih,k} + W_{hh,k} h_{t-1} + b_{hh,k}$, where $W_{hh,k}$ is block-diagonal with heads, and
with `forget="exp"`, where $l_f = a_f$, or `forget="sigmoid"`, where $l_f = log(sigmoid(a_f))$:

    m_t = max(l_f + m_{t-1}, a_i)    i = exp(a_i - m_t)    f = exp(l_f + m_{t-1} - m_t)
    c_t = f c_{t-1} + i tanh(a_z)    n_t = f n_{t-1} + i    h_t = sigmoid(a_o) c_t / n_t

m only keeps exponents small. c, n and m begin at 0 unless initial states are given.  While n is 0, m_t is a_i: an
a_i far below 0 would otherwise make n_t 0, too, and h_t NaN.

Source: Beck et al. (2024), "xLSTM: extended long short-term memory", equations 8 to 17; both forget gates are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from varlen_rnn.cells.derivation.trace import Row
from varlen_rnn.cells.family import Family
from varlen_rnn.cells.options import Option
from varlen_rnn.errors import check_choice
from varlen_rnn.kernels.activations import exp, maximum, relu, sigmoid, tanh, where
from varlen_rnn.kernels.functions import log1p


def _check_forget(forget: Any, name: str) -> str:
    check_choice(forget, name, "exp", "sigmoid")
    return str(forget)


_FORGET = "Whether the forget gate is the exponential or the sigmoid of its argument."
_OPTIONS = {"forget": Option("exp", _check_forget, '{"exp", "sigmoid"}', _FORGET)}


def _equations(options: Mapping[str, Any]) -> Callable:
    """Return the equations of an sLSTM; its states are the output, the cell, the normaliser and the stabiliser."""

    def slstm(i: Any, f: Any, z: Any, o: Any, /, c: Any, n: Any, m: Any) -> Any:
        f_m = (f if options["forget"] == "exp" else -relu(-f) - log1p(exp(-abs(f)))) + m
        f_m = where(n > 0, f_m, i)
        m = maximum(f_m, i)
        i, f = exp(i - m), exp(f_m - m)
        c = f * c + i * tanh(z)
        n = f * n + i
        return sigmoid(o) * c / n, c, n, m

    return slstm


def _equations_of_gates(options: Mapping[str, Any]) -> Callable:
    """Return the equations of an sLSTM whose gates arrive projected."""
    slstm = _equations(options)
    slstm.__annotations__ |= dict.fromkeys("ifzo", Row)
    return slstm


slstm_cell = Family("slstm", _OPTIONS, _equations, {"slstm": {}})
SLSTM = slstm_cell()
slstm_of_gates = Family("slstm_of_gates", _OPTIONS, _equations_of_gates, {"slstm_of_gates": {}})
