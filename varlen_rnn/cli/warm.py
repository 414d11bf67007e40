"""`warm`: run typical trainings and inferences once on a small batch, so that all their kernels are compiled."""

import os

import numpy as np
from tqdm import tqdm

from varlen_rnn.cli.workload import works


def warm(dtypes):
    """Compile or load the kernels of all layers, optimizers and examples, and show a progress bar.

    Parameters
    ----------
    dtypes : list of str
        The data types for which to compile: "float32", "float64" or both.
    """
    quiet = os.environ.get("VARLEN_RNN_QUIET")
    os.environ["VARLEN_RNN_QUIET"] = "1"  # the progress bar replaces the message about compiling
    try:
        bar = tqdm([(name, work, dtype) for dtype in dtypes for name, work in works().items()], unit="part")
        for name, work, dtype in bar:
            bar.set_description(f"compiling {name}, {dtype}")
            work(np.dtype(dtype))
    finally:
        del os.environ["VARLEN_RNN_QUIET"]
        if quiet is not None:
            os.environ["VARLEN_RNN_QUIET"] = quiet
