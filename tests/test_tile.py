"""Vectors: tiles with those of other hosts than this one, and loops with the longest that there are."""

import os
import subprocess
import sys

import numba
import numpy as np
import pytest

from varlen_rnn.products import vectors

WITHOUT_AVX = """
import llvmlite.binding as llvm
import numpy as np
host = llvm.get_host_cpu_features()
narrow = llvm.targets.FeatureMap({name: host[name] and not name.startswith(("avx", "fma")) for name in host})
llvm.get_host_cpu_features = lambda: narrow
from varlen_rnn.products import gemm, row_sums, vectors
a, b, c = np.random.rand(50, 40), np.random.rand(50, 21), np.empty((50, 21))
assert vectors.panel_width(a.dtype) <= 8
np.testing.assert_allclose(row_sums.row_product(a, b), a.T @ b, rtol=1e-12)
gemm.product(a, a[:40, :21].copy(), c)
np.testing.assert_allclose(c, a @ a[:40, :21], rtol=1e-12)
"""


@pytest.mark.slow
def test_products_on_hosts_with_narrow_vectors():
    """Panels narrower than a tile has rows; the features belong to the environment, so one cache serves both hosts."""
    variables = os.environ | {"VARLEN_RNN_QUIET": "1"}
    subprocess.run([sys.executable, "-c", WITHOUT_AVX], env=variables, check=True)


# The table is asked for another host's row.  The compiler makes of it what this host can do, whose wait it takes, too.
AS_ANOTHER = """
import sys
import llvmlite.binding as llvm
import numpy as np

def answer(name, other):
    ours = getattr(llvm, name)
    setattr(llvm, name, lambda: other if sys._getframe(1).f_globals["__name__"].endswith("cache.level") else ours())

pause = ("llvm.x86.sse2.pause",) if llvm.get_process_triple().startswith("x86_64") else ("llvm.aarch64.isb", 15)
answer("get_process_triple", sys.argv[1])
answer("get_host_cpu_features", llvm.targets.FeatureMap(dict.fromkeys(sys.argv[2].split(), True)))
from varlen_rnn.products import gemm, row_sums, sync, vectors
sync.PROCESSOR = sync.PROCESSOR._replace(pause=pause)
assert (vectors.TILE_ROWS, vectors.panel_width(np.float32)) == (int(sys.argv[3]), int(sys.argv[4]))
"""
PRODUCTS = """
rng = np.random.default_rng(3)
for rows in (*range(15), 25, 300):
    a, b, weight = (rng.uniform(-1, 1, shape) for shape in ((rows, 37), (rows, 71), (37, 71)))
    np.testing.assert_allclose(row_sums.row_product(a, b), a.T @ b, rtol=1e-12, atol=1e-12)
    c = np.empty_like(b)
    gemm.product(a, weight, c)
    np.testing.assert_allclose(c, a @ weight, rtol=1e-12, atol=1e-12)
    alone = np.empty_like(b[:1])
    for r in range(min(rows, 25)):
        gemm.product(a[r : r + 1], weight, alone)
        np.testing.assert_array_equal(c[r], alone[0])
"""


# The instructions of this host are not used, so rounding uses integers, and sums float64.
IN_BFLOAT16 = """
import varlen_rnn as vr
from tests.oracles import bfloat16 as oracle
rng = np.random.default_rng(3)
for precision, product in (("bf16", oracle.amx_product), ("bf16-avx512", oracle.avx512_product)):
    with vr.float32_matmul_precision(precision):
        for rows in (3, 25):
            a, b, weight = (rng.standard_normal(shape).astype("f") for shape in ((rows, 37), (rows, 71), (37, 71)))
            a[0, :6], c = [np.nan, np.inf, -np.inf, 2.0**-140, 3.4e38, -0.0], np.empty_like(b)
            gemm.product(a, weight, c)
            np.testing.assert_array_equal(c, product(a, weight, np.zeros_like(b)))
            np.testing.assert_array_equal(row_sums.row_product(a, b), oracle.row_product(a, b, product))
"""


