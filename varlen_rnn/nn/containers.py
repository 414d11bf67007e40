"""Modules that hold other modules: to run them in order, or to list them by number or name for your own `forward`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, MutableSequence
from typing import Any, Generic, Self, TypeVar, overload

from varlen_rnn.errors import DTypeError, OutOfRangeError, ShapeError, check_int, check_list, shown
from varlen_rnn.nn.module import Module, Parameter, check_apart

T = TypeVar("T", Module, Parameter)


def _check_index(entries: list[Any], index: Any, name: str) -> Any:
    """Return an index of a list; raise unless it is a slice or the number of an entry."""
    try:
        entries[index]
    except (TypeError, IndexError, ValueError) as error:
        kind = OutOfRangeError if isinstance(error, IndexError) else DTypeError
        raise kind(f"{name}, index", expected=f"an index into {len(entries)} entries", got=shown(index)) from error
    return index


class Sequential(Module):
    """Run modules and functions one after another, each on the output of its predecessor.

    A recurrent layer cannot be among them, because it returns a pair.

    Parameters
    ----------
    *modules : Module, or function of one argument

    Examples
    --------
    >>> Sequential(vr.nn.Linear(3, 4), vr.nn.functional.relu, vr.nn.Linear(4, 2))(np.zeros((5, 3), np.float32)).shape
    (5, 2)

    Entries are read by number or slice, as in PyTorch:

    >>> model = Sequential(vr.nn.Linear(3, 4), vr.nn.functional.relu, vr.nn.Linear(4, 2))
    >>> len(model), model[-1].weight.shape, model[:2](np.zeros((5, 3), np.float32)).shape
    (3, (2, 4), (5, 4))
    """

    def __init__(self, *modules: Module | Callable[[Any], Any]) -> None:
        for number, module in enumerate(modules):
            if isinstance(module, type) or not callable(module):  # calling a class would create a module
                what, hint = f"Sequential, entry {number}", "if it is a class, call it: nn.Tanh() is a Module"
                raise DTypeError(what, expected="a Module or a function", got=shown(module), hint=hint)
            setattr(self, str(number), module)

    def forward(self, x: Any) -> Any:
        """Return the output of the last module or function."""
        for _, module in self._parts():
            x = module(x)
        return x

    def __len__(self) -> int:
        return len(self._parts())

    def __iter__(self) -> Iterator[Any]:
        return iter([module for _, module in self._parts()])

    def __getitem__(self, index: int | slice) -> Any:
        found = list(self)[_check_index(list(self), index, "Sequential")]
        return Sequential(*found) if isinstance(index, slice) else found

    def _parts(self) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in vars(self).items() if name.isdigit()]

    def _shown(self) -> list[tuple[str, str]]:
        """Return (name, text) pairs for `repr`; the text of a function is its own name."""
        return [(n, repr(m) if isinstance(m, Module) else getattr(m, "__name__", repr(m))) for n, m in self._parts()]


class _Listed(Module, MutableSequence[T], Generic[T]):
    """A list of modules or parameters, whose names are their positions."""

    _kind: type  # the type of the entries

    def __init__(self, entries: Iterable[T] = ()) -> None:
        name = type(self).__name__
        self._listed: list[T] = [self._checked(entry) for entry in check_list(entries, name)]

    def _checked(self, entry: Any) -> Any:
        if not isinstance(entry, self._kind):
            raise DTypeError(f"{type(self).__name__}, entry", expected=f"a {self._kind.__name__}", got=shown(entry))
        if isinstance(entry, Module):
            check_apart(self, entry, f"{type(self).__name__}, entry")
        return entry

    def _entries(self) -> list[tuple[str, object]]:
        return [(str(number), entry) for number, entry in enumerate(self._listed)]

    def _at(self, index: Any) -> Any:
        return _check_index(self._listed, index, type(self).__name__)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Any:
        """Return an entry, or for a slice a list of the same kind with the same entries."""
        found = self._listed[self._at(index)]
        return type(self)(found) if isinstance(found, list) else found

    def __setitem__(self, index: Any, entry: Any) -> None:
        if not isinstance(self._at(index), slice):
            self._listed[index] = self._checked(entry)
            return
        what = f"{type(self).__name__}, entries"
        entries = [self._checked(one) for one in check_list(entry, what)]
        if index.step not in (None, 1) and len(entries) != len(self._listed[index]):
            expected = f"{len(self._listed[index])} entries, as many as the slice has"
            raise ShapeError(what, expected=expected, got=len(entries))
        self._listed[index] = entries

    def __delitem__(self, index: int | slice) -> None:
        del self._listed[self._at(index)]

    def __len__(self) -> int:
        return len(self._listed)

    # An entry is found by identity, because `==` of Parameters raises.

    def __contains__(self, value: object) -> bool:
        return any(value is entry for entry in self._listed)

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """Return the first index of an entry, or raise a ValueError."""
        for number in range(*slice(start, stop).indices(len(self))):
            if self._listed[number] is value:
                return number
        raise ValueError(f"{shown(value)} is no entry of this {type(self).__name__}")

    def count(self, value: Any) -> int:
        """Return how often an entry is in the list."""
        return sum(value is entry for entry in self._listed)

    def insert(self, index: int, value: T) -> None:
        """Insert an entry before an index."""
        self._listed.insert(check_int(index, f"{type(self).__name__}, index"), self._checked(value))


class ModuleList(_Listed[Module]):
    """A list of modules; a module that has it as an attribute finds their parameters: `layers.0.weight`.

    A plain list works as well; this class has PyTorch's name.

    Parameters
    ----------
    entries : iterable of Module

    Examples
    --------
    >>> layers = ModuleList(vr.nn.Linear(3, 3) for _ in range(2))
    >>> layers.append(vr.nn.Linear(3, 2))
    >>> layers[-1], [name for name, _ in layers[:1].named_parameters()]
    (Linear(3, 2, bias=True), ['0.weight', '0.bias'])

    Source: `torch.nn.ModuleList`.
    """

    _kind = Module


class ParameterList(_Listed[Parameter]):
    """A list of Parameters; a module that has it as an attribute trains them: `scales.0`.

    Parameters
    ----------
    entries : iterable of Parameter

    Examples
    --------
    >>> scales = ParameterList([Parameter([1.0]), Parameter([2.0, 3.0])])
    >>> [name for name, _ in scales.named_parameters()], scales
    (['0', '1'], ParameterList((1,) float64, (2,) float64))

    Source: `torch.nn.ParameterList`.
    """

    _kind = Parameter

    def extra_repr(self) -> str:
        """Return the shapes and data types as text for `repr`."""
        return ", ".join(f"{parameter.shape} {parameter.dtype}" for parameter in self)


class ModuleDict(Module, MutableMapping[str, Module]):
    """Modules by name; a module that has it as an attribute finds their parameters: `heads.tag.weight`.

    Parameters
    ----------
    modules : mapping of str to Module, optional

    Examples
    --------
    >>> heads = ModuleDict({"tag": vr.nn.Linear(4, 3)})
    >>> heads["stars"] = vr.nn.Linear(4, 1)
    >>> list(heads), heads["tag"](np.zeros((2, 4), np.float32)).shape
    (['tag', 'stars'], (2, 3))

    Source: `torch.nn.ModuleDict`.
    """

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        self._named: dict[str, Module] = {}
        if modules is not None and not isinstance(modules, Mapping):
            raise DTypeError("ModuleDict", expected="a dict with a Module for each name", got=shown(modules))
        self.update(modules or {})

    def _entries(self) -> list[tuple[str, object]]:
        return list(self._named.items())

    def __getitem__(self, name: str) -> Module:
        return self._named[name]

    def __setitem__(self, name: str, module: Module) -> None:
        if not isinstance(name, str) or not name or "." in name:
            raise DTypeError("ModuleDict, name", expected="a string without dots, not empty", got=shown(name))
        if not isinstance(module, Module):
            raise DTypeError(f"ModuleDict, {shown(name)}", expected="a Module", got=shown(module))
        check_apart(self, module, f"ModuleDict, {shown(name)}")
        self._named[name] = module

    def __delitem__(self, name: str) -> None:
        del self._named[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)

    # Mappings with equal entries are equal, and have no hash; a module is only equal to itself.
    __eq__ = object.__eq__
    __hash__ = object.__hash__
