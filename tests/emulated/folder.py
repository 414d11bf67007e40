"""The folder of PTX and compiled kernels: `VARLEN_RNN_EMULATED`, or one in the user's cache.

Names are digests of all that decides the contents, so nothing in it is ever wrong; deleting it costs minutes.
"""

import os
from pathlib import Path


def folder():
    """Return the folder, which exists."""
    found = Path(os.environ.get("VARLEN_RNN_EMULATED", Path.home() / ".cache" / "varlen_rnn_emulated"))
    found.mkdir(parents=True, exist_ok=True)
    return found


def kept(name, make):
    """Return the path of a file in the folder; `make(path)` writes it if it is not there, then it appears whole."""
    path = folder() / name
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        partial = path.with_name(f"{os.getpid()}.{path.name}")
        make(partial)
        os.replace(partial, path)
    return path
