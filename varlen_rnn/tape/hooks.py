"""Hooks: functions that a pass calls with the gradient of a Variable, and whether the Variable keeps the gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.selected_rows import SelectedRows

Hook = Callable[[Any], Any]


class Hooks(dict["HookHandle", Hook]):
    """The hooks of a Variable, by their handles, in the order of registration.

    Attributes
    ----------
    retains : bool
        Whether an inner Variable keeps its gradient.
    watcher : object, optional
        Runs the passes that reach a leaf; see `gradient.watch`.
    """

    __slots__ = ("retains", "watcher")

    def __init__(self) -> None:
        self.retains, self.watcher = False, None

    def add(self, function: Hook) -> HookHandle:
        """Register a function; if it is registered twice, it runs twice."""
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
    """Return a gradient as hooks see it: an array, a LoDTensor if there is a LoD, or SelectedRows; read-only.

    It is read-only because several Variables may share its memory, as the operands of a sum do.
    """
    array = (value.value if isinstance(value, SelectedRows) else value.data).view()
    array.flags.writeable = False
    if isinstance(value, SelectedRows):
        return SelectedRows.wrap(value.rows, array, value.height)
    return LoDTensor.wrap(array, value.structure) if value.num_levels else array
