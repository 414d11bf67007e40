"""Descriptions of a computation: variables, operators, blocks and programs, as plain immutable objects.

Messages and fields are as in the design documents "Variable description" and "Selected rows"; operators and blocks are
as in PaddlePaddle Fluid's `framework.proto`.  `docs/programs.md` lists every field.

Each field is declared once, with its number in `docs/program.proto`.  From these declarations,
`program.format.schema` reads and writes JSON, and `program.structure` checks the types of values.
"""

import dataclasses
import typing
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, dataclass_transform

from varlen_rnn.errors import DTypeError
from varlen_rnn.program.layout import WIDTH, columns, wrapped
from varlen_rnn.tape.kinds import DTYPES, SELECTED_ROWS, TYPES, Type
from varlen_rnn.tape.spec import TensorSpec

T = TypeVar("T")
VERSION = 1  # of the format of descriptions; a reader refuses newer versions
MOST_DIMS = 64  # the most axes of a tensor, as in NumPy


class Field(NamedTuple):
    """A field of a message, as a line of the .proto file declares it."""

    label: str
    kind: str
    name: str
    number: int
    default: object = None


MESSAGES: dict[str, tuple[Field, ...]] = {"Version": (Field("optional", "int64", "version", 1, 0),)}
_SCALARS = {str: "string", bool: "bool", int: "int32"}
KINDS: dict[type, str] = {**_SCALARS, Type: "VarType.Type"}  # {Python type: its name in the .proto file}


def field(
    number: int, *, default: Any = dataclasses.MISSING, kind: str | None = None, required: bool | None = None
) -> Any:
    """Declare a field with its number in the .proto file; `kind` is its type there, by default as in `KINDS`."""
    # Files leave out values that are the default, unless the field is `required`.
    required = default is dataclasses.MISSING if required is None else required
    return dataclasses.field(default=default, metadata={"number": number, "kind": kind, "required": required})


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def message(cls: type[T]) -> type[T]:
    """Make a message of a class whose annotations are fields: immutable, compared by value, with tuples for lists."""
    cls.__post_init__ = _freeze  # type: ignore[attr-defined]
    made = dataclasses.dataclass(frozen=True, slots=True)(cls)
    name = KINDS[made] = {"Var": "OpDesc.Var"}.get(cls.__name__, cls.__name__)
    MESSAGES[name] = tuple(sorted(map(_declared, dataclasses.fields(made)), key=lambda field: field.number))  # type: ignore
    made._repeated = tuple(field.name for field in MESSAGES[name] if field.label == "repeated")  # type: ignore
    return made


def _declared(field: dataclasses.Field) -> Field:
    types = typing.get_args(field.type) or (field.type,)  # X of tuple[X, ...] or X | None
    label = "required" if field.metadata["required"] else "optional"
    kind = field.metadata["kind"] or KINDS[types[0]]
    default = field.default if label == "optional" and kind in _SCALARS.values() else None
    is_tuple = typing.get_origin(field.type) is tuple
    return Field("repeated" if is_tuple else label, kind, field.name, field.metadata["number"], default)


def _freeze(desc: Any) -> None:
    # Lists become tuples, so that a description cannot change after it was checked.
    for name in desc._repeated:
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

    data_type: Type = field(1)
    dims: tuple[int, ...] = field(2, default=(), kind="int64")

    def __str__(self) -> str:
        return f"{DTYPES[self.data_type]} {list(self.dims)}"


@message
class LoDTensorDesc:
    """A tensor, and the number of LoD levels of its rows."""

    tensor: TensorDesc = field(1)
    lod_level: int = field(2, default=0)

    def __str__(self) -> str:
        return f"{self.tensor}, lod_level {self.lod_level}" if self.lod_level else str(self.tensor)


@message
class VarType:
    """The kind of a variable, and the description that goes with the kind.

    The members of `Type` are attributes, such as `VarType.LOD_TENSOR`.

    Attributes
    ----------
    type : Type
    selected_rows : TensorDesc, if the type is SELECTED_ROWS
        `dims[0]` is the height; the listed rows are unknown until a run.
    lod_tensor : LoDTensorDesc, if the type is LOD_TENSOR
    tensor_array : LoDTensorDesc, if the type is LOD_TENSOR_ARRAY
    """

    type: Type = field(1)
    selected_rows: TensorDesc | None = field(2, default=None)
    lod_tensor: LoDTensorDesc | None = field(3, default=None)
    tensor_array: LoDTensorDesc | None = field(4, default=None)

    if TYPE_CHECKING:  # the members of `Type`, which a loop below sets
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

    name: str = field(1)
    type: VarType = field(2)
    persistable: bool = field(3, default=False)

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
    """The names of the variables of one input or output of an operator; "" is the name of a missing variable."""

    parameter: str = field(1)
    arguments: tuple[str, ...] = field(2)


