"""What an import brings with it; how long it takes is for `python -m benchmarks startup`: no test asserts a time."""

import subprocess
import sys

import pytest

from tests.kernel_places import environment
from tests.waiting import HANGS

STEP = """
import sys, numpy as np, varlen_rnn as vr
from varlen_rnn.runtime.cache.disk import DiskCache
vr.manual_seed(0)
save, saved = DiskCache.save_overload, []
DiskCache.save_overload = lambda self, *args: saved.append(self) or save(self, *args)
layer = vr.nn.LSTM(3, 4)
y, _ = layer(vr.create_lod_tensor(np.ones((5, 3), np.float32), [[2, 3]]))
y.sum().backward()
print(len(saved), np.asarray(layer.weight_hh_l0.grad).tobytes().hex(), *sys.modules)
"""

WITHOUT_CUDA = """
import sys
sys.modules |= dict.fromkeys(("numba.cuda", "numba_cuda", "cuda"))
import numpy as np, varlen_rnn as vr
model = vr.nn.LSTM(3, 4)
optimizer = vr.optim.Adam(model.parameters())
y, _ = model(vr.create_lod_tensor(np.ones((5, 3), np.float32), [[2, 3]]))
y.sum().backward()
optimizer.step()
print(y.shape)
try:
    vr.Variable(np.ones(3)).to("cuda")
except vr.InputError as error:
    print(error)
"""


def modules_after(program):
    command = [sys.executable, "-c", f"{program}; import sys; print(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, check=True, text=True, timeout=HANGS).stdout.split())


def test_an_import_brings_nothing_that_only_some_programs_use():
    added = modules_after("import varlen_rnn") - modules_after("import numba")
    assert "varlen_rnn.nn.recurrent.layers" in added
    unwanted = {"scipy", "tqdm", "torch", "matplotlib", "pandas", "varlen_rnn.cli", "numba.cuda", "numba_cuda", "cuda"}
    assert not {name for name in added if name.split(".")[0] in unwanted or name in unwanted}


def test_the_cpu_needs_no_cuda():
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_CUDA], capture_output=True, text=True, timeout=HANGS, check=False
    )
    assert run.returncode == 0, run.stderr
    shape, error = run.stdout.splitlines()
    assert shape == "(5, 4)"
    assert error.startswith("CUDA: expected the package numba-cuda, got")
    assert "pip install numba-cuda[cu13]" in error


@pytest.mark.slow
def test_a_warm_start_compiles_nothing_and_computes_the_same(tmp_path):
    command, given = [sys.executable, "-c", STEP], environment(tmp_path)
    cold, warm = (
        subprocess.run(command, env=given, capture_output=True, check=True, text=True, timeout=HANGS).stdout.split()
        for _ in range(2)
    )
    assert int(cold[0]) > 0
    assert int(warm[0]) == 0
    assert warm[1] == cold[1]
    assert "scipy.linalg" not in warm[2:]
