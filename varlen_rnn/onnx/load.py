"""Load a recurrent ONNX model as a program over rows, which needs no padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from varlen_rnn.errors import InputError, ProgramError, check_path
from varlen_rnn.interop.foreign import library
from varlen_rnn.onnx import layers  # noqa: F401 - its converters are in the table of `nodes`
from varlen_rnn.onnx.checks import Damaged, Schemas, Unread, array_of, label
from varlen_rnn.onnx.constants import evaluated
from varlen_rnn.onnx.graph import needed
from varlen_rnn.onnx.nested import check_layers, graphs_of, inner_layers, names_from_outside
from varlen_rnn.onnx.nodes import converted
from varlen_rnn.onnx.recurrent import LAYERS
from varlen_rnn.onnx.shapes import ALIKE
from varlen_rnn.onnx.table import operator_of
from varlen_rnn.onnx.values import SEQUENCES, STEPS, Rows, Unknown, variable_of
from varlen_rnn.ops.constants import assign
from varlen_rnn.program.guard import feed_data, program_guard
from varlen_rnn.program.program import Program
from varlen_rnn.tape.variable import Variable

_OPSETS = range(13, 24)
_REFUSED = object()
_RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
# Kinds of nodes between an input and a recurrent layer that keep the axes of steps and sequences.  A line below adds
# the kinds that operators declare by `onnx=`.
_ALONG = {"Dropout", "Cast", "MatMul", "Softmax", "LayerNormalization", "Concat"}


def load(path: Any) -> Program:
    """Load an ONNX model with RNN, GRU or LSTM as a program that computes the same numbers without padding.

    An input of padded sequences becomes a feed of rows with a LoD, with the same name; its lengths come from the LoD,
    so `sequence_lens` is no feed.  An output of padded sequences becomes rows with a LoD.  Other inputs and outputs are
    as in the model.  The result of a sequence does not depend on other sequences of the batch.

    Parameters
    ----------
    path : str or path

    Returns
    -------
    Program
        A program for inference with the `feed_names` and `fetch_names` of the model.

    Raises
    ------
    ProgramError
        If some nodes cannot be converted (the error lists them), the model has no recurrent layer, or the file is
        damaged or no ONNX model.
    """
    onnx = library("onnx")
    path = check_path(path, "onnx.load, path")
    try:
        model = onnx.load(path)
        onnx.checker.check_model(model)
    except OSError:
        raise
    except Exception as error:  # protobuf and the checker raise many kinds of errors
        raise ProgramError("onnx.load", expected="a model of ONNX", got=str(error)[:200]) from error
    opset = next((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), 0)
    if opset not in _OPSETS:
        expected = f"opset {_OPSETS[0]} to {_OPSETS[-1]}"
        raise ProgramError("onnx.load", expected=expected, got=opset, hint="onnx.version_converter converts it")
    check_layers(model)
    with program_guard() as program:
        fetches = _Reader(onnx, model, opset).read()
    return program.prune(fetches)


class _Reader:
    """Converts the nodes of an ONNX graph, one after another, while `program_guard` records the operators."""

    def __init__(self, onnx: Any, model: Any, opset: int) -> None:
        self.onnx, self.graph, self.opsets = onnx, model.graph, model.opset_import
        self.schemas = Schemas(onnx, opset)
        self.values: dict[str, Any] = {"": None}
        for tensor in self.graph.initializer:
            self.values[tensor.name] = array_of(onnx, tensor)
        self.refused: list[str] = []

    def read(self) -> list[Variable]:
        """Convert the graph; return the model's outputs, or raise an error that lists unconvertible nodes."""
        if self.graph.sparse_initializer:
            raise ProgramError("onnx.load", expected="a model without sparse constants", got="sparse_initializer")
        axes, lengths = self._sequences()
        for item in self.graph.input:
            if item.name not in self.values and item.name not in lengths:
                self.values[item.name] = self._feed(item, axes.get(item.name))
        self.values |= dict.fromkeys(lengths, Unknown(lengths="given"))
        for node in needed(self.graph.node, [item.name for item in self.graph.output]):
            self._node(node)
        if self.refused:
            expected, hint = "nodes that an operator can compute", "docs/onnx.md lists the nodes that can be loaded"
            raise ProgramError("onnx.load", expected=expected, got=", ".join(self.refused), hint=hint)
        names = [item.name for item in self.graph.output]
        variables = [self._fetch(name) for name in names]
        for place, (name, variable) in enumerate(zip(names, variables, strict=True)):
            is_copy = variable.name in self.values or any(variable is other for other in variables[:place])
            if is_copy and variable.name != name:
                variables[place] = variable = assign(variable)
            variable.value.take_name(name)
        return variables

    def _sequences(self) -> tuple[dict[str, tuple[int, int]], set[str]]:
        """Return {input: (axis of steps, axis of sequences)}, and the names of the inputs that are lengths."""
        made = {name: node for node in self.graph.node for name in node.output if name}
        given = {item.name for item in self.graph.input} - self.values.keys()
        found: dict[str, tuple[int, int]] = {}
        lengths: set[str] = set()
        waiting = []
        for node in (node for node in self.graph.node if node.op_type in LAYERS):
            batch_first = any(item.name == "layout" and item.i for item in node.attribute)
            waiting.append((node.input[0], (1, 0) if batch_first else (0, 1)))
            name = node.input[4] if len(node.input) > 4 else ""
            while name in made and made[name].op_type in ALIKE:
                name = made[name].input[0]
            lengths |= {name} & given
        while waiting:
            name, axes = waiting.pop()
            node = made.get(name)
            if name in given:
                found[name] = axes
            elif node is None:
                continue
            elif node.op_type == "Transpose":
                perm = next((list(item.ints) for item in node.attribute if item.name == "perm"), [])
                if sorted(perm) == list(range(len(perm))) and len(perm) > max(axes):  # otherwise, converting it raises
                    waiting.append((node.input[0], (perm[axes[0]], perm[axes[1]])))
            elif node.op_type == "Gather":
                waiting.append((node.input[1], axes))
            elif node.op_type in _ALONG or getattr(operator_of(node.op_type), "onnx", None):
                waiting += [(other, axes) for other in node.input if other not in self.values]
        return found, lengths

    def _feed(self, item: Any, axes: tuple[int, int] | None) -> Any:
        kind = item.type.tensor_type
        if not kind.elem_type:
            got = item.type.WhichOneof("value")
            raise ProgramError(f"onnx.load, input {item.name!r}", expected="a tensor", got=got)
        sizes = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.shape.dim]
        try:
            dtype = self.onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        except KeyError as error:
            what = f"onnx.load, input {item.name!r}"
            raise ProgramError(what, expected="a data type of ONNX", got=kind.elem_type) from error
        if axes is None or max(axes) >= len(sizes):  # it has too few axes to have sequences
            return feed_data(item.name, sizes, str(dtype))
        own = [place for place in range(len(sizes)) if place not in axes]
        named = {axes[0]: STEPS, axes[1]: SEQUENCES} | {place: number for number, place in enumerate(own)}
        declared = {STEPS: sizes[axes[0]], SEQUENCES: sizes[axes[1]]}
        rows = feed_data(item.name, [-1, *(sizes[place] for place in own)], str(dtype), lod_level=1)
        return Rows(rows, tuple(named[place] for place in range(len(sizes))), declared)

    def _node(self, node: Any) -> None:
        try:
            found = self._value(node, [self.values[name] for name in node.input])
        except Damaged:
            raise
        except (Unread, InputError) as error:  # an InputError comes from the operator
            text = f"{error}" if isinstance(error, Unread) else f"({error})"
            self.refused.append(f"{label(node)} {text}".strip())
            found = _REFUSED
        several = found if isinstance(found, list) else [found]
        several += [_REFUSED] * (len(node.output) - len(several))
        self.values |= dict(zip(node.output, several, strict=False)) | {"": None}

    def _value(self, node: Any, inputs: list[Any]) -> Any:
        if node.domain not in ("", "ai.onnx"):
            raise Unread(f"of the domain {node.domain!r}")
        if node.op_type in _RANDOM:
            raise Unread("(it draws random numbers)")
        is_constant = all(value is None or isinstance(value, np.ndarray) for value in inputs)
        if any(graphs_of(node)) and not (is_constant and not any(names_from_outside(node))):
            inside = ", ".join(inner_layers(node))
            raise Unread(f"(with a graph inside, which is not read{inside and f': {inside}'})")
        if is_constant:
            feed = {name: self.values[name] for name in node.input if name}
            return evaluated(self.onnx, node, feed, self.opsets)
        if any(value is _REFUSED for value in inputs):
            return _REFUSED
        return converted(node, self.schemas.inputs(node, inputs), self.schemas.attributes(node))

    def _fetch(self, name: str) -> Variable:
        value = self.values[name]
        variable = variable_of(value)
        if variable is _REFUSED:
            expected, got = "an output that can be loaded", "an output of a node that the loader ignores"
            raise ProgramError(f"onnx.load, output {name!r}", expected=expected, got=got)
        if not isinstance(variable, Variable):
            expected = "a value that depends on an input"
            raise ProgramError(f"onnx.load, output {name!r}", expected=expected, got="a constant")
        return variable