@dataclasses.dataclass(frozen=True, slots=True)
class Attr:
    """A named constant of an operator: a bool, int, float or str, a tuple of ints or strs, or the index of a block."""

    name: str
    value: object
    is_block: bool = False

    def __str__(self) -> str:
        return f"{self.name}={'block ' if self.is_block else ''}{self.value!r}"


# For each type of a constant: its number in the .proto file, and the field that holds the value.
ATTR_TYPES = {
    "FLOAT": (1, Field("optional", "double", "f", 4)),
    "STRING": (2, Field("optional", "string", "s", 5)),
    "STRINGS": (5, Field("repeated", "string", "strings", 8)),
    "BOOLEAN": (6, Field("optional", "bool", "b", 10)),
    "BLOCK": (8, Field("optional", "int32", "block_idx", 12)),
    "LONG": (9, Field("optional", "int64", "l", 13)),
    "LONGS": (11, Field("repeated", "int64", "longs", 15)),
}
KINDS[Attr] = "OpDesc.Attr"
MESSAGES["OpDesc.Attr"] = (
    Field("required", "string", "name", 1),
    Field("required", "AttrType", "type", 2),
    *(field for _, field in ATTR_TYPES.values()),
)


@message
class OpDesc:
    """An operator: its type, the names of its variables by place (an operator's input or output), and its constants.

    An operator that multiplies also has the precision of its products of float32, as `set_float32_matmul_precision` had
    it when the operator was recorded.
    """

    type: str = field(3)
    inputs: tuple[Var, ...] = field(1, default=())
    outputs: tuple[Var, ...] = field(2, default=())
    attrs: tuple[Attr, ...] = field(4, default=())
    precision: str = field(6, default="fp32")

    def input_names(self) -> list[str]:
        """Return the names of all inputs, in order; "" is the name of a missing input."""
        return [name for var in self.inputs for name in var.arguments]

    def output_names(self) -> list[str]:
        """Return the names of all outputs, in order."""
        return [name for var in self.outputs for name in var.arguments]

    def attr(self, name: str) -> Any:
        """Return the value of a constant, or None if the operator does not have it."""
        return next((attr.value for attr in self.attrs if attr.name == name), None)

    def __str__(self) -> str:
        return "\n".join(self.lines(width=float("inf")))

    def lines(self, width: float = WIDTH) -> list[str]:
        """Return the operator as lines of at most `width` characters: outputs, type, inputs by place, constants."""
        given = [var for var in self.inputs if any(var.arguments)]
        told = [f"{var.parameter}={', '.join(name or 'none' for name in var.arguments)}" for var in given]
        told += map(str, self.attrs)
        told += [] if self.precision == "fp32" else [f"precision={self.precision!r}"]
        outputs = self.output_names()
        line = f"{', '.join(outputs)} = {self.type}({'; '.join(told)})"
        if len(line) <= width or not (told and outputs):
            return [line]
        names = wrapped([*(f"{name}," for name in outputs[:-1]), outputs[-1]], "    ", width)
        items = [*(f"{item};" for item in told[:-1]), f"{told[-1]})"]
        return names + wrapped(items, "      ", width, f"    = {self.type}(")


@message
class BlockDesc:
    """Variables, and the operators that read and compute them, in the order in which they run.

    Attributes
    ----------
    idx, parent_idx : int
        Its index in the program, and the index of the block whose variables it may read; -1 for the outermost block.
    vars : tuple of VarDesc
    ops : tuple of OpDesc
    forward_block_idx : int
        The block that a block of gradients differentiates; otherwise -1.
    """

    idx: int = field(1, default=0, required=True)
    parent_idx: int = field(2, default=-1, required=True)
    vars: tuple[VarDesc, ...] = field(3, default=())
    ops: tuple[OpDesc, ...] = field(4, default=())
    forward_block_idx: int = field(5, default=-1)

    def var(self, name: str) -> VarDesc | None:
        """Return the description of a variable, or None if this block does not have it."""
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

    blocks: tuple[BlockDesc, ...] = field(1, default=(BlockDesc(),))
    version: int = field(4, default=VERSION, kind="Version")

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
