"""Descriptions of a computation: variables, operators, blocks and programs, as plain frozen values.

Messages and fields are as in the design documents "Variable description" and "Selected rows"; operators and blocks are
as in PaddlePaddle Fluid's `framework.proto`.  `docs/programs.md` lists every field.

Each field is declared once, with its label and number in `docs/program.proto`.  `program.format.schema` reads and
writes JSON by these declarations, and `program.structure` checks the types of values by them.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

from varlen_rnn.errors import DTypeError
from varlen_rnn.program.layout import WIDTH, columns, wrapped
from varlen_rnn.tape.kinds import DTYPES, SELECTED_ROWS, TYPES, Type
from varlen_rnn.tape.spec import TensorSpec

T = TypeVar("T")
VERSION = 1  # of the format of descriptions; a reader refuses newer versions
MOST_DIMS = 64  # the most axes of a tensor, as in NumPy


def required(number: int, *, default: Any = dataclasses.MISSING) -> Any:
    """Declare a field that every file has; `default` is used only by the constructor in Python."""
    return dataclasses.field(default=default, metadata={"label": "required", "number": number})


def optional(number: int, *, default: Any, kind: str | None = None) -> Any:
    """Declare a field that a file leaves out if it has the default."""
    return dataclasses.field(default=default, metadata={"label": "optional", "number": number, "kind": kind})


def repeated(number: int, *, default: Any = dataclasses.MISSING, kind: str | None = None) -> Any:
    """Declare a tuple, which a file leaves out if it is empty."""
    return dataclasses.field(default=default, metadata={"label": "repeated", "number": number, "kind": kind})


@dataclass_transform(frozen_default=True, field_specifiers=(required, optional, repeated))
def message(cls: type[T]) -> type[T]:
    """Make a class whose annotations are fields: frozen, compared by value."""
    return dataclasses.dataclass(frozen=True, slots=True)(cls)


def _freeze(desc: object, *names: str) -> None:
    """Turn lists into tuples, because a description must not change after it was checked."""
    for name in names:
        given = getattr(desc, name)
        if type(given) is not tuple:
            if not isinstance(given, (list, tuple)):
                raise DTypeError(f"{type(desc).__name__}, {name}", expected="a tuple", got=type(given).__name__)
            object.__setattr__(desc, name, tuple(given))


@message
class TensorDesc:
    """A data type and sizes; -1 is a size that is unknown until a run.

    Examples
    --------
    >>> print(TensorDesc(Type.FP32, (-1, 640, 480)))
    float32 [-1, 640, 480]
    """

    data_type: Type = required(1)
    dims: tuple[int, ...] = repeated(2, default=(), kind="int64")

    def __post_init__(self) -> None:
        _freeze(self, "dims")

    def __str__(self) -> str:
        return f"{DTYPES[self.data_type]} {list(self.dims)}"


@message
class LoDTensorDesc:
    """A tensor, and how many levels of detail its rows have."""

    tensor: TensorDesc = required(1)
    lod_level: int = optional(2, default=0)

    def __str__(self) -> str:
        return f"{self.tensor}, lod_level {self.lod_level}" if self.lod_level else str(self.tensor)


@message
class VarType:
    """The kind of a variable, and the description that goes with the kind.

    `VarType.LOD_TENSOR` and the others are the members of `Type`.

    Attributes
    ----------
    type : Type
    selected_rows : TensorDesc, of SELECTED_ROWS
        `dims[0]` is the height; the listed rows are unknown until a run.
    lod_tensor : LoDTensorDesc, of LOD_TENSOR and FEED_MINIBATCH
    tensor_array : LoDTensorDesc, of LOD_TENSOR_ARRAY
    """

    type: Type = required(1)
    selected_rows: TensorDesc | None = optional(2, default=None)
    lod_tensor: LoDTensorDesc | None = optional(3, default=None)
    tensor_array: LoDTensorDesc | None = optional(4, default=None)

    if TYPE_CHECKING:  # the members of `Type`, which are set below
        BOOL = INT16 = INT32 = INT64 = FP16 = FP32 = FP64 = UINT8 = INT8 = Type.BOOL
        LOD_TENSOR = SELECTED_ROWS = FEED_MINIBATCH = FETCH_LIST = STEP_SCOPES = LOD_RANK_TABLE = Type.LOD_TENSOR
        LOD_TENSOR_ARRAY = PLACE_LIST = READER = CHANNEL = Type.LOD_TENSOR_ARRAY

    def __str__(self) -> str:
        content = self.selected_rows or self.lod_tensor or self.tensor_array
        return f"{self.type.name} {content}" if content else self.type.name


VarType.Type = Type  # type: ignore[attr-defined]  # declared in the class, it would hide the type of a field
for _member in Type:
    setattr(VarType, _member.name, _member)


@message
class VarDesc:
    """A variable: its name, its type, and whether it outlives a run, as parameters do.

    Examples
    --------
    >>> tensor = TensorDesc(VarType.FP32, (-1, 64))
    >>> print(VarDesc("x", VarType(VarType.LOD_TENSOR, lod_tensor=LoDTensorDesc(tensor, lod_level=1))))
    x: LOD_TENSOR float32 [-1, 64], lod_level 1
    """

    name: str = required(1)
    type: VarType = required(2)
    persistable: bool = optional(3, default=False)

    def cells(self) -> tuple[str, str, str, str]:
        """Return the cells of a table: the name, the type, the levels of detail, whether it is persistable."""
        tensor = self.type.lod_tensor
        kind = str(self.type) if tensor is None else str(tensor.tensor)
        levels = f"lod_level {tensor.lod_level}" if tensor is not None and tensor.lod_level else ""
        return self.name, kind, levels, "persistable" if self.persistable else ""

    def __str__(self) -> str:
        return f"{self.name}: {self.type}{', persistable' if self.persistable else ''}"


@message
class Var:
    """The variables of one named input or output of an operator; an empty name is a missing variable."""

    parameter: str = required(1)
    arguments: tuple[str, ...] = repeated(2)

    def __post_init__(self) -> None:
        _freeze(self, "arguments")


@dataclasses.dataclass(frozen=True, slots=True)
class Attr:
    """A named constant of an operator: bool, int, float, str, a tuple of ints or strs, or the index of a block.

    Attributes
    ----------
    name : str
    value : bool, int, float, str, tuple of int or tuple of str
    is_block : bool
        Whether `value` is the index of a block.
    """

    name: str
    value: object
    is_block: bool = False

    def __str__(self) -> str:
        return f"{self.name}={'block ' if self.is_block else ''}{self.value!r}"


@message
class OpDesc:
    """An operator: its type, its variables by place, and its constants."""

    type: str = required(3)
    inputs: tuple[Var, ...] = repeated(1, default=())
    outputs: tuple[Var, ...] = repeated(2, default=())
    attrs: tuple[Attr, ...] = repeated(4, default=())

    def __post_init__(self) -> None:
        _freeze(self, "inputs", "outputs", "attrs")

    def input_names(self) -> list[str]:
        """Return the names of all inputs, in order; an empty one is missing."""
        return [name for var in self.inputs for name in var.arguments]

    def output_names(self) -> list[str]:
        """Return the names of all outputs, in order."""
        return [name for var in self.outputs for name in var.arguments]

    def attr(self, name: str) -> Any:
        """Return the value of a constant, or None."""
        return next((attr.value for attr in self.attrs if attr.name == name), None)

    def __str__(self) -> str:
        return "\n".join(self.lines(width=float("inf")))

    def lines(self, width: float = WIDTH) -> list[str]:
        """Return the operator as text in lines of `width`: outputs, type, inputs by place, constants."""
        given = [var for var in self.inputs if any(var.arguments)]
        told = [f"{var.parameter}={', '.join(name or 'none' for name in var.arguments)}" for var in given]
        told += map(str, self.attrs)
        outputs = self.output_names()
        line = f"{', '.join(outputs)} = {self.type}({'; '.join(told)})"
        if len(line) <= width or not (told and outputs):
            return [line]
        names = wrapped([*(f"{name}," for name in outputs[:-1]), outputs[-1]], "    ", width)
        items = [*(f"{item};" for item in told[:-1]), f"{told[-1]})"]
        return names + wrapped(items, "      ", width, f"    = {self.type}(")


@message
class BlockDesc:
    """Variables and the operators over them, in the order of their run.

    Attributes
    ----------
    idx, parent_idx : int
        Its index in the program, and the index of the block whose variables it may read; -1 for the outermost block.
    vars : tuple of VarDesc
    ops : tuple of OpDesc
    forward_block_idx : int
        The block that a block of gradients differentiates; otherwise -1.
    """

    idx: int = required(1, default=0)
    parent_idx: int = required(2, default=-1)
    vars: tuple[VarDesc, ...] = repeated(3, default=())
    ops: tuple[OpDesc, ...] = repeated(4, default=())
    forward_block_idx: int = optional(5, default=-1)

    def __post_init__(self) -> None:
        _freeze(self, "vars", "ops")

    def var(self, name: str) -> VarDesc | None:
        """Return the description of a variable of this block, or None."""
        return next((var for var in self.vars if var.name == name), None)

    def __str__(self) -> str:
        head = f"block {self.idx}" + (f" in block {self.parent_idx}" if self.parent_idx >= 0 else "")
        if self.forward_block_idx >= 0:
            head += f", gradient of block {self.forward_block_idx}"
        ops = [line for op in self.ops for line in op.lines()]
        return "\n".join([head, *(f"  {line}" for line in columns([var.cells() for var in self.vars]) + ops)])


@message
class ProgramDesc:
    """A whole computation: blocks, of which the first is the outermost."""

    blocks: tuple[BlockDesc, ...] = repeated(1, default=(BlockDesc(),))
    version: int = optional(4, default=VERSION, kind="Version")

    def __post_init__(self) -> None:
        _freeze(self, "blocks")

    def __str__(self) -> str:
        return "\n".join([f"program, version {self.version}", *map(str, self.blocks)])


def to_var(name: str, spec: TensorSpec, persistable: bool = False) -> VarDesc:
    """Return the description of a variable with a spec."""
    if spec.dtype is None:
        return VarDesc(name, VarType(spec.kind), persistable)
    if spec.dtype not in TYPES:
        raise DTypeError(f"variable {name!r}", expected=f"one of {[str(d) for d in TYPES]}", got=spec.dtype)
    tensor = TensorDesc(TYPES[spec.dtype], tuple(map(int, spec.shape)))
    if spec.kind == SELECTED_ROWS:
        return VarDesc(name, VarType(SELECTED_ROWS, selected_rows=tensor), persistable)
    return VarDesc(name, VarType(spec.kind, lod_tensor=LoDTensorDesc(tensor, spec.lod_level)), persistable)


def of_var(var: VarDesc) -> TensorSpec:
    """Return the spec of a described variable."""
    if var.type.selected_rows is not None:
        tensor = var.type.selected_rows
        return TensorSpec(tensor.dims, DTYPES[tensor.data_type], 0, SELECTED_ROWS)
    if var.type.lod_tensor is not None:
        tensor = var.type.lod_tensor.tensor
        return TensorSpec(tensor.dims, DTYPES[tensor.data_type], var.type.lod_tensor.lod_level, var.type.type)
    return TensorSpec((), None, 0, var.type.type)
