"""Operators on a handful of rows, each beside what it wraps: NumPy's expression, or a call of the engine.

A call of the engine is what stands below an operator: Python that makes arrays and shares work, and in it a compiled
function.  `compiled` is that function alone.
"""

from collections.abc import Callable
from typing import NamedTuple
from unittest import mock

import numpy as np
from scipy import special

import varlen_rnn as vr
from varlen_rnn import recurrence
from varlen_rnn.cells import CELLS
from varlen_rnn.kernels import pool, rows, updates
from varlen_rnn.nn import functional
from varlen_rnn.products import gemm
from varlen_rnn.runtime import threads
from varlen_rnn.tape.variable import apply

_LENGTHS, _FEATURES, _CLASSES, _UNITS = [3, 1, 2, 2], 4, 4, 32


class Operator(NamedTuple):
    """An operator, and what it costs without one.

    Attributes
    ----------
    name : str
    inputs : tuple of LoDTensor
        What `call` takes, as Variables; those of floating point may require a gradient.
    call : callable
        `call(*variables)` applies it.
    kernel : callable
        What it wraps, on arrays that are ready: NumPy's expression, or the engine's own call.
    kernel_kept : callable, optional
        The same where it keeps something for a gradient; by default `kernel`.
    compiled : callable, optional
        The one compiled function that `kernel` calls, on arguments that are ready.
    records : bool
        Whether it is recorded for a gradient.
    """

    name: str
    inputs: tuple
    call: Callable
    kernel: Callable
    kernel_kept: Callable | None = None
    compiled: Callable | None = None
    records: bool = True


def operators():
    """Return the operators that are measured."""
    rng = np.random.default_rng(0)
    x = _rows(rng, _FEATURES)
    y = vr.LoDTensor(x.data * 2, x.structure)  # of the same batch
    return [*_elementwise(x, y), *_shapes(x, y), *_layers(rng, x), *_of_updates(rng)]


def compiled_alone(call):
    """Return a function that calls what a call of the engine compiled, with the arguments that it had.

    Arrays of int64 that can be written are the counters of shards; before each call they are set back to what they
    were, which takes a tenth of a microsecond.

    Parameters
    ----------
    call : callable
        Has `for_each_shard` call one compiled function, for one shard.
    """
    calls = []

    def note(kernel, *arguments, num_shards, give_up=None):
        arrays = [part for argument in arguments for part in (argument if isinstance(argument, tuple) else [argument])]
        counters = next(part for part in arrays if _counts(part))
        calls.append((kernel, arguments, counters, counters.copy()))

    with mock.patch.object(threads, "for_each_shard", note), mock.patch.object(gemm, "for_each_shard", note):
        call()
    ((kernel, arguments, counters, first),) = calls

    def compiled():
        counters[:] = first
        kernel(0, 1, *arguments)

    return compiled


def _counts(part):
    return isinstance(part, np.ndarray) and part.dtype == np.int64 and part.flags.writeable


def _rows(rng, features, lengths=_LENGTHS):
    return vr.create_lod_tensor(rng.standard_normal((sum(lengths), features), np.float32), [lengths])


def _elementwise(x, y):
    a, b = x.data, y.data
    count, random = np.float32(a.size), np.random.default_rng(0)
    return [
        Operator("add", (x, y), lambda x, y: x + y, lambda: a + b),
        Operator("mul", (x, y), lambda x, y: x * y, lambda: a * b),
        Operator("tanh", (x,), functional.tanh, lambda: np.tanh(a)),
        Operator("sigmoid", (x,), functional.sigmoid, lambda: special.expit(a)),
        Operator("reduce_mean", (x,), lambda x: x.mean(), lambda: a.sum() / count),
        Operator("dropout", (x,), functional.dropout, lambda: a * ((random.random(a.shape, np.float32) >= 0.5) * 2)),
    ]


