"""Record a bound step: note its modules and optimizers, and refuse changes that a program cannot repeat."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, NoReturn

from varlen_rnn.errors import ProgramError
from varlen_rnn.nn.module import Module
from varlen_rnn.program.recorder import Recorder
from varlen_rnn.runtime.forms import same_objects
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
        self.cleared_at_once: set[int] = set()
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
        """Note that the step clears gradients.

        `cleared_first` has the leaves that had none from the step itself, `cleared_at_once` those that were cleared
        before any operator, so that no error leaves their gradients.
        """
        begins = all(own.grad is None for _, own in self._stand_ins.values())
        self.cleared.update(map(id, parameters))
        if begins:
            self.cleared_first.update(map(id, parameters))
        if all(op.type == "feed" for op, *_ in self.current.ops):
            self.cleared_at_once.update(map(id, parameters))

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

    def watched(self) -> Watched:
        """Return a Watched for the modules and optimizers that the step uses."""
        return Watched(self._used.values())


class Watched:
    """The attributes of modules, and the options and parameters of optimizers, as they are now."""

    def __init__(self, holders: Iterable[Any]) -> None:
        self._holders = list(holders)
        self._note()

    def _note(self) -> None:
        self._now = self._found()
        dicts: list[Mapping[str, Any]] = []
        self._views: list[Any] = []  # containers and views of dicts, which show later changes
        rates = []
        for holder in self._holders:
            attributes = vars(holder)
            if isinstance(holder, Module):
                dicts.append(attributes)
                self._views += [attributes.values(), *(v for v in attributes.values() if type(v) is list)]
            else:
                self._views.append(holder.param_groups)
                for group in holder.param_groups:
                    before = sum(map(len, self._views))
                    rates += [(before + n, group._options) for n, name in enumerate(group._options) if name == "lr"]
                    dicts.append(group._options)
                    self._views += [group._options.values(), group.params]
        self._views += dicts  # their names, behind the values
        self._rates = rates  # a learning rate may change: its place among the objects, and the options that have it
        items = itertools.chain.from_iterable(self._views)
        self._leaves = list({id(value): value for value in items if isinstance(value, Variable)}.values())
        self._require = list(map(_requires_grad, self._leaves))
        self._objects = self._listed()

    def _found(self) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        for holder in self._holders:
            if isinstance(holder, Module):
                items = list(vars(holder).items())
                found += items + [(name, item) for name, value in items if type(value) is list for item in value]
            else:
                found += [item for group in holder.param_groups for item in group._options.items() if item[0] != "lr"]
                found += [("parameter", parameter) for parameter in holder.parameters]
        return [(name, value) for name, value in found if isinstance(value, _KINDS)]

    def holds(self) -> bool:
        """Return whether they are still the same."""
        for place, options in self._rates:
            self._objects[place] = options["lr"]
        if same_objects(self._listed(), self._objects):  # as nearly always
            return True
        if list(map(_requires_grad, self._leaves)) != self._require:
            return False
        found = self._found()
        if len(found) != len(self._now) or not all(map(_is_same, found, self._now)):
            return False
        self._note()
        return True

    def _listed(self) -> list[Any]:
        """Return the attributes, the flags of leaves and the dicts of holders.  This walk takes 1 us for 50 of them."""
        views = itertools.chain.from_iterable(self._views)
        return [*views, *map(_requires_grad, self._leaves), *map(_dict_of, self._holders)]


_requires_grad, _dict_of = attrgetter("requires_grad"), attrgetter("__dict__")


def _is_same(one: tuple[str, Any], other: tuple[str, Any]) -> bool:
    (name, value), (before, known) = one, other
    if name != before:
        return False
    return value is known or (type(value) is type(known) and isinstance(value, _OPTIONS) and value == known)
