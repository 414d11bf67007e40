"""Cells by name, as programs name them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from varlen_rnn.errors import ProgramError, shown


class _Named(Protocol):
    """A cell: where its equations were written tells whether another one of its name is the same, defined again."""

    name: str
    origin: tuple[str, str]


_CELLS: dict[str, Any] = {}
_FAMILIES: dict[str, Callable[[str], Any]] = {}


def register(cell: _Named) -> None:
    """Let programs find a cell; the same function defined again, as in a notebook, takes the place of the former."""
    former = _CELLS.get(cell.name)
    if former is not None and former.origin != cell.origin:
        hint = "cell(name=...) gives it another; only the same function may be defined again, in the same place"
        raise ProgramError(f"cell {cell.name!r}", expected="a new name", got="one that another cell has", hint=hint)
    _CELLS[cell.name] = cell


def register_family(name: str, cell_of: Callable[[str], Any]) -> None:
    """Let programs find cells of a family, whose names are its own, and options in brackets: `cell_of` makes them."""
    _FAMILIES[name] = cell_of


def find_cell(name: str) -> Any:
    """Return the cell of a name.

    Raises
    ------
    ProgramError
        No cell of this name was made in this process, and none of a family can be made of it.

    Examples
    --------
    >>> from varlen_rnn.cells import LSTM
    >>> find_cell("lstm") is LSTM
    True
    >>> find_cell("lstm(peepholes=True)").vectors
    ('p_i', 'p_f', 'p_o')
    """
    found = _CELLS.get(name)
    if found is not None:
        return found
    family = _FAMILIES.get(name.partition("(")[0]) if name.endswith(")") else None
    if family is not None:
        return family(name)
    hint = "import the module that makes it"
    raise ProgramError("cell", expected=f"one of {sorted(_CELLS)}", got=shown(name), hint=hint)
