"""Recurrent layers on padded batches, as a baseline in comparisons."""

from varlen_rnn.baselines.padded import Padded

__all__ = ["Padded"]


def __dir__() -> list[str]:
    return __all__
