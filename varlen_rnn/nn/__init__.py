"""Layers: parameters and the operators that use them, with PyTorch's names and shapes, on rows without padding."""

from typing import TYPE_CHECKING

from varlen_rnn.nn import functional
from varlen_rnn.nn.activations import ELU, GELU, LeakyReLU, ReLU, Sigmoid, SiLU, Softmax, Softplus, Tanh
from varlen_rnn.nn.attention import AdditiveAttention, MultiheadAttention
from varlen_rnn.nn.containers import ModuleDict, ModuleList, ParameterList, Sequential
from varlen_rnn.nn.crf import LinearChainCRF
from varlen_rnn.nn.ctc import CTCLoss, TransducerLoss
from varlen_rnn.nn.ctc_decoder import CTCDecoder
from varlen_rnn.nn.ken_lm import KenLM
from varlen_rnn.nn.layers import (
    BatchNorm1d,
    Dropout,
    Embedding,
    LayerNorm,
    Linear,
    RMSNorm,
    RowConv,
    SequenceConv,
    SequencePool,
)
from varlen_rnn.nn.matrix.delta_net import DeltaNet, GatedDeltaNet
from varlen_rnn.nn.matrix.gla import GatedLinearAttention
from varlen_rnn.nn.matrix.mamba2 import Mamba2
from varlen_rnn.nn.matrix.mlstm import MLSTM
from varlen_rnn.nn.module import Buffer, Module, Parameter
from varlen_rnn.nn.recurrent.cells import GRUCell, LSTMCell, RNNCell
from varlen_rnn.nn.recurrent.dynamic import DynamicRNN
from varlen_rnn.nn.recurrent.layers import GRU, LSTM, RNN, SLSTM, Recurrent
from varlen_rnn.nn.recurrent.stateful import Stateful
from varlen_rnn.nn.recurrent.weight_norm import weight_norm
from varlen_rnn.nn.standardize import Standardize
from varlen_rnn.nn.summary import ModelSummary, summary
from varlen_rnn.nn.transducer_decoder import TransducerDecoder
from varlen_rnn.tape import elsewhere

__all__ = [
    "ELU", "GELU", "GRU", "LSTM", "MLSTM", "RNN", "SLSTM", "AdditiveAttention", "BatchNorm1d", "Buffer", "CTCDecoder",
    "CTCLoss", "DeltaNet", "Dropout", "DynamicRNN", "Embedding", "GRUCell", "GatedDeltaNet", "GatedLinearAttention",
    "KenLM", "LSTMCell", "LayerNorm", "LeakyReLU", "Linear", "LinearChainCRF", "Mamba2", "ModelSummary", "Module",
    "ModuleDict", "ModuleList", "MultiheadAttention", "Parameter", "ParameterList", "RMSNorm", "RNNCell", "ReLU",
    "Recurrent", "RowConv", "SequenceConv", "SequencePool", "Sequential", "SiLU", "Sigmoid", "Softmax", "Softplus",
    "Standardize", "Stateful", "Tanh", "TransducerDecoder", "TransducerLoss", "functional", "summary", "weight_norm",
]  # fmt: skip

if not TYPE_CHECKING:  # Hidden from type checkers: with a module's `__getattr__` they accept any name.

    def __getattr__(name):
        raise elsewhere.missing_name(__name__, name)


def __dir__() -> list[str]:
    return __all__
