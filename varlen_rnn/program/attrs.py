"""The constants of operators: their kinds, and their form in a description.

An operator declares each of its constants with a kind, a key of `KINDS`.  A constant whose kind ends with `?` can be
None; the description then leaves it out.  `Attr` lists the values that a description can hold.
"""

from collections.abc import Callable

from varlen_rnn.errors import ProgramError, shown
from varlen_rnn.program.desc import MOST_DIMS, Attr
from varlen_rnn.tape.index import index_of_text, index_to_text, is_index


def _is_int(value):
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def is_text(value):
    """Return whether a value is a string that UTF-8 can encode."""
    # Half of a surrogate pair is no character: a file with it could be written, but not read.
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


# For each kind, a function that returns whether a value in a description is of that kind.
KINDS = {
    "bool": lambda value: isinstance(value, bool),
    "int": _is_int,
    "float": lambda value: isinstance(value, float),
    "str": is_text,
    "strs": lambda value: isinstance(value, tuple) and all(map(is_text, value)),
    "ints": lambda value: isinstance(value, tuple) and len(value) <= MOST_DIMS and all(map(_is_int, value)),
    "index": lambda value: isinstance(value, str) and is_index(value),
    "block": _is_int,
}


_WRITTEN: dict[str, Callable] = {
    "float": float,
    "ints": lambda value: tuple(int(number) for number in value),
    "strs": tuple,
    "index": index_to_text,
}


def encode(op, attrs, index_of_block):
    """Return the constants of an operator as a list of Attr; raise if a description cannot hold one of them."""
    described = []
    for name, kind in op.attrs.items():
        value = attrs.get(name)
        if value is None and kind.endswith("?"):
            continue
        kind = kind.rstrip("?")
        convert = index_of_block if kind == "block" else _WRITTEN.get(kind)
        value = value if convert is None else convert(value)
        if not KINDS[kind](value):
            expected = f"a constant of kind {kind!r} that a description can hold"
            raise ProgramError(f"{op.type}, {name}", expected=expected, got=shown(value))
        described.append(Attr(name, value, kind == "block"))
    return tuple(described)


def decode(op, described, block_of_index):
    """Return the constants of an operator, given its Attrs; raise unless they are as the operator declares."""
    given = {attr.name: attr for attr in described}
    unknown = given.keys() - op.attrs.keys()
    if unknown or len(given) != len(described):
        got = sorted(attr.name for attr in described)
        raise ProgramError(f"{op.type}, attrs", expected=f"the constants {sorted(op.attrs)}, each once", got=got)
    attrs = {}
    for name, kind in op.attrs.items():
        attr = given.get(name)
        if attr is None:
            if not kind.endswith("?"):
                raise ProgramError(f"{op.type}, {name}", expected=f"a constant of kind {kind!r}", got="nothing")
            attrs[name] = None
            continue
        kind = kind.rstrip("?")
        if not KINDS[kind](attr.value) or attr.is_block != (kind == "block"):
            expected = f"at most {MOST_DIMS} ints" if kind == "ints" else f"a constant of kind {kind!r}"
            raise ProgramError(f"{op.type}, {name}", expected=expected, got=shown(attr.value))
        convert = {"index": index_of_text, "block": block_of_index}.get(kind)
        attrs[name] = attr.value if convert is None else convert(attr.value)
    return attrs
