"""The gate over CUDA kernels: one that is never launched, or in one type of float alone, fails a whole run of tests."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.emulated import device, gate, session
from tests.emulated.session import Gate
from tests.waiting import HANGS
from varlen_rnn.kernels import arithmetic, pool, rows

ROOT = Path(__file__).parent.parent

NAMES = {"a": "add", "b": "count", "c": "sub"}
BOTH = [["float32"], ["float64"]]


@pytest.mark.parametrize(
    ("variants", "faults"),
    [
        ({"a": BOTH, "b": [[]], "c": BOTH}, []),
        ({"a": BOTH, "b": [[]]}, ["sub: never launched"]),
        ({"a": [["float64"]], "b": [[]], "c": BOTH}, ["add: launched with float64, never with float32"]),
        ({"a": [["float32", "float64"]], "b": [[]], "c": BOTH}, ["add: launched with mixed types, never with both"]),
    ],
)
def test_faults(variants, faults):
    found = gate.faults(NAMES, variants)
    assert [fault.replace("float32 and float64", "both") for fault in found] == faults


def test_every_kernel_is_declared():
    names = gate.declared()
    assert names[gate.digest_of(pool.pool_sum_cuda.py_func)] == "varlen_rnn.kernels.pool.pool_sum_cuda"
    assert names[gate.digest_of(arithmetic.add.twin().py_func)] == "varlen_rnn.kernels.arithmetic.add_cuda"
    assert names[gate.digest_of(rows.gather_rows.cuda.py_func)] == "varlen_rnn.kernels.rows.gather_rows_cuda"
    steps = [name for name in names.values() if name.startswith(("forward_step", "backward_step"))]
    assert {"forward_step of lstm, phase 0", "backward_step of gru, phase 0"} <= set(steps)
    assert len(names) - len(steps) > 45


def judged(ran, launched, deselected=(), **options):
    """Return the exit status of a run in which two workers hand over their tests and launches."""
    found = Gate(SimpleNamespace(option=SimpleNamespace(**options), hook=SimpleNamespace()))
    found.config.hook.pytest_deselected = found.pytest_deselected
    wanted = {f"tests/{name}::test[emulated]" for name in found.files()}
    for part in launched:
        given = {"wanted": sorted(wanted), "launched": part, "deselected": deselected}
        node = SimpleNamespace(workeroutput=given)
        found.pytest_testnodedown(node, None)
    for name in sorted(wanted)[: len(wanted) if ran == "all" else -1]:
        found.pytest_runtest_logreport(SimpleNamespace(when="call", nodeid=name))
    session = SimpleNamespace(exitstatus=0)
    found.pytest_sessionfinish(session)
    return session.exitstatus, found.faults


def test_the_launches_of_all_workers_are_judged_together(monkeypatch):
    monkeypatch.setattr(session, "_launched_here", dict)  # other tests have launched kernels in this process
    names = list(gate.declared())
    launched = {digest: BOTH for digest in names}
    halves = [{digest: BOTH for digest in part} for part in (names[:9], names[9:])]
    assert judged("all", halves) == (0, [])
    assert judged("all", [launched, {}]) == (0, [])
    status, faults = judged("all", halves[:1])
    assert status == pytest.ExitCode.TESTS_FAILED
    assert len(faults) == len(names) - 9


def test_a_part_of_the_tests_is_judged_only_if_all_were_asked_for(monkeypatch):
    assert judged("a part", [{}], file_or_dir=["tests/test_kernels.py"]) == (0, None)
    assert judged("a part", [{}, {}], deselected=["tests/test_kernels.py::test[emulated]"]) == (0, None)
    monkeypatch.setattr(device, "missing", lambda: "no g++")
    assert judged("a part", [{}]) == (0, None)
    monkeypatch.setattr(device, "missing", lambda: None)
    status, faults = judged("a part", [{}], markexpr="slow or not slow")  # as `.ci/run` asks for all
    assert status == pytest.ExitCode.TESTS_FAILED
    assert [fault.rpartition(": ")[2] for fault in faults] == ["did not run"]


RUN = """
import sys, pytest
from pathlib import Path
from tests.emulated.session import Gate

Gate.files = staticmethod(lambda: {"test_philox.py"})
sys.exit(pytest.main(["-q", "-n", sys.argv[1], "-p", "no:cacheprovider", "-k", "emulated", "tests/test_philox.py"]))
"""


@pytest.mark.slow
@pytest.mark.needs_device
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_of_pytest_fails_by_the_gate_alone(workers):
    command = [sys.executable, "-c", RUN, workers]
    run = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=False, cwd=ROOT)
    assert re.search(r"^\d+ passed", run.stdout, re.M), run.stdout + run.stderr
    assert "failed" not in run.stdout
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert "varlen_rnn.kernels.pool.pool_sum_cuda: never launched" in run.stdout
    assert "philox" not in run.stdout.partition("do not prove")[2], "its kernel was launched"
