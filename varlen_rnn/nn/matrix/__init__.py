"""Recurrent layers whose states are matrices, in place of an LSTM: one file a cell, which states its equations."""
