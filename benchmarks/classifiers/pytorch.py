"""PyTorch's classifier, packed and padded.

Batches stand ready as time-major rectangles, longest sequence first, so neither padding nor sorting is part of a step.
"""

import numpy as np
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from benchmarks.classifiers.case import EMBEDDING, HIDDEN, LEARNING_RATE
from benchmarks.rectangle import Rectangle


class Model(torch.nn.Module):
    """Embedding, LSTM, mean over each sequence, linear."""

    def __init__(self, vocabulary_size, num_classes):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary_size, EMBEDDING)
        self.lstm = torch.nn.LSTM(EMBEDDING, HIDDEN)
        self.output = torch.nn.Linear(HIDDEN, num_classes)


class Padded:
    """The model, its optimizer and its batches; the mean masks the padding."""

    def __init__(self, case, threads):
        torch.set_num_threads(threads)
        self.batches = [_rectangle(*batch) for batch in case.batches()]
        self.model = Model(*case.sizes())
        self.model.load_state_dict({name: torch.from_numpy(array) for name, array in case.weights().items()})
        # Fused is PyTorch's fastest form of Adam.
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE, fused=True)
        self.first_gradients = self.gradients(*self.batches[0])

    def training(self):
        """Train on every batch; return the losses, and the gradients that the first weights had."""
        return {"losses": [self.learn(*batch) for batch in self.batches], **self.first_gradients}

    def gradients(self, *batch):
        """Return the gradients of a batch by the names of the weights."""
        self.loss(*batch).backward()
        found = {name: weight.grad for name, weight in self.model.named_parameters()}
        self.optimizer.zero_grad()
        return found

    def loss(self, ids, lengths, mask, labels):
        """Return the loss of a batch."""
        y = self.run_lstm(self.model.embedding(ids), lengths, mask)
        return torch.nn.functional.cross_entropy(self.model.output(y.sum(0) / lengths[:, None]), labels)

    def learn(self, *batch):
        """Train on a batch; return its loss."""
        loss = self.loss(*batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def run_lstm(self, x, lengths, mask):
        """Return the outputs in the rectangle, zeros in its padding."""
        return self.model.lstm(x)[0] * mask

    def arrays(self, results):
        """Return results as arrays."""
        return {name: np.asarray(value) for name, value in results.items()}


class Packed(Padded):
    """The same with a packed LSTM, whose unpacking leaves zeros in the padding."""

    def run_lstm(self, x, lengths, mask):
        """Return the outputs in the rectangle, zeros in its padding."""
        packed, _ = self.model.lstm(pack_padded_sequence(x, lengths))
        return pad_packed_sequence(packed)[0]


def _rectangle(ids, labels):
    rectangle = Rectangle(np.diff(ids.lod()[-1]))
    mask = rectangle.pad(np.ones((len(ids.data), 1), np.float32))
    arrays = rectangle.pad(ids.data), rectangle.lengths, mask, labels[rectangle.order]
    return tuple(map(torch.from_numpy, arrays))
