"""Convert ONNX nodes to operators of this library.

An operator that corresponds to exactly one ONNX node declares it by `onnx=`; the functions here convert other nodes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from varlen_rnn import nn
from varlen_rnn.errors import DTypeError
from varlen_rnn.nn import functional as F
from varlen_rnn.onnx.recurrent import ACTIVATIONS, DEFAULTS, ORDERS
from varlen_rnn.tape.operator import OPERATORS, Op
from varlen_rnn.tape.variable import Variable, apply

STEPS, SEQUENCES = "steps", "sequences"
READS: dict[str, Callable[..., Any]] = {}


class Unread(Exception):
    """Raised for a node with attributes or inputs for which there is no operator; the message names them."""


class Rows(NamedTuple):
    """Rows of sequences in place of a padded ONNX value.

    `axes` has the meaning of each axis of the ONNX value: STEPS, SEQUENCES, or the index of an axis of a row.
    """

    variable: Variable
    axes: tuple[Any, ...]

    def place(self, axis: int) -> int:
        """Return the variable's axis for an axis of the ONNX value; raise if that runs over steps or sequences."""
        found = self.axes[axis]
        if isinstance(found, str):
            raise Unread(f"over {found}")
        return found + 1


class Unknown(NamedTuple):
    """A value that is known only in a run, such as a shape; if `is_zeros`, zeros of a shape that is not known."""

    is_zeros: bool = False


def reads(*kinds: str) -> Callable[[Callable], Callable]:
    """Return a decorator that registers a converter for these kinds of nodes.

    The converter is called as `function(kind, *inputs, **attributes)` and returns the node's output, or a list of
    outputs.
    """

    def take(function: Callable) -> Callable:
        READS.update(dict.fromkeys(kinds, function))
        return function

    return take


def _like(x: Any, variable: Variable) -> Any:
    return x._replace(variable=variable) if isinstance(x, Rows) else variable


def _variable(x: Any) -> Variable:
    return x.variable if isinstance(x, Rows) else x


@reads("Identity")
def _identity(kind: str, x: Any) -> Any:
    return x


@reads("Dropout")
def _dropout(kind: str, x: Any, ratio: Any = None, training: Any = None, seed: int = 0) -> Any:
    if training is not None and not (isinstance(training, np.ndarray) and not training.any()):
        raise Unread("in training")
    return x


@reads("Cast")
def _cast(kind: str, x: Any, to: int) -> Any:
    from onnx.helper import tensor_dtype_to_np_dtype

    try:
        dtype = tensor_dtype_to_np_dtype(to)
    except KeyError as error:
        raise Unread(f"to the data type {to}") from error
    try:
        return _like(x, _variable(x).astype(dtype))
    except DTypeError as error:
        raise Unread(f"to {dtype}") from error


@reads("Softplus")
def _softplus(kind: str, x: Any) -> Any:
    return _like(x, F.softplus(_variable(x), threshold=math.inf))


def operator_of(kind: str) -> Op | None:
    """Return the first operator that declares this kind of ONNX node by `onnx=`, or None."""
    return next((op for op in OPERATORS.values() if op.onnx == kind), None)


def read_operator(op: Op, *x: Any, **attributes: Any) -> Any:
    """Apply the operator that corresponds to an ONNX node; the node's attributes are the operator's constants."""
    if len(x) > len(op.inputs) and not op.inputs[-1].startswith("*"):
        raise Unread(f"of more than {len(op.inputs)}")
    if attributes.keys() - op.attrs.keys():
        raise Unread(f"with {', '.join(sorted(attributes.keys() - op.attrs.keys()))}")
    for name in op.attrs.keys() - attributes.keys():
        attributes[name] = _default(str(op.onnx), name)
    rows = next((value for value in x if isinstance(value, Rows)), None)
    if rows is None:
        return apply(
            op.type, *(Variable(value) if isinstance(value, np.ndarray) else value for value in x), **attributes
        )
    found = apply(op.type, *(_beside(rows, value) for value in x), **attributes)
    if op.rows != "each" or found.ndim != rows.variable.ndim:
        raise Unread("of rows of sequences")
    return rows._replace(variable=found)


def _default(kind: str, name: str) -> Any:
    """Return the default that ONNX defines for an attribute, or raise if it has none."""
    from onnx import defs, helper

    schema = defs.get_schema(kind)
    if name not in schema.attributes or schema.attributes[name].required:
        raise Unread(f"without {name}")
    return helper.get_attribute_value(schema.attributes[name].default_value)


