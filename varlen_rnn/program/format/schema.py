"""Descriptions of programs as JSON text: the messages of `docs/program.proto` in protobuf's JSON mapping.

The reader is strict because a file is untrusted input: anything that is not exactly as described raises a
`ProgramError` that names the place, such as `blocks[0].ops[3].attrs[1].f`.
"""

import json
import math
import re

from varlen_rnn.errors import ProgramError, shown
from varlen_rnn.program.attrs import is_text
from varlen_rnn.program.desc import ATTR_TYPES, KINDS, MESSAGES, VERSION, Attr
from varlen_rnn.tape.kinds import Type

MOST_CHARACTERS = 2**26  # the longest description that is read
_CLASSES = {name: cls for cls, name in KINDS.items()}
_DECIMAL = re.compile("-?[0-9]{1,19}")
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_WHOLE = "description"  # the name of the whole message in errors


def _integer(plain, bits):
    return plain if type(plain) is int and -(2 ** (bits - 1)) <= plain < 2 ** (bits - 1) else None


def _long(plain):
    return _integer(int(plain) if type(plain) is str and _DECIMAL.fullmatch(plain) else plain, 64)


def _double(plain):
    if type(plain) is str:
        return _SPECIAL.get(plain)
    try:
        number = float(plain) if type(plain) in (int, float) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None  # 1e999 reads as infinity, too


def _one_of(values):
    return f"one of {', '.join(values)}", lambda plain: values.get(plain) if type(plain) is str else None


# For each kind that is no message: words for valid JSON, for errors, and a function that returns the value of JSON, or
# None if the JSON is not valid.
SCALARS = {
    "string": ("a string of Unicode characters", lambda plain: plain if is_text(plain) else None),
    "bool": ("true or false", lambda plain: plain if type(plain) is bool else None),
    "int32": ("an integer of 32 bits", lambda plain: _integer(plain, 32)),
    "int64": ("an integer of 64 bits", _long),
    "double": ('a finite number, "NaN", "Infinity" or "-Infinity"', _double),
    "VarType.Type": _one_of(Type.__members__),
    "AttrType": _one_of({name: name for name in ATTR_TYPES}),
}


# Writing.  Empty lists, and values that are their field's default, are left out.


def to_json(desc):
    """Return a description as JSON text."""
    return json.dumps(_to_plain("ProgramDesc", desc), separators=(",", ":"), allow_nan=False)


def _to_plain(kind, value):
    if kind in MESSAGES:
        fields, plain = _FIELDS_OF.get(kind, lambda value: None)(value), {}
        for label, kind_of_field, name, _, default in MESSAGES[kind]:
            content = getattr(value, name) if fields is None else fields.get(name)
            if label == "repeated" and content:
                plain[name] = [_to_plain(kind_of_field, item) for item in content]
            elif label != "repeated" and content is not None and content != default:
                plain[name] = _to_plain(kind_of_field, content)
        return plain
    if kind == "VarType.Type":
        return Type(value).name
    if kind == "double" and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    # Large integers become strings, because other readers of JSON hold numbers as doubles.
    return str(value) if kind == "int64" and abs(value) > 2**53 else value


def _attr_fields(attr):
    value = attr.value
    if attr.is_block:
        kind = "BLOCK"
    elif isinstance(value, str):  # or a subclass of str: the name of a cell, which has the cell as an attribute
        kind = "STRING"
    elif value and isinstance(value, tuple) and isinstance(value[0], str):
        kind = "STRINGS"
    else:
        kind = {bool: "BOOLEAN", int: "LONG", float: "FLOAT", tuple: "LONGS"}[type(value)]
    return {"name": attr.name, "type": kind, ATTR_TYPES[kind][1].name: value}


_FIELDS_OF = {"Version": lambda version: {"version": version}, "OpDesc.Attr": _attr_fields}


# Reading.


def from_json(text):
    """Return the description that a JSON text holds, or raise a ProgramError that names the place of the fault.

    Whether the operators fit together is checked later, by `Program`.
    """
    if len(text) > MOST_CHARACTERS:
        raise ProgramError(_WHOLE, expected=f"at most {MOST_CHARACTERS} characters", got=len(text))
    plain = _parse(text)
    _check_version(plain)
    return _message("ProgramDesc", plain, "")


def _parse(text):
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ProgramError(_WHOLE, expected="JSON text", got=str(error)[:80]) from error


class Doubled(str):
    """A key that a JSON object has twice; it replaces the object, so that the reader can name the object's place."""


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
    """Raise if a newer version wrote the description; checked first, because its new fields would look like errors."""
    try:
        version = plain["version"]["version"]
        newer = _long(version) > VERSION
    except (KeyError, TypeError):
        return  # not a description: the reader raises the error
    if newer:
        hint = "a newer varlen_rnn wrote it"
        raise ProgramError("version.version", expected=f"1 to {VERSION}", got=version, hint=hint)


def _message(kind, plain, path):
    if isinstance(plain, Doubled):
        raise ProgramError(path or _WHOLE, expected="each field once", got=f"{str(plain)!r} twice"[:80])
    if type(plain) is not dict:
        raise ProgramError(path or _WHOLE, expected=f"a {kind}", got=shown(plain))
    fields, begin = MESSAGES[kind], f"{path}." if path else ""
    unknown = plain.keys() - {field.name for field in fields}
    if unknown:
        expected = f"a field of {kind}: {', '.join(field.name for field in fields)}"
        raise ProgramError(f"{begin}{min(unknown)[:80]!r}", expected=expected, got="an unknown field")
    values = {field.name: _field(field, plain, begin + field.name) for field in fields}
    return _MAKE[kind](values, path) if kind in _MAKE else _CLASSES[kind](**values)


def _field(field, plain, path):
    if field.label == "repeated":
        given = plain.get(field.name, [])
        if type(given) is not list:
            raise ProgramError(path, expected="a list", got=shown(given))
        return tuple(_value(field.kind, item, f"{path}[{number}]") for number, item in enumerate(given))
    if field.name not in plain:
        if field.label == "required" or field.kind == "Version":
            raise ProgramError(path, expected=f"a {field.kind}", got="nothing")
        return field.default
    return _value(field.kind, plain[field.name], path)


def _value(kind, plain, path):
    if kind in MESSAGES:
        return _message(kind, plain, path)
    expected, read = SCALARS[kind]
    value = read(plain)
    if value is None:
        raise ProgramError(path, expected=expected, got=shown(plain))
    return value


def _make_attr(values, path):
    name, kind = values.pop("name"), values.pop("type")
    given = {field for field, value in values.items() if value not in (None, ())}
    wanted = ATTR_TYPES[kind][1].name
    if given - {wanted} or values[wanted] is None:
        expected = f"the field {wanted!r} alone, because its type is {kind}"
        raise ProgramError(path, expected=expected, got=sorted(given) or "nothing")
    return Attr(name, values[wanted], kind == "BLOCK")


_MAKE = {
    "Version": lambda values, path: values["version"],
    "OpDesc.Attr": _make_attr,
}
