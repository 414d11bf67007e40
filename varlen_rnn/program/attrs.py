"""The constants of operators: their kinds, and their form in a description.

An operator declares each of its constants with one of `KINDS`; a kind that ends with `?` may be None, which a
description leaves out.  In a description a constant is a bool, an int, a float, a str, a tuple of ints or of strs, or
the index of a block.
"""

import operator
import re

import numpy as np

from varlen_rnn.errors import ProgramError
from varlen_rnn.lod_input import check_unmasked
from varlen_rnn.program.desc import MOST_DIMS, Attr

_INT64 = 2**63
# The types of an index that nobody can change, and that moves no axis.  A bool moves them, as an array does.
BASIC_INDEX = frozenset({int, slice, type(None), type(Ellipsis)})


def _is_int(value):
    return isinstance(value, int) and not isinstance(value, bool) and -_INT64 <= value < _INT64


# Whether a value of a description is of a kind.
KINDS = {
    "bool": lambda value: isinstance(value, bool),
    "int": _is_int,
    "float": lambda value: isinstance(value, float),
    "str": lambda value: isinstance(value, str),
    "strs": lambda value: isinstance(value, tuple) and all(isinstance(text, str) for text in value),
    "ints": lambda value: isinstance(value, tuple) and len(value) <= MOST_DIMS and all(map(_is_int, value)),
    "index": lambda value: isinstance(value, str) and _INDEX.fullmatch(value) is not None,
    "block": _is_int,
}
_NUMBER = r"-?\d{1,18}"
_ITEM = rf"(?:{_NUMBER}|(?:{_NUMBER})?:(?:{_NUMBER})?(?::(?:{_NUMBER})?)?|\.\.\.|None)"
_INDEX = re.compile(rf"(?:{_ITEM}(?:, {_ITEM})*)?")


def encode(op, attrs, index_of_block):
    """Return the constants of an operator as a description holds them.

    Raises
    ------
    ProgramError
        A value that no description can hold.
    """
    described = []
    for name, kind in op.attrs.items():
        value = attrs.get(name)
        if value is None and kind.endswith("?"):
            continue
        kind = kind.rstrip("?")
        value = _to_plain(kind, value, index_of_block)
        if not KINDS[kind](value):
            expected = f"{kind} that a description can hold"
            raise ProgramError(f"{op.type}, {name}", expected=expected, got=repr(value)[:80])
        described.append(Attr(name, value, kind == "block"))
    return tuple(described)


def _to_plain(kind, value, index_of_block):
    if kind == "float":
        return float(value)
    if kind == "ints":
        return tuple(int(number) for number in value)
    if kind == "strs":
        return tuple(value)
    if kind == "index":
        return _index_to_text(value)
    return index_of_block(value) if kind == "block" else value


def decode(op, described, block_of_index):
    """Return the constants that an operator takes, from their description.

    Raises
    ------
    ProgramError
        A constant that is unknown, doubled, missing, or of another kind.
    """
    given = {attr.name: attr for attr in described}
    unknown = given.keys() - op.attrs.keys()
    if unknown or len(given) != len(described):
        got = sorted(attr.name for attr in described)
        raise ProgramError(f"{op.type}, attrs", expected=f"each of {sorted(op.attrs)} once", got=got)
    attrs = {}
    for name, kind in op.attrs.items():
        attr = given.get(name)
        if attr is None:
            if not kind.endswith("?"):
                raise ProgramError(f"{op.type}, {name}", expected=kind, got="nothing")
            attrs[name] = None
            continue
        kind = kind.rstrip("?")
        if not KINDS[kind](attr.value) or attr.is_block != (kind == "block"):
            expected = f"at most {MOST_DIMS} ints" if kind == "ints" else kind
            raise ProgramError(f"{op.type}, {name}", expected=expected, got=repr(attr.value)[:80])
        attrs[name] = _from_plain(kind, attr.value, block_of_index)
    return attrs


def _from_plain(kind, value, block_of_index):
    if kind == "index":
        return _index_of_text(value)
    return block_of_index(value) if kind == "block" else value


def own_index(index):
    """Return an index that its caller cannot change any more: a gradient reads it again, perhaps much later."""
    return tuple(map(_own_item, index)) if isinstance(index, tuple) else _own_item(index)


def _own_item(item):
    if type(item) in BASIC_INDEX or isinstance(item, (int, np.integer)):
        return item
    check_unmasked(item, "getitem, index")
    try:
        array = np.array(item)
    except (ValueError, TypeError):  # no index: the operator says so
        return item
    # NumPy takes an empty list for indices, whatever the data type of nothing.
    return array if array.size or isinstance(item, np.ndarray) else array.astype(np.intp)


def _index_to_text(index):
    """Return an index of numbers, slices, `...` and None as it is written between brackets."""
    items = index if isinstance(index, tuple) else (index,)
    return ", ".join(_item_to_text(item) for item in items)


def _item_to_text(item):
    if isinstance(item, slice):
        parts = ["" if part is None else str(int(part)) for part in (item.start, item.stop, item.step)]
        return ":".join(parts if parts[2] else parts[:2])
    if item is None or item is Ellipsis:
        return "None" if item is None else "..."
    try:
        if not isinstance(item, bool):
            return str(operator.index(item))
    except TypeError:
        pass
    hint = "a program holds numbers, slices, ... and None; look rows up with an embedding or sequence operator"
    raise ProgramError("getitem, index", expected="a basic index", got=type(item).__name__, hint=hint)


def _index_of_text(text):
    return tuple(_item_of_text(item) for item in text.split(", ")) if text else ()


def _item_of_text(item):
    if item in ("None", "..."):
        return None if item == "None" else Ellipsis
    if ":" in item:
        return slice(*(int(part) if part else None for part in item.split(":")))
    return int(item)
