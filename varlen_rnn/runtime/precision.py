"""The precision of products of float32: float32 itself, TensorFloat-32 on a CUDA device, or bfloat16 on the CPU.

Products ask for the precision where they are called, never inside kernels.  An example, of three products on the CPU:

    vr.set_float32_matmul_precision("tf32")         x @ w is float32, because the CPU has no TensorFloat-32
    with vr.float32_matmul_precision("bf16"):       x @ w rounds both factors to bfloat16, and adds in float32
    after the `with` block                          x @ w is float32 again
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from varlen_rnn.errors import InputError, PlaceError, check_choice

R = TypeVar("R")

PRECISIONS = "fp32", "tf32", "bf16", "bf16-avx512"
ON_CUDA = "fp32", "tf32"  # of which kernels on a CUDA device exist
_OF_TORCH = {"highest": "fp32", "high": "tf32", "medium": "bf16"}

_own_precision: contextvars.ContextVar[str | None] = contextvars.ContextVar("float32_matmul_precision", default=None)
_last_precision = "fp32"  # the last precision set in any context, for contexts without their own


def get_float32_matmul_precision() -> str:
    """Return the precision of products of float32 for calls in this context.

    Returns
    -------
    str
        "fp32", "tf32", "bf16" or "bf16-avx512"; see `set_float32_matmul_precision`.

    Examples
    --------
    >>> get_float32_matmul_precision()
    'fp32'
    """
    return _own_precision.get() or _last_precision


def set_float32_matmul_precision(precision: str) -> None:
    """Set the precision of products of float32.

    Only factors are rounded.  Weights, states, gradients, sums and saved files stay float32, and products of float64
    stay float64.  A gradient is computed at the precision of its forward pass, also if another one is set meanwhile.

    Like the number of threads, the precision holds for the whole process, except for a thread (or another context of
    `contextvars`, such as an asyncio task) that has called this function itself.  A layer's own precision counts more.

    Parameters
    ----------
    precision : {"fp32", "tf32", "bf16", "bf16-avx512"}
        "fp32", the default, multiplies and adds in float32.

        "tf32" lets tensor cores of a CUDA device round factors to TensorFloat-32, which has 10 bits behind the binary
        point instead of 23, and add in float32.  With cuBLAS (extras `cublas12`, `cublas13`), a row's bits can then
        depend on other rows.  The CPU has no TensorFloat-32, and computes in float32.

        "bf16" rounds factors to bfloat16, which has 7 bits behind the binary point, and adds in float32, in the order
        of AMX, the matrix unit of Intel's processors.  The bits are the same on any processor.  Only the CPU has it: a
        product on a CUDA device raises an error.

        "bf16-avx512" also rounds factors to bfloat16, and adds in the order of AVX512-BF16, whose bits are others.

    Raises
    ------
    InputError
        If `precision` is none of these.

    Examples
    --------
    >>> set_float32_matmul_precision("bf16"); get_float32_matmul_precision()
    'bf16'
    >>> set_float32_matmul_precision("fp32")

    Source: `torch.set_float32_matmul_precision`, whose names are "highest", "high" and "medium".
    """
    global _last_precision
    chosen = check_precision(precision)
    _own_precision.set(chosen)
    _last_precision = chosen


@contextlib.contextmanager
def float32_matmul_precision(precision: str) -> Iterator[None]:
    """Compute products of float32 at a precision, for a part of a program and in this context only.

    After the `with` block, the precision is as before it.  A gradient of a product inside the block is computed at the
    block's precision, wherever `backward` is called.  The result can also decorate a function.

    Parameters
    ----------
    precision : {"fp32", "tf32", "bf16", "bf16-avx512"}
        As in `set_float32_matmul_precision`.

    Raises
    ------
    InputError
        If `precision` is none of these.

    Examples
    --------
    >>> with float32_matmul_precision("bf16"):
    ...     print(get_float32_matmul_precision())
    bf16
    >>> get_float32_matmul_precision()
    'fp32'

    Source: `torch.autocast` has the same purpose, but rounds the results of products, too.
    """
    before = _own_precision.get()
    try:
        _own_precision.set(check_precision(precision))
        yield
    finally:
        _own_precision.set(before)


def at_precision(precision: str | None, function: Callable[..., R], *inputs: Any, **named: Any) -> R:
    """Return `function(*inputs, **named)` computed at a precision; None stands for the precision in force."""
    before = _own_precision.get()
    if precision is None or precision is before:
        return function(*inputs, **named)
    try:
        _own_precision.set(precision)
        return function(*inputs, **named)
    finally:
        _own_precision.set(before)


def fixed_at(precision: str, function: Callable[..., R]) -> Callable[..., R]:
    """Return a function that computes `function` at a precision, also while another precision is in force."""
    return functools.update_wrapper(functools.partial(at_precision, precision, function), function)


def precision_on_cuda(what: str, precision: str | None = None) -> str:
    """Return a precision, or the one in force; raise an error that begins with `what` if no CUDA kernel has it."""
    precision = precision or get_float32_matmul_precision()
    if precision not in ON_CUDA:
        expected, hint = " or ".join(map(repr, ON_CUDA)), "products in bfloat16 run on the CPU alone: x.to('cpu')"
        raise PlaceError(f"{what}, precision on cuda", expected=expected, got=repr(precision), hint=hint)
    return precision


def check_precision(precision: object) -> str:
    """Return a precision, or raise if there is no such precision."""
    if isinstance(precision, str) and precision in _OF_TORCH:
        expected, hint = " or ".join(map(repr, PRECISIONS)), f"PyTorch's {precision!r} is {_OF_TORCH[precision]!r} here"
        raise InputError("precision", expected=expected, got=repr(precision), hint=hint)
    return check_choice(precision, "precision", *PRECISIONS)
