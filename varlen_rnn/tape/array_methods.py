"""The methods and operators of a Variable that compute, with the names that NumPy's arrays use."""

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

import numpy as np

from varlen_rnn.errors import (
    NUMPY_NAMES,
    DTypeError,
    ProgramError,
    ShapeError,
    check_flag,
    check_int,
    check_none,
    check_number,
    hinting,
    numpy_names,
    shown,
)
from varlen_rnn.rows.checks import as_rows
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.runtime.device import on_device
from varlen_rnn.tape.spec import Symbol, UnknownSize
from varlen_rnn.typing import Rows

T = TypeVar("T")
V = TypeVar("V", bound="ArrayMethods[Any]")
_UNKNOWN = UnknownSize(-1)
_DDOF = "its name is ddof, as in NumPy: 1 divides by n - 1"
_of_moments = hinting(**NUMPY_NAMES, unbiased=_DDOF, correction=_DDOF)


class _Elements(int):
    """The number of elements; calling it raises, because it is no method here, unlike in PyTorch."""

    def __call__(self, *_: Any) -> NoReturn:
        raise TypeError("Variable.size is the number of elements, as in NumPy (write x.shape, or x.shape[axis])")


class ArrayMethods(Generic[V]):
    """Methods that apply operators to a value; `Variable` inherits them, and defines `_apply`."""

    __slots__ = ()
    value: Any
    name: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value: `(rows, ...)`; in a program, -1 is a size that is known only in a run."""
        shape = self.value.shape
        return tuple(_UNKNOWN if n == -1 else n for n in shape) if isinstance(self.value, Symbol) else shape

    @property
    def dtype(self) -> np.dtype:
        """The data type of the value."""
        return self.value.dtype

    @property
    def ndim(self) -> int:
        """The rank of the value."""
        return len(self.value.shape)

    @property
    def size(self) -> int:
        """The number of elements, as of an array of NumPy; `shape` is PyTorch's `size()`."""
        if any(n < 0 for n in self.value.shape):
            got = f"shape {tuple(self.value.shape)}, where -1 is unknown until a run"
            raise ProgramError(f"size of {self.name!r}", expected="known sizes", got=got)
        return _Elements(math.prod(self.value.shape))

    # Functions that apply an operator, and a function that multiplies matrices; `tape.variable` sets them.
    _apply: ClassVar[Callable[..., Any]]
    _apply_detached: ClassVar[Callable[..., Any]]
    _product: ClassVar[Callable[..., Any]]

    def _operand(self, value: Rows) -> Any:
        return operand(value, self)

    def numel(self) -> int:
        """Return the number of elements."""
        return self.size

    def numpy(self) -> np.ndarray:
        """Return the values as an array, which shares the memory of the value and remembers no gradient.

        Raises
        ------
        PlaceError
            If the value is on a CUDA device: `x.cpu().numpy()` copies it.
        ProgramError
            If this is a variable of a program, which has no values.
        DTypeError
            If the value is SelectedRows: `value.to_dense()` returns all rows.

        Examples
        --------
        >>> from varlen_rnn import Variable
        >>> (Variable([1.0, 2.0], requires_grad=True) * 2.0).numpy()
        array([2., 4.])
        """
        return np.asarray(self)

    def item(self) -> float:
        """Return the value of a single number as a Python number; from a CUDA device, this waits and copies it."""
        self._check_single("item of a Variable")
        return self.value.data.item()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        hint = "`x is not None` asks whether there is a Variable, np.asarray(x).any() whether a number is true"
        self._check_single("truth of a Variable", hint)
        return bool(self.item())

    def _check_single(self, what: str, hint: str | None = None) -> None:
        value = self.value.data if isinstance(self.value, LoDTensor) else np.asarray(self.value)
        if value.size != 1:
            raise ShapeError(what, expected="a single number", got=f"shape {self.shape}", hint=hint)

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __len__(self) -> int:
        if not self.shape:
            raise DTypeError("rows of a Variable", expected="at least one dimension", got="a single number")
        if self.shape[0] == -1:
            got = "a number that is known only in a run of the program"
            raise ProgramError(f"rows of {self.name!r}", expected="a known number", got=got)
        return self.shape[0]

    @numpy_names
    def sum(self, axis: int | None = None, keepdims: bool = False, *, dtype: None = None, out: None = None) -> V:
        """Return the sum of all elements, or over an axis; an axis other than the rows keeps the LoD.

        The sum of bools, or of integers of any type except uint64, is int64, as in PyTorch.

        Examples
        --------
        >>> from varlen_rnn import Variable
        >>> (Variable([1.0, 5.0, 7.0]) > 2.0).sum()
        Variable(2, shape=(), dtype=int64)
        """
        check_none("sum", dtype=dtype, out=out)
        is_counted = self.value.dtype.kind != "f" and np.can_cast(self.value.dtype, np.int64)
        return self._apply("reduce_sum", self._as("int64") if is_counted else self, axis=axis, keepdims=keepdims)

    @numpy_names
    def mean(self, axis: int | None = None, keepdims: bool = False, *, dtype: None = None, out: None = None) -> V:
        """Return the mean of all elements, or over an axis; NaN if there are no elements, as in NumPy.

        The mean of bools is the share of True, as float32; in NumPy it is float64, and PyTorch has none.  Integers
        must be converted by `astype` first.

        Examples
        --------
        >>> from varlen_rnn import Variable
        >>> (Variable([1.0, 5.0, 7.0, 9.0]) > 2.0).mean()
        Variable(0.75, shape=(), dtype=float32)
        """
        check_none("mean", dtype=dtype, out=out)
        x = self._as("float32") if self.value.dtype.kind == "b" else self
        return self._apply("reduce_mean", x, axis=axis, keepdims=keepdims)

    def _as(self, dtype: str) -> V:
        """Return bools or integers in another data type; the result has no gradient."""
        return self if self.value.dtype == dtype else self._apply_detached("cast", self, dtype=dtype)  # type: ignore[return-value]

    @_of_moments
    def var(
        self, axis: int | None = None, ddof: int = 0, keepdims: bool = False, *, dtype: None = None, out: None = None
    ) -> V:
        """Return the variance of all elements, or over an axis; an axis other than the rows keeps the LoD.

        Parameters
        ----------
        axis : int, optional
        ddof : int
            The sum of squares is divided by the number of elements minus `ddof`.  The default is 0, as in NumPy;
            PyTorch's is 1, the estimate from a sample.  The result is NaN unless there are more than `ddof` elements.
        keepdims : bool

        Raises
        ------
        ProgramError
            If `ddof` is not 0, in a program in which the number of elements is known only in a run.

        Examples
        --------
        >>> from varlen_rnn import Variable
        >>> x = Variable([[1.0, 3.0], [2.0, 2.0]])
        >>> x.var(axis=1).numpy(), x.var(ddof=1).item()
        (array([1., 0.]), 0.6666666666666666)
        """
        check_none("var", dtype=dtype, out=out)
        axis = axis if axis is None else check_int(axis, "var, axis")
        ddof, keepdims = check_int(ddof, "var, ddof", 0), check_flag(keepdims, "var, keepdims")
        apart = self._apply("sub", self, self.mean(axis, keepdims=True))
        found = (apart * apart).mean(axis, keepdims)
        if not ddof:
            return found
        count = self.size if axis is None else self.shape[axis]
        if count == -1:
            hint, got = "ddof=0 works with any number", "a number that is known only in a run"
            raise ProgramError("var, ddof", expected="a known number of elements", got=got, hint=hint)
        return found * (count / (count - ddof) if count > ddof else math.nan)

    @_of_moments
    def std(
        self, axis: int | None = None, ddof: int = 0, keepdims: bool = False, *, dtype: None = None, out: None = None
    ) -> V:
        """Return the standard deviation, the square root of `var`; where it is 0, its gradient is 0, as in PyTorch.

        Examples
        --------
        >>> from varlen_rnn import Variable
        >>> Variable([[1.0, 3.0], [2.0, 2.0]]).std(axis=1).numpy()
        array([1., 0.])
        """
        check_none("std", dtype=dtype, out=out)
        variance = self.var(axis, ddof, keepdims)
        positive, one = variance > 0.0, variance._operand(1.0)
        return self._apply("where", positive, self._apply("where", positive, variance, one).sqrt(), variance)

    @numpy_names
    def max(self, axis: int | None = None, keepdims: bool = False, *, out: None = None) -> V:
        """Return the largest of all elements, or of those along an axis; NaN is larger than all numbers.

        Equal elements share the gradient, as in `torch.amax`.  An axis other than the rows keeps the LoD.  `argmax`
        returns the index, which PyTorch's `max` returns beside the value.

        Raises
        ------
        ShapeError
            If there are no elements, or no such axis.

        Examples
        --------
        >>> from varlen_rnn import Variable
        >>> x = Variable([[1.0, 5.0], [7.0, 3.0]])
        >>> x.max().item(), x.max(axis=0).numpy()
        (7.0, array([7., 5.]))
        """
        check_none("max", out=out)
        axis = axis if axis is None else check_int(axis, "max, axis")
        return self._apply("reduce_max", self, axis=axis, keepdims=check_flag(keepdims, "max, keepdims"))

    @numpy_names
    def min(self, axis: int | None = None, keepdims: bool = False, *, out: None = None) -> V:
        """Return the smallest of all elements, or of those along an axis; all else is as in `max`, NaN too.

        Examples
        --------
        >>> from varlen_rnn import Variable
        >>> Variable([[1.0, 5.0], [7.0, 3.0]]).min(axis=1).numpy()
        array([1., 3.])
        """
        check_none("min", out=out)
        axis = axis if axis is None else check_int(axis, "min, axis")
        return self._apply("reduce_min", self, axis=axis, keepdims=check_flag(keepdims, "min, keepdims"))

    def clip(self, min: Rows | None = None, max: Rows | None = None, *, out: None = None) -> V:
        """Return every element, limited by bounds; the gradient is 0 beyond a bound, and passes unchanged elsewhere.

        Parameters
        ----------
        min, max : number, Variable or array, optional
            At least one of them; shapes broadcast.  If `min` is larger than `max`, the result is `max`.  Where a bound
            is NaN, the result is NaN.

        Examples
        --------
        >>> from varlen_rnn import Variable
        >>> Variable([-2.0, 0.5, 3.0]).clip(0, 1).numpy()
        array([0. , 0.5, 1. ])

        Source: `torch.clip`.
        """
        check_none("clip", out=out)
        if min is None and max is None:
            raise DTypeError("clip", expected="at least one of min and max", got="neither")
        found: Any = self
        for bound, beyond in ((min, "less"), (max, "greater")):
            if bound is not None:
                limit = self._operand(bound)
                found = self._apply("where", self._apply_detached(beyond, found, limit), limit, found)
                if limit.dtype.kind == "f" and (isinstance(limit, ArrayMethods) or np.isnan(limit.data).any()):
                    is_number = self._apply_detached("less_equal", limit, limit)  # NaN is not at most itself
                    found = self._apply("where", is_number, found, limit)
        return found

    @numpy_names
    def squeeze(self, axis: int | None = None) -> V:
        """Return the elements without an axis of size 1, by default without all such axes; the rows of a LoD stay.

        In a program, an axis stays if its size is known only in a run.

        Raises
        ------
        ShapeError
            If the axis has another size, or does not exist.

        Examples
        --------
        >>> from varlen_rnn import Variable
        >>> Variable([[[1.0], [2.0]]]).squeeze(-1).shape, Variable([[[1.0], [2.0]]]).squeeze().shape
        ((1, 2), (2,))
        """
        shape = tuple(self.value.shape)
        if axis is None:
            first = bool(self.value.num_levels)
            return self.reshape(shape[:first] + tuple(n for n in shape[first:] if n != 1))
        axis = check_int(axis, "squeeze, axis")
        if not -self.ndim <= axis < self.ndim or shape[axis] != 1:
            raise ShapeError("squeeze, axis", expected=f"an axis of size 1 in shape {shape}", got=axis)
        axis %= self.ndim
        return self.reshape(shape[:axis] + shape[axis + 1 :])

    @numpy_names
    def unsqueeze(self, axis: int) -> V:
        """Return the elements with a new axis of size 1; the LoD is kept unless the axis is the first.

        Parameters
        ----------
        axis : int
            The position of the new axis in the result; a negative number counts from the end.

        Examples
        --------
        >>> from varlen_rnn import Variable
        >>> Variable([1.0, 2.0]).unsqueeze(-1).shape
        (2, 1)

        Source: `Tensor.unsqueeze` of PyTorch.
        """
        shape, axis = tuple(self.value.shape), check_int(axis, "unsqueeze, axis")
        if not -self.ndim - 1 <= axis <= self.ndim:
            raise ShapeError("unsqueeze, axis", expected=f"{-self.ndim - 1} to {self.ndim}", got=shown(axis))
        axis %= self.ndim + 1
        return self.reshape((*shape[:axis], 1, *shape[axis:]))

    @numpy_names
    def argmax(self, axis: int | None = None, keepdims: bool = False, *, out: None = None) -> V:
        """Return the index of the largest of all elements, or along an axis, as int64; no gradient passes.

        The first of equal elements counts; NaN is larger than all numbers.  An axis other than the rows keeps the LoD.
        """
        check_none("argmax", out=out)
        axis = axis if axis is None else check_int(axis, "argmax, axis")
        return self._apply_detached("argmax", self, axis=axis, keepdims=check_flag(keepdims, "argmax, keepdims"))

    @numpy_names
    def cumsum(self, axis: int, *, dtype: None = None, out: None = None) -> V:
        """Return cumulative sums along an axis; raise if that axis runs over rows with a LoD."""
        check_none("cumsum", dtype=dtype, out=out)
        return self._apply("cumsum", self, axis=check_int(axis, "cumsum, axis"))

    def abs(self) -> V:
        """Return the magnitude of every element."""
        return self._apply("absolute", self)

    def sqrt(self) -> V:
        """Return the square root of every element."""
        return self._apply("sqrt", self)

    def exp(self) -> V:
        """Return e to the power of every element."""
        return self._apply("exp", self)

    def log(self) -> V:
        """Return the natural logarithm of every element."""
        return self._apply("log", self)

    def tanh(self) -> V:
        """Return the hyperbolic tangent of every element."""
        return self._apply("tanh", self)

    def sigmoid(self) -> V:
        """Return 1 / (1 + exp(-x)) of every element."""
        return self._apply("sigmoid", self)

    def reshape(self, *shape: int | Iterable[int]) -> V:
        """Return the elements in another shape; the LoD is kept if the number of rows stays the same."""
        sizes: Any = shape[0] if len(shape) == 1 and np.iterable(shape[0]) else shape
        return self._apply("reshape", self, shape=tuple(sizes))

    @numpy_names
    def transpose(self, axis0: int, axis1: int) -> V:
        """Return the value with two axes exchanged; the LoD is kept if the rows stay the first axis."""
        axis0, axis1 = check_int(axis0, "transpose, axis0"), check_int(axis1, "transpose, axis1")
        return self._apply("transpose", self, axis0=axis0, axis1=axis1)

    @property
    def T(self) -> V:
        """The transposed matrix."""
        if self.ndim != 2:
            hint = "transpose(axis0, axis1) exchanges two of any number of axes"
            raise ShapeError("T of a Variable", expected="two axes", got=f"shape {self.shape}", hint=hint)
        return self._apply("transpose", self, axis0=0, axis1=1)

    def __add__(self, other: Rows) -> V:
        return self._apply("add", self, self._operand(other))

    def __radd__(self, other: Rows) -> V:
        return self._apply("add", self._operand(other), self)

    def __sub__(self, other: Rows) -> V:
        return self._apply("sub", self, self._operand(other))

    def __rsub__(self, other: Rows) -> V:
        return self._apply("sub", self._operand(other), self)

    def __mul__(self, other: Rows) -> V:
        return self._apply("mul", self, self._operand(other))

    def __rmul__(self, other: Rows) -> V:
        return self._apply("mul", self._operand(other), self)

    def __truediv__(self, other: Rows) -> V:
        return self._apply("div", self, self._operand(other))

    def __rtruediv__(self, other: Rows) -> V:
        return self._apply("div", self._operand(other), self)

    def _updated(self, compute: Callable[[Any, Any], Any], other: Any) -> V:
        """Return this value updated in place, or a new one; `Variable._updated` decides."""
        raise NotImplementedError

    def __iadd__(self, other: Rows) -> V:
        return self._updated(operator.add, other)

    def __isub__(self, other: Rows) -> V:
        return self._updated(operator.sub, other)

    def __imul__(self, other: Rows) -> V:
        return self._updated(operator.mul, other)

    def __itruediv__(self, other: Rows) -> V:
        return self._updated(operator.truediv, other)

    def __ipow__(self, exponent: float) -> V:
        return self._updated(operator.pow, exponent)

    def __imatmul__(self, weight: Rows) -> V:
        return self._updated(operator.matmul, weight)

    def __iand__(self, other: Rows) -> V:
        return self._updated(operator.and_, other)

    def __ior__(self, other: Rows) -> V:
        return self._updated(operator.or_, other)

    def __neg__(self) -> V:
        return self._apply("neg", self)

    def __abs__(self) -> V:
        return self._apply("absolute", self)

    def __lt__(self, other: Rows) -> V:
        return self._apply_detached("less", self, self._operand(other))

    def __le__(self, other: Rows) -> V:
        return self._apply_detached("less_equal", self, self._operand(other))

    def __gt__(self, other: Rows) -> V:
        return self._apply_detached("greater", self, self._operand(other))

    def __ge__(self, other: Rows) -> V:
        return self._apply_detached("greater_equal", self, self._operand(other))

    def __invert__(self) -> V:
        return self._apply_detached("logical_not", self)

    def __and__(self, other: Rows) -> V:
        return self._apply_detached("logical_and", self, self._operand(other))

    def __or__(self, other: Rows) -> V:
        return self._apply_detached("logical_or", self, self._operand(other))

    __rand__, __ror__ = __and__, __or__

    def __pow__(self, exponent: float) -> V:
        # The exponent is a Python number, so that the result has the data type of the rows.
        exponent = check_number(exponent, "pow, exponent", "not a Variable or an array", lambda number: True)
        return self._apply("pow", self, exponent=exponent)

    def __matmul__(self, weight: Rows) -> V:
        return self._product(self, self._operand(weight))

    def __rmatmul__(self, rows: Rows) -> V:
        return self._product(self._operand(rows), self)


