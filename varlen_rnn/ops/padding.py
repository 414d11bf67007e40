"""Into a padded batch and back: where rows go, and rows by index, some of them zeros.  For `baselines.Padded`."""

from typing import NamedTuple

import numpy as np

from varlen_rnn.device import empty
from varlen_rnn.errors import OutOfRangeError
from varlen_rnn.kernels.rows import gather_rows, scatter_add_rows
from varlen_rnn.lod import LoD, LoDTensor
from varlen_rnn.ops.cost import nothing, size
from varlen_rnn.ops.examples import rows
from varlen_rnn.ops.sequence.pad import places_of_rows, rows_at_places
from varlen_rnn.tape.checks import check_float, check_integer, check_lod_level, check_rank
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import Variable

# Rows by index.


@operator(cost=nothing)
def take_rows(x, index):
    """Return `x[index]`, a zero row where the index is -1; the result has the LoD of the index."""
    places = _places(index, len(x.data))
    if _stay(places, len(x.data)):
        return index.like(x.data)
    out = empty((len(places), x.shape[1]), x.data)
    gather_rows(np.ascontiguousarray(x.data), places, out)
    return index.like(out)


@take_rows.infer
def _infer(x, index):
    check_float("take_rows", x=x)
    check_integer("take_rows", index=index)
    check_rank("take_rows", "x", x, 2)
    check_rank("take_rows", "index", index, 1)
    return x._replace(shape=(index.shape[0], x.shape[1]), lod_level=index.lod_level)


def _places(index, height):
    """Return the index as int64; kernels use it unchecked."""
    places = np.ascontiguousarray(index.data, np.int64)
    if places.size and not (-1 <= places.min() and places.max() < height):
        raise OutOfRangeError("take_rows, index", expected=f"-1 <= index < {height}, the rows of x", got=places)
    return places


def _stay(places, height):
    """Return whether all rows are taken in their order: then the result is a view, as that of `reshape`."""
    return len(places) == height and np.array_equal(places, np.arange(height))


def _additions(inputs, outputs):
    """1 per element of the rows that were taken."""
    return size(inputs[2])


@take_rows.backward("x", cost=_additions)
def _take_rows_grad(x, index, d_out):
    places = _places(index, len(x.data))
    if _stay(places, len(x.data)):
        return x.like(d_out.data)
    d_x, d_rows = empty(x.shape, x.data), np.ascontiguousarray(d_out.data)
    taken = np.flatnonzero(places >= 0)
    origin = np.full(len(d_x), -1)
    origin[places[taken]] = taken
    if np.count_nonzero(origin >= 0) == len(taken):  # no row was taken twice: each gradient is one row, or zeros
        gather_rows(d_rows, origin, d_x)
    else:
        d_x[...] = 0
        scatter_add_rows(d_rows[taken], places[taken], d_x)
    return x.like(d_x)


@take_rows.examples
def _examples(rng):
    for index in ([2, -1, 0], [2, -1, 2, 0], [0, 1, 2, 3]):
        yield [rng.standard_normal((4, 2)), np.array(index)], {}


# Where rows go.


class Rectangle(NamedTuple):
    """The outputs of the operator `rectangle`: rows to take for the padded batch, to take back, and of last steps."""

    pad: Variable
    unpad: Variable
    last: Variable
    is_empty: Variable


@operator(outputs=Rectangle._fields, cost=nothing)
def rectangle(x, reverse: bool):
    """Return where the rows of a batch go when it is padded, for one direction, and where they come back from."""
    offsets = x.structure.levels[-1]
    lengths = np.diff(offsets)
    num_sequences, steps = len(lengths), int(lengths.max(initial=0))
    places = places_of_rows(offsets, steps, reverse)
    pad = LoDTensor.wrap(places.ravel(), LoD([np.arange(num_sequences + 1) * steps]))
    back = rows_at_places(places)
    last = np.arange(num_sequences) * steps + lengths - 1
    is_empty = (lengths == 0)[:, None].astype(x.dtype)
    return pad, x.like(back), LoDTensor.wrap(np.where(lengths > 0, last, -1)), LoDTensor.wrap(is_empty)


@rectangle.infer
def _infer_rectangle(x, reverse):
    check_float("rectangle", x=x)
    check_lod_level("rectangle", "x", x)
    rows = TensorSpec((-1,), np.dtype(np.int64))
    return rows._replace(lod_level=1), rows._replace(lod_level=x.lod_level), rows, TensorSpec((-1, 1), x.dtype)


@rectangle.grad
def _grad_of_rectangle(inputs, outputs, d_outputs, reverse):
    return [None]  # places, whatever the rows are


@rectangle.examples
def _examples_of_rectangle(rng):
    for reverse in (False, True):
        yield [rows(rng, 3)], {"reverse": reverse}