def _shapes(x, y):
    a, b = x.data, y.data
    return [
        Operator("getitem", (x,), lambda x: x[2:5], lambda: a[2:5]),
        Operator("reshape", (x,), lambda x: x.reshape(-1, 2, 2), lambda: a.reshape(-1, 2, 2)),
        Operator("concat", (x, y), lambda x, y: functional.concat([x, y]), lambda: np.concatenate([a, b], axis=-1)),
    ]


def _layers(rng, x):
    a, offsets = x.data, x.structure.levels[-1]
    labels = vr.LoDTensor(rng.integers(0, _CLASSES, len(a)))
    linear, table, scale = vr.nn.Linear(_FEATURES, _FEATURES), vr.nn.Embedding(9, _FEATURES), np.ones(4, np.float32)
    wide, lstm = _rows(rng, _UNITS, [5] * 4), vr.nn.LSTM(_UNITS, _UNITS)
    weights = lstm.parameters()
    directions = [recurrence.Direction(*(parameter.data for parameter in weights))]
    plan = vr.sort_by_seq_len(wide)

    def matmul():
        gemm.product(a, linear.weight.data, np.empty_like(a), transposed=True, bias=linear.bias.data)

    def cross_entropy():
        shifted = a - a.max(axis=-1, keepdims=True)
        shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
        return -shifted[np.arange(len(a)), labels.data]

    def layer(keep):
        return lambda: recurrence.forward(CELLS["lstm"], wide.data, directions, None, plan, keep)

    def recurrent(x):
        return apply("recurrent", x, None, None, *weights, cell="lstm", keep=vr.grad_enabled())

    def losses(x, labels):
        return functional.cross_entropy(x, labels, "none")

    def gather():
        rows.gather_rows(table.weight.data, labels.data, np.empty_like(a))

    def mean(x):
        return vr.sequence_pool(x, "mean")

    def sum_rows():
        pool.pool_sum(a, offsets, scale, np.empty((4, _FEATURES), np.float32))

    gathered = table.weight.data, labels.data, np.empty_like(a)
    summed = a, offsets, scale, np.empty((4, _FEATURES), np.float32)
    return [
        Operator("matmul", (x,), linear, matmul, compiled=compiled_alone(matmul)),
        Operator("embedding", (labels,), table, gather, compiled=lambda: rows.gather_rows_cpu(*gathered)),
        Operator("sequence_pool", (x,), mean, sum_rows, compiled=lambda: pool.pool_sum_cpu(*summed)),
        Operator("cross_entropy", (x, labels), losses, cross_entropy),
        Operator("recurrent", (wide,), recurrent, layer(False), layer(True), compiled_alone(layer(False))),
    ]


def _of_updates(rng):
    row, state = np.zeros(1, np.int64), [rng.random((1, 16), np.float32) for _ in range(4)]
    row.flags.writeable = False  # as the operators', so that one compiled kernel serves both
    gradient, first, second, weights = state

    def update(name, states, attrs, kernel, compiled):
        # A learning rate of 0, so that repeating it changes nothing.
        parameter = vr.nn.Parameter(rng.standard_normal((4, 4), np.float32))
        kept = [vr.Variable(value, persistable=True) for value in (np.zeros((), np.float64), *states)]
        x = vr.LoDTensor(rng.standard_normal((4, 4), np.float32))
        call = lambda x: apply(name, parameter, x, *kept, **attrs)
        return Operator(name, (x,), call, kernel, compiled=compiled, records=False)

    rate, *decays = np.array([0.0, 0.9, 0.999, 1e-8], np.float32)
    moments = np.zeros((), np.int64), np.zeros((4, 4), np.float32), np.zeros((4, 4), np.float32)
    return [
        update("sgd", (), {"weight_decay": 0.0}, lambda: updates.sgd(row, gradient, 0.0, weights),
               lambda: updates.sgd_cpu(row, gradient, rate, weights)),
        update("adam", moments, {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "corrected": True, "lazy": False,
                                 "weight_decay": 0.0, "decoupled": False},
               lambda: updates.adam(row, gradient, 0.0, 0.9, 0.999, 1e-8, first, second, weights),
               lambda: updates.adam_cpu(row, gradient, rate, *decays, first, second, weights)),
    ]  # fmt: skip
