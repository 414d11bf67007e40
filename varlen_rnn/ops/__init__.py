"""Operators, one subject per file: the one place where the tape meets kernels.  Importing it registers all of them."""

from varlen_rnn.ops import (
    activations,
    batched,
    choices,
    clip,
    concat,
    constants,
    dropout,
    dynamic_rnn,
    elementwise,
    embedding,
    indexing,
    losses,
    padding,
    products,
    recomputed,
    recurrent,
    reductions,
    reshape,
    row_mask,
    softmax,
    split,
    sums,
    transpose,
    updates,
)
from varlen_rnn.ops.sequence import concat_outputs, init_memories, pool, rank_table, segment_inputs, single_rows, zeros
