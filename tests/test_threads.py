"""Shards on threads: all run, errors and interrupts come out, modes belong to a context, fork is harmless."""

import contextvars
import copy
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import varlen_rnn as vr
from tests.waiting import HANGS
from varlen_rnn.recurrence import schedule
from varlen_rnn.runtime import threads
from varlen_rnn.tape import modes


def collect(seen):
    return lambda shard, num_shards: seen.append((shard, num_shards, threading.current_thread().name))


def test_the_number_of_threads_is_the_one_that_calls_run_on(monkeypatch):
    monkeypatch.setattr(threads, "_available_cores", lambda: 1000)
    assert vr.get_num_threads() == 64
    vr.set_num_threads(128)
    assert vr.get_num_threads() == threads.count_shards(10**12, 1000) == 64
    vr.set_num_threads(64)
    assert vr.get_num_threads() == 64


def numbers_seen_by(count, function):
    """Call a function in as many threads at once; return the results."""
    with ThreadPoolExecutor(count) as pool:
        return [future.result() for future in [pool.submit(function) for _ in range(count)]]


def test_threads_that_the_user_starts_have_the_number_that_was_set_last():
    vr.set_num_threads(3)
    assert numbers_seen_by(2, vr.get_num_threads) == [3, 3]
    assert contextvars.Context().run(vr.get_num_threads) == 3
    meet = threading.Barrier(2)

    def set_own(number):
        vr.set_num_threads(number)
        meet.wait(HANGS)
        return vr.get_num_threads()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(set_own, (5, 7))) == [5, 7]
    assert vr.get_num_threads() == 3, "who has set one keeps it"
    assert numbers_seen_by(1, vr.get_num_threads)[0] in (5, 7)
    vr.set_num_threads(4)
    assert numbers_seen_by(1, vr.get_num_threads) == [4]


def test_a_number_of_one_context_alone_is_nobody_elses():
    contextvars.copy_context().run(threads.set_num_threads_here, 1000)
    assert vr.get_num_threads() == contextvars.Context().run(vr.get_num_threads) < 1000


def test_the_environment_says_how_many_threads_until_somebody_sets_another_number(monkeypatch):
    monkeypatch.setenv(threads.VARIABLE, " 7 ")
    assert [vr.get_num_threads(), *numbers_seen_by(1, vr.get_num_threads)] == [7, 7]
    vr.set_num_threads(2)
    assert [vr.get_num_threads(), *numbers_seen_by(1, vr.get_num_threads)] == [2, 2]


@pytest.mark.parametrize(
    ("text", "number"),
    [("3", 3), (" 2 ", 2), ("100", 8), ("3,2", 3), ("", 8), ("0", 8), ("-1", 8), ("two", 8), (",", 8)],
)
def test_workers_whose_pool_divides_the_cores_take_their_share(monkeypatch, text, number):
    monkeypatch.setattr(threads, "_available_cores", lambda: 8)
    monkeypatch.setenv(threads.OPENMP_VARIABLE, text)
    assert vr.get_num_threads() == number
    monkeypatch.setenv(threads.VARIABLE, "20")
    threads._number_of_environment.cache_clear()
    assert vr.get_num_threads() == 20, "ours wins"


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "2 3", "9" * 5000, "\N{ARABIC-INDIC DIGIT TWO}"])
def test_a_wrong_number_in_the_environment_is_an_error_at_its_first_use(monkeypatch, text):
    monkeypatch.setenv(threads.VARIABLE, text)
    with pytest.raises(vr.InputError, match=f"{threads.VARIABLE}: expected"):
        vr.get_num_threads()
    monkeypatch.setattr(threads, "SMALL_WORK", 0)
    x = vr.create_lod_tensor(np.ones((40, 4), np.float32), [[20, 15, 5]])
    with pytest.raises(vr.InputError, match=f"{threads.VARIABLE}: expected"):
        vr.nn.GRU(4, 64)(x)
    vr.set_num_threads(1)
    vr.nn.GRU(4, 64)(x)


def test_nobody_asks_the_environment_for_small_work(monkeypatch):
    monkeypatch.setenv(threads.VARIABLE, "")
    assert vr.get_num_threads() >= 1
    monkeypatch.setenv(threads.VARIABLE, "none")
    assert threads.count_shards(10, 8) == 1


def test_small_work_stays_on_the_calling_thread():
    seen = []
    threads.for_each_shard(collect(seen), num_shards=threads.count_shards(10, 8))
    assert seen == [(0, 1, threading.current_thread().name)]


