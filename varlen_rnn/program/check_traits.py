"""Check an operator's traits: permute, cut and add up the rows of its examples, and compare the results."""

import functools
import itertools

import numpy as np

from varlen_rnn.errors import InputError
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of, take_sequences
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.tape.axes import divide, follow, with_rows, without_rows
from varlen_rnn.tape.run import run
from varlen_rnn.tape.spec import describe

_OF_FUNCTION = 1e-14  # relative error of a function in float64 whose loop is ours
_TOLERANCE = 1e-9  # relative error in float64: sums in another order, and scalar functions compared with arrays
_MOST_NUMBERS = 50
_MOST_CHOICES = 512  # the most choices of row axes, an axis or None for each operand, that are tried


class Application:
    """An operator whose traits are checked on `values` (None if missing); `refuse(subject, expected, got)` raises."""

    def __init__(self, op, values, attrs, refuse):
        self.op, self.values, self.attrs, self.refuse = op, values, attrs, refuse

    def check(self):
        """Raise if a trait does not hold; return whether the trait `rows` promises anything for these values."""
        if self.op.linear:
            self._check_linear()
        if self.op.scalar is not None or self.op.ufunc:
            self._check_numbers()
        if self.op.rows is None:
            return False
        if callable(self.attrs) or not all(value is None or isinstance(value, LoDTensor) for value in self.values):
            return self.op.rows == "batch"  # neither a plan nor a nested block can be cut
        choices = self._choices(lambda axis, size: size in self.cuts)
        claimed = [self._check_ranks(axes) for axes in choices if set(axes) != {None}]
        sequences, rows = (_of_last_level, {"sequence"}), (lambda value: LoDTensor.wrap(value.data), {"each", "sum"})
        claimed += [self._check_rows(*sequences, *choice) for choice in self._choices_of_sequences()]
        return any(claimed) or any([self._check_rows(*rows, *choice) for choice in self._choices_of_rows()])

    def _run(self, values):
        return run(self.op, values, self.attrs)

    def _choices_of_rows(self):
        """Yield pairs: a number of rows, and for each operand an axis with this number of entries, or None."""
        shapes = [() if value is None else value.shape for value in self.values]
        for count in sorted({size for shape in shapes for size in shape if size > 1}):
            axes = [[None, *(axis for axis, size in enumerate(shape) if size == count)] for shape in shapes]
            yield from ((count, choice) for choice in itertools.islice(itertools.product(*axes), 1, _MOST_CHOICES))

    def _choices_of_sequences(self):
        """Yield pairs: a number of sequences, and for each operand its axis of rows or of sequences, or None."""
        levels = [levels_of(value.structure)[-1] for value in self.values if value is not None and value.num_levels]
        for count in {len(offsets) - 1 for offsets in levels}:
            choices = self._choices(lambda axis, size, count=count: axis > 0 and size == count)
            yield from ((count, choice) for choice in choices)

    def _choices(self, fits):
        """Return choices of an axis per operand: 0 if the operand has a LoD, otherwise an axis that fits, or None."""
        axes = [
            [None] if value is None else [0] if value.num_levels
            else [None, *(axis for axis, size in enumerate(value.shape) if fits(axis, size))]
            for value in self.values
        ]  # fmt: skip
        return itertools.islice(itertools.product(*axes), _MOST_CHOICES)

    def _check_rows(self, prepared, traits, count, axes):
        """Raise if the trait fails for the given axes of rows; return whether the operator declares a trait there."""
        values = [value if value is None else prepared(value) for value in self.values]
        trait, outputs = follow(self.op, self.attrs, list(map(_known, values, axes)))
        if trait not in traits:
            return False
        subject = self._subject(trait, axes)
        whole, order = self._run(values), np.random.default_rng(count).permutation(count)
        parts = order, *np.array_split(order, 2)
        try:
            found = [self._run([_taken(*pair, chosen) for pair in zip(values, axes, strict=True)]) for chosen in parts]
        except InputError as error:
            self.refuse(subject, "results for a part of the rows", error)
        if trait == "sum":
            for total, first, second in zip(whole, found[1], found[2], strict=True):
                if not np.allclose(first.data + second.data, total.data, _TOLERANCE, _TOLERANCE):
                    self.refuse(subject, "the sum of the results of two halves of the rows", "another result")
            return True
        for chosen, results in zip(parts, found, strict=True):
            for known, result, of_all in zip(outputs, results, whole, strict=True):
                if known is not None and not _is_same(result, _taken(of_all, known.axis, chosen)):
                    expected = f"the same bits for rows {chosen.tolist()} alone as among all rows"
                    self.refuse(subject, expected, "other bits")
        return True

    def _subject(self, trait, axes):
        where = [f"axis {axis} of {self.op.input_name(n)}" for n, axis in enumerate(axes) if axis is not None]
        return f"rows={trait!r}, along {', '.join(where)}"

    def _check_ranks(self, axes):
        """Raise if two halves of the batch give other results than the whole; return whether they were compared."""
        # In training, the ranks (processes) share random numbers and moments, so separate parts cannot be compared.
        is_training = any(self.attrs.get(name, value) != value for name, value in self.op.inference.items())
        specs = [None if value is None else describe(value) for value in self.values]
        trait, outputs = divide(self.op, self.attrs, specs, axes, 1)
        is_mean = trait == "sum" and self.op.divisor is not None and len(axes) == 1
        if is_training or not (is_mean or trait == "batch"):
            return False
        parts = [[self._part(*pair, rank) for pair in zip(self.values, axes, strict=True)] for rank in (0, 1)]
        try:
            whole, first, second = map(self._run, (self.values, *parts))
        except InputError:  # an operand has positions of rows of the other half
            return False
        if is_mean:
            total, *weights = (self.op.divisor(*given, **self.attrs) or 1 for given in (self.values, *parts))
            found = (first[0].data * weights[0] + second[0].data * weights[1]) / total
            is_right = np.allclose(found, whole[0].data, _TOLERANCE, _TOLERANCE)
        else:
            places = self.op.output_places(len(axes), len(whole), self.attrs)
            results = zip(places, whole, first, second, strict=True)
            compared = [given for place, *given in results if place not in self.op.intermediate]
            is_right = all(_are_of_parts(outputs[0].axis, *given) for given in compared)
        if not is_right:
            self.refuse(self._subject(trait, axes), "the results of two parts of the batch", "other results")
        return True

    @functools.cached_property
    def cuts(self):
        """{number of entries (rows, or sequences of a level): position at which the second half of them begins}.

        The first half has half of the outermost sequences, or half of the rows if there are no sequences.
        """
        found: dict[int, int] = {}
        given = [value for value in self.values if value is not None]
        for levels in [levels_of(value.structure) for value in given if value.num_levels]:
            at = (len(levels[0]) - 1) // 2
            for offsets in (np.arange(len(levels[0])), *levels):
                at = int(offsets[at])
                found.setdefault(int(offsets[-1]), at)
        return found or {size: size // 2 for value in given for size in value.shape if size > 1}

    def _part(self, value, axis, rank):
        if axis is None:
            return value
        if value.num_levels:
            half, count = value.num_elements() // 2, value.num_elements()
            return value.slice(0, half * rank, count if rank else half)
        return LoDTensor.wrap(np.ascontiguousarray(np.split(value.data, [self.cuts[value.shape[axis]]], axis)[rank]))

    def _check_linear(self):
        places = [n for n, value in enumerate(self.values) if value is not None and self.op.is_linear_in(n)]
        if not all(isinstance(self.values[n], LoDTensor) and self.values[n].dtype.kind == "f" for n in places):
            return
        rng, second, both = np.random.default_rng(0), list(self.values), list(self.values)
        for n in places:
            value = self.values[n]
            second[n] = value.like(rng.standard_normal(value.shape).astype(value.dtype))
            both[n] = value.like(value.data + second[n].data)
        for of_sum, *parts in zip(*map(self._run, (both, self.values, second)), strict=True):
            if not np.allclose(_dense(of_sum), sum(map(_dense, parts)), _TOLERANCE, _TOLERANCE):
                self.refuse(f"linear={self.op.linear}", "the sum of the results of two operands", "another result")

    def _check_numbers(self):
        arrays = [value.data for value in self.values]
        (found, *_) = self._run(self.values)
        for ufunc in self.op.ufunc:
            if not np.allclose(ufunc(*arrays), found.data, _OF_FUNCTION, 0, equal_nan=True):
                self.refuse(f"ufunc=np.{ufunc.__name__}", "the numbers of NumPy", "other numbers")
        if self.op.scalar is None or any(array.dtype.kind not in "bf" for array in arrays):
            return
        operands = [np.broadcast_to(array, found.shape).ravel().tolist() for array in arrays]
        for wanted, *numbers in zip(found.data.ravel()[:_MOST_NUMBERS].tolist(), *operands, strict=False):
            got = self.op.scalar(*numbers, **self.attrs)
            if not np.isclose(got, wanted, _TOLERANCE, _TOLERANCE):
                self.refuse(f"scalar of {numbers}", f"{wanted}, as the operator computes", got)


def _known(value, axis):
    if axis is None:
        return without_rows(None if value is None else describe(value))
    return with_rows(describe(value), axis, 1 if value.num_levels else 0)


def _taken(value, axis, chosen):
    """Return the `chosen` entries along an axis, or the `chosen` sequences of a value with a LoD."""
    if axis is None:
        return value
    if not value.num_levels:
        return LoDTensor.wrap(np.ascontiguousarray(np.take(value.data, chosen, axis)))
    lod, rows = take_sequences(value.structure, chosen)
    return LoDTensor.wrap(np.take(value.data, rows, 0), lod)


def _of_last_level(value):
    return LoDTensor.wrap(value.data, LoD(levels_of(value.structure)[-1:])) if value.num_levels else value


def _is_same(value, wanted):
    arrays = value.data, wanted.data
    return (
        value.structure == wanted.structure
        and arrays[0].shape == arrays[1].shape
        and (np.ascontiguousarray(arrays[0]).tobytes() == arrays[1].tobytes())
    )


def _are_of_parts(axis, whole, first, second):
    """Return whether a result has the rows of the results of two parts, in any order; True if they cannot be compared.

    Integers cannot be compared, because they can be positions of rows in a part; nor can results of other widths.
    """
    if not isinstance(whole, LoDTensor) or not whole.shape or whole.dtype.kind != "f":
        return True
    of_all, *found = (np.moveaxis(one.data, axis, 0) for one in (whole, first, second))
    if {one.shape[1:] for one in found} != {of_all.shape[1:]}:
        return True
    return sorted(row.tobytes() for part in found for row in part) == sorted(row.tobytes() for row in of_all)


def _dense(value):
    return value.to_dense() if isinstance(value, SelectedRows) else value.data
