"""Run kernels that release the GIL on several threads; each call of a kernel does a shard (part) of the work.

A kernel is called once per shard, with the number of the shard and the number of shards.  A shard does a fixed part of
the work, or takes one piece of work after another from a shared counter.  Each piece is computed in the same way for
any number of shards, so results do not depend on the number of threads.  Shards wait for each other only within a
`team`, or for a piece that another shard has taken.  Computing such a piece must not fail.

An interrupt (Ctrl-C) can raise an exception between any two calls in the main thread.  So this file uses no locks and
no counters: threads share lists and queues, and each change is a single atomic call.
"""

from __future__ import annotations

import _thread
import contextlib
import contextvars
import ctypes
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from queue import SimpleQueue

from varlen_rnn.errors import DTypeError, check_int, shown

# Work of fewer multiply-adds stays on the calling thread, because waking a helper thread takes 30 to 60 us.
SMALL_WORK = 4_000_000
MAX_THREADS = 64  # threads of one call, including the calling thread

VARIABLE = "VARLEN_RNN_NUM_THREADS"  # environment variable
# Environment variable by which launchers and pools of processes, such as torchrun and joblib, divide the cores.
OPENMP_VARIABLE = "OMP_NUM_THREADS"

_own_number: contextvars.ContextVar[int | None] = contextvars.ContextVar("num_threads", default=None)
_last_number: int | None = None  # the last number set in any context, for contexts without their own
_jobs: list[_Job] = []  # unfinished jobs
_helpers: list[None] = []  # one entry per helper thread
_wakes: SimpleQueue[None] = SimpleQueue()  # each entry wakes one helper, which then looks into all jobs
_teams: list[object] = []  # callers that asked to be a team; the first is the team


def _available_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else _performance_cores() or os.cpu_count() or 1


def _performance_cores() -> int:
    """Return the number of performance cores of a Mac, 0 elsewhere; threads on slower cores would delay each step."""
    if sys.platform != "darwin":
        return 0
    number, size = ctypes.c_int32(0), ctypes.c_size_t(4)
    read = ctypes.CDLL(None).sysctlbyname
    failed = read(b"hw.perflevel0.logicalcpu", ctypes.byref(number), ctypes.byref(size), None, ctypes.c_size_t(0))
    return 0 if failed else number.value


def get_num_threads() -> int:
    """Return the number of threads that kernels use when called in this context, at most 64.

    Raises
    ------
    DTypeError, ShapeError
        If no number was set and the environment variable `VARLEN_RNN_NUM_THREADS` is not an integer of at least 1.

    Examples
    --------
    >>> get_num_threads() >= 1
    True
    """
    return min(_own_number.get() or _last_number or _number_of_environment() or _share_of_cores(), MAX_THREADS)


@functools.cache
def _share_of_cores() -> int:
    """Return the number of cores, or the number in `OMP_NUM_THREADS` if it is smaller; it is read once per process.

    As in OpenMP, the variable can be a list with a number for each level of nested work; a wrong value is ignored.
    """
    text = os.environ.get(OPENMP_VARIABLE, "").partition(",")[0].strip()
    cores = _available_cores()
    return min(cores, int(text)) if re.fullmatch("[0-9]{1,18}", text) and int(text) else cores


@functools.cache
def _number_of_environment() -> int | None:
    """Return the number in the environment variable, or None if it is not set; it is read once per process."""
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    if not re.fullmatch("[+-]?[0-9]{1,18}", text):
        raise DTypeError(VARIABLE, expected="an integer of at least 1", got=shown(text))
    return check_int(int(text), VARIABLE, 1)


