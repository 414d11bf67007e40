"""The communicator that uses torch.distributed with gloo; torch works on the arrays' own memory, without copies."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, TypeAlias

import numpy as np

from varlen_rnn.communicator import Communicator, Operation, Pending
from varlen_rnn.distributed.rows import HEAD, check_same_rows, head_of, read_heads, row_bytes
from varlen_rnn.errors import InputError, check_number
from varlen_rnn.rows.checks import ends_of

_Begun: TypeAlias = tuple[np.ndarray, list[Any]]  # an array for the other rank's numbers, and requests to wait for
_COMING_UP = 300.0  # seconds in which all ranks must start; a restart on a busy machine takes a minute


class TorchCommunicator(Communicator):
    """The ranks of `torch.distributed`, over gloo, as `torchrun` launches them.

    Parameters
    ----------
    timeout : float
        Seconds, more than 0, after which a collective that waits for other ranks raises an error of torch.

    Raises
    ------
    InputError
        torch is not installed, or the variables of the environment that `torchrun` sets are missing.
    """

    def __init__(self, timeout: float = 600.0) -> None:
        super().__init__()
        limit = check_number(timeout, "TorchCommunicator, timeout", "seconds, more than 0", lambda s: 0 < s < 1e9)
        try:
            import torch
            import torch.distributed as dist
        except ImportError as error:
            raise InputError("TorchCommunicator", expected="torch", got=error, hint="pip install torch") from error
        self._torch, self._dist = torch, dist
        self._began = not dist.is_initialized()
        if self._began:
            _begin(dist, max(limit, _COMING_UP))
        # A separate group has its own timeout, and receives no message of the caller's group.
        self._group = dist.new_group(timeout=timedelta(seconds=limit), backend="gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def close(self) -> None:
        """Wait until all ranks call `close`, and leave the engine; afterwards, this communicator cannot be used."""
        self._barrier()
        self._dist.destroy_process_group(None if self._began else self._group)

    def _all_reduce(self, array: np.ndarray, op: Operation) -> None:
        if self.size == 2:
            return _Pair(self._begin_exchange(array, 1 - self.rank), array, op).wait()
        kind = self._dist.ReduceOp.SUM if op == "sum" else self._dist.ReduceOp.MAX
        self._dist.all_reduce(self._torch.from_numpy(array), kind, group=self._group)

    def _start_all_reduce(self, array: np.ndarray) -> Pending:
        if self.size == 2:
            return _Pair(self._begin_exchange(array, 1 - self.rank), array, "sum")
        return _Work(self._dist.all_reduce(self._torch.from_numpy(array), group=self._group, async_op=True))

    def _bytes(self, array: np.ndarray) -> Any:
        """Return a tensor of an array's bytes, which shares the array's memory; torch lacks some data types."""
        return self._torch.from_numpy(array.reshape(-1).view(np.uint8))

    def _all_gather(self, array: np.ndarray) -> list[np.ndarray]:
        heads = np.empty((self.size, HEAD), np.uint8)
        self._gather(head_of(array), heads)
        counts, small = read_heads(heads, array)
        if small is not None:
            return small
        # Gloo gathers only arrays of one size, so all are padded to the longest.
        padded = np.zeros((counts.max(), *array.shape[1:]), array.dtype)
        padded[: len(array)] = array
        out = np.empty((self.size, *padded.shape), array.dtype)
        self._gather(padded, out)
        return [out[rank, :rows] for rank, rows in enumerate(counts)]

    def _gather(self, array: np.ndarray, out: np.ndarray) -> None:
        if self.size == 2:
            out[self.rank], out[1 - self.rank] = array, self._exchange(array, 1 - self.rank)
            return
        parts = [self._bytes(part) for part in out.reshape(self.size, -1)]
        self._dist.all_gather(parts, self._bytes(array), group=self._group)

    def _all_to_all(self, arrays: list[np.ndarray]) -> list[np.ndarray]:
        send = np.array([[len(array), row_bytes(array)] for array in arrays])
        receive = np.empty_like(send)
        self._swap(send, receive, [16] * self.size, [16] * self.size)
        check_same_rows("all_to_all", receive[:, 1])
        ends = ends_of(receive[:, 0])
        out = np.empty((ends[-1], *arrays[0].shape[1:]), arrays[0].dtype)
        given, taken = ((table[:, 0] * table[:, 1]).tolist() for table in (send, receive))
        self._swap(np.concatenate(arrays), out, given, taken)
        return np.split(out, ends[1:-1])

    def _swap(self, array: np.ndarray, out: np.ndarray, given: list[int], taken: list[int]) -> None:
        """Send `given[r]` bytes of `array` to each rank r, and receive `taken[r]` bytes of each rank in `out`."""
        self._dist.all_to_all_single(self._bytes(out), self._bytes(array), taken, given, group=self._group)

    def _exchange(self, array: np.ndarray, peer: int) -> np.ndarray:
        out, requests = self._begin_exchange(array, peer)
        for request in requests:
            request.wait()
        return out

    def _begin_exchange(self, array: np.ndarray, peer: int) -> _Begun:
        out = np.empty_like(array)
        parts = (self._dist.irecv, self._bytes(out)), (self._dist.isend, self._bytes(array))
        return out, [begin(data, peer, group=self._group) for begin, data in parts]

    def _broadcast(self, array: np.ndarray, root: int) -> None:
        self._dist.broadcast(self._bytes(array), root, group=self._group)

    def _barrier(self) -> None:
        self._dist.barrier(group=self._group)


class _Pair:
    """A sum over two ranks, or their elementwise maximum, for which they swap their arrays.

    Gloo's own sum runs in a third thread, which takes 0.3 ms longer and slows threads that compute.  Here the calling
    thread sends, and gloo's thread receives.
    """

    def __init__(self, begun: _Begun, array: np.ndarray, op: Operation) -> None:
        (self._other, self._requests), self._array = begun, array
        self._join = np.add if op == "sum" else np.maximum

    def progress(self) -> None:
        pass

    def wait(self) -> None:
        for request in self._requests:
            request.wait()
        self._join(self._array, self._other, out=self._array)


class _Work:
    """A sum that a thread of torch computes in the background."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def progress(self) -> None:
        pass

    def wait(self) -> None:
        self._work.wait()


def _begin(dist: Any, seconds: float) -> None:
    """Connect to the other ranks that torchrun launched.

    torchrun's store of addresses survives a restart of the ranks (torch 2.13), which would then read the addresses of
    ended processes.  So each restart uses another prefix.
    """
    from torch.distributed.rendezvous import rendezvous

    limit = timedelta(seconds=seconds)
    try:
        store, rank, size = next(rendezvous("env://", timeout=limit))
    except ValueError as error:
        hint = "launch the script by torchrun, which sets the environment"
        raise InputError("TorchCommunicator", expected="the ranks of torchrun", got=error, hint=hint) from error
    store = dist.PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
