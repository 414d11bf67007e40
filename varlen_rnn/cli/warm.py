"""What a training and an inference use, run once on a small batch, so that every kernel of theirs is compiled."""

import os

import numpy as np
from tqdm import tqdm

from varlen_rnn import data, nn, optim
from varlen_rnn.baselines import Padded
from varlen_rnn.ops.sequence import sequence_pool
from varlen_rnn.program.block import no_grad

# Units: more than a panel of the register tile has columns, for an array with one panel has a layout of its own.
_SIZE = 200

LAYERS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


def warm(dtypes):
    """Compile, or load, the kernels of RNN, LSTM and GRU in these data types, with a bar that shows how far it is.

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
    # Batches as users make them: kernels are compiled for what `data.batches` gives.
    ids, labels = data.batches([[1, 2, 3], [], [1]], np.array([0, 1, 1]), batch_size=3)[0]
    bar = tqdm([(name, dtype) for dtype in dtypes for name in LAYERS], unit="layer")
    for name, dtype in bar:
        bar.set_description(f"compiling {name}, {dtype}")
        _train_and_infer(LAYERS[name], np.dtype(dtype), ids, labels)


def _train_and_infer(layer, dtype, ids, labels):
    embedding = nn.Embedding(4, _SIZE, dtype=dtype)
    recurrent = layer(_SIZE, _SIZE, bidirectional=True, dtype=dtype)
    output = nn.Linear(2 * _SIZE, 2, dtype=dtype)
    parameters = [p for module in (embedding, recurrent, output) for p in module.parameters()]
    optimizers = [optim.Adam(parameters), optim.Adam(parameters, lazy=True), optim.SGD(parameters, lr=1e-3)]

    def logits(run, pool):
        return output(sequence_pool(run(embedding(ids))[0], pool))

    for pool, run in (("mean", recurrent), ("max", recurrent), ("last", recurrent), ("mean", Padded(recurrent))):
        nn.functional.cross_entropy(logits(run, pool), labels).backward()
    for optimizer in optimizers:
        optimizer.step()
    with no_grad():
        logits(recurrent, "mean")
