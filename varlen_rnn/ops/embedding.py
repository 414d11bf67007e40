"""Lookup of rows of a table, and its gradient: SelectedRows, or dense."""

import numpy as np

from varlen_rnn.device import as_operand, empty
from varlen_rnn.kernels.rows import gather_rows, scatter_add_rows
from varlen_rnn.lod import LoDTensor
from varlen_rnn.ops.checks import check_float, check_integer, check_like, check_rank, indices
from varlen_rnn.selected_rows import SelectedRows
from varlen_rnn.tape.kinds import SELECTED_ROWS
from varlen_rnn.tape.operator import Op, register
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import apply


def _infer(ids, table, padding_idx, sparse):
    check_integer("embedding", ids=ids)
    check_float("embedding", table=table)
    check_rank("embedding", "table", table, 2)
    return [TensorSpec((*ids.shape, table.shape[1]), table.dtype, ids.lod_level)]


def _checked_ids(ids, height):
    return indices("embedding, ids", ids, height, "id", ", the rows of the table")


def _forward(ids, table, padding_idx, sparse):
    flat = _checked_ids(ids, len(table.data))
    if table.data.flags.carray:
        out = empty((len(flat), table.shape[1]), table.data)
        gather_rows(table.data, flat, out)
    else:  # for others the kernel would be compiled again, and a copy of the whole table is too much
        out = table.data[flat]
    return [ids.like(out.reshape(*ids.shape, table.shape[1]))]


def _grad(inputs, outputs, d_outputs, padding_idx, sparse):
    return [None, apply("embedding_grad", *inputs, d_outputs[0], padding_idx=padding_idx, sparse=sparse)]


def _infer_grad(ids, table, d_out, padding_idx, sparse):
    check_like("embedding_grad", "d_out", d_out, *_infer(ids, table, padding_idx, sparse))
    return [table._replace(kind=SELECTED_ROWS) if sparse else table]


def _forward_grad(ids, table, d_out, padding_idx, sparse):
    flat = _checked_ids(ids, len(table.data))  # again: the caller may have changed them since
    values = as_operand(d_out.data).reshape(len(flat), table.shape[1])
    if padding_idx is not None:  # the padding row never learns, in either form
        kept = flat != padding_idx
        flat, values = flat[kept], values[kept]
    if sparse:
        return [SelectedRows.wrap(flat, values, len(table.data))]
    dense = np.zeros_like(table.data)
    scatter_add_rows(values, flat, dense)
    return [LoDTensor.wrap(dense)]


_ATTRS = {"padding_idx": "int?", "sparse": "bool"}
register(Op("embedding", ("ids", "table"), _infer, _forward, _grad, attrs=_ATTRS))
register(Op("embedding_grad", ("ids", "table", "d_out"), _infer_grad, _forward_grad, attrs=_ATTRS))
