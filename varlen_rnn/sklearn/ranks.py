"""Share data between the ranks (processes) of a fit: a result that rank 0 computed, and sums over all ranks.

Every rank calls `fit` with the same data.  All ranks train the network (`training.Trainer`).  Rank 0 alone computes the
other candidates, such as a ridge, and sends them to the other ranks, so that all ranks have the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from varlen_rnn.communicator import Communicator, check_communicator
from varlen_rnn.errors import InputError

State = tuple[dict[str, np.ndarray], Any]  # arrays by name, and a value that JSON can hold


def several(comm: Any) -> Communicator | None:
    """Return the communicator if it has several ranks, otherwise None; raise if `comm` is no communicator."""
    return None if comm is None or check_communicator(comm, "fit, comm").size == 1 else comm


def is_first(comm: Communicator | None) -> bool:
    """Return whether this is the only rank or rank 0, the one that prints and writes."""
    return comm is None or comm.rank == 0


def from_first(comm: Communicator | None, make: Callable[[], State]) -> State:
    """Return on every rank the result that `make` has on rank 0; if `make` raises, every rank raises."""
    if comm is None:
        return make()
    arrays: dict[str, np.ndarray] = {}
    head: dict[str, Any] = {}
    error: BaseException | None = None
    if comm.rank == 0:
        try:
            arrays, value = make()
            described = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
            head = {"arrays": described, "value": value}
        except BaseException as caught:  # sent to the other ranks, which wait for rank 0
            error, head = caught, {"error": f"{type(caught).__name__}: {caught}"}
    head = _sent(comm, head)
    if error is not None:
        raise error
    if "error" in head:
        raise InputError("fit on several ranks", expected="no error on rank 0", got=head["error"])
    found = {}
    for name, dtype, shape in head["arrays"]:
        array = np.ascontiguousarray(arrays[name]) if comm.rank == 0 else np.empty(shape, dtype)
        found[name] = array = array if array.flags.writeable else array.copy()
        comm.broadcast(array)
    return found, head["value"]


def _sent(comm: Communicator, value: Any) -> Any:
    """Return on every rank the value of rank 0, which JSON can hold."""
    text = np.frombuffer(json.dumps(value).encode(), np.uint8).copy()
    size = np.array([len(text)])
    comm.broadcast(size)
    text = text if comm.rank == 0 else np.empty(int(size[0]), np.uint8)
    comm.broadcast(text)
    return json.loads(text.tobytes())


def array_of_first(comm: Communicator | None, make: Callable[[], np.ndarray]) -> np.ndarray:
    """Return on every rank the array that `make` returns on rank 0."""
    return from_first(comm, lambda: ({"array": make()}, None))[0]["array"]


def summed(comm: Communicator | None, *numbers: float) -> list[float]:
    """Return the sum over all ranks of each of the numbers."""
    if comm is None:
        return list(numbers)
    array = np.array(numbers, np.float64)
    comm.all_reduce(array)
    return array.tolist()
