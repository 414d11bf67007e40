"""Shards of work on threads, over kernels that release the GIL.

There is no threading layer: a kernel is called once per shard, with the shard's number and their count.  It owns its
share from the first step to the last, or takes piece after piece at a counter.  What is computed does not depend on how
many shards there are, so results do not depend on the number of threads.  Shards wait for each other only within a
`team`, or for a piece that one has taken, which therefore must not fail.

An interrupt (Ctrl-C) may come after any call in the main thread.  So nothing here takes a lock or counts in several
steps: threads share lists and queues, each changed by one call of C.
"""

from __future__ import annotations

import _thread
import contextlib
import contextvars
import functools
import os
import re
from collections.abc import Callable, Iterator
from queue import SimpleQueue

from varlen_rnn.errors import DTypeError, check_int, shown

# Multiply-adds below which work stays on the calling thread: a helper comes after 30 to 60 us.
SMALL_WORK = 4_000_000
MAX_THREADS = 64  # of a call, the calling one among them

VARIABLE = "VARLEN_RNN_NUM_THREADS"  # of the environment

_own_number: contextvars.ContextVar[int | None] = contextvars.ContextVar("num_threads", default=None)
_last_number: int | None = None  # the last number that any context has set; it holds for contexts without their own
_jobs: list[_Job] = []  # unfinished jobs
_helpers: list[None] = []  # one entry per thread
_wakes: SimpleQueue[None] = SimpleQueue()  # for each entry, a helper looks into all jobs
_teams: list[object] = []  # those who asked to be a team; the first of them is


def _available_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def get_num_threads() -> int:
    """Return the number of threads that kernels run on when they are called here, 64 at most.

    Raises
    ------
    DTypeError, ShapeError
        Nobody has set one, and the environment's `VARLEN_RNN_NUM_THREADS` is no integer of at least 1.

    Examples
    --------
    >>> get_num_threads() >= 1
    True
    """
    return min(_own_number.get() or _last_number or _number_of_environment() or _available_cores(), MAX_THREADS)


