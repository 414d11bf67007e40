"""Families of cells with options; a cell can be made from its name alone, such as `lstm(peepholes=True)`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from varlen_rnn.cells.contract import Cell
from varlen_rnn.cells.define import cell
from varlen_rnn.cells.options import Option
from varlen_rnn.cells.registry import register_family
from varlen_rnn.errors import ProgramError, shown, unexpected

_LONGEST_NAME = 1000  # characters of a name that is parsed; a file from elsewhere can hold a name of any length


class Family:
    """A kind of cell with options: `family(**options)` returns the cell with these options.

    Parameters
    ----------
    name : str
        The beginning of the names of its cells.
    options : mapping of str to Option
    equations : callable
        `equations(options)` returns the equations, a function of scalars, from a mapping of all options by name.
    named : mapping of str to dict
        Short names of cells, with the options that each name means, such as `{"lstm": {}}`; the default options must
        have a short name.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, Option],
        equations: Callable[[Mapping[str, Any]], Callable],
        named: Mapping[str, dict[str, Any]],
    ) -> None:
        self.name, self.options, self.equations = name, options, equations
        self.defaults = {option: of_option.default for option, of_option in options.items()}
        self.named = {self._text(self.check(given)): own for own, given in named.items()}
        register_family(name, self.of_name)
        self._made: dict[str, Cell] = {}

    def check(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return all options in canonical form, with defaults for options that were not given."""
        if unknown := given.keys() - self.options.keys():
            raise unexpected(f"{self.name}_cell", min(unknown))
        return {name: option.check(given.get(name, option.default), name) for name, option in self.options.items()}

    def __call__(self, **options: Any) -> Cell:
        """Return the cell with these options."""
        options = self.check(options)
        name = self._text(options)
        name = self.named.get(name, name)
        if name not in self._made:
            self._made[name] = cell(self.equations(options), name=name, proj_clip=options.get("proj_clip"))
        return self._made[name]

    def _text(self, options: dict[str, Any]) -> str:
        given = [f"{name}={value!r}" for name, value in options.items() if value != self.defaults[name]]
        return f"{self.name}({', '.join(given)})"

    def options_in(self, name: str) -> dict[str, Any] | None:
        """Return the options that a cell's name contains, or None if the cell is not of this family."""
        text = next((text for text, own in self.named.items() if own == name), name)
        if not text.startswith(f"{self.name}("):
            return None
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError("expected keyword options in brackets, as in lstm(peepholes=True)")
        return {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}

    def of_name(self, name: str) -> Cell:
        """Return the cell with a name such as `lstm(peepholes=True)`; raise unless the name is in canonical form."""
        try:
            found = self(**(self.options_in(name if len(name) < _LONGEST_NAME else f"{self.name}(") or {}))
        except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
            expected = f"{self.name}(option=value), where the options are {', '.join(self.defaults)}"
            raise ProgramError(f"cell {shown(name)}", expected=expected, got=shown(str(error))) from error
        if found.name != name:
            raise ProgramError("name of a cell", expected=f"{found.name!r}, its canonical form", got=shown(name))
        return found
