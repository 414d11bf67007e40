"""The update of varlen_rnn: each part of an episode is a sequence of one batch."""

import numpy as np

import varlen_rnn as vr
from benchmarks.policies.case import ACTIONS, CLIP, FEATURES, LARGEST_NORM, LEARNING_RATE, PASSES
from varlen_rnn.nn import functional as F


class Model(vr.nn.Module):
    """An LSTM, the scores of actions, and the expected return."""

    def __init__(self, hidden_size):
        self.lstm = vr.nn.LSTM(FEATURES, hidden_size)
        self.actor, self.critic = vr.nn.Linear(hidden_size, ACTIONS), vr.nn.Linear(hidden_size, 1)


class Unpadded:
    """The model, its optimizer and the rollouts."""

    def __init__(self, case, threads):
        vr.set_num_threads(threads)
        self.data, self.model = case.data(), Model(case.hidden_size)
        self.model.load_state_dict(case.weights())
        self.optimizer = vr.optim.Adam(self.model.parameters(), lr=LEARNING_RATE)
        self.loss().backward()
        self.first_gradients = {name: weight.grad for name, weight in self.model.named_parameters()}
        self.optimizer.zero_grad()

    def training(self):
        """Train in some passes; return their losses, and the gradients that the first weights had."""
        return {"losses": [self.learn() for _ in range(PASSES)], **self.first_gradients}

    def loss(self):
        """Return the loss of the rollouts; a plan of the parts is made in each pass."""
        data = self.data
        h, _ = self.model.lstm(vr.LoDTensor(data.rows, [data.offsets]), tuple(data.states_of_parts()[:, None]))
        scores = self.model.actor(h)
        ratio = F.exp(-F.cross_entropy(scores, data.actions, reduction="none") - data.before)
        clipped = F.minimum(F.maximum(ratio, 1 - CLIP), 1 + CLIP)
        entropy = -(F.softmax(scores) * F.log_softmax(scores)).sum(axis=1).mean()
        error = F.mse_loss(self.model.critic(h), data.returns[:, None])
        return 0.5 * error - F.minimum(ratio * data.gains, clipped * data.gains).mean() - 0.01 * entropy

    def learn(self):
        """Make an update; return its loss."""
        loss = self.loss()
        loss.backward()
        vr.optim.clip_grad_norm_(self.model.parameters(), LARGEST_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def arrays(self, results):
        """Return results as arrays."""
        return {name: np.asarray(value) for name, value in results.items()}
