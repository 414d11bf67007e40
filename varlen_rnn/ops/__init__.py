"""Operators: infer + forward + grad, registered with the recorder; the one place where program meets kernels."""

from varlen_rnn.ops import dropout, embedding, losses, math, recurrent, sequence, shape, updates
