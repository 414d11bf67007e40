"""Zeros, one row per sequence: the states before the first step."""

import math

import numpy as np

from varlen_rnn.errors import ShapeError
from varlen_rnn.lod import LoDTensor
from varlen_rnn.ops.checks import check_float, check_lod_level
from varlen_rnn.tape.operator import Op, register
from varlen_rnn.tape.spec import TensorSpec


def _infer_zeros(x, shape):
    check_float("zeros_of_sequences", x=x)
    check_lod_level("zeros_of_sequences", "x", x)
    if any(size < 0 for size in shape) or math.prod(shape) > _MOST_STATES:
        raise ShapeError("zeros_of_sequences, shape", expected=f"at most {_MOST_STATES} elements", got=shape)
    return [TensorSpec((-1, *shape), x.dtype)]


def _zeros(x, shape):
    return [LoDTensor.wrap(np.zeros((len(x.structure.levels[-1]) - 1, *shape), x.dtype))]


_MOST_STATES = 2**20  # a sequence: a description of a few bytes cannot ask for more memory
register(Op("zeros_of_sequences", ("x",), _infer_zeros, _zeros, attrs={"shape": "ints"}))
