"""Linear attention over LoD: a recurrence whose state is a matrix for each head, computed by chunks of rows.

For one head, with a state S (depth, depth of values), log decays g (a number, or one for each row of S), and rates b:

    u_t = v_t - [delta] (e^g_t S_{t-1})^T k_t      S_t = e^g_t S_{t-1} + b_t k_t u_t^T      o_t = scale S_t^T q_t

For example, with keys of 1, values v and no decay, the state is the sum of the values so far.

If each row of a state has a decay of its own, a chunk is run in blocks of 8 rows (`rates`).

Memory is in proportion to the rows: one state is kept for each chunk, and the gradient computes scores again.

Sources: Katharopoulos et al. (2020), "Transformers are RNNs"; Yang et al. (2024), "Gated Linear Attention Transformers
with Hardware-Efficient Training" (chunks); Yang et al. (2024), "Parallelizing Linear Transformers with the Delta Rule
over Sequence Length", and Yang, Kautz and Hatamizadeh (2024), "Gated Delta Networks" (`delta`).
"""

from varlen_rnn.linear_attention.blocks import CHUNK, Call, Heads, num_chunks
from varlen_rnn.linear_attention.layer import backward, forward

__all__ = ["CHUNK", "Call", "Heads", "backward", "forward", "num_chunks"]
