"""Attention over the rows of a sequence
=====================================

Each row is a random number and a mark. Two rows of a sequence are marked, and the model learns the sum of their
numbers (the adding problem of Hochreiter and Schmidhuber, 1997). A softmax over the rows of each sequence weights
the rows, and a weighted sum makes one row per sequence. The pictures show these weights.
"""

import matplotlib.pyplot as plt
import numpy as np

import varlen_rnn as vr

rng = np.random.default_rng(0)


def problem():
    """Return rows of a number and a mark, and the sum of the two marked numbers."""
    length = rng.integers(5, 60)
    rows = np.zeros((length, 2), np.float32)
    rows[:, 0] = rng.uniform(size=length)
    rows[rng.choice(length, size=2, replace=False), 1] = 1.0
    return rows, np.float32(rows[:, 0] @ rows[:, 1])


class Adder(vr.nn.Module):
    """A GRU, weights of its rows, and the weighted sum of each sequence."""

    def __init__(self):
        self.recurrent = vr.nn.GRU(2, 16)
        self.score, self.value = vr.nn.Linear(16, 1), vr.nn.Linear(16, 1)

    def weights(self, x):
        """Return the weight of each row, which sum to 1 in each sequence, and the outputs of the GRU."""
        y, _ = self.recurrent(x)
        return vr.sequence_softmax(self.score(y)), y

    def forward(self, x):
        weights, y = self.weights(x)
        return vr.sequence_pool(weights * self.value(y), "sum").reshape(-1)


# %%
# The loss of always answering 1, the mean, is 1/6.
vr.manual_seed(0)
model = Adder()
optimizer, losses = vr.optim.Adam(model.parameters(), lr=1e-2), []
for _ in range(600):
    rows, sums = zip(*(problem() for _ in range(32)), strict=True)
    loss = vr.nn.functional.mse_loss(model(vr.LoDTensor.from_sequences(rows)), np.array(sums))
    optimizer.minimize(loss)
    losses.append(loss.item())
print(f"loss {np.mean(losses[:20]):.3f} at first, {np.mean(losses[-20:]):.4f} at last")

# %%
# The weights of the rows of four sequences, and the rows that were marked.
problems = [problem() for _ in range(4)]
with vr.no_grad():
    weights, _ = model.weights(vr.LoDTensor.from_sequences([rows for rows, _ in problems]))
figure, axes = plt.subplots(1, 5, figsize=(13, 3.2), layout="constrained")
figure.suptitle("Training loss, and attention weights of four sequences")
axes[0].semilogy(losses)
axes[0].set(title="training loss", xlabel="step of training", ylabel="mean squared error")
for axis, (rows, _), weight in zip(axes[1:], problems, weights.value.to_sequences(), strict=True):
    axis.bar(np.arange(len(rows)), weight[:, 0])
    axis.plot(np.flatnonzero(rows[:, 1]), np.zeros(2), "^", color="tab:red", markersize=9, label="marked row")
    axis.set(title=f"{len(rows)} rows", xlabel="row", ylim=(-0.03, 1.0))
axes[1].set_ylabel("weight (0 to 1)")
axes[1].legend(loc="upper left")
plt.show()
