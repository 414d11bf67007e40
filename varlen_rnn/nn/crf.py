"""`LinearChainCRF`, a layer whose parameters are the transition scores of a conditional random field."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from varlen_rnn.errors import check_int
from varlen_rnn.nn.layers import uniform
from varlen_rnn.nn.module import Module, check_dtype
from varlen_rnn.ops.sequence.crf import crf_decoding, crf_marginals, crf_n_best, linear_chain_crf
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

    def n_best(self, emission: Rows, n: int = 10) -> tuple[Variable, Variable]:
        """Return the `n` most probable labellings of each sequence, best first, and the logarithm of each probability.

        A sequence with fewer labellings has them all; equally probable labellings are sorted by the tag of the last
        row, then of the row before it, and so on.

        Parameters
        ----------
        emission : Variable, shape `(rows, tags)`
        n : int
            1 to 4096.

        Returns
        -------
        tags : Variable, int64, shape `(tags,)`
            Its LoD has the labellings of each sequence, and the tags of each labelling, one per row of the sequence.
        scores : Variable, shape `(labellings,)`
            Its LoD has the labellings of each sequence.

        Examples
        --------
        >>> crf = LinearChainCRF(2)
        >>> tags, scores = crf.n_best(vr.create_lod_tensor(np.float32([[5, 0], [2, 0]]), [[2]]), n=2)
        >>> tags.value.to_sequences()
        [[array([0, 0]), array([0, 1])]]
        """
        with no_grad():
            return crf_n_best(emission, self.transition, check_int(n, "n"))

    def marginals(self, emission: Rows) -> Variable:
        """Return the probability of each tag of each row, shape `(rows, tags)`, over all labellings of its sequence."""
        with no_grad():
            return crf_marginals(emission, self.transition)

    def extra_repr(self) -> str:
        """Return the number of tags as text for `repr`."""
        return f"{self.tags}"
