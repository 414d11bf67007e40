"""Modules: parameters under names, and a forward pass."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from varlen_rnn.checkpoint import state_arrays
from varlen_rnn.errors import CheckpointError, DTypeError, ProgramError, ShapeError, check_flag, shown
from varlen_rnn.nn.functional import weight_norm
from varlen_rnn.rows.checks import as_rows
from varlen_rnn.tape.gradient import was_updated
from varlen_rnn.tape.modes import no_grad, recorder
from varlen_rnn.tape.variable import Variable

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class Parameter(Variable):
    """A Variable that a module trains: it requires a gradient, and optimizers update it in place.

    Parameters
    ----------
    array : array_like
        float32 or float64; copied, so that an update never reaches the caller's array.

    Examples
    --------
    >>> weight = Parameter([1.0, 2.0])
    >>> (weight * 3.0).sum().backward(); weight.grad
    array([3., 3.])
    """

    __slots__ = ()

    def __init__(self, array: ArrayLike) -> None:
        super().__init__(np.array(as_rows(array, "Parameter"), order="C"), requires_grad=True, persistable=True)

    @property
    def data(self) -> np.ndarray:
        """The array that optimizers update in place.

        A later `backward` cannot see that the array was changed directly; it does see changes by `assign`.
        """
        return self.value.data

    def assign(self, array: ArrayLike) -> None:
        """Overwrite the values, in place, by numbers that fit or broadcast; the shape and the data type stay."""
        array = as_rows(array, "assign")
        try:
            self.value.data[...] = array
        except ValueError as error:
            raise ShapeError("assign", expected=f"shape {self.shape}", got=f"shape {array.shape}") from error
        was_updated(self)


class _Runs(Protocol[P, R]):
    """A module for type checkers: a call has the arguments and results of its `forward`."""

    def forward(self, *inputs: P.args, **named: P.kwargs) -> R:
        """Compute the output."""


class Module:
    """The base of layers and models: Parameters and Modules are found by name, in attributes, lists and dicts.

    A subclass sets them in `__init__` and computes in `forward`.

    Examples
    --------
    >>> class Scale(Module):
    ...     def __init__(self):
    ...         self.factor = Parameter([2.0])
    ...
    ...     def forward(self, x):
    ...         return x * self.factor
    >>> np.asarray(Scale()(Variable([1.0, 3.0])))
    array([2., 6.])
    """

    training = True
    normalised: tuple[str, ...] = ()  # parameters that are computed of a direction and a length, by `weight_norm`

    if not TYPE_CHECKING:  # which would take any name for an attribute

        def __getattr__(self, name):
            if name in self.normalised:
                return weight_norm(getattr(self, f"{name}_v"), getattr(self, f"{name}_g"))
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        def __setattr__(self, name, value):
            if isinstance(vars(self).get(name), Parameter) and not isinstance(value, (Variable, type(None))):
                what, hint = f"{type(self).__name__}.{name}", f"{name}.assign(array) overwrites its numbers"
                raise DTypeError(what, expected="a Parameter, or None", got=type(value).__name__, hint=hint)
            super().__setattr__(name, value)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Compute the module's output; subclasses define it."""
        raise ProgramError(f"{type(self).__name__}.forward", expected="a definition in the subclass")

    def __call__(self: _Runs[P, R], *inputs: P.args, **named: P.kwargs) -> R:
        """Run `forward`; in a program, parameters take the names that they have in the outermost module."""
        if (into := recorder()) is not None:
            into.suggest(self)
        return self.forward(*inputs, **named)

    def children(self) -> list[tuple[str, Module]]:
        """Return the modules that are attributes of this one, or stand in its lists or dicts, as (name, module)."""
        return [(name, value) for name, value in self._entries() if isinstance(value, Module)]

    def _entries(self) -> list[tuple[str, object]]:
        """Return attributes by name; an entry of a list or dict is called `layers.0`, or `layers.key`."""
        return list(_flat(vars(self)))

    def named_parameters(self, prefix: str = "") -> list[tuple[str, Parameter]]:
        """Return (name, Parameter) pairs, names dotted as in `encoder.weight_ih_l0`; each Parameter once."""
        if not isinstance(prefix, str):
            raise DTypeError("named_parameters, prefix", expected="a text", got=shown(prefix))
        found: dict[int, tuple[str, Parameter]] = {}
        self._collect(prefix, found)
        pairs = list(found.values())
        if len(dict(pairs)) != len(pairs):  # one of them would not be saved
            twice = next(name for name, number in Counter(name for name, _ in pairs).items() if number > 1)
            hint = "keys of a dict that read alike, as 1 and '1'?"
            raise ProgramError(f"parameter {twice!r}", expected="a name of its own", got="two", hint=hint)
        return pairs

    def _collect(self, prefix: str, found: dict[int, tuple[str, Parameter]]) -> None:
        entries = self._entries()
        for name, value in entries:
            if isinstance(value, Parameter):
                found.setdefault(id(value), (prefix + name, value))
        for name, value in entries:
            if isinstance(value, Module):
                value._collect(f"{prefix}{name}.", found)

    def parameters(self) -> list[Parameter]:
        """Return the Parameters, in the order of `named_parameters`."""
        return [parameter for _, parameter in self.named_parameters()]

    def train(self, mode: bool = True) -> Self:
        """Set training mode here and below, or evaluation mode, which leaves dropout out; return the module."""
        self.training = check_flag(mode, "train, mode")
        for _, child in self.children():
            child.train(mode)
        return self

    def eval(self) -> Self:
        """Set evaluation mode here and below; return the module."""
        return self.train(False)

    def prepare(self) -> Callable[..., Any]:
        """Return a function that runs the module as it is now, for inference: in evaluation mode, without a tape.

        The weights of its recurrent layers are packed once.  What becomes of the module later does not reach the
        function, and any number of threads may call it at the same time.

        Examples
        --------
        >>> from varlen_rnn.nn import Linear
        >>> run = Linear(3, 2).prepare()
        >>> run(np.ones((1, 3), np.float32)).requires_grad
        False
        """
        frozen = copy.deepcopy(self).eval()
        frozen._freeze()

        def run(*inputs: Any, **named: Any) -> Any:
            with no_grad():
                return frozen(*inputs, **named)

        return run

    def _freeze(self) -> None:
        """Get ready for calls without gradients, between which no parameter changes."""
        for _, child in self.children():
            child._freeze()

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return copies of the parameters' arrays by name, as `load_state_dict` and PyTorch take them."""
        return {name: parameter.data.copy() for name, parameter in self.named_parameters()}

    def load_state_dict(self, state: Mapping[str, ArrayLike], strict: bool = True) -> None:
        """Overwrite the parameters with the arrays of `state`: all of them, or, on any error, none.

        Parameters
        ----------
        state : dict of str to array
        strict : bool
            Whether names must match exactly.

        Raises
        ------
        CheckpointError
            Names that are missing or unexpected; the first array of the wrong shape or data type.
        """
        named, arrays = dict(self.named_parameters()), state_arrays(state, "state_dict")
        missing, unexpected = sorted(named.keys() - arrays.keys()), sorted(arrays.keys() - named.keys())
        if check_flag(strict, "load_state_dict, strict") and (missing or unexpected):
            raise CheckpointError(
                "state_dict",
                expected=f"also {missing}" if missing else "no more names",
                got=f"{unexpected} that nothing here is called" if unexpected else "fewer names",
            )
        arrays = {name: array for name, array in arrays.items() if name in named}
        for name, array in arrays.items():
            have = named[name]
            if array.shape != have.shape or array.dtype != have.dtype:
                expected, got = f"{have.shape} {have.dtype}", f"{array.shape} {array.dtype}"
                raise CheckpointError(f"state_dict, {name!r}", expected=expected, got=got)
        for name, array in arrays.items():
            named[name].assign(array)

    def __repr__(self) -> str:
        inner = [f"  ({name}): {child!r}".replace("\n", "\n  ") for name, child in self.children()]
        head = f"{type(self).__name__}({self.extra_repr()}"
        return "\n".join([head, *inner, ")"]) if inner else head + ")"

    def extra_repr(self) -> str:
        """Return the text between the parentheses of `repr`: the sizes, in the order of the constructor."""
        return ""


def _flat(
    container: dict | list | tuple, prefix: str = "", outside: tuple[object, ...] = ()
) -> Iterator[tuple[str, object]]:
    """Yield the leaves of a dict, list or tuple, nested to any depth, with their dotted names."""
    for name, value in container.items() if isinstance(container, dict) else enumerate(container):
        if not isinstance(value, (dict, list, tuple)):
            yield f"{prefix}{name}", value
        elif not any(value is other for other in outside):  # else it contains itself
            yield from _flat(value, f"{prefix}{name}.", (*outside, value))


def check_dtype(dtype: DTypeLike) -> np.dtype:
    """Return a parameter's data type, or raise: float32 or float64."""
    try:
        dtype = np.dtype(dtype)
    except Exception as error:  # the object may raise anything when NumPy asks it
        raise DTypeError("dtype", expected="float32 or float64", got=shown(dtype)) from error
    if dtype not in (np.float32, np.float64):
        raise DTypeError("dtype", expected="float32 or float64", got=dtype)
    return dtype
