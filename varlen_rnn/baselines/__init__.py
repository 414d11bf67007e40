"""Padded twins of the recurrent layers, for honest comparison."""

from varlen_rnn.baselines.padded import Padded

__all__ = [
    "Padded",
]


def __dir__() -> list[str]:
    return __all__
