"""Send values between processes: feeds and fetches as bytes, without pickle.

Bytes are untrusted input: every array passes the checks of the constructors.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from varlen_rnn.array_file import pieces, read_arrays
from varlen_rnn.errors import DTypeError, ProgramError, shown
from varlen_rnn.rows.checks import check_unmasked
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.plan import SortedSeqs
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.tape.spec import Scopes

_FORMAT = "varlen_rnn values 1"


def values_to_bytes(values: Mapping[str, LoDTensor | np.ndarray | SelectedRows | SortedSeqs]) -> bytes:
    """Return feeds or fetches as bytes.

    Parameters
    ----------
    values : dict of str to LoDTensor, array, SelectedRows or SortedSeqs

    Raises
    ------
    DTypeError
        If a name is not a str, or a value has another type.

    Examples
    --------
    >>> values = {"x": LoDTensor(np.ones((3, 2)), [[0, 1, 3]]), "y": np.arange(2)}
    >>> x, y = values_from_bytes(values_to_bytes(values)).values()
    >>> x.lod(), y
    ([[0, 1, 3]], array([0, 1]))
    """
    if not isinstance(values, Mapping):
        raise DTypeError("values", expected="a dict of str to value", got=type(values).__name__)
    arrays: dict[str, np.ndarray] = {}
    kinds: dict[str, str] = {}
    for name, value in values.items():
        if not isinstance(name, str):  # JSON would write 1 and "1" as one name, and lose a value
            raise DTypeError("values, names", expected="str", got=shown(name))
        kinds[name], parts = _parts(name, value)
        arrays |= {f"{name}/{number}": np.asarray(part) for number, part in enumerate(parts)}
    try:
        return b"".join(map(bytes, pieces(arrays, {"format": _FORMAT, "kinds": json.dumps(kinds)})))
    except (TypeError, ValueError) as error:
        raise DTypeError("values", expected="arrays of numbers, and names of Unicode", got=str(error)[:80]) from error


def _parts(name: str, value: object) -> tuple[str, list[Any]]:
    """Return the name of a value's kind, and the arrays that it consists of."""
    if isinstance(value, LoDTensor):
        return "lod_tensor", [value.data, *value.structure.levels]
    if isinstance(value, SelectedRows):
        return "selected_rows", [value.rows, value.value, np.array(value.height)]
    if isinstance(value, SortedSeqs):
        return "sorted_seqs", [value.offsets]
    if isinstance(value, (np.ndarray, np.generic)):
        check_unmasked(value, f"value {name!r}")
        return "array", [value]
    expected = "a LoDTensor, an array, SelectedRows or SortedSeqs"
    steps = "the saved steps of a DynamicRNN cannot leave their process: split the program after its gradient"
    hint = steps if isinstance(value, Scopes) else None
    raise DTypeError(f"value {name!r}", expected=expected, got=type(value).__name__, hint=hint)


_MAKE: dict[str, Callable[..., Any]] = {
    "lod_tensor": lambda data, *levels: LoDTensor(data, levels),
    "selected_rows": lambda rows, value, height: SelectedRows(rows, value, height[()]),
    "sorted_seqs": SortedSeqs,
    "array": lambda data: data,
}


def values_from_bytes(payload: bytes) -> dict[str, Any]:
    """Return the values that `values_to_bytes` wrote, by name and in the same order.

    Raises
    ------
    ProgramError
        If `values_to_bytes` did not write the bytes, or they are damaged.
    LoDError, ShapeError, OutOfRangeError
        If the arrays of a value do not fit together.

    Examples
    --------
    >>> values_from_bytes(values_to_bytes({"counts": np.arange(3)}))
    {'counts': array([0, 1, 2])}
    """
    try:
        header, arrays = read_arrays(bytes(memoryview(payload)))
        kinds = json.loads(header["kinds"])
        known = header["format"] == _FORMAT and all(kind in _MAKE for kind in kinds.values())
    except Exception as error:
        raise ProgramError("values", expected="the bytes of values_to_bytes", got=str(error)[:80]) from error
    if not known:
        expected = f"the format {_FORMAT!r} and the kinds {', '.join(_MAKE)}"
        got = f"the format {header['format'][:80]!r} and the kinds {str(kinds)[:80]}"
        raise ProgramError("values", expected=expected, got=got)
    counts = collections.Counter(key.rpartition("/")[0] for key in arrays)
    values: dict[str, Any] = {}
    for name, kind in kinds.items():
        count = counts[name]
        try:
            values[name] = _MAKE[kind](*(arrays[f"{name}/{number}"] for number in range(count)))
        except (KeyError, TypeError) as error:
            raise ProgramError(f"value {name!r}", expected=f"the arrays of a {kind}", got=f"{count} arrays") from error
    return values
