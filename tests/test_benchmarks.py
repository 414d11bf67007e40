"""The benchmarks: engines agree, no speed without agreement, medians of turns."""

import contextlib
import contextvars
import ctypes
import doctest
import functools
import importlib
import itertools
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import varlen_rnn as vr
from benchmarks import __main__ as command
from benchmarks import (
    against,
    clock,
    engines,
    machine,
    measure,
    operators,
    parity,
    peak,
    processes,
    quiet,
    ranks,
    rectangle,
    results,
    scale,
    survival,
    tables,
    turns,
    worker,
)
from benchmarks.cells import Case as Cells
from benchmarks.cells.case import KINDS, weight_shapes
from benchmarks.clients import page as clients_page
from benchmarks.engines import (
    BUILT_IN,
    ENGINES,
    GROUPED,
    IN_TORCH,
    LOOPS,
    MODES,
    OF_BFLOAT16,
    OF_STEPS,
    OURS,
    TWIN,
    build,
    installed,
)
from benchmarks.layers import Case
from benchmarks.layers.case import Inputs
from benchmarks.processes import EngineError
from benchmarks.report import write_report
from benchmarks.sequence.case import KINDS as OPERATORS
from benchmarks.suites import SUITES, policies, startup
from tests.benchmark_lines import line_of
from tests.waiting import HANGS

ROOT = Path(__file__).parent.parent
CASE = {"cell": "LSTM", "input_size": 3, "hidden_size": 5, "lengths": (4, 1, 7), "distribution": "ragged"}
DOCTESTS = "against rectangle lengths layers.case cells.case cells.ours parity quiet results tables report.bars "
DOCTESTS += "quality.code quality.models quality.page quality.run quality.scores quality.sets "
DOCTESTS += "ranks scale split_products suites.bf16 suites.cells suites.groups suites.overhead suites.sequence "
DOCTESTS += "suites.serving sequence.case"


@pytest.mark.parametrize("name", DOCTESTS.split())
def test_doctests(name):
    found = doctest.testmod(importlib.import_module(f"benchmarks.{name}"))
    assert found.attempted
    assert not found.failed


@pytest.mark.parametrize("cell", ["RNN", "LSTM", "GRU"])
def test_engines_of_a_layer_agree(cell):
    outputs = {mode: {} for mode in MODES}
    for name in installed(ENGINES):
        engine = build("layers", name, CASE | {"cell": cell}, 1)
        for mode in MODES:
            if hasattr(engine, mode):
                outputs[mode][name] = engine.arrays(getattr(engine, mode)())
    assert len(outputs["training"][OURS]) == 6  # y, d_x, four weights
    for mode in MODES:
        assert parity.disagreement(outputs[mode]) is None


def test_engines_in_bfloat16_agree_within_their_tolerances():
    case = CASE | {"input_size": 32, "hidden_size": 32, "lengths": (4, 1, 7, 5)}
    for name in installed(OF_BFLOAT16):
        peers = {its: build("layers", its, case, 1) for its in (OURS, name)}
        for mode in MODES:
            found = {its: engine.arrays(getattr(engine, mode)()) for its, engine in peers.items()}
            assert parity.disagreement(found) is None, name
            assert parity.disagreement({OURS: found[OURS], "another name": found[name]}) is not None, name


@pytest.fixture
def one_step(monkeypatch):
    """Let an engine of groups choose by one step each."""
    groups = pytest.importorskip("benchmarks.layers.groups", reason="PyTorch is not installed", exc_type=ImportError)
    monkeypatch.setattr(groups, "seconds_per_step", lambda step: step() and 1.0)
    return groups


@pytest.mark.parametrize("cell", ["RNN", "LSTM", "GRU"])
def test_groups_agree(cell, one_step):
    case = CASE | {"cell": cell, "input_size": 6, "hidden_size": 16, "lengths": (4, 1, 7, 5, 5, 2, 9)}
    for name in installed(("torch groups", "torch groups bfloat16")):
        peers = {its: build("layers", its, case, 1) for its in (OURS, name)}
        for mode in MODES:
            for number in list(peers[name].groups):
                peers[name].notes[mode] = {"groups": number}
                found = {its: engine.arrays(getattr(engine, mode)()) for its, engine in peers.items()}
                assert parity.disagreement(found) is None, (name, mode, number)
        assert list(peers[name].groups) == [2, 4, 7], "no group is empty"
    if name == "torch groups bfloat16":
        apart = parity.disagreement({OURS: found[OURS], "another name": found[name]})
        assert apart is not None, "bfloat16 is held to a tolerance of its own"


