"""What trainings and inferences use, run once on a small batch, so that every kernel of theirs is compiled."""

import functools
import os

import numpy as np
from tqdm import tqdm

from varlen_rnn import data, nn, optim
from varlen_rnn.baselines import Padded
from varlen_rnn.ops.sequence.concat_outputs import concat_outputs
from varlen_rnn.ops.sequence.init_memories import init_memories
from varlen_rnn.ops.sequence.pool import sequence_pool
from varlen_rnn.ops.sequence.segment_inputs import segment_inputs
from varlen_rnn.rows.plan import sort_by_seq_len
from varlen_rnn.tape.modes import no_grad

# Units: more than a panel of the register tile has columns, for an array with one panel has a layout of its own.
_SIZE = 200

LAYERS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
_ALL_LAYERS = LAYERS | {"relu rnn": functools.partial(nn.RNN, nonlinearity="relu")}


def warm(dtypes):
    """Compile, or load, the kernels of all layers and optimizers in these data types, and show a bar.

    Parameters
    ----------
    dtypes : list of str
        "float32" or "float64".
    """
    quiet = os.environ.get("VARLEN_RNN_QUIET")
    os.environ["VARLEN_RNN_QUIET"] = "1"  # the bar says it
    try:
        _warm(dtypes)
    finally:
        del os.environ["VARLEN_RNN_QUIET"]
        if quiet is not None:
            os.environ["VARLEN_RNN_QUIET"] = quiet


def _warm(dtypes):
    # Batches as users make them, because kernels are compiled for the arrays of `data.batches`.
    ids, labels = data.batches([[1, 2, 3], [], [1]], np.array([0, 1, 1]), batch_size=3)[0]
    bar = tqdm([(name, dtype) for dtype in dtypes for name in _ALL_LAYERS], unit="layer")
    for name, dtype in bar:
        bar.set_description(f"compiling {name}, {dtype}")
        _train_and_infer(_ALL_LAYERS[name], np.dtype(dtype), ids, labels)


def _train_and_infer(layer, dtype, ids, labels):
    embedding = nn.Embedding(4, _SIZE, dtype=dtype)
    recurrent = layer(_SIZE, _SIZE, bidirectional=True, dtype=dtype)
    output = nn.Linear(2 * _SIZE, 2, dtype=dtype)
    parameters = [p for module in (embedding, recurrent, output) for p in module.parameters()]
    # The gradients of the embedding are sparse, all others dense.
    optimizers = [optim.SGD(parameters, lr=1e-3), optim.Momentum(parameters, lr=1e-3), optim.Adagrad(parameters)]
    optimizers.append(optim.Adam(parameters))

    def logits(run, pool):
        return output(sequence_pool(run(embedding(ids))[0], pool))

    for pool, run in (("mean", recurrent), ("max", recurrent), ("last", recurrent), ("mean", Padded(recurrent))):
        nn.functional.cross_entropy(logits(run, pool), labels).backward()
    nn.Embedding(4, _SIZE, sparse=False, dtype=dtype)(ids).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    with no_grad():
        logits(recurrent, "mean")
    _walk_steps(embedding(ids))


def _walk_steps(x):
    """Run forward and backward through the steps of a recurrence written by hand."""
    plan = sort_by_seq_len(x)
    steps = [segment_inputs(x, plan, t) for t in range(plan.max_seq_len)]
    (concat_outputs(steps, plan).sum() + init_memories(x[:3], plan).sum()).backward()
