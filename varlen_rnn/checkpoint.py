"""Save named arrays to one safetensors file, atomically, and load them.

Nothing is pickled, so files from untrusted sources can be loaded safely.  A model, an optimizer and the random state go
into one file as named groups, so that a resumed run gives the same bits as a run without a stop.  Arrays are written
piece by piece, so that arrays larger than the memory can be saved, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Never

import numpy as np
from numpy.typing import ArrayLike

from varlen_rnn.array_file import pieces, read_arrays
from varlen_rnn.errors import CheckpointError, DTypeError, check_flag, check_path, count, shown
from varlen_rnn.rows.checks import check_unmasked
from varlen_rnn.typing import StrPath
from varlen_rnn.whole_file import write_file

_MOST_DEPTH = 200  # lists and dicts inside of each other in a value
_PLAIN = (str, int, float, bool, type(None))  # types of values that need no further check
_FORMAT = "varlen_rnn checkpoint 1"


def save(path: StrPath, *unnamed: Never, **groups: Any) -> None:
    """Write groups of arrays, and values that JSON can hold, to one file; a crash leaves no half-written file.

    Arrays are written piece by piece, without a copy in memory.  Nobody may change them meanwhile.

    Parameters
    ----------
    path : str or path
        An existing file is replaced with the same mode; if `path` is a link, its target is replaced.
    **groups
        A dict of str to array (a `state_dict()`), or any value that JSON can hold; NumPy numbers become Python numbers.

    Raises
    ------
    CheckpointError
        If two arrays have the same name, a name is not a str, or content is neither arrays nor JSON values.
    DTypeError
        If a group has no name, as in `save(state, path)`.
    OSError
        If the path cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/model.safetensors"
    >>> save(path, model={"weight": np.ones(2)}, epoch=3)
    >>> load(path)
    {'model': {'weight': array([1., 1.])}, 'epoch': 3}
    """
    if unnamed:
        hint = "save(path, model=model.state_dict()); load(path)['model'] returns the group"
        got = f"a {type(path).__name__} first, and then {count(len(unnamed), 'value')} without a name"
        raise DTypeError("save", expected="a path, and then groups as keyword arguments", got=got, hint=hint)
    arrays: dict[str, np.ndarray] = {}
    values: dict[str, dict[str, Any]] = {}
    for group, content in groups.items():
        if isinstance(content, dict) and all(isinstance(value, np.ndarray) for value in content.values()):
            for name, value in content.items():
                check_unmasked(value, f"save, {group!r}, {shown(name)}")
            named = {f"{group}/{name}": value for name, value in content.items()}
            if not all(isinstance(name, str) for name in content) or arrays.keys() & named.keys():
                expected = "names that are str, and no two arrays with the same text 'group/name'"
                raise CheckpointError(f"save, {group!r}", expected=expected, got=shown(list(content)))
            arrays |= named
            values[group] = {"arrays": sorted(content)}
        else:
            _check_value(content, f"save, {group}")
            values[group] = {"value": content}
    try:
        payload = pieces(arrays, {_FORMAT: json.dumps(values, default=lambda number: number.item())})
    except (TypeError, ValueError, RecursionError) as error:
        expected = "arrays of numbers, or values that JSON can hold"
        raise CheckpointError("save", expected=expected, got=str(error)[:80]) from error
    write_file(check_path(path, "save, path"), payload)


def _check_value(value: Any, place: str, depth: int = 0) -> None:
    """Raise an error that names the entry unless JSON can hold a value and its contents, and all keys are str."""
    if depth > _MOST_DEPTH:
        got = f"more than {_MOST_DEPTH} lists or dicts inside of each other"
        raise CheckpointError(place[:80], expected="a value that JSON can hold", got=got)
    if isinstance(value, dict):
        _check_unmixed(value, place)
        for name, inside in value.items():
            if not isinstance(name, str):  # JSON would write the keys 1 and "1" as the same name
                raise CheckpointError(place, expected="names that are str", got=f"{shown(name)}, which is no str")
            if type(inside) not in _PLAIN:
                _check_value(inside, f"{place}[{name!r}]", depth + 1)
    elif isinstance(value, (list, tuple)):
        for number, inside in enumerate(value):
            if type(inside) not in _PLAIN:
                _check_value(inside, f"{place}[{number}]", depth + 1)
    elif not isinstance(value, _PLAIN) and not _is_number(value):
        what = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
        raise CheckpointError(place, expected="a value that JSON can hold", got=what, hint=_remedy(value))


def _check_unmixed(group: dict[Any, Any], place: str) -> None:
    """Raise if a dict has both arrays and other values; the error names the first value that is no array."""
    is_array = [isinstance(value, np.ndarray) for value in group.values()]
    if any(is_array) and not all(is_array):
        name = list(group)[is_array.index(False)]
        hint = _remedy(group[name]) or "save it as a group of its own: save(path, arrays=..., epoch=1)"
        what, expected = f"{place}[{name!r}]", "an array, because this dict has other arrays"
        raise CheckpointError(what, expected=expected, got=f"a {type(group[name]).__name__}", hint=hint)


def _remedy(value: Any) -> str | None:
    if isinstance(value, np.ndarray):
        return "put arrays into a group that is a dict of arrays only: save(path, model={'weight': array}, epoch=1)"
    if hasattr(value, "state_dict"):
        return "save its state_dict() instead"
    return "save x.numpy() instead of x" if hasattr(value, "numpy") else None


def _is_number(value: object) -> bool:
    return isinstance(value, np.generic) and isinstance(
        value.item(), (bool, int, float)
    )  # `item` of a longdouble returns a longdouble


def load(path: StrPath, mmap: bool = False) -> dict[str, Any]:
    """Return the arrays that `save` wrote, as a dict of groups.

    Parameters
    ----------
    path : str or path
    mmap : bool
        Whether arrays are read-only maps of the file, whose rows are read when they are first used: for arrays larger
        than the memory, and for several processes of one host, which share them.  `save` can replace a mapped file, but
        nobody must write to it or truncate it.

    Raises
    ------
    CheckpointError
        If the file is damaged, or was not written by `save`.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/model.safetensors"
    >>> save(path, model={"weight": np.zeros(2)}, epoch=1)
    >>> load(path)["model"]["weight"], load(path, mmap=True)["model"]["weight"].flags.writeable
    (array([0., 0.]), False)
    """
    path, mmap = check_path(path, "load, path"), check_flag(mmap, "load, mmap")
    try:
        metadata, arrays = read_arrays(path, mmap)
    except (FileNotFoundError, MemoryError):
        raise
    except Exception as error:
        raise CheckpointError(f"{path}", expected="a safetensors file", got=str(error)[:200]) from error
    if metadata.keys() != {_FORMAT}:
        expected = f"a file that save() wrote, with the metadata {_FORMAT!r}"
        raise CheckpointError(f"{path}", expected=expected, got=f"the metadata {sorted(metadata)}"[:80])
    try:
        groups = json.loads(metadata[_FORMAT])
        return {
            group: {name: arrays[f"{group}/{name}"] for name in entry["arrays"]}
            if "arrays" in entry
            else entry["value"]
            for group, entry in groups.items()
        }
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{path}", expected="an array for each name that it lists", got=shown(error)) from error


def state_arrays(state: Mapping[str, ArrayLike], what: str) -> dict[str, np.ndarray]:
    """Return the entries of a state dict as arrays, by name, or raise a CheckpointError that begins with `what`."""
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise CheckpointError(what, expected="a dict of str to array", got=shown(state))
    arrays = {}
    for name, value in state.items():
        try:
            check_unmasked(value, name)
            arrays[name] = np.asarray(value)
        except (ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise CheckpointError(f"{what}, {name!r}", expected="an array", got=str(error)[:80]) from error
    return arrays
