"""Optimizers in plain NumPy, on dense gradients; a sparse gradient is made dense by the caller. Fluid's formulas."""

import numpy as np


def sgd(p, g, state, lr):
    return p - lr * g, state


def momentum(p, g, state, lr, mu=0.9, nesterov=False):
    v = mu * state.get("v", 0) + g
    return p - lr * (g + mu * v if nesterov else v), {"v": v}


def adagrad(p, g, state, lr, epsilon=1e-6):
    m = state.get("m", 0) + g * g
    return p - lr * g / (np.sqrt(m) + epsilon), {"m": m}


def adam(p, g, state, lr, beta1=0.9, beta2=0.999, epsilon=1e-8):
    t = state.get("t", 0) + 1
    m = beta1 * state.get("m", 0) + (1 - beta1) * g
    v = beta2 * state.get("v", 0) + (1 - beta2) * g * g
    rate = lr * np.sqrt(1 - beta2**t) / (1 - beta1**t)
    return p - rate * m / (np.sqrt(v) + epsilon), {"t": t, "m": m, "v": v}
