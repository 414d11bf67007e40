"""Boxes of counts in which the words of a program's calls are affine in the counts, found by dry runs.

For example, an LSTM of 32 units has the word `32 * rows` in the box of 1 to 65536 rows and 1 to 4096 sequences.  A
batch without rows takes other kernels, so it is in another box.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from varlen_rnn.c_library.runs import Refused, Run
from varlen_rnn.runtime.affine import Affine, fit

Point = tuple[int, ...]
_MOST_BOXES = 64
_INSIDE = 8  # points inside of a box whose dry runs are compared with its words


class Box(NamedTuple):
    """The calls of a program for all counts between `low` and `high`, both included.

    run: the Run at the corner `high`
    numbers: the values of all words, one call after another, then the bytes of slots, then the shapes of fetches
    """

    low: Point
    high: Point
    run: Run
    numbers: Affine


class Boxes:
    """Makes Boxes; `run(counts)` makes a dry run, or raises Refused."""

    def __init__(self, run: Callable[[Point], Run]) -> None:
        self._run = run
        self._runs: dict[Point, Run | str] = {}  # a text says why there is no run
        self._refusal = ""  # why the last box was refused

    def cover(self, high: Point) -> Iterator[Box]:
        """Yield Boxes that cover the counts from 0 to `high`.

        Raise Refused if an operator refuses some counts, or if too many boxes were needed.  Counts with a zero are left
        out if an operator refuses them when all others are 1.
        """
        todo = []
        for zeros in itertools.product((True, False), repeat=len(high)):
            low = tuple(0 if zero else 1 for zero in zeros)
            if not any(zeros) or self._box(low, low) is not None:
                todo.append((low, tuple(0 if zero else most for zero, most in zip(zeros, high, strict=True))))
        made = 0
        while todo:
            low, high = todo.pop()
            if (box := self._box(low, high)) is not None:
                yield box
                made += 1
            elif low == high or made + len(todo) > _MOST_BOXES:
                raise Refused(self._refusal)
            else:
                todo += self._halves(low, high)

    def _halves(self, low, high):
        """Return two boxes, cut at the count from which on the words of the corner `low` do not hold."""
        axes = sorted(range(len(low)), key=lambda axis: low[axis] - high[axis])
        ends = ((axis, self._end(low, high, axis)) for axis in axes)
        middle = axes[0], (low[axes[0]] + high[axes[0]]) // 2
        axis, end = next((one for one in ends if one[1] < high[one[0]]), middle)
        return [(_with(low, axis, end + 1), high), (low, _with(high, axis, end))]

    def _end(self, low, high, axis):
        """Return the last count along an axis, from the corner `low` on, up to which the same words hold."""
        good, bad = low[axis], high[axis] + 1
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (good, middle) if self._box(low, _with(low, axis, middle)) is None else (middle, bad)
        return good

    def _box(self, low, high):
        """Return the Box of these counts, or None if a dry run in it is refused or has other words."""
        try:
            return self._fitted(low, high)
        except Refused as refused:
            self._refusal = str(refused)
            return None

    def _fitted(self, low, high):
        axes = [axis for axis in range(len(low)) if high[axis] > low[axis]]
        chosen = np.random.default_rng(0)
        points = [high, *[_with(high, axis, (low[axis] + high[axis]) // 2) for axis in axes]]
        points += itertools.product(*[sorted({a, b}) for a, b in zip(low, high, strict=True)])
        points += [tuple(min(a + step, b) for a, b in zip(low, high, strict=True)) for step in (1, 2)]
        points += [
            tuple(int(chosen.integers(a, b + 1)) for a, b in zip(low, high, strict=True)) for _ in range(_INSIDE)
        ]
        runs = [self._found(point) for point in points]
        forms = [_form_of(run) for run in runs]
        for form in forms:
            if form != forms[0]:
                raise Refused(_difference(forms[0], form))
        varying = np.array([[point[axis] for axis in axes] for point in points], np.int64)
        found = np.array([_numbers_of(run) for run in runs], np.int64)
        numbers, wrong = fit(varying, found, np.array([_unread_of(run) for run in runs]))
        if wrong is not None:
            raise Refused(_told(runs[0], wrong))
        coefficients = np.zeros((len(numbers.varying), len(low)), np.int64)
        coefficients[:, axes] = numbers.coefficients
        return Box(low, high, runs[0], numbers._replace(coefficients=coefficients))

    def _found(self, point):
        if point not in self._runs:
            try:
                self._runs[point] = self._run(point)
            except Refused as refused:
                self._runs[point] = str(refused)
        found = self._runs[point]
        if isinstance(found, str):
            raise Refused(found)
        return found


def _with(point, axis, count):
    return (*point[:axis], count, *point[axis + 1 :])


def _form_of(run):
    """Return the parts of a Run that are equal in all runs of a box: all but the numbers."""
    calls = [(*call[:3], [word[:2] for word in call.words]) for call in run.calls]
    return calls, run.roles, [(array.shape, array.tobytes()) for array in run.constants]


def _difference(form, other):
    for one, another in zip(form[0], other[0], strict=False):
        if one != another:
            return f"operator {one[0]!r}: another size calls kernel {another[1]}, or other arrays"
    return "another size calls more kernels, or has other constants"


def _numbers_of(run):
    words = [word.value for call in run.calls for word in call.words]
    return words + run.sizes + [size for shape in run.shapes for size in shape]


def _unread_of(run):
    """Return for each of the numbers that `_numbers_of` returns whether nobody reads it."""
    words = [position in call.unread for call in run.calls for position in range(len(call.words))]
    return words + [False] * (len(_numbers_of(run)) - len(words))


def _told(run, position):
    for call in run.calls:
        if position < len(call.words):
            where = f"operator {call.operator!r}: kernel {call.kernel}"
            return f"{where} takes a number, word {position}, that is not affine in the counts"
        position -= len(call.words)
    return "the size of a workspace or of a fetch is not affine in the counts"
