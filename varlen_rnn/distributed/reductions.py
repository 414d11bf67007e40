"""The sums and means of a loss, over the rows of all ranks.

An example: `loss = cross_entropy(logits, labels) + 0.1 * mse_loss(y, x)` on two ranks.  Rank 0 has 3 sequences and 20
rows, rank 1 has 1 sequence and 20 rows.  The first mean divides by sequences, the second by rows.  The loss of all
ranks has the first mean `(3 m0 + m1) / 4`, and the second `(20 m0 + 20 m1) / 40`.  So the gradients that arrive at the
means of rank 0 are multiplied by 3 / 4 and 20 / 40 before they go further back, and gradients of all ranks are added.

The operators that follow the means, from there to the loss, have the same results on all ranks: they run again on the
means of all ranks, and each rank has an equal share of their gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.tape.gradient import Record
from varlen_rnn.tape.run import run
from varlen_rnn.tape.variable import Variable

# The kinds of values: of parameters alone, of sums over rows, of rows.  The first two are the same on all ranks.
_PARAMETERS, _SUMS, _ROWS = range(3)


class Terms(NamedTuple):
    """The parts of a loss.

    Attributes
    ----------
    reductions : list of Record
        The sums and means over rows, in the order of their application.
    tail : list of Record
        The records that follow them on the way to the loss, in that order.
    shares : bool
        Whether a parameter acts on the loss without passing a sum or mean, as a penalty or a learned weight does.
    """

    reductions: list[Record]
    tail: list[Record]
    shares: bool


def terms_of(targets: Iterable[Variable], records: Sequence[Record]) -> Terms:
    """Return the parts of a loss, given the records that lead to it in the order of their application."""
    kinds: dict[int, int] = {}
    reductions = set()
    for record in records:
        kind = _kind(record, kinds)
        if kind == _ROWS and _adds_rows(record):
            reductions.add(record.number)
            kind = _SUMS
        kinds[record.number] = kind
    found: dict[int, Record] = {}
    stack = [v.record for v in targets if v.record is not None]
    while stack:
        record = stack.pop()
        if kinds[record.number] == _ROWS or record.number in found:
            continue
        found[record.number] = record
        if record.number not in reductions:
            stack += [v.record for v in record.inputs if v is not None and v.record is not None]
    ordered = [found[number] for number in sorted(found)]
    tail = [record for record in ordered if record.number not in reductions]
    shares = any(_is_watched(v) for record in tail for v in record.inputs)
    return Terms([record for record in ordered if record.number in reductions], tail, shares)


def _kind(record: Record, kinds: dict[int, int]) -> int:
    """Return the kind of the results of a record, given the kinds of the records before it."""
    found, own, constants = set(), [_Extent(0, 0)], [_Extent(0, 0)]
    for variable in record.inputs:
        if variable is None:
            continue
        if variable.record is not None:
            found.add(kinds[variable.record.number])
        elif _is_watched(variable):
            found.add(_PARAMETERS)
        else:
            constants.append(_extent(variable.value))
            continue
        own.append(_extent(variable.value))
    if _ROWS in found or not found:
        return _ROWS
    if _SUMS in found:  # a constant with more elements, as a target for each row, makes rows of them again
        largest = _Extent(*map(max, zip(*own, strict=True)))
        extents = [_extent(value) for value in record.values]
        return _SUMS if all(e.rank <= largest.rank and e.size <= largest.size for e in extents) else _ROWS
    return _ROWS if any(constant.rank for constant in constants) else _PARAMETERS  # rows, or numbers beside parameters


class _Extent(NamedTuple):
    rank: int  # the number of dimensions
    size: int


def _extent(value: Any) -> _Extent:
    return _Extent(value.data.ndim, value.data.size) if isinstance(value, LoDTensor) else _Extent(64, 1 << 62)


def _is_watched(variable: Variable | None) -> bool:
    if variable is None or variable.hooks is None or variable.shard is not None:  # the rows of a divided table
        return False
    return variable.hooks.watcher is not None


def _adds_rows(record: Record) -> bool:
    """Return whether an operator is a sum or mean over all rows."""
    if record.op.divisor is None:
        return False
    axis = record.attrs.get("axis")
    return axis is None or axis % record.inputs[0].ndim == 0


class Part(NamedTuple):
    """One rank's results of the sums and means of a loss.

    Attributes
    ----------
    numbers : array of float64
        All results, one after another; a mean times its weight.
    weights : array of float64, shape `(reductions,)`
        The total weight of each mean: rows, elements, sequences or given weights; NaN for a sum.
    """

    numbers: np.ndarray
    weights: np.ndarray


def part_of(terms: Terms) -> Part:
    """Return the results of this rank."""
    numbers, weights = [np.zeros(0)], []
    for record in terms.reductions:
        weight = record.op.divisor(*(None if v is None else v.value for v in record.inputs), **record.attrs)
        result = record.values[0].data.astype(np.float64).ravel()
        # The mean of nothing may be NaN; it has no weight.
        numbers.append(result if weight is None else result * weight if weight else np.zeros_like(result))
        weights.append(np.nan if weight is None else weight)
    return Part(np.concatenate(numbers), np.array(weights, np.float64))


def combine(terms: Terms, mine: Part, every: Part) -> dict[int, float]:
    """Give a loss its value over all ranks; return the factors of the gradients that arrive at its sums and means.

    Parameters
    ----------
    mine : Part
        The part of this loss.
    every : Part
        The sum of all parts.
    """
    place, factors = 0, {}
    for number, record in enumerate(terms.reductions):
        result, weight = record.values[0].data, every.weights[number]
        total = every.numbers[place : place + result.size].reshape(result.shape)
        place += result.size
        if np.isnan(weight):
            factors[record.number] = 1.0
            result[...] = total
        else:
            factors[record.number] = float(mine.weights[number] / weight) if weight else 0.0
            result[...] = total / weight if weight else result
    for record in terms.tail:
        again = run(record.op, [None if v is None else v.value for v in record.inputs], record.attrs)
        for value, new in zip(record.values, again, strict=True):
            value.data[...] = new.data
    return factors
