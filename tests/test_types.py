"""Public names have annotations, which say what they take and return, and which mypy finds to hold."""

import inspect
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import varlen_rnn as vr
from varlen_rnn import checkpoint, communicator, errors, random
from varlen_rnn.rows import lod, plan, selected_rows
from varlen_rnn.runtime import memory, threads

ROOT = Path(__file__).parent.parent
FOLDER = str(Path(vr.__file__).parent)
PACKAGES = [vr, vr.nn, vr.optim, vr.cells, vr.baselines, vr.distributed, sys.modules["varlen_rnn.data"]]
MODULES = [
    *PACKAGES,
    vr.nn.functional,
    checkpoint,
    communicator,
    errors,
    lod,
    memory,
    plan,
    random,
    selected_rows,
    threads,
]


def public_values():
    """Yield the functions and classes of the public modules that are written there, by name."""
    for module in MODULES:
        for name, value in vars(module).items():
            where = getattr(value, "__module__", None) or ""
            # Kernels have types of Numba, and an operator's inputs no annotation: what has one is a constant.
            is_ours = where.startswith("varlen_rnn.") if module in PACKAGES else where == module.__name__
            is_typed = not where.startswith("varlen_rnn.kernels.") and not hasattr(value, "op")
            if not name.startswith("_") and is_ours and is_typed:
                yield f"{where}.{name}", value


def own_members(cls):
    """Yield what a class defines itself, by name, but for what `dataclass` and `NamedTuple` write."""
    for name, member in vars(cls).items():
        function = getattr(member, "fget", getattr(member, "__func__", member))
        is_public = not name.startswith("_") or name in ("__init__", "__call__", "__getitem__", "__iter__", "__array__")
        if is_public and (isinstance(member, property) or inspect.isfunction(function)):
            if not inspect.isfunction(function) or inspect.unwrap(function).__code__.co_filename.startswith(FOLDER):
                yield name, function


def public_functions():
    """Return the public functions, methods, and functions that properties read, by name."""
    found = {}
    for name, value in public_values():
        if inspect.isclass(value):
            found |= {f"{name}.{part}": (value, function) for part, function in own_members(value)}
        elif inspect.isfunction(value):
            found[name] = None, value
    return found


def unannotated(owner, name, function):
    """Return what has no annotation of a function, or of a property that a function in C reads."""
    if not inspect.isfunction(function):
        return [] if name in owner.__annotations__ else ["type"]
    signature = inspect.signature(function)
    given = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    bare = [p.name for p in given if p.annotation is p.empty]
    return bare + ["return"] * (signature.return_annotation is signature.empty)


def test_every_public_function_is_annotated():
    functions = public_functions()
    assert len(functions) > 200, "the functions are found"
    bare = {name: unannotated(cls, name.rpartition(".")[2], f) for name, (cls, f) in functions.items()}
    assert {name: missing for name, missing in bare.items() if missing} == {}


def test_annotations_can_be_read_at_run_time():
    for _, function in public_functions().values():
        if inspect.isfunction(function):
            typing.get_type_hints(function)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_packages_list_what_they_export(package):
    """Type checkers take only what is listed for exported."""
    public = {n for n, v in vars(package).items() if not n.startswith("_") and not inspect.ismodule(v)}
    assert public - set(package.__all__) - {"TYPE_CHECKING"} == set()
    assert all(hasattr(package, name) for name in package.__all__)


def mypy(cache, folder, *arguments):
    """Return the lines that mypy prints, with the settings of the package."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    command = [sys.executable, "-m", "mypy", f"--config-file={ROOT / 'pyproject.toml'}", f"--cache-dir={cache}"]
    result = subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert result.stderr == ""
    return result.stdout.splitlines()


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Return the folder in which runs of mypy find what the runs before them learnt of the libraries."""
    return tmp_path_factory.mktemp("mypy")


@pytest.mark.slow
def test_mypy_finds_nothing_in_the_package(cache):
    lines = mypy(cache, ROOT, "--warn-unused-ignores", "--warn-unused-configs")
    assert lines[-1].startswith("Success"), "\n".join(lines)


# What a user writes, and at the end of a line the kind of error that must be found there.
USER = """
import numpy as np
import varlen_rnn as vr

x = vr.create_lod_tensor(np.zeros((5, 8), np.float32), [[2, 0, 3]])
vr.create_lod_tensor(np.zeros((5, 8), np.float32), [2, 0, 3])  # list-item
lstm = vr.nn.LSTM(8, 16, bidirectional=True)
vr.nn.LSTM(8, "16")  # arg-type
vr.nn.LSTM(8, 16, bidirektional=True)  # call-arg
y, (h_n, c_n) = lstm(x)
lstm(x, (h_n, c_n))[0].reshape(-1, 2)
lstm(x, h_n, c_n)  # arg-type, call-arg
vr.nn.LSTM(8, 16, direction="backwards")  # arg-type
lstm.all_states(x)[1][0].sum()
h, c = vr.nn.LSTMCell(8, 16)(np.zeros((2, 8), np.float32), (h_n[0], c_n[0]))
loss = (vr.sequence_pool(y, "max") * h_n.sum()).mean()
vr.sequence_pool(y)  # call-arg
loss.backwards()  # attr-defined
print(lstm.weight_hh_l0.grad, vr.nn.functional.cross_entropy(h_n, [1], "average"))  # arg-type
optimizer = vr.optim.Adam(lstm.parameters(), lr=1e-3)
vr.optim.Adam(lstm)  # arg-type


class Model(vr.nn.Module):
    def __init__(self) -> None:
        self.layer = vr.nn.GRU(8, 16)

    def forward(self, x: vr.LoDTensor, scale: float) -> vr.Variable:
        return self.layer(x)[0] * scale


Model()(x)  # call-arg
Model()(x, 2.0).item()
for batch, labels in vr.data.batches([[1, 2], [3]], [0, 1], batch_size=2):
    batch.lod()
    batch.data = labels  # misc
with vr.program_guard() as program:
    fed = vr.feed_data("x", shape=[-1, 4], dtype="float32")
vr.Executor().run(program, {"x": x}, fetch_list=[fed])
vr.Executor().run(program.desc)  # arg-type


@vr.operator
def halved(x, times: int = 1):  # type: ignore[no-untyped-def]
    return x.data * 0.5**times


@halved.infer
def infer(x: vr.TensorSpec, times: int) -> vr.TensorSpec:
    return x


halved(loss, times=2).item()
halved(loss, times="2")  # arg-type
"""


@pytest.mark.slow
def test_mypy_finds_what_users_do_wrong(cache, tmp_path):
    (tmp_path / "user.py").write_text(USER)
    lines = mypy(cache, tmp_path, "--strict", "user.py")
    found = {
        (int(n), code) for n, code in re.findall(r"user\.py:(\d+): error: .*\[([a-z-]+)\]$", "\n".join(lines), re.M)
    }
    marked = [(n, re.search(r"  # ([a-z, -]+)$", line)) for n, line in enumerate(USER.splitlines(), 1)]
    wanted = {(n, code) for n, mark in marked if mark for code in mark[1].split(", ")}
    assert found == wanted, "\n".join(lines)