def test_large_work_is_cut_into_shards():
    vr.set_num_threads(3)
    seen = []
    threads.for_each_shard(collect(seen), num_shards=threads.count_shards(10**9, 8))
    assert sorted(shard for shard, _, _ in seen) == [0, 1, 2]
    seen.clear()
    threads.for_each_shard(collect(seen), num_shards=threads.count_shards(10**9, 2))
    assert sorted(shard for shard, _, _ in seen) == [0, 1]


def test_an_error_comes_out_after_all_shards_that_began():
    began, ended = threading.Barrier(4), []

    def kernel(shard, num_shards):
        began.wait(HANGS)
        if shard == 2:
            raise RuntimeError("shard 2")
        time.sleep(0.02)
        ended.append(shard)

    with pytest.raises(RuntimeError, match="shard 2"):
        threads.for_each_shard(kernel, num_shards=4)
    assert sorted(ended) == [0, 1, 3]


def test_after_an_error_of_a_helper_no_more_shards_begin():
    caller, seen = threading.current_thread(), []

    def kernel(shard, num_shards):
        seen.append(shard)
        if threading.current_thread() is not caller:
            raise RuntimeError
        time.sleep(0.01)

    with pytest.raises(RuntimeError):
        threads.for_each_shard(kernel, num_shards=1000)
    assert len(seen) < 1000


@pytest.mark.parametrize("caller_fails", [False, True])
def test_who_waits_for_a_shard_that_failed_is_told(caller_fails):
    caller, began, told = threading.current_thread(), threading.Barrier(2), threading.Event()
    waited = []

    def kernel(shard, num_shards):
        began.wait(HANGS)
        if (threading.current_thread() is caller) == caller_fails:
            raise RuntimeError("failed")
        waited.append(told.wait(HANGS))

    with pytest.raises(RuntimeError, match="failed"):
        threads.for_each_shard(kernel, num_shards=2, give_up=told.set)
    assert waited == [True]


def test_shards_beyond_the_threads_of_a_call_run_too():
    seen = []
    threads.for_each_shard(collect(seen), num_shards=200)
    assert sorted(shard for shard, _, _ in seen) == list(range(200))


def test_shards_of_concurrent_calls_run_at_once():
    threads._forget_threads()  # of earlier calls, which may suffice
    meet = threading.Barrier(6)
    calls = [
        threading.Thread(target=threads.for_each_shard, args=(lambda *_: meet.wait(HANGS),), kwargs={"num_shards": 3})
        for _ in range(2)
    ]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    assert not meet.broken


def test_helpers_that_do_not_come_are_not_waited_for(monkeypatch):
    monkeypatch.setattr(threads, "_wake_helpers", lambda: None)
    seen, here = [], threading.current_thread().name
    threads.for_each_shard(collect(seen), num_shards=3)
    assert seen == [(shard, 3, here) for shard in range(3)]


def refuse_threads(monkeypatch, after):
    """Let the system refuse to start a thread, after some, to a process that has no helpers yet."""
    start, started = threads._thread.start_new_thread, []

    def start_or_refuse(*arguments):
        if len(started) == after:
            raise RuntimeError("can't start new thread")
        started.append(start(*arguments))

    threads._forget_threads()
    monkeypatch.setattr(threads._thread, "start_new_thread", start_or_refuse)


@pytest.mark.parametrize("after", [0, 1])
def test_shards_run_on_the_threads_that_the_system_gives(monkeypatch, after):
    refuse_threads(monkeypatch, after)
    seen, began = [], threading.Barrier(1 + after)

    def kernel(shard, num_shards):
        if shard <= after:
            began.wait(HANGS)
        seen.append(shard)

    for _ in range(2):
        threads.for_each_shard(kernel, num_shards=4)
        assert sorted(seen) == [0, 1, 2, 3]
        seen.clear()


def test_there_is_no_team_where_a_member_might_not_come(monkeypatch):
    vr.set_num_threads(4)
    refuse_threads(monkeypatch, 2)
    with threads.team() as refused:
        assert not refused
    vr.set_num_threads(3)
    with threads.team() as allowed:
        assert allowed


