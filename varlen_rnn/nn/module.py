"""The base class of layers and models, `Module`, and the trained arrays that it holds, `Parameter`."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from varlen_rnn.checkpoint import state_arrays
from varlen_rnn.errors import CheckpointError, DTypeError, PlaceError, ProgramError, ShapeError, check_flag, shown
from varlen_rnn.nn.functional import weight_norm
from varlen_rnn.rows.checks import as_rows
from varlen_rnn.runtime.device import moved, on_device, overwrite
from varlen_rnn.runtime.maps import map_of
from varlen_rnn.runtime.place import HOST, Place
from varlen_rnn.runtime.place import device as as_place
from varlen_rnn.runtime.precision import at_precision, check_precision, fixed_at, get_float32_matmul_precision
from varlen_rnn.shards import Parts, find_rows, names_of, shard_name
from varlen_rnn.tape.checks import FLOATS
from varlen_rnn.tape.elsewhere import Elsewhere
from varlen_rnn.tape.gradient import was_updated
from varlen_rnn.tape.modes import EVALUATING, no_grad, recorded, recorder
from varlen_rnn.tape.values import moved_value, zeros_like
from varlen_rnn.tape.variable import Variable

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
V = TypeVar("V", bound=Variable)

NOT_IN_HALF = "float16 would round small updates to 0: use x.astype(np.float32), or requires_grad=False"


class _Kept(Variable):
    """A Variable that a module keeps: its numbers can be overwritten, but its memory stays the same."""

    __slots__ = ()

    @property
    def data(self) -> np.ndarray:
        """The array that optimizers update in place; a DeviceArray after `to("cuda")`.

        Setting it copies numbers of the same shape and data type into this memory.  A later `backward` notices that
        `data` was set, as in `p.data -= 1`, but not a direct change of the array, as in `p.data[0] = 0`.
        """
        return self.value.data

    @data.setter
    def data(self, array: ArrayLike) -> None:
        if array is not self.value.data:  # `p.data -= 1` on the host sets the same array
            hint = "assign(array) converts the data type and broadcasts the shape"
            rows = as_rows(array, "data")
            if rows.dtype != self.dtype:
                raise DTypeError("data", expected=f"data type {self.dtype}", got=rows.dtype, hint=hint)
            if rows.shape != self.shape:
                raise ShapeError("data", expected=f"shape {self.shape}", got=f"shape {rows.shape}", hint=hint)
            self.assign(rows)
        was_updated(self)

    def assign(self, array: ArrayLike) -> None:
        """Overwrite the values in place with an array that broadcasts to the shape.

        The shape and the data type do not change.
        """
        array = as_rows(array, "assign")
        try:
            self._overwrite(array, "assign")
        except (PlaceError, DTypeError, ShapeError):
            raise
        except ValueError as error:
            expected = f"a shape that broadcasts to {self.shape}"
            raise ShapeError("assign", expected=expected, got=array.shape) from error


class Parameter(_Kept):
    """A Variable that a module trains: it requires a gradient, and optimizers update it in place.

    Parameters
    ----------
    array : array_like
        float32 or float64, or float16 if it requires no gradient.
    requires_grad : bool
        Whether it is trained.  It can be set later, too.
    copy : bool
        Whether the array is copied, so that an update never reaches the caller's array.  Otherwise `array` must be an
        array that optimizers can update in place, and it is the parameter's memory: for a table larger than the
        memory, `np.memmap(path, np.float32, "r+", shape=shape)`.

    Raises
    ------
    DTypeError
        `array` has another data type.
    ShapeError
        `array` cannot be used without a copy.
    ProgramError
        `array` is a Variable that requires a gradient, outside of `no_grad`: a Parameter is a leaf without a history.

    Examples
    --------
    >>> weight = Parameter([1.0, 2.0])
    >>> (weight * 3.0).sum().backward(); weight.grad
    array([3., 3.])
    >>> with no_grad():
    ...     weight -= 0.1 * weight.grad
    >>> weight.data
    array([0.7, 1.7])
    >>> own = np.zeros(2)
    >>> Parameter(own, copy=False).assign(1.0); own
    array([1., 1.])

    Source: `torch.nn.Parameter`, which never copies.
    """

    __slots__ = ()

    def __init__(self, array: ArrayLike, requires_grad: bool = True, *, copy: bool = True) -> None:
        rows, requires_grad = as_rows(array, "Parameter"), check_flag(requires_grad, "Parameter, requires_grad")
        if check_flag(copy, "Parameter, copy"):
            rows = rows.copy() if on_device(rows) else np.array(rows, order="C")
        else:
            _check_shareable(array, requires_grad)
        if not requires_grad and rows.dtype not in FLOATS and rows.dtype != np.float16:
            raise DTypeError("Parameter without a gradient", expected="float16, float32 or float64", got=rows.dtype)
        super().__init__(rows, requires_grad=requires_grad, persistable=True)

    def _check_floating(self) -> None:
        super()._check_floating()
        if self.dtype not in FLOATS:
            hint = NOT_IN_HALF if self.dtype == np.float16 else None
            what = "Parameter that requires a gradient"
            raise DTypeError(what, expected="float32 or float64", got=self.dtype, hint=hint)


def _check_shareable(array: object, requires_grad: bool) -> None:
    """Raise unless a Parameter can use the array's memory; it must be writeable if the Parameter is trained."""
    expected, hint = "an array that is updated in place", "copy=True makes a copy that can be updated"
    if not isinstance(array, np.ndarray) or not array.dtype.isnative:
        got = shown(array) if not isinstance(array, np.ndarray) else f"data type {array.dtype}"
        raise DTypeError("Parameter without a copy", expected=expected, got=got, hint=hint)
    if not (array.flags.c_contiguous and array.flags.aligned):
        got = "an array that is not aligned, or not C-contiguous"
        raise ShapeError("Parameter without a copy", expected=expected, got=got, hint=hint)
    if requires_grad and not array.flags.writeable:
        hint = 'np.memmap(path, dtype, "r+") can be written to; with requires_grad=False, the array can be read-only'
        raise ShapeError("Parameter without a copy", expected=expected, got="a read-only array", hint=hint)


