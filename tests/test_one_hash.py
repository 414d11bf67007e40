"""A training run in float32 has one hash: compiled for this processor, for each level, and as it was recorded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.one_hash import FILE, RUNS
from varlen_rnn.runtime.cache.level import LEVELS, PROCESSOR, runs_here, variables_of
from varlen_rnn.runtime.processor import PROCESSORS

ROOT = Path(__file__).parent.parent
ALL_LEVELS = sorted({row.level.name for row in PROCESSORS.values() if row.level})


def digests(**variables):
    """Return the digest of each run, computed by a process of its own."""
    free = {name: value for name, value in os.environ.items() if name not in variables_of(next(iter(LEVELS)))}
    command = [sys.executable, "-m", "tests.one_hash", *RUNS]
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
    assert digests(**variables_of(level)) == native


@pytest.mark.slow
def test_the_hash_is_the_recorded_one(native):
    """After a change of bits on purpose, `python -m tests.one_hash --write` records it."""
    recorded = json.loads(FILE.read_text())
    if recorded["numpy"] != np.__version__ or PROCESSOR.level is None:
        pytest.skip(f"the record is for NumPy {recorded['numpy']}, and for processors with a level")
    assert native == recorded["digests"]
