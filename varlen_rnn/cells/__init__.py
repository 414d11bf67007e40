"""Cells: equations only, one file each; `cell` makes a cell from your equations (docs/cells.md)."""

from varlen_rnn.cells.contract import Cell, Phase
from varlen_rnn.cells.define import cell
from varlen_rnn.cells.derivation.trace import EquationError, Row, norm
from varlen_rnn.cells.gru import GRU, gru_cell
from varlen_rnn.cells.gru_d import GRU_D
from varlen_rnn.cells.indrnn import INDRNN
from varlen_rnn.cells.layer_norm import LN_GRU, LN_LSTM
from varlen_rnn.cells.ligru import LIGRU
from varlen_rnn.cells.lstm import LSTM, lstm_cell
from varlen_rnn.cells.mgu import MGU
from varlen_rnn.cells.min_gru import MIN_GRU
from varlen_rnn.cells.min_lstm import MIN_LSTM
from varlen_rnn.cells.registry import find_cell
from varlen_rnn.cells.rnn import RNN_RELU, RNN_TANH, rnn_cell
from varlen_rnn.cells.slstm import SLSTM, slstm_cell
from varlen_rnn.cells.sru import SRU
from varlen_rnn.kernels.activations import (
    clip,
    constant,
    exp,
    log,
    maximum,
    minimum,
    multiply_add,
    relu,
    sigmoid,
    sqrt,
    tanh,
    where,
)
from varlen_rnn.kernels.functions import expm1, log1p

__all__ = [
    "CELLS",
    "GRU",
    "GRU_D",
    "INDRNN",
    "LIGRU",
    "LN_GRU",
    "LN_LSTM",
    "LSTM",
    "MGU",
    "MIN_GRU",
    "MIN_LSTM",
    "RNN_RELU",
    "RNN_TANH",
    "SLSTM",
    "SRU",
    "Cell",
    "EquationError",
    "Phase",
    "Row",
    "cell",
    "clip",
    "constant",
    "exp",
    "expm1",
    "find_cell",
    "gru_cell",
    "log",
    "log1p",
    "lstm_cell",
    "maximum",
    "minimum",
    "multiply_add",
    "norm",
    "relu",
    "rnn_cell",
    "sigmoid",
    "slstm_cell",
    "sqrt",
    "tanh",
    "where",
]


def __dir__() -> list[str]:
    return __all__


CELLS = {built_in.name: built_in for built_in in (RNN_TANH, RNN_RELU, LSTM, GRU)}
"""The cells that have layers of their own, by their names in programs."""
