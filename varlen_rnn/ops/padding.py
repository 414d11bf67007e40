"""Move rows into a padded batch and back, for `baselines.Padded`: compute the positions of rows, and take rows."""

from typing import NamedTuple

import numpy as np

from varlen_rnn.errors import OutOfRangeError
from varlen_rnn.ops.cost import nothing, per_taken_element
from varlen_rnn.ops.examples import rows
from varlen_rnn.ops.sequence.taken import rows_taken, rows_taken_grad
from varlen_rnn.rows.lod import LoD, LoDTensor
from varlen_rnn.runtime.device import beside, host_numbers
from varlen_rnn.tape.checks import check_float, check_integer, check_lod_level, check_rank
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import Variable

# Take rows by index.


@operator(cost=nothing, rows="batch", shares=True)
def take_rows(x, index):
    """Return `x[index]`, with a row of zeros for an index of -1; the result has the LoD of the index."""
    places = _places(index, len(x.data))
    if _stay(places, len(x.data)):
        return index.like(x.data)
    return index.like(rows_taken(x.data, places))


@take_rows.infer
def _infer(x, index):
    check_float("take_rows", x=x)
    check_integer("take_rows", index=index)
    check_rank("take_rows", "x", x, 2)
    check_rank("take_rows", "index", index, 1)
    return x._replace(shape=(index.shape[0], x.shape[1]), lod_level=index.lod_level)


def _places(index, height):
    """Return the index as int64; raise if it is out of range, because kernels use it unchecked."""
    places = np.ascontiguousarray(host_numbers(index.data), np.int64)
    if places.size and not (-1 <= places.min() and places.max() < height):
        raise OutOfRangeError("take_rows, index", expected=f"-1 <= index < {height}, x's number of rows", got=places)
    return places


def _stay(places, height):
    """Return whether an index takes all rows in their order, so that the result can be a view."""
    return len(places) == height and np.array_equal(places, np.arange(height))


@take_rows.backward("x", cost=per_taken_element)
def _take_rows_grad(x, index, d_out):
    places = _places(index, len(x.data))
    return x.like(d_out.data if _stay(places, len(x.data)) else rows_taken_grad(d_out.data, places, len(x.data)))


@take_rows.examples
def _examples(rng):
    for index in ([2, -1, 0], [2, -1, 2, 0], [0, 1, 2, 3]):
        yield [rng.standard_normal((4, 2)), np.array(index)], {}


# Compute positions of rows: a padded batch has `steps` places for each sequence; places after its end are padding.


def places_of_rows(offsets, steps, reverse=False):
    """Return the row at each place of a padded batch, `(sequences, steps)`, or -1 at a place of padding.

    Examples
    --------
    >>> places_of_rows(np.array([0, 2, 2, 5]), 3)
    array([[ 0,  1, -1],
           [-1, -1, -1],
           [ 2,  3,  4]])
    """
    lengths, step = np.diff(offsets)[:, None], np.arange(steps)
    rows = offsets[:-1, None] + (lengths - 1 - step if reverse else step)
    return np.where(step < lengths, rows, -1)


def rows_at_places(places):
    """Return the place of each row, as a position in `places.ravel()`."""
    places = places.ravel()
    taken = np.flatnonzero(places >= 0)
    back = np.empty(len(taken), np.int64)
    back[places[taken]] = taken
    return back


class Rectangle(NamedTuple):
    """The outputs of the operator `rectangle`.

    pad: the row for each place of the padded batch, or -1 for padding
    unpad: for each row, its place in the padded batch
    last: the place of the last step of each sequence, or -1 if the sequence is empty
    is_empty: (sequences, 1), 1 for each sequence that is empty, otherwise 0
    """

    pad: Variable
    unpad: Variable
    last: Variable
    is_empty: Variable


@operator(outputs=Rectangle._fields, cost=nothing, rows="batch", gradient=False)
def rectangle(x, reverse: bool):
    """Return a Rectangle: the indices that move rows into a padded batch and back; `reverse` puts last steps first."""
    offsets = x.structure.levels[-1]
    lengths = np.diff(offsets)
    num_sequences, steps = len(lengths), int(lengths.max(initial=0))
    places = places_of_rows(offsets, steps, reverse)
    last = np.where(lengths > 0, np.arange(num_sequences) * steps + lengths - 1, -1)
    is_empty = (lengths == 0)[:, None].astype(x.dtype)
    pad, back, last, is_empty = (
        beside(numbers, x.data) for numbers in (places.ravel(), rows_at_places(places), last, is_empty)
    )
    lod = LoD([np.arange(num_sequences + 1) * steps])
    return LoDTensor.wrap(pad, lod), x.like(back), LoDTensor.wrap(last), LoDTensor.wrap(is_empty)


@rectangle.infer
def _infer_rectangle(x, reverse):
    check_float("rectangle", x=x)
    check_lod_level("rectangle", "x", x)
    rows = TensorSpec((-1,), np.dtype(np.int64))
    return rows._replace(lod_level=1), rows._replace(lod_level=x.lod_level), rows, TensorSpec((-1, 1), x.dtype)


@rectangle.examples
def _examples_of_rectangle(rng):
    for reverse in (False, True):
        yield [rows(rng, 3)], {"reverse": reverse}
