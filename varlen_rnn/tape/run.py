"""Run an operator on values: `infer` checks the inputs, `forward` computes, and arrays become LoDTensors."""

import numpy as np

from varlen_rnn.errors import DTypeError, InputError, LoDError, ProgramError, ShapeError, count
from varlen_rnn.rows.checks import as_rows
from varlen_rnn.rows.lod import NO_LOD, LoDTensor
from varlen_rnn.runtime import device_array
from varlen_rnn.runtime.device_array import DeviceArray
from varlen_rnn.runtime.placeholder import Placeholder
from varlen_rnn.tape.checks import shared_lod
from varlen_rnn.tape.kinds import LOD_TENSOR
from varlen_rnn.tape.operator import PASSED_ON
from varlen_rnn.tape.places import check_places, checked_results, without_kernel
from varlen_rnn.tape.spec import VALUES, TensorSpec, describe, sizes_fit

_FINISHED = frozenset(VALUES)
_ARRAYS = frozenset([np.ndarray, DeviceArray, Placeholder])


def check_given(op, inputs):
    """Raise if a required input is None."""
    if (position := op.missing(inputs)) is not None:
        name = f"{op.type}, {op.input_name(position)}"
        raise DTypeError(name, expected="a Variable, a LoDTensor or an array", got="None")


def check_in_place(op, values):
    """Raise unless the inputs that an operator updates are contiguous: it would update a copy of a strided array."""
    for position in op.in_place:
        value = values[position]
        if isinstance(value, LoDTensor) and not value.data.flags.carray:
            expected, hint = "an array that can be updated in place", "np.array(x, order='C') is one"
            got = "an array that is read-only, not aligned, or not C-contiguous"
            raise ShapeError(f"{op.type}, {op.input_name(position)}", expected=expected, got=got, hint=hint)


def run(op, values, attrs):
    """Return an operator's outputs as a list; an error that is no InputError becomes a ProgramError."""
    if not device_array.in_use:
        return _run(op, values, attrs)
    check_places(op, values)
    return checked_results(op, values, _run(op, values, attrs))


def _run(op, values, attrs):
    try:
        if op.shortcut is not None and (outputs := op.shortcut(values, **attrs)) is not None:
            return outputs
        if None in values:
            check_given(op, values)
        known = []
        for value in values:  # faster than a comprehension
            known.append(None if value is None else describe(value))
        promised = op.infer(*known, **attrs)
        if op.in_place:
            check_in_place(op, values)
        given = op.forward(*values, **attrs)
        if type(given) is LoDTensor:  # the usual result, checked first
            return [given]
        promised = (promised,) if type(promised) is TensorSpec else promised
        return _finished(op, given, promised, values, known=known)
    except Exception as error:
        raise_from(op, values, error)


def like_of(spec, known):
    """Return the position of the input with which a result shares its LoD, or None if it is the LoD of all inputs.

    spec: the spec of the result, as `infer` returned it
    known: the specs of the inputs, None if one is missing; `infer` returns the spec object of an input to name its LoD
    """
    return next((position for position, other in enumerate(known) if other is spec), None)


def run_checked(op, values, attrs, specs, likes):
    """Return an operator's outputs as `run` does, for inputs that need no checks.

    specs: a list of the specs that `infer` returns for the inputs
    likes: for each of them, the result of `like_of`
    """
    if not device_array.in_use:
        return _run_checked(op, values, attrs, specs, likes)
    check_places(op, values)
    return checked_results(op, values, _run_checked(op, values, attrs, specs, likes))


def _run_checked(op, values, attrs, specs, likes):
    try:
        if op.shortcut is not None and (outputs := op.shortcut(values, **attrs)) is not None:
            return outputs
        if op.in_place:
            check_in_place(op, values)
        given = op.forward(*values, **attrs)
        return [given] if type(given) is LoDTensor else _finished(op, given, specs, values, likes=likes)
    except Exception as error:
        raise_from(op, values, error)


def _finished(op, given, specs, values, known=None, likes=None):
    """Return an operator's results as a list of values; `likes` follows from the specs `known` of the inputs."""
    if type(given) is not tuple or len(given) != len(specs):
        given, specs = _aligned(op, given, specs)
    if _FINISHED.issuperset(map(type, given)):
        return list(given)
    if likes is None:
        likes = [like_of(spec, known) if spec.lod_level else None for spec in specs]
    return [
        value if type(value) in _FINISHED else _tensor(op, value, spec, values, like)
        for value, spec, like in zip(given, specs, likes, strict=True)
    ]


def raise_from(op, values, error):
    """Raise an error of an operator's function again, as a ProgramError if it names no input."""
    if device_array.in_use and (found := without_kernel(op, values, error)) is not None:
        raise found from error
    if isinstance(error, PASSED_ON):
        raise error
    raise op.failed(error) from error


def _aligned(op, given, promised):
    """Return an operator's results and the specs that `infer` promised as two sequences; raise if lengths differ."""
    given = given if isinstance(given, (tuple, list)) else (given,)
    if len(given) != len(promised):
        expected = f"{count(len(promised), 'output')}, as infer says"
        raise ProgramError(f"operator {op.type!r}", expected=expected, got=f"{len(given)} from its function")
    return given, promised


def _tensor(op, value, spec, values, like):
    """Return the array of a result as a LoDTensor, after checking it against the spec that `infer` promised.

    The result shares the LoD of the input at the position `like`; if it is None, the LoD that all inputs share.
    """
    try:
        array = value if type(value) in _ARRAYS else as_rows(value)
    except InputError as error:
        what, got = f"operator {op.type!r}, result", type(value).__name__
        raise ProgramError(what, expected=f"{spec}, as infer says", got=got) from error
    wanted, dtype, levels, kind = spec
    if kind != LOD_TENSOR or array.dtype != dtype or not sizes_fit(array.shape, wanted):
        got = f"{array.dtype} {list(array.shape)}"
        raise ProgramError(f"operator {op.type!r}, result", expected=f"{spec}, as infer says", got=got)
    array = array if array.flags.writeable else array.copy()  # arrays that NumPy broadcast are read-only
    if not levels:
        return LoDTensor.wrap(array, _entries(values, array.shape))
    lod = _shared(op, values, levels) if like is None else values[like].structure
    if len(array) != lod.num_rows:
        shapes = ", ".join(str(value.shape) for value in values if isinstance(value, LoDTensor))
        got = f"{len(array)} rows; the inputs have shapes {shapes}"
        raise ShapeError(op.type, expected=f"a result of {lod.num_rows} rows, as its LoD has", got=got)
    return LoDTensor.wrap(array, lod)


def _entries(values, shape):
    """Return an input's LoD if it has only positions, no levels, and fits the result's shape; otherwise NO_LOD."""
    for value in values:
        if type(value) is LoDTensor and (lod := value.structure) is not NO_LOD and not lod.num_levels:
            if shape[: lod.axis + 1] == value.shape[: lod.axis + 1]:
                return lod
    return NO_LOD


def _shared(op, values, levels):
    """Return the LoD that all inputs share."""
    tensors = [n for n, value in enumerate(values) if isinstance(value, LoDTensor)]
    lod = shared_lod(op.type, *(values[n] for n in tensors), names=[op.input_name(n) for n in tensors])
    if len(lod) != levels:
        hint = "if the result has another LoD than the inputs, return a LoDTensor"
        expected = f"an input with {count(levels, 'LoD level')}, as infer says"
        raise LoDError(f"operator {op.type!r}", expected=expected, got=count(len(lod), "LoD level"), hint=hint)
    return lod
