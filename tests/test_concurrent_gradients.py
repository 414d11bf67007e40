"""Threads that pass gradients at the same time: none is lost, and no record is passed twice."""

import signal
import subprocess
import sys

import numpy as np
import pytest

import varlen_rnn as vr
from tests.in_threads import at_once
from tests.waiting import HANGS
from varlen_rnn.tape import gradient as tape
from varlen_rnn.tape.operator import find


def in_threads(*functions):
    """Run functions at once, each in a thread; return what each returned or raised."""
    results = [None] * len(functions)

    def run(number):
        try:
            results[number] = functions[number]()
        except vr.InputError as error:
            results[number] = error

    at_once(run, [(number,) for number in range(len(functions))])
    return results


def between(monkeypatch, op_type, happens):
    """Let something happen once, after an operator computed and before anybody has its result."""
    op, left = find(op_type), [happens]
    forward = op.forward

    def computed(*values, **attrs):
        result = forward(*values, **attrs)
        if left:
            left.pop()()
        return result

    monkeypatch.setattr(op, "forward", computed)


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_a_gradient_that_arrives_while_another_is_added_is_not_lost(monkeypatch, sparse):
    table = vr.nn.Embedding(3, 1, sparse=sparse, dtype=np.float64)

    def loss(factor):
        return (table(np.array([0, 2])) * factor).sum()

    losses = [loss(factor) for factor in (1.0, 10.0, 100.0)]
    losses[0].backward()
    between(monkeypatch, "sum", lambda: in_threads(losses[2].backward))
    losses[1].backward()
    gradient = table.weight.grad
    assert isinstance(gradient, vr.SelectedRows) == sparse
    assert (gradient.to_dense() if sparse else gradient).ravel().tolist() == [111, 0, 111]


def test_a_first_gradient_is_not_lost(monkeypatch):
    """Both passes find no gradient: the second one begins while the first has its own in hand."""
    w = vr.Variable(np.ones(3), requires_grad=True)
    first, second = (w * 2.0).sum(), (w * 3.0).sum()
    own, left = tape.own, [lambda: in_threads(second.backward)]

    def owned(value, memory):
        if left and value.data.tolist() == [2, 2, 2]:
            left.pop()()
        return own(value, memory)

    monkeypatch.setattr(tape, "own", owned)
    first.backward()
    assert not left
    assert w.grad.tolist() == [5, 5, 5]


def test_a_gradient_that_is_dropped_meanwhile_stays_dropped(monkeypatch):
    w = vr.Variable(np.ones(3), requires_grad=True)
    optimizer = vr.optim.SGD([w], lr=0.1)
    (w * 100.0).sum().backward()
    loss = (w * 1.0).sum()
    between(monkeypatch, "sum", optimizer.zero_grad)
    loss.backward()
    assert w.grad.tolist() == [1, 1, 1]


def test_many_passes_at_once_are_the_sum_of_passes_one_after_another():
    vr.manual_seed(0)
    model = vr.nn.GRU(2, 3, dtype=np.float64)
    x = vr.create_lod_tensor(np.random.default_rng(0).random((5, 2)), [[2, 3]])

    def passes():
        for _ in range(30):
            model(x)[0].sum().backward()

    model(x)[0].sum().backward()
    once = [p.grad for p in model.parameters()]
    for p in model.parameters():
        p.grad = None
    assert in_threads(*[passes] * 4) == [None] * 4
    for p, gradient in zip(model.parameters(), once, strict=True):
        np.testing.assert_allclose(p.grad, 120 * gradient, rtol=1e-10)


def test_of_two_passes_through_one_record_one_is_an_error(monkeypatch):
    w = vr.Variable(np.ones(3), requires_grad=True)
    shared = w * 2.0
    one, other = shared.sum(), (shared * 10.0).sum()
    told = []
    between(monkeypatch, "reduce_grad", lambda: told.extend(in_threads(other.backward)))
    one.backward()
    assert w.grad.tolist() == [2, 2, 2]
    assert "expected one pass, got a second one" in str(told[0])
    with pytest.raises(vr.ProgramError, match="a second one"):
        other.backward()


def test_a_pass_that_is_refused_takes_no_record():
    w = vr.Variable(np.ones(3), requires_grad=True)
    own, shared = w * 3.0, w * 2.0
    both = (own + shared).sum()
    shared.sum().backward()
    with pytest.raises(vr.ProgramError, match="a second one"):
        both.backward()
    own.sum().backward()
    assert w.grad.tolist() == [5, 5, 5]


INTERRUPTS = """
import faulthandler, signal, threading
import numpy as np, varlen_rnn as vr

faulthandler.dump_traceback_later(800, exit=True)  # it hangs

def interrupt(signum, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
w, interrupted = vr.Variable(np.ones(3), requires_grad=True), 0
for _ in range(2):  # compiles; llvmlite may free memory twice if an interrupt comes while it compiles
    (w * w).sum().backward()
for number in range(3000):
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + number % 100))
        while True:
            (w * w).sum().backward()
    except KeyboardInterrupt:
        interrupted += 1
        assert vr.grad_enabled()
w.grad, loss = None, (w * 2.0).sum()
thread = threading.Thread(target=loss.backward)
thread.start()
thread.join()
assert (interrupted, w.grad.tolist()) == (3000, [2, 2, 2])
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
def test_an_interrupt_leaves_no_lock_locked_and_no_mode_set():
    """In a process of its own, where nobody else's callbacks swallow interrupts."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTS], capture_output=True, text=True, check=False, timeout=HANGS
    )
    assert (done.returncode, done.stderr) == (0, "")
