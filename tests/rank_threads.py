"""Ranks that are threads of one process: a communicator for tests, and `run_ranks`, which gives each thread one."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tests.waiting import HANGS
from varlen_rnn.distributed import Communicator
from varlen_rnn.distributed.rows import check_same_rows, row_bytes


class _Shared:
    """What the ranks of one run have in common."""

    def __init__(self, size):
        self.places, self.meeting = [None] * size, threading.Barrier(size, timeout=HANGS)
        self.sums, self.arrived = {}, threading.Condition()


class ThreadCommunicator(Communicator):
    """One of several ranks, each a thread; sums are added in the order of ranks."""

    def __init__(self, rank, shared):
        super().__init__()
        self.rank, self.size, self._shared = rank, len(shared.places), shared
        self._started = 0

    def _share(self, value):
        """Return the values of all ranks."""
        self._shared.meeting.wait()
        self._shared.places[self.rank] = value
        self._shared.meeting.wait()
        found = list(self._shared.places)
        self._shared.meeting.wait()
        return found

    def _all_reduce(self, array, op):
        found = self._share(array.copy())
        array[...] = (np.sum if op == "sum" else np.max)(found, axis=0)

    def _start_all_reduce(self, array):
        self._started += 1
        return _Sum(self._shared, self._started, self.rank, array)

    def _all_gather(self, array):
        found = self._share(array.copy())
        check_same_rows("all_gather", np.array([row_bytes(part) for part in found]))
        return [part.copy() for part in found]

    def _all_to_all(self, arrays):
        return [parts[self.rank].copy() for parts in self._share(arrays)]

    def _exchange(self, array, peer):
        return self._share(array.copy())[peer]

    def _broadcast(self, array, root):
        array[...] = self._share(array.copy())[root]

    def _barrier(self):
        self._shared.meeting.wait()


class _Sum:
    """A sum in the background: until it is complete, the array holds the largest number, so that early use is seen."""

    def __init__(self, shared, number, rank, array):
        self._shared, self._number, self._array = shared, number, array
        with shared.arrived:
            shared.sums.setdefault(number, {})[rank] = array.copy()
            shared.arrived.notify_all()
        array.fill(np.iinfo(array.dtype).max if array.dtype.kind == "i" else np.nan)

    def progress(self):
        pass

    def _is_complete(self):
        return len(self._shared.sums[self._number]) == len(self._shared.places)

    def wait(self):
        with self._shared.arrived:
            assert self._shared.arrived.wait_for(self._is_complete, HANGS), "a rank did not begin a sum"
        parts = self._shared.sums[self._number]
        self._array[...] = np.sum([parts[rank] for rank in sorted(parts)], axis=0)


def run_ranks(size, function):
    """Return what `function(comm)` returns on each of several ranks, or raise what it raised."""
    shared = _Shared(size)

    def run(rank):
        try:
            return function(ThreadCommunicator(rank, shared))
        except BaseException:
            shared.meeting.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(run, rank) for rank in range(size)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error  # first what led to a broken meeting
    return [future.result() for future in futures]