class Buffer(_Kept):
    """A Variable that a module keeps in its state and no optimizer trains, such as a running mean.

    Parameters
    ----------
    array : array_like
        Numbers of any data type; copied.

    Examples
    --------
    >>> class Count(vr.nn.Module):
    ...     def __init__(self):
    ...         self.rows = vr.nn.Buffer(np.zeros((), np.int64))
    ...
    ...     def forward(self, x):
    ...         self.rows += len(x)
    ...         return x
    >>> model = Count()
    >>> y = model(Variable([1.0, 2.0])); model.state_dict()
    {'rows': array(2)}

    Source: `torch.nn.Buffer`.
    """

    __slots__ = ()

    def __init__(self, array: ArrayLike) -> None:
        rows = as_rows(array, "Buffer")
        super().__init__(rows.copy() if on_device(rows) else np.array(rows, order="C"), persistable=True)


class _Runs(Protocol[P, R]):
    """A protocol for type checkers: calling a module takes the arguments of its `forward`, and returns its result."""

    def forward(self, *inputs: P.args, **named: P.kwargs) -> R:
        """Compute the output."""


class Module:
    """The base class of layers and models.

    A subclass sets Parameters and Modules as attributes in `__init__`, also inside lists and dicts, and computes its
    output in `forward`.  Methods such as `named_parameters` find all of them by name.

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

    register_buffer = Elsewhere("self.name = nn.Buffer(array)")
    register_parameter = Elsewhere("self.name = nn.Parameter(array)")
    add_module, apply = Elsewhere("self.name = module"), Elsewhere("for module in model.modules(): ...")
    normalised: tuple[str, ...] = ()  # names of parameters that `weight_norm` computes from `{name}_v` and `{name}_g`

    if not TYPE_CHECKING:  # Hidden from type checkers, which would accept any attribute, and refuse another `stream`.
        stream = Elsewhere("model.lstm.stream() for the recurrent layer inside, and model.head(stream(row)) after it")

        def __getattr__(self, name):
            if name in self.normalised:
                return weight_norm(getattr(self, f"{name}_v"), getattr(self, f"{name}_g"))
            return object.__getattribute__(self, name)  # this raises the usual error

        def __setattr__(self, name, value):
            kept = vars(self).get(name)
            family = Parameter if isinstance(kept, Parameter) else Buffer
            if isinstance(kept, _Kept) and not isinstance(value, (family, type(None))):
                kind, what = family.__name__, f"{type(self).__name__}.{name}"
                hint = f"{name}.assign(array) overwrites its numbers, nn.{kind}(array) makes a new {kind}"
                raise DTypeError(what, expected=f"a {kind}, or None", got=type(value).__name__, hint=hint)
            if isinstance(value, (Module, list, tuple, dict)):
                for place, inner in _flat({name: value}):
                    if isinstance(inner, Module):
                        check_apart(self, inner, f"{type(self).__name__}.{place}")
            super().__setattr__(name, value)

    @property
    def precision(self) -> str | None:
        """The precision of products of float32 in calls of this module; None, as in a new module, if it has none.

        It counts more than the precision that is set for the process or by a `with` block, and less than the precision
        of a module inside this one.  Setting it takes the names of `vr.set_float32_matmul_precision`, or None.  It is
        copied and pickled with the module, but is no part of `state_dict`.

        Examples
        --------
        >>> model = vr.nn.Sequential(vr.nn.LSTM(3, 4), vr.nn.Linear(4, 2))
        >>> model.precision, model[1].precision = "bf16", "fp32"
        """
        return vars(self).get("precision")

    @precision.setter
    def precision(self, precision: str | None) -> None:
        vars(self)["precision"] = None if precision is None else check_precision(precision)

    @property
    def training(self) -> bool:
        """Whether the module is in training mode, as `train` and `eval` set it; a new module is in training mode.

        It is also False while the library evaluates the model in this thread, as when an estimator predicts.  The
        module keeps its own mode then, and other threads can train it.
        """
        return not EVALUATING.get() and vars(self).get("training", True)

    @training.setter
    def training(self, mode: bool) -> None:
        vars(self)["training"] = mode

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Compute the module's output; every subclass defines this method."""
        raise ProgramError(f"{type(self).__name__}.forward", expected="a method forward in this subclass", got="none")

    def __call__(self: _Runs[P, R], *inputs: P.args, **named: P.kwargs) -> R:
        """Run `forward`, at the module's precision if it has one.

        While a program is recorded, the parameters get the names that they have in the outermost module.
        """
        if (into := recorder()) is not None:
            into.suggest(self)
        if (precision := vars(self).get("precision")) is not None:
            return at_precision(precision, self.forward, *inputs, **named)
        return self.forward(*inputs, **named)

    def children(self) -> list[Module]:
        """Return the modules in this module's attributes, lists and dicts."""
        return [child for _, child in self.named_children()]

    def named_children(self) -> list[tuple[str, Module]]:
        """Return (name, module) pairs of the modules in this module's attributes, lists and dicts."""
        return [(name, value) for name, value in self._entries() if isinstance(value, Module)]

    def modules(self) -> list[Module]:
        """Return this module, its children, their children, and so on; a module in several places is listed once.

        Examples
        --------
        >>> model = vr.nn.Sequential(vr.nn.Linear(2, 3), vr.nn.Tanh())
        >>> [type(module).__name__ for module in model.modules()]
        ['Sequential', 'Linear', 'Tanh']

        Source: `Module.modules` of PyTorch.
        """
        return [module for _, module in self.named_modules()]

    def named_modules(self, prefix: str = "") -> list[tuple[str, Module]]:
        """Return (name, module) pairs of `modules()`; the name of this module is `prefix`.

        Examples
        --------
        >>> model = vr.nn.Sequential(vr.nn.Linear(2, 3), vr.nn.Tanh())
        >>> [(name, type(module).__name__) for name, module in model.named_modules()]
        [('', 'Sequential'), ('0', 'Linear'), ('1', 'Tanh')]

        Source: `Module.named_modules` of PyTorch.
        """
        found: dict[int, tuple[str, Module]] = {}
        self._find_modules(_check_prefix(prefix, "named_modules"), found)
        return list(found.values())

    def _find_modules(self, name: str, found: dict[int, tuple[str, Module]]) -> None:
        if id(self) not in found:
            found[id(self)] = name, self
            for inner, child in self.named_children():
                child._find_modules(f"{name}.{inner}" if name else inner, found)

    def _entries(self) -> list[tuple[str, object]]:
        """Return (name, value) pairs of the attributes; entries of lists and dicts have names such as `layers.0`."""
        entries = list(_flat(vars(self)))
        for name, value in entries:
            if value is self:  # the module is in a list that is its own attribute
                check_apart(self, self, f"{type(self).__name__}.{name}")
        return entries

    def named_parameters(self, prefix: str = "") -> list[tuple[str, Parameter]]:
        """Return (name, Parameter) pairs, with dotted names such as `encoder.weight_ih_l0`.

        A Parameter with several names is returned once, with its first name.
        """
        return self._collected(_check_prefix(prefix, "named_parameters"), Parameter)

    def named_buffers(self) -> list[tuple[str, Variable]]:
        """Return (name, Buffer) pairs; Buffers are saved but not trained, such as running moments."""
        return self._collected("", Buffer)

    def _collected(self, prefix: str, kind: type[V] | tuple[type[V], ...]) -> list[tuple[str, V]]:
        found: dict[int, tuple[str, V]] = {}
        self._collect(prefix, kind, found)
        pairs = list(found.values())
        if len(dict(pairs)) != len(pairs):  # A checkpoint could save only one of two parameters with the same name.
            twice = next(name for name, number in Counter(name for name, _ in pairs).items() if number > 1)
            hint = "does a dict have keys that print alike, such as 1 and '1'?"
            raise ProgramError(f"parameter {twice!r}", expected="one parameter of this name", got="two", hint=hint)
        return pairs

    def _collect(self, prefix: str, kind: type[V] | tuple[type[V], ...], found: dict[int, tuple[str, V]]) -> None:
        entries = self._entries()
        for name, value in entries:
            if isinstance(value, kind):
                found.setdefault(id(value), (prefix + name, value))
        for name, value in entries:
            if isinstance(value, Module):
                value._collect(f"{prefix}{name}.", kind, found)

    def parameters(self) -> list[Parameter]:
        """Return the Parameters, in the order of `named_parameters`."""
        return [parameter for _, parameter in self.named_parameters()]

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set whether the parameters require a gradient, to freeze a module or thaw it; return the module.

        Raises
        ------
        DTypeError
            A parameter of float16 is to require a gradient; all parameters are then as before.

        Examples
        --------
        >>> model = vr.nn.Sequential(vr.nn.Linear(2, 3), vr.nn.Linear(3, 1))
        >>> frozen = model[0].requires_grad_(False)
        >>> [parameter.requires_grad for parameter in model.parameters()]
        [False, False, True, True]

        Source: `Module.requires_grad_` of PyTorch.
        """
        requires_grad, parameters = check_flag(requires_grad, "requires_grad_, requires_grad"), self.parameters()
        for parameter in parameters if requires_grad else ():
            parameter._check_floating()
        for parameter in parameters:
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of all parameters, as an optimizer's `zero_grad` does for the parameters that it updates.

        Parameters
        ----------
        set_to_none : bool
            Whether `grad` becomes None, so that an optimizer does not change a parameter that the next loss does not
            reach.  Otherwise gradients become zeros, for which momentum or weight decay still change the parameter.
            In a program, `grad` becomes None in both cases.
        """
        set_to_none = check_flag(set_to_none, "zero_grad, set_to_none") or recorder() is not None
        parameters = self.parameters()
        if (into := recorder()) is not None:
            into.clears(parameters)
        for parameter in parameters:
            target = recorded(parameter)
            target.grad = None if set_to_none else zeros_like(target.grad)

    def train(self, mode: bool = True) -> Self:
        """Set training mode, or evaluation mode if `mode` is False, here and in children; return the module.

        Only in training mode does dropout zero elements, and does `BatchNorm1d` use the moments of the batch.
        """
        self.training = check_flag(mode, "train, mode")
        for child in self.children():
            child.train(mode)
        return self

    def to(self, device: str | Place) -> Self:
        """Move all parameters and buffers, with their gradients, to a device; return the module.

        The Parameters stay the same objects, so an optimizer that has them updates them there, and moves its states
        with them.  A loss from before the move has no gradients after it: call `backward` first.

        Parameters
        ----------
        device : {"cpu", "cuda"} or the result of `vr.device`

        Raises
        ------
        PlaceError
            If there is no such device, or ranks divide a table of the module, which stays on the host.
        InputError
            If numba-cuda is not installed, or finds no GPU.

        Examples
        --------
        >>> vr.nn.Linear(3, 2).to("cpu").weight.device
        device('cpu')

        Source: `torch.nn.Module.to`.
        """
        place = as_place(device)
        kept = [variable for _, variable in self._kept() if variable.device != place]
        if any(variable.shard is not None for variable in kept):
            hint = "create nn.Embedding without shard="
            raise PlaceError("to", expected="a table of one process", got="a table that ranks divide", hint=hint)
        # All copies are made before any copy is used, so that an error leaves the module on its device.
        values = [(variable.value.to(place), moved_value(variable.grad, place)) for variable in kept]
        for variable, (value, gradient) in zip(kept, values, strict=True):
            variable.value, variable.grad = value, gradient
            was_updated(variable)
        return self

    def eval(self) -> Self:
        """Set evaluation mode in this module and its children; return the module."""
        return self.train(False)

    def prepare(self) -> Callable[..., Any]:
        """Return a function that runs a copy of the module for inference: in evaluation mode, without gradients.

        The weights of recurrent layers on the host are packed once, in this call.  Later changes of the module, or of
        the precision of products, do not affect the function, except for parameters over memory maps, which are shared.
        Any number of threads can call it at the same time.

        Examples
        --------
        >>> run = vr.nn.Linear(3, 2).prepare()
        >>> run(np.ones((1, 3), np.float32)).requires_grad
        False
        """
        here = [parameter for parameter in self.parameters() if parameter.device == HOST]
        mapped = {id(parameter): parameter for parameter in here if map_of(parameter.data) is not None}
        frozen = copy.deepcopy(self, mapped).eval()
        at_precision(frozen.precision, frozen._freeze)

        def run(*inputs: Any, **named: Any) -> Any:
            with no_grad():
                return frozen(*inputs, **named)

        return fixed_at(get_float32_matmul_precision(), run)

    def _freeze(self) -> None:
        for child in self.children():
            at_precision(child.precision, child._freeze)

    def state_dict(self, copy: bool = True) -> dict[str, np.ndarray]:
        """Return a dict of the arrays of parameters and buffers by name, for `load_state_dict` and PyTorch.

        Arrays on a CUDA device are copied to the host.

        Parameters
        ----------
        copy : bool
            Whether the arrays are copies, which later updates do not change.  Without copies, `vr.save` can write
            tables that are larger than the memory.
        """
        copied = check_flag(copy, "state_dict, copy")
        arrays = {shard_name(name, v.shard): v.value.data for name, v in self._kept()}
        return {
            name: array.copy() if copied and not on_device(array) else moved(array, HOST)
            for name, array in arrays.items()
        }

    def _kept(self) -> list[tuple[str, Variable]]:
        return self._collected("", (Parameter, Buffer))

    def load_state_dict(self, state: Mapping[str, ArrayLike], strict: bool = True) -> IncompatibleKeys:
        """Overwrite parameters and buffers with the arrays of `state`; an error leaves all of them unchanged.

        Gradients do not pass to the arrays, as in PyTorch.

        Parameters
        ----------
        state : dict of str to array
        strict : bool
            Whether the names in `state` must be exactly the names of the parameters and buffers.

        Returns
        -------
        missing_keys, unexpected_keys : lists of str, in a named tuple
            The names that `state` lacks, whose values stay, and the names in `state` that the module lacks.  Both are
            empty if `strict` is True.

        Raises
        ------
        CheckpointError
            If names are missing or unexpected, or an array has the wrong shape or data type.

        Notes
        -----
        A table is one array, `weight`, or the shards of any number of ranks: `weight[1::4]` has the rows 1, 5, 9, ...
        """
        pairs, keys = matched(self, state, strict)
        for variable, parts in pairs:
            assign_rows(variable, parts)
        return keys

    def __repr__(self) -> str:
        inner = [f"  ({name}): {text}".replace("\n", "\n  ") for name, text in self._shown()]
        told = [self.extra_repr(), "" if self.precision is None else f"precision={self.precision!r}"]
        head = f"{type(self).__name__}({', '.join(filter(None, told))}"
        return "\n".join([head, *inner, ")"]) if inner else head + ")"

    def _shown(self) -> list[tuple[str, str]]:
        return [(name, repr(child)) for name, child in self.named_children()]

    def extra_repr(self) -> str:
        """Return the text between the parentheses of `repr`: the constructor's sizes and options."""
        return ""


