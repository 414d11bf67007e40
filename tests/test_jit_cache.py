"""The disk cache: never an import error, found again by another process, blind to nothing, robust to damage."""

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numba import config

import varlen_rnn
from tests.kernel_places import environment
from tests.waiting import HANGS
from varlen_rnn.runtime.cache import environment as environments
from varlen_rnn.runtime.cache import folders
from varlen_rnn.runtime.cache.announce import COLD_START
from varlen_rnn.runtime.cache.environment import SOURCES, fingerprint, this_environment
from varlen_rnn.runtime.jit import cpu_kernel

PROGRAM = """
import numpy as np
from varlen_rnn.kernels.rows import gather_rows
from varlen_rnn.kernels.pool import pool_sum
out = np.zeros((1, 2))
gather_rows(np.ones((3, 2)), np.array([1]), out)
assert out.sum() == 2
"""


def run(folder, **variables):
    """Run the program in a process of its own; return what it wrote to its standard error."""
    given = environment(folder, **{"HOME": "/nowhere", "VARLEN_RNN_QUIET": "0"} | variables)
    command = [sys.executable, "-c", PROGRAM]
    return subprocess.run(command, env=given, check=True, timeout=HANGS, stderr=subprocess.PIPE, text=True).stderr


def kernels(folder):
    return {path: path.read_bytes() for path in (folder / "varlen_rnn" / this_environment().name).glob("*.nbc")}


