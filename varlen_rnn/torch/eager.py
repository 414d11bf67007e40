"""What torch does to a model beside running it: `torch.compile`, transforms of `torch.func`, hooks of saved tensors."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch.autograd import forward_ad

P = ParamSpec("P")
R = TypeVar("R")
_top_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)  # releases before it cannot tell


def eager(call: Callable[P, R]) -> Callable[P, R]:
    """Return a function that a compiled model calls, and does not look into: into NumPy and our kernels.

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


def is_transformed() -> bool:
    """Return whether tensors may stand for more than their memory: in `torch.func`, `vmap`, or derivatives forward."""
    return forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None


def saves_elsewhere() -> bool:
    """Return whether hooks handle tensors saved for backward; the hooks of `torch.utils.checkpoint` drop them."""
    return _top_hooks is not None and _top_hooks(True) is not None
