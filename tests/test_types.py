"""Public names have annotations that tell users and type checkers what they take and return."""

import inspect
import os
import subprocess
import sys
import textwrap
import typing
from pathlib import Path

import pytest

import varlen_rnn as vr
from varlen_rnn import checkpoint, errors, lod, memory, plan, random, selected_rows, threads

ROOT = Path(__file__).parent.parent
PUBLIC = [
    vr, vr.nn, vr.nn.functional, vr.optim, vr.cells, vr.baselines, sys.modules["varlen_rnn.data"], checkpoint, errors,
    lod, memory, plan, random, selected_rows, threads,
]  # fmt: skip


def is_ours(value):
    """Return whether a value is a function or class of the package that users call: kernels are Numba's to type."""
    module = getattr(value, "__module__", None) or ""
    return module.startswith("varlen_rnn") and not module.startswith("varlen_rnn.kernels")


def members(cls):
    """Yield the functions of a class by name: its methods, and what its properties read."""
    for name, member in vars(cls).items():
        if name.startswith("_") and name not in ("__init__", "__call__", "__getitem__", "__iter__", "__array__"):
            continue
        if isinstance(member, property):
            if inspect.isfunction(member.fget):
                yield name, member.fget
            else:  # read by a function of C
                assert name in cls.__annotations__, f"{cls.__name__}.{name} has no annotation"
        elif inspect.isfunction(getattr(member, "__func__", member)):
            yield name, getattr(member, "__func__", member)


def public_functions():
    """Return all public functions and methods, by name."""
    found = {}
    for module in PUBLIC:
        for name, value in vars(module).items():
            if name.startswith("_") or not is_ours(value):
                continue
            if inspect.isclass(value):
                own = members(value)
                found |= {f"{value.__module__}.{value.__qualname__}.{name}": function for name, function in own}
            elif inspect.isfunction(value) and not hasattr(value, "op"):  # an operator's inputs have no annotation
                found[f"{value.__module__}.{value.__qualname__}"] = value
    # What dataclasses and named tuples write is not in a file.
    return {name: f for name, f in found.items() if inspect.unwrap(f).__code__.co_filename.startswith(str(ROOT))}


def test_every_public_function_is_annotated():
    functions = public_functions()
    assert len(functions) > 200, "the functions are found"
    bare = {}
    for name, function in functions.items():
        signature = inspect.signature(function)
        missing = [
            p.name for p in signature.parameters.values() if p.annotation is p.empty and p.name not in ("self", "cls")
        ]
        if missing or signature.return_annotation is signature.empty:
            bare[name] = missing
    assert not bare


@pytest.mark.parametrize("function", [pytest.param(f, id=name) for name, f in public_functions().items()])
def test_annotations_can_be_read_at_run_time(function):
    typing.get_type_hints(function)


@pytest.fixture(scope="session")
def mypy(tmp_path_factory):
    """Return a function that runs mypy as CI does, and returns its lines; all runs share what it keeps of modules."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    cache = tmp_path_factory.mktemp("mypy")

    def run(*arguments):
        command = [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", "--cache-dir", cache]
        # Elsewhere than at home, so that the package is found as users find it: installed, with its py.typed.
        environment = os.environ | {"MYPYPATH": ""}
        folder = cache if arguments else ROOT
        result = subprocess.run(
            [*command, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert not result.stderr
        return result.stdout.splitlines()

    return run


def test_mypy_finds_nothing_wrong_with_the_package(mypy):
    lines = mypy()
    assert lines[-1].startswith("Success"), "\n".join(lines)
