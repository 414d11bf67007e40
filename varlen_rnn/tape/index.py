"""Indices of `x[index]`: copies that the caller cannot change, and conversion to and from text such as `1:3, ...`."""

import operator
import re

import numpy as np

from varlen_rnn.errors import ProgramError
from varlen_rnn.rows.checks import check_unmasked

# Types of basic indices that are immutable.  A bool is not among them, because it indexes as an array does.
BASIC_INDEX = frozenset({int, slice, type(None), type(Ellipsis)})
_NUMBER = r"-?\d{1,18}"
_ITEM = rf"(?:{_NUMBER}|(?:{_NUMBER})?:(?:{_NUMBER})?(?::(?:{_NUMBER})?)?|\.\.\.|None)"
_INDEX = re.compile(rf"(?:{_ITEM}(?:, {_ITEM})*)?")


def own_index(index):
    """Return a copy of an index that its caller cannot change, because a gradient reads it again later."""
    return tuple(map(_own_item, index)) if isinstance(index, tuple) else _own_item(index)


def _own_item(item):
    if type(item) in BASIC_INDEX or isinstance(item, (int, np.integer)):
        return item
    check_unmasked(item, "getitem, index")
    try:
        array = np.array(item)
    except (ValueError, TypeError):  # it is no index: the operator raises the error
        return item
    # An empty list is a list of indices to NumPy, though its array is float64.
    return array if array.size or isinstance(item, np.ndarray) else array.astype(np.intp)


def index_to_text(index):
    """Return the text of an index of numbers, slices, `...` and None, as in `x[text]`."""
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
    hint = "an embedding or a sequence operator selects other rows"
    expected = "numbers, slices, ... or None, because a program holds no other index"
    raise ProgramError("getitem, index", expected=expected, got=type(item).__name__, hint=hint)


def is_index(text):
    """Return whether a text describes an index."""
    return _INDEX.fullmatch(text) is not None


def index_of_text(text):
    """Return the index that a text describes."""
    return tuple(_item_of_text(item) for item in text.split(", ")) if text else ()


def _item_of_text(item):
    if item in ("None", "..."):
        return None if item == "None" else Ellipsis
    if ":" in item:
        return slice(*(int(part) if part else None for part in item.split(":")))
    return int(item)
