"""Losses of several batches as the loss of one batch that has all their rows.

An example: batches of 40, 2, 3 and 50 rows have the mean losses a, b, c and d.  The mean over all rows is
`(40 a + 2 b + 3 c + 50 d) / 95`, and so is its gradient.  The counts come from the losses themselves, because a mean
may be over rows, sequences, elements or weights.  Sums are added.
"""

from __future__ import annotations

from collections.abc import Iterable

from varlen_rnn.distributed.reductions import count_of, terms_of, weight_of
from varlen_rnn.errors import InputError
from varlen_rnn.ops.clip import multiplied
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.tape.gradient import Record, reachable
from varlen_rnn.tape.operator import Op
from varlen_rnn.tape.spec import VALUES
from varlen_rnn.tape.values import plain
from varlen_rnn.tape.variable import Variable


class JoinedLoss:
    """The loss of the batches so far.

    Attributes
    ----------
    total : float
        The sum of the losses, each times its count.
    count : float
        The sum of the counts of means: rows, sequences, elements or weights.  It is 0 for sums.
    """

    def __init__(self, total: float = 0.0, count: float = 0.0) -> None:
        self.total, self.count, self._first = total, count, 0.0

    def factor(self, count: float | None) -> float:
        """Return the factor of the gradients of the next batch, so that all gradients have the same unit."""
        if not count:
            return 1.0 if count is None else 0.0
        self._first = self._first or count
        return count / self._first

    def add(self, loss: float, count: float | None) -> None:
        """Add the loss of a batch: a mean over `count`, or a sum if that is None."""
        if count is None:
            self.total += loss
        elif count:
            self.total, self.count = self.total + loss * count, self.count + count

    def join(self, other: JoinedLoss) -> None:
        """Add the batches of another joined loss."""
        self.total, self.count = self.total + other.total, self.count + other.count

    def value(self) -> float:
        """Return the loss of all batches."""
        return self.total / self.count if self.count else self.total

    def finish(self, parameters: Iterable[Variable]) -> None:
        """Divide the gradients of all batches, which were multiplied by `factor`, by the count of all batches."""
        factor = self._first / self.count if self.count else 1.0
        for parameter in parameters if factor != 1.0 else ():
            if parameter.grad is not None:
                value = parameter.grad if isinstance(parameter.grad, VALUES) else LoDTensor.wrap(parameter.grad)
                parameter.grad = plain(multiplied(value, factor))


class Counting:
    """Finds the counts by which a loss was divided, in one process.

    All losses of a training are computed alike.  So only the first loss is analysed.  In later ones, the sums and means
    are reached by the same operators.
    """

    def __init__(self) -> None:
        self._path: list[tuple[Op, bool]] | None = None  # operators from the loss on, and whether each is a sum or mean
        self._has_count = True

    def count(self, loss: Variable) -> float | None:
        """Return the count of a loss that is a mean, None for a sum.

        It is 1 for a loss whose rows depend on each other, because batches have no such loss in common.
        """
        if not self._has_count or loss.record is None:
            return 1.0
        found = None if self._path is None else self._again(loss.record)
        if found is None:
            found = self._find(loss)
        return count_of([weight_of(record) for record in found[0]], found[1])

    def _again(self, record: Record) -> tuple[list[Record], list[Record]] | None:
        """Return the sums and means of a loss and the records after them, or None if other operators computed it."""
        found, tail, seen, stack, path = [], [], set(), [record], iter(self._path or ())
        while stack:
            record = stack.pop()
            if record.number in seen:
                continue
            seen.add(record.number)
            op, is_reduction = next(path, (None, False))
            if op is not record.op:
                return None
            if is_reduction:
                found.append(record)
            else:
                tail.append(record)
                stack += _before(record)
        return sorted(found, key=lambda record: record.number), tail

    def _find(self, loss: Variable) -> tuple[list[Record], list[Record]]:
        try:
            terms = terms_of([loss], reachable([loss]), _is_common)
        except InputError:  # of a user's trait, which only ranks must know
            terms = None
        self._has_count = terms is not None and not terms.trouble
        if terms is None or not self._has_count:
            return [], []
        numbers, self._path = {record.number for record in terms.reductions}, []
        seen, stack = set(), [loss.record]
        while stack:
            record = stack.pop()
            if record is not None and record.number not in seen:
                seen.add(record.number)
                self._path.append((record.op, record.number in numbers))
                stack += () if record.number in numbers else _before(record)
        return terms.reductions, terms.tail


def _before(record: Record) -> list[Record]:
    return [v.record for v in record.inputs if v is not None and v.record is not None]


def _is_common(variable: Variable | None) -> bool:
    """Return whether a leaf is a parameter, which all batches have in common."""
    return variable is not None and variable.requires_grad
