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


WITH_VECTORS = """
import sys
import llvmlite.binding as llvm
import numpy as np
host, features = llvm.get_host_cpu_features, llvm.targets.FeatureMap(dict.fromkeys(sys.argv[1].split(), True))
llvm.get_host_cpu_features = lambda: features
from varlen_rnn.products import vectors
llvm.get_host_cpu_features = host  # the compiler makes what the host can do of any vectors
from varlen_rnn.products import gemm, row_sums
assert (vectors.TILE_ROWS, vectors.panel_width(np.float32)) == (int(sys.argv[2]), int(sys.argv[3]))
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


@pytest.mark.slow
@pytest.mark.parametrize(("features", "rows", "width"), [("avx", 6, 16), ("avx avx512f", 12, 32)])
def test_products_with_vectors_of_other_hosts(features, rows, width, tmp_path):
    """Every host computes with every host's tile, in whatever vectors it has; such kernels go to a cache apart."""
    variables = os.environ | {"VARLEN_RNN_QUIET": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", WITH_VECTORS, features, str(rows), str(width)]
    subprocess.run(command, env=variables, check=True)


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
