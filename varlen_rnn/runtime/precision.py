"""The precision of products of float32 on a CUDA device: float32, or TensorFloat-32 on tensor cores."""

from __future__ import annotations

import contextvars

from varlen_rnn.errors import InputError, check_choice

PRECISIONS = "fp32", "tf32"
_OF_TORCH = {
    "highest": "PyTorch's 'highest' is 'fp32' here",
    "high": "PyTorch's 'high' is 'tf32' here",
    "medium": "PyTorch's 'medium' computes in bfloat16, which kernels here do not: 'tf32' is the fastest precision",
}

_own_precision: contextvars.ContextVar[str | None] = contextvars.ContextVar("float32_matmul_precision", default=None)
_last_precision = "fp32"  # the last precision set in any context, for contexts without their own


def get_float32_matmul_precision() -> str:
    """Return the precision of products of float32 on a CUDA device, "fp32" or "tf32", for calls in this context.

    Examples
    --------
    >>> get_float32_matmul_precision()
    'fp32'
    """
    return _own_precision.get() or _last_precision


def set_float32_matmul_precision(precision: str) -> None:
    """Set the precision of products of float32 on a CUDA device.

    The setting has no effect on the CPU, which always computes products in the data type of their operands.  Products
    of float64 are float64 on every device.

    Like the number of threads, the precision holds for the whole process, except for a thread (or another context of
    `contextvars`, such as an asyncio task) that has called this function itself.

    Parameters
    ----------
    precision : {"fp32", "tf32"}
        "fp32", the default, multiplies and adds in float32, and a row has the same bits in every batch.  "tf32" lets
        tensor cores round factors to TensorFloat-32, which has 10 bits behind the binary point instead of 23, and add
        in float32.  With cuBLAS (extras `cublas12`, `cublas13`), a row's bits can then depend on other rows.

    Raises
    ------
    InputError
        If `precision` is neither "fp32" nor "tf32".

    Examples
    --------
    >>> set_float32_matmul_precision("tf32"); get_float32_matmul_precision()
    'tf32'
    >>> set_float32_matmul_precision("fp32")

    Source: `torch.set_float32_matmul_precision`, whose names are "highest" and "high".
    """
    global _last_precision
    if isinstance(precision, str) and precision in _OF_TORCH:
        expected, hint = " or ".join(map(repr, PRECISIONS)), _OF_TORCH[precision]
        raise InputError("precision", expected=expected, got=repr(precision), hint=hint)
    chosen = check_choice(precision, "precision", *PRECISIONS)
    _own_precision.set(chosen)
    _last_precision = chosen
