"""Zeros, one row per sequence: the states before the first step."""

import math

import numpy as np

from varlen_rnn.errors import ShapeError
from varlen_rnn.lod import LoDTensor
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import rows
from varlen_rnn.tape.checks import check_float, check_lod_level
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec

_MOST_STATES = 2**20  # per sequence: a description of a few bytes cannot ask for more memory


@operator(cost=nothing)
def zeros_of_sequences(x, shape: tuple[int, ...]):
    """Return zeros of a shape for each sequence of `x`."""
    return LoDTensor.wrap(np.zeros((len(x.structure.levels[-1]) - 1, *shape), x.dtype))


@zeros_of_sequences.infer
def _infer(x, shape):
    check_float("zeros_of_sequences", x=x)
    check_lod_level("zeros_of_sequences", "x", x)
    if any(size < 0 for size in shape) or math.prod(shape) > _MOST_STATES:
        raise ShapeError("zeros_of_sequences, shape", expected=f"at most {_MOST_STATES} elements", got=shape)
    return TensorSpec((-1, *shape), x.dtype)


@zeros_of_sequences.grad
def _grad(inputs, outputs, d_outputs, shape):
    return [None]  # zeros, whatever the rows are


@zeros_of_sequences.examples
def _examples(rng):
    yield [rows(rng, 3)], {"shape": (2, 3)}
