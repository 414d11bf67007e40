"""Symbols: numbers without values, on which the equations of a cell are traced."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class Symbol:
    """A number without a value, on which equations are traced."""

    __slots__ = ()

    def apply(self, operation: str, *operands: Any) -> Any:
        """Return the symbol for the result of an operation that has this symbol among its operands."""
        raise NotImplementedError


def traceable(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that also takes symbols; given a symbol, it records its own name as an operation."""

    @functools.wraps(function)
    def call(*operands: Any) -> Any:
        for operand in operands:
            if isinstance(operand, Symbol):
                return operand.apply(function.__name__, *operands)
        return function(*operands)

    return call
