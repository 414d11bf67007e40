"""Symbols: numbers without values, on which the equations of a cell are traced."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Symbol:
    """A number that is not known yet."""

    __slots__ = ()

    def apply(self, operation: str, *operands: Any) -> Any:
        """Return the result of an operation on operands of which one is this."""
        raise NotImplementedError


def traceable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of numbers that symbols take, too: they remember its name."""

    @functools.wraps(function)
    def call(*operands: Any) -> Any:
        for operand in operands:
            if isinstance(operand, Symbol):
                return operand.apply(function.__name__, *operands)
        return function(*operands)

    return call
