"""The arguments of a launch as CUDA's driver reads them: an array of pointers to numbers.

Numba compiles a kernel for numbers only.  It passes an array as two addresses (0 here), its size, the size of an
element in bytes, its address, its shape, and its strides in bytes.  It passes the items of a tuple one after another.

numba-cuda itself packs all arguments at each launch, which takes longer than small kernels run.  Here each array keeps
its packed numbers, and a repeated launch keeps the numbers of all its arguments.
"""

from array import array
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import numpy as np

from varlen_rnn.errors import DTypeError, shown

_BYTES = 8  # bytes of a number; for a smaller type, a kernel reads the first of these bytes


class ArrayKind(NamedTuple):
    """The properties of an array on which the code of a kernel depends."""

    dtype: np.dtype
    ndim: int
    layout: Literal["C", "F", "A"]  # C or F if the array is contiguous in that order, otherwise A


def _bits_of(number: Any) -> int:
    """Return an integer of eight bytes: the bytes of a NumPy number, then zeros."""
    return int.from_bytes(number.tobytes().ljust(_BYTES, b"\0"), "little", signed=True)


BITS: dict[type, Any] = {bool: int, int: int, float: lambda number: _bits_of(np.float64(number))}
BITS |= {np.dtype(letter).type: _bits_of for letter in "?bhilqBHILQefd"}


def of_array(form: np.ndarray, address: int) -> tuple[ArrayKind, tuple[int, ...]]:
    """Return the ArrayKind and the numbers of an array at `address` with the shape, strides and type of `form`."""
    flags = form.flags
    layout: Literal["C", "F", "A"] = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
    kind = ArrayKind(form.dtype, form.ndim, layout)
    return kind, (0, 0, form.size, form.itemsize, address, *form.shape, *form.strides)


def _add(argument: Any, numbers: list[int]) -> Any:
    """Append the numbers of an argument to `numbers`; return the argument's kind."""
    kind = type(argument)
    if kind in BITS:
        numbers.append(BITS[kind](argument))
        return kind
    if kind is tuple:
        return tuple([_add(item, numbers) for item in argument])
    found, its_numbers = _of_array(argument)
    numbers += its_numbers
    return found


def _of_array(argument: Any) -> tuple[ArrayKind, tuple[int, ...]]:
    """Return the ArrayKind and the numbers of a DeviceArray or of another library's array."""
    if hasattr(argument, "parameters"):
        return argument.parameters
    about = getattr(argument, "__cuda_array_interface__", None)
    if about is None:
        expected, got = "arrays on a CUDA device, numbers, or tuples of them", shown(type(argument))
        hint = "x.to('cuda') copies an array to the device"
        raise DTypeError("argument of a CUDA kernel", expected=expected, got=got, hint=hint)
    keys = "data", "shape", "strides", "typestr", "version"
    geometry = SimpleNamespace(__array_interface__={key: about[key] for key in keys if key in about})
    return of_array(np.asarray(geometry), about["data"][0])


class Parameters:
    """The arguments of launches, kept alive because `address` refers to their memory.

    `numbers` has the numbers of all arguments, eight bytes each.  `address` is the address of an array of pointers to
    these numbers, which a launch takes.  A kernel is compiled for `kinds`: an `ArrayKind`, the type of a number, or a
    tuple of kinds.

    Examples
    --------
    >>> found = Parameters((3, (0.5, True)))
    >>> found.kinds, found.numbers[0]
    ((<class 'int'>, (<class 'float'>, <class 'bool'>)), 3)
    """

    __slots__ = ("_pointers", "address", "arguments", "kinds", "numbers")

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        numbers: list[int] = []
        self.kinds, self.arguments = tuple([_add(argument, numbers) for argument in arguments]), arguments
        self.numbers = array("q", numbers)
        begin, count = self.numbers.buffer_info()
        self._pointers = np.arange(begin, begin + _BYTES * count, _BYTES)
        self.address = self._pointers.__array_interface__["data"][0]

    def replace(self, *numbers: int) -> None:
        """Replace the first arguments, which are integers; earlier launches keep their arguments."""
        for place, number in enumerate(numbers):
            self.numbers[place] = number


def types_of(kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return Numba's types for kinds of arguments."""
    from numba import from_dtype, types

    def type_of(kind: Any) -> Any:
        if isinstance(kind, ArrayKind):
            return types.Array(from_dtype(kind.dtype), kind.ndim, kind.layout)
        return types.Tuple(types_of(kind)) if isinstance(kind, tuple) else from_dtype(np.dtype(kind))

    return tuple(map(type_of, kinds))
