"""Hooks: functions that a pass calls with the gradient of a Variable, and whether the Variable keeps the gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.selected_rows import SelectedRows

Hook = Callable[[Any], Any]


class Hooks:
    """The hooks of a Variable in the order of registration.

    Attributes
    ----------
    retains : bool
        Whether an inner Variable keeps its gradient.
    watcher : object, optional
        Runs the passes that reach a leaf; see `gradient.watch`.
    """

    __slots__ = ("_functions", "retains", "watcher")

    def __init__(self) -> None:
        self._functions: dict[HookHandle, Hook] = {}
        self.retains, self.watcher = False, None

    def add(self, function: Hook) -> HookHandle:
        """Register a function; if it is registered twice, it runs twice."""
        handle = HookHandle(self._functions)
        self._functions[handle] = function
        return handle

    def __iter__(self) -> Iterator[Hook]:
        return iter(list(self._functions.values()))  # a copy: hooks may be removed meanwhile


class HookHandle:
    """The handle that `register_hook` returns, to remove the hook again."""

    __slots__ = ("_functions",)

    def __init__(self, functions: dict[HookHandle, Hook]) -> None:
        self._functions = functions

    def remove(self) -> None:
        """Remove the hook; a second call does nothing."""
        self._functions.pop(self, None)


def shown_to_hooks(value: Any) -> Any:
    """Return a gradient as hooks see it: an array, a LoDTensor if there is a LoD, or SelectedRows; read-only.

    It is read-only because several Variables may share its memory, as the operands of a sum do.
    """
    if isinstance(value, SelectedRows):
        return SelectedRows.wrap(value.rows, _read_only(value.value), value.height)
    array = _read_only(value.data)
    return LoDTensor.wrap(array, value.structure) if value.num_levels else array


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view
