"""Values for the examples of operators: the LoD of four sequences, with an empty sequence, and LoDs of rare forms."""

import numpy as np

from varlen_rnn.rows.lod import LoD, LoDTensor

LOD = LoD.from_lengths([[2, 0, 3, 1]])
# Empty sequences first, in the middle, last and alone; no sequences; two levels.
_LENGTHS: list[list[list[int]]] = [[[0, 2, 0, 1, 0]], [[0]], [[]], [[2, 0, 1], [2, 0, 3]]]
TROUBLES = [LoD.from_lengths(lengths) for lengths in _LENGTHS]


def rows(rng, *element, positive=False, lod=LOD):
    """Return random rows of shape `element`, with a LoD; if `positive`, every number is at least 1/2."""
    data = rng.standard_normal((lod.num_rows, *element))
    return LoDTensor(np.abs(data) + 0.5 if positive else data, lod)
