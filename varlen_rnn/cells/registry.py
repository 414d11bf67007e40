"""Find cells by name, as programs refer to them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any, Protocol

from varlen_rnn.errors import ProgramError, shown


class _Named(Protocol):
    """The fields of a cell that the registry reads.

    `origin` is the module and name of the function with its equations.  A second cell with this name replaces the first
    if its origin is the same, as when a notebook runs again; otherwise it is refused.
    """

    name: str
    origin: tuple[str, str]


_CELLS: MutableMapping[str, Any] = weakref.WeakValueDictionary()
_REPLACED: dict[str, list[weakref.ref[Any]]] = {}  # older cells of the same name and origin, oldest first
_FAMILIES: dict[str, Callable[[str], Any]] = {}


class CellName(str):
    """The name of a cell.  The name refers to its cell, so whoever holds the name keeps the cell alive."""

    _cell: Any

    def __new__(cls, name: str, cell: Any) -> CellName:
        """Return the name of a cell."""
        self = super().__new__(cls, name)
        self._cell = cell
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


def register(cell: _Named) -> None:
    """Let programs find a cell by its name, as long as any object refers to the cell or to its name.

    If the function with its equations is defined again, as in a notebook, the new cell replaces the former cell.
    """
    former = _newest(cell.name)
    if former is not None and former.origin != cell.origin:
        del former
        gc.collect()  # a dropped cell can still be in a reference cycle
        former = _newest(cell.name)
    if former is not None and former.origin != cell.origin:
        hint = "cell(name=...) chooses another name; only a function of the same module and name can replace its cell"
        raise ProgramError(f"cell {cell.name!r}", expected="a new name", got="the name of another cell", hint=hint)
    name = str(cell.name)
    if former is not None and former is not cell:
        _REPLACED[name] = [held for held in _REPLACED.get(name, []) if held() is not None] + [weakref.ref(former)]
    _CELLS[name] = cell


def _newest(name: str) -> Any:
    """Return the newest cell with this name that is still alive, or None; an older cell can outlive a newer cell."""
    found = _CELLS.get(name)
    while found is None and _REPLACED.get(name):
        found = _REPLACED[name].pop()()
        if found is not None:
            _CELLS[name] = found
    return found


def register_family(name: str, cell_of: Callable[[str], Any]) -> None:
    """Register a family: `cell_of("lstm(peepholes=True)")` makes the cell with a name and options."""
    _FAMILIES[name] = cell_of


def find_cell(name: str) -> Any:
    """Return the cell with a name.

    Raises
    ------
    ProgramError
        If this process holds no cell with this name, and the name is not a family (rnn, lstm, gru) with options.

    Examples
    --------
    >>> from varlen_rnn.cells import LSTM
    >>> find_cell("lstm") is LSTM
    True
    >>> find_cell("lstm(peepholes=True)").vectors
    ('p_i', 'p_f', 'p_o')
    """
    found = _newest(name)
    if found is not None:
        return found
    family = _FAMILIES.get(name.partition("(")[0]) if name.endswith(")") else None
    if family is not None:
        return family(name)
    hint = "import the module that defines this cell"
    raise ProgramError("cell", expected=f"one of {sorted(_CELLS)}", got=shown(name), hint=hint)
