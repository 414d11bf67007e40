"""Descriptions of programs as JSON text: the messages of `docs/program.proto` in protobuf's JSON mapping.

The reader is strict because a file is untrusted input: anything that is not exactly as described raises a
`ProgramError` that names the place, such as `blocks[0].ops[3].attrs[1].f`.
"""

import dataclasses
import json
import math
import re
import typing
from typing import NamedTuple

from varlen_rnn.errors import ProgramError, shown
from varlen_rnn.program.desc import (
    VERSION,
    Attr,
    BlockDesc,
    LoDTensorDesc,
    OpDesc,
    ProgramDesc,
    TensorDesc,
    Var,
    VarDesc,
    VarType,
)
from varlen_rnn.tape.kinds import Type

MOST_CHARACTERS = 2**26  # the longest description that is read


class Field(NamedTuple):
    """A field of a message, as a line of the .proto has it."""

    label: str
    kind: str
    name: str
    number: int
    default: object = None


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
ENUMS = {
    "VarType.Type": {member.name: member.value for member in Type},
    "AttrType": {name: number for name, (number, _) in ATTR_TYPES.items()},
}
_PLAIN: list[type] = [TensorDesc, LoDTensorDesc, VarType, VarDesc, OpDesc, BlockDesc, ProgramDesc]
CLASSES = {cls.__name__: cls for cls in _PLAIN} | {"OpDesc.Var": Var}
_SCALARS = {str: "string", bool: "bool", int: "int32"}
_KINDS = _SCALARS | {Type: "VarType.Type", Attr: "OpDesc.Attr"} | {cls: name for name, cls in CLASSES.items()}


def _fields_of_class(cls: type) -> tuple[Field, ...]:
    """Return the fields of a message in the order of their numbers, from the declarations of its class."""
    types, found = typing.get_type_hints(cls), []
    for field in dataclasses.fields(cls):
        label, number = field.metadata["label"], field.metadata["number"]
        declared = typing.get_args(types[field.name]) or (types[field.name],)  # X of tuple[X, ...] or X | None
        kind = field.metadata.get("kind") or _KINDS[declared[0]]
        default = field.default if label == "optional" and kind in _SCALARS.values() else None
        found.append(Field(label, kind, field.name, number, default))
    return tuple(sorted(found, key=lambda field: field.number))


MESSAGES = {name: _fields_of_class(cls) for name, cls in CLASSES.items()} | {
    "Version": (Field("optional", "int64", "version", 1, 0),),
    "OpDesc.Attr": (
        Field("required", "string", "name", 1),
        Field("required", "AttrType", "type", 2),
        *(field for _, field in ATTR_TYPES.values()),
    ),
}


# Writing.  Empty lists, and values equal to the default of their field, are left out.


def to_json(desc):
    """Return a description as JSON text.

    Examples
    --------
    >>> from varlen_rnn.program.desc import ProgramDesc
    >>> to_json(ProgramDesc())
    '{"blocks":[{"idx":0,"parent_idx":-1}],"version":{"version":1}}'
    """
    return json.dumps(_to_plain("ProgramDesc", desc), separators=(",", ":"), allow_nan=False)


def _to_plain(kind, value):
    if kind in MESSAGES:
        fields = _FIELDS_OF.get(kind, _own_fields)(value)
        pairs = [(field, fields[field.name]) for field in MESSAGES[kind] if fields.get(field.name) is not None]
        return {field.name: _field_to_plain(field, value) for field, value in pairs if not _is_left_out(field, value)}
    if kind in ENUMS:
        return value if isinstance(value, str) else Type(value).name
    if kind == "double" and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    # A string, because other readers of JSON hold numbers as doubles.
    return str(value) if kind == "int64" and abs(value) > 2**53 else value


def _field_to_plain(field, value):
    if field.label == "repeated":
        return [_to_plain(field.kind, item) for item in value]
    return _to_plain(field.kind, value)


def _is_left_out(field, value):
    if field.label == "repeated":
        return not value
    return field.default is not None and value == field.default


def _own_fields(message):
    return {name: getattr(message, name) for name in message.__slots__}


def _attr_fields(attr):
    kind = _attr_type(attr)
    return {"name": attr.name, "type": kind, ATTR_TYPES[kind][1].name: attr.value}


def _attr_type(attr):
    if attr.is_block:
        return "BLOCK"
    if attr.value and isinstance(attr.value, tuple) and isinstance(attr.value[0], str):
        return "STRINGS"
    if isinstance(attr.value, str):  # also the name of a cell, which holds the cell
        return "STRING"
    return {bool: "BOOLEAN", int: "LONG", float: "FLOAT", tuple: "LONGS"}[type(attr.value)]


_FIELDS_OF = {
    "ProgramDesc": lambda desc: {"blocks": desc.blocks, "version": desc.version},
    "Version": lambda version: {"version": version},
    "OpDesc.Attr": _attr_fields,
}


# Reading.


def from_json(text):
    """Return the description that a JSON text holds.

    Raises
    ------
    ProgramError
        If the text is not JSON, or not exactly such a description; the message names the place.  Whether operators fit
        together is checked by `Program`.

    Examples
    --------
    >>> from varlen_rnn.program.desc import ProgramDesc
    >>> from_json(to_json(ProgramDesc())) == ProgramDesc()
    True
    >>> from_json('{"blocks": [{"idx": 0, "parent_idx": true}]}')
    Traceback (most recent call last):
    varlen_rnn.errors.ProgramError: blocks[0].parent_idx: expected an integer of 32 bits, got True
    """
    if len(text) > MOST_CHARACTERS:
        raise ProgramError("description", expected=f"at most {MOST_CHARACTERS} characters", got=len(text))
    plain = parse_json(text, "description")
    _check_version(plain)
    return _message("ProgramDesc", plain, "")


