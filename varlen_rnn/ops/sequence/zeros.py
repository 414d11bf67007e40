"""Zeros for each sequence, as states before the first step."""

import math

from varlen_rnn.errors import OutOfRangeError, ShapeError
from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import TROUBLES, rows
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.runtime.device import zeros
from varlen_rnn.tape.checks import check_float, check_lod_level
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec

# The most numbers per sequence; without a limit, a program of a few bytes could request any amount of memory.
_MOST_STATES = 2**20


@operator(cost=nothing, rows="batch", gradient=False)
def zeros_of_sequences(x, shape: tuple[int, ...], level: int = -1):
    """Return zeros of shape `shape` for each sequence of a level of `x`."""
    return LoDTensor.wrap(zeros((x.num_elements(level), *shape), x.data))


@zeros_of_sequences.infer
def _infer(x, shape, level):
    check_float("zeros_of_sequences", x=x)
    check_lod_level("zeros_of_sequences", "x", x)
    if any(size < 0 for size in shape) or math.prod(shape) > _MOST_STATES:
        raise ShapeError("zeros_of_sequences, shape", expected=f"at most {_MOST_STATES} elements", got=shape)
    if not -x.lod_level <= level < x.lod_level:
        raise OutOfRangeError("zeros_of_sequences, level", expected=f"one of the {x.lod_level} levels of x", got=level)
    return TensorSpec((-1, *shape), x.dtype)


@zeros_of_sequences.examples
def _examples(rng):
    yield [rows(rng, 3)], {"shape": (2, 3), "level": -1}
    yield [rows(rng, lod=TROUBLES[-1])], {"shape": (), "level": 0}
