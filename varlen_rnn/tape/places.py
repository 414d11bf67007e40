"""Check that all values of an operator are in one place (the host or a device), and that it has a kernel there."""

import numpy as np

from varlen_rnn.errors import InputError, PlaceError
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.runtime.device_array import HostAccessError
from varlen_rnn.runtime.place import CUDA, HOST
from varlen_rnn.runtime.precision import precision_on_cuda
from varlen_rnn.tape.values import is_remembered, memory_of


def place_of_value(value):
    """Return the place of a value; None for plans and numbers on the host, which go with values in any place."""
    if not isinstance(value, (LoDTensor, SelectedRows)):
        return None
    place = value.device
    return None if place is HOST and not value.shape else place


def check_places(op, values):
    """Raise if values of an operator are in different places, or its products have no kernel there at its precision.

    Single numbers on the host go with any place.
    """
    first = None
    for position, value in enumerate(values):
        place = place_of_value(value)
        if place is None:
            continue
        if first is None:
            first = position, place
        elif place != first[1]:
            expected = f"values on {first[1]}, where {op.input_name(first[0])} is"
            what, hint = f"{op.type}, {op.input_name(position)}", f"x.to({str(first[1])!r}) copies them"
            raise PlaceError(what, expected=expected, got=f"values on {place}", hint=hint)
    if op.multiplies and first is not None and first[1] is CUDA and values[first[0]].dtype == np.float32:
        precision_on_cuda(op.type, op.precision)


def without_kernel(op, values, error):
    """Return a PlaceError if `error` means that an operator has no kernel for values on a device, otherwise None."""
    if isinstance(error, InputError) and not isinstance(error, HostAccessError):
        return None
    if not isinstance(error, (TypeError, AttributeError)) and not type(error).__module__.startswith("numba."):
        return None
    return _no_kernel(op) if any(place_of_value(value) is CUDA for value in values) else None


def checked_results(op, values, results):
    """Return the results; raise if values were on a device but a result that is not a single number is on the host.

    A result in the memory of a remembered copy (`device.beside`) is copied, because an optimizer may write to it.
    """
    if not any(place_of_value(value) is CUDA for value in values):
        return results
    if any(place_of_value(result) is HOST for result in results):
        raise _no_kernel(op)
    return [result.copy() if is_remembered(memory_of(result)) else result for result in results]


def _no_kernel(op):
    expected, hint = f"an operator with a kernel on {CUDA}", "x.to('cpu') copies its operands to the host"
    return PlaceError(op.type, expected=expected, got="no CUDA kernel yet", hint=hint)
