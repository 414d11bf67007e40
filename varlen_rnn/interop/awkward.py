"""Convert arrays from and to the library Awkward Array."""

from __future__ import annotations

from typing import Any

import numpy as np

from varlen_rnn.errors import DTypeError, LoDError
from varlen_rnn.interop.foreign import Levels, library, tensor_of
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.typing import Rows


def from_awkward(array: Any) -> LoDTensor:
    """Return a LoDTensor of an `awkward.Array` of lists of numbers; rows share its memory if that is contiguous.

    Parameters
    ----------
    array : awkward.Array
        Each depth of lists becomes a level; innermost regular lists (`to_regular`) are the numbers of a row.

    Raises
    ------
    LoDError, DTypeError
        If a list or number is missing, or the type is not lists of numbers.  An option type without missing entries,
        as in Parquet files, is no error.

    Examples
    --------
    >>> import awkward
    >>> from_awkward(awkward.Array([[1.0, 2.0], [], [3.0]])).lod()
    [[0, 2, 2, 3]]
    """
    ak, levels = library("awkward"), Levels()
    if not isinstance(array, ak.Array):
        raise DTypeError("from_awkward, array", expected="an awkward.Array", got=type(array).__name__)
    layout = ak.to_layout(array)
    while (found := _list_of(ak, layout, len(levels.offsets))) is not None:
        offsets, content = found
        first, end = levels.add(offsets)
        layout = content[first:end]
    if not levels.offsets:
        raise LoDError("from_awkward, array", expected="lists of numbers", got=str(array.type))
    level = len(levels.offsets)
    layout = _without_options(layout, level)
    shape = [layout.length]
    while layout.is_regular:
        shape.append(layout.size)
        layout = _without_options(layout.content[: shape[0] * int(np.prod(shape[1:]))], level)
    if not layout.is_numpy:
        hint = "to_regular turns lists of one size into rows"
        raise DTypeError("from_awkward, array", expected="lists of numbers", got=str(array.type), hint=hint)
    return levels.over(np.asarray(layout.data).reshape(*shape, *layout.data.shape[1:]))


def _list_of(ak: Any, layout: Any, level: int) -> tuple[np.ndarray, Any] | None:
    """Return the offsets of a list layout, and the layout of all lists' entries; None if the layout holds rows."""
    layout = _without_options(layout, level)
    if layout.is_indexed:
        layout = layout.project()
    if isinstance(layout, ak.contents.ListArray):
        layout = layout.to_ListOffsetArray64(False)
    if isinstance(layout, ak.contents.ListOffsetArray) and layout.parameter("__array__") is None:  # not a string
        return np.asarray(layout.offsets.data), layout.content
    if layout.is_regular and _has_lists(layout.content):
        return np.arange(layout.length + 1) * layout.size, layout.content
    return None


def _without_options(layout: Any, level: int) -> Any:
    """Return a layout without an option type around it; if an entry is missing, raise an error with its position."""
    if not layout.is_option:
        return layout
    gone = np.flatnonzero(np.asarray(layout.mask_as_bool(valid_when=False)))
    if len(gone):
        what = f"level {level}, sequence" if _has_lists(layout) else "number" if layout.purelist_depth == 1 else "row"
        hint = "ak.drop_none leaves such entries out, ak.fill_none fills them"
        raise LoDError(f"from_awkward, {what} {int(gone[0])}", expected="a value", got="None", hint=hint)
    return layout.project()


def _has_lists(layout: Any) -> bool:
    """Return whether a layout has lists of unequal sizes inside of regular lists."""
    while layout.is_regular or layout.is_option:
        layout = layout.content
    return layout.is_list


def to_awkward(x: Rows) -> Any:
    """Return rows with a LoD as an `awkward.Array` that shares their memory.

    Parameters
    ----------
    x : LoDTensor or Variable
        Rows with at least one level.

    Examples
    --------
    >>> to_awkward(LoDTensor(np.array([[1, 2], [3, 4], [5, 6]]), [[0, 1, 3]])).to_list()
    [[[1, 2]], [[3, 4], [5, 6]]]
    """
    ak = library("awkward")
    tensor = tensor_of(x, "to_awkward, x")
    layout = ak.contents.NumpyArray(tensor.data)
    for offsets in reversed(tensor.structure.levels):
        layout = ak.contents.ListOffsetArray(ak.index.Index64(offsets), layout)
    return ak.Array(layout)
