"""Check the nodes of an ONNX model before they are converted, so that converters trust their arguments.

ONNX's own schema of a kind of node lists its inputs, their data types, its attributes and their defaults; `forms` has
all further rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from varlen_rnn.errors import ProgramError, shown
from varlen_rnn.onnx import forms
from varlen_rnn.onnx.forms import Wrong

_HINT = "the model is damaged; onnx.checker.check_model(model, full_check=True) finds more such errors"


class Unread(Exception):
    """Raised for a node with attributes or inputs that no operator supports; the message describes them."""


class Damaged(ProgramError):
    """The error for a model that breaks the rules of ONNX."""


def label(node: Any) -> str:
    """Return the kind and the name of a node as text; a node without a name gets the name of its first output."""
    return f"{node.op_type} {node.name or next(filter(None, node.output), '')!r}"


def damaged(node: Any, part: str, expected: object, got: object) -> Damaged:
    """Return the error for a node whose input or attribute, named `part`, breaks the rules of ONNX."""
    return Damaged(f"onnx.load, {label(node)}, {part}", expected=expected, got=got, hint=_HINT)


def formed(node: Any, values: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """Return inputs and attributes, converted by their forms (see `forms`); raise if a value does not fit its form."""
    found = dict(values)
    for name, value in values.items():
        form = forms.FORMS.get(f"{node.op_type}.{name}") or forms.FORMS.get(name)
        if value is None or form is None:
            continue
        if _variable(value) is not None:
            raise Unread(f"whose input {name} is computed")
        if hasattr(value, "lengths") or (hasattr(value, "numbers") and form is not forms.sizes):
            raise Unread(f"whose input {name} is known only in a run")
        value = getattr(value, "numbers", value)
        try:
            found[name] = form(value, rank)
        except Wrong as wrong:
            got = shown(value.tolist() if isinstance(value, np.ndarray) else value)
            raise damaged(node, name, wrong, got) from wrong
    return found


def array_of(onnx: Any, tensor: Any) -> np.ndarray:
    """Return the array of an ONNX tensor, or raise if its content contradicts its shape or data type."""
    try:
        return np.array(onnx.numpy_helper.to_array(tensor))
    except (KeyError, TypeError, ValueError) as error:
        kinds = {number: name for name, number in onnx.TensorProto.DataType.items()}
        kind = kinds.get(tensor.data_type, tensor.data_type)
        expected = f"numbers of shape {list(tensor.dims)} and type {kind}"
        raise Damaged(f"onnx.load, tensor {tensor.name!r}", expected=expected, got=shown(error)) from error


class Schemas:
    """ONNX's schemas of nodes in one opset."""

    def __init__(self, onnx: Any, opset: int) -> None:
        self.onnx, self.opset = onnx, opset

    def attributes(self, node: Any) -> dict[str, Any]:
        """Return the attributes of a node, with ONNX's defaults for missing attributes; raise if a type is wrong."""
        declared = self._schema(node).attributes
        types = self.onnx.AttributeProto.AttributeType
        defaults = [one.default_value for one in declared.values() if one.default_value.name]
        # The only default that is a list is left out: it has activations for two directions, even for one direction.
        found = {one.name: self._plain(one) for one in defaults if one.type != one.STRINGS}
        for item in node.attribute:
            if item.name not in declared:
                raise damaged(node, "attributes", _one_of(declared), item.name)
            expected = int(declared[item.name].type.value)
            if item.type != expected:
                raise damaged(node, item.name, f"the type {types.Name(expected)}", types.Name(item.type))
            try:
                found[item.name] = self._plain(item)
            except UnicodeDecodeError as error:
                raise damaged(node, item.name, "text in UTF-8", shown(error.object)) from error
        return found

    def inputs(self, node: Any, inputs: Sequence[Any]) -> dict[str, Any]:
        """Return inputs by ONNX's names in lower case, a variadic input as a list; raise if an input is invalid."""
        schema, options = self._schema(node), self.onnx.defs.OpSchema.FormalParameterOption
        if len(inputs) > schema.max_input:
            raise damaged(node, "inputs", f"at most {schema.max_input}", len(inputs))
        found: dict[str, Any] = {}
        for place, declared in enumerate(schema.inputs):
            is_variadic = declared.option == options.Variadic
            given = inputs[place:] if is_variadic else inputs[place : place + 1]
            if declared.option != options.Optional and (not given or any(value is None for value in given)):
                raise damaged(node, declared.name, "a value", "none")
            for kind in filter(None, map(self._kind, given)):
                if kind not in declared.types:
                    raise damaged(node, declared.name, _one_of(sorted(declared.types)), kind)
            found[declared.name.lower()] = list(given) if is_variadic else given[0] if given else None
        return found

    def _schema(self, node: Any) -> Any:
        try:
            return self.onnx.defs.get_schema(node.op_type, self.opset, "")
        except self.onnx.defs.SchemaError as error:
            raise Unread("") from error

    def _plain(self, item: Any) -> Any:
        """Return the value of an attribute as text, a number, a list of these, or an array."""
        value = self.onnx.helper.get_attribute_value(item)
        if item.type == item.TENSOR:
            return array_of(self.onnx, value)
        if isinstance(value, bytes):
            return value.decode()
        if item.type in (item.INTS, item.FLOATS, item.STRINGS):
            return [part.decode() if isinstance(part, bytes) else part for part in value]
        return value

    def _kind(self, value: Any) -> str | None:
        """Return ONNX's name of the data type of a constant or a Variable, or None if the type is not known."""
        variable = _variable(value)
        dtype = getattr(value if variable is None else variable, "dtype", None)
        if dtype is None:
            return None
        if dtype.kind in "OUS":
            return "tensor(string)"
        number = self.onnx.helper.np_dtype_to_tensor_dtype(dtype)
        return f"tensor({self.onnx.TensorProto.DataType.Name(number).lower()})"


def _variable(value: Any) -> Any:
    """Return the Variable of a value; None if the value is a constant, or is known only in a run."""
    value = getattr(value, "variable", value)
    return value if hasattr(value, "requires_grad") else None


def _one_of(names: Iterable[str]) -> str:
    return f"one of {', '.join(names)}" if names else "none"
