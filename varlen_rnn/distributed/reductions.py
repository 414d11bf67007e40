"""Compute the sums and means in a loss over the rows of all ranks (processes).

An example: `loss = cross_entropy(logits, labels) + 0.1 * mse_loss(y, x)` on two ranks.  Rank 0 has 3 sequences and 20
rows, rank 1 has 1 sequence and 20 rows.  The first mean divides by sequences, the second by rows.  In the loss of all
ranks, the first mean is `(3 m0 + m1) / 4`, the second `(20 m0 + 20 m1) / 40`.  So the gradients that arrive at the
means of rank 0 are multiplied by 3 / 4 and 20 / 40 before they go further back, and gradients of all ranks are added.

The operators between the means and the loss have the same results on all ranks: they run again on the means of all
ranks, and each rank has an equal share of their gradients.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from varlen_rnn.distributed.kinds import CONSTANT, MIXED, ROWS, SUMS, Kind, is_watched, kind_of, kinds_of
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.runtime.device import copy_into, moved, overwrite
from varlen_rnn.runtime.place import HOST
from varlen_rnn.tape.gradient import Record
from varlen_rnn.tape.origins import Detached, Origin
from varlen_rnn.tape.run import run
from varlen_rnn.tape.spec import Symbol
from varlen_rnn.tape.variable import Variable


class Terms(NamedTuple):
    """The parts of a loss; records are applied operators.

    reductions: the records of sums and means over rows, in the order of their application
    tail: the records between the reductions and the loss, in the order of their application
    shares: whether a parameter enters the loss without passing a sum or mean, such as a penalty or a learned weight
    constants: a digest of the constants of the tail, which must be equal on all ranks
    trouble: why ranks cannot compute the loss, or ""
    """

    reductions: list[Record]
    tail: list[Record]
    shares: bool
    constants: bytes
    trouble: str


def terms_of(
    targets: Iterable[Variable],
    records: Sequence[Record],
    is_common: Callable[[Variable | None], bool] = is_watched,
) -> Terms:
    """Return the Terms of a loss, given the records that lead to it in the order of their application.

    `is_common(leaf)` is True for parameters.
    """
    kinds, reductions = kinds_of(records, is_common)
    found: dict[int, Record] = {}
    stack, trouble = [(v.record, v.position, v.ndim) for v in targets if v.record is not None], ""
    for record, position, ndim in stack:
        kind = kinds[record.number][position].kind
        if kind == MIXED or (kind == ROWS and not ndim):
            trouble = _mixing(records, kinds)
    while stack:
        record, position, _ = stack.pop()
        if kinds[record.number][position].kind in (ROWS, MIXED) or record.number in found:
            continue
        found[record.number] = record
        if record.number not in reductions:
            for v in record.inputs:
                producer = None if v is None else v.record or v.origin
                if producer is None or isinstance(producer, Detached) or producer.number not in kinds:
                    continue
                if kinds[producer.number][v.position] is not None:  # it depends on rows or parameters
                    stack.append((producer, v.position, v.ndim))
    ordered = [found[number] for number in sorted(found)]
    tail = [record for record in ordered if record.number not in reductions]
    shares = any(is_common(v) and v.requires_grad for record in tail for v in record.inputs)
    constants, chooser = _constants_of(tail, kinds)
    chosen = [record for record in ordered if record.number in reductions]
    return Terms(chosen, tail, shares, constants, trouble or chooser)


def _constants_of(tail: Sequence[Record], kinds: dict[int, list[Kind]]) -> tuple[bytes, str]:
    """Return a digest of the constants of a tail, and a text about the operator that chooses by one rank's sums."""
    digest, chooser = hashlib.blake2b(digest_size=8), ""
    for record in tail:
        given = [(v, kind_of(v, kinds).kind) for v in record.inputs if v is not None]
        constants = [v.value for v, kind in given if kind == CONSTANT]
        arrays = [value.data for value in constants if not isinstance(value, Symbol)]  # a Symbol is known to no rank
        if any(array.dtype == bool for array in arrays) and any(kind == SUMS for _, kind in given):
            chooser = f"{record.op.type!r}, which chooses by a comparison of one rank's numbers"
        index = record.attrs.get("index")
        items = index if isinstance(index, tuple) else (index,)
        for array in (*arrays, *(item for item in items if isinstance(item, np.ndarray))):
            digest.update(f"{array.dtype.str}{array.shape}".encode())
            digest.update(moved(array, HOST).tobytes())
    return digest.digest(), chooser


def _mixing(records: Sequence[Record], kinds: dict[int, list[Kind]]) -> str:
    """Return a text about the first operator that made rows depend on each other."""
    for record in records:
        if any(kind.kind == MIXED for kind in kinds[record.number]):
            if record.op.rows is None and not record.op.forward.__module__.startswith("varlen_rnn."):
                return f"{record.op.type!r}, an operator without rows='each', 'sequence' or 'sum'"
            return f"{record.op.type!r}, which needs the rows of all ranks"
    return f"{records[-1].op.type!r}, which is no sum or mean over rows"


class Part(NamedTuple):
    """The results of the sums and means in a loss on one rank.

    numbers: float64, all results, one after another; a mean is multiplied by its weight
    weights: float64 `(reductions,)`, the total weight of each mean: rows, elements, sequences or given weights; NaN
        for a sum
    counts: float64; for the input of each sum, and the first value that has sequences: the number of rows, of elements,
      of outer and of inner sequences; empty if the loss has no sums
    """

    numbers: np.ndarray
    weights: np.ndarray
    counts: np.ndarray


