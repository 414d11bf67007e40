"""Shards of work on a thread pool over kernels that release the GIL.

There is no threading layer: a kernel is called once a shard, with the shard's number and their count, and owns its
share from the first step to the last.  What a shard computes does not depend on how many there are, so results do not
depend on the number of threads.  Shards wait for each other only within a `team`.
"""

import contextlib
import contextvars
import os
import threading
from concurrent.futures import ThreadPoolExecutor

from varlen_rnn.errors import check_int

# Multiply-adds below which work stays on the calling thread: a round trip through the pool costs 30 to 60 us.
SMALL_WORK = 4_000_000
MAX_TEAM = 64  # threads of the pool

_num_threads = contextvars.ContextVar("num_threads", default=None)
_pool = None
_team = threading.Lock()


def _available_cores():
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def get_num_threads():
    """Return the number of threads that kernels of this context run on.

    Examples
    --------
    >>> get_num_threads() >= 1
    True
    """
    return _num_threads.get() or _available_cores()


def set_num_threads(num_threads):
    """Set the number of threads that kernels of this context run on; results do not depend on it.

    Parameters
    ----------
    num_threads : int
        At least 1; by default, the cores that this process may use.
    """
    _num_threads.set(check_int(num_threads, "num_threads", 1))


def count_shards(work, max_shards):
    """Return into how many shards to cut work: one, if it is not worth a trip through the pool.

    Parameters
    ----------
    work : int
        Multiply-adds in all; below `SMALL_WORK` there is one shard, on the calling thread.
    max_shards : int
        Into how many shards the work can be cut at most.
    """
    return 1 if work < SMALL_WORK else max(1, min(get_num_threads(), max_shards))


def for_each_shard(kernel, *arguments, num_shards, give_up=None):
    """Call `kernel(shard, num_shards, *arguments)`, a function that releases the GIL, for every shard.

    Parameters
    ----------
    give_up : function, optional
        Called when a shard failed, so that those that wait for it return.
    """
    if num_shards == 1:
        kernel(0, 1, *arguments)
        return

    def run(shard):
        try:
            kernel(shard, num_shards, *arguments)
        except BaseException:
            if give_up:
                give_up()
            raise

    futures = []
    try:
        for shard in range(1, num_shards):
            futures.append(_executor().submit(run, shard))
        kernel(0, num_shards, *arguments)
    except BaseException:
        if give_up:
            give_up()
        raise
    finally:  # arrays in use must outlive every shard, whatever happened in this one
        errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None:
            raise error


@contextlib.contextmanager
def team():
    """Yield whether shards may wait for each other: all of them then run at once.

    There is one team at a time, and it fits the pool: of two, each could hold threads that the other waits for.
    """
    mine = _team.acquire(blocking=False)
    try:
        yield mine
    finally:
        if mine:
            _team.release()


def _executor():
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(max_workers=MAX_TEAM, thread_name_prefix="varlen_rnn")
    return _pool


def _forget_pool():
    global _pool, _team
    _pool, _team = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)  # a child inherits the pool, but none of its threads
