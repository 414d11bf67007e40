"""Batch normalisation in plain NumPy."""

import numpy as np


def batch_norm(x, state, momentum, training, eps=1e-5):
    """Return the normalised rows, and the state after them: PyTorch's, and unchanged moments where PyTorch raises."""
    state = dict(state)
    mean, variance = state["running_mean"], state["running_var"]
    if training and len(x):
        mean, variance = x.mean(axis=0), x.var(axis=0)
        state["num_batches_tracked"] = state["num_batches_tracked"] + 1
        share = 1 / state["num_batches_tracked"] if momentum is None else momentum
        state["running_mean"] = (1 - share) * state["running_mean"] + share * mean
        if len(x) > 1:
            state["running_var"] = (1 - share) * state["running_var"] + share * x.var(axis=0, ddof=1)
    return (x - mean) / np.sqrt(variance + eps) * state["weight"] + state["bias"], state