def set_num_threads(num_threads: int) -> None:
    """Set the number of threads that kernels use; results do not depend on it.

    The number holds for the whole process, except for a thread (or another context of `contextvars`, such as an asyncio
    task) that has called this function itself.  So two Python threads can use different numbers.

    Parameters
    ----------
    num_threads : int
        At least 1.  Without a call, the number is the environment variable `VARLEN_RNN_NUM_THREADS`, or else the number
        of cores that this process may use or the environment variable `OMP_NUM_THREADS`, whichever is less.  More than
        64 is no error, but kernels then use 64 threads.

    Raises
    ------
    DTypeError, ShapeError
        If `num_threads` is not an integer, or less than 1.

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
    """Set the number of threads that kernels use in this context only."""
    _own_number.set(check_int(num_threads, "num_threads", 1))


def count_shards(work: int, max_shards: int) -> int:
    """Return into how many shards to divide `work` multiply-adds: at most `max_shards`, 1 if that is faster."""
    return 1 if work < SMALL_WORK else max(1, min(get_num_threads(), max_shards))


def for_each_shard(
    kernel: Callable[..., object], *arguments: object, num_shards: int, give_up: Callable[[], object] | None = None
) -> None:
    """Call `kernel(shard, num_shards, *arguments)`, which should release the GIL, for every shard.

    The call returns after all shards have ended.  If a shard fails, no further shard starts, and its error is raised
    after the running shards have ended.  Meanwhile `give_up` is called, perhaps more than once: it must let shards that
    wait for the failed shard return, and must not raise.
    """
    if num_shards == 1:
        kernel(0, 1, *arguments)
        return
    job = _Job(kernel, arguments, num_shards, give_up)
    try:
        job.run()
    finally:  # even after an error, no thread may still work on the caller's arrays
        try:
            job.settle()
        finally:  # an interrupt may have ended the first call early
            job.settle()
    if job.errors:
        raise job.errors.pop(0)


class _Job:
    """The shards of one call; the caller and its helpers take one shard after another until none is left."""

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
        self.errors: list[BaseException] = []  # errors that helpers met
        self.has_run, self.is_closed = False, False
        self.came: list[None] = []
        self.went: list[None] = []
        self.news: SimpleQueue[None] = SimpleQueue()

    def run(self) -> None:
        """Wake helpers and work on shards; a helper that comes too late finds no shard, and is not waited for."""
        _jobs.append(self)
        _wake_helpers()
        for shard in self.shards:
            if self.is_closed:
                break
            self.kernel(shard, self.num_shards, *self.arguments)
        self.has_run = True

    def help(self) -> None:
        self.came.append(None)  # before reading `is_closed`, because `settle` sets that first and then reads `came`
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
        """Wait until no helper works on a shard; if an interrupt comes during the wait, raise it afterwards."""
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
    """Wake as many helpers as all jobs need; with fewer helpers, members of a team could wait forever."""
    wanted = sum(job.num_helpers for job in list(_jobs))
    _ensure_helpers(wanted)
    while _wakes.qsize() < wanted:
        _wakes.put(None)


def _ensure_helpers(count: int) -> bool:
    """Start helper threads until there are `count`; return False if the system refuses one."""
    while len(_helpers) < count:
        try:
            # `threading.Thread.start` takes locks that an interrupt would leave locked.  Threads of `_thread` are
            # daemons.
            _thread.start_new_thread(_help_for_ever, ())
        except RuntimeError:  # a limit on threads is reached, or the interpreter is exiting
            return False
        _helpers.append(None)  # after the start, so that an interrupt can leave one thread too many, never too few
    return True


def _help_for_ever() -> None:
    while True:
        _wakes.get()
        _help_all()


def _help_all() -> None:  # a separate function, so that a waiting helper holds no reference to a job's arrays
    for job in list(_jobs):
        job.help()


@contextlib.contextmanager
def team() -> Iterator[bool]:
    """Yield whether the shards of a call can wait for each other, because each has a thread and all run at once.

    There is only one team at a time, because members of two teams would spin on cores that the other team needs.  There
    is no team if the system refuses a thread, because the members would wait forever for the missing one.
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
    os.register_at_fork(after_in_child=_forget_threads)  # the parent's threads do not exist in the child
