"""Named arrays in a safetensors file: written piece by piece, read or memory-mapped array by array.

For example, a file of `w = [1.0]` and no metadata is the length of a header, the header, and the bytes of `w`:

    56 as 8 bytes | {"w":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}, with spaces to a multiple of 8 | 8 bytes

The library `safetensors` writes and reads the same bytes, but needs a copy of all arrays in memory; this file needs
only a piece of one array.

Source: the format's description at https://github.com/huggingface/safetensors.
"""

from __future__ import annotations

import io
import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from varlen_rnn.typing import StrPath

# Data types in the order in which the library writes arrays: large elements first, so that all arrays are aligned.
_NAMES = {
    "uint64": "U64", "int64": "I64", "float64": "F64", "float32": "F32", "uint32": "U32", "int32": "I32",
    "float16": "F16", "uint16": "U16", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
_ORDER = list(_NAMES)
_DTYPES = {short: np.dtype(name).newbyteorder("<") for name, short in _NAMES.items()}
_METADATA = "__metadata__"
_ALIGNMENT = 8  # bytes: the first array begins at a multiple
_PIECE = 2**20  # elements
# An array's data type, its shape, and where it begins and ends, in bytes from the end of the header.
_Place = tuple[np.dtype, tuple[int, ...], int, int]


def pieces(arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """Return the content of a file as buffers of a few megabytes; each is valid until the next one is requested.

    Arrays have bools, integers, or floats of 16 to 64 bits, and any strides; they are read when their buffers are
    requested.  Raise at once: a TypeError if an array has another data type, a ValueError if UTF-8 cannot encode a
    name.
    """
    unknown = [name for name, array in arrays.items() if array.dtype.name not in _NAMES]
    if unknown:
        raise TypeError(f"{unknown[0]!r} is an array of {arrays[unknown[0]].dtype}")
    ordered = sorted(arrays.items(), key=lambda item: (_ORDER.index(item[1].dtype.name), item[0]))
    header: dict[str, object] = {_METADATA: dict(metadata)} if metadata else {}
    end = 0
    for name, array in ordered:
        begin, end = end, end + array.nbytes
        short = _NAMES[array.dtype.name]
        header[name] = {"dtype": short, "shape": list(array.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return itertools.chain([len(text).to_bytes(8, "little") + text], _bytes_of(array for _, array in ordered))


def _bytes_of(arrays: Iterable[np.ndarray]) -> Iterator[memoryview]:
    """Yield the bytes of arrays in C order; a piece is copied only if it is strided or has another byte order."""
    for array in arrays:
        dtype = array.dtype.newbyteorder("<")
        flags = ["external_loop", "buffered", "zerosize_ok"]
        way: dict[str, Any] = {"order": "C", "casting": "equiv", "buffersize": _PIECE}
        with np.nditer(np.asarray(array), flags, [["readonly", "contig"]], [dtype], **way) as walk:  # type: ignore
            pieces_of_array: Iterable[Any] = walk if array.size else ()
            for piece in pieces_of_array:
                yield piece.view(np.uint8).data


def read_arrays(source: StrPath | bytes, mmap: bool = False) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Return the metadata and the arrays of a file; with `mmap`, arrays are read-only, and read when they are used.

    `source` is the path of the file, or its content, which is copied.  Raise a ValueError, TypeError or RecursionError
    if it is not a whole safetensors file.
    """
    # The file is opened only once: if another process replaces it meanwhile, this one still reads the old file.
    with io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb") as file:
        metadata, places, start = _read_header(file)
        content = np.asarray(np.memmap(file, np.uint8, "r")) if mmap else None
        arrays = {}
        for name, place in places.items():
            array = _read(file, place, start) if content is None else _view(content, place, start)
            arrays[name] = array.astype(array.dtype.newbyteorder("="), copy=False)
    return metadata, arrays


def _read(file: BinaryIO, place: _Place, start: int) -> np.ndarray:
    dtype, shape, begin, _ = place
    array = np.empty(shape, dtype)
    file.seek(start + begin)
    if file.readinto(array.reshape(-1).view(np.uint8)) != array.nbytes:  # type: ignore[attr-defined]
        raise ValueError("the file ends early")
    if dtype == np.bool_ and array.size and array.view(np.uint8).max() > 1:
        raise ValueError("a bool that is neither 0 nor 1")
    return array


def _view(content: np.ndarray, place: _Place, start: int) -> np.ndarray:
    dtype, shape, begin, end = place
    array = content[start + begin : start + end].view(dtype).reshape(shape)
    return array if array.flags.aligned else array.copy()  # another writer may not align arrays


def _read_header(file: BinaryIO) -> tuple[dict[str, str], dict[str, _Place], int]:
    """Return the metadata, the _Place of each array, and the bytes before the first array; raise if any is invalid."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    start = _ALIGNMENT + int.from_bytes(file.read(_ALIGNMENT), "little")
    if not _ALIGNMENT < start <= size:
        raise ValueError(f"{size} bytes without a header")
    header = json.loads(file.read(start - _ALIGNMENT), object_pairs_hook=_once)
    if not isinstance(header, dict):
        raise ValueError("a header that is not an object")
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("metadata that are not texts")
    places = {name: _place(name, entry) for name, entry in header.items()}
    end = 0
    for name, place in sorted(places.items(), key=lambda item: item[1][2:]):
        if place[2] != end:
            raise ValueError(f"{name!r} begins at byte {place[2]}, not at {end}, behind the array before it")
        end = place[3]
    if end != size - start:
        raise ValueError(f"{size - start} bytes of arrays, not the {end} of the header")
    return metadata, places, start


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object of the header as a dict; raise if it has a key twice, because readers then differ."""
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("an entry that occurs twice")
    return found


def _place(name: str, entry: object) -> _Place:
    """Return the _Place that an entry of the header describes; raise if the entry is invalid."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{name!r} is not described by data type, shape and offsets")
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not (_are_counts(shape) and _are_counts(offsets) and len(offsets) == 2):
        raise ValueError(f"{name!r} has sizes or offsets that are not counts")
    dtype = _DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise ValueError(f"{name!r} has an unknown data type")
    begin, end = offsets
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name!r} has {end - begin} bytes, which its shape has not")
    return dtype, tuple(shape), begin, end


def _are_counts(value: object) -> bool:
    return isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)
