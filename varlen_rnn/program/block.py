"""Variables and `apply`, which runs an operator, or describes it in the program that is being recorded.

Nobody owns a global tape.  A record belongs to the Variables that it produced, points only backwards, and is freed
with them, so a loop that forgets `no_grad` leaks nothing.
"""

import contextlib
import contextvars
import itertools

import numpy as np

from varlen_rnn.errors import DTypeError, ProgramError, ShapeError, check_none, check_number
from varlen_rnn.lod import NO_LOD, LoDTensor
from varlen_rnn.lod_input import check_unmasked
from varlen_rnn.plan import SortedSeqs
from varlen_rnn.program.attrs import own_index
from varlen_rnn.program.registry import find
from varlen_rnn.program.spec import Scopes, Symbol, UnknownSize, describe
from varlen_rnn.selected_rows import SelectedRows

VALUES = (LoDTensor, Symbol, SelectedRows, SortedSeqs, Scopes)
_UNKNOWN = UnknownSize(-1)
_grad_enabled = contextvars.ContextVar("grad_enabled", default=True)
_recorder = contextvars.ContextVar("recorder", default=None)
_numbers = itertools.count()
_new = object.__new__  # every operator makes Variables


def grad_enabled():
    """Return whether operators of this context are recorded for a backward pass.

    Examples
    --------
    >>> with no_grad(): grad_enabled()
    False
    """
    return _grad_enabled.get()


def recorder():
    """Return the recorder of the program that this context describes, or None where operators run."""
    return _recorder.get()


def recorded(variable):
    """Return what stands for a leaf Variable in the program being recorded; without one, itself."""
    into = _recorder.get()
    return variable if into is None else into.admit(variable)


@contextlib.contextmanager
def recording(into):
    """Describe operators instead of running them: `into.append` takes them."""
    token = _recorder.set(into)
    try:
        yield
    finally:
        _recorder.reset(token)


@contextlib.contextmanager
def no_grad():
    """Record nothing in this context: inference keeps nothing for a backward pass.

    A mode is that of one thread: threads that are started inside begin without it.
    """
    token = _grad_enabled.set(False)
    try:
        yield
    finally:
        _grad_enabled.reset(token)


class Record:
    """One applied operator: what it took, what it gave, and its number in the order of application and updates."""

    __slots__ = ("attrs", "inputs", "number", "op", "values")

    def __init__(self, op, inputs, values, attrs):
        self.op, self.inputs, self.values, self.attrs = op, inputs, values, attrs
        self.number = next(_numbers)

    def outputs(self):
        """Return Variables of the outputs, without a record: one that held its own outputs would be freed late."""
        return _results(self.values, None)

    def release(self):
        """Let go of all values: the record cannot be passed again."""
        self.inputs = self.values = None

    def check(self):
        """Raise if the values that the gradient needs are gone, or have changed since they were used."""
        if self.inputs is None:
            hint = "compute the loss again, or add the losses up and call backward once; detach() states carried over"
            raise ProgramError(f"backward through {self.op.type!r}", expected="one pass", got="a second one", hint=hint)
        for position, variable in enumerate(self.inputs):
            if variable is not None and variable.updated_at > self.number:
                raise ProgramError(
                    f"backward through {self.op.type!r}, input {self.op.input_name(position)}",
                    expected="the value that the forward pass used",
                    got="a value updated since",
                    hint="call backward before the optimizer's step",
                )


