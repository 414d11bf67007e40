"""Convert ONNX's RNN, GRU and LSTM to recurrent layers of this library."""

from __future__ import annotations

from typing import Any

import numpy as np

from varlen_rnn import nn
from varlen_rnn.nn import functional as F
from varlen_rnn.onnx.checks import Unread
from varlen_rnn.onnx.nodes import reads
from varlen_rnn.onnx.recurrent import ACTIVATIONS, DEFAULTS, LAYERS, ORDERS
from varlen_rnn.onnx.values import SEQUENCES, STEPS, Rows, Unknown
from varlen_rnn.ops.sequence.steps import single_rows
from varlen_rnn.tape.variable import Variable

_OURS = {theirs: (ours, alpha, beta) for ours, (theirs, alpha, beta) in ACTIVATIONS.items()}
_WAYS = {"forward": ["forward"], "reverse": ["backward"], "bidirectional": ["forward", "backward"]}


@reads(*LAYERS)
def _recurrent(kind: str, x: Any, *, direction: str, layout: bool = False, **named: Any) -> list[Any]:
    weights: list[Any] = [named.get(name) for name in "wrbp"]
    axes = (SEQUENCES, STEPS, 0) if layout else (STEPS, SEQUENCES, 0)
    is_step = isinstance(x, Variable) and x.ndim == 3 and x.shape[1 if layout else 0] == 1
    x = _as_rows(x, axes)
    if not isinstance(x, Rows) or x.axes != axes or not all(isinstance(value, np.ndarray) for value in weights[:2]):
        raise Unread("whose input is no padded batch of sequences, or whose weights are computed")
    lengths = named["sequence_lens"]
    if isinstance(lengths, np.ndarray):
        raise Unread("with lengths that are constants: a program takes lengths from the LoD of its feed")
    if isinstance(lengths, (Rows, Variable)) or (isinstance(lengths, Unknown) and lengths.lengths == "computed"):
        raise Unread("with lengths that are computed: a program takes lengths from the LoD of its feed")
    _check_weights(kind, direction, x.variable.shape[1], named.get("hidden_size"), weights)
    specs = activations_of(kind, named, len(_WAYS[direction]))
    states = [_state(named[f"initial_{name}"], layout) for name in ("hc" if kind == "LSTM" else "h")]
    outputs, ends = [], []
    for number, way in enumerate(_WAYS[direction]):
        own = [None if value is None else value[number] for value in weights]
        layer = layer_of(kind, named, way, specs[number], own)
        given = [state if state is None or len(specs) == 1 else state[number : number + 1] for state in states]
        start = None if given == [None] * len(given) else tuple(given) if len(given) > 1 else given[0]
        y, last = layer(x.variable, start)
        outputs.append(y)
        ends.append(last if isinstance(last, tuple) else (last,))
    rows = F.concat(outputs, axis=1).reshape(-1, len(outputs), weights[1].shape[2])
    axes = (SEQUENCES, STEPS, 0, 1) if layout else (STEPS, 0, SEQUENCES, 1)
    y = x._replace(variable=rows, axes=axes)
    if is_step:  # the only step of each sequence
        values = ends[0][0] if len(outputs) == 1 else F.concat([of_way[0] for of_way in ends], axis=0)
        y = values.transpose(0, 1)[:, None] if layout else values[None]
    last = [F.concat(list(of_state), axis=0) for of_state in zip(*ends, strict=True)]
    return [y, *(state.transpose(0, 1) if layout else state for state in last)]


def _as_rows(x: Any, axes: tuple[Any, ...]) -> Any:
    """Return rows of sequences for values of one step and for rows without an axis of sequences, otherwise `x`."""
    place = axes.index(SEQUENCES)
    if isinstance(x, Variable) and x.ndim == 3 and x.shape[1 - place] == 1 and x.shape[2] != -1:
        return Rows(single_rows(x.reshape(-1, x.shape[2])), axes, {STEPS: 1, SEQUENCES: x.shape[place]})
    is_alone = isinstance(x, Rows) and len(x.axes) == 3 and isinstance(x.axes[place], int)
    if is_alone and x.axes[1 - place] == STEPS and x.variable.shape[1] == 1:
        declared = {**x.declared, SEQUENCES: 1}
        return Rows(x.variable.reshape(-1, x.variable.shape[2]), axes, declared)
    return x


