"""Operators that make constants, convert data types, check numbers, rename a variable, or stop a gradient."""

import math

import numpy as np

from varlen_rnn.errors import DTypeError, OutOfRangeError, ShapeError
from varlen_rnn.kernels.copies import astype
from varlen_rnn.kernels.rows import first_not_finite
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import rows
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.runtime.device import empty, moved
from varlen_rnn.runtime.place import HOST
from varlen_rnn.runtime.placeholder import first_of
from varlen_rnn.tape.checks import FLOATS, check_float, check_tensor
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec, spec_of_tensor
from varlen_rnn.tape.variable import apply

_MOST_FILLED = 2**20  # elements; without a limit, a program of a few bytes could request any amount of memory


@operator(cost=nothing, rows="each")
def fill_constant(shape: tuple[int, ...], value: float, dtype: str):
    """Return a tensor whose elements all have one value."""
    return LoDTensor.wrap(np.full(shape, value, dtype))


fill_constant.examples(lambda rng: [([], {"shape": (2, 3), "value": 0.5, "dtype": "float32"})])


@fill_constant.infer
def _infer_fill(shape, value, dtype):
    if dtype not in ("float32", "float64") or any(size < 0 for size in shape):
        raise ShapeError("fill_constant", expected="known sizes, float32 or float64", got=f"{shape} {dtype}")
    if math.prod(shape) > _MOST_FILLED:
        raise ShapeError("fill_constant, shape", expected=f"at most {_MOST_FILLED} elements", got=shape)
    return TensorSpec(tuple(shape), np.dtype(dtype))


@operator(cost=nothing, rows="each", linear=("x",), scalar=lambda x: x, onnx="Identity", shares=True)
def assign(x):
    """Return `x` itself, under another name."""
    return x


assign.infer(lambda x: x)
assign.examples(lambda rng: [([rows(rng, 3)], {})])


@operator(cost=nothing, rows="each", onnx="Identity", gradient=False, shares=True)
def detach(x):
    """Return `x` itself, but pass no gradient to it; recorded steps use it for `Variable.detach` and `no_grad`."""
    return x


detach.infer(lambda x: x)


@detach.examples
def _examples_of_detach(rng):
    # The example has integers, because a test by finite differences would find the gradient that `detach` stops.
    yield [np.arange(6).reshape(3, 2)], {}


@operator(cost=nothing, rows="each", linear=("x",), shares=True)
def check_finite(x, name: str):
    """Return `x` itself; raise an error that says `name` if an element is infinite or NaN."""
    numbers = moved(x.data, HOST).reshape(-1)
    found = empty((1,), numbers, np.int64)
    first_not_finite(numbers, found)
    entry = first_of(found, -1)
    if entry >= 0:
        what = f"{name}, entry {entry}" if x.data.ndim else name
        raise OutOfRangeError(what, expected="a finite number", got=numbers[entry].item())
    return x


@check_finite.infer
def _infer_finite(x, name):
    check_float("check_finite", x=x)
    return x


@check_finite.grad
def _grad_of_finite(inputs, outputs, d_outputs, name):
    return [d_outputs[0]]


check_finite.examples(lambda rng: [([rows(rng, 3)], {"name": "x"}), ([np.array(0.5)], {"name": "loss"})])


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
