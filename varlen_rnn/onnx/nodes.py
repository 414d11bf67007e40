"""Convert ONNX nodes to operators: `table` has the nodes that one operator computes, this file converts the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from varlen_rnn import nn
from varlen_rnn.nn import functional as F
from varlen_rnn.onnx.checks import Unread, formed
from varlen_rnn.onnx.recurrent import LAYERS
from varlen_rnn.onnx.shapes import computed, shape_of, size_of, slices
from varlen_rnn.onnx.table import NEUTRAL, NODES, axis_of, constant, node_of, operator_of
from varlen_rnn.onnx.values import SEQUENCES, STEPS, Rows, Sizes, Unknown, like, rank_of, variable_of
from varlen_rnn.tape.operator import Op
from varlen_rnn.tape.variable import Variable, apply

READS: dict[str, Callable[..., Any]] = {}


def reads(*kinds: str) -> Callable[[Callable], Callable]:
    """Return a decorator that registers a converter for these kinds of nodes.

    The converter is called as `function(kind, x, **named)`.  `x` is the first input, or the list of all inputs if the
    node takes any number.  `named` has the other inputs and the attributes, by ONNX's names in lower case.  It returns
    the node's output, or a list of outputs.
    """

    def take(function: Callable) -> Callable:
        READS.update(dict.fromkeys(kinds, function))
        return function

    return take


def converted(node: Any, inputs: dict[str, Any], attributes: dict[str, Any]) -> Any:
    """Return the output of a node, or a list of outputs, given its inputs and attributes by ONNX's names."""
    kind, read, op = node.op_type, READS.get(node.op_type), operator_of(node.op_type)
    values = [one for value in inputs.values() for one in (value if isinstance(value, list) else [value])]
    named = inputs | {name.lower(): value for name, value in attributes.items()}
    if kind == "Shape":
        return shape_of(*values, **attributes)
    if kind == "Size":
        return size_of(*values)
    if kind not in LAYERS and any(isinstance(value, Unknown) for value in values):
        return computed(kind, values, named)
    if read is not None or op is not None:
        named = formed(node, named, rank_of(values[0]))
    if kind == "Split":
        named["num_outputs"] = len(node.output)
    is_reshape = kind == "Reshape" and isinstance(values[0], (Rows, Variable))
    if not is_reshape and any(isinstance(value, Sizes) for value in values):
        return computed(kind, values, named)
    if read is not None:
        return read(kind, named.pop(next(iter(inputs))), **named)
    if op is None:
        raise Unread("")
    return read_operator(op, inputs.keys(), named)


@reads("Dropout")
def _dropout(kind: str, x: Any, ratio: Any = None, training_mode: Any = None, seed: int = 0) -> Any:
    if training_mode is not None and not (isinstance(training_mode, np.ndarray) and not training_mode.any()):
        raise Unread("in training")
    return x


READS |= {
    "Identity": lambda kind, x: x,
    "Softplus": lambda kind, x: like(x, F.softplus(variable_of(x), threshold=math.inf)),
}


def read_operator(op: Op, inputs: Set[str], named: Mapping[str, Any]) -> Any:
    """Apply the operator that computes a node to the node's inputs, with its attributes as constants."""
    names = node_of(op)[1]
    attributes = set(names.values())
    operands = [named[name] for name in inputs if name not in attributes]
    x = operands[0] if isinstance(operands[0], list) else operands
    if len(x) > len(op.inputs) and not op.inputs[-1].startswith("*"):
        raise Unread(f"of more than {len(op.inputs)} inputs")
    odd = {name for name in named.keys() - inputs - attributes if named[name] not in NEUTRAL.get(name, ())}
    if odd := odd | (attributes - named.keys() - {"axes"}):
        raise Unread(f"with unsupported attributes: {', '.join(sorted(odd))}")
    attrs = {ours: constant(name, x[0], named.get(name)) for ours, name in names.items()}
    rows = next((value for value in x if isinstance(value, Rows)), None)
    if rows is None:
        return apply(op.type, *(Variable(value) if isinstance(value, np.ndarray) else value for value in x), **attrs)
    found = apply(op.type, *(_beside(rows, value) for value in x), **attrs)
    is_alike = found.ndim == rows.variable.ndim
    if op.type not in NODES and not (is_alike and op.rows == "each"):
        raise Unread("of a padded batch, whose rows it does not keep separate")
    if is_alike:
        return rows._replace(variable=found)
    return rows._replace(variable=found, axes=rows.without(named.get("axes") or [named["axis"]]))


