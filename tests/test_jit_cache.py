"""The disk cache: never an import error, found again by another process, blind to nothing, robust to damage."""

import os
import subprocess
import sys

import numpy as np

from varlen_rnn.cache.fingerprint import fingerprint

PROGRAM = """
import numpy as np
from varlen_rnn.kernels.rows import gather_rows
from varlen_rnn.kernels.pool import pool_sum
out = np.zeros((1, 2))
gather_rows(np.ones((3, 2)), np.array([1]), out)
assert out.sum() == 2
"""


def run(folder):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder), "HOME": "/nowhere"}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, timeout=120)


def test_found_again_and_robust_to_damage(tmp_path):
    run(tmp_path)
    files = {path: path.read_bytes() for path in (tmp_path / "varlen_rnn").glob("*/*.nbc")}
    assert files
    run(tmp_path)
    assert files == {path: path.read_bytes() for path in (tmp_path / "varlen_rnn").glob("*/*.nbc")}
    (path, content), *_ = files.items()
    path.write_bytes(content[: len(content) // 2])
    run(tmp_path)
    assert len(path.read_bytes()) > len(content) // 2


def test_an_unwritable_folder_costs_time_only(tmp_path):
    blocked = tmp_path / "a file, not a folder"
    blocked.write_text("")
    run(blocked)


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
