"""Divide a batch into parts that take about the same time, such as one part for each of several processes.

The division is a function of the lengths, the number of parts and the cost alone, so all processes compute the same
division and send nothing.  An example: two parts of sequences of 9, 5, 4, 3 and 2 rows, where only rows cost, 1 each:

    longest first    9       5       4       3       2
    loads before     0, 0    9, 0    9, 5    9, 9    12, 9
    goes to part     0       1       1       0       1          parts of 12 and 11 rows
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from varlen_rnn.errors import (
    NOT_NEGATIVE,
    DTypeError,
    OutOfRangeError,
    ShapeError,
    check_callable,
    check_int,
    check_list,
    check_number,
    shown,
)
from varlen_rnn.rows.checks import offsets_of
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.typing import Lengths


class StepCost(NamedTuple):
    """The predicted seconds of a training step, as a sum of terms; only their ratios matter for a division.

    Attributes
    ----------
    per_batch : float
        Seconds for a batch, in addition to the seconds for its content.
    per_row : float
        Seconds for each row.
    per_step : float
        Seconds for each step; a batch has as many steps as its longest sequence has rows.
    per_sequence : float
        Seconds for each sequence.

    Examples
    --------
    >>> StepCost(per_batch=1.0, per_row=0.5).of([2, 4])
    4.0
    """

    per_batch: float
    per_row: float
    per_step: float = 0.0
    per_sequence: float = 0.0

    def of(self, lengths: Lengths) -> float:
        """Return the seconds of a batch of sequences with these lengths; 0 if there are none."""
        found = np.diff(offsets_of(lengths, 0))
        if not len(found):
            return 0.0
        in_rows = self.per_row * float(found.sum()) + self.per_step * float(found.max())
        return self.per_batch + in_rows + self.per_sequence * len(found)


# Measured for two LSTM layers of 128 units over an embedding of 64, on one thread.
STEP_COST = StepCost(per_batch=2.75e-3, per_row=21.2e-6, per_step=7.5e-6, per_sequence=2.3e-6)

_MOST_PARTS = 2**20
_MOST_REPEATS = 1000


def balanced_parts(lengths: Lengths, parts: int, cost: StepCost = STEP_COST) -> list[np.ndarray]:
    """Return the indices of the sequences of each part, so that the parts take about the same time.

    Longest first, each sequence goes to the part with the least work so far.  If only rows cost, the slowest part takes
    at most 4/3 of the shortest possible time.  No sequence is divided, so more parts than (cost of all sequences) /
    (cost of the longest) gain nothing.

    Parameters
    ----------
    lengths : sequence of int, shape `(num_sequences,)`
        Rows of each sequence.
    parts : int
        At least 1.
    cost : StepCost
        The same for all who compute this division.

    Returns
    -------
    list of array, int64
        Ascending indices for each part.  Every sequence is in exactly one part; if there are fewer sequences than
        parts, some parts are empty.

    Raises
    ------
    LoDError, DTypeError, ShapeError, OutOfRangeError
        If an argument is of the wrong kind, a length or a cost is negative, or `parts` is less than 1.

    Examples
    --------
    >>> balanced_parts([9, 5, 4, 3, 2], 2, StepCost(per_batch=0.0, per_row=1.0))
    [array([0, 3]), array([1, 2, 4])]

    Source: Graham (1969), "Bounds on multiprocessing timing anomalies"; the rule is LPT, longest processing time first.
    """
    if not isinstance(cost, StepCost):
        raise DTypeError("cost", expected="a StepCost", got=shown(cost))
    cost = StepCost(*(check_number(value, f"cost, {name}", *NOT_NEGATIVE) for name, value in cost._asdict().items()))
    found = np.diff(offsets_of(lengths, 0))
    parts = check_int(parts, "balanced_parts, parts", 1)
    if parts > _MOST_PARTS:
        raise OutOfRangeError("balanced_parts, parts", expected=f"at most {_MOST_PARTS}", got=shown(parts))
    if parts == 1:
        return [np.arange(len(found))]
    parts_with_work = min(parts, len(found))  # other parts stay empty and need no entry in the heap
    loads = [(0.0, part) for part in range(parts_with_work)]
    owners, has_begun = np.empty(len(found), np.int64), [False] * parts_with_work
    order = np.argsort(-found, kind="stable")
    for index, length in zip(order.tolist(), found[order].tolist(), strict=True):
        load, part = loads[0]
        load += cost.per_row * length + cost.per_sequence
        if not has_begun[part]:  # its first sequence is its longest
            load += cost.per_step * length + cost.per_batch
            has_begun[part] = True
        owners[index] = part
        heapq.heapreplace(loads, (load, part))
    bounds = np.searchsorted(np.sort(owners), np.arange(parts + 1))
    by_part = np.argsort(owners, kind="stable")
    return [by_part[a:b] for a, b in itertools.pairwise(bounds)]


def measure_step_cost(step: Callable[..., Any], batches: Iterable[Any], repeats: int = 3) -> StepCost:
    """Time steps on this machine; return the cost that fits the measured times best.

    Parameters
    ----------
    step : function
        A training step, called with the parts of a batch, as in `step(x, labels)`.
    batches : iterable
        Batches of various numbers of rows, steps and sequences: each a LoDTensor, or a tuple that begins with one.
    repeats : int
        How often each batch is timed, 1 to 1000, after once without; the shortest time counts.

    Returns
    -------
    StepCost
        Processes that divide batches need the same numbers: measure in one of them and broadcast the result.

    Raises
    ------
    DTypeError, ShapeError
        If there are no batches, or one of them is of the wrong kind.

    Examples
    --------
    >>> made = [LoDTensor(np.zeros(n), [[0, n]]) for n in (1, 2, 3)]
    >>> cost = measure_step_cost(lambda x: None, made)
    >>> min(cost) >= 0
    True
    """
    step, repeats = check_callable(step, "step"), check_int(repeats, "repeats", 1)
    if repeats > _MOST_REPEATS:
        raise OutOfRangeError("repeats", expected=f"at most {_MOST_REPEATS}", got=shown(repeats))
    terms, seconds = [], []
    for batch in check_list(batches, "measure_step_cost, batches", "a list of batches"):
        inputs = batch if isinstance(batch, tuple) else (batch,)
        if not (inputs and isinstance(inputs[0], LoDTensor) and inputs[0].num_levels):
            expected = "LoDTensors with levels, or tuples that begin with one"
            raise DTypeError("measure_step_cost, batches", expected=expected, got=shown(batch))
        lengths = np.diff(inputs[0].structure.rows_of_level(0))
        terms.append([1.0, lengths.sum(), lengths.max(initial=0), len(lengths)])
        step(*inputs)
        best = math.inf
        for _ in range(repeats):
            begin = time.perf_counter()
            step(*inputs)
            best = min(best, time.perf_counter() - begin)
        seconds.append(max(best, 1e-9))  # above 0, because the fit divides by the seconds
    if not terms:
        raise ShapeError("measure_step_cost, batches", expected="at least one batch", got="none")
    return StepCost(*_fit(np.array(terms, np.float64), np.array(seconds)))


def _fit(terms: np.ndarray, seconds: np.ndarray) -> list[float]:
    """Return a factor of at least 0 for each column of `terms`: a least-squares fit of the relative errors."""
    relative = terms / seconds[:, None]
    factors, used = np.zeros(terms.shape[1]), list(range(terms.shape[1]))
    while used:
        found = np.linalg.lstsq(relative[:, used], np.ones(len(seconds)))[0]
        if (found >= 0).all():
            factors[used] = found
            break
        used.pop(int(np.argmin(found)))
    return factors.tolist()
