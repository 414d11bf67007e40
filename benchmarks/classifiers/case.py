"""A classifier on an embedded data set: its batches and its first weights."""

import dataclasses
import functools

import numpy as np

import varlen_rnn as vr
from benchmarks.layers.case import draw_weights, weight_shapes
from benchmarks.lengths import DATA_SETS

EMBEDDING, HIDDEN = 64, 128
LEARNING_RATE = 1e-3
LONGEST = 1000  # tokens of a sequence; longer ones are cut


@dataclasses.dataclass(frozen=True)
class Case:
    """A data set, and how much of it makes a step.

    Attributes
    ----------
    data_set : str
        A key of `DATA_SETS`.
    batch_size : int
        Sequences of a batch, in random order.
    num_batches : int
        Batches of a step; a step trains on each of them once.
    """

    data_set: str
    batch_size: int
    num_batches: int

    def batches(self):
        """Return a list of pairs: ids with their LoD, and labels."""
        data = _load(self.data_set)
        sequences = [sequence[:LONGEST] for sequence in data.sequences]
        batches = vr.data.batches(sequences, data.labels, batch_size=self.batch_size, shuffle=True, seed=0)
        return [batches[number] for number in range(self.num_batches)]

    def sizes(self):
        """Return the length of the vocabulary and the number of classes."""
        data = _load(self.data_set)
        return len(data.vocabulary), len(data.classes)

    def weights(self):
        """Return the first weights, with PyTorch's names: the same in every process."""
        vocabulary_size, num_classes = self.sizes()
        lstm = weight_shapes("LSTM", EMBEDDING, HIDDEN)
        shapes = {
            "embedding.weight": (vocabulary_size, EMBEDDING),
            **{f"lstm.{name}": shape for name, shape in lstm.items()},
            "output.weight": (num_classes, HIDDEN),
            "output.bias": (num_classes,),
        }
        return draw_weights(np.random.default_rng(0), shapes, HIDDEN)

    def summary(self):
        """Return what a line of results says of this case."""
        ids = [ids for ids, _ in self.batches()]
        return {
            "data_set": self.data_set,
            "batch_size": self.batch_size,
            "rows": sum(len(rows.data) for rows in ids),
            "padded_rows": sum(vr.baselines.Padded.rows(rows) for rows in ids),
        }


@functools.cache
def _load(name):
    return DATA_SETS[name]()
