"""Normalise each feature over the rows of a whole batch, and track the running moments for evaluation.

The moments are the mean and the variance of each feature.  For example, the rows (1, 5) and (3, 5) have the means
(2, 5) and the variances (1, 0).  With `eps=0`, the normalised rows are (-1, 0) and (1, 0), with 0 in place of 0 / 0.

Sums over rows are computed as in `kernels.sums`: their errors do not grow with the number of rows, and their bits do
not depend on the number of threads.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar

import numpy as np

from varlen_rnn.errors import OutOfRangeError
from varlen_rnn.kernels import moments
from varlen_rnn.kernels.arithmetic import add, divide, greater, maximum, multiply, negative, subtract, where
from varlen_rnn.kernels.copies import assign, astype, full
from varlen_rnn.kernels.reductions import sum_blocks_of_rows, sum_over
from varlen_rnn.ops.cost import size
from varlen_rnn.ops.examples import TROUBLES, rows
from varlen_rnn.ops.indices import INT64
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.runtime.device import as_operand, empty, on_device, zeros
from varlen_rnn.runtime.placeholder import Placeholder
from varlen_rnn.tape.checks import check_float, check_like, check_rank, check_shape
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import apply

_FLOAT64 = np.dtype(np.float64)
_BLOCK = 2**16  # the number of elements that are computed at a time, because larger arrays would not fit the caches


_sums_of_ranks: ContextVar[Callable[..., Sequence[np.ndarray]] | None] = ContextVar("sums_of_ranks", default=None)


@contextlib.contextmanager
def summing(function: Callable[..., Sequence[np.ndarray]]) -> Iterator[None]:
    """Inside of this context, compute moments over the rows of several processes; `function(*sums)` adds their sums.

    Each process calls `function` equally often: twice per application of `batch_norm`, and once per gradient.
    """
    before = _sums_of_ranks.set(function)
    try:
        yield
    finally:
        _sums_of_ranks.reset(before)


def over_ranks(*sums):
    """Return sums over the rows of this process, plus the sums of the other processes if `summing` is active."""
    function = _sums_of_ranks.get()
    return sums if function is None else function(*sums)


def _rows(specs, axes, eps, training):
    if axes[0] != 0 or any(axis is not None for axis in axes[1:]):
        return None
    return "batch" if training else "each"  # in training, the moments depend on all rows, and ranks add their sums


def _cost(inputs, outputs, eps, training):
    """4 operations per element, and in training 4 more for the moments."""
    return (8 if training else 4) * size(inputs[0])


@operator(
    outputs=("out", "mean", "variance", "count"), intermediate=("mean", "variance", "count"),
    inference={"training": False}, rows=_rows, cost=_cost,
)  # fmt: skip
def batch_norm(x, running_mean, running_var, weight=None, bias=None, *, eps: float, training: bool):
    """Subtract the mean of each feature from the rows, divide by its deviation, multiply by `weight`, and add `bias`.

    In training, the moments are computed from the rows; otherwise, they are the running moments.
    """
    if not training:
        return x.like(_normalised(x.data, running_mean.data, running_var.data, weight, bias, eps))
    rows = as_operand(x.data)
    mean, variance, count = _moments(rows)
    found = map(LoDTensor.wrap, (mean, variance, count))
    return x.like(_normalised(rows, mean, variance, weight, bias, eps)), *found


def _moments(x):
    """Return the mean and the variance of each feature over the rows of all ranks, and the number of these rows."""
    # The number of rows is in memory, so that records of a program can run with other numbers.
    number = np.array(len(x)) if on_device(x) else full((), len(x), x, INT64)
    count, total = over_ranks(number, sum_over(x, 0))
    divisor = astype(maximum(count, 1), x.dtype)
    mean = divide(total, divisor)

    def differences(block):
        apart = subtract(x[block], mean)
        return apart, multiply(apart, apart)

    # The mean of the differences is the rounding error of the mean (Chan, Golub and LeVeque, 1983).
    rest, squares = over_ranks(*_sums(x, differences))
    rest = divide(rest, divisor)
    variance = subtract(divide(squares, divisor), multiply(rest, rest))
    return add(mean, rest), maximum(variance, x.dtype.type(0)), count


def _sums(x, of_block):
    """Return the sums over the rows of two arrays like `x`; `of_block` returns one block of rows of each array."""
    if type(x) is Placeholder:
        return [_sum_of_blocks(array) for array in of_block(slice(None))]
    parts = [[sum_over(array, 0) for array in of_block(block)] for block in _blocks(x)]
    return parts[0] if on_device(x) else [sum_over(np.stack(sums), 0) for sums in zip(*parts, strict=True)]


def _sum_of_blocks(x):
    """Return the sum of the rows of an array, with the bits of the sum over `_blocks`."""
    out = empty((1, x.shape[1]), x)
    sum_blocks_of_rows(as_operand(x), max(1, _BLOCK // x.shape[1]), out)
    return out[0]


def _blocks(x):
    """Return slices of rows, each of which fits a cache.

    A single slice has all rows on a device, in a dry run, because another number of slices would be another program,
    and if there are no rows.
    """
    is_whole = on_device(x) or type(x) is Placeholder
    step = max(1, len(x) if is_whole else _BLOCK // x.shape[1])
    return [slice(first, first + step) for first in range(0, max(1, len(x)), step)]


def _normalised(x, mean, variance, weight, bias, eps):
    factor = moments.inverse_deviation(variance, eps)
    factor = factor if weight is None else multiply(factor, weight.data)
    if on_device(x):
        return moments.normalised(as_operand(x), mean, factor, x.dtype.type(0) if bias is None else bias.data)
    out = empty(x.shape, x)
    for block in _blocks(x):
        rows = np.subtract(x[block], mean, out=out[block])
        rows *= factor
        if bias is not None:
            rows += bias.data
    return out


@batch_norm.infer
def _infer(x, running_mean, running_var, weight, bias, eps, training):
    vectors = {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias}
    _check("batch_norm", x, eps, **vectors)
    if not training:
        return x
    return x, running_mean, running_var, TensorSpec((), INT64)


def _check(op, x, eps, **vectors):
    given = {name: spec for name, spec in vectors.items() if spec is not None}
    check_float(op, x=x, **given)
    check_rank(op, "x", x, 2, "x has rows of features; reshape rows that have more axes")
    for name, spec in given.items():
        check_shape(op, name, spec, x.shape[1:])
    if not 0 <= eps < math.inf:
        raise OutOfRangeError(f"{op}, eps", expected="at least 0, and finite", got=eps)


@batch_norm.grad
def _grad(inputs, outputs, d_outputs, eps, training):
    x, running_mean, running_var, weight, bias = inputs
    given = outputs[1:] if training else (running_mean, running_var, None)
    d_x, *others = apply("batch_norm_grad", x, d_outputs[0], *given, weight, eps=eps)
    wanted = zip(others, (running_mean, running_var, weight, bias), strict=True)
    return [d_x, *(d if variable is not None and variable.requires_grad else None for d, variable in wanted)]


def _cost_of_grad(inputs, outputs, eps):
    """10 operations per element."""
    return 10 * size(inputs[0])


@operator(outputs=("d_x", "d_mean", "d_variance", "d_weight", "d_bias"), cost=_cost_of_grad)
def batch_norm_grad(x, d, mean, variance, count=None, weight=None, *, eps: float):
    """Return the gradients of `batch_norm`; if `count` is None, the moments are constants."""
    rows, d_rows = as_operand(x.data), as_operand(d.data)
    inverse = moments.inverse_deviation(variance.data, eps)
    factor = inverse if weight is None else multiply(inverse, weight.data)
    normal = lambda block: multiply(subtract(rows[block], mean.data), inverse)
    of_weight, of_bias = _sums(rows, lambda block: (multiply(d_rows[block], normal(block)), d_rows[block]))
    d_mean, d_variance = zeros(mean.shape, mean.data), zeros(mean.shape, mean.data)
    slope = constant = None
    if count is None:
        d_mean = multiply(negative(factor), of_bias)
        d_variance = multiply(multiply(multiply(x.dtype.type(-0.5), factor), inverse), of_weight)
    else:
        number = astype(maximum(count.data, 1), _FLOAT64)
        share = multiply(factor, astype(divide(np.array(1.0), number), x.dtype))
        slope, constant = (multiply(share, sums) for sums in over_ranks(of_weight, of_bias))
    d_x = _grad_of_rows(d_rows, factor, normal, slope, constant)
    return x.like(d_x), *(LoDTensor.wrap(sums) for sums in (d_mean, d_variance, of_weight, of_bias))


def _grad_of_rows(d_rows, factor, normal, slope, constant):
    """Return `d_rows * factor`, minus `normal * slope + constant` if the moments depend on the rows (`slope` is given).

    `normal(block)` returns the normalised rows of a block.
    """
    if on_device(d_rows):
        if slope is None:
            return multiply(d_rows, factor)
        return moments.normalised_grad(d_rows, factor, normal(slice(None)), slope, constant)
    d_x = empty(d_rows.shape, d_rows)
    for block in _blocks(d_rows):
        found = np.multiply(d_rows[block], factor, out=d_x[block])
        if slope is not None:
            found -= normal(block) * slope
            found -= constant
    return d_x


@batch_norm_grad.infer
def _infer_grad(x, d, mean, variance, count, weight, eps):
    _check("batch_norm_grad", x, eps, mean=mean, variance=variance, weight=weight)
    check_like("batch_norm_grad", "d", d, x)
    if count is not None:
        check_like("batch_norm_grad", "count", count, TensorSpec((), INT64))
    return x, *[TensorSpec(x.shape[1:], x.dtype)] * 4


@operator(outputs=("running_mean", "running_var", "num_batches"), in_place=True)
def track_moments(running_mean, running_var, num_batches, mean, variance, count, *, momentum: float | None):
    """Move the running moments towards the moments of a batch; a batch of one row moves only the mean.

    If `momentum` is None, the running moments are the means over all batches.
    """
    number, dtype = count.data, running_mean.dtype
    assign(add(num_batches.data, astype(greater(number, 0), INT64)), num_batches.data)
    if momentum is None:
        share = divide(np.array(1, dtype), astype(maximum(num_batches.data, 1), dtype))
    else:
        share = np.array(momentum, dtype)
    # The variance of a sample, which divides by one row less.
    correction = divide(astype(number, _FLOAT64), astype(maximum(subtract(number, np.array(1)), 1), _FLOAT64))
    unbiased = multiply(variance.data, astype(correction, dtype))
    for running, moment, least in ((running_mean, mean.data, 1), (running_var, unbiased, 2)):
        kept = multiply(subtract(np.array(1, dtype), share), running.data)
        found = add(kept, multiply(share, moment))
        assign(where(greater(number, least - 1), found, running.data), running.data)
    return running_mean, running_var, num_batches


@track_moments.infer
def _infer_track(running_mean, running_var, num_batches, mean, variance, count, momentum):
    check_float("track_moments", running_mean=running_mean)
    check_rank("track_moments", "running_mean", running_mean, 1)
    for name, spec in (("running_var", running_var), ("mean", mean), ("variance", variance)):
        check_like("track_moments", name, spec, running_mean)
    for name, spec in (("num_batches", num_batches), ("count", count)):
        check_like("track_moments", name, spec, TensorSpec((), INT64))
    if momentum is not None and not 0 <= momentum <= 1:
        raise OutOfRangeError("track_moments, momentum", expected="0 to 1, or None", got=momentum)
    return running_mean, running_var, num_batches


@batch_norm.examples
def _examples(rng):
    vectors = rng.standard_normal(3), rng.random(3) + 0.5, rng.standard_normal(3), rng.standard_normal(3)
    for training in (True, False):
        yield [rows(rng, 3), *vectors], {"eps": 1e-5, "training": training}
        yield [rows(rng, 3), *vectors[:2], None, vectors[3]], {"eps": 0.5, "training": training}
        yield [rng.standard_normal((1, 3)), *vectors[:3], None], {"eps": 1.0, "training": training}
        for lod in TROUBLES:
            yield [rows(rng, 3, lod=lod), *vectors], {"eps": 1.0, "training": training}


@track_moments.examples
def _examples_of_track(rng):
    for count, momentum in ((7, 0.1), (1, 0.1), (0, 0.1), (7, None)):
        moments = [rng.standard_normal(3), rng.random(3)]
        given = [rng.standard_normal(3), rng.random(3), np.array(2), *moments, np.array(count)]
        yield given, {"momentum": momentum}
