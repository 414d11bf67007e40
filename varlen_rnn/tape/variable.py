"""Variables and `apply`, which runs an operator, or describes it in the program that is being recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, overload

import numpy as np
from numpy.typing import DTypeLike

from varlen_rnn import foreign
from varlen_rnn.errors import DTypeError, ProgramError, ShapeError, check_flag, hinting, shown
from varlen_rnn.rows.checks import check_no_gradient
from varlen_rnn.rows.lod import LoD, LoDTensor, interface_of, lines_of_levels
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.runtime.device import beside, on_device, overwrite
from varlen_rnn.runtime.device_array import DeviceArray
from varlen_rnn.runtime.place import HOST, Place
from varlen_rnn.runtime.place import device as as_place
from varlen_rnn.runtime.precision import get_float32_matmul_precision
from varlen_rnn.tape import origins
from varlen_rnn.tape.array_methods import ArrayMethods, no_variables, operand
from varlen_rnn.tape.elsewhere import missing_attribute
from varlen_rnn.tape.gradient import Record, hooks_of, was_updated
from varlen_rnn.tape.hooks import HookHandle, Hooks
from varlen_rnn.tape.index import own_index
from varlen_rnn.tape.modes import EVALUATING, GRAD_ENABLED, RECORDER
from varlen_rnn.tape.operator import Op, find
from varlen_rnn.tape.origins import Detached, Origin
from varlen_rnn.tape.run import run
from varlen_rnn.tape.spec import VALUES, Symbol, Value
from varlen_rnn.tape.ufuncs import call_function, operator_of
from varlen_rnn.typing import Offsets, Rows

_ONE_PASS = "leave it out: a pass frees its records, so compute the loss again, or add losses up before"
_new = object.__new__  # looked up once, because every operator makes Variables


class _Ufuncs:
    """The descriptor `__array_ufunc__`: read from the class, as NumPy does, it is a function.

    Read from a Variable, as masked arrays do, it is None.  Then `array * variable` calls the Variable's own method,
    which keeps the gradient.
    """

    def __get__(self, variable: Variable | None, owner: type) -> Callable[..., Variable] | None:
        return _apply_ufunc if variable is None else None


class Variable(ArrayMethods["Variable"]):
    """A value that remembers how it was computed; its length, items and iteration run over rows.

    Parameters
    ----------
    value : LoDTensor, array_like, or SelectedRows
        Rows with their LoD, or an ordinary tensor.
    requires_grad : bool
        Whether `backward` leaves this variable's gradient in `grad`.
    name : str, optional
        For error messages, and in a program.
    persistable : bool
        Whether a program keeps the value from run to run, as it does a parameter's.

    Attributes
    ----------
    value : LoDTensor, SelectedRows, ...
        The value.  A gradient may read it again, and a direct change (`x.value.data[...] = 0`) is not noticed.
    grad : array, LoDTensor, SelectedRows or None
        The gradient of a leaf, or of an inner Variable after `retain_grad`, summed over calls of `backward`; set None
        to start again.

    Raises
    ------
    ProgramError
        If `value` is a Variable that requires a gradient, outside of `no_grad`: the new Variable would lose it.

    Notes
    -----
    `x += y`, `-=`, `*=` and so on update a leaf that requires a gradient, a Parameter or a Buffer in place, as in
    PyTorch: a leaf that requires a gradient only under `no_grad`.  The shape and the data type do not change.  For any
    other Variable, `x += y` is `x = x + y`: only this name gets the new value.  Under `no_grad`, a computed Variable
    that requires a gradient is refused, because its name would silently become a constant.

    Examples
    --------
    >>> x = Variable(np.array([1.0, 2.0]), requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad
    array([2., 4.])
    """

    __slots__ = (
        "_name", "grad", "hooks", "origin", "persistable", "position", "record", "requires_grad", "updated_at", "value",
    )  # fmt: skip

    __array_ufunc__ = _Ufuncs()
    _send_back: ClassVar[Callable[..., None]]  # set by `tape.backward`, which makes Variables
    shard: Any = None  # the `nn.sharded.Shard` of a parameter whose rows ranks divide

    def __init__(
        self, value: Rows | Value, requires_grad: bool = False, name: str | None = None, persistable: bool = False
    ) -> None:
        if isinstance(value, Variable):
            check_no_gradient(value, type(self).__name__, "the Variable itself keeps the gradient")
            value = value.value
        self.value: Any = value if isinstance(value, VALUES) else LoDTensor(no_variables(value))
        if requires_grad:
            self._check_floating()
        self.requires_grad, self.persistable = requires_grad, persistable
        self._name = name
        self.grad: np.ndarray | Any | None = None
        self.record: Record | None = None
        self.origin: Origin | None = None  # instead of a record, for values without a gradient; see `tape.origins`
        self.hooks: Hooks | None = None  # None until a hook is registered, which is rare
        self.updated_at = -1  # the number of the last update, counted together with records; -1 if there was none
        self.position = 0  # its position among the outputs of its record

    @property
    def _loses_gradient(self) -> bool:
        """Whether a plain array of the value would lose its gradient; see `rows.checks.loses_gradient`."""
        return self.requires_grad and bool(GRAD_ENABLED.get())

    def _check_floating(self) -> None:
        if self.dtype.kind != "f":
            what, hint = f"{type(self).__name__} that requires a gradient", "write 1.0, not 1, or use x.astype(dtype)"
            raise DTypeError(what, expected="float32 or float64", got=self.dtype, hint=hint)

    def __getstate__(self) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """Return the state for a copy, without hooks, because these belong to this Variable, as in PyTorch."""
        state: Any = object.__getstate__(self)
        own, slots = state
        return own, slots | {"hooks": None, "origin": None}

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return how a leaf is pickled or deep-copied; raise for a computed Variable, as PyTorch does."""
        if self.record is not None or isinstance(self.value, Symbol):
            of = f" of {self.name!r}" if self.name else ""
            got = f"a computed Variable of shape {tuple(self.value.shape)}"
            hint = "copy y.detach(), the value alone; if a module holds the output, delete it: del module.y"
            if isinstance(self.value, Symbol):
                got, hint = "a variable of a program", "program.to_bytes() describes the whole program"
            expected = "a leaf, which no operator computed"
            raise ProgramError(f"pickle or deep copy{of}", expected=expected, got=got, hint=hint)
        return super().__reduce_ex__(protocol)

    def __copy__(self) -> Self:
        made = _new(type(self))
        made.__setstate__(self.__getstate__())
        return made

    def __setstate__(self, state: tuple[dict[str, Any] | None, ...]) -> None:
        """Set the state of a copy, without the number of its last update, which another process can have counted."""
        self.hooks = self.origin = None
        for part in state:  # the attributes of a subclass come first
            for name, value in (part or {}).items():
                setattr(self, name, value)
        self.updated_at = -1

    @property
    def name(self) -> str | None:
        """The name, or None.  In a program, each variable has a name of its own."""
        return self.value.name if isinstance(self.value, Symbol) else self._name

    @name.setter
    def name(self, name: str) -> None:
        if isinstance(self.value, Symbol):
            self.value.rename(name)
        else:
            self._name = name

    @property
    def device(self) -> Place:
        """Where the value is: `device('cpu')` or `device('cuda:0')`."""
        if isinstance(self.value, Symbol):
            got = "a variable of a program, which has no device before a run"
            raise ProgramError(f"device of {self.name!r}", expected="a Variable with a value", got=got)
        return self.value.device if isinstance(self.value, (LoDTensor, SelectedRows)) else HOST

    @hinting(dtype="x.astype(dtype) converts")
    def to(self, device: str | Place) -> Variable:
        """Return this value on a device, or this Variable if it is already there.  The gradient is copied back.

        Parameters
        ----------
        device : {"cpu", "cuda"} or the result of `vr.device`

        Raises
        ------
        PlaceError
            If there is no such device.
        InputError
            If numba-cuda is not installed, or finds no GPU.
        ProgramError
            In a program, because it runs on the device of its operands.

        Examples
        --------
        >>> x = Variable([1.0, 2.0])
        >>> x.to("cpu") is x, x.device
        (True, device('cpu'))

        Source: `Tensor.to` of PyTorch.
        """
        place = as_place(device)
        if RECORDER.get() is not None:
            got = "a program that is being recorded, which runs on the device of its operands"
            raise ProgramError("to", expected="eager mode", got=got)
        if place == self.device:
            return self
        values = [self.value.to(place)]
        is_recorded = self.requires_grad and GRAD_ENABLED.get()
        return variables_of(values, Record(_TO, [self], values, {"device": place}) if is_recorded else None)[0]

    def cpu(self) -> Variable:
        """Return this value on the host, as `to("cpu")` does."""
        return self.to(HOST)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Set whether `backward` leaves a gradient in `grad` of this Variable; return this Variable.

        A frozen Parameter (`requires_grad_(False)`) costs no gradient, and optimizers leave it alone.

        Raises
        ------
        DTypeError
            If `requires_grad` is True, but the Variable has integers or bools.
        ProgramError
            If an operator computed the Variable, or it belongs to a program.

        Examples
        --------
        >>> x = Variable([1.0, 2.0]).requires_grad_()
        >>> (x * x).sum().backward(); x.grad
        array([2., 4.])

        Source: `Tensor.requires_grad_` of PyTorch.
        """
        requires_grad = check_flag(requires_grad, "requires_grad_, requires_grad")
        if self.record is not None or isinstance(self.value, Symbol):
            hint = "detach() returns a leaf of the same value"
            expected = "a leaf, which no operator computed"
            raise ProgramError("requires_grad_", expected=expected, got="a computed Variable", hint=hint)
        if requires_grad:
            self._check_floating()
        self.requires_grad = requires_grad
        return self

    def lod(self) -> list[list[int]]:
        """Return the offset form of the value's LoD."""
        return self.value.lod()

    def detach(self) -> Variable:
        """Return a Variable of the same value that does not remember how it was computed."""
        made = Variable(self.value)
        if origins.kept:
            made.origin = self.origin if self.record is None else Detached(self.record.number)
            made.position = self.position
        return made

    def astype(self, dtype: DTypeLike) -> Variable:
        """Return every element in another data type, or this Variable if it has that type; the LoD is kept.

        A gradient passes only between float32 and float64.

        Parameters
        ----------
        dtype : data type
            float32, float64, bool, int8, int16, int32, int64 or uint8.

        Raises
        ------
        DTypeError
            If `dtype` is none of these types.

        Examples
        --------
        >>> Variable([2, 3]).astype("float32").dtype
        dtype('float32')
        """
        try:
            wanted = np.dtype(dtype)
        except Exception as error:  # an object of the caller may raise any error
            raise DTypeError("astype, dtype", expected="a data type", got=shown(dtype)) from error
        if wanted == self.dtype:
            return self
        both_floats = wanted.kind == self.dtype.kind == "f"
        return (apply if both_floats else apply_detached)("cast", self, dtype=str(wanted))

    def with_lod(self, lod: LoD | Iterable[Offsets] | Variable | LoDTensor) -> Variable:
        """Return the same rows with another LoD: a LoD, the offsets of each level, or a value that has a LoD.

        Examples
        --------
        >>> Variable([1.0, 2.0, 3.0]).with_lod([[0, 2, 3]]).lod()
        [[0, 2, 3]]
        """
        if isinstance(lod, (Variable, LoDTensor)):
            return apply("lod_reset", self, lod, target_lod=None)
        lod = LoD(lod)
        if lod.num_levels == 1:
            return apply("lod_reset", self, None, target_lod=tuple(lod.offsets()[0]))
        return apply("lod_reset", self, LoDTensor.wrap(np.empty((lod.num_rows, 0)), lod), target_lod=None)

    @hinting(retain_graph=_ONE_PASS, create_graph=_ONE_PASS)
    def backward(self, gradient: Rows | None = None) -> None:
        """Leave the gradient of this variable in the `grad` of every leaf that requires one; see `backward`."""
        self._send_back(gradient)

    def register_hook(self, hook: Callable[[Any], Any]) -> HookHandle:
        """Call a function with the gradient of this Variable, in every pass, before it goes further back.

        The gradient is the sum of all gradients that arrive in one pass.  Hooks run in the order of their registration,
        each on the gradient that the one before returned.  The hook of a leaf runs at the end of the pass, before the
        gradient is added to `grad`.  Hooks run in the thread of the pass and under `no_grad`.  An exception in a hook
        ends the pass and reaches the caller of `backward` as it is; compute the loss again after it.

        Parameters
        ----------
        hook : callable
            `hook(gradient)` gets an array, a LoDTensor if the Variable has a LoD, or SelectedRows as an embedding's
            table does.  They are read-only, since other Variables may share them.  It returns None, or the gradient to
            go on with, of the same shape and data type.

        Returns
        -------
        handle
            `handle.remove()` removes the hook.

        Raises
        ------
        ProgramError
            If the Variable requires no gradient, or belongs to a program.
        DTypeError
            If `hook` cannot be called.

        Examples
        --------
        >>> x = Variable([1.0, 2.0], requires_grad=True)
        >>> y = x * 3.0
        >>> handle = y.register_hook(lambda gradient: gradient * 10.0)
        >>> y.sum().backward(); x.grad
        array([30., 30.])
        >>> handle.remove()

        Source: `Tensor.register_hook` of PyTorch.
        """
        self._check_eager("register_hook")
        if not callable(hook):
            raise DTypeError("register_hook, hook", expected="a function of the gradient", got=shown(hook))
        return hooks_of(self).add(hook)

    def retain_grad(self) -> None:
        """Let an inner Variable keep its gradient in `grad`, as leaves do; it does nothing to a leaf.

        The gradient is the one that hooks return.

        Raises
        ------
        ProgramError
            If the Variable requires no gradient, or belongs to a program.

        Examples
        --------
        >>> x = Variable([1.0, 2.0], requires_grad=True)
        >>> y = x * 3.0
        >>> y.retain_grad()
        >>> (y * y).sum().backward(); y.grad
        array([ 6., 12.])

        Source: `Tensor.retain_grad` of PyTorch.
        """
        self._check_eager("retain_grad")
        if self.record is not None:
            hooks_of(self).retains = True

    @property
    def retains_grad(self) -> bool:
        """Whether this is an inner Variable that keeps its gradient."""
        return self.hooks is not None and self.hooks.retains

    def _check_eager(self, method: str) -> None:
        name = f"{method} of {self.name!r}" if self.name else method
        if isinstance(self.value, Symbol) or RECORDER.get() is not None:
            hint = "the code of a program, or of a step of DynamicRNN or while_loop, runs only once, to describe it"
            got = "a program that is being recorded, in which no gradient has a value yet"
            raise ProgramError(name, expected="eager mode", got=got, hint=hint)
        if not self.requires_grad:
            hint = "compute it outside of no_grad, from leaves with requires_grad=True"
            raise ProgramError(name, expected="a Variable that requires a gradient", got="none", hint=hint)

    def __getitem__(self, index: Any) -> Variable:
        is_array = type(index) is np.ndarray and index.dtype.kind in "iu" and RECORDER.get() is not None
        if is_array or isinstance(index, (Variable, LoDTensor)):  # a program records an array as a constant
            return apply("gather", self, index)
        return apply("getitem", self, index=own_index(index))

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        """Raise, because a gradient may need the numbers that the assignment would overwrite."""
        hint = "functional.where(mask, value, x) replaces numbers; parameter.assign(array) overwrites a Parameter"
        expected = "a new Variable, because a gradient may need the old numbers"
        raise DTypeError("x[...] = value", expected=expected, got="an assignment", hint=hint)

    if not TYPE_CHECKING:  # Hidden from type checkers: with it they accept any name.

        def __getattr__(self, name):
            """Raise the error about a missing attribute; if the code to write instead is known, the error shows it."""
            if name in foreign.METHODS:
                raise missing_attribute(type(self), name, foreign.METHODS[name], self)
            return object.__getattribute__(self, name)

    def _updated(self, compute: Callable[[Any, Any], Any], other: Any) -> Variable:
        """Return the Variable to which `x += other` binds the name `x`: `x` itself, updated in place, or a new one."""
        is_leaf = self.record is None and not isinstance(self.value, Symbol)
        name = f"{self.name or 'a ' + type(self).__name__} updated in place"
        if not is_leaf and self.requires_grad and not GRAD_ENABLED.get():
            got, hint = "a computed Variable that requires one", "x = x + y makes a new Variable, without a gradient"
            expected = "a leaf, or a Variable that requires no gradient, under no_grad"
            raise ProgramError(name, expected=expected, got=got, hint=hint)
        if not (is_leaf and (self.requires_grad or self.persistable)):
            return compute(self, other)
        if RECORDER.get() is not None:
            got, hint = "a program that is being recorded", "optimizer.minimize(loss) adds updates to a program"
            raise ProgramError(name, expected="eager mode", got=got, hint=hint)
        if self.requires_grad and GRAD_ENABLED.get():
            got, hint = "a leaf that requires a gradient", "x = x + y makes a new Variable"
            raise ProgramError(name, expected="vr.no_grad() around an update in place", got=got, hint=hint)
        is_sparse = isinstance(other, SelectedRows)  # such as the gradient of an embedding table
        found = Variable(compute(self.value.data, other)) if is_sparse else compute(self, other)
        check_no_gradient(found, name)
        if found.shape != self.shape:
            raise ShapeError(name, expected=f"shape {self.shape}", got=f"shape {found.shape}")
        if found.dtype != self.dtype:
            raise DTypeError(name, expected=self.dtype, got=found.dtype)
        self._overwrite(found.value.data, name)
        return self

    def _overwrite(self, array: np.ndarray, name: str) -> None:
        """Overwrite the values in place with an array that broadcasts to the shape."""
        data = self.value.data
        if not data.flags.writeable:
            raise ShapeError(name, expected="memory that can be written to", got="memory that is read-only")
        try:
            overwrite(data, ..., array)
        finally:  # even after an interrupt
            was_updated(self)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.value, dtype, copy=copy)

    def __array_function__(
        self, function: Callable[..., Any], types: Iterable[type], inputs: Sequence[Any], options: Mapping[str, Any]
    ) -> Any:
        """Call a function of NumPy that is no ufunc, or raise if its result would lose a gradient."""
        return call_function(function, inputs, options)

    def __dlpack__(self, **options: Any) -> Any:
        """Hand the memory to another library; raise a BufferError if that would lose a gradient."""
        if self.requires_grad:
            raise BufferError("this Variable requires a gradient, which another library would lose: use detach()")
        return self.value.data.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.value.data.__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The memory of the value for another library; a value on the host has no such attribute."""
        if self.requires_grad:
            raise AttributeError("this Variable requires a gradient, which another library would lose: use detach()")
        return interface_of(getattr(self.value, "_data", None))

    def __iter__(self) -> Iterator[Variable]:
        return (self[index] for index in range(len(self)))

    # `==` might mean the same Variable (`is`) or the same values (`equal`), so guessing either would not be safe.
    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        if isinstance(other, (int, float, list, tuple, np.ndarray, np.generic, LoDTensor, Variable)):
            hint = "functional.equal(x, y) compares values, `x is y` asks whether both are the same Variable"
            raise DTypeError("== of a Variable", expected="the same Variable", got=type(other).__name__, hint=hint)
        return NotImplemented

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        kind, name = type(self).__name__, f" {self.name!r}" if self.name else ""
        if not isinstance(self.value, LoDTensor):
            return f"{kind}{name} of {self.value!r}"
        data = self.value.data
        is_here = not on_device(data)  # numbers on a device are not copied to be shown
        numbers = np.array2string(data, separator=", ", prefix=f"{kind}(") if is_here else f"on {self.device}"
        about = [f"shape={self.shape}", f"dtype={self.dtype}"]
        about += [f"name={self.name!r}"] if self.name else []
        about += ["requires_grad=True"] if self.requires_grad else []
        return "\n".join([f"{kind}({numbers}, {', '.join(about)})", *lines_of_levels(self.value.structure)])


_COMPARISONS = frozenset((np.less, np.less_equal, np.greater, np.greater_equal))


def _apply_ufunc(self: Variable, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Variable:
    """Apply the operator of a NumPy ufunc; `array + variable`, with an array on the left, also calls this."""
    is_plain = method == "__call__" and not options
    if is_plain and ufunc is np.power:  # as in `x ** n`, whose operator takes n as a constant
        return as_variable(inputs[0]) ** inputs[1]
    op = None if is_plain and ufunc is np.matmul else operator_of(ufunc, method, options)
    if ufunc in _COMPARISONS:  # NumPy makes an array from a scalar on the left, as in `np.float64(1) < x`
        inputs = tuple(value[()] if type(value) is np.ndarray and not value.ndim else value for value in inputs)
    values = [operand(value, self) for value in inputs]
    found = _product(*values) if op is None else apply(op, *values)
    return found.detach() if found.dtype.kind == "b" else found  # so that the operands of a comparison can be freed


# This operator is not in the table `OPERATORS`, because programs do not have it.
_TO = Op(
    "to", ("x",), ("out",), forward=lambda x, device: x.to(device), infer=lambda x, device: x, rows="each",
    grad=lambda inputs, outputs, d_outputs, device: [d_outputs[0].to(inputs[0].device)],
)  # fmt: skip


def _product(x: Variable | LoDTensor, y: Variable | LoDTensor) -> Variable:
    """Return `x @ y` if `x` has rows and `y` is a weight, or if both are batches of matrices."""
    return apply("batched_matmul", x, y) if len(y.shape) > 2 else apply("matmul", x, y, None, transposed=False)


def variables_of(values: list[Value], record: Record | None = None) -> list[Variable]:
    """Wrap the results of an operator in Variables, without the checks of the constructor, to save time."""
    results, requires_grad = [], record is not None
    for position, value in enumerate(values):
        variable = _new(Variable)
        variable.value, variable.record, variable.position = value, record, position
        variable.requires_grad, variable.persistable = requires_grad, False
        variable._name = variable.grad = variable.hooks = variable.origin = None
        variable.updated_at = -1
        results.append(variable)
    return results


@overload
def as_variable(value: None) -> None: ...
@overload
def as_variable(value: Rows | Value) -> Variable: ...
def as_variable(value: Rows | Value | None) -> Variable | None:
    """Return `value` as a Variable; None stays None."""
    return value if value is None or isinstance(value, Variable) else Variable(value)


def required(value: Rows | Value | None, name: str) -> Variable:
    """Return `value` as a Variable; raise an error that begins with `name` if it is None."""
    if value is None:
        raise DTypeError(name, expected="a Variable, a LoDTensor or an array", got="None")
    return as_variable(value)


def apply(op_type: str, *inputs: Any, **attrs: Any) -> Any:
    """Run an operator on Variables or values, and record it for a gradient; return one Variable or a list of them."""
    return apply_op(find(op_type), inputs, attrs)


def apply_op(op: Op, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """Apply an operator that is given as an `Op` instead of its name, which is faster than `apply`."""
    into = RECORDER.get()
    # Gradients and programs run later, perhaps while another precision is in force.
    later = op.at(get_float32_matmul_precision()) if op.multiplies else op
    if into is None:
        variables, values = [], []
        for given in inputs:  # one loop, because every operator comes here
            if given is not None and not isinstance(given, Variable):
                given = Variable(given)
            variables.append(given)
            values.append(None if given is None else given.value)
        results = run(op, values, attrs)
    else:
        variables = into.admit_all(op, inputs)
        results = into.append(later, variables, attrs)
    if op.in_place:
        outputs = [variables[position] for position in op.in_place]
        for variable in outputs:
            was_updated(variable)
    else:
        record, mode = None, GRAD_ENABLED.get()
        if mode:
            for position, variable in enumerate(variables):  # faster than `any`
                if variable is not None and variable.requires_grad:
                    if op.passed_to is None or op.passes_to(position):
                        record = Record(later, variables, results, attrs)
                        break
        outputs = variables_of(results, record)
        if origins.kept and record is None and into is None and mode is not False and not EVALUATING.get():
            origins.note(op, variables, results, attrs, outputs)  # also under `no_grad`, but not in a backward pass
    return outputs[0] if len(outputs) == 1 else outputs


def apply_detached(op_type: str, *inputs: Any, **attrs: Any) -> Variable:
    """Apply an operator that compares or counts, without a record, so that its inputs can be freed."""
    return apply(op_type, *inputs, **attrs).detach()


def apply_list(op_type: str, *inputs: Any, **attrs: Any) -> list[Variable]:
    """Return the outputs of an operator as a list, even if there is only one."""
    outputs = apply(op_type, *inputs, **attrs)
    return outputs if isinstance(outputs, list) else [outputs]


Variable._apply, Variable._apply_detached = staticmethod(apply), staticmethod(apply_detached)
Variable._product = staticmethod(_product)


def constant(array: np.ndarray, like: Variable) -> Variable:
    """Return an array as a Variable on the device of `like`, so that operators accept both; it is copied there once."""
    return Variable(array if isinstance(like.value, Symbol) else beside(array, like.value.data))


def _of_device_arrays(op_type: str, *inputs: Any) -> Any:
    """Apply an operator to DeviceArrays and numbers and return a DeviceArray; nothing is recorded."""
    if any(isinstance(value, (Variable, SelectedRows)) for value in inputs):
        return NotImplemented  # the methods of the Variable keep its gradient, and sparse rows have their own
    like = Variable(LoDTensor.wrap(next(value for value in inputs if isinstance(value, DeviceArray))))
    values: Any = [operand(value, like) for value in inputs]
    return run(find(op_type), values, {})[0].data


DeviceArray._apply = staticmethod(_of_device_arrays)
