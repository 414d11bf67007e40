"""Operators, one subject per file: the one place where the tape meets kernels.  Importing it registers all of them."""

from varlen_rnn.ops import (
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
    sums,
    updates,
)
from varlen_rnn.ops.sequence import (
    concat_outputs,
    conv,
    init_memories,
    pad,
    pool,
    rank_table,
    segment_inputs,
    single_rows,
    softmax,
    zeros,
)
