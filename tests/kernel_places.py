"""Where a process of a test finds compiled kernels: neither an installation nor the user's cache decides it."""

import os
from pathlib import Path

NOWHERE = Path(__file__).parent / "no_kernels"  # has an empty package `varlen_rnn_kernels`


def environment(cache, *path, **variables):
    """Return the environment variables of a process that finds no installed kernels but those on `path`.

    Parameters
    ----------
    cache : path
        The folder that kernels are saved in, and loaded from.
    *path : path
        Folders to look for packages in.  A `varlen_rnn_kernels` in them needs an `__init__.py`, to come first.
    **variables : str
        More variables.
    """
    searched = [*map(str, path), str(NOWHERE), os.environ.get("PYTHONPATH", "")]
    ours = {"NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(searched), "VARLEN_RNN_QUIET": "1"}
    return os.environ | ours | variables
