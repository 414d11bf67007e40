"""Record a bound step: note its modules and optimizers, and refuse changes that a program cannot repeat."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from varlen_rnn.errors import ProgramError
from varlen_rnn.nn.module import Module
from varlen_rnn.program.recorder import Recorder
from varlen_rnn.tape.variable import Variable

_NOTHING = object()
_OPTIONS = (type(None), bool, int, float, str, tuple)


class StepRecorder(Recorder):
    """Records a step, and notes its modules, its optimizers, and the leaves whose gradients it clears."""

    def __init__(self) -> None:
        super().__init__()
        self._used: dict[int, Any] = {}
        self._before: dict[int, tuple[Variable, Any, Any, Any]] = {}
        self._changed: list[str] = []
        self.cleared: set[int] = set()  # ids of leaves
        self.cleared_first: set[int] = set()

    def suggest(self, module: Module) -> None:
        """Note a module that the step calls."""
        super().suggest(module)
        self._used[id(module)] = module

    def meets(self, optimizer: Any) -> None:
        """Note an optimizer whose method the step calls."""
        self._used[id(optimizer)] = optimizer

    def clears(self, parameters: Iterable[Variable]) -> None:
        """Note that the step clears gradients; `cleared_first` has the leaves that had none from the step itself."""
        begins = all(own.grad is None for _, own in self._stand_ins.values())
        self.cleared.update(map(id, parameters))
        if begins:
            self.cleared_first.update(map(id, parameters))

    def changes(self, change: str) -> NoReturn:
        """Raise, because a program would not repeat a change that Python code makes."""
        hint = "call it after the bound step, in the training loop"
        raise ProgramError("bound, step", expected="a step that only computes and updates", got=change, hint=hint)

    def _adopt(self, variable: Variable) -> Variable:
        own = super()._adopt(variable)
        self._before[id(variable)] = variable, variable.value, variable.value.data.copy(), variable.grad
        return own

    def undo_changes(self) -> None:
        """Undo changes of leaves that the step made at once, instead of by operators; note them."""
        for variable, value, data, grad in self._before.values():
            if variable.grad is not grad:
                variable.grad = grad
                self._changed.append(f"grad of {variable.name or 'a parameter'} set by Python code")
            if variable.value is not value or variable.value.data.tobytes() != data.tobytes():
                variable.value = value
                value.data[...] = data
                self._changed.append(f"{variable.name or 'a parameter'} changed by Python code")
        self._before = {}

    def check_changes(self) -> None:
        """Raise if the step changed leaves by Python code."""
        if self._changed:
            hint = "zero_grad() clears gradients; change weights after the bound step, in the training loop"
            expected = "a step that only computes and updates"
            raise ProgramError("bound, step", expected=expected, got=self._changed[0], hint=hint)

    def trained(self) -> list[tuple[Variable, Any]]:
        """Return pairs of a leaf that requires a gradient, and its stand-in in the program."""
        return [(leaf, own) for leaf, own in self._stand_ins.values() if leaf.requires_grad]

    def watched(self) -> list[Watched]:
        """Return a Watched for each module and optimizer that the step uses."""
        return [Watched(one) for one in self._used.values()]


class Watched:
    """The attributes of a module, or the options and parameters of an optimizer, as they are now."""

    def __init__(self, holder: Any) -> None:
        self._holder = holder
        self._now = self._found()

    def _found(self) -> list[tuple[str, Any]]:
        holder = self._holder
        if isinstance(holder, Module):
            kinds = (*_OPTIONS, Variable, Module)
            found = [(name, value) for name, value in vars(holder).items() if isinstance(value, kinds)]
            of_lists = [(name, item) for name, value in vars(holder).items() if type(value) is list for item in value]
            found += [(name, item) for name, item in of_lists if isinstance(item, (Variable, Module))]
            return found + [("requires_grad", value.requires_grad) for _, value in found if isinstance(value, Variable)]
        options = [
            (name, value) for group in holder.param_groups for name, value in group._options.items() if name != "lr"
        ]
        return [
            *options,
            *(("parameter", parameter) for parameter in holder.parameters),
            *(("requires_grad", parameter.requires_grad) for parameter in holder.parameters),
        ]

    def holds(self) -> bool:
        """Return whether they are still the same."""
        found = self._found()
        return len(found) == len(self._now) and all(map(_is_same, found, self._now))


def _is_same(one: tuple[str, Any], other: tuple[str, Any]) -> bool:
    (name, value), (before, known) = one, other
    if name != before:
        return False
    return value is known or (type(value) is type(known) and isinstance(value, _OPTIONS) and value == known)