def parse_json(text, what):
    """Parse a JSON text.  An object that has a key twice becomes a `Doubled`, so that the reader can name its place.

    Raises
    ------
    ProgramError
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ProgramError(what, expected="JSON text", got=str(error)[:80]) from error


class Doubled(str):
    """The key that occurs twice in an object; it replaces the object in the parsed JSON."""


def _object(pairs):
    found = {}
    for key, value in pairs:
        if key in found:
            return Doubled(key)
        found[key] = value
    return found


def _refuse(constant):
    raise ValueError(f"{constant}, which is not JSON")


def _check_version(plain):
    """Raise if a newer version wrote the description.  Checked first, since its new fields would look like errors."""
    version = plain.get("version") if type(plain) is dict else None
    version = version.get("version") if type(version) is dict else None
    try:
        newer = version is not None and _int64(version, "version.version") > VERSION
    except ProgramError:
        return  # not a description: the reader raises the error
    if newer:
        hint = "a newer varlen_rnn wrote it"
        raise ProgramError("version.version", expected=f"1 to {VERSION}", got=version, hint=hint)


def _message(kind, plain, path):
    if isinstance(plain, Doubled):
        raise ProgramError(_at(path), expected="each field once", got=f"{str(plain)!r} twice"[:80])
    if type(plain) is not dict:
        raise ProgramError(_at(path), expected=f"a {kind}", got=shown(plain))
    fields, begin = MESSAGES[kind], f"{path}." if path else ""
    unknown = plain.keys() - {field.name for field in fields}
    if unknown:
        expected = f"a field of {kind}: {', '.join(field.name for field in fields)}"
        raise ProgramError(f"{begin}{min(unknown)[:80]!r}", expected=expected)
    values = {field.name: _field(field, plain, begin + field.name) for field in fields}
    return _MAKE[kind](values, path) if kind in _MAKE else CLASSES[kind](**values)


def _at(path):
    return path or "description"


def _field(field, plain, path):
    if field.label == "repeated":
        given = plain.get(field.name, [])
        if type(given) is not list:
            raise ProgramError(path, expected="a list", got=shown(given))
        return tuple(_value(field.kind, item, f"{path}[{number}]") for number, item in enumerate(given))
    if field.name not in plain:
        if field.label == "required":
            raise ProgramError(path, expected=f"a {field.kind}", got="nothing")
        return field.default
    return _value(field.kind, plain[field.name], path)


def _value(kind, plain, path):
    return _message(kind, plain, path) if kind in MESSAGES else _READ[kind](plain, path)


def _string(plain, path):
    if type(plain) is not str:
        raise ProgramError(path, expected="a string", got=shown(plain))
    try:
        plain.encode()
    except UnicodeEncodeError as error:
        raise ProgramError(path, expected="a string of Unicode characters", got=shown(plain)) from error
    return plain


def _bool(plain, path):
    if type(plain) is not bool:
        raise ProgramError(path, expected="true or false", got=shown(plain))
    return plain


def _int32(plain, path):
    if type(plain) is not int or not -(2**31) <= plain < 2**31:
        raise ProgramError(path, expected="an integer of 32 bits", got=shown(plain))
    return plain


_DECIMAL = re.compile("-?[0-9]{1,19}")


def _int64(plain, path):
    number = int(plain) if type(plain) is str and _DECIMAL.fullmatch(plain) else plain
    if type(number) is not int or not -(2**63) <= number < 2**63:
        raise ProgramError(path, expected="an integer of 64 bits", got=shown(plain))
    return number


_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _double(plain, path):
    if type(plain) is str and plain in _SPECIAL:
        return _SPECIAL[plain]
    try:
        number = float(plain) if type(plain) in (int, float) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):  # 1e999 reads as infinity, too
        raise ProgramError(path, expected='a finite number, "NaN", "Infinity" or "-Infinity"', got=shown(plain))
    return number


def _enum(names):
    def read(plain, path):
        if type(plain) is not str or plain not in names:
            raise ProgramError(path, expected=f"one of {', '.join(names)}", got=shown(plain))
        return plain

    return read


def _type(plain, path):
    return Type[_enum(Type.__members__)(plain, path)]


_READ = {
    "string": _string, "bool": _bool, "int32": _int32, "int64": _int64, "double": _double, "VarType.Type": _type,
    "AttrType": _enum(ATTR_TYPES),
}  # fmt: skip


def _make_attr(values, path):
    name, kind = values.pop("name"), values.pop("type")
    given = {field for field, value in values.items() if value not in (None, ())}
    wanted = ATTR_TYPES[kind][1].name
    if given - {wanted} or values[wanted] is None:
        raise ProgramError(
            path, expected=f"{wanted!r} alone, because its type is {kind}", got=sorted(given) or "nothing"
        )
    return Attr(name, values[wanted], kind == "BLOCK")


def _make_program(values, path):
    if values["version"] is None:
        raise ProgramError("version", expected="a Version", got="nothing")
    return ProgramDesc(**values)


_MAKE = {
    "Version": lambda values, path: values["version"],
    "OpDesc.Attr": _make_attr,
    "ProgramDesc": _make_program,
}
