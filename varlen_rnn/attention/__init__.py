"""Attention over LoD: the rows of each query sequence attend to the rows of its key sequence, of any lengths.

Scores exist for a block of rows at a time: memory is in proportion to the rows, and the gradient computes them again.

Source: Dao et al. (2022), "FlashAttention"; the softmax whose maximum grows, Milakov and Gimelshein (2018).
"""

from varlen_rnn.attention.blocks import UNLIMITED, Call
from varlen_rnn.attention.layer import backward, forward

__all__ = ["UNLIMITED", "Call", "backward", "forward"]