def _beside(rows: Rows, value: Any) -> Any:
    """Return `value` as an operand beside `rows`; raise if their axes do not match."""
    if isinstance(value, Rows):
        if value.axes != rows.axes:
            raise Unread("of two padded batches whose axes are in different orders")
        return value.variable
    if not isinstance(value, np.ndarray):
        raise Unread("of a padded batch and a computed value without sequences")
    while value.ndim and value.shape[0] == 1:
        value = value[0]
    if any(isinstance(axis, str) for axis in rows.axes[len(rows.axes) - value.ndim :]):
        raise Unread("of a padded batch and a constant with an axis of its steps or sequences")
    return Variable(value)


@reads("Cast")
def _cast(kind: str, x: Any, to: int, saturate: int = 1) -> Any:
    dtype = constant("to", x, to)
    return x if variable_of(x).dtype == dtype else like(x, apply("cast", variable_of(x), dtype=dtype))


@reads("Pow")
def _pow(kind: str, x: Any, y: Any) -> Any:
    if not isinstance(y, np.ndarray) or y.size != 1 or isinstance(x, np.ndarray) or y.ndim > rank_of(x):
        raise Unread("whose exponent is no single constant")
    base, exponent = variable_of(x), float(y.reshape(()))
    return like(x, base * base if exponent == 2 else base**exponent)  # as NumPy computes a square


@reads("MatMul")
def _matmul(kind: str, x: Any, b: Any) -> Any:
    if not isinstance(b, np.ndarray) or b.ndim != 2 or (isinstance(x, Rows) and not _is_last(x, rank_of(x) - 1)):
        raise Unread("whose second input is no constant matrix for the last axis")
    return like(x, variable_of(x) @ nn.Parameter(b))


def _is_last(x: Any, axis: int) -> bool:
    """Return whether an axis is the last one of a value; in rows of sequences, also the last one of a row."""
    return axis == rank_of(x) - 1 and (not isinstance(x, Rows) or x.axes[-1] == x.variable.ndim - 2)


@reads("Gemm")
def _gemm(kind: str, x: Any, b: Any, c: Any, alpha: float, beta: float, transa: int, transb: int) -> Any:
    if isinstance(x, Rows) or transa or alpha != 1 or beta != 1 or not isinstance(b, np.ndarray):
        raise Unread("of a padded batch, with transA, alpha or beta, or without a constant matrix")
    product = x @ nn.Parameter(b.T if transb else b)
    return product if c is None else product + (nn.Parameter(c) if isinstance(c, np.ndarray) else c)


@reads("Softmax", "LogSoftmax")
def _softmax(kind: str, x: Any, axis: int) -> Any:
    if not _is_last(x, axis):
        raise Unread("over an axis other than the last")
    return like(x, F.softmax(variable_of(x)) if kind == "Softmax" else F.log_softmax(variable_of(x)))


@reads("LayerNormalization")
def _layer_norm(kind: str, x: Any, scale: Any, b: Any, axis: int, epsilon: float, stash_type: int) -> Any:
    if not _is_last(x, axis):
        raise Unread("over axes other than the last")
    if not all(value is None or isinstance(value, np.ndarray) for value in (scale, b)):
        raise Unread("with computed weights")
    first, second = (None if value is None else nn.Parameter(value) for value in (scale, b))
    return like(x, F.layer_norm(variable_of(x), first, second, eps=epsilon))


