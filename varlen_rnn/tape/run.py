"""Run an operator on values: `infer` checks the inputs, `forward` computes, and arrays become LoDTensors."""

import numpy as np

from varlen_rnn.errors import DTypeError, InputError, LoDError, ProgramError, ShapeError, count
from varlen_rnn.rows.checks import as_rows
from varlen_rnn.rows.lod import NO_LOD, LoDTensor
from varlen_rnn.runtime import device_array
from varlen_rnn.runtime.device_array import DeviceArray
from varlen_rnn.tape.checks import shared_lod
from varlen_rnn.tape.kinds import LOD_TENSOR
from varlen_rnn.tape.operator import PASSED_ON
from varlen_rnn.tape.places import check_places, checked_results, without_kernel
from varlen_rnn.tape.spec import VALUES, TensorSpec, describe, sizes_fit

_FINISHED = frozenset(VALUES)


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
        if type(given) is not tuple or type(promised) is not tuple or len(given) != len(promised):
            given, promised = _aligned(op, given, promised)
        if _FINISHED.issuperset(map(type, given)):
            return list(given)
        return [
            value if type(value) in _FINISHED else _tensor(op, value, spec, values, known)
            for value, spec in zip(given, promised, strict=True)
        ]
    except Exception as error:
        raise_from(op, values, error)


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
    promised = (promised,) if type(promised) is TensorSpec else promised
    if len(given) != len(promised):
        expected = f"{count(len(promised), 'output')}, as infer says"
        raise ProgramError(f"operator {op.type!r}", expected=expected, got=f"{len(given)} from its function")
    return given, promised


def _tensor(op, value, spec, values, known):
    """Return the array of a result as a LoDTensor, after checking it against the spec that `infer` promised."""
    try:
        array = value if type(value) is np.ndarray or type(value) is DeviceArray else as_rows(value)
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
    own = [value.structure for value, other in zip(values, known, strict=True) if other is spec]
    lod = own[0] if own else _shared(op, values, levels)
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
