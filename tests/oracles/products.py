"""Products of NumPy that look again where they are told of an invalid value.

"invalid value encountered in matmul" came twice, in oracles of finite numbers, and 450,000 products on two hosts did
not raise it again.  BLAS is suspected: it has set the processor's flag for right results before (numpy issue 24067).
So a product that is told of one keeps all that tells why, and fails only if a number is wrong.
"""

import os
import tempfile
import warnings

import numpy as np
from llvmlite import binding as llvm
from threadpoolctl import threadpool_info


def matmul(a, b, multiply=np.matmul):
    """Return `a @ b`; warn where the flag of an invalid value was set, and raise where a number is wrong."""
    told = []
    with np.errstate(invalid="call", call=lambda *event: told.append(event)):
        result = multiply(a, b)
    if told:
        _look_again(np.asarray(a), np.asarray(b), result)
    return result


def _look_again(a, b, result):
    wide, dtype = (a.astype(np.float64), b.astype(np.float64)), np.result_type(a, b)
    with np.errstate(all="ignore"):
        expected, of_magnitudes = _without_blas(*wide), _without_blas(*map(np.abs, wide))
        close = np.abs(result - expected) <= a.shape[-1] * np.finfo(dtype).eps * of_magnitudes
        same = np.isnan(result) & np.isnan(expected) | (result == expected.astype(dtype))
    blas = [f"{one['internal_api']} {one['version']} {one.get('architecture')}" for one in threadpool_info()]
    processor = f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()}"
    handle, path = tempfile.mkstemp(prefix="product-", suffix=".npz")
    with os.fdopen(handle, "wb") as file:
        np.savez(file, a=a, b=b, result=result, expected=expected, blas=blas, processor=processor)
    found = f"an invalid value in a product of {a.dtype} {a.shape} and {b.shape}, by {', '.join(blas)}: see {path}"
    assert (close | same).all(), f"wrong numbers, and {found}"
    warnings.warn(f"right numbers, though BLAS told of {found}", stacklevel=3)


def _without_blas(a, b):
    """Return a product of float64, which NumPy computes of objects one by one."""
    return np.asarray(np.matmul(a.astype(object), b.astype(object)), np.float64)
