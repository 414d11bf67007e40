"""Rows instead of padding
=======================

This page shows one batch in two forms: padded to its longest sequence, and as varlen_rnn stores it, the rows of all
sequences one after another. The plan says how many sequences each step of a recurrence still has.
"""

import matplotlib.pyplot as plt
import numpy as np

import varlen_rnn as vr

rng = np.random.default_rng(1)
lengths = rng.lognormal(2.5, 0.8, size=12).astype(int)
x = vr.create_lod_tensor(np.zeros((lengths.sum(), 1), np.float32), [lengths])
print(x)

# %%
# The plan sorts the sequences by length, longest first. No row moves: sequence k of the plan begins at row `starts[k]`.
plan = vr.sort_by_seq_len(x)
print("order ", plan.sorted_indices)
print("starts", plan.starts)
print("alive ", plan.batch_sizes)
print(plan.padding(bucket_size=4))

# %%
# Grey is padding, which a recurrence over the padded batch computes and a recurrence over rows does not. The curve on
# the right is the number of sequences that still have a row: so many rows are multiplied by the recurrent weights.
padded = np.where(np.arange(lengths.max()) < lengths[:, None], np.arange(len(lengths))[:, None] + 1.0, 0.0)
colours = plt.get_cmap("viridis").with_extremes(under="0.85")
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
left.imshow(padded, aspect="auto", cmap=colours, vmin=0.5)
left.set(title=f"padded: {padded.size} rows", xlabel="step", ylabel="sequence")
sorted_rows = padded[plan.sorted_indices]
middle.imshow(np.where(sorted_rows > 0, sorted_rows, np.nan), aspect="auto", cmap=colours, vmin=0.5)
middle.set(title=f"by the plan: {len(x.data)} rows", xlabel="step", ylabel="rank")
right.step(np.arange(len(plan.batch_sizes)), plan.batch_sizes, where="mid")
right.set(title="sequences still alive", xlabel="step", ylim=(0, len(lengths) + 1))
plt.show()