def _beside(rows: Rows, value: Any) -> Any:
    """Return `value` as an operand beside `rows`, or raise if their axes do not match."""
    if value is None:
        return None
    if isinstance(value, Rows):
        if value.axes != rows.axes:
            raise Unread("of rows whose axes are in another order")
        return value.variable
    if not isinstance(value, np.ndarray):
        raise Unread("of rows of sequences and of rows without sequences")
    while value.ndim and value.shape[0] == 1:
        value = value[0]
    if any(isinstance(axis, str) for axis in rows.axes[len(rows.axes) - value.ndim :]):
        raise Unread("of rows of sequences and of an array with their steps")
    return Variable(value)


@reads("MatMul")
def _matmul(kind: str, x: Any, y: Any) -> Any:
    if (
        not isinstance(y, np.ndarray)
        or y.ndim != 2
        or (isinstance(x, Rows) and x.place(-1) != len(_variable(x).shape) - 1)
    ):
        raise Unread("without a matrix of weights")
    return _like(x, _variable(x) @ nn.Parameter(y))


@reads("Gemm")
def _gemm(
    kind: str,
    x: Any,
    weight: Any,
    bias: Any = None,
    alpha: float = 1,
    beta: float = 1,
    transA: int = 0,
    transB: int = 0,
) -> Any:
    if isinstance(x, Rows) or transA or alpha != 1 or beta != 1 or not isinstance(weight, np.ndarray):
        raise Unread("with other factors, or without a matrix of weights")
    product = x @ nn.Parameter(weight.T if transB else weight)
    return product if bias is None else product + (nn.Parameter(bias) if isinstance(bias, np.ndarray) else bias)


@reads("Softmax", "LogSoftmax")
def _softmax(kind: str, x: Any, axis: int = -1) -> Any:
    rank = len(x.axes) if isinstance(x, Rows) else x.ndim
    if axis % rank != rank - 1 or (isinstance(x, Rows) and isinstance(x.axes[-1], str)):
        raise Unread("over another axis than the last")
    return _like(x, F.softmax(_variable(x)) if kind == "Softmax" else F.log_softmax(_variable(x)))


@reads("LayerNormalization")
def _layer_norm(
    kind: str, x: Any, weight: Any, bias: Any = None, axis: int = -1, epsilon: float = 1e-5, **_: Any
) -> Any:
    rank = len(x.axes) if isinstance(x, Rows) else x.ndim
    if axis % rank != rank - 1 or (isinstance(x, Rows) and isinstance(x.axes[-1], str)):
        raise Unread("over other axes than the last")
    if not all(value is None or isinstance(value, np.ndarray) for value in (weight, bias)):
        raise Unread("with weights that are computed")
    first, second = (None if value is None else nn.Parameter(value) for value in (weight, bias))
    return _like(x, F.layer_norm(_variable(x), first, second, eps=epsilon))


@reads("Gather")
def _gather(kind: str, x: Any, indices: Any, axis: int = 0) -> Any:
    if isinstance(x, np.ndarray):  # an embedding table
        if axis or x.ndim != 2:
            raise Unread("of an array that is no table")
        found = F.embedding(_variable(indices), nn.Parameter(x))
        if isinstance(indices, Rows):
            return Rows(found, (*indices.axes, len(indices.axes) - 2))
        return found
    if not isinstance(indices, np.ndarray) or indices.size != 1 or indices.ndim > 1:
        raise Unread("by several indices, or by some that are computed")
    place = x.place(axis) if isinstance(x, Rows) else axis % x.ndim
    if indices.ndim:
        first = int(indices[0])
        part = slice(first, first + 1 if first != -1 else None)
        return _like(x, _variable(x)[(*[slice(None)] * place, part)])
    found = _variable(x)[(*[slice(None)] * place, int(indices))]
    return Rows(found, _without(x.axes, [axis % len(x.axes)])) if isinstance(x, Rows) else found


def _without(axes: tuple[Any, ...], dropped: Sequence[int]) -> tuple[Any, ...]:
    """Return `axes` without the dropped positions, with the remaining axes of a row renumbered from 0."""
    kept = [axis for place, axis in enumerate(axes) if place not in dropped]
    order = sorted(axis for axis in kept if not isinstance(axis, str))
    return tuple(axis if isinstance(axis, str) else order.index(axis) for axis in kept)


