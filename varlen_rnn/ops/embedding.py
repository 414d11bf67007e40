"""Lookup of rows of a table, and its gradient: SelectedRows, or dense."""

import numpy as np

from varlen_rnn.device import as_operand, empty
from varlen_rnn.kernels.rows import gather_rows, scatter_add_rows
from varlen_rnn.lod import LoDTensor
from varlen_rnn.ops.cost import nothing, size
from varlen_rnn.ops.indices import indices
from varlen_rnn.selected_rows import SelectedRows
from varlen_rnn.tape.checks import check_float, check_integer, check_like, check_rank
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.kinds import SELECTED_ROWS
from varlen_rnn.tape.spec import TensorSpec


@operator(cost=nothing)
def embedding(ids, table, padding_idx: int | None, sparse: bool):
    """Return the rows of a table that ids name; the row `padding_idx` never learns."""
    flat = _checked_ids(ids, len(table.data))
    if table.data.flags.carray:
        out = empty((len(flat), table.shape[1]), table.data)
        gather_rows(table.data, flat, out)
    else:  # for others the kernel would be compiled again, and a copy of the whole table is too much
        out = table.data[flat]
    return ids.like(out.reshape(*ids.shape, table.shape[1]))


def _checked_ids(ids, height):
    return indices("embedding, ids", ids, height, "id", ", the rows of the table")


@embedding.infer
def _infer(ids, table, padding_idx, sparse):
    check_integer("embedding", ids=ids)
    check_float("embedding", table=table)
    check_rank("embedding", "table", table, 2)
    return TensorSpec((*ids.shape, table.shape[1]), table.dtype, ids.lod_level)


def _additions(inputs, outputs, padding_idx, sparse):
    """1 per element of the rows that were looked up."""
    return size(inputs[2])


@embedding.backward("table", cost=_additions)
def _embedding_grad(ids, table, d_out, padding_idx, sparse):
    """Return the gradient of the table: SelectedRows, or dense."""
    flat = _checked_ids(ids, len(table.data))  # again: the caller may have changed them since
    values = as_operand(d_out.data).reshape(len(flat), table.shape[1])
    if padding_idx is not None:  # the padding row never learns, in either form
        kept = flat != padding_idx
        flat, values = flat[kept], values[kept]
    if sparse:
        return SelectedRows.wrap(flat, values, len(table.data))
    dense = np.zeros_like(table.data)
    scatter_add_rows(values, flat, dense)
    return LoDTensor.wrap(dense)


@_embedding_grad.infer
def _infer_grad(ids, table, d_out, padding_idx, sparse):
    check_like("embedding_grad", "d_out", d_out, _infer(ids, table, padding_idx, sparse))
    return table._replace(kind=SELECTED_ROWS) if sparse else table


@embedding.examples
def _examples(rng):
    ids, table = np.array([1, 1, 4]), rng.standard_normal((5, 2))
    for sparse in (False, True):
        yield [ids, table], {"padding_idx": None, "sparse": sparse}
