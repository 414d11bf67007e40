"""Attention over LoD: the rows of each query sequence attend to the rows of its key sequence, of any lengths.

Scores exist for one block of rows at a time, so memory grows with the number of rows, not with the number of pairs.
The gradient computes scores again.

Sources: Dao et al. (2022), "FlashAttention"; Milakov and Gimelshein (2018) for a softmax over blocks of scores.
"""

from varlen_rnn.attention.blocks import UNLIMITED, Call
from varlen_rnn.attention.layer import backward, forward

__all__ = ["UNLIMITED", "Call", "backward", "forward"]
