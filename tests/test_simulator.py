"""Without a GPU, the CUDA twins run in Numba's simulator; it must be switched on before Numba is imported."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numba
import pytest

import varlen_rnn  # noqa: F401
from tests.conftest import LAUNCHED
from tests.waiting import HANGS

if not numba.config.ENABLE_CUDASIM:
    from numba.cuda.dispatcher import CUDADispatcher


@pytest.mark.skipif(bool(numba.config.ENABLE_CUDASIM), reason="inside the simulator already")
def test_cuda_twins_pass_in_the_simulator(tmp_path):
    tests, launched = Path(__file__).parent, tmp_path / "launched"
    files = [str(path) for path in sorted(tests.glob("test_*.py")) if "pytest.mark.twins" in path.read_text()]
    command = [sys.executable, "-m", "pytest", "-m", "twins", "-v", "-p", "no:cacheprovider", *files]
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1", LAUNCHED: str(launched)}
    run = subprocess.run(command, env=environment, cwd=tests.parent, capture_output=True, text=True, timeout=HANGS)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
    for file in ("test_kernels", "test_recurrence_kernels"):
        assert re.search(rf"{file}\.py::\S*\[cuda\S* PASSED", run.stdout), f"no test of {file} ran on cuda"
    assert "[cpu" not in run.stdout
    assert set(launched.read_text().split()) - {"forward_step", "backward_step"} == cuda_loops()


def cuda_loops():
    """Return the names of all CUDA loops, except those that are made for a cell."""
    loaded = [module for name, module in sys.modules.items() if name.startswith("varlen_rnn.")]
    found = [value for module in loaded for value in vars(module).values() if isinstance(value, CUDADispatcher)]
    return {kernel.py_func.__name__ for kernel in found}
