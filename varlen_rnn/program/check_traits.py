"""Whether an operator keeps the promises of its traits: its rows are taken, cut and added up, its numbers looked at."""

import itertools

import numpy as np

from varlen_rnn.errors import InputError
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of, take_sequences
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.tape.axes import follow, with_rows, without_rows
from varlen_rnn.tape.run import run
from varlen_rnn.tape.spec import describe

_TOLERANCE = 1e-9  # of sums in another order, and of numbers computed one by one, in float64
_MOST_NUMBERS = 50
_MOST_CHOICES = 512  # of which operands have rows, and along which axes


class Application:
    """An operator on values, whose traits are checked.

    Parameters
    ----------
    op : Op
    values : list of values, None where one is missing
    attrs : dict
    refuse : callable
        `refuse(what, expected, got)` raises the error of a broken promise.
    """

    def __init__(self, op, values, attrs, refuse):
        self.op, self.values, self.attrs, self.refuse = op, values, attrs, refuse
        self.tensors = [value for value in values if isinstance(value, LoDTensor)]

    def check(self):
        """Raise if a trait does not hold; return whether the trait of rows said anything about these values."""
        if self.op.linear:
            self._check_linear()
        if self.op.scalar is not None or self.op.ufunc:
            self._check_numbers()
        if self.op.rows is None or len(self.tensors) < sum(value is not None for value in self.values):
            return False
        return bool(sum(map(self._check_sequences, self._choices_of_sequences()))) or bool(
            sum(map(self._check_rows, self._choices_of_rows()))
        )

    def _run(self, values):
        return run(self.op, values, self.attrs)

    def _taken(self, what, values, take):
        """Return the outputs for some rows of the values; an error there is a broken promise."""
        try:
            return self._run([value if value is None else take(n, value) for n, value in enumerate(values)])
        except InputError as error:
            return self.refuse(what, "results of some of the rows", error)

    def _choices_of_rows(self):
        """Yield a number of rows, and for each operand the axis that has them, or None."""
        for count in sorted({size for tensor in self.tensors for size in tensor.shape if size > 1}):
            axes = [
                [None, *(axis for axis, size in enumerate(() if value is None else value.shape) if size == count)]
                for value in self.values
            ]
            for choice in itertools.islice(itertools.product(*axes), 1, _MOST_CHOICES):
                yield count, choice

    def _check_rows(self, given):
        count, axes = given
        values = [value if value is None else LoDTensor.wrap(value.data) for value in self.values]
        trait, outputs = follow(self.op, self.attrs, list(map(_known, values, axes)))
        if trait not in ("each", "sum"):
            return False
        what = f"rows={trait!r}, along {_text(self.op, axes)}"
        take = lambda rows: lambda n, value: value if axes[n] is None else _along(value, rows, axes[n])
        whole, order = self._run(values), np.random.default_rng(count).permutation(count)
        if trait == "sum":
            parts = [self._taken(what, values, take(rows)) for rows in np.array_split(order, 2)]
            for total, *some in zip(whole, *parts, strict=True):
                if not np.allclose(sum(part.data for part in some), total.data, _TOLERANCE, _TOLERANCE):
                    self.refuse(what, "the sum of the results of two halves of the rows", "another result")
            return True
        for rows in (order, order[: (count + 1) // 2], order[:1]):
            for some, all_rows, known in zip(self._taken(what, values, take(rows)), whole, outputs, strict=True):
                if not _same_bits(some.data, np.take(all_rows.data, rows, known.axis)):
                    self.refuse(what, f"of rows {rows.tolist()}, the bits that they have among all rows", "others")
        return True

    def _choices_of_sequences(self):
        """Yield a number of sequences, and for each operand the axis of its rows, or of an entry for each sequence."""
        counts = {len(levels_of(tensor.structure)[-1]) - 1 for tensor in self.tensors if tensor.num_levels}
        if len(counts) == 1:
            (count,) = counts
            axes = [_axes_of_states(value, count) for value in self.values]
            yield from ((count, choice) for choice in itertools.islice(itertools.product(*axes), _MOST_CHOICES))

    def _check_sequences(self, given):
        count, axes = given
        values = [value if value is None else _of_last_level(value) for value in self.values]
        trait, outputs = follow(self.op, self.attrs, list(map(_known, values, axes)))
        if trait != "sequence":
            return False
        what, whole = f"rows='sequence', {count} sequences", self._run(values)
        order = np.random.default_rng(count).permutation(count)
        for chosen in (order, order[: (count + 1) // 2]):
            take = lambda n, value, chosen=chosen: (
                _sequences(value, chosen) if value.num_levels
                else value if axes[n] is None else _along(value, chosen, axes[n])
            )  # fmt: skip
            for some, all_rows, known in zip(self._taken(what, values, take), whole, outputs, strict=True):
                if known is None:
                    continue
                wanted = _sequences(all_rows, chosen) if known.depth else _along(all_rows, chosen, known.axis)
                if not _same_bits(some.data, wanted.data) or some.structure != wanted.structure:
                    self.refuse(what, f"of sequences {chosen.tolist()}, the bits that they have among all", "others")
        return True

    def _check_linear(self):
        places = [n for n, value in enumerate(self.values) if value is not None and self.op.is_linear_in(n)]
        if not all(isinstance(self.values[n], LoDTensor) and self.values[n].dtype.kind == "f" for n in places):
            return
        rng, first, second, both = np.random.default_rng(0), list(self.values), list(self.values), list(self.values)
        for n in places:
            value = self.values[n]
            second[n] = value.like(rng.standard_normal(value.shape).astype(value.dtype))
            both[n] = value.like(value.data + second[n].data)
        for of_sum, one, other in zip(*map(self._run, (both, first, second)), strict=True):
            if not np.allclose(_dense(of_sum), _dense(one) + _dense(other), _TOLERANCE, _TOLERANCE):
                self.refuse(f"linear={self.op.linear}", "the sum of the results of two operands", "another result")

    def _check_numbers(self):
        arrays = [value.data for value in self.values]
        (found, *_) = self._run(self.values)
        for ufunc in self.op.ufunc:
            if not np.array_equal(ufunc(*arrays), found.data, equal_nan=True):
                self.refuse(f"ufunc=np.{ufunc.__name__}", "what NumPy returns", "other numbers")
        if self.op.scalar is None or any(array.dtype.kind not in "bf" for array in arrays):
            return
        operands = [np.broadcast_to(array, found.shape).ravel() for array in arrays]
        for numbers in zip(found.data.ravel()[:_MOST_NUMBERS].tolist(), *(a.tolist() for a in operands), strict=False):
            got = self.op.scalar(*numbers[1:], **self.attrs)
            if not np.isclose(got, numbers[0], _TOLERANCE, _TOLERANCE):
                self.refuse(f"scalar of {numbers[1:]}", f"{numbers[0]}, as the operator", got)


def _known(value, axis):
    if axis is None:
        return without_rows(None if value is None else describe(value))
    return with_rows(describe(value), axis, 1 if value.num_levels else 0)


def _axes_of_states(value, count):
    """Return the axes along which a value may have an entry for each sequence; of rows with a LoD, the first."""
    if value is None or value.num_levels:
        return [None if value is None else 0]
    return [None, *(axis for axis, size in enumerate(value.shape) if axis and size == count)]


def _text(op, axes):
    return ", ".join(f"axis {axis} of {op.input_name(n)}" for n, axis in enumerate(axes) if axis is not None)


def _dense(value):
    return value.to_dense() if isinstance(value, SelectedRows) else value.data


def _along(value, rows, axis):
    return LoDTensor.wrap(np.ascontiguousarray(np.take(value.data, rows, axis)))


def _of_last_level(value):
    return LoDTensor.wrap(value.data, LoD(levels_of(value.structure)[-1:])) if value.num_levels else value


def _sequences(value, chosen):
    lod, rows = take_sequences(value.structure, chosen)
    return LoDTensor.wrap(np.take(value.data, rows, 0), lod)


def _same_bits(found, wanted):
    return found.shape == wanted.shape and found.tobytes() == np.ascontiguousarray(wanted).tobytes()
