"""Places of an operator's values: all in one, and errors if they are not, or if the operator has no kernel there."""

from varlen_rnn.errors import InputError, PlaceError
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.runtime.device_array import HostAccessError
from varlen_rnn.runtime.place import CUDA, HOST


def place_of_value(value):
    """Return the place of a value, or None if it may stand beside values anywhere: plans, and numbers on the host."""
    if not isinstance(value, (LoDTensor, SelectedRows)):
        return None
    place = value.device
    return None if place is HOST and not value.shape else place


def check_places(op, values):
    """Raise if the values of an operator are in different places.

    A single number on the host may stand beside values on a device, as in PyTorch: it goes there with the launch.
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
            hint = f"x.to({str(first[1])!r}) copies them"
            what = f"{op.type}, {op.input_name(position)}"
            raise PlaceError(what, expected=expected, got=f"values on {place}", hint=hint)


def without_kernel(op, values, error):
    """Return a PlaceError if an error says that an operator met values on a device where it needs NumPy, else None.

    NumPy, Numba and DeviceArrays raise such errors before anything is computed or copied.
    """
    if isinstance(error, InputError) and not isinstance(error, HostAccessError):
        return None
    if not isinstance(error, (TypeError, AttributeError)) and not type(error).__module__.startswith("numba."):
        return None
    return _no_kernel(op) if any(place_of_value(value) is CUDA for value in values) else None


def check_results(op, values, results):
    """Raise if an operator of values on a device left a result on the host; a single number may be there."""
    if any(place_of_value(value) is CUDA for value in values):
        if any(place_of_value(result) is HOST for result in results):
            raise _no_kernel(op)


def _no_kernel(op):
    expected, hint = f"an operator with a kernel on {CUDA}", "x.to('cpu') copies its operands to the host"
    return PlaceError(op.type, expected=expected, got="no CUDA kernel yet", hint=hint)
