"""The constants of operators: the kinds that annotations declare, and checks of the values that calls pass.

A constant's kind is a short text for its annotation: `float`, `int`, `bool`, `str`, `ints`, `strs`, `index` or
`block`.  A constant whose kind ends with `?` can be None.
"""

import types
import typing

from varlen_rnn.errors import DTypeError, check_int, check_list, check_number, shown
from varlen_rnn.tape.index import own_index


class Index:
    """The annotation of a constant that is an index, as in `x[index]`."""


class Block:
    """The annotation of a nested block: the operators of a step."""


Ints = tuple[int, ...]
Strs = tuple[str, ...]
_KINDS = {
    bool: "bool", int: "int", float: "float", str: "str", Ints: "ints", Strs: "strs", Index: "index", Block: "block",
}  # fmt: skip


def kind_of(annotation):
    """Return the kind of constant that an annotation declares, or None if it declares no constant."""
    if typing.get_origin(annotation) not in (types.UnionType, typing.Union):
        return next((kind for known, kind in _KINDS.items() if known == annotation), None)  # it may be unhashable
    kinds = [kind_of(part) for part in typing.get_args(annotation) if part is not types.NoneType]
    return f"{kinds[0]}?" if len(kinds) == 1 < len(typing.get_args(annotation)) and kinds[0] else None


def _bool(value, what):
    if not isinstance(value, bool):
        raise DTypeError(what, expected="True or False", got=shown(value))
    return value


def _str(value, what):
    if not isinstance(value, str):
        raise DTypeError(what, expected="a str", got=shown(value))
    return value


def _several(take):
    def take_all(value, what):
        return tuple(take(entry, what) for entry in check_list(value, what, "a tuple"))

    return take_all


PLAIN = {"bool": bool, "int": int, "float": float, "str": str}
_TAKE = {
    "bool": _bool,
    "int": check_int,
    "float": lambda value, what: check_number(value, what, "of floating point", lambda number: True),
    "str": _str,
    "ints": _several(check_int),
    "strs": _several(_str),
    "index": lambda value, what: own_index(value),
    "block": lambda value, what: value,
}


def as_constant(kind, value, what):
    """Return the value that a call passes for a constant, converted to one of Python's own types, or raise."""
    if value is None and kind.endswith("?"):
        return None
    return _TAKE[kind.rstrip("?")](value, what)
