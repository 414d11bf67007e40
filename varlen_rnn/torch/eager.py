"""Detect and handle torch features that need care: `torch.compile`, `torch.func` and hooks of saved tensors."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch.autograd import forward_ad

from varlen_rnn.errors import ProgramError

P = ParamSpec("P")
R = TypeVar("R")
_top_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)  # missing in older releases


def eager(call: Callable[P, R], in_graph: Callable[..., Any] | None = None) -> Callable[P, R]:
    """Return a version of `call` into which `torch.compile` does not trace, because it cannot trace kernels.

    While torch compiles or exports, `in_graph` runs instead, unless it returns None.  `torch.compiler.disable` is
    applied only if torch's compiler is already imported, because that import takes seconds.
    """
    disabled: list[Callable[P, R]] = []

    @functools.wraps(call)
    def outside(*arguments: P.args, **named: P.kwargs) -> R:
        if "torch._dynamo" not in sys.modules:
            return call(*arguments, **named)
        if in_graph is not None and torch.compiler.is_compiling():
            found = in_graph(*arguments, **named)
            if found is not None:
                return found
        if not disabled:
            disabled.append(torch.compiler.disable(call))
        return disabled[0](*arguments, **named)

    return outside


def eager_unless(in_graph: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that applies `eager` with `in_graph`."""
    return lambda call: eager(call, in_graph)


def is_transformed() -> bool:
    """Return whether `torch.func`, `vmap` or forward-mode differentiation is active, which wraps tensors."""
    return forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None


def refuse_transforms(name: str) -> None:
    """Raise inside of `torch.func`, `vmap` and forward-mode differentiation; the error begins with `name`."""
    if is_transformed():
        hint = "torch.autograd.grad works; torch.func, vmap and forward-mode derivatives do not"
        raise ProgramError(name, expected="plain tensors", got="tensors inside a transform", hint=hint)


def needs_gradient(*tensors: torch.Tensor | None) -> bool:
    """Return whether torch records calls, and one of the tensors needs a gradient."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def saves_elsewhere() -> bool:
    """Return whether hooks handle the tensors that are saved for backward, as in `torch.utils.checkpoint`."""
    return _top_hooks is not None and _top_hooks(True) is not None
