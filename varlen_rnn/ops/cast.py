"""Conversion of elements to another data type.  It is row-wise, so the result keeps the LoD."""

import numpy as np

from varlen_rnn.errors import DTypeError
from varlen_rnn.kernels.copies import astype
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import rows
from varlen_rnn.tape.checks import FLOATS, check_tensor
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import spec_of_tensor
from varlen_rnn.tape.variable import apply

_TYPES = ("float32", "float64", "bool", "int8", "int16", "int32", "int64", "uint8")  # data types that programs support


@operator(cost=nothing, rows="each")
def cast(x, dtype: str):
    """Convert every element to another data type, as NumPy's `astype` does; gradients pass only between floats."""
    return x.like(astype(x.data, dtype))


@cast.infer
def _infer(x, dtype):
    check_tensor("cast", "x", x)
    if x.dtype.kind not in "biuf":
        raise DTypeError("cast, x", expected="numbers or bools", got=x.dtype)
    if dtype not in _TYPES:
        raise DTypeError("cast, dtype", expected=f"one of {', '.join(_TYPES)}", got=dtype)
    return spec_of_tensor(x.shape, np.dtype(dtype), x.lod_level)


@cast.grad
def _grad(inputs, outputs, d_outputs, dtype):
    of = inputs[0].dtype
    return [apply("cast", d_outputs[0], dtype=str(of)) if of in FLOATS and np.dtype(dtype) in FLOATS else None]


@cast.examples
def _examples(rng):
    x = rows(rng, 3)
    yield [x], {"dtype": "float64"}
    yield [x.like(rng.integers(-2, 3, (6, 3)))], {"dtype": "float64"}
    yield [x.like(x.data > 0)], {"dtype": "float32"}
    yield [np.arange(-2, 3)], {"dtype": "bool"}
    yield [np.array(7)], {"dtype": "int8"}
