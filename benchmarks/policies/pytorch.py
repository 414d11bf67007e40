"""PyTorch's update in the three ways of its libraries: padded with a mask, packed, and in a loop over steps.

Parts of episodes stand ready as padded rectangles with their masks, so neither padding nor sorting is part of a step.
"""

import numpy as np
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from benchmarks.policies.case import ACTIONS, CLIP, FEATURES, LARGEST_NORM, LEARNING_RATE, PASSES
from benchmarks.rectangle import Rectangle


class Model(torch.nn.Module):
    """An LSTM, the scores of actions, and the expected return."""

    def __init__(self, hidden_size):
        super().__init__()
        self.lstm = torch.nn.LSTM(FEATURES, hidden_size)
        self.actor, self.critic = torch.nn.Linear(hidden_size, ACTIONS), torch.nn.Linear(hidden_size, 1)


class Padded:
    """Parts of episodes, padded to the longest; the loss masks the padding, as in sb3-contrib and TorchRL."""

    def __init__(self, case, threads):
        torch.set_num_threads(threads)
        self.model, self.arranged = Model(case.hidden_size), self.arrangement(case.data())
        self.model.load_state_dict({name: torch.from_numpy(array) for name, array in case.weights().items()})
        # Fused is PyTorch's fastest form of Adam.
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE, fused=True)
        self.loss().backward()
        self.first_gradients = {name: weight.grad.clone() for name, weight in self.model.named_parameters()}
        self.optimizer.zero_grad()

    def arrangement(self, data):
        """Return rows, states and what else a pass reads, steps first; and the mask of rows that count."""
        rectangle = Rectangle(np.diff(data.offsets))
        states = data.states_of_parts()[:, rectangle.order]
        self.lengths = torch.from_numpy(rectangle.lengths)
        given = (data.rows, data.actions, data.before, data.gains, data.returns, np.ones(len(data.rows), np.float32))
        return [*map(torch.from_numpy, map(rectangle.pad, given)), *torch.from_numpy(states)[:, None]]

    def training(self):
        """Train in some passes; return their losses, and the gradients that the first weights had."""
        return {"losses": [self.learn() for _ in range(PASSES)], **self.first_gradients}

    def outputs(self, rows, *states):
        """Return the outputs of the LSTM, one row per place of the arrangement."""
        return self.model.lstm(rows, states)[0]

    def loss(self):
        """Return the loss of the rollouts."""
        rows, actions, before, gains, returns, mask, *states = self.arranged
        h, count = self.outputs(rows, *states), mask.sum()
        of_actions = self.model.actor(h).log_softmax(-1)
        ratio = (of_actions.gather(-1, actions[..., None])[..., 0] - before).exp()
        entropy = -((of_actions.exp() * of_actions).sum(-1) * mask).sum() / count
        error = ((self.model.critic(h)[..., 0] - returns).square() * mask).sum() / count
        gained = torch.minimum(ratio * gains, ratio.clamp(1 - CLIP, 1 + CLIP) * gains)
        return 0.5 * error - (gained * mask).sum() / count - 0.01 * entropy

    def learn(self):
        """Make an update; return its loss."""
        loss = self.loss()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), LARGEST_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def arrays(self, results):
        """Return results as arrays."""
        return {name: np.asarray(value) for name, value in results.items()}


class Packed(Padded):
    """The same with a packed LSTM, as TorchRL packs parts of episodes."""

    def outputs(self, rows, *states):
        """Return the outputs of the LSTM, zeros in the padding."""
        packed = pack_padded_sequence(rows, self.lengths)
        return pad_packed_sequence(self.model.lstm(packed, states)[0])[0]


class Loop(Padded):
    """Whole rollouts without padding, in a loop over steps that resets states, as sb3-contrib and CleanRL do it."""

    def arrangement(self, data):
        """Return rows, states and what else a pass reads, steps first; no row is masked."""
        self.kept = 1 - torch.from_numpy(data.starts.astype(np.float32).T)[:, None, :, None]
        given = data.rows, data.actions, data.before, data.gains, data.returns, np.ones(len(data.rows), np.float32)
        steps = [torch.from_numpy(np.swapaxes(a.reshape(*data.starts.shape, *a.shape[1:]), 0, 1).copy()) for a in given]
        return [*steps, *torch.from_numpy(data.states)[:, None]]

    def outputs(self, rows, *states):
        """Return the outputs of the LSTM of each step."""
        found = []
        for row, kept in zip(rows, self.kept, strict=True):
            h, states = self.model.lstm(row[None], tuple(kept * state for state in states))
            found.append(h)
        return torch.cat(found)
