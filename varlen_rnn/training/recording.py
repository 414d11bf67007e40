"""Record a bound step: note its modules and optimizers, and refuse changes that a program cannot repeat."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any, NoReturn

from varlen_rnn.errors import ProgramError
from varlen_rnn.nn.module import Module
from varlen_rnn.program.recorder import Recorder
from varlen_rnn.tape.variable import Variable

_OPTIONS = (type(None), bool, int, float, str, tuple)
_KINDS = (*_OPTIONS, Variable, Module)  # of attributes that can decide a step's operators; others can be caches


class StepRecorder(Recorder):
    """Records a step, and notes its modules, its optimizers, and the leaves whose gradients it clears."""

    def __init__(self) -> None:
        super().__init__()
        self._used: dict[int, Any] = {}
        self._before: dict[int, tuple[Variable, Any, Any, Any]] = {}
        self._changed: list[str] = []
        self.cleared: set[int] = set()  # ids of leaves
        self.cleared_first: set[int] = set()
        self.updates = False  # whether the step calls an optimizer

    def suggest(self, module: Module) -> None:
        """Note a module that the step calls."""
        super().suggest(module)
        self._used[id(module)] = module

    def meets(self, optimizer: Any) -> None:
        """Note an optimizer whose method the step calls."""
        self.updates = True
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
        self._holder, self._is_module = holder, isinstance(holder, Module)
        self._note()

    def _note(self) -> None:
        self._now = [(name, value) for name, value in self._found() if isinstance(value, _KINDS)]
        self._objects = [value for _, value in self._found()]  # kept, so that no other object gets their ids
        self._ids = list(map(id, self._objects))
        self._leaves = [value for value in self._objects if isinstance(value, Variable)]
        self._require = [leaf.requires_grad for leaf in self._leaves]
        self._names = list(vars(self._holder)) if self._is_module else []
        self._lists = [value for value in vars(self._holder).values() if type(value) is list] if self._is_module else []

    def _found(self) -> list[tuple[str, Any]]:
        if self._is_module:
            found = list(vars(self._holder).items())
            return found + [(name, item) for name, value in found if type(value) is list for item in value]
        options = [item for group in self._holder.param_groups for item in group._options.items() if item[0] != "lr"]
        return options + [("parameter", parameter) for parameter in self._holder.parameters]

    def _now_held(self) -> list[Any]:
        """Return the objects of `_found`, without their names if these are known."""
        if not self._is_module:
            return [value for _, value in self._found()]
        attributes = vars(self._holder)
        if list(attributes) != self._names:
            return []
        found = list(attributes.values())
        for one in self._lists:
            found += one
        return found

    def holds(self) -> bool:
        """Return whether they are still the same."""
        if list(map(_requires_grad, self._leaves)) != self._require:
            return False
        if list(map(id, self._now_held())) == self._ids:  # as nearly always
            return True
        found = [(name, value) for name, value in self._found() if isinstance(value, _KINDS)]
        if len(found) != len(self._now) or not all(map(_is_same, found, self._now)):
            return False
        self._note()
        return True


_requires_grad = attrgetter("requires_grad")


def _is_same(one: tuple[str, Any], other: tuple[str, Any]) -> bool:
    (name, value), (before, known) = one, other
    if name != before:
        return False
    return value is known or (type(value) is type(known) and isinstance(value, _OPTIONS) and value == known)
