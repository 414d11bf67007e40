"""What is made when it is first asked for, and kept: threads that ask at once get one object, made whole."""

import threading

import numpy as np
import pytest

import varlen_rnn as vr
from tests.in_threads import at_once
from tests.waiting import HANGS
from varlen_rnn.program import recorder
from varlen_rnn.rows import plan as plans


def asked_at_once(monkeypatch, owner, name, ask):
    """Return what two threads get that are both past a function before either goes on."""
    meet, made, got = threading.Barrier(2), getattr(owner, name), []

    def make(*arguments):
        result = made(*arguments)
        meet.wait(HANGS)
        return result

    monkeypatch.setattr(owner, name, make)
    at_once(lambda: got.append(ask()), [()] * 2)
    monkeypatch.undo()
    return got


def test_a_lod_has_one_plan(monkeypatch):
    lod = vr.LoD([[0, 2, 5]])
    first, second = asked_at_once(monkeypatch, plans.SortedSeqs, "of_level", lambda: vr.sort_by_seq_len(lod))
    assert first is second is vr.sort_by_seq_len(lod)


@pytest.mark.parametrize(
    "ask", [lambda p: p.batch_sizes, lambda p: p.previous_rows(), lambda p: p.previous_rows(reverse=True)]
)
def test_a_plan_makes_its_arrays_once(monkeypatch, ask):
    plan = vr.sort_by_seq_len([0, 2, 5])
    first, second = asked_at_once(monkeypatch, plans, "read_only", lambda: ask(plan))
    assert np.shares_memory(first, second)
    assert np.shares_memory(first, ask(plan))
    assert not first.flags.writeable


def test_a_program_has_one_description(monkeypatch):
    with vr.program_guard() as program:
        y = vr.feed_data("x", [-1], "float32") * 2.0
    first, second = asked_at_once(monkeypatch, recorder.Block, "desc", lambda: program.desc)
    assert first is second is program.desc
    assert vr.Executor().run(program, {"x": np.ones(1, np.float32)}, [y])[0] == 2


def test_a_description_that_was_begun_before_a_change_is_not_kept(monkeypatch):
    describe = recorder.Block.desc

    def describe_then_record(block, persistables):
        result = describe(block, persistables)
        monkeypatch.setattr(recorder.Block, "desc", describe)
        with vr.program_guard(program):
            vr.feed_data("later", [-1], "float32")
        return result

    with vr.program_guard() as program:
        vr.feed_data("x", [-1], "float32")
    monkeypatch.setattr(recorder.Block, "desc", describe_then_record)
    assert program.desc.blocks[0].var("later") is None
    assert program.desc.blocks[0].var("later") is not None
