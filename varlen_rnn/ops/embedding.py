"""Lookup of rows of a table.  The gradient of the table is SelectedRows or dense."""

import numpy as np

from varlen_rnn.kernels.rows import scatter_add_rows
from varlen_rnn.ops.cost import nothing, size
from varlen_rnn.ops.indices import indices, rows_at
from varlen_rnn.ops.traits import beside
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.runtime.device import as_operand, zeros
from varlen_rnn.tape.checks import check_float, check_integer, check_like, check_rank, check_tensor
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.kinds import SELECTED_ROWS
from varlen_rnn.tape.spec import TensorSpec


@operator(cost=nothing, rows=beside("each", 1))
def embedding(ids, table, padding_idx: int | None, sparse: bool):
    """Return the row of a table for each id; the row `padding_idx` gets no gradient."""
    flat = _checked_ids(ids, len(table.data))
    return ids.like(rows_at(table.data, flat).reshape(*ids.shape, table.shape[1]))


def _checked_ids(ids, height):
    return indices("embedding, ids", ids, height, "id", ", the rows of the table")


@embedding.infer
def _infer(ids, table, padding_idx, sparse):
    check_integer("embedding", ids=ids)
    check_tensor("embedding", "table", table)
    check_rank("embedding", "table", table, 2)
    return TensorSpec((*ids.shape, table.shape[1]), table.dtype, ids.lod_level)


def _additions(inputs, outputs, padding_idx, sparse):
    """1 operation per element of the rows that were looked up."""
    return size(inputs[2])


@embedding.backward("table", cost=_additions)
def _embedding_grad(ids, table, d_out, padding_idx, sparse):
    """Return the gradient of the table, as SelectedRows if `sparse`, otherwise dense."""
    flat = _checked_ids(ids, len(table.data))  # checked again, because the caller may have changed the ids since
    values = as_operand(d_out.data).reshape(len(flat), table.shape[1])
    if padding_idx is not None:  # the padding row gets no gradient, neither sparse nor dense
        kept = flat != padding_idx
        flat, values = flat[kept], rows_at(values, np.flatnonzero(kept))
    if sparse:
        return SelectedRows.wrap(flat, values, len(table.data))
    dense = zeros(table.shape, table.data)
    scatter_add_rows(values, flat, dense)
    return LoDTensor.wrap(dense)


@_embedding_grad.infer
def _infer_grad(ids, table, d_out, padding_idx, sparse):
    check_float("embedding_grad", table=table)
    check_like("embedding_grad", "d_out", d_out, _infer(ids, table, padding_idx, sparse))
    return table._replace(kind=SELECTED_ROWS) if sparse else table


@embedding.examples
def _examples(rng):
    ids, table = np.array([1, 1, 4]), rng.standard_normal((5, 2))
    for sparse in (False, True):
        yield [ids, table], {"padding_idx": None, "sparse": sparse}
    yield [ids, np.arange(10).reshape(5, 2)], {"padding_idx": None, "sparse": False}
