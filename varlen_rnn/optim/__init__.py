"""Optimizers and clipping."""

from varlen_rnn.optim.clip import clip_grad_norm_
from varlen_rnn.optim.optimizers import SGD, Adagrad, Adam, Momentum, Optimizer

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "Momentum",
    "Optimizer",
    "clip_grad_norm_",
]
