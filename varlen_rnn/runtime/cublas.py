"""Products of float32 by cuBLAS in TensorFloat-32, called through CuPy; the package uses CuPy for nothing else.

cuBLAS's matrices are column-major.  A row-major matrix (rows, columns) is the column-major matrix (columns, rows), so
`c = a @ w` is computed as `c^T = w^T @ a^T`, and nothing is transposed.  This has never run on a GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Cublas:
    """Calls cuBLAS through CuPy's module `cupy_backends.cuda.libs.cublas`."""

    def __init__(self, cupy: Any, library: Any) -> None:
        self._cupy, self._library = cupy, library

    def multiply(self, a: Any, a_column: int, weight: Any, transposed: bool, c: Any, c_column: int, add: bool) -> None:
        """Set `c[:, c_column:][:, :columns]` to `a[:, a_column:][:, :depth] @ weight`, or add the product if `add`.

        The arrays are C-contiguous DeviceArrays of float32.  The shape of `weight` is (depth, columns), or (columns,
        depth) if `transposed`.
        """
        columns, depth = weight.shape if transposed else weight.shape[::-1]
        cupy, library, real = self._cupy, self._library, self._cupy.cuda.runtime.CUDA_R_32F
        one, beta = np.ones(1, np.float32), np.full(1, add, np.float32)
        left = weight.address, real, weight.shape[1]
        right = a.address + a_column * a.itemsize, real, a.shape[1]
        out = c.address + c_column * c.itemsize, real, c.shape[1]
        how = library.CUBLAS_COMPUTE_32F_FAST_TF32, library.CUBLAS_GEMM_DEFAULT
        with cupy.cuda.Stream.null:  # the default stream, on which numba-cuda launches all kernels
            handle = cupy.cuda.device.get_cublas_handle()
            flip = library.CUBLAS_OP_T if transposed else library.CUBLAS_OP_N, library.CUBLAS_OP_N
            sizes = columns, len(a), depth
            library.gemmEx(handle, *flip, *sizes, one.ctypes.data, *left, *right, beta.ctypes.data, *out, *how)


def find() -> Cublas | None:
    """Return a Cublas, or None if CuPy or its cuBLAS is not installed."""
    try:
        import cupy
        from cupy_backends.cuda.libs import cublas  # CuPy loads cuBLAS when this name is imported
    except ImportError:
        return None
    return Cublas(cupy, cublas)