X86, MAC = "x86_64-unknown-linux-gnu", "arm64-apple-darwin23.1.0"


def run_as_another(program, cache, *arguments):
    """Run a program on the tile of another host; return what it prints.  Its kernels go to a cache apart."""
    variables = os.environ | {"VARLEN_RNN_QUIET": "1", "NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", AS_ANOTHER + program, *map(str, arguments)]
    return subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE, text=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("triple", "features", "rows", "width"),
    [(X86, "avx", 6, 16), (X86, "avx avx512f", 12, 32), (X86, "", 6, 8), (MAC, "neon", 6, 16)],
)
def test_products_with_vectors_of_other_hosts(triple, features, rows, width, tmp_path):
    """Every host computes with every host's tile, in whatever vectors it has."""
    programs = PRODUCTS + IN_BFLOAT16 if features == "avx" else PRODUCTS  # one of them, because compiling takes long
    run_as_another(programs, tmp_path, triple, features, rows, width)


SUMS = """
from tests.oracles.kernels import folded_sum
from varlen_rnn.runtime.jit import cpu_kernel

@cpu_kernel
def total(x, count):
    return vectors.sum_of(vectors.pointer(x, 0), count)

rng = np.random.default_rng(3)
for dtype in (np.float32, np.float64):
    width = vectors.panel_width(dtype)
    for count in (1, 7, 16, 33, 64, 150, 1000):
        for x in (rng.standard_normal(count).astype(dtype), np.full(count, -0.0, dtype)):
            padded = np.zeros(-(-count // width) * width, dtype)
            padded[:count] = x
            found, expected = total(padded, len(padded)), folded_sum(x)
            assert (found, np.signbit(found)) == (expected, np.signbit(expected)), (dtype, count)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("triple", "features", "rows", "width"), [(X86, "avx", 6, 16), (X86, "avx avx512f", 12, 32), (MAC, "neon", 6, 16)]
)
def test_sums_over_padded_rows_have_one_order(triple, features, rows, width, tmp_path):
    """Zeros behind the numbers, up to a whole panel of any host, change no bits, and no sign of a zero."""
    run_as_another(SUMS, tmp_path, triple, features, rows, width)


LAYER = """
import hashlib
import varlen_rnn as vr
from varlen_rnn.products import sync
from varlen_rnn.recurrence import schedule
from varlen_rnn.runtime import memory, threads
assert sync.COUNTER * 8 == memory.CACHE_LINE == int(sys.argv[5])
threads.SMALL_WORK, schedule._BARRIER_COST = 0, 0
vr.set_num_threads(2)
vr.manual_seed(0)
layer, total = vr.nn.LSTM(8, 96), hashlib.sha256()
for lengths in ([400], [40, 7, 0, 1] * 20):  # a team, and turns
    data = np.random.default_rng(1).standard_normal((sum(lengths), 8)).astype(np.float32)
    x = vr.Variable(vr.create_lod_tensor(data, [lengths]), requires_grad=True)
    y, _ = layer(x)
    (y * y).sum().backward()
    for array in (y, x.grad, *(p.grad for p in layer.parameters())):
        total.update(np.asarray(array).tobytes())
print(total.hexdigest())
"""


@pytest.mark.slow
def test_layers_with_the_tiles_and_cache_lines_of_other_hosts(tmp_path):
    """Lines of 128 bytes and other tiles change no bits of a layer, of its teams and of its turns."""
    mac = run_as_another(LAYER, tmp_path / "mac", MAC, "neon", 6, 16, 128)
    assert run_as_another(LAYER, tmp_path / "x86", X86, "avx avx512f", 12, 32, 64) == mac


@pytest.mark.skipif(not vectors.WIDE, reason="about AVX-512")
def test_loops_take_long_vectors_where_they_are_asked_for():
    @numba.njit
    def double(a):
        vectors.vectorise_widely()
        for i in range(len(a)):
            a[i] *= 2

    double(np.ones(100, np.float32))
    (assembly,) = double.inspect_asm().values()
    assert "zmm" in assembly