def _check_weights(kind: str, direction: str, size: int, hidden: int | None, weights: list[Any]) -> None:
    if direction not in _WAYS:
        raise Unread(f"with the direction {direction!r}")
    count, gates, (w, r, *_) = len(_WAYS[direction]), len(ORDERS[kind]), weights
    hidden = hidden or (r.shape[-1] if r.ndim else 0)
    size = w.shape[-1] if size == -1 and w.ndim else size
    shapes = (gates * hidden, size), (gates * hidden, hidden), (2 * gates * hidden,), (3 * hidden,)
    for name, value, shape in zip("WRBP", weights, shapes, strict=True):
        if value is None:
            continue
        if not isinstance(value, np.ndarray):
            raise Unread(f"whose weight {name} is computed")
        if value.shape != (count, *shape) or value.dtype != w.dtype:
            got = f"{value.shape} {value.dtype}"
            raise Unread(f"whose weight {name} is {got}, not {(count, *shape)} {w.dtype}")


def _state(state: Any, layout: bool) -> Any:
    """Return the initial states of a layer; None if they are zeros, the default for any number of sequences."""
    if state is None or (isinstance(state, Unknown) and state.is_zeros):
        return None
    if isinstance(state, np.ndarray) and state.ndim == 3 and not state.any():
        return None
    if not isinstance(state, (Variable, np.ndarray)):
        raise Unread("with initial states that are computed from shapes")
    state = Variable(state) if isinstance(state, np.ndarray) else state
    return state.transpose(0, 1) if layout else state


def activations_of(kind: str, attributes: dict[str, Any], count: int) -> list[list[Any]]:
    """Return a list of activations for each direction, with the parameters alpha and beta assigned in ONNX's order."""
    named = {ours: theirs for theirs, (ours, _, _) in _OURS.items()}
    size = len(DEFAULTS[kind])
    names = attributes.get("activations") or [named[name] for name in DEFAULTS[kind]] * count
    if len(names) != size * count:
        raise Unread(f"with {len(names)} activations, not {size * count}")
    alphas, betas = list(attributes.get("activation_alpha", ())), list(attributes.get("activation_beta", ()))
    specs: list[Any] = []
    for name in names:
        if name not in _OURS:
            raise Unread(f"with the activation {name}, which no cell here has")
        ours, alpha, beta = _OURS[name]
        numbers = [values.pop(0) for values, takes in ((alphas, alpha), (betas, beta)) if takes and values]
        specs.append((ours, *numbers) if numbers else ours)
    return [specs[number * size : (number + 1) * size] for number in range(count)]


def layer_of(kind: str, attributes: dict[str, Any], way: str, specs: list[Any], weights: list[Any]) -> Any:
    """Return a recurrent layer for one direction of an ONNX node, with the node's weights."""
    w, r, b, p = weights
    options: dict[str, Any] = {"clip": attributes.get("clip")}
    if kind == "RNN":
        options["nonlinearity"] = specs[0]
    elif kind == "GRU":
        options |= {"reset_after": bool(attributes.get("linear_before_reset", 0)), "activations": specs}
    else:
        coupled = bool(attributes.get("input_forget", 0))
        options |= {"peepholes": p is not None, "coupled": coupled, "activations": specs}
    layer = getattr(nn, kind)(w.shape[1], r.shape[1], direction=way, dtype=w.dtype, **options)
    b = np.zeros(2 * len(w), w.dtype) if b is None else b
    named = dict(zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), (w, r, *np.split(b, 2)), strict=True))
    values = {name: _ours(value, kind, options.get("coupled", False)) for name, value in named.items()}
    if p is not None:
        values |= dict(zip(("p_i", "p_o", "p_f"), np.split(p, 3), strict=True))
    suffix = "_l0_reverse" if way == "backward" else "_l0"
    layer.load_state_dict({name: values[name.removesuffix(suffix)] for name in layer.state_dict()})
    return layer


def _ours(array: np.ndarray, kind: str, coupled: bool) -> np.ndarray:
    """Reorder blocks of gates from ONNX's order to ours; drop the forget gate of a coupled LSTM."""
    parts = np.split(array, len(ORDERS[kind]))
    return np.concatenate([parts[place] for gate, place in enumerate(ORDERS[kind]) if not (coupled and gate == 1)])