REFUSED = """
import _thread, faulthandler
import numpy as np, varlen_rnn as vr
from varlen_rnn.runtime import threads
from varlen_rnn.recurrence import schedule

def forward():
    with vr.no_grad():
        return np.asarray(layer(x)[0])

def refuse(*arguments):
    raise RuntimeError("can't start new thread")

def split(*arguments, may_meet, **options):
    asked.append(may_meet)
    return chosen(*arguments, may_meet, **options)

faulthandler.dump_traceback_later(800, exit=True)
threads.SMALL_WORK, schedule._BARRIER_COST = 0, 0
layer = vr.nn.LSTM(4, 64)
x = vr.create_lod_tensor(np.ones((40, 4), np.float32), [[20, 15, 5]])
vr.set_num_threads(1)
expected = forward()
vr.set_num_threads(4)
asked, chosen, start = [], schedule.split, _thread.start_new_thread
_thread.start_new_thread, schedule.split = refuse, split
assert np.array_equal(forward(), expected)
assert asked == [True, False], "it would have been a team"
_thread.start_new_thread = start
assert np.array_equal(forward(), expected)
assert asked == [True, False, True], "and is one, when there are threads"
assert len(threads._helpers) == 3
"""


def test_a_layer_runs_without_a_team_where_a_member_might_not_come():
    """In a process of its own, for a team that waits for a member waits for ever."""
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, check=False, timeout=HANGS)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("while_waiting", [False, True])
def test_an_interrupt_comes_out_after_all_shards_ended(while_waiting):
    meet, ended = threading.Barrier(3), []
    caller, before = threading.main_thread(), signal.signal(signal.SIGINT, signal.default_int_handler)

    def kernel(shard, num_shards):
        meet.wait(HANGS)
        if threading.current_thread() is caller:
            if not while_waiting:
                raise KeyboardInterrupt
            return
        for _ in range(3):
            time.sleep(0.02)
            if while_waiting:
                signal.pthread_kill(caller.ident, signal.SIGINT)
        ended.append(shard)

    try:  # a shell has what it runs in the background ignore the signal
        with pytest.raises(KeyboardInterrupt):
            threads.for_each_shard(kernel, num_shards=3)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(ended) == 2


