"""Hooks of a Variable: functions that a backward pass calls with its gradient; and whether it keeps its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.selected_rows import SelectedRows

Hook = Callable[[Any], Any]


class Hooks(dict["HookHandle", Hook]):
    """The hooks of a Variable, by their handles, in the order of registration."""

    __slots__ = ("retains", "watcher")

    def __init__(self) -> None:
        self.retains = False  # whether an inner (computed) Variable keeps its gradient
        self.watcher = None  # an object that runs the passes that reach this leaf; see `gradient.watch`

    def add(self, function: Hook) -> HookHandle:
        """Register a function and return its handle; a function that is registered twice runs twice."""
        handle = HookHandle(self)
        self[handle] = function
        return handle


class HookHandle:
    """The handle that `register_hook` returns, to remove the hook again."""

    __slots__ = ("_hooks",)

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    def remove(self) -> None:
        """Remove the hook; a second call does nothing."""
        self._hooks.pop(self, None)


def shown_to_hooks(value: Any) -> Any:
    """Return a gradient for hooks: read-only, since Variables can share its memory; an array if it has no levels."""
    array = (value.value if isinstance(value, SelectedRows) else value.data).view()
    array.flags.writeable = False
    if isinstance(value, SelectedRows):
        return SelectedRows.wrap(value.rows, array, value.height)
    return LoDTensor.wrap(array, value.structure) if value.num_levels else array
