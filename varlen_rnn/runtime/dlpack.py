"""DLPack for memory on a CUDA device: make capsules for other libraries, and open capsules of other libraries.

A capsule holds the address of a C structure, which says where the memory is, on which device, and how to free it.
NumPy makes and opens such capsules for memory of the host.  It never reads the memory.  So it also works with an
address on a device, if the structure says "host" while NumPy handles it.

Source: the DLPack specification, and `dlpack.h`.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from varlen_rnn.errors import PlaceError, shown

CUDA_DEVICE = 2, 0  # kDLCUDA, and the number of the device
_HOST_DEVICE = 1, 0  # kDLCPU


class _Head(ctypes.Structure):
    """The first fields of a DLManagedTensor."""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _head(capsule: Any) -> _Head:
    return _Head.from_address(_pointer(capsule, b"dltensor"))


class _Capsule:
    """An object that gives a capsule to NumPy, and says that its memory is on the host."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _HOST_DEVICE


def capsule_of(form: np.ndarray) -> Any:
    """Return a capsule for a NumPy array whose address is on the device; the capsule keeps the array alive."""
    capsule = form.__dlpack__()
    head = _head(capsule)
    head.device_type, head.device_id = CUDA_DEVICE
    return capsule


def form_in(capsule: Any) -> np.ndarray:
    """Open a capsule; return its memory as a NumPy array, which keeps the memory alive but cannot be read."""
    try:
        head = _head(capsule)
    except (ValueError, TypeError, ctypes.ArgumentError) as error:
        raise PlaceError("DLPack", expected="a capsule that was not opened before", got=shown(capsule)) from error
    device = head.device_type, head.device_id
    if device != CUDA_DEVICE:
        expected, got = f"memory on cuda:0, DLPack's device {CUDA_DEVICE}", f"memory on DLPack's device {device}"
        raise PlaceError("DLPack", expected=expected, got=got)
    head.device_type, head.device_id = _HOST_DEVICE
    try:
        return np.from_dlpack(_Capsule(capsule))
    except (BufferError, RuntimeError) as error:
        raise PlaceError("DLPack", expected="an array of a data type that NumPy has", got=str(error)) from error
    finally:
        head.device_type, head.device_id = CUDA_DEVICE