class Variable:
    """A value that remembers how it was computed; its length, items and iteration are those of its rows.

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
    grad : array, LoDTensor, SelectedRows or None
        The gradient, summed over calls of `backward`; set None to start again.

    Examples
    --------
    >>> x = Variable(np.array([1.0, 2.0]), requires_grad=True)
    >>> (x * x).sum().backward()
    >>> x.grad
    array([2., 4.])
    """

    __slots__ = ("_name", "_slot", "grad", "persistable", "record", "requires_grad", "updated_at", "value")

    # NumPy arrays on the left leave `array * variable` to this class.
    __array_ufunc__ = None

    def __init__(self, value, requires_grad=False, name=None, persistable=False):
        if isinstance(value, Variable):
            value = value.value
        self.value = value if isinstance(value, VALUES) else LoDTensor(_no_variables(value))
        if requires_grad and self.dtype.kind != "f":
            what, hint = f"{type(self).__name__} that requires a gradient", "write 1.0 instead of 1, or use astype"
            raise DTypeError(what, expected="float32 or float64", got=self.dtype, hint=hint)
        self.requires_grad, self.persistable = requires_grad, persistable
        self._name = name
        self.grad = None
        self.record = None
        self.updated_at = -1  # in the order of records; before any
        self._slot = 0

    def __setstate__(self, state):
        """Take the state of a copy, perhaps of another process, whose numbers of updates mean nothing here."""
        for part in state:  # of a subclass, what it added; of every Variable, what it has here
            for name, value in (part or {}).items():
                setattr(self, name, value)
        self.updated_at = -1

    @property
    def name(self):
        """The name, or None; in a program every variable has one, and no two the same."""
        return self.value.name if isinstance(self.value, Symbol) else self._name

    @name.setter
    def name(self, name):
        if isinstance(self.value, Symbol):
            self.value.rename(name)
        else:
            self._name = name

    @property
    def shape(self):
        """The shape of the value: `(rows, ...)`; in a program, -1 is a size that only a run tells."""
        shape = self.value.shape
        return tuple(_UNKNOWN if n == -1 else n for n in shape) if isinstance(self.value, Symbol) else shape

    @property
    def dtype(self):
        """The data type of the value."""
        return self.value.dtype

    @property
    def ndim(self):
        """The rank of the value."""
        return len(self.value.shape)

    def lod(self):
        """Return the offset form of the value's LoD."""
        return self.value.lod()

    def item(self):
        """Return the value of a single number as a Python number."""
        return self.value.data.item()

    def __float__(self):
        return float(self.item())

    def __int__(self):
        return int(self.item())

    def __bool__(self):
        if np.asarray(self.value).size != 1:
            hint = "`is not None` asks whether there is one; np.asarray(x).any()"
            raise ShapeError("truth of a Variable", expected="a single number", got=f"shape {self.shape}", hint=hint)
        return bool(self.item())

    def __format__(self, spec):
        return format(self.item(), spec) if spec else str(self)

    def detach(self):
        """Return a Variable of the same value that remembers nothing."""
        return Variable(self.value)

    def backward(self, gradient=None):
        """Leave the gradient of this variable in the `grad` of every leaf that requires one; see `backward`."""
        from varlen_rnn.program.gradient import backward  # which applies operators to Variables

        backward(self, gradient)

    def sum(self, axis=None, keepdims=False, *, dtype=None, out=None):
        """Return the sum of all elements, or over an axis; an axis other than the rows keeps the LoD."""
        check_none("sum", dtype=dtype, out=out)
        return apply("reduce_sum", self, axis=axis, keepdims=keepdims)

    def mean(self, axis=None, keepdims=False, *, dtype=None, out=None):
        """Return the mean of all elements, or over an axis; NaN of nothing, as in NumPy."""
        check_none("mean", dtype=dtype, out=out)
        return apply("reduce_mean", self, axis=axis, keepdims=keepdims)

    def reshape(self, *shape):
        """Return the elements in another shape; the LoD is kept if the number of rows is."""
        return apply("reshape", self, shape=tuple(shape[0] if len(shape) == 1 and np.iterable(shape[0]) else shape))

    def __add__(self, other):
        return apply("add", self, operand(other, self))

    def __radd__(self, other):
        return apply("add", operand(other, self), self)

    def __sub__(self, other):
        return apply("sub", self, operand(other, self))

    def __rsub__(self, other):
        return apply("sub", operand(other, self), self)

    def __mul__(self, other):
        return apply("mul", self, operand(other, self))

    def __rmul__(self, other):
        return apply("mul", operand(other, self), self)

    def __truediv__(self, other):
        return apply("div", self, operand(other, self))

    def __rtruediv__(self, other):
        return apply("div", operand(other, self), self)

    def __neg__(self):
        return apply("neg", self)

    def __pow__(self, exponent):
        # As a Python number, which takes the data type of the rows.
        exponent = check_number(exponent, "pow, exponent", "not a Variable or an array", lambda number: True)
        return apply("pow", self, exponent=exponent)

    def __matmul__(self, weight):
        return apply("matmul", self, operand(weight, self), None, transposed=False)

    def __getitem__(self, index):
        return apply("getitem", self, index=own_index(index))

    def __array__(self, dtype=None, copy=None):
        return np.array(self.value, dtype, copy=copy)

    def __len__(self):
        if not self.shape:
            raise DTypeError("rows of a Variable", expected="at least one dimension", got="a single number")
        if self.shape[0] < 0:
            raise ProgramError(f"rows of {self.name!r}", expected="a known number", got="one that only a run tells")
        return self.shape[0]

    def __iter__(self):
        return (self[index] for index in range(len(self)))

    # Of two Variables, whether they are one: they are looked up in lists.  False for a value would be misleading.
    def __eq__(self, other):
        if isinstance(other, (int, float, list, tuple, np.ndarray, np.generic, LoDTensor)):
            hint = "np.asarray(x) == ... compares the values"
            raise DTypeError("== of a Variable", expected="another Variable", got=type(other).__name__, hint=hint)
        return NotImplemented

    __hash__ = object.__hash__

    def __repr__(self):
        name = f" {self.name!r}" if self.name else ""
        return f"Variable{name} of {self.value!r}"


