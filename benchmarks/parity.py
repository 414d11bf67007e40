"""Engines must agree before anyone asks which is faster."""

import numpy as np

from benchmarks.engines import BFLOAT16

# Of float32 sums over some thousand terms, which each engine adds in its own order; relative to the norm.
TOLERANCE = 1e-5
# Log-probabilities of labellings and of alignments add up to some thousands in 400 steps, of which float32 keeps 1e-4:
# so far are the gradients of a CRF and of CTC from those of float64, ours and PyTorch's.
WIDER = {"losses": 1e-4, "d_emission": 1e-3, "d_transition": 1e-3, "d_logits": 1e-3}
# Products in bfloat16 keep 8 bits of a factor: a GRU's gradients of recurrent weights are 0.016 away, others less.
OF_ENGINES = {f"torch {layout} bfloat16": 3e-2 for layout in ("groups", "padded", "packed")}
OF_ENGINES[BFLOAT16] = 1e-2  # with float32 weights and sums


def difference(ours, theirs):
    """Return the norm of the difference relative to ours; infinite where shapes differ or anything is not finite.

    Examples
    --------
    >>> difference(np.ones(4), np.full(4, 1.5)), difference(np.ones(4), np.ones(3))
    (0.5, inf)
    """
    if ours.shape != theirs.shape:
        return np.inf
    value = np.linalg.norm(ours - theirs) / (np.linalg.norm(ours) or 1)
    return float(value) if np.isfinite(value) else np.inf


def disagreement(outputs, tolerance=TOLERANCE):
    """Return why the outputs of engines are not to be trusted, or None if all agree.

    Parameters
    ----------
    outputs : dict
        For each engine a mapping of arrays by name; the first engine's are compared with every other's.
    tolerance : float
        The largest difference relative to the norm, unless an engine or a result has its own.
    """
    (first, ours), *others = outputs.items()
    if not others:
        return f"nothing to compare {first} with"
    for engine, theirs in others:
        if set(theirs) != set(ours):
            return f"{engine} gives {sorted(theirs)}, {first} {sorted(ours)}"
        for name in ours:
            apart, allowed = difference(ours[name], theirs[name]), OF_ENGINES.get(engine, WIDER.get(name, tolerance))
            if apart > allowed:
                return f"{name} of {engine} is {apart:.0e} from that of {first}, {allowed:.0e} allowed"
    return None
