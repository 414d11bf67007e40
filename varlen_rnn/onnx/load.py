"""Load an ONNX model as a program over rows, which needs no padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from varlen_rnn.errors import InputError, ProgramError, check_path
from varlen_rnn.interop.foreign import library
from varlen_rnn.onnx import convolutions, layers, linear_attention  # noqa: F401 - their converters are in the table of `nodes`
from varlen_rnn.onnx.checks import Damaged, Schemas, Unread, array_of, damaged, label
from varlen_rnn.onnx.constants import evaluated
from varlen_rnn.onnx.fixed import Fixed, checked_fixed, declared_sizes
from varlen_rnn.onnx.graph import needed
from varlen_rnn.onnx.nested import graphs_of, inner_layers, names_from_outside
from varlen_rnn.onnx.nodes import converted
from varlen_rnn.onnx.sequences import Axes, constant_nodes, found_sequences
from varlen_rnn.onnx.values import SEQUENCES, STEPS, Rows, Unknown, variable_of
from varlen_rnn.ops.constants import assign
from varlen_rnn.program.guard import feed_data, program_guard
from varlen_rnn.program.program import Program
from varlen_rnn.tape.variable import Variable

_OPSETS = range(13, 29)
_REFUSED = object()
_RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")


def load(path: Any, fixed: Mapping[str, Any] | None = None) -> Program:
    """Load an ONNX model as a program that computes the same numbers without padding.

    An input of padded sequences becomes a feed of rows with a LoD, with the same name; its lengths come from the LoD,
    so `sequence_lens` is no feed.  An output of padded sequences becomes rows with a LoD.  Other inputs and outputs are
    as in the model.  The result of a sequence does not depend on other sequences of the batch.

    Parameters
    ----------
    path : str or path
    fixed : dict of str to value or shape, optional
        For some inputs, a value or a tuple of sizes: `{"sr": 16000, "input": (None, 576)}`.  An input with a value is
        no feed.  A size of None is known only in a run.  They decide every `If` of the model.

    Returns
    -------
    Program
        A program for inference with the `feed_names` and `fetch_names` of the model.

    Raises
    ------
    ProgramError
        If some nodes cannot be converted (the error lists them), an `If` stays undecided, `fixed` names no input, or
        the file is damaged or no ONNX model.
    DTypeError, ShapeError
        If a value or a shape in `fixed` does not fit its input.
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
    given, nodes = checked_fixed(onnx, model.graph, fixed), list(model.graph.node)
    if any(node.op_type == "If" for node in nodes):
        with program_guard():  # decides every If, so that the second reading finds sequences in the branches
            nodes = _Reader(onnx, model, opset, given, nodes=[]).decided()
    with program_guard() as program:
        fetches = _Reader(onnx, model, opset, given, nodes).read()
    return program.prune(fetches)


class _Reader:
    """Converts the nodes of an ONNX graph, one after another, while `program_guard` records the operators."""

    def __init__(self, onnx: Any, model: Any, opset: int, fixed: Fixed, nodes: list[Any]) -> None:
        """Begin to read a model; `nodes` has all nodes that run, also the nodes of the branches that are taken."""
        self.onnx, self.graph, self.opsets, self.fixed = onnx, model.graph, model.opset_import, fixed
        self.schemas = Schemas(onnx, opset)
        self.values: dict[str, Any] = {"": None}
        for tensor in self.graph.initializer:
            self.values[tensor.name] = array_of(onnx, tensor)
        self.values |= {name: value for name, value in fixed.items() if isinstance(value, np.ndarray)}
        self.refused: list[str] = []
        self.taken: list[Any] = []  # the nodes that were converted, each If as copies of its branch's outputs
        given = {item.name for item in self.graph.input} - self.values.keys()
        constants = self.values | constant_nodes(onnx, nodes)
        self.axes, self.lengths = found_sequences(nodes, given, constants)

    def decided(self) -> list[Any]:
        """Return the nodes of the graph, with the nodes of the branches that are taken in place of each If."""
        self._convert()
        return self.taken

    def _convert(self) -> None:
        if self.graph.sparse_initializer:
            raise ProgramError("onnx.load", expected="a model without sparse constants", got="sparse_initializer")
        for item in self.graph.input:
            if item.name not in self.values and item.name not in self.lengths:
                self.values[item.name] = self._feed(item, self.axes.get(item.name))
        self.values |= dict.fromkeys(self.lengths, Unknown(lengths="given"))
        self._graph(self.graph)

    def _graph(self, graph: Any) -> None:
        for node in needed(graph.node, [item.name for item in graph.output]):
            self._node(node)

    def read(self) -> list[Variable]:
        """Convert the graph; return the model's outputs, or raise an error that lists unconvertible nodes."""
        self._convert()
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

    def _feed(self, item: Any, axes: Axes | None) -> Any:
        kind = item.type.tensor_type
        if not kind.elem_type:
            got = item.type.WhichOneof("value")
            raise ProgramError(f"onnx.load, input {item.name!r}", expected="a tensor", got=got)
        sizes = list(self.fixed.get(item.name, declared_sizes(item)))
        try:
            dtype = self.onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        except KeyError as error:
            what = f"onnx.load, input {item.name!r}"
            raise ProgramError(what, expected="a data type of ONNX", got=kind.elem_type) from error
        if axes is None or max(axes[0], axes[1] or 0) >= len(sizes):  # it has too few axes to have sequences
            return feed_data(item.name, sizes, str(dtype))
        steps, sequences = axes
        own = [place for place in range(len(sizes)) if place not in axes]
        named: dict[Any, Any] = {sequences: SEQUENCES, steps: STEPS} | {place: n for n, place in enumerate(own)}
        declared = {STEPS: sizes[steps], SEQUENCES: 1 if sequences is None else sizes[sequences]}
        rows = feed_data(item.name, [-1, *(sizes[place] for place in own)], str(dtype), lod_level=1)
        return Rows(rows, tuple(named[place] for place in range(len(sizes))), declared)

    def _node(self, node: Any) -> None:
        try:
            if node.op_type == "If" and node.domain in ("", "ai.onnx"):
                found = self._chosen(node)
            else:
                self.taken.append(node)
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

    def _chosen(self, node: Any) -> list[Any]:
        """Convert the branch that an If takes; return its outputs."""
        condition = self.values[node.input[0]] if node.input else None
        if condition is _REFUSED:
            return [_REFUSED] * len(node.output)
        if not isinstance(condition, np.ndarray):
            inside = ", ".join(inner_layers(node))
            hint = "`fixed` gives inputs the values or shapes that decide it"
            raise Unread(f"(its condition is known only in a run: {hint}{inside and f'; it has {inside}'})")
        if condition.size != 1 or condition.dtype != bool:
            raise damaged(node, "cond", "one bool", f"{condition.dtype}, shape {list(condition.shape)}")
        branch = dict(graphs_of(node)).get("then_branch" if condition.all() else "else_branch")
        if branch is None or len(branch.output) != len(node.output) or branch.sparse_initializer:
            raise Unread("without a branch of as many outputs, or with sparse constants")
        self.values |= {tensor.name: array_of(self.onnx, tensor) for tensor in branch.initializer}
        self._graph(branch)
        for inner, outer in zip(branch.output, node.output, strict=True):
            self.taken.append(self.onnx.helper.make_node("Identity", [inner.name], [outer]))
        return [self.values[item.name] for item in branch.output]

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
