"""What only programs need: a number that the code brought along, and a second name."""

import math

import numpy as np

from varlen_rnn.errors import ShapeError
from varlen_rnn.lod import LoDTensor
from varlen_rnn.tape.operator import Op, register
from varlen_rnn.tape.spec import TensorSpec


def _infer_fill(shape, value, dtype):
    if dtype not in ("float32", "float64") or any(size < 0 for size in shape):
        raise ShapeError("fill_constant", expected="known sizes, float32 or float64", got=f"{shape} {dtype}")
    if math.prod(shape) > _MOST_FILLED:
        raise ShapeError("fill_constant, shape", expected=f"at most {_MOST_FILLED} elements", got=shape)
    return [TensorSpec(tuple(shape), np.dtype(dtype))]


def _fill(shape, value, dtype):
    return [LoDTensor.wrap(np.full(shape, value, dtype))]


_MOST_FILLED = 2**20  # a description of a few bytes cannot ask for more memory
_FILL_ATTRS = {"shape": "ints", "value": "float", "dtype": "str"}
register(Op("fill_constant", (), _infer_fill, _fill, attrs=_FILL_ATTRS))
register(Op("assign", ("x",), lambda x: [x], lambda x: [x]))
