"""Operators that take rows at the positions in a Variable of integers; the result has the LoD of this Variable."""

import math

import numpy as np

from varlen_rnn.errors import DTypeError, OutOfRangeError
from varlen_rnn.kernels.rows import mark, scatter_add_rows
from varlen_rnn.ops.cost import nothing, per_taken_element
from varlen_rnn.ops.examples import rows
from varlen_rnn.ops.indices import INT64, indices, rows_at
from varlen_rnn.ops.traits import beside
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.runtime.device import as_operand, empty, on_device, zeros
from varlen_rnn.runtime.placeholder import Placeholder
from varlen_rnn.tape.checks import check_float, check_has_rows, check_integer, check_like, check_rank, check_tensor
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.kinds import SELECTED_ROWS
from varlen_rnn.tape.spec import TensorSpec

_MOST_CLASSES = 2**24  # without a limit, a program of a few bytes could request any amount of memory


@operator(cost=nothing, rows=lambda specs, axes: "each" if axes[0] is None else "batch")
def gather(x, index):
    """Return the rows of `x` at the positions in `index`; negative positions count from the end."""
    return index.like(rows_at(x.data, _places(x, index)).reshape((*index.shape, *x.shape[1:])))


def _places(x, index):
    return indices("gather, index", index, len(x.data), "row", from_end=True)


@gather.infer
def _infer_gather(x, index):
    check_tensor("gather", "x", x)
    check_has_rows("gather", "x", x)
    check_tensor("gather", "index", index)
    if index.dtype.kind == "b":
        hint = "x[np.asarray(mask)] takes rows outside of programs; where(mask, x, 0.0) keeps all rows"
        raise DTypeError("gather, index", expected="integers", got="a mask of bools", hint=hint)
    check_integer("gather", index=index)
    return TensorSpec((*index.shape, *x.shape[1:]), x.dtype, index.lod_level)


@gather.backward("x", cost=per_taken_element)
def _gather_grad(x, index, d_out):
    flat, width = _places(x, index), math.prod(x.shape[1:])
    data = zeros(x.shape, x.data)
    scatter_add_rows(as_operand(d_out.data).reshape(len(flat), width), flat, data.reshape(len(data), width))
    return x.like(data)


@_gather_grad.infer
def _infer_gather_grad(x, index, d_out):
    check_float("gather_grad", x=x)
    check_like("gather_grad", "d_out", d_out, _infer_gather(x, index))
    return x


@gather.examples
def _gather_examples(rng):
    yield [rows(rng, 3), np.array([[1, -1], [5, 1]])], {}
    yield [rng.standard_normal(4), rows(rng).like(rng.integers(-4, 4, 6).astype(np.int32))], {}
    yield [rng.integers(0, 9, (4, 2)), np.array(2)], {}


@operator(cost=nothing, rows=beside("each", 1))
def embedding(ids, table, padding_idx: int | None, sparse: bool):
    """Return the row of a table for each id; the row `padding_idx` gets no gradient."""
    flat = _checked_ids(ids, len(table.data))
    return ids.like(rows_at(table.data, flat).reshape(*ids.shape, table.shape[1]))


def _checked_ids(ids, height, ignored=None):
    return indices("embedding, ids", ids, height, "id", ", the table's number of rows", ignored=ignored)


@embedding.infer
def _infer_embedding(ids, table, padding_idx, sparse):
    check_integer("embedding", ids=ids)
    check_tensor("embedding", "table", table)
    check_rank("embedding", "table", table, 2)
    return TensorSpec((*ids.shape, table.shape[1]), table.dtype, ids.lod_level)


@embedding.backward("table", cost=per_taken_element)
def _embedding_grad(ids, table, d_out, padding_idx, sparse):
    """Return the gradient of the table, as SelectedRows if `sparse`, otherwise dense."""
    # The ids are checked again, because the caller can have changed them since.  The padding row gets no gradient.
    flat = _checked_ids(ids, len(table.data), ignored=padding_idx)
    values = as_operand(d_out.data).reshape(len(flat), table.shape[1])
    if padding_idx is not None and type(flat) is not Placeholder and (sparse or on_device(values)):
        kept = np.flatnonzero(flat >= 0)
        flat, values = flat[kept], rows_at(values, kept)
    if sparse:
        return SelectedRows.wrap(flat, values, len(table.data))
    dense = zeros(table.shape, table.data)
    scatter_add_rows(values, flat, dense)
    return LoDTensor.wrap(dense)


@_embedding_grad.infer
def _infer_embedding_grad(ids, table, d_out, padding_idx, sparse):
    check_float("embedding_grad", table=table)
    check_like("embedding_grad", "d_out", d_out, _infer_embedding(ids, table, padding_idx, sparse))
    return table._replace(kind=SELECTED_ROWS) if sparse else table


@embedding.examples
def _embedding_examples(rng):
    ids, table = np.array([1, 1, 4]), rng.standard_normal((5, 2))
    for sparse in (False, True):
        yield [ids, table], {"padding_idx": None, "sparse": sparse}
    yield [ids, np.arange(10).reshape(5, 2)], {"padding_idx": None, "sparse": False}


@operator(cost=nothing, rows="each", gradient=False)
def one_hot(ids, num_classes: int):
    """Return, for each id, `num_classes` integers: 1 at the id, and 0 elsewhere."""
    flat = indices("one_hot, ids", ids, num_classes, "id", ", the number of classes")
    out = empty((len(flat), num_classes), ids.data, INT64)
    mark(flat, out)
    return ids.like(out.reshape(*ids.shape, num_classes))


@one_hot.infer
def _infer_one_hot(ids, num_classes):
    check_integer("one_hot", ids=ids)
    if not 0 <= num_classes <= _MOST_CLASSES:
        raise OutOfRangeError("one_hot, num_classes", expected=f"0 to {_MOST_CLASSES}", got=num_classes)
    return TensorSpec((*ids.shape, num_classes), INT64, ids.lod_level)


@one_hot.examples
def _one_hot_examples(rng):
    yield [rows(rng).like(rng.integers(0, 4, 6))], {"num_classes": 4}
    yield [rng.integers(0, 4, (2, 3))], {"num_classes": 5}
