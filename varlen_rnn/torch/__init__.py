"""Use this library in PyTorch: recurrent layers as torch modules, and other functions with torch's autograd."""

from varlen_rnn.torch.function import Module, function
from varlen_rnn.torch.layers import GRU, LSTM, RNN
from varlen_rnn.torch.packing import packed
from varlen_rnn.torch.swap import replace, restore

__all__ = ["GRU", "LSTM", "RNN", "Module", "function", "packed", "replace", "restore"]


def __dir__() -> list[str]:
    return __all__