@pytest.mark.slow
def test_found_again_and_robust_to_damage(tmp_path):
    before, after = COLD_START.split("{seconds}")
    said = run(tmp_path)
    assert said.startswith(before)
    assert said.endswith(after + "\n")
    assert int(said[len(before) : -len(after) - 1]) > 0
    assert said.count("\n") == 1  # once, however many kernels there are
    files = kernels(tmp_path)
    assert files
    assert run(tmp_path) == ""
    assert files == kernels(tmp_path)
    (path, content), *_ = files.items()
    path.write_bytes(content[: len(content) // 2])
    assert run(tmp_path) == ""
    assert len(path.read_bytes()) > len(content) // 2


def saved_kernel(base):
    """Return a compiled kernel, the file that it was saved in, and a function that tries to load it again."""
    kernel = cpu_kernel(double)
    kernel(1)
    ((path, _), *_), (signature,) = kernels(base.parent).items(), kernel.signatures
    return path, lambda: kernel._cache.load_overload(signature, kernel.targetctx)


def test_a_file_with_a_wrong_bit_is_never_run(base):
    path, load = saved_kernel(base)
    assert load() is not None
    content = path.read_bytes()
    # In its place: a file that is cut off and written again goes to the disk at once, and waits for whoever uses that.
    with path.open("r+b", buffering=0) as file:
        for place in range(0, len(content), 17):
            for byte in (content[place] ^ 1 << place % 8, content[place]):
                file.seek(place)
                file.write(bytes([byte]))
                assert (load() is None) == (byte != content[place]), f"byte {place} of {len(content)}"
    for damaged in (b"", content[:-1], content + b"\0", content[:32]):
        path.write_bytes(damaged)
        assert load() is None
    path.write_bytes(content)
    assert load() is not None


def test_a_kernel_in_the_place_of_another_is_never_run(base):
    path, load = saved_kernel(base)
    cpu_kernel(triple)(1)
    (other,) = base.glob("*/triple-*.nbc")
    path.write_bytes(other.read_bytes())
    assert load() is None


def test_what_a_killed_process_left_goes_with_its_folder(base):
    folder = make_folder(base, "a" * 32, 0)
    (folder / ".varlen_rnn-0123456789abcdef-0123456789abcdef.part").touch()
    folders.remove(folder)
    assert not folder.exists()


def test_an_unwritable_folder_costs_time_only(tmp_path):
    blocked = tmp_path / "a file, not a folder"
    blocked.write_text("")
    assert run(blocked, VARLEN_RNN_QUIET="1") == ""


# Folders of other environments.


@pytest.fixture
def base(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    return tmp_path / "varlen_rnn"


def make_folder(base, name, days):
    """Make the folder of an environment that was last used so many days ago."""
    folder = base / name
    folder.mkdir(parents=True)
    (folder / "kernel-1.nbc").write_bytes(b"x")
    (folder / folders.MARKER).write_text(f"used {days} days ago")
    moment = time.time() - days * 24 * 3600
    os.utime(folder / folders.MARKER, (moment, moment))
    return folder


def test_folders_unused_for_long_are_removed_but_never_this_one_or_a_strangers(base):
    new, old, ours = (make_folder(base, letter * 32, days) for letter, days in (("a", 29), ("b", 31), ("c", 31)))
    stranger = make_folder(base, "not a digest", 31)
    unmarked = make_folder(base, "d" * 32, 31)
    (unmarked / folders.MARKER).unlink()  # its process has just made it, and not described it yet
    folders.remove_unused(keep=ours.name)
    assert [path.exists() for path in (new, old, ours, stranger, unmarked)] == [True, False, True, True, True]
    assert [folder.path for folder in folders.kernel_folders()] == [unmarked, new, ours]


def test_using_a_folder_keeps_it(base):
    folder = make_folder(base, "a" * 32, 31)
    folders.mark_used(folder)
    folders.remove_unused(keep="")
    assert folder.exists()
    assert folders.kernel_folders()[0].description == "used 31 days ago"


def test_what_others_remove_meanwhile_is_no_error(base):
    folders.remove(base / ("a" * 32))
    folders.mark_used(base / ("a" * 32))
    assert folders.kernel_folders() == []
    assert not folders.has_kernels(base / ("a" * 32))


def test_a_save_tidies_up(base):
    old = make_folder(base, "a" * 32, 31)
    run(base.parent)
    assert not old.exists()
    assert [folder.path.name for folder in folders.kernel_folders()] == [this_environment().name]


# Nothing stale.


def test_all_that_compiles_is_in_the_digest():
    package, compiling = Path(varlen_rnn.__file__).parent, 0
    for path in package.rglob("*.py"):
        nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        if any(node.module in ("varlen_rnn.runtime.jit", "numba.extending") for node in nodes):
            names = {str(folder) for folder in [path.relative_to(package), *path.relative_to(package).parents]}
            assert names & set(SOURCES), path
            compiling += 1
    assert compiling > 15, "the files that compile are found"


def test_an_upgrade_under_a_running_process_saves_nothing(base, monkeypatch):
    kernel = cpu_kernel(double)
    monkeypatch.setattr(environments, "_IMPORTED", "of another version")
    kernel(1)
    assert not base.exists()
    monkeypatch.undo()
    monkeypatch.setattr(config, "CACHE_DIR", str(base.parent))
    cpu_kernel(double)(1)
    assert list(base.glob("*/double-*.nbc"))


def test_an_environment_depends_on_sources_and_settings(monkeypatch):
    names = {this_environment.__wrapped__().name}
    monkeypatch.setattr(config, "BOUNDSCHECK", 1)
    names.add(this_environment.__wrapped__().name)
    monkeypatch.setattr(environments, "_IMPORTED", "of another version")
    names.add(this_environment.__wrapped__().name)
    assert len(names) == 3


def test_sources_in_an_archive_are_no_error_and_never_saved(base, monkeypatch):
    monkeypatch.setattr(environments, "SOURCES", ("nowhere",))
    assert environments._digest_of_sources() is None
    monkeypatch.setattr(environments, "_IMPORTED", None)
    assert not environments.sources_known()
    assert cpu_kernel(double)(1) == 2
    assert not list(base.rglob("*.nbc"))


FACTOR = 2.0
TABLE = np.array([1.0, 2.0])


def make(constant, helper, through_global):
    if through_global:
        return lambda x: helper(x) * constant * FACTOR * TABLE[0]
    return lambda x: helper(x) * constant


def double(x):
    return 2 * x


def triple(x):
    return 3 * x


def test_a_fingerprint_sees_closures_helpers_and_globals(monkeypatch):
    base = fingerprint(make(1.0, double, False))
    assert base == fingerprint(make(1.0, double, False))
    assert base != fingerprint(make(1.5, double, False))
    assert base != fingerprint(make(1.0, triple, False))
    base = fingerprint(make(1.0, double, True))
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    changed = fingerprint(make(1.0, double, True))
    assert base != changed
    monkeypatch.setitem(globals(), "TABLE", np.array([1.0, 3.0]))
    assert changed != fingerprint(make(1.0, double, True))
