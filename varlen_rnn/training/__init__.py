"""A training loop to reuse: steps, epochs, validation, checkpoints, early stopping, a log and a picture."""

from varlen_rnn.training.bound import Bound
from varlen_rnn.training.callbacks import Averaging, Checkpoints, EarlyStopping, JSONLog, Progress, Schedule
from varlen_rnn.training.picture import plot_history
from varlen_rnn.training.trainer import Callback, Trainer

__all__ = [
    "Averaging", "Bound", "Callback", "Checkpoints", "EarlyStopping", "JSONLog", "Progress", "Schedule", "Trainer",
    "plot_history",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