def _check_prefix(prefix: object, what: str) -> str:
    if not isinstance(prefix, str):
        raise DTypeError(f"{what}, prefix", expected="a string", got=shown(prefix))
    return prefix


def check_apart(module: Module, inner: Module, what: str) -> None:
    """Raise if `inner` is or contains `module`: if `module` then contained `inner`, its parameters would never end."""
    seen, waiting = set[int](), [inner]
    while waiting:
        found = waiting.pop()
        if found is module:
            kind = type(module).__name__
            got = f"a {type(inner).__name__} that is or contains it"
            raise ProgramError(what, expected=f"a Module without this {kind} inside", got=got)
        if id(found) not in seen:
            seen.add(id(found))
            waiting += found.children()


class IncompatibleKeys(NamedTuple):
    """The names that only the module or only the state has.

    Attributes
    ----------
    missing_keys : list of str
        Names of parameters and buffers that the state lacks.
    unexpected_keys : list of str
        Names in the state that no parameter or buffer has.
    """

    missing_keys: list[str]
    unexpected_keys: list[str]


def matched(
    module: Module, state: Mapping[str, ArrayLike], strict: bool = True
) -> tuple[list[tuple[Variable, Parts]], IncompatibleKeys]:
    """Return (Variable, its rows in a state) pairs of a module, and the names that only the module or the state has.

    It raises the same errors as `load_state_dict`.
    """
    named, arrays = dict(module._kept()), state_arrays(state, "state_dict")
    strict = check_flag(strict, "load_state_dict, strict")
    known = {other for name in named for other in names_of(arrays, name)}
    found = {
        name: find_rows(arrays, name, variable.shard, variable, "state_dict, ") for name, variable in named.items()
    }
    missing, unexpected = sorted(name for name in named if found[name] is None), sorted(arrays.keys() - known)
    if strict and (missing or unexpected):
        got = f"the unknown names {unexpected}" if unexpected else "a state without them"
        expected = f"also the names {missing}" if missing else "only names that the module has"
        raise CheckpointError("state_dict", expected=expected, got=got)
    pairs = [(named[name], parts) for name, parts in found.items() if parts is not None]
    return pairs, IncompatibleKeys(missing, unexpected)


