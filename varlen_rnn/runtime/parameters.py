"""The arguments of a launch as the driver of CUDA reads them: an array of pointers to numbers.

Numba compiles a kernel for numbers only.  An array is two addresses that launches leave 0, its size, the size of an
element in bytes, its address, its shape, and its strides in bytes.  A tuple is its items, one after another.

numba-cuda packs all arguments of each launch by itself, which takes longer than small kernels run.  Here an array keeps
its numbers, and a launch that is repeated keeps all of them.
"""

from array import array
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import numpy as np

from varlen_rnn.errors import DTypeError, shown

_BYTES = 8  # of a number; a kernel reads the first ones of a smaller type


class ArrayKind(NamedTuple):
    """What the code of a kernel depends on in an array."""

    dtype: np.dtype
    ndim: int
    layout: Literal["C", "F", "A"]  # C or F if contiguous in that order, otherwise A


def _bits_of(number: Any) -> int:
    """Return the bytes of a number of NumPy, and zeros after them, as an integer."""
    return int.from_bytes(number.tobytes().ljust(_BYTES, b"\0"), "little", signed=True)


_BITS: dict[type, Any] = {bool: int, int: int, float: lambda number: _bits_of(np.float64(number))}
_BITS |= {np.dtype(letter).type: _bits_of for letter in "?bhilqBHILQefd"}


def of_array(form: np.ndarray, address: int) -> tuple[ArrayKind, tuple[int, ...]]:
    """Return the kind and the numbers of an array at an address that has the shape and the strides of another one."""
    flags = form.flags
    layout: Literal["C", "F", "A"] = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
    kind = ArrayKind(form.dtype, form.ndim, layout)
    return kind, (0, 0, form.size, form.itemsize, address, *form.shape, *form.strides)


def _add(argument: Any, numbers: list[int]) -> Any:
    """Append the numbers of an argument; return its kind."""
    kind = type(argument)
    if kind in _BITS:
        numbers.append(_BITS[kind](argument))
        return kind
    if kind is tuple:
        return tuple([_add(item, numbers) for item in argument])
    found, its_numbers = _of_array(argument)
    numbers += its_numbers
    return found


def _of_array(argument: Any) -> tuple[ArrayKind, tuple[int, ...]]:
    """Return the kind and the numbers of an array of ours, or of another library."""
    if hasattr(argument, "parameters"):
        return argument.parameters
    about = getattr(argument, "__cuda_array_interface__", None)
    if about is None:
        expected, got = "arrays on a CUDA device, numbers, or tuples of them", shown(type(argument))
        raise DTypeError("argument of a CUDA kernel", expected=expected, got=got, hint="x.to('cuda') copies an array")
    keys = "data", "shape", "strides", "typestr", "version"
    geometry = SimpleNamespace(__array_interface__={key: about[key] for key in keys if key in about})
    return of_array(np.asarray(geometry), about["data"][0])


class Parameters:
    """The arguments of launches, which are kept because `address` refers to their memory.

    `numbers` has all of them, eight bytes each, and `address` is the address of an array of pointers to these numbers,
    as a launch takes it.  A kernel is compiled for `kinds`: an `ArrayKind`, the type of a number, or a tuple of kinds.

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
        """Replace the first arguments, which are integers; launches before this one keep theirs."""
        for place, number in enumerate(numbers):
            self.numbers[place] = number


def types_of(kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the types of Numba for kinds."""
    from numba import from_dtype, types

    def type_of(kind: Any) -> Any:
        if isinstance(kind, ArrayKind):
            return types.Array(from_dtype(kind.dtype), kind.ndim, kind.layout)
        return types.Tuple(types_of(kind)) if isinstance(kind, tuple) else from_dtype(np.dtype(kind))

    return tuple(map(type_of, kinds))
