"""`LinearChainCRF`, a layer whose parameters are the transition scores of a conditional random field."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from varlen_rnn.errors import check_int
from varlen_rnn.nn.layers import uniform
from varlen_rnn.nn.module import Module, check_dtype
from varlen_rnn.ops.sequence.crf import crf_decoding, crf_marginals, linear_chain_crf
from varlen_rnn.tape.modes import no_grad
from varlen_rnn.tape.variable import Variable
from varlen_rnn.typing import Rows


class LinearChainCRF(Module):
    """A linear-chain conditional random field over the tags of a sequence; see `linear_chain_crf`.

    The score of a labelling is the sum of each row's score of its tag and of a trained score for each pair of
    consecutive tags.

    Parameters
    ----------
    tags : int
    dtype : data type
        float32 or float64.

    Attributes
    ----------
    transition : (tags + 2, tags)

    Examples
    --------
    >>> emission = vr.create_lod_tensor(np.ones((5, 3), np.float32), [[2, 0, 3]])
    >>> crf = LinearChainCRF(3)
    >>> crf(emission, np.array([0, 1, 2, 0, 1])).shape, crf.decode(emission).shape
    ((3,), (5,))

    Source: Lafferty, McCallum and Pereira (2001), "Conditional random fields".
    """

    def __init__(self, tags: int, dtype: DTypeLike = np.float32) -> None:
        self.tags = tags = check_int(tags, "tags", 1)
        self.transition = uniform((tags + 2, tags), 100, check_dtype(dtype))

    def forward(self, emission: Rows, label: Rows) -> Variable:
        """Return minus the log-probability of each sequence's labels, shape `(sequences,)`."""
        return linear_chain_crf(emission, label, self.transition)

    def decode(self, emission: Rows) -> Variable:
        """Return the tag of each row in the most probable labelling of its sequence."""
        with no_grad():
            return crf_decoding(emission, self.transition)

    def marginals(self, emission: Rows) -> Variable:
        """Return the probability of each tag of each row, shape `(rows, tags)`, over all labellings of its sequence."""
        with no_grad():
            return crf_marginals(emission, self.transition)

    def extra_repr(self) -> str:
        """Return the number of tags as text for `repr`."""
        return f"{self.tags}"
