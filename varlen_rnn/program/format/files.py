"""Programs as safetensors files: the description is JSON in the metadata, persistables are tensors; no pickle.

Files are untrusted input.  Loading runs no code of the file, and takes time and memory in proportion to its size.
"""

from pathlib import Path

from varlen_rnn.array_file import pieces, read_arrays
from varlen_rnn.errors import ProgramError, check_path
from varlen_rnn.program.format import schema
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.runtime.device import moved
from varlen_rnn.runtime.place import HOST
from varlen_rnn.whole_file import write_file

_NAME = "varlen_rnn program "
_FORMAT = f"{_NAME}1"  # with the version of the file's layout; the description has its own version
_RESERVED = "__metadata__"  # a name that safetensors does not allow for tensors


def to_bytes(desc, persistables):
    """Return a description and the values of its persistables as the content of a safetensors file."""
    if _RESERVED in persistables:
        raise ProgramError(f"variable {_RESERVED!r}", expected="another name", hint="safetensors reserves this name")
    arrays = {name: moved(value.data, HOST) for name, value in persistables.items()}
    return b"".join(map(bytes, pieces(arrays, {_FORMAT: schema.to_json(desc)})))


def save(path, desc, persistables):
    """Write the result of `to_bytes` to a file, which appears whole or not at all."""
    write_file(check_path(path, "save, path"), to_bytes(desc, persistables))


def load(path):
    """Return the description and the persistables of a file."""
    path = check_path(path, "load, path")
    return from_bytes(Path(path).read_bytes(), path)


def from_bytes(content, what="program"):
    """Return the description and the persistables from the content of a file; errors begin with `what`."""
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise ProgramError(what, expected="bytes", got=type(content).__name__)
    try:
        metadata, arrays = read_arrays(bytes(content))
    except (ValueError, TypeError, RecursionError) as error:
        raise ProgramError(what, expected="a whole safetensors file", got=str(error)[:200]) from error
    desc = schema.from_json(_description(metadata, what))
    return desc, {name: LoDTensor.wrap(array) for name, array in arrays.items()}


def _description(metadata, what):
    if metadata.keys() == {_FORMAT}:
        return metadata[_FORMAT]
    hint = None
    if any(name.startswith("varlen_rnn checkpoint ") for name in metadata):
        hint = "a checkpoint has only arrays: read it with varlen_rnn.load"
    elif any(name.startswith(_NAME) and name != _FORMAT for name in metadata):
        hint = "a newer varlen_rnn wrote it"
    got = f"a file with the metadata {sorted(metadata)}"[:100]
    raise ProgramError(what, expected=f"a file of the format {_FORMAT!r}", got=got, hint=hint)
