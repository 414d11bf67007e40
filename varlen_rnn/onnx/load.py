"""Load a recurrent ONNX model as a program over rows, which needs no padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from varlen_rnn.errors import ProgramError, check_path, shown
from varlen_rnn.onnx.export import library
from varlen_rnn.onnx.graph import needed
from varlen_rnn.onnx.nodes import READS, SEQUENCES, STEPS, Rows, Unknown, Unread, operator_of, read_operator
from varlen_rnn.ops.constants import assign
from varlen_rnn.program.guard import feed_data, program_guard
from varlen_rnn.program.program import Program
from varlen_rnn.tape.variable import Variable

_OPSETS = range(13, 24)
_LAYERS = ("RNN", "GRU", "LSTM")
_REFUSED = object()
_RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
_OF_ZEROS = ("Gather", "Unsqueeze", "Squeeze", "Cast", "Slice", "Identity")
_OF_SHAPES = (
    "Identity",
    "Gather",
    "Unsqueeze",
    "Squeeze",
    "Concat",
    "Cast",
    "Slice",
    "Mul",
    "Add",
    "Sub",
    "Div",
    "Equal",
    "Where",
)
# Nodes that do not change the axes of steps and sequences, on the path from an input to a recurrent layer.
_ALONG = {"Dropout", "Cast", "MatMul", "Softmax", "LayerNormalization", "Concat"}  # and all `onnx=` nodes


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
        If some nodes cannot be converted, which the error lists, the model has no recurrent layer, or the file is
        damaged or no ONNX model.
    """
    onnx = library()
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
        raise ProgramError("onnx.load", expected=expected, got=opset, hint="onnx.version_converter makes another")
    with program_guard() as program:
        fetches = _Reader(onnx, model).read()
    return program.prune(fetches)