def weight_of(record: Record) -> float | None:
    """Return the total weight that a mean over rows was divided by; None if the record is a sum."""
    if record.op.divisor is None:  # an operator of a user with rows="sum"
        return None
    return record.op.divisor(*(None if v is None else v.value for v in record.inputs), **record.attrs)


def count_of(terms: Terms, part: Part) -> float | None:
    """Return the number of rows, elements, sequences or weights that a loss was divided by; None if it is a sum.

    It is the weight of the first mean.  Without means, it is the divisor of a sum: another sum over rows, or a number
    that equals a count in `part`, the Part of all ranks.  It is 1 if the loss depends on parameters alone.
    """
    means = [weight for weight in part.weights.tolist() if not math.isnan(weight)]
    if means or not len(part.weights):
        return means[0] if means else 1.0
    sums, numbers = divisors_of(terms)
    return sums[0] if sums else _count_among(numbers, part)


def own_count_of(terms: Terms, mine: Part) -> int | None:
    """Return the number of this rank's rows, elements or sequences by which a sum is divided; None if there is none."""
    count = _count_among(divisors_of(terms)[1], mine)
    return None if count is None or count < 2 else int(count)


def _count_among(numbers: Sequence[float], part: Part) -> float | None:
    """Return the largest count of `part` that is in `numbers`, or None; so the order of `numbers` does not matter."""
    counts = [count for count in set(part.counts.tolist()) if count]
    return max((c for c in counts for number in numbers if abs(number / c - 1) < 1e-6), default=None)


def divisors_of(terms: Terms) -> tuple[list[float], list[float]]:
    """Return two lists, the divisors of sums over rows: divisors that are sums over rows, and plain numbers."""
    sums, numbers, reached = [], [], {record.number for record in terms.reductions}
    for record in terms.tail:
        producers = [None if v is None else v.record or v.origin for v in record.inputs]
        is_reached = [producer is not None and producer.number in reached for producer in producers]
        if any(is_reached):
            reached.add(record.number)
        if record.op.type == "div" and is_reached[0]:
            divisor = record.inputs[1]
            if is_reached[1] and divisor.size == 1:
                sums.append(abs(_item(divisor)))
            elif _is_plain(divisor):
                numbers.append(_item(divisor))
        elif record.op.type == "mul" and is_reached.count(True) == 1:
            factor = record.inputs[is_reached.index(False)]
            if _is_plain(factor) and (number := _item(factor)):
                numbers.append(1 / number)
    return sums, numbers


def _is_plain(variable: Variable) -> bool:
    return variable.size == 1 and not variable.requires_grad and variable.hooks is None


def _item(variable: Variable) -> float:
    return float(moved(variable.value.data, HOST).reshape(()))


def part_of(terms: Terms, records: Sequence[Record]) -> Part:
    """Return the sums and means that this rank adds to the loss, given the records that lead to the loss."""
    numbers, weights = [np.zeros(0)], []
    for record in terms.reductions:
        weight = weight_of(record)
        result = moved(record.values[0].data, HOST).astype(np.float64).ravel()
        # The mean of no rows can be NaN, so with a weight of 0 it counts as 0.
        numbers.append(result if weight is None else result * weight if weight else np.zeros_like(result))
        weights.append(np.nan if weight is None else weight)
    values = [
        record.inputs[0].value for record, weight in zip(terms.reductions, weights, strict=True) if weight != weight
    ]
    if values:
        given = (v.value for record in records for v in record.inputs if v is not None)
        values.append(next((value for value in given if isinstance(value, LoDTensor) and value.num_levels), None))
    counts = np.zeros((len(values), 4))
    for extents, value in zip(counts, values, strict=True):
        if isinstance(value, LoDTensor) and value.shape:
            extents[:2] = value.shape[0], math.prod(value.shape)
            extents[2:] = (value.num_elements(0), value.num_elements(-1)) if value.num_levels else 0
    return Part(np.concatenate(numbers), np.array(weights, np.float64), counts.ravel())


@contextlib.contextmanager
def restoring(terms: Terms) -> Iterator[None]:
    """After the `with` block, restore this rank's sums without a gradient, such as a mask's, for other losses."""
    origins = [record for record in (*terms.reductions, *terms.tail) if isinstance(record, Origin)]
    kept = [(value.data, value.data.copy()) for record in origins for value in record.values]
    try:
        yield
    finally:
        for data, numbers in kept:
            copy_into(data, numbers)


def combine(terms: Terms, mine: Part, every: Part) -> dict[int, float]:
    """Set a loss to its value over all ranks; return {number of a sum or mean: factor of the gradients that reach it}.

    `mine` is this rank's Part of the loss, `every` the sum of the Parts of all ranks.
    """
    place, factors = 0, {}
    for number, record in enumerate(terms.reductions):
        result, weight = record.values[0].data, every.weights[number]
        total = every.numbers[place : place + result.size].reshape(result.shape)
        place += result.size
        if np.isnan(weight):
            factors[record.number] = 1.0
            overwrite(result, ..., total)
        else:
            factors[record.number] = float(mine.weights[number] / weight) if weight else 0.0
            if weight:
                overwrite(result, ..., total / weight)
    for record in terms.tail:
        again = run(record.op, [None if v is None else v.value for v in record.inputs], record.attrs)
        for value, new in zip(record.values, again, strict=True):
            copy_into(value.data, new.data)
    return factors