def assign_rows(variable: Variable, parts: Parts) -> None:
    """Overwrite rows of a variable in place with the pairs (slice, array) in `parts`, which `matched` has checked."""
    for rows, array in parts:
        overwrite(variable.value.data, rows if array.ndim else ..., array)
    was_updated(variable)


def _flat(container: dict | list | tuple) -> Iterator[tuple[str, object]]:
    """Yield (dotted name, value) pairs of the leaves of a dict, list or tuple, nested to any depth."""
    inside, waiting = {id(container)}, [(container, _pairs(container, ""))]
    while waiting:
        for name, value in waiting[-1][1]:
            if not isinstance(value, (dict, list, tuple)):
                yield name, value
            elif id(value) not in inside:  # a container inside itself would never end
                inside.add(id(value))
                waiting.append((value, _pairs(value, f"{name}.")))
                break
        else:
            inside.discard(id(waiting.pop()[0]))


def _pairs(container: dict | list | tuple, prefix: str) -> Iterator[tuple[str, object]]:
    entries = container.items() if isinstance(container, dict) else enumerate(container)
    return ((f"{prefix}{name}", value) for name, value in entries)


def check_dtype(dtype: DTypeLike) -> np.dtype:
    """Return a parameter's data type, or raise unless it is float32 or float64."""
    try:
        dtype = np.dtype(dtype)
    except Exception as error:  # `np.dtype` runs code of the object, which may raise anything.
        raise DTypeError("dtype", expected="float32 or float64", got=shown(dtype)) from error
    if dtype not in (np.float32, np.float64):
        raise DTypeError("dtype", expected="float32 or float64", got=dtype)
    return dtype
