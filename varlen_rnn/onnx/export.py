"""Export a program for inference as an ONNX model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from varlen_rnn.errors import ProgramError, check_path
from varlen_rnn.interop.foreign import library
from varlen_rnn.nn import Module
from varlen_rnn.nn.recurrent.layers import Recurrent
from varlen_rnn.onnx import linear_attention  # noqa: F401 - its converters are in the table of `operators`
from varlen_rnn.onnx.graph import OPSET, Graph, Sequences, Unsaid, Value, needed
from varlen_rnn.onnx.operators import SAID, one_node
from varlen_rnn.onnx.table import node_of
from varlen_rnn.program.attrs import decode
from varlen_rnn.program.desc import of_var
from varlen_rnn.program.program import Program
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.runtime.device import moved
from varlen_rnn.runtime.place import HOST
from varlen_rnn.tape.axes import follow, with_rows, without_rows
from varlen_rnn.tape.kinds import DTYPES
from varlen_rnn.tape.operator import Op, find
from varlen_rnn.tape.run import run
from varlen_rnn.tape.variable import Variable
from varlen_rnn.whole_file import write_file

_IR_VERSION = 8  # of opset 17
_RECORDING = (
    "record a call of it: `with vr.program_guard() as program: {y} = model(vr.feed_data("
    "'x', [-1, {size}], 'float32', lod_level=1))`, then `vr.onnx.export(program, path, [y])`"
)
_LENGTHS = "_lengths"  # the name of an input with lengths of sequences ends so


def export(program: Program, path: Any, fetches: Sequence[Variable | str] | None = None) -> None:
    """Write the operators of a program that compute the fetched variables as an ONNX model for inference.

    A feed with a LoD becomes two inputs: a padded batch `(sequences, steps, ...)` with the feed's name, and the int64
    lengths of the sequences, named `<feed>_lengths`.  A fetched variable with a LoD becomes a padded batch, with zeros
    in the padding.  Other inputs and outputs are as in the program.

    Parameters
    ----------
    program : Program
        A recorded or loaded program; `Program.prune` removes operators that only training needs.
    path : str or path
        The file to write; an error leaves no half-written file.
    fetches : list of Variables or str, optional
        The variables that become the outputs of the model, with the same names; by default, `program.fetch_names`,
        which a pruned or loaded program has.

    Raises
    ------
    ProgramError
        If ONNX cannot express some operators (the error lists them), if a variable has several LoD levels, or if the
        model has 2 GiB or more.

    Examples
    --------
    >>> import tempfile, varlen_rnn as vr
    >>> lstm = vr.nn.LSTM(3, 4)
    >>> with vr.program_guard() as program:
    ...     x = vr.feed_data("x", [-1, 3], "float32", lod_level=1)
    ...     pooled = vr.sequence_pool(lstm(x)[0], "max")
    >>> export(program, tempfile.mkdtemp() + "/model.onnx", [pooled])
    """
    onnx = library("onnx")
    if not isinstance(program, Program):
        returned = "y, _" if isinstance(program, Recurrent) else "y"
        size = getattr(program, "input_size", getattr(program, "in_features", 8))
        hint = _RECORDING.format(y=returned, size=size) if isinstance(program, Module) else None
        raise ProgramError("onnx.export, program", expected="a Program", got=type(program).__name__, hint=hint)
    path = check_path(path, "onnx.export, path")
    fetches = program.fetch_names if fetches is None else fetches
    if isinstance(fetches, (list, tuple)) and not fetches:
        hint = "pass the Variables that the model returns: export(program, path, [y])"
        raise ProgramError("onnx.export, fetches", expected="a list of Variables or names", got="none", hint=hint)
    pruned = program.prune(fetches)
    writer = _Writer(onnx, pruned)
    writer.write()
    model = writer.model()
    onnx.checker.check_model(model)
    write_file(path, model.SerializeToString())


class _Writer:
    """Converts the operators of a program to ONNX nodes, one after another."""

    def __init__(self, onnx: Any, program: Program) -> None:
        block, *others = program.desc.blocks
        if others:
            expected = "a program without loops and steps, which has 1 block"
            raise ProgramError("onnx.export", expected=expected, got=f"{len(others) + 1} blocks")
        self.ops, self.vars = block.ops, {var.name: var for var in block.vars}
        self.onnx, self.graph = onnx, Graph(onnx, self.vars)
        self.values: dict[str, Value] = {}
        self.inputs, self.outputs, self.refused = [], [], []  # type: ignore[var-annotated]
        for name, tensor in program.persistables.items():
            if isinstance(tensor, LoDTensor):
                self._constant(name, moved(tensor.data, HOST))

    def _constant(self, name: str, data: np.ndarray) -> None:
        self.values[name] = Value(self.graph.constant(data), data.ndim, data.dtype, None, data)

    def write(self) -> None:
        """Convert all operators, or raise an error with the operators that ONNX cannot express."""
        for described in self.ops:
            if described.type == "feed":
                self._feed(described.output_names()[0])
            elif described.type == "fetch":
                self._fetch(described.input_names()[0])
            elif all(name in self.values for name in described.input_names() if name):
                self._operator(described)
            elif not self.refused:
                got = f"{described.type!r} before an operator that computes its input"
                raise ProgramError("onnx.export", expected="each operator after its inputs", got=got)
        if self.refused:
            expected, hint = "operators that ONNX can express", "docs/onnx.md lists the operators that can be exported"
            raise ProgramError("onnx.export", expected=expected, got=", ".join(self.refused), hint=hint)

    def _operator(self, described: Any) -> None:
        op = find(described.type)
        attrs = decode(op, described.attrs, lambda index: None)
        inputs = [self.values[name] if name else None for name in described.input_names()]
        if all(value is None or value.data is not None for value in inputs):  # all are constants: computed now
            arrays = [None if value is None else value.data for value in inputs]
            found = run(op, [None if array is None else LoDTensor.wrap(array) for array in arrays], attrs)
            for name, value in zip(described.output_names(), found, strict=True):
                if isinstance(value, LoDTensor):
                    self._constant(name, value.data)
            return
        try:
            found = self._said(op, attrs, inputs, described)
        except Unsaid as unsaid:
            text = str(unsaid)
            self.refused.append(text if text.startswith(described.type) else f"{described.type} ({text})")
            return
        for name, value in zip(described.output_names(), found if isinstance(found, list) else [found], strict=False):
            if value is not None and value.sequences is not None and not self._described(name).lod_level:
                self.refused.append(f"{described.type} (rows with a LoD become other rows, without a LoD)")
            if value is not None:
                self.values[name] = value

    def _said(self, op: Op, attrs: dict[str, Any], inputs: list[Value | None], described: Any) -> Any:
        places = sum(not place.startswith("*") for place in op.inputs)
        inputs = inputs + [None] * (places - len(inputs))
        if op.type in SAID:
            names = described.input_names()
            for n, (value, name) in enumerate(zip(inputs, names, strict=False)):
                if value is not None and self.vars[name].type.lod_tensor is not None:
                    inputs[n] = value._replace(sizes=of_var(self.vars[name]).shape)
            return SAID[op.type](self.graph, op.type, *inputs, **attrs)
        if node_of(op)[0] is None:
            raise Unsaid(op.type)
        found = one_node(self.graph, op, inputs, of_var(self.vars[described.output_names()[0]]), attrs)
        if found.sequences is not None and not self._takes_each_row(op, attrs, inputs, described.input_names()):
            raise Unsaid(f"{op.type} over the rows of sequences")
        return found

    def _takes_each_row(self, op: Op, attrs: dict[str, Any], inputs: list[Value | None], names: list[str]) -> bool:
        """Return whether an operator computes each row of sequences independently of other rows."""
        given = [without_rows(None)] * len(inputs)
        for n, (value, name) in enumerate(zip(inputs, names, strict=False)):
            if value is not None:
                spec = of_var(self.vars[name])._replace(lod_level=0)
                given[n] = without_rows(spec) if value.sequences is None else with_rows(spec)
        return follow(op, attrs, given)[0] == "each"

    def _described(self, name: str) -> Any:
        tensor = self.vars[name].type.lod_tensor
        if tensor is None or tensor.lod_level > 1:
            levels = "another kind" if tensor is None else f"{tensor.lod_level} levels"
            raise ProgramError(f"onnx.export, {name!r}", expected="a tensor of at most one level", got=levels)
        return tensor

    def _feed(self, name: str) -> None:
        described = self._described(name)
        tensor = described.tensor
        dtype = np.dtype(DTYPES[tensor.data_type])
        sizes: list[Any] = [f"{name}_{axis}" if size == -1 else size for axis, size in enumerate(tensor.dims)]
        sequences = None
        if described.lod_level:
            sizes[:1] = [f"{name}_sequences", f"{name}_steps"]
            lengths = name + _LENGTHS
            if lengths in self.vars:
                expected = f"no other variable named {lengths!r}, the name for the lengths of {name!r}"
                raise ProgramError("onnx.export", expected=expected, got="a variable of this name")
            self._declare(self.inputs, lengths, np.dtype(np.int64), sizes[:1])
            sequences = Sequences(lengths, self.graph.inside_of(lengths, name))
        self._declare(self.inputs, name, dtype, sizes)
        self.values[name] = Value(name, len(tensor.dims), dtype, sequences)

    def _fetch(self, name: str) -> None:
        if name not in self.values:
            return  # its operator could not be converted; `write` raises at the end
        if any(name == item.name for item in self.inputs):
            expected, got = "variables that operators compute", f"{name!r}, which is fed"
            raise ProgramError("onnx.export, fetches", expected=expected, got=got)
        value, described = self.values[name], self._described(name)
        if value.sequences is not None:
            value = value._replace(name=self.graph.masked(value))
        self.graph.nodes.append(self.onnx.helper.make_node("Identity", [value.name], [name]))
        sizes: list[Any] = [None if size == -1 else size for size in described.tensor.dims]
        sizes[:1] = [None, None] if value.sequences is not None else sizes[:1]
        self._declare(self.outputs, name, value.dtype, sizes)

    def _declare(self, into: list[Any], name: str, dtype: np.dtype, sizes: list[Any]) -> None:
        kind = self.onnx.helper.np_dtype_to_tensor_dtype(dtype)
        into.append(self.onnx.helper.make_tensor_value_info(name, kind, sizes))

    def model(self) -> Any:
        helper = self.onnx.helper
        self.graph.finish()
        nodes = needed(self.graph.nodes, [item.name for item in self.outputs])
        read = {name for node in nodes for name in node.input}
        arrays = {name: array for name, array in self.graph.constants.items() if name in read}
        constants = [self.onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()]
        graph = helper.make_graph(nodes, "varlen_rnn", self.inputs, self.outputs, constants)
        opsets = [helper.make_opsetid("", self.graph.opset)]
        version = _IR_VERSION if self.graph.opset == OPSET else helper.find_min_ir_version_for(opsets)
        model = helper.make_model(graph, opset_imports=opsets, ir_version=version, producer_name="varlen_rnn")
        if model.ByteSize() >= 2**31:
            raise ProgramError("onnx.export", expected="a model of less than 2 GiB", got=f"{model.ByteSize()} bytes")
        return model
