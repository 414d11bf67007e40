"""The methods and operators of a Variable that compute, as an array of NumPy has them."""

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from varlen_rnn.errors import (
    DTypeError,
    ProgramError,
    ShapeError,
    check_flag,
    check_int,
    check_none,
    check_number,
    numpy_names,
    shown,
)
from varlen_rnn.typing import Rows

V = TypeVar("V", bound="ArrayMethods[Any]")


class ArrayMethods(Generic[V]):
    """Methods that apply operators to a value; `Variable` inherits them, and says how to apply one."""

    __slots__ = ()
    value: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        raise NotImplementedError

    @property
    def ndim(self) -> int:
        """The rank of the value."""
        raise NotImplementedError

    @property
    def size(self) -> int:
        """The number of elements."""
        raise NotImplementedError

    # Set on `Variable` where they are defined: functions that apply an operator, and one that multiplies matrices.
    _apply: ClassVar[Callable[..., Any]]
    _apply_detached: ClassVar[Callable[..., Any]]
    _product: ClassVar[Callable[..., Any]]

    def _operand(self, value: Rows) -> Any:
        """Return a value as the other operand of an operator."""
        raise NotImplementedError

    @numpy_names
    def sum(self, axis: int | None = None, keepdims: bool = False, *, dtype: None = None, out: None = None) -> V:
        """Return the sum of all elements, or over an axis; an axis other than the rows keeps the LoD."""
        check_none("sum", dtype=dtype, out=out)
        return self._apply("reduce_sum", self, axis=axis, keepdims=keepdims)

    @numpy_names
    def mean(self, axis: int | None = None, keepdims: bool = False, *, dtype: None = None, out: None = None) -> V:
        """Return the mean of all elements, or over an axis; NaN if there are no elements, as in NumPy."""
        check_none("mean", dtype=dtype, out=out)
        return self._apply("reduce_mean", self, axis=axis, keepdims=keepdims)

    @numpy_names
    def var(
        self, axis: int | None = None, ddof: int = 0, keepdims: bool = False, *, dtype: None = None, out: None = None
    ) -> V:
        """Return the variance of all elements, or over an axis; an axis other than the rows keeps the LoD.

        Parameters
        ----------
        axis : int, optional
        ddof : int
            Subtracted from the number of elements, by which the sum of squares is divided: 0 as in NumPy.  PyTorch's
            default is 1, the estimate from a sample.  Without more elements than that, the result is NaN.
        keepdims : bool

        Raises
        ------
        ProgramError
            `ddof` is not 0, and a program's number of elements is one that only a run tells.

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
        if count < 0:
            hint = "ddof=0 works with any number"
            raise ProgramError("var, ddof", expected="a known number of elements", got="one of a run", hint=hint)
        return found * (count / (count - ddof) if count > ddof else math.nan)

    @numpy_names
    def std(
        self, axis: int | None = None, ddof: int = 0, keepdims: bool = False, *, dtype: None = None, out: None = None
    ) -> V:
        """Return the standard deviation, the square root of `var`; its gradient is 0 where it is 0, as in PyTorch.

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
            There are no elements, or no such axis.

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
        """Return every element, or the bound that it is beyond; the gradient beyond is 0, and whole on the bound.

        Parameters
        ----------
        min, max : number, Variable or array, optional
            At least one; shapes broadcast.  If `min` is larger than `max`, the result is `max`; where a bound is NaN,
            the result is.

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
        """Return the elements without an axis of size 1, or without any such axis; rows with a LoD stay.

        In a program, an axis stays if only a run tells its size.

        Raises
        ------
        ShapeError
            The axis has another size, or does not exist.

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
            raise ShapeError("squeeze, axis", expected=f"one of size 1 in shape {shape}", got=axis)
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
        """Return the index of the largest element of all, or along an axis, as int64; no gradient passes.

        Of equal elements, it is the first; NaN is largest.  An axis other than the rows keeps the LoD.
        """
        check_none("argmax", out=out)
        axis = axis if axis is None else check_int(axis, "argmax, axis")
        return self._apply_detached("argmax", self, axis=axis, keepdims=check_flag(keepdims, "argmax, keepdims"))

    @numpy_names
    def cumsum(self, axis: int, *, dtype: None = None, out: None = None) -> V:
        """Return cumulative sums along an axis; rows with a LoD cannot be summed so."""
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
        """Return the elements in another shape; the LoD is kept if the number of rows is."""
        sizes: Any = shape[0] if len(shape) == 1 and np.iterable(shape[0]) else shape
        return self._apply("reshape", self, shape=tuple(sizes))

    @numpy_names
    def transpose(self, axis0: int, axis1: int) -> V:
        """Return the value with two axes exchanged; the LoD is kept if the rows stay in front."""
        axis0, axis1 = check_int(axis0, "transpose, axis0"), check_int(axis1, "transpose, axis1")
        return self._apply("transpose", self, axis0=axis0, axis1=axis1)

    @property
    def T(self) -> V:
        """The transposed matrix."""
        if self.ndim != 2:
            hint = "transpose(axis0, axis1) exchanges two axes of any number"
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
        """Return this value updated in place, or a new one; `Variable` says which."""
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
        # A Python number, so that the result has the data type of the rows.
        exponent = check_number(exponent, "pow, exponent", "not a Variable or an array", lambda number: True)
        return self._apply("pow", self, exponent=exponent)

    def __matmul__(self, weight: Rows) -> V:
        return self._product(self, self._operand(weight))

    def __rmatmul__(self, rows: Rows) -> V:
        return self._product(self._operand(rows), self)
