"""Cells: equations only, one file each, and `Cell` for your own (docs/cells.md)."""

from varlen_rnn.cells.cell import Cell, find_cell
from varlen_rnn.cells.gru import GRU
from varlen_rnn.cells.lstm import LSTM
from varlen_rnn.cells.rnn import RNN_RELU, RNN_TANH
from varlen_rnn.kernels.activations import multiply_add, relu, sigmoid, tanh

__all__ = [
    "CELLS",
    "GRU",
    "LSTM",
    "RNN_RELU",
    "RNN_TANH",
    "Cell",
    "find_cell",
    "multiply_add",
    "relu",
    "sigmoid",
    "tanh",
]

CELLS = {cell.name: cell for cell in (RNN_TANH, RNN_RELU, LSTM, GRU)}