def no_variables(value: T) -> T:
    """Return a value, or raise if it is a list of Variables, because an array of them would have no gradient."""
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], ArrayMethods):
        got = f"a {type(value).__name__} that begins with a Variable"
        hint = "a recurrent layer returns (y, states): pass y; concat joins Variables"
        raise DTypeError("value", expected="a Variable or an array", got=got, hint=hint)
    return value


def operand(value: Rows, like: V) -> V | LoDTensor:
    """Return `value` as an operand for `like`, a Variable; numbers and masks get its data type, as in PyTorch."""
    if isinstance(value, (ArrayMethods, LoDTensor)):
        return value
    if isinstance(value, UnknownSize):
        return value + 0  # this raises the error
    if isinstance(value, np.generic) and value.dtype.kind in "fiub":
        # `float`, because `item()` of a longdouble returns a longdouble, not a float.
        value = float(value) if value.dtype.kind == "f" else value.item()
    if isinstance(value, (int, float)):
        return LoDTensor.wrap(_number(value, like.dtype))
    rows = as_rows(no_variables(value), "an operand")
    is_mask = rows.dtype.kind == "b" and not on_device(rows)
    if isinstance(value, (list, tuple)) and not is_mask and rows.dtype != like.dtype:
        got = f"a {type(value).__name__} that NumPy reads as {rows.dtype}"
        hint = "np.array(values, x.dtype) has the data type of the operand x"
        raise DTypeError("an operand", expected=f"{like.dtype}, as the other operand has", got=got, hint=hint)
    return LoDTensor.wrap(rows.astype(like.dtype) if is_mask else rows)


def _number(value: float, dtype: np.dtype) -> np.ndarray:
    if dtype.kind != "f" and not isinstance(value, bool if dtype.kind == "b" else int):
        expected = "True or False" if dtype.kind == "b" else "an integer"
        raise DTypeError("number", expected=f"{expected}, because the other operand is {dtype}", got=shown(value))
    try:
        return np.asarray(float(value)).astype(dtype) if dtype.kind == "f" else np.asarray(value, dtype)
    except OverflowError as error:
        raise DTypeError("number", expected=f"a number that {dtype} can hold", got=shown(value)) from error
