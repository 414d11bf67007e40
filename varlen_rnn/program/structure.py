"""Check a description without its operators: names, types, and the order of feeds and fetches."""

import dataclasses
import typing

from varlen_rnn.errors import ProgramError, shown
from varlen_rnn.program.desc import MOST_DIMS
from varlen_rnn.program.feed import EDGES
from varlen_rnn.tape.kinds import DTYPES, Type

_MOST_SIZE = 2**63 - 1
LONGEST_NAME = 1000  # characters
A_NAME = f"a printable name of up to {LONGEST_NAME} characters, without spaces around it"
_LISTS = {Type.FEED_MINIBATCH: "feed", Type.FETCH_LIST: "fetch"}

# For each kind of variable, the field of VarType that describes it; other kinds have no such field.
_CONTENT = {
    Type.LOD_TENSOR: "lod_tensor",
    Type.SELECTED_ROWS: "selected_rows",
    Type.LOD_TENSOR_ARRAY: "tensor_array",
}


def check_fields(desc):
    """Raise unless every field of a description, and of the descriptions inside it, has its declared type."""
    for field in dataclasses.fields(desc):
        content, is_tuple = getattr(desc, field.name), typing.get_origin(field.type) is tuple
        kind = typing.get_args(field.type)[0] if is_tuple else field.type
        for entry in content if is_tuple else (content,):
            if not isinstance(entry, kind):
                expected = f"type {getattr(kind, '__name__', kind)}"
                raise ProgramError(f"{type(desc).__name__}, {field.name}", expected=expected, got=shown(entry))
            if dataclasses.is_dataclass(entry):
                check_fields(entry)


def is_name(name):
    """Return whether a text can be the name of a variable: printable, not too long, without spaces around it."""
    return isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.strip() == name and name.isprintable()


def check_structure(desc):
    """Raise unless names are valid, types are complete, and the columns of feeds and of fetches are 0, 1, 2 ..."""
    for block in desc.blocks:
        for number, var in enumerate(block.vars):
            if not is_name(var.name):
                raise ProgramError(f"block {block.idx}, variable {number}", expected=A_NAME, got=shown(var.name))
            _check_type(var)
    for kind, op_type in _LISTS.items():
        _check_edges(desc.blocks[0], kind, op_type)


def _check_type(var):
    wanted = _CONTENT.get(var.type.type)
    given = [name for name in _CONTENT.values() if getattr(var.type, name) is not None]
    if given != [wanted] * (wanted is not None):
        expected = f"{f'the field {wanted!r} alone' if wanted else 'no field'}, because it is a {var.type.type.name}"
        raise ProgramError(f"variable {var.name!r}, type", expected=expected, got=given or "nothing")
    if wanted is None:
        return
    content = getattr(var.type, wanted)
    tensor, levels = (content, 0) if wanted == "selected_rows" else (content.tensor, content.lod_level)
    if tensor.data_type not in DTYPES:
        raise ProgramError(f"variable {var.name!r}", expected="a data type of numbers", got=tensor.data_type.name)
    if len(tensor.dims) > MOST_DIMS or any(not -1 <= size <= _MOST_SIZE for size in tensor.dims):
        expected = f"at most {MOST_DIMS} sizes, each at least -1"
        raise ProgramError(f"variable {var.name!r}, dims", expected=expected, got=str(tensor.dims)[:80])
    has_rows = len(tensor.dims) > 0
    if levels < 0 or (not has_rows and (levels or wanted == "selected_rows")):
        expected = "a lod_level of at least 0, and an axis of rows if it has levels or is SELECTED_ROWS"
        raise ProgramError(f"variable {var.name!r}", expected=expected, got=f"{tensor}, lod_level {levels}")


def _check_edges(block, kind, op_type):
    """Raise unless all feeds (or fetches) use the columns 0, 1, 2 ... of one list that no other operator reads."""
    lists = {var.name for var in block.vars if var.type.type == kind}
    columns = [op.attr("col") for op in block.ops if op.type == op_type]
    if len(lists) > 1 or any(type(column) is not int for column in columns):
        got = f"{sorted(lists)}, {columns}"[:80]
        raise ProgramError(op_type, expected=f"one {kind.name} variable, and a column for each operator", got=got)
    if sorted(columns) != list(range(len(columns))):
        raise ProgramError(op_type, expected="columns 0, 1, 2 ..., each once", got=str(columns)[:80])
    for op in block.ops:
        if op.type not in EDGES and not lists.isdisjoint((*op.input_names(), *op.output_names())):
            got = f"the {kind.name} variable, which is only for {op_type} operators"
            raise ProgramError(f"operator {op.type!r}", expected="variables with values", got=got)
