"""Rows as sequences of one row each, the input of a layer's single step."""

import functools

import numpy as np

from varlen_rnn.ops.cost import nothing
from varlen_rnn.ops.examples import rows
from varlen_rnn.rows.lod import LoD, LoDTensor
from varlen_rnn.tape.checks import check_rank, check_tensor
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec


@operator(cost=nothing, rows="batch")
def single_rows(x):
    """Return the rows of `x` as sequences of one row each; the LoD of `x` is dropped."""
    return LoDTensor.wrap(x.data, _lod(x.data.shape[0]))


@functools.lru_cache(maxsize=8)  # a LoD caches its plan, and the steps of a batch differ little in rows
def _lod(count):
    return LoD([np.arange(count + 1)])


@single_rows.infer
def _infer(x):
    check_tensor("single_rows", "x", x)
    if not x.shape:
        check_rank("single_rows", "x", x, 1)
    return TensorSpec(x.shape, x.dtype, 1)


@single_rows.backward("x")
def _backward(x, d_out):
    return x.like(d_out.data)


@single_rows.examples
def _examples(rng):
    yield [rng.standard_normal((3, 2))], {}
    yield [rows(rng, 2)], {}
