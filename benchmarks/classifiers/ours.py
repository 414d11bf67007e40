"""The classifier of varlen_rnn: on rows, and with the padded twin of its LSTM."""

import numpy as np

import varlen_rnn as vr
from benchmarks.classifiers.case import EMBEDDING, HIDDEN, LEARNING_RATE


class Model(vr.nn.Module):
    """Embedding, LSTM, mean over each sequence, linear."""

    def __init__(self, vocabulary_size, num_classes):
        self.embedding = vr.nn.Embedding(vocabulary_size, EMBEDDING)
        self.lstm = vr.nn.LSTM(EMBEDDING, HIDDEN)
        self.output = vr.nn.Linear(HIDDEN, num_classes)


class Unpadded:
    """The model, its optimizer and its batches."""

    way = staticmethod(lambda lstm: lstm)

    def __init__(self, case, threads):
        vr.set_num_threads(threads)
        self.batches = case.batches()
        self.model = Model(*case.sizes())
        self.model.load_state_dict(case.weights())
        self.run_lstm = self.way(self.model.lstm)
        self.optimizer = vr.optim.Adam(self.model.parameters(), lr=LEARNING_RATE)
        self.first_gradients = self.gradients(*self.batches[0])

    def training(self):
        """Train on every batch; return the losses, and the gradients that the first weights had."""
        return {"losses": [self.learn(*batch) for batch in self.batches], **self.first_gradients}

    def gradients(self, ids, labels):
        """Return the gradients of a batch by the names of the weights."""
        self.loss(ids, labels).backward()
        found = {name: weight.grad for name, weight in self.model.named_parameters()}
        self.optimizer.zero_grad()
        return found | {"embedding.weight": found["embedding.weight"].to_dense()}

    def loss(self, ids, labels):
        """Return the loss of a batch."""
        y, _ = self.run_lstm(self.model.embedding(ids))
        return vr.nn.functional.cross_entropy(self.model.output(vr.sequence_pool(y, "mean")), labels)

    def learn(self, ids, labels):
        """Train on a batch; return its loss."""
        loss = self.loss(ids, labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def arrays(self, results):
        """Return results as arrays."""
        return {name: np.asarray(value) for name, value in results.items()}


class Padded(Unpadded):
    """The same on all rows of the rectangle."""

    way = vr.baselines.Padded
