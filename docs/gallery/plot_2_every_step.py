"""A label for every step
======================

A signal switches between slow and fast oscillation at random moments. A recurrent layer predicts at each step
which of both it is. A layer that also runs backward knows the steps that follow, so it is surer right after a switch.
"""

import matplotlib.pyplot as plt
import numpy as np

import varlen_rnn as vr

rng = np.random.default_rng(0)


def signal():
    """Return a noisy signal of random length, a row per step, and whether it is fast at each step."""
    pieces = rng.integers(10, 60, size=rng.integers(1, 8))
    fast = np.repeat((np.arange(len(pieces)) + rng.integers(2)) % 2, pieces)
    phase = np.cumsum(np.where(fast, 1 / 6, 1 / 12))
    noisy = np.sin(2 * np.pi * phase) + 0.5 * rng.standard_normal(len(fast))
    return noisy.astype(np.float32)[:, None], fast


signals, labels = zip(*(signal() for _ in range(300)), strict=True)
print(vr.LoDTensor.from_sequences(signals))

# %%
# Both models return two scores for each row. Labels of rows come in batches that share the LoD of the signals.


class Tagger(vr.nn.Module):
    """A recurrent layer, and scores of both labels from each of its outputs."""

    def __init__(self, direction):
        self.recurrent = vr.nn.GRU(1, 24, direction=direction, merge="sum")
        self.output = vr.nn.Linear(24, 2)

    def forward(self, x):
        y, _ = self.recurrent(x)
        return self.output(y)


def train(model):
    """Return the loss of each step of training."""
    optimizer, losses = vr.optim.Adam(model.parameters(), lr=1e-2), []
    batches = vr.data.batches(signals[:250], labels[:250], batch_size=16, shuffle=True)
    for epoch in range(15):
        for x, wanted in batches.at_epoch(epoch):
            loss = vr.nn.functional.cross_entropy(model(x), wanted)
            optimizer.minimize(loss)
            losses.append(loss.item())
    return losses


vr.manual_seed(0)
models = {direction: Tagger(direction) for direction in ("forward", "both")}
losses = {direction: train(model) for direction, model in models.items()}

# %%
# The share of steps of held-out signals that are predicted correctly.
held_out, wanted = vr.LoDTensor.from_sequences(signals[250:]), np.concatenate(labels[250:])
for direction, model in models.items():
    with vr.no_grad():
        found = np.asarray(model(held_out)).argmax(axis=1)
    print(f"{direction}: {np.mean(found == wanted):.3f} of {len(wanted)} steps")

# %%
# The training losses, and the predictions for the longest held-out signal.
number = 250 + int(np.argmax([len(one) for one in signals[250:]]))
figure, (top, bottom) = plt.subplots(2, 1, figsize=(9, 5), layout="constrained")
for direction, model in models.items():
    top.plot(losses[direction], label=direction)
    with vr.no_grad():
        scores = vr.nn.functional.softmax(model(vr.LoDTensor.from_sequences([signals[number]])))
    bottom.plot(np.asarray(scores)[:, 1], label=f"probability of fast, {direction}")
top.set(xlabel="step of training", ylabel="loss")
bottom.plot(signals[number][:, 0], color="0.8", zorder=0)
bottom.fill_between(np.arange(len(labels[number])), labels[number], color="tab:green", alpha=0.15, label="is fast")
bottom.set(xlabel="step of the signal")
top.legend()
bottom.legend(loc="lower right")
plt.show()
