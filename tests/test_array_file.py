"""Files of arrays: the bytes of the safetensors library, refusals as of the library, and no copy in memory."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import varlen_rnn as vr
from tests.waiting import HANGS
from varlen_rnn.array_file import pieces, read_arrays

KINDS = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "float16",
    "int32",
    "uint32",
    "float32",
    "int64",
    "uint64",
    "float64",
]
LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the figures of Linux")


def written(arrays, metadata=None):
    file = io.BytesIO()
    file.writelines(pieces(arrays, metadata or {}))
    return file.getvalue()


def _drawn(rng, rows, kind):
    """Return numbers from -4 to 5, from 0 to 9 if the type is unsigned: a cast of negative ones is undefined in C."""
    return (rng.random((rows, 3)) * 9 - 4 * (np.dtype(kind).kind not in "ub")).astype(kind)


def some_arrays():
    rng = np.random.default_rng(0)
    return {f"{kind}/{rows}": _drawn(rng, rows, kind) for kind in KINDS for rows in (2, 0, 3)} | {
        'quoted "\\ \n\x01\x7f é 😀': np.array(3.0),
        "no rows": np.zeros((0, 2)),
    }


def test_the_bytes_are_the_librarys():
    arrays = some_arrays()
    metadata = {"a": 'text "\n'}
    assert written(arrays, metadata) == safetensors.numpy.save(arrays, metadata)
    assert written({}) == safetensors.numpy.save({})


@pytest.mark.parametrize("size", [3, 2**20, 2**20 + 7])
def test_strided_and_foreign_arrays_are_written_in_the_order_of_c(size):
    plain = np.arange(4 * size, dtype=np.float32).reshape(4, size)
    arrays = {
        "fortran": np.asfortranarray(plain),
        "part": plain[::2, ::3],
        "turned": plain.T,
        "swapped": plain.astype(">f4"),
    }
    back = safetensors.numpy.load(written(arrays))
    for name, array in arrays.items():
        assert back[name].dtype == np.float32
        assert np.array_equal(back[name], array), name


@pytest.mark.parametrize("mmap", [False, True])
def test_files_of_the_library_are_read(tmp_path, mmap):
    arrays = some_arrays()
    safetensors.numpy.save_file(arrays, tmp_path / "file", {"a": "b"})
    metadata, found = read_arrays(tmp_path / "file", mmap)
    assert metadata == {"a": "b"}
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert np.array_equal(found[name], array)
        assert found[name].flags.writeable != mmap
        assert found[name].flags.carray or mmap


def entry(**changes):
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes


HEADERS = {
    "a list": [entry()],
    "a number": 3,
    "no object": {"a": 3},
    "no shape": {"a": {"dtype": "F32", "data_offsets": [0, 8]}},
    "another key": {"a": entry(more=1)},
    "unknown type": {"a": entry(dtype="F31")},
    "a type of a list": {"a": entry(dtype=["F32"])},
    "negative": {"a": entry(shape=[-2])},
    "half": {"a": entry(shape=[2.0])},
    "true": {"a": entry(shape=[True, 2])},
    "too large": {"a": entry(shape=[3])},
    "too small": {"a": entry(shape=[1])},
    "overflow": {"a": entry(shape=[2**62, 4, 2])},
    "beyond the end": {"a": entry(shape=[4], data_offsets=[0, 16])},
    "one offset": {"a": entry(data_offsets=[8])},
    "backwards": {"a": entry(shape=[0], data_offsets=[8, 0])},
    "a hole": {"a": entry(shape=[1], data_offsets=[4, 8])},
    "bytes left": {"a": entry(shape=[1], data_offsets=[0, 4])},
    "overlap": {"a": entry(), "b": entry()},
    "numbers as metadata": {"__metadata__": {"a": 1}, "a": entry()},
    "a list as metadata": {"__metadata__": [], "a": entry()},
    "many axes": {"a": entry(shape=[1] * 70 + [2])},
}


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
@pytest.mark.parametrize("mmap", [False, True])
def test_headers_that_do_not_fit_are_errors(tmp_path, header, mmap):
    text = json.dumps(header).encode()
    (tmp_path / "file").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(vr.CheckpointError, match="a safetensors file"):
        vr.load(tmp_path / "file", mmap)


def test_of_damaged_files_none_is_read_otherwise_than_by_the_library(tmp_path):
    rng, path, refused = np.random.default_rng(0), tmp_path / "file", 0
    whole = written({"a": np.arange(3.0), "b": np.arange(5, dtype=np.int16)}, {"by": "me"})
    for _ in range(600):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole) - 34, rng.integers(1, 4)):
            damaged[place] = rng.choice(damaged) if rng.random() < 0.7 else rng.integers(256)
        path.write_bytes(damaged)
        try:
            _, found = read_arrays(path, mmap=False)
        except (ValueError, TypeError):
            refused += 1
            continue
        expected = safetensors.numpy.load(bytes(damaged))
        assert found.keys() == expected.keys()
        assert all(
            np.array_equal(found[name], expected[name], equal_nan=found[name].dtype.kind == "f") for name in found
        )
    assert 200 < refused < 600


def test_a_misaligned_array_of_another_writer_is_aligned(tmp_path):
    header = json.dumps(
        {"b": entry(dtype="I8", shape=[1], data_offsets=[0, 1]), "a": entry(data_offsets=[1, 9])}
    ).encode()
    (tmp_path / "file").write_bytes(
        len(header).to_bytes(8, "little") + header + b"\x07" + np.array([1, 2], "<f4").tobytes()
    )
    _, found = read_arrays(tmp_path / "file", mmap=True)
    assert found["a"].flags.aligned
    assert found["a"].tolist() == [1, 2]


def test_a_map_outlives_a_replacement_of_its_file(tmp_path):
    path = tmp_path / "file"
    vr.save(path, a={"x": np.ones(1000)})
    mapped = vr.load(path, mmap=True)["a"]["x"]
    vr.save(path, a={"x": mapped + 1})
    assert (mapped == 1).all()
    assert (vr.load(path)["a"]["x"] == 2).all()
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 3


# What a process may take besides the arrays: the system refuses more private memory than the limit, and maps of files
# do not count.
LIMITED = """
import resource, sys
import numpy as np, varlen_rnn as vr