def test_groups_are_neighbours_and_the_fastest_number_is_kept(one_step, monkeypatch):
    engine = build("layers", "torch groups", CASE | {"lengths": (4, 1, 7, 5)}, 1)
    assert [group.rectangle.lengths.tolist() for group in engine.groups[2]] == [[4, 1], [7, 5]]
    taken = iter([5.0, 9.0, 7.0, 3.0, 6.0, 8.0])  # of 2 and of 4 groups, three times
    monkeypatch.setattr(one_step, "seconds_per_step", lambda step: next(taken))
    assert len(engine.training()["y"]) == len(engine.training()["y"]) == 4
    assert engine.notes == {"training": {"groups": 4, "seconds of groups": {2: 5.0, 4: 3.0}}}
    its = worker.Worker()
    its.engine = engine
    assert its.notes("training")["groups"] == 4
    assert its.notes("inference") == {}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # PyTorch's compiler looks at all tensors
def test_compiled_groups_agree(one_step, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    with torch._dynamo.config.patch(allow_rnn=False):  # which the engine sets
        peers = {name: build("layers", name, CASE, 1) for name in (OURS, "torch groups compiled")}
        for mode in MODES:
            found = {name: engine.arrays(getattr(engine, mode)()) for name, engine in peers.items()}
            assert parity.disagreement(found) is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("cell", ["RNN", "LSTM", "GRU"])
def test_engines_inside_torch_agree(cell):
    pytest.importorskip("torch")
    peers = {name: build("layers", name, CASE | {"cell": cell}, 1) for name in (OURS, *IN_TORCH)}
    for mode in MODES:
        assert parity.disagreement({name: its.arrays(getattr(its, mode)()) for name, its in peers.items()}) is None
    one_step = CASE | {"cell": cell, "lengths": (1,) * 4}
    peers = {name: build("layers", name, one_step, 1) for name in (OURS, *OF_STEPS)}
    for mode in MODES:
        assert parity.disagreement({name: its.arrays(getattr(its, mode)()) for name, its in peers.items()}) is None


@pytest.mark.parametrize("cell", ["RNN", "LSTM", "GRU"])
def test_engines_of_serving_agree(cell):
    for lengths, names in (((1,), ("stream", "torch cell", OURS)), ((4, 1, 7), ("prepared", "onnxruntime", OURS))):
        case = CASE | {"cell": cell, "lengths": lengths}
        peers = {name: build("layers", name, case, 1) for name in installed(names)}
        assert parity.disagreement({name: its.arrays(its.inference()) for name, its in peers.items()}) is None


@pytest.mark.parametrize("kind", KINDS)
def test_engines_of_a_cell_agree(kind):
    pytest.importorskip("torch")
    found = {name: engine.arrays(engine.training()) for name, engine in of_cell(kind, OURS, "torch loop")}
    assert set(found[OURS]) == {"y", "d_x", *weight_shapes(Cells(**CASE | {"cell": kind}))}
    assert parity.disagreement(found) is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("lengths", [(4, 1, 7, 5), (3, 3, 3)], ids=["ragged", "equal"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_engines_of_an_operator_on_sequences_agree(operator, lengths):
    case, kind = {"operator": operator, "lengths": lengths, "distribution": ""}, OPERATORS[operator]
    peers = {name: build("sequence", name, case, 1) for name in installed((OURS, *kind.peers))}
    for mode in MODES:
        able = {name: engine for name, engine in peers.items() if hasattr(engine, mode)}
        without = {*kind.forward, "NumPy"} if mode == "training" else set()
        assert set(able) == set(peers) - without
        if len(able) > 1:  # NumPy, where PyTorch is not installed, has no gradients
            found = {name: engine.arrays(getattr(engine, mode)()) for name, engine in able.items()}
            assert parity.disagreement(found) is None


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # PyTorch's compiler looks at all tensors
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_compiled_loops_agree(kind, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    found = {name: engine.arrays(engine.training()) for name, engine in of_cell(kind, OURS, *LOOPS)}
    assert parity.disagreement(found) is None


def of_cell(kind, *names):
    return [(name, build("cells", name, CASE | {"cell": kind, "hidden_size": 6}, 1)) for name in names]


def test_the_built_in_layer_beside_a_cell_is_of_its_family():
    ((_, engine),) = of_cell("CIFG", BUILT_IN)
    assert type(engine.layer) is vr.nn.LSTM
    assert engine.layer.hidden_size == 6


def test_engines_of_a_classifier_agree():
    case = {"data_set": "sentences", "batch_size": 3, "num_batches": 3}
    found = {}
    for name in installed([name for name in ENGINES if name != "onnxruntime"]):
        engine = build("classifiers", name, case, 1)
        found[name] = engine.arrays(engine.training())
    assert parity.disagreement(found) is None


def test_engines_of_a_policy_agree():
    pytest.importorskip("torch", reason="PyTorch is not installed, so there is nothing to compare with")
    case = {"episodes": "T-mazes", "rollouts": 2, "steps": 50, "hidden_size": 8}
    found = {}
    for name in installed(policies.ENGINES):
        engine = build("policies", name, case, 1)
        found[name] = engine.arrays(engine.training())
    assert parity.disagreement(found) is None


def test_a_package_is_compared_before_and_after(monkeypatch):
    """A package that is here is replaced by a layer of torch."""
    torch = pytest.importorskip("torch")
    clients, main = (importlib.import_module(f"benchmarks.clients.{name}") for name in ("packages", "__main__"))

    def build(change):
        lstm = change(torch.nn.LSTM(40, 4, batch_first=True))
        x = clients.padded(40)
        return clients.trained(lstm, lambda: [lstm(x)[0]])

    monkeypatch.setitem(clients.CLIENTS, "torch", clients.Client(build, "a layer", ("torch",)))
    monkeypatch.setattr(main, "ROUNDS", 1)
    line = main.compared("torch")
    assert line["difference"] < 1e-4  # sums over 12,800 rows in float32
    assert len(line["seconds"]) == 2


def test_own_tests_of_packages_get_our_layers(monkeypatch):
    lstm = pytest.importorskip("torch").nn.LSTM
    own_tests = importlib.import_module("benchmarks.clients.own_tests")
    monkeypatch.setattr(lstm, "__init__", lstm.__init__)  # which is put back
    own_tests.replace_new(lstm)
    assert type(lstm(3, 4)).__module__.startswith("varlen_rnn.torch")
    assert type(type("Other", (lstm,), {})(3, 4)).__name__ == "Other"


def test_the_page_on_packages_has_the_lines_of_the_results():
    assert clients_page.PATH.read_text() == clients_page.page(), "python -m benchmarks.clients writes it"


def test_a_gradient_of_the_wrong_scale_is_seen(monkeypatch):
    case = {"data_set": "sentences", "batch_size": 3, "num_batches": 3}
    right = build("classifiers", OURS, case, 1)
    of_rows = vr.nn.functional.cross_entropy

    def of_twice_the_gradient(logits, labels):
        loss = of_rows(logits, labels)
        return loss * 2 - loss.item()

    monkeypatch.setattr(vr.nn.functional, "cross_entropy", of_twice_the_gradient)
    wrong = build("classifiers", OURS, case, 1)
    found = {"right": right.arrays(right.training()), "wrong": wrong.arrays(wrong.training())}
    assert "embedding.weight of wrong is 1e+00 from that of right" in parity.disagreement(found)


def test_rectangles_put_every_row_back():
    lengths = [3, 0, 5, 1]
    rows = np.arange(18.0).reshape(9, 2)
    shape = rectangle.Rectangle(lengths)
    padded = shape.pad(rows)
    assert padded.shape == (5, 4, 2)
    assert shape.order.tolist() == [2, 0, 3, 1]
    assert np.array_equal(shape.unpad(padded), rows)
    assert padded.sum() == rows.sum()


def test_flops_are_those_of_the_products():
    case = Case("GRU", 3, 5, (4, 1, 7), "ragged")
    weights = Inputs(case).weights
    of_a_row = sum(2 * weights[name].size for name in ("weight_ih_l0", "weight_hh_l0"))
    assert case.flops("inference") == 12 * of_a_row
    assert case.flops("training") == 3 * 12 * of_a_row


def test_inputs_follow_from_the_case_alone():
    first, second = Inputs(Case(**CASE)), Inputs(Case(**CASE))
    assert np.array_equal(first.x, second.x)
    assert all(np.array_equal(first.weights[name], second.weights[name]) for name in first.weights)


def test_the_first_steps_of_a_round_do_not_count(monkeypatch):
    now, taken = [0.0], itertools.chain([0.09, 0.09], itertools.repeat(0.03))
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])

    def step():
        now[0] += next(taken)

    assert clock.seconds_per_step(step) == pytest.approx(0.03)


def test_peak_memory_sees_what_a_step_takes():
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("not Linux")
    mib = 2**20
    assert 60 * mib < clock.peak_bytes(lambda: np.ones(64 * mib, np.uint8)) < 80 * mib


def test_peak_memory_sees_what_fits_where_something_was_freed():
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("the C library gives nothing back")

    def blocks():
        return [np.ones(2**16, np.uint8) for _ in range(512)]

    *_, last = blocks()  # which keeps the freed ones before it from going back by themselves
    assert clock.peak_bytes(blocks) > 28 * 2**20
    assert last.all()


class FakeProcess:
    """Answers as an engine's process does, and notes in `log` what it was asked."""

    def __init__(self, engine, y, seconds, log):
        self.engine = self.label = engine
        self.y, self.log = np.array(y), log
        self.times, self.rates, self.pid = iter(seconds), itertools.count(100.0, 10.0), os.getpid()

    def ask(self, do, **request):
        self.log.append((self.engine, do))
        if do == "outputs":
            return np.savez(request["path"], y=self.y)
        if do in ("sgemm", "notes"):
            return 80.0 if do == "sgemm" else {"noted": 1} if self.engine == "other" else {}
        return next({"seconds": self.times, "multiply_add": self.rates}[do])


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Let whatever else runs here disturb no test."""
    monkeypatch.setattr(measure.Watch, "others", lambda watch: 0.0)


def compared(theirs, least=3, seconds=60, witnesses=()):
    log, patience = [], measure.Patience(least, 3, seconds, wait=0)
    ours = FakeProcess(OURS, [1.0, 2.0], [3.0, 1.0, 2.0], log)
    other = FakeProcess("other", theirs, [9.0, 8.0, 4.0], log)
    processes = {ours: ["inference"], other: ["inference"]}
    return measure.compare(processes, ["inference"], patience, witnesses)["inference"], log


def test_figures_are_medians_of_turns():
    found, log = compared([1.0, 2.0])
    rates = [105.0, 125.0, 145.0]  # means of 100 and 110, of 120 and 130, of 140 and 150
    ours = {"seconds": 2.0, "rounds": [3.0, 1.0, 2.0], "multiply_add_rates": rates, "others": [0.0] * 3}
    ours |= {"sgemm_rates": [80.0] * 3}
    assert found["engines"][OURS] == ours
    assert found["engines"]["other"]["seconds"] == 8.0
    assert set(found["engines"]["other"]) == {"seconds", "rounds", "others", "noted"}
    turn = [*((OURS, do) for do in ("sgemm", "multiply_add", "seconds", "multiply_add")), ("other", "seconds")]
    notes = [(OURS, "notes"), ("other", "notes")]
    assert log == [(OURS, "outputs"), ("other", "outputs"), *turn * 3, *notes]


def test_modes_share_the_rate_between_them():
    log = []
    ours = FakeProcess(OURS, [1.0], [3.0, 1.0], log)
    rounds = measure.take_turns({mode: [ours] for mode in MODES}, measure.Patience(1, 1, 60, wait=0))
    assert [do for _, do in log] == ["sgemm", "multiply_add", *["seconds", "multiply_add"] * 2]
    assert rounds == {"training": {OURS: [(3.0, 105.0, 0.0, 80.0)]}, "inference": {OURS: [(1.0, 115.0, 0.0, 80.0)]}}


@pytest.mark.parametrize("part", range(3))
def test_a_round_is_disturbed_if_any_of_its_parts_is(monkeypatch, part):
    taken = iter([0.9 if number == part else 0.0 for number in range(3)])
    monkeypatch.setattr(measure.Watch, "others", lambda watch: next(taken))
    ours = FakeProcess(OURS, [1.0], [3.0], [])
    rounds = measure.take_turns({"training": [ours]}, measure.Patience(1, 1, 60, wait=0))
    assert rounds["training"][OURS] == [(3.0, 105.0, 0.9, 80.0)]


def test_a_witness_is_compared_and_not_timed():
    found, log = compared([1.0, 2.0], witnesses=["other"])
    assert list(found["engines"]) == [OURS]
    assert [do for engine, do in log if engine == "other"] == ["outputs"]
    found, log = compared([1.0, 2.001], witnesses=["other"])
    assert set(found) == {"failed"}, "what a witness contradicts has no figures"
    assert {do for _, do in log} == {"outputs"}


def test_what_computes_something_else_is_timed_and_not_compared():
    log, patience = [], measure.Patience(3, 3, 60, wait=0)
    ours, *others = (
        FakeProcess(name, y, [1.0] * 3, log) for name, y in ((OURS, [1.0]), ("loop", [1.0]), ("else", [7.0]))
    )
    able = {process: ["training"] for process in (ours, *others)}
    found = measure.compare(able, ["training"], patience, others=["else"])["training"]
    assert list(found["engines"]) == [OURS, "loop", "else"]
    assert ("else", "outputs") not in log


def test_a_limited_engine_that_is_late_is_stopped(monkeypatch):
    monkeypatch.setattr(processes, "LIMITED", (TWIN,))
    monkeypatch.setattr(processes.Process, "replies", lambda process, end: False)
    with processes.started("layers", CASE, [TWIN, OURS], 1) as built:
        assert [process.engine for process in built] == [OURS]


def test_whether_a_reply_comes():
    process = processes.Process(OURS, 1)
    try:
        assert not process.replies(0.0), "nothing has been asked"
        process.send_build("layers", CASE)
        assert process.replies(time.monotonic() + HANGS)
        assert process.receive() == list(MODES)
    finally:
        process.stop()


def test_a_line_of_a_cell_names_who_is_late(monkeypatch):
    figures = {OURS: {"seconds": 1.0}, "torch loop": {"seconds": 3.0}}
    suite = SUITES["cells"]
    point = next(point for point in suite.points(False, 1) if point.case.cell == "LSTM")
    monkeypatch.setattr("benchmarks.suites.cells.installed", list)
    monkeypatch.setattr("benchmarks.suites.cells.measure", lambda *given, **named: {"training": {"engines": figures}})
    (line,) = suite.run(point, measure.QUICK)
    cells = dict(zip(suite.columns, suite.cells(line), strict=True))
    assert [cells[name] for name in LOOPS] == [3.0, None, "late"]
    monkeypatch.setattr("benchmarks.suites.cells.measure", lambda *given, **named: {"training": {"failed": "why"}})
    (line,) = suite.run(point, measure.QUICK)
    assert "late" not in line
    assert set(suite.cells(line)[5:]) == {None}


def test_a_reply_waits_until_threads_sleep(monkeypatch):
    spent, windows = iter([0.0, 0.05, 0.1, 0.11, 0.2]), []
    monkeypatch.setattr(worker, "time", SimpleNamespace(process_time=lambda: next(spent), sleep=windows.append))
    worker.settle()
    assert len(windows) == 3
    spent = itertools.count()
    worker.settle()
    assert len(windows) == 3 + worker.MOST_WINDOWS, "threads that never sleep are not waited for for ever"


def test_operators_are_measured_every_way(tmp_path):
    suite = SUITES["overhead"]
    points = [suite.points(True, 1)[number] for number in (0, -1)]
    lines = [line for point in points for line in suite.run(point, measure.QUICK)]
    assert [line["operator"] for line in lines] == ["add", "adam"]
    assert suite.cells(lines[0])[1] is None, "nothing is compiled for a sum"
    assert None not in suite.cells(lines[0])[2:]
    assert suite.cells(lines[1])[4] is None, "updates are not recorded for a gradient"
    assert 0 < lines[1]["seconds"]["compiled"]
    results.write(tmp_path / "overhead.jsonl", [machine.describe(2), *lines])
    write_report(tmp_path, tmp_path / "docs")
    assert "an operator, recording: microseconds" in (tmp_path / "docs" / "benchmarks.md").read_text()


@pytest.mark.slow
def test_operators_on_sequences_are_timed_and_reported(tmp_path):
    suite = SUITES["sequence"]
    point = next(point for point in suite.points(True, 1) if point.case.operator == "reverse")
    lines = suite.run(point, measure.QUICK)
    assert [line["mode"] for line in lines] == list(MODES)
    cells = dict(zip(suite.columns, suite.cells(lines[1]), strict=True))
    assert cells["ns a row"] == pytest.approx(results.seconds(lines[1], OURS) / 20 * 1e9)
    assert cells["NumPy"] > 0
    assert cells["torch jagged"] is None
    results.write(tmp_path / "sequence.jsonl", [machine.describe(1), *lines])
    write_report(tmp_path, tmp_path / "docs")
    assert "| reverse | equal | 20 | 1.00 | inference |" in (tmp_path / "docs" / "benchmarks.md").read_text()


def test_what_is_compiled_runs_again_and_again():
    a, weight, c = np.ones((7, 4), np.float32), np.ones((4, 4), np.float32), np.zeros((7, 4), np.float32)
    compiled = operators.compiled_alone(lambda: operators.gemm.product(a, weight, c))
    assert not c.any(), "it has only been noted"
    for _ in range(2):
        c[:] = 0
        compiled()
        assert np.array_equal(c, a @ weight)


def test_disturbed_rounds_do_not_count_where_there_are_better():
    assert quiet.undisturbed([1.0, 9.0, 9.0], [0.0, 1.0, 1.0]) == [1.0]
    assert quiet.undisturbed([1.0, 8.0, 9.0], [1.0, 1.0, 1.0]) == [1.0, 8.0, 9.0]


def test_a_share_belongs_to_a_round():
    line = line_of()
    # The machine runs at full speed, half of it, full speed again; once somebody disturbs.
    line["engines"][OURS] |= {"rounds": [1.0, 2.0, 1.0, 9.0], "multiply_add_rates": [100.0, 50.0, 120.0, 100.0]}
    line["engines"][OURS]["sgemm_rates"] = [50.0, 45.0, 60.0, 1.0]
    line["engines"][OURS]["others"] = [0.0, 0.0, 0.0, 0.9]
    assert results.shares(line) == [0.9, 0.9, 0.75]
    assert results.efficiency(line) == 0.9
    cells = dict(zip(SUITES["efficiency"].columns, SUITES["efficiency"].cells(line), strict=True))
    assert [cells[name] for name in ("peak, GFLOP/s", "of peak", "of sgemm", "rounds")] == [100e-9, 0.9, 1.5, 3]
    assert [cells[name] for name in ("lower quartile", "upper quartile")] == pytest.approx([0.825, 0.9])


def test_rates_that_belong_to_no_round_give_no_share():
    line = line_of()
    del line["engines"][OURS]["sgemm_rates"]
    line["engines"][OURS]["sgemm"] = 100.0
    assert results.efficiency(line, "sgemm_rates") is None


def test_lines_of_before_the_yardstick_keep_their_share_of_sgemm_and_have_none_of_peak():
    line = line_of()
    del line["engines"][OURS]["multiply_add_rates"]
    for suite in ("efficiency", "recurrent", "cells"):
        cells = dict(zip(SUITES[suite].columns, SUITES[suite].cells(line | {"flops of built-in": 1}), strict=True))
        assert cells["of peak"] is None
        assert cells.get("of sgemm", 1.125) == 1.125


def test_chains_of_multiply_adds_compute_what_they_say():
    for steps in (1, 3):
        chains = (start + steps * 0.5 for start in range(3, peak.CHAINS + 3))
        assert peak.run(steps, 0.25, 2.0) == peak.LANES * sum(chains)


def test_chains_of_multiply_adds_stay_in_registers():
    code = next(iter(peak.run.inspect_asm().values()))
    lines = [line.strip() for line in code.splitlines() if line.strip().startswith(("vfmadd", "fmla"))]
    if not lines:
        pytest.skip("no processor with multiply-adds of vectors")
    assert peak.CHAINS >= 12, "two units whose results take four cycles need eight, and some more"
    assert len(lines) % peak.CHAINS == 0, "LLVM left a chain out"
    assert not [line for line in lines if "(" in line], "an operand is read from memory"
    assert all({64: "%zmm", 32: "%ymm", 16: ".4s"}[4 * peak.LANES] in line for line in lines)
    first, last = (code.index(line) for line in (lines[0], lines[peak.CHAINS - 1]))
    moves = [line for line in code[first:last].splitlines() if line.strip().startswith(("mov", "vmov", "fmov"))]
    assert not moves, "a chain is copied at each step"


def test_the_rate_is_of_all_threads(monkeypatch):
    monkeypatch.setattr(peak, "seconds_per_step", lambda step: len(step()))
    assert peak.multiply_add_rate(2) == 2 * peak.STEPS * peak.CHAINS * peak.LANES


def test_impatience_still_takes_the_least_rounds():
    found, _ = compared([1.0, 2.0], least=2, seconds=0)
    assert found["engines"][OURS]["rounds"] == [3.0, 1.0]


@pytest.mark.parametrize("theirs", [[1.0, 2.001], [1.0, np.nan], [1.0]])
def test_no_speed_without_agreement(theirs):
    found, log = compared(theirs)
    assert set(found) == {"failed"}
    assert "y of other" in found["failed"]
    assert not [do for _, do in log if do == "seconds"]
    line = line_of(mode="inference") | found
    del line["engines"]
    assert set(SUITES["recurrent"].cells(line)[7:]) == {None}
    assert set(SUITES["efficiency"].cells(line)[5:]) == {None}


def test_one_engine_alone_is_not_believed():
    assert "nothing to compare" in parity.disagreement({OURS: {"y": np.ones(1)}})


def test_a_missing_peer_is_named(monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None if name == "torch" else found(name))
    command.warn()
    assert "torch packed is left out: torch not installed" in capsys.readouterr().out
    assert "torch padded" not in installed(ENGINES)


def test_results_are_replaced_only_when_complete(tmp_path):
    path = tmp_path / "suite.jsonl"
    results.write(path, [{"machine": 1}, {"seconds": 0.123456}])
    assert results.read(path) == ({"machine": 1}, [{"seconds": 0.1235}])
    with pytest.raises(TypeError):
        results.write(path, [{"machine": 2}, {"seconds": object()}])
    assert results.read(path)[0] == {"machine": 1}
    assert [found.name for found in tmp_path.iterdir()] == ["suite.jsonl"]


@pytest.mark.slow
@pytest.mark.skipif(not survival.engines(), reason="no engine is installed")
def test_ranks_are_timed_and_counted():
    suite = SUITES["distributed"]
    points = suite.points(quick=True, threads=2)
    assert [point.engine for point in points] == [*survival.engines(), *survival.engines()[:1]]
    *steps, lookups = (line for point in points for line in suite.run(point, measure.QUICK))
    for line in steps:
        assert set(line["wall"]) == {"one thread", "threads", *ranks.WAYS}
        assert all(seconds > 0 for kind in ("wall", "cpu") for seconds in line[kind].values())
        assert len(suite.cells(line)) == len(suite.cells(lookups)) == len(suite.columns)
    # A row of 64 float32 and its index; besides, a message of a few bytes about the loss.
    assert 64 * 4 + 8 <= lookups["bytes"] / lookups["touched"] < 64 * 4 + 16


def test_ranks_that_do_not_come_up(monkeypatch):
    monkeypatch.setattr(turns, "command", lambda *words: [sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(EngineError, match="gloo: its ranks did not come up"), turns.started("gloo", 2):
        pass


def test_divisions_for_ranks_have_every_sequence_once():
    lengths = ranks.draw("pareto", 50, np.random.default_rng(0))
    for divide in ranks.WAYS.values():
        parts = divide(lengths, 4, vr.data.StepCost(per_batch=1.0, per_row=1.0))
        assert len(parts) == 4
        assert sorted(np.concatenate(parts)) == list(range(50))


class TeamByModel:
    """Ranks that take exactly as long as a model says."""

    def __init__(self, lengths, cost, latency):
        self.lengths, self.cost, self.latency = lengths, cost, latency

    def ask_one(self, do, **request):
        return {"build": self.lengths, "cost": self.cost, "divide": None, "host": 0.0}[do]

    def ask_ranks(self, do, number=0, **request):
        if do == "exchange":
            return [{"messages": 2, "bytes": 4e6, "few": [self.latency], "many": [self.latency], "more": 4e6}] * 2
        return None if do != "step" else [(wall, 0.0) for wall in self.of_parts(number)]

    def of_parts(self, number):
        lengths = np.array(self.lengths[number])
        return [self.cost.of(lengths[part]) for part in vr.data.balanced_parts(lengths, 2, self.cost)]

    def step(self, way, number):
        if way == "work":
            return max(self.of_parts(number)) + 2 * self.latency, 0.0
        return self.cost.of(self.lengths[number]), 0.0


def test_the_model_of_many_ranks(capsys, monkeypatch):
    cost = vr.data.StepCost(per_batch=1e-3, per_row=1e-5, per_step=1e-5, per_sequence=0.0)
    rng = np.random.default_rng(0)
    team = TeamByModel([ranks.draw("lognormal", 128, rng).tolist() for _ in range(4)], cost, 0.5)
    monkeypatch.setattr(scale, "started", lambda engine, number: contextlib.nullcontext(team))
    monkeypatch.setattr(scale, "engines", lambda: ["gloo"])
    for module in (scale, turns):
        monkeypatch.setattr(module, "wait_for_quiet", lambda seconds: None)
    monkeypatch.setattr(vr, "get_num_threads", lambda: 2)
    scale.main(["--ranks", "8", "--noise", "0", "--sequences", "32", "--batches", "4"])
    printed = capsys.readouterr().out
    assert printed.count("one process: the model says") == printed.count("2 real ranks: the model says") == 2
    assert printed.count("(+0 %)") == 4
    assert "2 messages of 500000 us" in printed
    assert "A model, not measurements" in printed
    rows = [line.split() for line in printed.splitlines() if re.match(r"[1248] ", line)]
    assert [row[0] for row in rows] == ["1", "2", "4", "8"]
    assert rows[0][4:] == ["1.00"] * 3, "one rank has all the work"
    assert all(0 < float(row[4]) <= 1 for row in rows)


@pytest.mark.parametrize("quick", [False, True])
def test_points_of_every_suite_say_what_they_are(quick, monkeypatch):
    monkeypatch.setattr("benchmarks.suites.distributed.engines", lambda: ["gloo", "mpi"])  # as if both were installed
    for suite in SUITES.values():
        points = suite.points(quick, 2)
        assert 0 < len(set(map(str, points))) == len(points)


def test_a_suite_has_its_own_patience_unless_the_run_is_quick(monkeypatch, tmp_path):
    asked = []
    suite = SUITES["efficiency"]._replace(
        points=lambda quick, threads: ["a point"], run=lambda point, patience: asked.append(patience) or []
    )
    monkeypatch.setitem(SUITES, "efficiency", suite)
    for quick in (False, True):
        command.run_suite("efficiency", 1, quick, tmp_path)
    assert asked == [suite.patience, measure.QUICK]
    assert suite.patience.least == 15


@pytest.mark.slow
def test_a_checkout_against_itself(capsys, monkeypatch):
    monkeypatch.setattr(against, "WAIT", 0.0)
    sizes = ["--size", "2,3,4", "--lengths", "5", "--rounds", "2", "--threads", "1"]
    against.main([str(ROOT), *sizes])
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[4:]]
    labels = ["this 1", "other 1", "this 2", "other 2"]
    assert [" ".join(row[:2]) for row in rows] == [label for label in labels for _ in range(3)]
    assert [row[2] for row in rows] == ["forward", "backward", "step"] * 4
    assert {tuple(row[4:7]) for row in rows[:3]} == {("1.000",) * 3}, "over itself"


def test_kernels_of_a_level_against_those_of_the_host(capsys, monkeypatch):
    """Two processes of each, of this checkout; a process has the variables that it is given."""
    seen, step = [], {"forward": 0.1, "backward": 0.1, "step": 0.2}

    def process(engine, threads, label, variables):
        seen.append(variables)
        answers = {"ask": str(ROOT / "varlen_rnn"), "send_build": None, "receive": None, "stop": None}
        return SimpleNamespace(label=label, **{name: lambda *_, _a=a, **__: _a for name, a in answers.items()})

    monkeypatch.setattr(against, "runs_here", lambda level: True)
    monkeypatch.setattr(against, "Process", process)
    monkeypatch.setattr(against, "check_outputs", lambda *_: None)
    monkeypatch.setattr(against, "wait_for_quiet", lambda limit: None)
    monkeypatch.setattr(against, "watched", lambda *_: (step, 0.0))
    against.main(["x86-64-v3", "--rounds", "1"])
    assert len(capsys.readouterr().out.splitlines()) == 4 + 4 * len(step)
    assert [given.get("VARLEN_RNN_LEVEL") for given in seen] == [None, "x86-64-v3"] * 2
    assert all(given["NUMBA_CPU_NAME"] for given in seen)
    started = []
    monkeypatch.setattr(
        processes.subprocess, "Popen", lambda *_, env, **__: started.append(env) or SimpleNamespace(pid=0)
    )
    processes.Process(OURS, 1, variables=seen[1])
    assert started[0].items() >= seen[1].items()


def test_a_level_that_the_processor_lacks_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(against, "runs_here", lambda level: False)
    with pytest.raises(SystemExit):
        against.main(["x86-64-v4"])
    assert "lacks features of x86-64-v4" in capsys.readouterr().err


def test_start_up_with_installed_kernels_is_a_point_only_where_they_are_of_use(monkeypatch):
    folder = SimpleNamespace(path=Path("a"))
    monkeypatch.setattr(startup, "installed_bundles", lambda: [folder])
    for usable in ([], [folder.path]):
        monkeypatch.setattr(startup, "usable_bundles", lambda usable=usable: usable)
        assert ("installed" in [point.cache for point in startup.points(False, 2)]) == bool(usable)


def test_start_up_counts_what_is_compiled(monkeypatch):
    def first_step(engine, variables):
        folder = Path(variables["NUMBA_CACHE_DIR"]) / "varlen_rnn"
        folder.mkdir()
        (folder / "a.nbc").touch()
        return {"imports": {"numba": 0.1}, "first_step": 1.0, "second_cell": 2.0}

    monkeypatch.setattr(startup, "_first_step", first_step)
    (line,) = startup.run(startup.Point(OURS, "cold"), measure.QUICK)
    assert line["compiled"] == 1
    assert len(startup.cells(line)) == len(startup.COLUMNS)


def test_another_checkout_is_where_it_is_said_to_be(tmp_path):
    with pytest.raises(EngineError, match=r"other 1: found varlen_rnn in .*, not in"):
        against.main([str(tmp_path), "--size", "2,3,4", "--lengths", "5"])


def test_tables_line_up():
    widths = [5, 8]
    assert len(tables.text_row(["cell", "ratio"], widths)) == len(tables.text_row(["LSTM", 1234.5], widths)) == 13


@pytest.mark.slow
def test_a_quick_run_of_small_work(tmp_path):
    arguments = [sys.executable, "-m", "benchmarks", "small", "--quick", "--results", str(tmp_path)]
    done = subprocess.run(
        arguments, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=HANGS, check=False
    )
    assert done.returncode == 0, done.stderr
    about, lines = results.read(tmp_path / "small.jsonl")
    assert about["threads"] == contextvars.Context().run(vr.get_num_threads)
    assert [line["mode"] for line in lines] == list(MODES)
    for line in lines:
        assert set(line["engines"]) == {
            name for name in installed((*ENGINES, GROUPED)) if line["mode"] == "inference" or name != "onnxruntime"
        }
    assert done.stdout.count("LSTM") == 2