class _Reader:
    """Converts the nodes of an ONNX graph, one after another, while `program_guard` records the operators."""

    def __init__(self, onnx: Any, model: Any) -> None:
        self.onnx, self.graph, self.opsets = onnx, model.graph, model.opset_import
        self.values: dict[str, Any] = {"": None}
        for tensor in self.graph.initializer:
            self.values[tensor.name] = self._array(tensor)
        self.refused: list[str] = []

    def _array(self, tensor: Any) -> np.ndarray:
        """Return the array of an ONNX tensor, or raise if its content contradicts its shape or data type."""
        try:
            return np.array(self.onnx.numpy_helper.to_array(tensor))
        except (KeyError, TypeError, ValueError) as error:
            kinds = {number: name for name, number in self.onnx.TensorProto.DataType.items()}
            kind = kinds.get(tensor.data_type, tensor.data_type)
            expected = f"numbers of shape {list(tensor.dims)} and type {kind}"
            raise ProgramError(f"onnx.load, tensor {tensor.name!r}", expected=expected, got=shown(error)) from error

    def read(self) -> list[Variable]:
        """Convert the graph; return the model's outputs, or raise an error that lists unconvertible nodes."""
        if self.graph.sparse_initializer:
            raise ProgramError("onnx.load", expected="dense constants", got="sparse_initializer")
        axes, lengths = self._sequences()
        for item in self.graph.input:
            if item.name not in self.values and item.name not in lengths:
                self.values[item.name] = self._feed(item, axes.get(item.name))
        self.values |= dict.fromkeys(lengths, Unknown())
        for node in needed(self.graph.node, [item.name for item in self.graph.output]):
            self._node(node)
        if self.refused:
            hint = "docs/onnx.md lists what can be read"
            raise ProgramError("onnx.load", expected="nodes of our operators", got=", ".join(self.refused), hint=hint)
        names = [item.name for item in self.graph.output]
        variables = [self._fetch(name) for name in names]
        for place, (name, variable) in enumerate(zip(names, variables, strict=True)):
            if variable.name != name and (
                variable.name in self.values or any(variable is other for other in variables[:place])
            ):
                variables[place] = variable = assign(variable)  # a copy of an input or output
            variable.value.take_name(name)
        return variables

    def _sequences(self) -> tuple[dict[str, tuple[int, int]], set[str]]:
        """Return, by input, the axes of steps and of sequences, and the names of the inputs that are lengths."""
        made = {name: node for node in self.graph.node for name in node.output if name}
        given = {item.name for item in self.graph.input} - self.values.keys()
        layers = [node for node in self.graph.node if node.op_type in _LAYERS]
        if not layers:
            expected, hint = "a model with RNN, GRU or LSTM", "onnxruntime runs any other as it is"
            raise ProgramError("onnx.load", expected=expected, got="none", hint=hint)
        found: dict[str, tuple[int, int]] = {}
        lengths: set[str] = set()
        waiting = []
        for node in layers:
            batch_first = any(item.name == "layout" and item.i for item in node.attribute)
            waiting.append((node.input[0], (1, 0) if batch_first else (0, 1)))
            name = node.input[4] if len(node.input) > 4 else ""
            while name in made and made[name].op_type in ("Cast", "Identity"):
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
                perm = next((item.ints for item in node.attribute if item.name == "perm"), None)
                if perm is not None:  # converting the node raises if it has no perm
                    waiting.append((node.input[0], (perm[axes[0]], perm[axes[1]])))
            elif node.op_type == "Gather":
                waiting.append((node.input[1], axes))
            elif node.op_type in _ALONG or operator_of(node.op_type) is not None:
                waiting += [(other, axes) for other in node.input if other not in self.values]
        return found, lengths

    def _feed(self, item: Any, axes: tuple[int, int] | None) -> Any:
        kind = item.type.tensor_type
        if not kind.elem_type:
            raise ProgramError(
                f"onnx.load, input {item.name!r}", expected="a tensor", got=item.type.WhichOneof("value")
            )
        sizes = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in kind.shape.dim]
        try:
            dtype = self.onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        except KeyError as error:
            expected, got = "a data type of ONNX", kind.elem_type
            raise ProgramError(f"onnx.load, input {item.name!r}", expected=expected, got=got) from error
        if axes is None or max(axes) >= len(sizes):  # too few axes for sequences
            return feed_data(item.name, sizes, str(dtype))
        own = [size for place, size in enumerate(sizes) if place not in axes]
        named: list[Any] = [None] * len(sizes)
        named[axes[0]], named[axes[1]] = STEPS, SEQUENCES
        numbers = iter(range(len(own)))
        named = [next(numbers) if name is None else name for name in named]
        return Rows(feed_data(item.name, [-1, *own], str(dtype), lod_level=1), tuple(named))

    def _node(self, node: Any) -> None:
        inputs = [self.values[name] for name in node.input]
        attributes = {item.name: self._attribute(item) for item in node.attribute}
        try:
            found = self._value(node, inputs, attributes)
        except Unread as unread:
            self.refused.append(f"{node.op_type} {unread}".strip())
            found = _REFUSED
        several = found if isinstance(found, list) else [found]
        several += [_REFUSED] * (len(node.output) - len(several))
        for name, value in zip(node.output, several, strict=False):
            self.values[name] = value
        self.values[""] = None

    def _attribute(self, item: Any) -> Any:
        value = self.onnx.helper.get_attribute_value(item)
        if isinstance(value, bytes):
            return value.decode()
        return (
            [part.decode() if isinstance(part, bytes) else part for part in value] if isinstance(value, list) else value
        )

    def _value(self, node: Any, inputs: list[Any], attributes: dict[str, Any]) -> Any:
        kind = node.op_type
        if node.domain not in ("", "ai.onnx"):
            raise Unread(f"of {node.domain}")
        if kind in _RANDOM:
            raise Unread("(random numbers)")
        if all(value is None or isinstance(value, np.ndarray) for value in inputs):
            return self._constant(node)
        if kind == "Shape":
            return Unknown()
        if any(value is _REFUSED for value in inputs):
            return _REFUSED
        if any(isinstance(value, Unknown) for value in inputs) and kind not in _LAYERS:
            if kind == "ConstantOfShape":
                value = attributes.get("value")
                return Unknown(value is None or not np.any(self._array(value)))
            if kind == "Expand":
                return Unknown(isinstance(inputs[0], np.ndarray) and not inputs[0].any())
            if kind in _OF_SHAPES:
                return Unknown(isinstance(inputs[0], Unknown) and inputs[0].is_zeros and kind in _OF_ZEROS)
            raise Unread("of a shape or of lengths that only a run tells")
        read, op = READS.get(kind), operator_of(kind)
        try:
            if read is not None:
                return read(kind, *inputs, **attributes)
            if op is not None:
                return read_operator(op, *inputs, **attributes)
            raise Unread("")
        except TypeError as error:  # the converter does not know an attribute
            raise Unread(f"({error})") from error

    def _constant(self, node: Any) -> list[np.ndarray]:
        """Return the results of a node on constants, computed by ONNX's reference evaluator."""
        from onnx.reference import ReferenceEvaluator

        helper = self.onnx.helper
        described = [helper.make_tensor_value_info(name, 0, None) for name in dict.fromkeys(node.input) if name]
        outputs = [helper.make_tensor_value_info(name, 0, None) for name in node.output if name]
        model = helper.make_model(helper.make_graph([node], "", described, outputs), opset_imports=self.opsets)
        feed = {name: self.values[name] for name in node.input if name}
        try:
            return [np.asarray(value) for value in ReferenceEvaluator(model).run(None, feed)]
        except Exception as error:  # the evaluator may raise any kind of error
            raise Unread(f"of constants ({error})") from error

    def _fetch(self, name: str) -> Variable:
        value = self.values[name]
        variable = value.variable if isinstance(value, Rows) else value
        if variable is _REFUSED:
            raise ProgramError(f"onnx.load, output {name!r}", expected="an output that is read", got="one that is not")
        if not isinstance(variable, Variable):
            raise ProgramError(
                f"onnx.load, output {name!r}", expected="a value that depends on an input", got="a constant"
            )
        return variable
