"""Training steps of small models, on the CPU and on a CUDA device."""

import gc

import numpy as np

import varlen_rnn as vr
from tests.emulated.ledger import steady


def step_on(place, make, loss_of, *given):
    """Return a function that trains a model once on a batch, at a place, and returns the loss.

    Parameters
    ----------
    place : str
    make : callable
        `make()` returns the model.
    loss_of : callable
        `loss_of(model, *batch)` returns the loss.
    given : LoDTensors, and arrays of Variables
        The batch.
    """
    vr.manual_seed(0)
    model = make().to(place)
    batch = [(value if isinstance(value, vr.LoDTensor) else vr.Variable(value)).to(place) for value in given]
    optimizer = vr.optim.Adam(model.parameters(), lr=1e-2, lazy=True)
    vr.manual_seed(1)  # of dropout

    def step():
        optimizer.zero_grad()
        loss = loss_of(model, *batch)
        loss.backward()
        vr.optim.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


def check_losses(step_at, is_steady=True):
    """Check that three losses are the CPU's, and that a fourth step neither copies nor allocates if it `is_steady`.

    `step_at(place)` returns a training step.
    """
    losses = {}
    for place in ("cpu", "cuda"):
        step = step_at(place)
        losses[place] = [step().item() for _ in range(3)]
    np.testing.assert_allclose(losses["cuda"], losses["cpu"], rtol=1e-6)
    assert losses["cpu"][2] != losses["cpu"][0]
    if is_steady:
        gc.collect()
        with steady():
            step()
