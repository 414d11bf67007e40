"""Recurrent networks on variable-length sequences, without padding."""

from varlen_rnn.lod import LoD, LoDTensor, create_lod_tensor

__version__ = "0.1.0"
