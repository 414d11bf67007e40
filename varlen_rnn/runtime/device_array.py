"""`DeviceArray`: an array in the memory of a CUDA device, with a shape, strides and a data type.

For arithmetic, as in `p -= 0.1 * p.grad`, it applies the operators of Variables. numba-cuda has an array, too.  This
package has its own, so that tests can put an emulated device below it, and so that no numbers are copied to the host
unseen: NumPy, loops and conditions of Python cannot read it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, ClassVar, Final, NoReturn, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from varlen_rnn.errors import DTypeError, PlaceError, ShapeError, shown
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device_memory import Memory
from varlen_rnn.runtime.dlpack import CUDA_DEVICE, capsule_of, form_in
from varlen_rnn.runtime.parameters import ArrayKind, of_array
from varlen_rnn.runtime.place import CUDA, Place
from varlen_rnn.runtime.strided import copy_strided

in_use = False  # whether this process has made a DeviceArray: only then do operators compare places
_new = object.__new__
# Values of `stream` that need no wait: no stream, no order wanted, or the default stream, on which all launches run.
_WHOLE_STREAMS = None, -1, 1
_NUMBERS = "integers, floats or bools in this machine's byte order"
_Binary: TypeAlias = Callable[["DeviceArray", Any], "DeviceArray"]


class HostAccessError(PlaceError):
    """Code on the host tried to read the numbers of a DeviceArray; `tape.run` adds the name of the operator."""


class _At:
    """Memory with a shape.  NumPy makes an array of it without reading the memory; the array keeps it alive."""

    def __init__(self, memory: Memory, about: dict[str, Any]) -> None:
        self._memory, self.__array_interface__ = memory, about


def _of_form(path: str, doc: str) -> Any:
    """Return a property that reads an attribute of `_form`; as `attrgetter` is C code, it takes half the time."""
    return property(attrgetter("_form." + path), doc=doc)


def _both_sides(op: str) -> tuple[_Binary, _Binary]:
    """Return two methods of an operator: for the array as left operand, and for the array as right operand."""
    return lambda self, other: self._apply(op, self, other), lambda self, other: self._apply(op, other, self)


class DeviceArray:
    """An array in the memory of a CUDA device; `strides`, and `offset` from the memory's beginning, are in bytes."""

    # `_form` is an array of NumPy with the address on the device.  It computes shapes and strides of views for us.  Its
    # numbers must not be read, because the host cannot read that address.
    __slots__ = ("__weakref__", "_form", "_parameters", "memory")

    __cuda_ndarray__ = True
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]
    device: Final[Place] = CUDA

    def __init__(
        self,
        memory: Memory,
        shape: tuple[int, ...],
        dtype: np.dtype,
        strides: tuple[int, ...] | None = None,
        offset: int = 0,
    ) -> None:
        global in_use
        in_use = True
        self.memory = memory
        self._parameters: tuple[ArrayKind, tuple[int, ...]] | None = None
        about = {"data": (memory.address + offset, False), "shape": shape, "typestr": dtype.str, "strides": strides}
        self._form = np.asarray(_At(memory, about | {"version": 3}))

    shape: Final[tuple[int, ...]] = _of_form("shape", "The shape.")
    strides: Final[tuple[int, ...]] = _of_form("strides", "The distance of neighbours along each axis, in bytes.")
    dtype: Final[np.dtype] = _of_form("dtype", "The data type.")
    ndim: Final[int] = _of_form("ndim", "The number of axes.")
    size: Final[int] = _of_form("size", "The number of elements.")
    nbytes: Final[int] = _of_form("nbytes", "The number of elements times the size of one, in bytes.")
    itemsize: Final[int] = _of_form("itemsize", "The size of an element, in bytes.")
    flags: Final[Any] = _of_form("flags", "The memory layout, as NumPy's `flags`.")

    @property
    def address(self) -> int:
        """The address of the first element on the device."""
        return self._form.__array_interface__["data"][0]

    @property
    def host(self) -> np.ndarray | None:
        """The same numbers on the host, read-only, if they are integers or bools copied from the host; else None."""
        whole = self.memory.host
        if whole is None:
            return None
        offset = self.address - self.memory.address if self.size else 0
        return np.ndarray(self.shape, self.dtype, whole, offset, self.strides)

    # Views.

    def _view(self, form: np.ndarray) -> DeviceArray:
        view = _new(DeviceArray)
        view.memory, view._form, view._parameters = self.memory, form, None
        return view

    def view(self) -> DeviceArray:
        """Return a view of the whole array."""
        return self._view(self._form.view())

    def reshape(self, *shape: Any) -> DeviceArray:
        """Return a view in another shape; the array must be C-contiguous."""
        if not self._form.flags.c_contiguous:
            self._refuse("reshaping an array that is not contiguous")
        return self._view(self._form.reshape(*shape))

    def ravel(self) -> DeviceArray:
        """Return a flat view."""
        return self.reshape(-1)

    def transpose(self, *axes: Any) -> DeviceArray:
        """Return a view with the axes in another order."""
        return self._view(self._form.transpose(*axes))

    @property
    def T(self) -> DeviceArray:
        """The transposed view."""
        return self._view(self._form.T)

    def __getitem__(self, key: Any) -> DeviceArray:
        items = key if isinstance(key, tuple) else (key,)
        if not all(map(_is_basic, items)):
            self._refuse("an index of arrays")
        # With an ellipsis, NumPy returns an array of rank 0 instead of reading a number.
        return self._view(self._form[items if Ellipsis in items else (*items, Ellipsis)])

    def __len__(self) -> int:
        return len(self._form)

    # Arithmetic.

    _apply: ClassVar[Callable[..., Any]]  # set by `tape.variable`, because `runtime` must not import operators

    __add__, __radd__ = _both_sides("add")
    __sub__, __rsub__ = _both_sides("sub")
    __mul__, __rmul__ = _both_sides("mul")
    __truediv__, __rtruediv__ = _both_sides("div")

    def __neg__(self) -> DeviceArray:
        return self._apply("neg", self)

    # Copies.

    def copy(self) -> DeviceArray:
        """Return a C-contiguous copy on the device."""
        made = DeviceArray(cuda.driver.memory(self.nbytes), self.shape, self.dtype)
        made.copy_from(self)
        made.memory.host = None if (host := self.host) is None else host.tobytes()
        return made

    def copy_from(self, source: DeviceArray) -> None:
        """Overwrite this array by another DeviceArray of its shape and data type; both may have any strides."""
        if self._form.flags.c_contiguous and source._form.flags.c_contiguous:
            self.copy_to_device(source)
        else:
            self.memory.changes()
            copy_strided(source, self)

    def copy_to_device(self, source: np.ndarray | DeviceArray) -> None:
        """Overwrite this array by an array of the same shape and data type, on the host or on the device."""
        if source.shape != self.shape:
            raise ShapeError("copy_to_device, source", expected=f"shape {self.shape}", got=f"shape {source.shape}")
        if source.dtype != self.dtype:
            raise DTypeError("copy_to_device, source", expected=f"data type {self.dtype}", got=source.dtype)
        if not self._form.flags.c_contiguous:
            self._refuse("overwriting an array that is not contiguous")
        self.memory.changes()
        if not self.size:
            return
        if isinstance(source, DeviceArray):
            if not source._form.flags.c_contiguous:
                self._refuse("copying an array that is not contiguous")
            cuda.driver.copy(self.address, source.address, self.nbytes)
        else:
            cuda.driver.copy_to_device(self.address, np.asarray(source, order="C"))

    def copy_to_host(self) -> np.ndarray:
        """Return a copy on the host."""
        if self._form.flags.c_contiguous:
            found = np.empty(self.shape, self.dtype)
            if self.size:
                cuda.driver.copy_to_host(found, self.address)
            return found
        # Copy the whole span of a strided view, then read it on the host with the same strides.
        low, high = np.lib.array_utils.byte_bounds(self._form)
        if low == high or not self.size:
            return np.empty(self.shape, self.dtype)
        span = np.empty(high - low, np.uint8)
        cuda.driver.copy_to_host(span, low)
        return np.ndarray(self.shape, self.dtype, span, self.address - low, self.strides).copy()

    def clear(self) -> None:
        """Set all numbers to 0."""
        if not self._form.flags.c_contiguous:
            self._refuse("clearing an array that is not contiguous")
        self.memory.changes()
        if self.size:
            cuda.driver.clear(self.address, self.nbytes)

    def item(self) -> Any:
        """Return the number in an array of one element; this waits for the device, and copies the number."""
        return self.copy_to_host().item()

    def __deepcopy__(self, memo: Any) -> DeviceArray:
        return self.copy()

    def __reduce__(self) -> NoReturn:
        self._refuse("pickling")

    # Other libraries.

    @property
    def parameters(self) -> tuple[ArrayKind, tuple[int, ...]]:
        """The ArrayKind, and the numbers that a launch passes for this array."""
        if self._parameters is None:
            self._parameters = of_array(self._form, self.address)
        return self._parameters

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        self.memory.changes()  # code that reads the address can write there
        flags = self._form.flags
        about = {"shape": self.shape, "typestr": self.dtype.str, "data": (self.address, not flags.writeable)}
        strides = None if flags.c_contiguous else self.strides
        return about | {"strides": strides, "version": 3, "stream": 1}  # launches are on the default stream

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Hand the memory to another library, without a copy unless that library asks for one."""
        if dl_device not in (None, CUDA_DEVICE):
            raise BufferError("this array is on a CUDA device: x.to('cpu') copies it to the host")
        if not self._form.flags.writeable:
            raise BufferError("this array is read-only, which DLPack cannot express: share x.copy() instead")
        if stream not in _WHOLE_STREAMS:
            cuda.driver.synchronize()
        shared = self.copy() if copy else self
        shared.memory.changes()
        return capsule_of(shared._form)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA_DEVICE

    # Uses that would copy numbers to the host unseen.

    def _refuse(self, what: str) -> NoReturn:
        got = f"an array on {self.device}, shape {self.shape}"
        raise HostAccessError(what, expected="an array on the host", got=got, hint="x.to('cpu') copies it to the host")

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NoReturn:
        self._refuse("conversion to an array of NumPy")

    def __iter__(self) -> NoReturn:
        self._refuse("iteration")

    def __bool__(self) -> NoReturn:
        self._refuse("truth of an array")

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        self._refuse("assignment to elements")

    def __repr__(self) -> str:
        return f"DeviceArray({self.shape}, {self.dtype}, {self.device})"


def _is_basic(item: Any) -> bool:
    is_number = isinstance(item, (int, np.integer)) and not isinstance(item, bool)
    return item is None or item is Ellipsis or is_number or isinstance(item, slice)


def size_of(shape: Iterable[int], dtype: np.dtype) -> int:
    """Return the size in bytes of a contiguous array."""
    return math.prod(shape) * dtype.itemsize


def shared(value: Any) -> DeviceArray | None:
    """Return an array over the device memory of another library's object; None if its memory is not on a device.

    The object has `__cuda_array_interface__`, as arrays of PyTorch and CuPy do, or `__dlpack__`, as arrays of JAX do.
    Raise a PlaceError if its memory is read-only or masked.
    """
    if isinstance(value, DeviceArray):
        return value.view()
    about = getattr(value, "__cuda_array_interface__", None)
    if about is not None:
        return _of_interface(value, about)
    place = getattr(value, "__dlpack_device__", None)
    if place is None or tuple(map(int, place())) != CUDA_DEVICE:
        return None
    form = form_in(value.__dlpack__(stream=1))
    if form.dtype.kind not in "fiub":
        raise PlaceError("memory of another library", expected=_NUMBERS, got=f"data type {form.dtype}")
    memory = Memory(form.__array_interface__["data"][0], form.nbytes, form)
    return DeviceArray(memory, form.shape, form.dtype, form.strides)


def _of_interface(value: Any, about: dict[str, Any]) -> DeviceArray:
    address, is_read_only = about["data"]
    if is_read_only or about.get("mask") is not None:
        got = "memory that is read-only" if is_read_only else "a masked array"
        raise PlaceError("memory of another library", expected="memory that can be written to", got=got)
    if about.get("stream") not in _WHOLE_STREAMS:
        cuda.driver.synchronize()
    dtype, shape = np.dtype(about["typestr"]), tuple(about["shape"])
    if not dtype.isnative or dtype.kind not in "fiub":
        raise PlaceError("memory of another library", expected=_NUMBERS, got=f"type {shown(about['typestr'])}")
    return DeviceArray(Memory(address, size_of(shape, dtype), value), shape, dtype, about.get("strides"))
