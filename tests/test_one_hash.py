"""A training run in float32 has one hash: compiled for this processor, for each level, and as it was recorded."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import varlen_rnn as vr
from tests import one_hash
from tests.one_hash import FILE, RUNS
from tests.test_tile import MAC, X86, run_as_another
from varlen_rnn.runtime.cache.level import LEVELS, PROCESSOR, runs_here, variables_of
from varlen_rnn.runtime.processor import PROCESSORS

ROOT = Path(__file__).parent.parent
ALL_LEVELS = sorted({row.level.name for row in PROCESSORS.values() if row.level})


def digests(*options, **variables):
    """Return the digest of each run, computed by a process of its own."""
    free = {name: value for name, value in os.environ.items() if name not in variables_of(next(iter(LEVELS)))}
    command = [sys.executable, "-m", "tests.one_hash", *options, *RUNS]
    done = subprocess.run(command, cwd=ROOT, env=free | variables, check=True, stdout=subprocess.PIPE, text=True)
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    return {name: digest for digest, name in lines if name in RUNS}


@pytest.fixture(scope="module")
def native():
    return digests()


@pytest.mark.slow
@pytest.mark.parametrize("level", ALL_LEVELS)
def test_every_level_has_the_hash_of_the_host(native, level):
    if level not in LEVELS or not runs_here(level):
        pytest.skip(f"this host cannot run code for {level}")
    assert digests("--level", level) == native


@pytest.mark.slow
def test_the_hash_is_the_recorded_one(native):
    """After a change of bits on purpose, `python -m tests.one_hash --write` records it."""
    if PROCESSOR.level is None:
        pytest.skip("the record is for processors with a level")
    assert native == json.loads(FILE.read_text())["digests"]


@pytest.mark.slow
def test_vectors_of_numpy_do_not_decide_the_hash(native):
    """So the record holds for any NumPy 2."""
    core = np._core._multiarray_umath
    vectors = [name for name in core.__cpu_dispatch__ if core.__cpu_features__.get(name)]
    assert digests(NPY_DISABLE_CPU_FEATURES=" ".join(vectors)) == native


STATES = "gated delta net", "gated linear attention", "mlstm", "states that heads share", "additive attention"
OF_STATES = "from tests.one_hash import RUNS\nfor name in sys.argv[5:]:\n    print(RUNS[name](), name)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("triple", "features", "rows", "width"), [(X86, "avx avx512f", 12, 32), (X86, "avx", 6, 16), (MAC, "neon", 6, 16)]
)
def test_vectors_of_other_hosts_have_the_hash(native, triple, features, rows, width, tmp_path):
    """Runs with 16, 8 and 4 lanes have one hash on any host, although the width of panels depends on the lanes."""
    lines = run_as_another(OF_STATES, tmp_path, triple, features, rows, width, *STATES).splitlines()
    assert dict(line.split(maxsplit=1)[::-1] for line in lines) == {name: native[name] for name in STATES}


@pytest.mark.parametrize("level", LEVELS)
def test_a_run_for_a_level_has_all_variables_of_the_level(level, monkeypatch):
    """With the level alone, the tile is the level's, and the code is the host's."""
    given = []
    ended = lambda command, env, check: given.append((command[3:], env)) or SimpleNamespace(returncode=0)
    monkeypatch.setattr(one_hash, "subprocess", SimpleNamespace(run=ended))
    if not runs_here(level):
        with pytest.raises(vr.InputError, match="--level: expected a level that this processor can run"):
            one_hash.main(["--level", level, "gru"])
        return
    assert one_hash.main(["--level", level, "gru"]) == 0
    ((arguments, variables),) = given
    assert arguments == ["gru"]
    assert variables_of(level).items() <= variables.items()
    assert "NUMBA_CPU_NAME" in variables
