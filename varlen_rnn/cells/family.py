"""Cells of one kind with options: a name for each combination, from which it is made again."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from varlen_rnn.cells.contract import Cell
from varlen_rnn.cells.define import cell
from varlen_rnn.cells.registry import register_family
from varlen_rnn.errors import ProgramError, shown

_LONGEST_NAME = 1000  # characters: a name in a strange file may be anything


class Family:
    """Cells of one kind: `family(**options)` returns that of some options.

    Parameters
    ----------
    name : str
        What names of its cells begin with.
    check : function
        `check(**options)` returns the options in their only form; its defaults are those of the options.
    equations : function
        `equations(**options)` returns the function of scalars of a cell; without `proj_clip`, which is `cell`'s.
    named : mapping of str to dict
        Names of their own for some options, as programs have them: that without options among them.
    """

    def __init__(
        self,
        name: str,
        check: Callable[..., dict[str, Any]],
        equations: Callable[..., Callable],
        named: Mapping[str, dict[str, Any]],
    ) -> None:
        self.name, self.check, self.equations = name, check, equations
        self.defaults = {p.name: p.default for p in inspect.signature(check).parameters.values()}
        self._named = {self._text(check(**options)): own for own, options in named.items()}
        register_family(name, self.of_name)
        self._made: dict[str, Cell] = {}

    def __call__(self, **options: Any) -> Cell:
        """Return the cell of some options."""
        options = self.check(**options)
        name = self._text(options)
        name = self._named.get(name, name)
        if name not in self._made:
            proj_clip = options.pop("proj_clip", None)
            self._made[name] = cell(self.equations(**options), name=name, proj_clip=proj_clip)
        return self._made[name]

    def _text(self, options: dict[str, Any]) -> str:
        given = [f"{name}={value!r}" for name, value in options.items() if value != self.defaults[name]]
        return f"{self.name}({', '.join(given)})"

    def of_name(self, name: str) -> Cell:
        """Return the cell of a name with options, as programs write it.

        Raises
        ------
        ProgramError
            Options that the family has not.
        """
        try:
            call = ast.parse(name if len(name) < _LONGEST_NAME else "", mode="eval").body
            if not isinstance(call, ast.Call) or call.args:
                raise ValueError("options in brackets expected")
            found = self(**{str(word.arg): ast.literal_eval(word.value) for word in call.keywords})
        except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
            expected = f"options of {self.name}: {', '.join(self.defaults)}"
            raise ProgramError(f"cell {shown(name)}", expected=expected, got=shown(str(error))) from error
        if found.name != name:
            raise ProgramError("cell", expected=found.name, got=shown(name))
        return found
