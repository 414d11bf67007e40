"""Operators that programs need for constants, for a second name of a variable, and to stop a gradient."""

import math

import numpy as np

from varlen_rnn.errors import ShapeError
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import rows
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec

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


@operator(cost=nothing, rows="each", linear=("x",), scalar=lambda x: x, onnx="Identity")
def assign(x):
    """Return `x` itself, under another name."""
    return x


assign.infer(lambda x: x)
assign.examples(lambda rng: [([rows(rng, 3)], {})])


@operator(cost=nothing, rows="each", onnx="Identity", gradient=False)
def detach(x):
    """Return `x` itself, but pass no gradient to it; recorded steps use it for `Variable.detach` and `no_grad`."""
    return x


detach.infer(lambda x: x)


@detach.examples
def _examples_of_detach(rng):
    # Integers, because for floats a central difference would find the gradient that `detach` stops.
    yield [np.arange(6).reshape(3, 2)], {}
