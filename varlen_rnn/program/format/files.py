"""Programs as safetensors files: the description is JSON in the metadata, persistables are tensors; no pickle.

Files are untrusted input.  Loading runs nothing, and takes time and memory in proportion to the file.
"""

from pathlib import Path

import numpy as np
import safetensors
import safetensors.numpy

from varlen_rnn.errors import ProgramError, check_path
from varlen_rnn.program.format import schema
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.runtime.device import moved
from varlen_rnn.runtime.place import HOST
from varlen_rnn.whole_file import write_file

_NAME = "varlen_rnn program "
_FORMAT = f"{_NAME}1"  # the version of the file's layout; the description has a version of its own
_RESERVED = "__metadata__"  # a name that safetensors does not allow for tensors


def to_bytes(desc, persistables):
    """Return a description and the values of its persistables as the content of a safetensors file."""
    if _RESERVED in persistables:
        raise ProgramError(f"variable {_RESERVED!r}", expected="another name", hint="safetensors uses this one itself")
    # safetensors writes strided arrays wrongly.
    arrays = {name: np.asarray(moved(value.data, HOST), order="C") for name, value in persistables.items()}
    # One metadata entry only, because safetensors writes several in random order: equal programs give equal bytes.
    return safetensors.numpy.save(arrays, {_FORMAT: schema.to_json(desc)})


def save(path, desc, persistables):
    """Write the result of `to_bytes`; the file appears whole or not at all."""
    write_file(check_path(path, "save, path"), to_bytes(desc, persistables))


def load(path):
    """Return the description and the persistables of a file."""
    path = check_path(path, "load, path")
    return from_bytes(Path(path).read_bytes(), path)


def from_bytes(content, what="program"):
    """Return the description and the persistables that the content of a file holds.

    Raises
    ------
    ProgramError
        If the content is damaged, comes from a newer version, or is no program; the argument `what` names the file.
    """
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise ProgramError(what, expected="bytes", got=type(content).__name__)
    content = bytes(content)
    header = _header(content, what)
    desc = schema.from_json(_description(header.get(_RESERVED, {}), what))
    try:
        arrays = safetensors.numpy.load(content)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError) as error:
        raise ProgramError(what, expected="a whole safetensors file", got=str(error)[:200]) from error
    return desc, {name: _as_tensor(name, array) for name, array in arrays.items()}


def _header(content, what):
    """Return the header of a safetensors file; raise if a key occurs twice, which other readers accept."""
    size = int.from_bytes(content[:8], "little")
    if len(content) < 8 or size > len(content) - 8:
        raise ProgramError(what, expected="a safetensors file", got=f"{len(content)} bytes of something else")
    try:
        text = content[8 : 8 + size].decode()
    except UnicodeDecodeError as error:
        raise ProgramError(what, expected="a safetensors file", got=str(error)[:80]) from error
    header = schema.parse_json(text, what)
    entries = header.values() if isinstance(header, dict) else [header]
    if any(not isinstance(entry, dict) for entry in (header, *entries)):
        raise ProgramError(what, expected="a safetensors file, each entry once", got=text[:80])
    return header


def _description(metadata, what):
    """Return the text that describes the program."""
    if metadata.keys() == {_FORMAT} and isinstance(metadata[_FORMAT], str):
        return metadata[_FORMAT]
    hint = None
    if any(name.startswith("varlen_rnn checkpoint ") for name in metadata):
        hint = "a checkpoint has only arrays: read it with varlen_rnn.load"
    elif any(name.startswith(_NAME) and name != _FORMAT for name in metadata):
        hint = "a newer varlen_rnn wrote it"
    raise ProgramError(what, expected=f"a {_FORMAT}", got=f"metadata of {sorted(metadata)}"[:80], hint=hint)


def _as_tensor(name, array):
    check_bools(f"persistable {name!r}", array)
    return LoDTensor.wrap(array)


def check_bools(what, array):
    """Raise if a byte of a bool array from a file is neither 0 nor 1."""
    if array.dtype == np.bool_ and array.size and array.view(np.uint8).max() > 1:
        raise ProgramError(what, expected="0 or 1 for a bool", got=int(array.view(np.uint8).max()))
