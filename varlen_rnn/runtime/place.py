"""Places: the numbers of a value are on the host or on a CUDA device.

    device("cuda")      # a Place: `x.to(...)` takes a Place, and `x.device` returns a Place

A value has one place.  LoDs and plans are on the host, even if the rows are on a device.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from varlen_rnn.errors import PlaceError, shown


class Place(NamedTuple):
    """Where the numbers of a value are, by `type` "cpu" or "cuda"; `vr.device` makes it, and `x.device` returns it."""

    type: str

    def __str__(self) -> str:
        return "cpu" if self.type == "cpu" else "cuda:0"

    def __repr__(self) -> str:
        return f"device({str(self)!r})"


HOST, CUDA = Place("cpu"), Place("cuda")
_PLACES = {"cpu": HOST, "cuda": CUDA, "cuda:0": CUDA}


def device(name: str | Place) -> Place:
    """Return the Place with a name.

    Parameters
    ----------
    name : {"cpu", "cuda", "cuda:0"} or Place
        There is one CUDA device.  The environment variable `CUDA_VISIBLE_DEVICES` chooses it if a machine has several.

    Raises
    ------
    PlaceError
        If there is no such place.  Whether this machine has a GPU is checked only when a value is moved there.

    Examples
    --------
    >>> device("cuda"), device("cuda") == device("cuda:0"), device("cpu").type
    (device('cuda:0'), True, 'cpu')

    Source: `torch.device`.
    """
    found: Any = _PLACES.get(str(name)) if isinstance(name, str | Place) else None
    if found is None:
        hint = "CUDA_VISIBLE_DEVICES chooses a GPU" if isinstance(name, str) and name.startswith("cuda:") else None
        hint = "x.astype(dtype) converts numbers" if isinstance(name, type | np.dtype) else hint
        raise PlaceError("device", expected="'cpu', 'cuda' or 'cuda:0'", got=shown(name), hint=hint)
    return found
