"""Join the losses of several batches into the loss of one batch that has all their rows.

An example: batches of 40, 2, 3 and 50 rows have the mean losses a, b, c and d.  The mean over all rows is
`(40 a + 2 b + 3 c + 50 d) / 95`, and so is its gradient.  The counts (40, 2, ...) are found from the operators of each
loss, because a mean can be over rows, sequences, elements or weights.  Losses that are sums are added.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from varlen_rnn.distributed.reductions import count_of, divisors_of, part_of, terms_of
from varlen_rnn.errors import InputError, ProgramError, warn
from varlen_rnn.ops.clip import multiplied
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.tape.gradient import reachable
from varlen_rnn.tape.modes import recorder
from varlen_rnn.tape.spec import VALUES
from varlen_rnn.tape.values import plain
from varlen_rnn.tape.variable import Variable, apply


class JoinedLoss:
    """The loss of the batches so far.

    total: the sum over batches of loss times count
    count: the sum of the counts over which means were taken: rows, sequences, elements or weights
    losses: the sum of the losses
    has_sums: whether the loss of some batch is a sum; then the losses of all batches are added
    """

    def __init__(self, total: float = 0.0, count: float = 0.0, losses: float = 0.0, has_sums: bool = False) -> None:
        self.total, self.count, self.losses, self.has_sums, self._first = total, count, losses, has_sums, 0.0

    def factor(self, count: float | None) -> float:
        """Return the factor for the next batch's gradients: its count divided by the first batch's count."""
        if not count:
            return 1.0 if count is None else 0.0
        self._first = self._first or count
        return count / self._first

    def add(self, loss: float, count: float | None) -> None:
        """Add the loss of a batch: a mean over `count` entries, or a sum if `count` is None."""
        if count is None:
            self.losses, self.has_sums = self.losses + loss, True
        elif count:
            self.total, self.count, self.losses = self.total + loss * count, self.count + count, self.losses + loss

    def join(self, other: JoinedLoss) -> None:
        """Add the batches of another joined loss."""
        self.total, self.count = self.total + other.total, self.count + other.count
        self.losses, self.has_sums = self.losses + other.losses, self.has_sums or other.has_sums

    def state(self) -> tuple[float, float, float, bool]:
        """Return the arguments that make an equal JoinedLoss."""
        return self.total, self.count, self.losses, self.has_sums

    def value(self) -> float:
        """Return the loss of all batches."""
        return self.total / self.count if self.count and not self.has_sums else self.losses

    def finish(self, parameters: Iterable[Variable]) -> None:
        """Divide the gradients of all batches, which were multiplied by `factor`, by the count of all batches."""
        factor = self._first / self.count if self.count and not self.has_sums else 1.0
        for parameter in parameters if factor != 1.0 else ():
            if parameter.grad is not None:
                value = parameter.grad if isinstance(parameter.grad, VALUES) else LoDTensor.wrap(parameter.grad)
                parameter.grad = plain(multiplied(value, factor))


def _is_trainable(leaf: Variable | None) -> bool:
    return leaf is not None and leaf.requires_grad  # parameters, which are the same in all batches


class Counting:
    """Finds the counts by which losses were divided, in one process.

    It warns once if sums are divided by whole numbers that differ between batches, because it cannot find the origin of
    such numbers, for example the entries of a NumPy mask.
    """

    def __init__(self) -> None:
        self._numbers: list[float] = []
        self._has_warned = False

    def count(self, loss: Variable) -> float | None:
        """Return the count over which a loss is a mean, or None if the loss is a sum.

        The count is 1 if the rows of a loss depend on each other, because several batches then have no joint loss.
        """
        records = reachable([loss])
        try:
            terms = terms_of([loss], records, _is_trainable)
        except InputError:  # a user's operator may lack a trait that only ranks need
            return 1.0
        count = 1.0 if terms.trouble else count_of(terms, part_of(terms, records))
        if count is None and not self._has_warned:
            self._compare([number for number in divisors_of(terms)[1] if number.is_integer()])
        return count

    def in_step(self, loss: Variable) -> Variable | None:
        """Return the count, as `count` does, as a Variable of float64; `vr.bound` can record this."""
        if recorder() is None:
            count = self.count(loss)
            return None if count is None else Variable(np.float64(count))
        hint = "use mean(), or bound=False"
        try:
            terms = terms_of([loss], reachable([loss]), _is_trainable)
        except ProgramError as error:  # numbers decide whether rows were added
            got = "a loss whose kind depends on numbers"
            raise ProgramError("Trainer, loss", expected="a mean or a sum", got=got, hint=hint) from error
        if terms.trouble or not terms.reductions:
            return apply("fill_constant", shape=(), value=1.0, dtype="float64")
        mean = next((one for one in terms.reductions if one.op.type in ("reduce_mean", "weighted_mean")), None)
        if mean is not None:
            x, *weight = mean.inputs
            counted = weight[0] if weight else apply("equal", x.detach(), x.detach())  # a mean of NaN is an error
            return apply("cast", counted, dtype="float64").sum()
        if any(record.op.type in ("div", "mul") for record in terms.tail):
            got = "a sum times a number"
            raise ProgramError("Trainer, loss", expected="a mean or a sum", got=got, hint=hint)
        return None

    def _compare(self, numbers: list[float]) -> None:
        if len(numbers) == len(self._numbers) and numbers != self._numbers:
            self._has_warned = True
            expected = "a sum divided by a number of rows, elements or sequences, or by the sum of a Variable"
            got = f"a sum divided by {self._numbers[0]:g}, then by {numbers[0]:g}"
            hint = "the losses of batches are now added; use mean(), sample_weight=, or a mask in vr.Variable"
            warn("Trainer, loss", expected=expected, got=got, hint=hint)
        self._numbers = numbers