@reads("Gather")
def _gather(kind: str, x: Any, indices: Any, axis: int) -> Any:
    if isinstance(x, np.ndarray):  # an embedding table
        if axis or x.ndim != 2:
            raise Unread("of a constant that is no table of rows")
        found = F.embedding(variable_of(indices), nn.Parameter(x))
        if isinstance(indices, Rows):
            return indices._replace(variable=found, axes=(*indices.axes, len(indices.axes) - 2))
        return found
    if not isinstance(indices, np.ndarray) or indices.size != 1 or indices.ndim > 1:
        raise Unread("by several indices, or by computed indices")
    place, index = axis_of(x, axis), int(np.ravel(indices)[0])
    found = variable_of(x)[(*[slice(None)] * place, index)]
    if indices.ndim:
        return like(x, found[(*[slice(None)] * place, None)])
    return x._replace(variable=found, axes=x.without([axis])) if isinstance(x, Rows) else found


@reads("Slice")
def _slice(kind: str, x: Any, starts: Any, ends: Any, axes: Any, steps: Any) -> Any:
    found = variable_of(x)
    for axis, part in slices(starts, ends, axes, steps).items():
        is_whole = not part.start and part.step == 1 and (part.stop is None or -1 != found.shape[-1] == part.stop)
        if is_whole and (part.stop is None or axis == rank_of(x) - 1):
            continue
        place = axis_of(x, axis)
        found = found[(*[slice(None)] * place, part)]
    return like(x, found)


@reads("Concat")
def _concat(kind: str, x: list[Any], axis: int) -> Any:
    if not any(isinstance(value, Rows) for value in x):
        return F.concat([Variable(v) if isinstance(v, np.ndarray) else v for v in x], axis=axis)
    if not all(isinstance(value, Rows) and value.axes == x[0].axes for value in x):
        raise Unread("of a padded batch and a value with other axes")
    return like(x[0], F.concat([value.variable for value in x], axis=x[0].place(axis)))


