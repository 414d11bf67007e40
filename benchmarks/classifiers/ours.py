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

    def __init__(self, case, threads):
        vr.set_num_threads(threads)
        self.batches = case.batches()
        self.model = Model(*case.sizes())
        self.model.load_state_dict(case.weights())
        self.run_lstm = self.model.lstm
        self.optimizer = vr.optim.Adam(self.model.parameters(), lr=LEARNING_RATE)

    def training(self):
        """Train on every batch; return the losses."""
        return {"losses": [self.learn(*batch) for batch in self.batches]}

    def learn(self, ids, labels):
        """Train on a batch; return its loss."""
        y, _ = self.run_lstm(self.model.embedding(ids))
        loss = vr.nn.functional.cross_entropy(self.model.output(vr.sequence_pool(y, "mean")), labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def arrays(self, results):
        """Return results as arrays."""
        return {name: np.array(value) for name, value in results.items()}


class Padded(Unpadded):
    """The same on all rows of the rectangle."""

    def __init__(self, case, threads):
        super().__init__(case, threads)
        self.run_lstm = vr.baselines.Padded(self.model.lstm)