INTERRUPTS = """
import faulthandler, random, signal, time
import numpy as np, varlen_rnn as vr
from varlen_rnn.runtime import threads
from varlen_rnn.recurrence import schedule

faulthandler.dump_traceback_later(800, exit=True)  # it hangs
threads.SMALL_WORK, schedule._BARRIER_COST = 0, BARRIER
vr.set_num_threads(4)
layer = vr.nn.LSTM(4, 64)
x = vr.create_lod_tensor(np.ones((40, 4), np.float32), [[20, 15, 5]])
count, armed = 0, False

def forward():
    with vr.no_grad():
        return np.asarray(layer(x)[0])

def set_timer():  # for one signal: on a slow host the next one would come before this one is handled
    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 1e-3))

def interrupt(signum, frame):  # nowhere but within a call of shards
    global count
    while armed and frame:
        if frame.f_code is threads.for_each_shard.__code__:
            count += 1
            if count % 2:
                set_timer()  # again, perhaps while that call ends
            raise KeyboardInterrupt
        frame = frame.f_back
    if armed:
        set_timer()

expected = forward()
signal.signal(signal.SIGALRM, interrupt)
end = time.monotonic() + 3
while count < 100 or time.monotonic() < end:
    armed = True
    try:
        set_timer()
        while True:
            forward()
    except KeyboardInterrupt:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert np.array_equal(forward(), expected)
assert (len(threads._jobs), len(threads._teams)) == (0, 0)
assert 1 <= len(threads._helpers) <= 3
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
@pytest.mark.parametrize("barrier", [0, 10**9], ids=["teams", "groups"])
def test_interrupts_leave_nothing_behind(barrier):
    program = INTERRUPTS.replace("= 0, BARRIER", f"= 0, {barrier}")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=HANGS)
    assert (done.returncode, done.stderr) == (0, "")


def test_one_team_at_a_time():
    with threads.team() as first:
        with threads.team() as second:
            assert (first, second) == (True, False)
    with threads.team() as third:
        assert third


@pytest.mark.parametrize(("lengths", "num_threads", "expected"), [
    ([100] * 64, 2, (3, 1)),  # enough for all: groups that threads take in turns, no barrier
    ([100] * 100_000, 2, (127, 1)),  # larger ones of many
    ([100] * 48, 2, (3, 1)),  # not two, which would be halves, and wait for the slower core
    ([400, 300, 250, *[50] * 60], 2, (4, 1)),  # of 18, for the first of 24 would be more than half of the work
    ([100], 2, (1, 2)),
    ([100] * 3, 16, (1, 16)),
    ([100, 0, 0], 2, (1, 2)),
    ([100] * 8, 128, (4, 16)),  # as many members as unit blocks, and no more threads than a call has
    ([1], 2, (1, 1)),  # small
    ([], 2, (1, 1)),
])  # fmt: skip
def test_many_sequences_are_taken_in_turns_and_few_are_the_work_of_teams(lengths, num_threads, expected):
    vr.set_num_threads(num_threads)
    seq_lens = np.array(lengths, np.int64)
    products = sum(lengths) * 2 * 4 * 256 * 256
    assert schedule.split(seq_lens, products, unit_blocks=16, may_meet=True) == expected
    if expected[1] > 1:
        groups, parts = schedule.split(seq_lens, products, 16, may_meet=False)
        assert parts == 1
        assert groups == min(num_threads, max(1, np.count_nonzero(lengths)))


def test_a_team_pays_for_barriers_only_if_it_meets():
    vr.set_num_threads(2)
    work = np.array([4000]), 4000 * 30_000, 16
    assert schedule.split(*work, may_meet=True) == (1, 1)
    assert schedule.split(*work, may_meet=True, meets=False) == (1, 2)


def test_groups_are_not_small_for_the_sake_of_one_sequence():
    vr.set_num_threads(2)
    seq_lens = np.array([10_000, *[10] * 1000])
    assert schedule.split(seq_lens, int(seq_lens.sum()) * 10**6, 16, may_meet=False) == (42, 1)


def test_modes_belong_to_a_context():
    vr.set_num_threads(2)
    seen = {}

    def other():
        vr.set_num_threads(5)
        vr.manual_seed(1)
        with vr.no_grad(), modes.evaluating():
            barrier.wait()
            seen["other"] = vr.get_num_threads(), vr.grad_enabled(), module.training
            barrier.wait()

    module, barrier = vr.nn.Dropout(0.5), threading.Barrier(2)
    thread = threading.Thread(target=other)
    thread.start()
    barrier.wait()
    seen["here"] = vr.get_num_threads(), vr.grad_enabled(), module.training
    barrier.wait()
    thread.join()
    assert seen == {"here": (2, True, True), "other": (5, False, False)}


@pytest.mark.parametrize("mode", [True, False])
def test_modules_keep_their_modes_while_all_evaluate(mode):
    model = vr.nn.Sequential(vr.nn.BatchNorm1d(2), vr.nn.Dropout(0.5)).train(mode)
    model[1].training = True
    with modes.evaluating():
        assert [module.training for module in model.modules()] == [False] * 3
        copied = copy.deepcopy(model)
        model.train(mode)
        model[1].training = True
    assert [module.training for module in model.modules()] == [mode, mode, True]
    assert [module.training for module in copied.modules()] == [mode, mode, True], "a copy has the modules' own modes"


def forward(layer, x):
    with vr.no_grad():
        return np.asarray(layer(x)[0])


@pytest.mark.parametrize("members", [1, 2, 5, 16])
def test_concurrent_calls_and_fork(monkeypatch, members):
    """Also as a team of more members than cores, whatever the work, for whoever comes first."""
    met = []

    def split(*_, may_meet, **__):
        met.append(may_meet)
        return (1, members) if may_meet else (2, 1)

    layer = vr.nn.LSTM(3, 70)
    x = vr.create_lod_tensor(np.ones((40, 3), np.float32), [[3, 30, 7]])
    expected, results = forward(layer, x), []
    monkeypatch.setattr(schedule, "split", split)
    workers = [threading.Thread(target=lambda: results.append(forward(layer, x))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert True in met
    assert len(results) == 4
    assert all(np.array_equal(result, expected) for result in results)
    if hasattr(os, "fork"):
        child = os.fork()
        if child == 0:  # the parent's threads do not exist here
            meet = threading.Barrier(2)
            threads.for_each_shard(lambda *_: meet.wait(HANGS), num_shards=2)
            os._exit(0 if np.array_equal(forward(layer, x), expected) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_small_work_leaves_the_team_to_others(monkeypatch):
    layer, x = vr.nn.LSTM(3, 4), vr.create_lod_tensor(np.ones((6, 3), np.float32), [[1, 2, 3]])
    monkeypatch.setattr(threads, "team", None)
    vr.set_num_threads(2)
    forward(layer, x)