@functools.cache
def _number_of_environment() -> int | None:
    """Return the number that the environment set when it was first asked for, or None."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    if not re.fullmatch("[+-]?[0-9]{1,18}", text):
        raise DTypeError(VARIABLE, expected="an integer of at least 1", got=shown(text))
    return check_int(int(text), VARIABLE, 1)


def set_num_threads(num_threads: int) -> None:
    """Set the number of threads that kernels run on; results do not depend on it.

    It holds for the whole process, except for a thread (or another context of `contextvars`, such as an asyncio task)
    that has called this function itself.  So two threads may compute on different numbers of threads.

    Parameters
    ----------
    num_threads : int
        At least 1; by default the environment variable `VARLEN_RNN_NUM_THREADS`, else the cores that this process may
        use.  More than 64 are no error: kernels then run on 64, and `get_num_threads` returns 64.

    Raises
    ------
    DTypeError, ShapeError
        `num_threads` is no integer, or less than 1.

    Examples
    --------
    >>> before = get_num_threads()
    >>> set_num_threads(1000); get_num_threads()
    64
    >>> set_num_threads(before)
    """
    global _last_number
    set_num_threads_here(num_threads)
    _last_number = _own_number.get()


def set_num_threads_here(num_threads: int) -> None:
    """Set the number of threads that kernels run on in this context alone."""
    _own_number.set(check_int(num_threads, "num_threads", 1))


def count_shards(work: int, max_shards: int) -> int:
    """Return into how many shards to cut work: one, if it is not worth waking helpers.

    Parameters
    ----------
    work : int
        Multiply-adds in all; below `SMALL_WORK` there is one shard, on the calling thread.
    max_shards : int
        Into how many shards the work can be cut at most.
    """
    return 1 if work < SMALL_WORK else max(1, min(get_num_threads(), max_shards))


def for_each_shard(
    kernel: Callable[..., object],
    *arguments: object,
    num_shards: int,
    give_up: Callable[[], object] | None = None,
) -> None:
    """Call `kernel(shard, num_shards, *arguments)`, a function that releases the GIL, for every shard.

    It returns, or raises the error of a shard, after all started shards have ended; after an error, no more start.

    Parameters
    ----------
    give_up : function, optional
        Called when a shard failed, so that those that wait for it return; perhaps more than once.  It must not fail.
    """
    if num_shards == 1:
        kernel(0, 1, *arguments)
        return
    job = _Job(kernel, arguments, num_shards, give_up)
    try:
        job.run()
    finally:  # after any error, no thread may still work on arrays that the caller will use
        try:
            job.settle()
        finally:  # an interrupt may come as `settle` begins, or between its attempts
            job.settle()
    if job.errors:
        raise job.errors.pop(0)


class _Job:
    """The shards of one call: the caller and its helpers each take the next one, until none is left."""

    def __init__(
        self,
        kernel: Callable[..., object],
        arguments: tuple[object, ...],
        num_shards: int,
        give_up: Callable[[], object] | None,
    ) -> None:
        self.kernel, self.arguments, self.num_shards = kernel, arguments, num_shards
        self.give_up = give_up or (lambda: None)
        self.shards = iter(range(num_shards))
        self.num_helpers = min(num_shards, MAX_THREADS) - 1
        self.errors: list[BaseException] = []  # of helpers
        self.has_run, self.is_closed = False, False
        self.came: list[None] = []
        self.went: list[None] = []
        self.news: SimpleQueue[None] = SimpleQueue()

    def run(self) -> None:
        """Wake the helpers and take part; a helper that comes late finds nothing left, and nobody waits for it."""
        _jobs.append(self)
        _wake_helpers()
        for shard in self.shards:
            if self.is_closed:
                break
            self.kernel(shard, self.num_shards, *self.arguments)
        self.has_run = True

    def help(self) -> None:
        """Take part, as a helper."""
        self.came.append(None)  # before it looks whether the job is closed, for who closes it then looks here
        for shard in self.shards:
            if self.is_closed:
                break
            try:
                self.kernel(shard, self.num_shards, *self.arguments)
            except BaseException as error:
                self.errors.append(error)
                self.is_closed = True
                self.give_up()
        self.went.append(None)
        self.news.put(None)

    def settle(self) -> None:
        """Return once no helper is in a shard; an interrupt during the wait is raised then."""
        interrupt = None
        while True:
            try:
                if not self.has_run:
                    self.is_closed = True
                    self.give_up()
                while len(self.came) > len(self.went):
                    self.news.get()
                if self in _jobs:
                    _jobs.remove(self)
                break
            except BaseException as error:
                interrupt = error
        if interrupt:
            raise interrupt


def _wake_helpers() -> None:
    """Wake as many helpers as all jobs want, for the members of a team wait for each other; start those missing."""
    wanted = sum(job.num_helpers for job in list(_jobs))
    _ensure_helpers(wanted)
    while _wakes.qsize() < wanted:
        _wakes.put(None)


def _ensure_helpers(count: int) -> bool:
    """Start the helpers missing from so many, as far as the system gives threads; return whether all are there."""
    while len(_helpers) < count:
        try:
            # Not `threading.Thread`, whose `start` takes locks that an interrupt leaves locked.  These are daemons.
            _thread.start_new_thread(_help_for_ever, ())
        except RuntimeError:  # a limit of the user's, or the interpreter ends
            return False
        _helpers.append(None)  # after: an interrupt in between costs a thread too many, never one too few
    return True


def _help_for_ever() -> None:
    while True:
        _wakes.get()
        _help_all()


def _help_all() -> None:  # a function of its own, so that a helper that waits holds no job, and no arrays of one
    for job in list(_jobs):
        job.help()


@contextlib.contextmanager
def team() -> Iterator[bool]:
    """Yield whether shards, as many as there are threads, may wait for each other: all of them then run at once.

    There is one team at a time: the members of two would spin on the cores that the others need.  There is none where
    the system refuses a thread, for the others would wait for that member forever.
    """
    mine = object()
    try:
        _teams.append(mine)
        if _teams[0] is not mine or not _ensure_helpers(get_num_threads() - 1):
            _teams.remove(mine)
        yield mine in _teams
    finally:
        if mine in _teams:
            _teams.remove(mine)


def _forget_threads() -> None:
    global _wakes
    _wakes = SimpleQueue()
    for known in (_jobs, _helpers, _teams):
        known.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)  # a child has none of its parent's threads
