"""A child that is forked while another thread compiles runs what is compiled, and compiles, or says why it does not.

A child that is forked while another thread steps a stream steps it, too, from states that belong together.

In a process of their own, for whoever waits for a thread that does not exist waits for ever.
"""

import os
import subprocess
import sys

import pytest

from tests.waiting import HANGS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

BEGIN = """
import faulthandler, os, signal, threading
import numpy as np
from varlen_rnn.runtime import forks, numba_internals
from varlen_rnn.runtime.jit import cpu_kernel
from varlen_rnn.kernels.rows import gather_rows

faulthandler.dump_traceback_later(800, exit=True)  # it hangs

def make(constant):
    return lambda x: x * constant

def call_compiled():
    out = np.zeros((1, 2))
    gather_rows(np.ones((3, 2)), np.array([1]), out)
    return out.sum() == 2

def compile_another():
    return cpu_kernel(make(0.5))(3.0) == 1.5

def in_a_child(function):
    child = os.fork()
    if child == 0:
        signal.alarm(800)  # for `faulthandler` waits here for its own thread
        try:
            os._exit(0 if function() else 1)
        except RuntimeError as error:
            os._exit(2 if "forked while another thread compiled" in str(error) else 3)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

call_compiled()
"""

LOOP = """
compiled = []

def compile_for_ever():
    while True:
        compiled.append(cpu_kernel(make(len(compiled) + 2.0))(1.0))

threading.Thread(target=compile_for_ever, daemon=True).start()
for _ in range(5):
    assert in_a_child(call_compiled) == 0
    assert in_a_child(compile_another) == 0
count = len(compiled)
while len(compiled) < count + 2:  # the lock is there again for the thread
    pass
assert compile_another()
os._exit(0)
"""

# Another thread has the lock for longer than a fork waits.
STUCK = """
forks.LONGEST_WAIT = 0.01
began, end = threading.Event(), threading.Event()

def compile_long():
    with LOCK:
        began.set()
        end.wait()

thread = threading.Thread(target=compile_long, daemon=True)
thread.start()
began.wait()
assert in_a_child(call_compiled) == 0
assert in_a_child(compile_another) == WANTED
end.set()
thread.join()
assert in_a_child(compile_another) == 0
assert compile_another()
"""

STREAMS = """
import copy, sys
import varlen_rnn.nn as nn

sys.setswitchinterval(1e-6)
for layer in (nn.GRU(64, 64, num_layers=2), nn.DeltaNet(64, 64, num_heads=2)):
    stream, row, is_done = layer.stream(), np.ones(64, np.float32), []
    other = copy.deepcopy(stream)
    firsts = [other(row).tobytes() for _ in range(2)]

    def step_for_ever():
        while not is_done:
            stream(row)
            stream.reset()

    def goes_on():
        return stream(row).tobytes() in firsts and any(np.any(state) for state in stream.states)

    thread = threading.Thread(target=step_for_ever, daemon=True)
    thread.start()
    found = [in_a_child(goes_on) for _ in range(3)]
    is_done.append(True)
    thread.join()
    assert found == [0, 0, 0], found
"""

# Another thread has its turn for longer than a fork waits.
LONG_TURN = """
forks.LONGEST_WAIT = 0.01
turn, began, end = forks.turn(), threading.Event(), threading.Event()

def take_long():
    with turn:
        began.set()
        end.wait()

thread = threading.Thread(target=take_long, daemon=True)
thread.start()
began.wait()
assert in_a_child(lambda: turn.acquire(timeout=1)) == 0
end.set()
thread.join()
assert not turn.locked()
del turn
assert not forks._turns
"""


def run(program, **options):
    environment = os.environ | {"VARLEN_RNN_QUIET": "1"} | options
    command = [sys.executable, "-c", BEGIN + program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=HANGS)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_fork_waits_for_the_thread_that_compiles():
    run(LOOP, NUMBA_CACHE_DIR=os.devnull)


@pytest.mark.parametrize(
    ("lock", "wanted"), [("numba_internals.global_compiler_lock", 2), ("numba_internals.ffi.lib._lock", 0)]
)
def test_a_fork_that_has_waited_long_enough_goes_on(lock, wanted):
    """Without a compiler, and without the lock that the other thread has in LLVM."""
    run(STUCK.replace("with LOCK", f"with {lock}").replace("WANTED", str(wanted)), NUMBA_CACHE_DIR=os.devnull)


def test_a_fork_waits_for_a_step_of_a_stream():
    run(STREAMS)


def test_a_fork_that_has_waited_long_enough_for_a_step_goes_on():
    run(LONG_TURN)
