"""Optimizers, schedules of their rates, averages of weights, and clipping."""

from varlen_rnn.optim import lr_scheduler
from varlen_rnn.optim.average import AveragedModel
from varlen_rnn.optim.clip import clip_grad_norm_
from varlen_rnn.optim.optimizers import SGD, Adadelta, Adagrad, Adam, AdamW, Momentum, Optimizer, RMSprop

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "AveragedModel",
    "Momentum",
    "Optimizer",
    "RMSprop",
    "clip_grad_norm_",
    "lr_scheduler",
]


def __dir__() -> list[str]:
    return __all__
