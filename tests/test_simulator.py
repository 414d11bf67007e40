"""Without a GPU, the CUDA twins run in Numba's simulator; it must be switched on before Numba is imported."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from tests.waiting import HANGS


@pytest.mark.skipif(bool(numba.config.ENABLE_CUDASIM), reason="inside the simulator already")
def test_cuda_twins_pass_in_the_simulator():
    tests = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-m", "twins", "-v", "-p", "no:cacheprovider", str(tests)]
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1"}
    run = subprocess.run(command, env=environment, cwd=tests.parent, capture_output=True, text=True, timeout=HANGS)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    for file in ("test_kernels", "test_recurrence_kernels"):
        assert re.search(rf"{file}\.py::\S*\[cuda\S* PASSED", run.stdout), f"no test of {file} ran on cuda"
    assert "[cpu" not in run.stdout