@reads("Split")
def _split(kind: str, x: Any, split: Any = None, axis: int = 0, num_outputs: int = 1) -> list[Any]:
    found, place = variable_of(x), axis_of(x, axis)
    size = found.shape[place]
    if split is None:
        if size == -1:
            raise Unread("of an axis whose size is known only in a run")
        most = -(-size // num_outputs)
        split = [max(0, min(most, size - most * number)) for number in range(num_outputs)]
    if len(split) != num_outputs or min(split, default=0) < 0 or sum(split) != size:
        raise Unread(f"of an axis of size {size} into {split}")
    return [like(x, part) for part in F.split(found, split, axis=place)]


@reads("Transpose")
def _transpose(kind: str, x: Any, perm: Sequence[int] | None = None) -> Any:
    if perm is None:
        raise Unread("without the attribute perm")
    if isinstance(x, Rows):
        axes = tuple(x.axes[place] for place in perm)
        own = [axis for axis in axes if not isinstance(axis, str)]
        moved = _transposed(x.variable, [0, *(axis + 1 for axis in own)])
        return x._replace(variable=moved, axes=tuple(a if isinstance(a, str) else own.index(a) for a in axes))
    return _transposed(x, perm)


def _transposed(x: Variable, perm: Sequence[int]) -> Variable:
    order, found = list(range(x.ndim)), x
    for place, axis in enumerate(perm):
        other = order.index(axis)
        if other != place:
            found = found.transpose(place, other)
            order[place], order[other] = order[other], order[place]
    return found


@reads("Squeeze")
def _squeeze(kind: str, x: Any, axes: Any) -> Any:
    if axes is None:
        raise Unread("without axes")
    found = variable_of(x)
    for axis in sorted((axis_of(x, axis) for axis in axes), reverse=True):
        size, others = found.shape[axis], [*found.shape[:axis], *found.shape[axis + 1 :]]
        if size != 1 and (size != -1 or -1 in others):
            raise Unread(f"of an axis of size {size}" if size != -1 else "of an axis whose size is known only in a run")
        found = found[(*[slice(None)] * axis, 0)] if size == 1 else found.reshape(*others)
    return x._replace(variable=found, axes=x.without(axes)) if isinstance(x, Rows) else found


@reads("Unsqueeze")
def _unsqueeze(kind: str, x: Any, axes: Any) -> Any:
    if isinstance(x, Rows):
        return _unsqueeze_rows(x, axes)
    found = x
    for axis in sorted(axes):
        found = found[(*[slice(None)] * axis, None)]
    return found


def _unsqueeze_rows(x: Rows, added: Sequence[int]) -> Rows:
    old, found, axes, own = iter(x.axes), x.variable, [], 0
    for place in range(len(x.axes) + len(added)):
        axis = None if place in added else next(old)
        if axis is None:
            found = found[(*[slice(None)] * (own + 1), None)]
        axes.append(axis if isinstance(axis, str) else own)
        own += not isinstance(axis, str)
    return x._replace(variable=found, axes=tuple(axes))


@reads("Flatten")
def _flatten(kind: str, x: Any, axis: int) -> Any:
    if isinstance(x, Rows) or axis != 1 or not x.ndim:
        raise Unread("of a padded batch, or with an axis other than 1")
    return x.reshape(*_sizes(x.shape, [0, -1]))


@reads("Reshape")
def _reshape(kind: str, x: Any, shape: Any, allowzero: int = 0) -> Any:
    if not isinstance(x, Rows):
        if (None in shape and -1 in shape) or shape.count(None) + sum(isinstance(size, str) for size in shape) > 1:
            raise Unread("with several sizes that are known only in a run")
        shape = [size if isinstance(size, int) else -1 for size in shape]
        return x.reshape(*(shape if allowzero else _sizes(x.shape, shape)))
    return _reshape_rows(x, shape, bool(allowzero))


def _reshape_rows(x: Rows, shape: Sequence[Any], keeps_zero: bool) -> Rows:
    """Reshape rows of sequences; raise if the axes of steps and sequences change."""
    own, count = [int(size) for size in x.variable.shape[1:]], sum(isinstance(axis, str) for axis in x.axes)
    if list(shape) in ([-1], [STEPS]) and own == [1] and x.declared[SEQUENCES] == 1:
        return x._replace(variable=x.variable.reshape(-1), axes=(STEPS,))
    first, behind = shape[:count], list(shape[count:])
    text = ", ".join("?" if size is None else str(size) for size in shape)
    kept = [
        size in (axis, -1) or (size == 0 and not keeps_zero) or (isinstance(axis, str) and size == x.declared[axis])
        for size, axis in zip(first, x.axes, strict=False)
    ]
    if x.axes[count:] != tuple(range(len(own))) or kept != [True] * count:
        raise Unread(f"to ({text}), which does not keep the first axes, {' x '.join(map(str, x.axes[:count]))}")
    if None in behind and -1 not in shape:
        behind[behind.index(None)] = -1
    copied = [] if keeps_zero else own
    sizes = [copied[n] if size == 0 and n < len(copied) else size for n, size in enumerate(behind)]
    known, wanted = math.prod(size for size in sizes if isinstance(size, int) and size != -1), math.prod(own)
    if -1 in sizes:
        sizes[sizes.index(-1)] = wanted // max(1, known)
    if not all(isinstance(size, int) for size in sizes) or math.prod(sizes) != wanted:
        raise Unread(f"to ({text}), but a row has {wanted} numbers")
    return x._replace(variable=x.variable.reshape(-1, *sizes), axes=(*x.axes[:count], *range(len(sizes))))


def _sizes(given: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Return the sizes that an ONNX Reshape from `given` makes: 0 copies a size, and -1 is computed if possible."""
    if 0 in shape[len(given) :]:
        raise Unread(f"to {tuple(shape)}, in which 0 copies the size of an axis that the input lacks")
    sizes = [given[place] if size == 0 else size for place, size in enumerate(shape)]
    left = [size for place, size in enumerate(given) if place >= len(shape) or shape[place] != 0 or size != -1]
    if sizes.count(-1) > 1 and -1 in shape and -1 not in left:
        known = int(np.prod([size for size in sizes if size != -1]))
        sizes[list(shape).index(-1)] = int(np.prod(left)) // max(1, known)
    if sizes.count(-1) > 1:
        raise Unread("with several sizes that are known only in a run")
    return sizes
