"""Cells: equations only, one file each.  To add one: its file, a line in `CELLS`, and ten lines of oracle."""

from varlen_rnn.cells.cell import Cell
from varlen_rnn.cells.gru import GRU
from varlen_rnn.cells.lstm import LSTM
from varlen_rnn.cells.rnn import RNN_RELU, RNN_TANH

CELLS = {cell.name: cell for cell in (RNN_TANH, RNN_RELU, LSTM, GRU)}