def _no_variables(value):
    """Return a value, or raise if it is a list of Variables: as an array it would have no gradient."""
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], Variable):
        got = f"a {type(value).__name__} that begins with a Variable"
        hint = "a recurrent layer returns (y, states): pass y; concat joins Variables"
        raise DTypeError("value", expected="a Variable or an array", got=got, hint=hint)
    return value


def _results(values, record):
    """Return Variables of what an operator computed: the constructor's checks, and its time, are for users."""
    results, requires_grad = [], record is not None
    for slot, value in enumerate(values):
        variable = _new(Variable)
        variable.value, variable.record, variable._slot = value, record, slot
        variable.requires_grad, variable.persistable = requires_grad, False
        variable._name = variable.grad = None
        variable.updated_at = -1
        results.append(variable)
    return results


def as_variable(value):
    """Return `value` as a Variable; None stays None."""
    return value if value is None or isinstance(value, Variable) else Variable(value)


def required(value, name):
    """Return `value` as a Variable, or raise an error that names it if there is none."""
    if value is None:
        raise DTypeError(name, expected="a Variable, a LoDTensor or an array", got="None")
    return as_variable(value)


def check_given(op, inputs):
    """Raise if an input is None that may not be."""
    if (position := op.missing(inputs)) is not None:
        required(None, f"{op.type}, {op.input_name(position)}")


def apply(op_type, *inputs, **attrs):
    """Run an operator on Variables or values, and remember it if a gradient may be asked for.

    Returns
    -------
    Variable, or a list of them if the operator has several outputs

    Raises
    ------
    InputError
        What does not fit, with the operator's and the input's name.
    """
    op, into = find(op_type), _recorder.get()
    if into is None:
        variables, values = [], []
        for given in inputs:  # one loop, for every operator comes here
            variable = given if given is None or isinstance(given, Variable) else Variable(given)
            variables.append(variable)
            values.append(None if variable is None else variable.value)
        results = run(op, values, attrs)
    else:
        variables = into.admit_all(op, inputs)
        results = into.append(op, [None if variable is None else variable.value for variable in variables], attrs)
    if op.in_place:
        outputs = [variables[position] for position in op.in_place]
        for variable in outputs:
            was_updated(variable)
    else:
        record = None
        if op.grad and _grad_enabled.get():
            for variable in variables:
                if variable is not None and variable.requires_grad:
                    record = Record(op, variables, results, attrs)
                    break
        outputs = _results(results, record)
    return outputs[0] if len(outputs) == 1 else outputs


def was_updated(variable):
    """Let records that took the value of a variable know that it is another now."""
    variable.updated_at = next(_numbers)


def run(op, values, attrs):
    """Return the outputs of an operator: what the values alone tell is checked here, as their descriptions were."""
    if op.shortcut is not None and (outputs := op.shortcut(values, **attrs)) is not None:
        return outputs
    if None in values:
        check_given(op, values)
    op.infer(*[None if value is None else describe(value) for value in values], **attrs)
    return op.forward(*values, **attrs)


def operand(value, like):
    """Return what stands beside the Variable `like` in arithmetic: numbers and integers take its data type."""
    if isinstance(value, (Variable, LoDTensor)):
        return value
    if isinstance(value, UnknownSize):
        return value + 0  # which raises
    if type(value) is not np.ndarray:
        check_unmasked(_no_variables(value), "an operand")
    array = np.asarray(value)
    is_number = array.ndim == 0 and not isinstance(value, (np.ndarray, np.generic))
    if array.dtype.kind in "iub" or (is_number and array.dtype.kind == "f"):
        array = array.astype(like.dtype)
    return LoDTensor(array, NO_LOD)
