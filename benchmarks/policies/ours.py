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
    """The model, its optimizer and the rollouts; an update is a bound step."""

    def __init__(self, case, threads):
        vr.set_num_threads(threads)
        self.data, self.model = case.data(), Model(case.hidden_size)
        self.model.load_state_dict(case.weights())
        self.optimizer = vr.optim.Adam(self.model.parameters(), lr=LEARNING_RATE)
        self.loss(*self.batch()).backward()
        self.first_gradients = {name: weight.grad for name, weight in self.model.named_parameters()}
        self.update = vr.bound(self.learn)

    def training(self):
        """Train in some passes; return their losses, and the gradients that the first weights had."""
        return {"losses": [self.update(*self.batch()).item() for _ in range(PASSES)], **self.first_gradients}

    def batch(self):
        """Return the arrays that a pass reads; each pass makes a plan of the parts."""
        data = self.data
        of_rows = data.actions, data.before, data.gains, data.returns[:, None]
        return vr.LoDTensor(data.rows, [data.offsets]), *data.states_of_parts(), *of_rows

    def loss(self, episodes, h_0, c_0, actions, before, gains, returns):
        """Return the loss of the rollouts."""
        h, _ = self.model.lstm(episodes, [state.reshape(1, *state.shape) for state in (h_0, c_0)])
        scores = self.model.actor(h)
        ratio = F.exp(-F.cross_entropy(scores, actions, reduction="none") - before)
        clipped = F.minimum(F.maximum(ratio, 1 - CLIP), 1 + CLIP)
        entropy = -(F.softmax(scores) * F.log_softmax(scores)).sum(axis=1).mean()
        error = F.mse_loss(self.model.critic(h), returns)
        return 0.5 * error - F.minimum(ratio * gains, clipped * gains).mean() - 0.01 * entropy

    def learn(self, *batch):
        """Make an update; return its loss."""
        self.optimizer.zero_grad()
        loss = self.loss(*batch)
        loss.backward()
        vr.optim.clip_grad_norm_(self.model.parameters(), LARGEST_NORM)
        self.optimizer.step()
        return loss

    def arrays(self, results):
        """Return results as arrays."""
        return {name: np.asarray(value) for name, value in results.items()}