@reads("Slice")
def _slice(kind: str, x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    found = _variable(x)
    places = range(len(starts)) if axes is None else axes
    for place, start, end, step in zip(
        places, starts, ends, np.ones_like(starts) if steps is None else steps, strict=True
    ):
        own = x.place(int(place)) if isinstance(x, Rows) else int(place) % found.ndim
        end = None if abs(int(end)) > 2**31 - 2 else int(end)
        found = found[(*[slice(None)] * own, slice(int(start), end, int(step)))]
    return _like(x, found)


@reads("Concat")
def _concat(kind: str, *x: Any, axis: int) -> Any:
    if not any(isinstance(value, Rows) for value in x):
        return F.concat([Variable(v) if isinstance(v, np.ndarray) else v for v in x], axis=axis % x[0].ndim)
    if not all(isinstance(value, Rows) and value.axes == x[0].axes for value in x):
        raise Unread("of rows of sequences and of rows without sequences")
    return _like(x[0], F.concat([value.variable for value in x], axis=x[0].place(axis)))


@reads("Transpose")
def _transpose(kind: str, x: Any, perm: Sequence[int]) -> Any:
    if isinstance(x, Rows):
        axes = tuple(x.axes[place] for place in perm)
        own = [axis for axis in axes if not isinstance(axis, str)]
        if own != sorted(own):
            raise Unread("of the axes of a row")
        return Rows(x.variable, axes)
    order, found = list(range(x.ndim)), x
    for place, axis in enumerate(perm):
        other = order.index(axis)
        if other != place:
            found = found.transpose(place, other)
            order[place], order[other] = order[other], order[place]
    return found


@reads("Squeeze")
def _squeeze(kind: str, x: Any, axes: Any = None) -> Any:
    if axes is None:
        raise Unread("of axes that it does not name")
    rank = len(x.axes) if isinstance(x, Rows) else x.ndim
    dropped = sorted((int(axis) % rank for axis in np.ravel(axes)), reverse=True)
    found = _variable(x)
    for axis in sorted((x.place(axis) if isinstance(x, Rows) else axis for axis in dropped), reverse=True):
        if found.shape[axis] not in (1, -1):
            raise Unread(f"of an axis of {found.shape[axis]}")
        found = found[(*[slice(None)] * axis, 0)]
    return Rows(found, _without(x.axes, dropped)) if isinstance(x, Rows) else found


@reads("Unsqueeze")
def _unsqueeze(kind: str, x: Any, axes: Any) -> Any:
    if isinstance(x, Rows):
        raise Unread("of rows of sequences")
    found, rank = x, x.ndim + len(axes)
    for axis in sorted(int(axis) % rank for axis in axes):
        found = found[(*[slice(None)] * axis, None)]
    return found


@reads("Reshape", "Flatten")
def _reshape(kind: str, x: Any, shape: Any = None, allowzero: int = 0, axis: int = 1) -> Any:
    if kind == "Flatten":
        if isinstance(x, Rows) or axis != 1:
            raise Unread("of rows of sequences, or from another axis than the first")
        shape = [0, -1]
    shape = [int(size) for size in shape]
    if not isinstance(x, Rows):
        return x.reshape(*_sizes(x.shape, shape))
    own = [int(size) for size in x.variable.shape[1:]]
    if len(shape) < 2 or shape[:2] != [0, 0] or x.axes[2:] != tuple(range(len(own))):
        raise Unread(f"to {tuple(shape)} of rows of sequences")
    sizes = [own[place] if size == 0 else size for place, size in enumerate(shape[2:])]
    known = int(np.prod([size for size in sizes if size != -1]))
    sizes = [int(np.prod(own)) // max(1, known) if size == -1 else size for size in sizes]
    return Rows(x.variable.reshape(-1, *sizes), (*x.axes[:2], *range(len(sizes))))


def _sizes(given: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Return the sizes of an ONNX Reshape: 0 copies a size of `given`, and -1 is computed if possible."""
    sizes = [given[place] if size == 0 else size for place, size in enumerate(shape)]
    left = [size for place, size in enumerate(given) if place >= len(shape) or shape[place] != 0 or size != -1]
    if sizes.count(-1) > 1 and -1 in shape and -1 not in left:
        known = int(np.prod([size for size in sizes if size != -1]))
        sizes[list(shape).index(-1)] = int(np.prod(left)) // max(1, known)
    if sizes.count(-1) > 1:
        raise Unread("with several sizes that only a run tells")
    return sizes


@reads("ReduceMean", "ReduceSum")
def _reduce(kind: str, x: Any, given: Any = None, axes: Any = None, keepdims: int = 1, **_: Any) -> Any:
    axes = given if axes is None else axes
    if axes is None or len(axes) != 1:
        raise Unread("over several axes")
    axis = int(np.ravel(axes)[0])
    place = x.place(axis) if isinstance(x, Rows) else axis % x.ndim
    found = (_variable(x).mean if kind == "ReduceMean" else _variable(x).sum)(axis=place, keepdims=bool(keepdims))
    if not isinstance(x, Rows):
        return found
    return Rows(found, x.axes if keepdims else _without(x.axes, [axis % len(x.axes)]))


# Recurrent layers.

_OURS = {theirs: (ours, alpha, beta) for ours, (theirs, alpha, beta) in ACTIVATIONS.items()}
_WAYS = {"forward": ["forward"], "reverse": ["backward"], "bidirectional": ["forward", "backward"]}


@reads("RNN", "GRU", "LSTM")
def _recurrent(
    kind: str, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None, c: Any = None, p: Any = None,
    layout: int = 0, direction: str = "forward", hidden_size: int = 0, **attributes: Any,
) -> list[Any]:  # fmt: skip
    first = (SEQUENCES, STEPS) if layout else (STEPS, SEQUENCES)
    if not isinstance(x, Rows) or x.axes != (*first, 0) or not all(isinstance(value, np.ndarray) for value in (w, r)):
        raise Unread("of inputs that are no sequences of rows, or whose weights are computed")
    if isinstance(lengths, np.ndarray):
        raise Unread("with lengths that are constants: these of sequences come with their LoD")
    _check_weights(kind, direction, x.variable.shape[1], w, r, b, p)
    specs = activations_of(kind, attributes, len(_WAYS[direction]))
    states = [_state(state, layout) for state in ([h, c] if kind == "LSTM" else [h])]
    outputs, ends = [], []
    for number, way in enumerate(_WAYS[direction]):
        weights = [None if value is None else value[number] for value in (w, r, b, p)]
        layer = layer_of(kind, attributes, way, specs[number], weights)
        given = [None if state is None else state[number : number + 1] for state in states]
        start = None if given == [None] * len(given) else tuple(given) if len(given) > 1 else given[0]
        y, last = layer(x.variable, start)
        outputs.append(y)
        ends.append(last if isinstance(last, tuple) else (last,))
    joined = outputs[0] if len(outputs) == 1 else F.concat(outputs, axis=1)
    rows = joined.reshape(-1, len(outputs), r.shape[2])
    axes = (SEQUENCES, STEPS, 0, 1) if layout else (STEPS, 0, SEQUENCES, 1)
    last = [
        of_state[0] if len(of_state) == 1 else F.concat(list(of_state), axis=0) for of_state in zip(*ends, strict=True)
    ]
    return [Rows(rows, axes), *(state.transpose(0, 1) if layout else state for state in last)]


def _check_weights(kind: str, direction: str, size: int, w: Any, r: Any, b: Any, p: Any) -> None:
    if direction not in _WAYS:
        raise Unread(f"with the direction {direction!r}")
    count, gates, hidden = len(_WAYS[direction]), len(ORDERS[kind]), r.shape[-1]
    size = w.shape[-1] if size == -1 else size
    shapes = (gates * hidden, size), (gates * hidden, hidden), (2 * gates * hidden,), (3 * hidden,)
    for name, value, shape in zip("WRBP", (w, r, b, p), shapes, strict=True):
        if value is None:
            continue
        if not isinstance(value, np.ndarray):
            raise Unread(f"whose {name} is computed")
        if value.shape != (count, *shape) or value.dtype != w.dtype:
            raise Unread(f"whose {name} is {value.shape} {value.dtype}, not {(count, *shape)} {w.dtype}")


def _state(state: Any, layout: int) -> Any:
    if state is None or (isinstance(state, Unknown) and state.is_zeros):
        return None
    if not isinstance(state, (Variable, np.ndarray)):
        raise Unread("of initial states that are computed from shapes")
    state = Variable(state) if isinstance(state, np.ndarray) else state
    return state.transpose(0, 1) if layout else state


def activations_of(kind: str, attributes: dict[str, Any], count: int) -> list[list[Any]]:
    """Return the activations of each direction, with the parameters alpha and beta assigned in ONNX's order."""
    named = {ours: theirs for theirs, (ours, _, _) in _OURS.items()}
    names = attributes.get("activations") or [named[name] for name in DEFAULTS[kind]] * count
    alphas, betas = list(attributes.get("activation_alpha", ())), list(attributes.get("activation_beta", ()))
    specs: list[Any] = []
    for name in names:
        if name not in _OURS:
            raise Unread(f"with the activation {name}")
        ours, alpha, beta = _OURS[name]
        numbers = [values.pop(0) for values, takes in ((alphas, alpha), (betas, beta)) if takes and values]
        specs.append((ours, *numbers) if numbers else ours)
    size = len(specs) // count
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
    """Reorder blocks of gates from ONNX's order to ours; if `coupled`, leave out the forget gate."""
    parts = np.split(array, len(ORDERS[kind]))
    ours = [parts[place] for place in ORDERS[kind]]
    if coupled:  # a coupled LSTM has no weights for f
        del ours[1]
    return np.concatenate(ours)
