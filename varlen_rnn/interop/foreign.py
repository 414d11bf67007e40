"""Functions that conversions from and to other libraries share."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from varlen_rnn.errors import DTypeError, LoDError, ProgramError, ShapeError
from varlen_rnn.rows.lod import LoD, LoDTensor
from varlen_rnn.tape.variable import Variable


def library(name: str, package: str | None = None) -> Any:
    """Import and return a library; if it is missing, raise an error that says how to install its package."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        hint = f"pip install {package or name}"
        raise ProgramError(name, expected="an installed package", got="no such package", hint=hint) from error


def tensor_of(value: Any, what: str) -> LoDTensor:
    """Return the LoDTensor of `value`, a LoDTensor or Variable; raise unless it has at least one level."""
    tensor = value.value if isinstance(value, Variable) else value
    if not isinstance(tensor, LoDTensor):
        raise DTypeError(what, expected="a LoDTensor or a Variable", got=type(value).__name__)
    if not tensor.num_levels:
        raise LoDError(what, expected="a LoDTensor with levels", got="a LoDTensor without levels")
    if 0 in tensor.shape[1:]:
        raise ShapeError(what, expected="at least one number per row", got=f"shape {tensor.shape}")
    return tensor


class Levels:
    """Collects the offsets of a ragged array, level by level from coarse to fine."""

    def __init__(self) -> None:
        self.offsets: list[np.ndarray] = []

    def add(self, offsets: np.ndarray) -> tuple[int, int]:
        """Add the offsets of the next level, which may begin above 0; return their first and last offset."""
        offsets = np.asarray(offsets, np.int64)
        first, end = (int(offsets[0]), int(offsets[-1])) if len(offsets) else (0, 0)
        self.offsets.append(offsets - first if len(offsets) else np.zeros(1, np.int64))
        return first, end

    def over(self, rows: np.ndarray) -> LoDTensor:
        """Return a LoDTensor of `rows` with the collected offsets."""
        return LoDTensor(rows, LoD(self.offsets))
