"""Operators: infer + forward + grad, registered with the recorder; the one place where program meets kernels."""

from varlen_rnn.ops import (
    clip,
    dropout,
    dynamic_rnn,
    embedding,
    losses,
    math,
    padding,
    recurrent,
    sequence,
    shape,
    updates,
)
