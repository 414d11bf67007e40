"""What `torch.compile` leaves as it is: it would follow Python into NumPy and our kernels, and break."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def eager(call: Callable[P, R]) -> Callable[P, R]:
    """Return a function that a compiled model calls, and does not look into.

    `torch.compiler.disable` alone would import torch's compiler, seconds, wherever this package is imported.
    """
    disabled: list[Callable[P, R]] = []

    @functools.wraps(call)
    def outside(*arguments: P.args, **named: P.kwargs) -> R:
        if "torch._dynamo" not in sys.modules:
            return call(*arguments, **named)
        if not disabled:
            disabled.append(torch.compiler.disable(call))
        return disabled[0](*arguments, **named)

    return outside
