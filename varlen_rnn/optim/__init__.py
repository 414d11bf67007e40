"""Optimizers, schedules of their rates, averages of weights, and clipping."""

from typing import TYPE_CHECKING

from varlen_rnn.optim import lr_scheduler
from varlen_rnn.optim.average import AveragedModel
from varlen_rnn.optim.clip import clip_grad_norm_
from varlen_rnn.optim.optimizers import SGD, Adadelta, Adagrad, Adam, AdamW, Momentum, Optimizer, RMSprop
from varlen_rnn.tape import elsewhere

__all__ = [
    "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "AveragedModel", "Momentum", "Optimizer", "RMSprop",
    "clip_grad_norm_", "lr_scheduler",
]  # fmt: skip

if not TYPE_CHECKING:  # Hidden from type checkers: with a module's `__getattr__` they accept any name.

    def __getattr__(name):
        raise elsewhere.missing_name(__name__, name)


def __dir__() -> list[str]:
    return __all__