def private():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData")) << 10

def limit(more):
    resource.setrlimit(resource.RLIMIT_DATA, (private() + more, -1))

path, megabytes = sys.argv[1], int(sys.argv[2])
small = {"x": np.ones(3)}
vr.save(path, a=small), vr.load(path), vr.load(path, mmap=True)  # what the first call imports
"""


def in_limits(code, *arguments):
    run = subprocess.run(
        [sys.executable, "-c", LIMITED + code, *map(str, arguments)], capture_output=True, text=True, timeout=HANGS
    )
    assert run.returncode == 0, run.stderr[-2000:]


@LINUX
def test_the_limit_is_one(tmp_path):
    in_limits("""
limit(2**25)
try:
    np.ones(2**23)
except MemoryError:
    sys.exit()
raise AssertionError
""", tmp_path / "file", 0)  # fmt: skip


@LINUX
def test_save_and_load_copy_nothing_in_memory(tmp_path):
    in_limits("""
a, b = np.ones((megabytes, 2**16)), np.ones((megabytes, 2**16)).T
limit(2**25)
vr.save(path, a={"a": a, "b": b})
found = vr.load(path, mmap=True)["a"]
assert (found["a"][-1] == 1).all() and found["b"].shape == b.shape
vr.save(path + " 2", a=found)
size = a.nbytes + b.nbytes
del a, b
limit(size + 2**25)
assert vr.load(path)["a"].keys() == {"a", "b"}
""", tmp_path / "file", 100)  # fmt: skip
    assert (tmp_path / "file").read_bytes() == (tmp_path / "file 2").read_bytes()


def test_an_array_of_more_than_two_to_the_31_elements_is_written_and_mapped(tmp_path):
    """The array has its elements thousands of times, and the file is sparse: neither takes space."""
    own = np.zeros(2**15 + 2**16, np.int8)
    own[0], own[-1] = 3, 5
    array = np.lib.stride_tricks.sliding_window_view(own, 2**16)
    assert array.size > 2**31
    walk = pieces({"model/w": array}, {})
    head = bytes(next(walk))
    first, total, last = None, 0, None
    for piece in walk:
        first, total, last = piece[0] if first is None else first, total + len(piece), piece[-1]
    assert (first, total, last) == (3, array.size, 5)

    with open(tmp_path / "file", "wb") as file:
        file.write(head)
        file.truncate(len(head) + total)
        file.seek(-1, os.SEEK_END)
        file.write(b"\x05")
    _, found = read_arrays(tmp_path / "file", mmap=True)
    assert found["model/w"].shape == array.shape
    assert (found["model/w"][-1, -1], found["model/w"][-1, -2]) == (5, 0)
