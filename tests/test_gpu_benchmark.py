"""The benchmark on a GPU: at a tiny size, ours on the emulated device and PyTorch's layers on the CPU."""

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import varlen_rnn as vr
from benchmarks import results
from benchmarks.engines import OURS
from benchmarks.gpu import run
from benchmarks.gpu.case import SIZES, Case, cases
from tests.emulated.device import Driver, missing
from varlen_rnn.runtime import cuda

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["case", "run"])
def test_doctests(name):
    found = doctest.testmod(importlib.import_module(f"benchmarks.gpu.{name}"))
    assert found.attempted
    assert not found.failed


@pytest.fixture
def on_cuda(monkeypatch):
    pytest.importorskip("torch", reason="PyTorch is in the `parity` extra")
    if missing():
        pytest.skip(missing())
    monkeypatch.setattr(cuda, "driver", Driver())


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("directions", [1, 2])
def test_engines_agree_and_are_timed(cell, directions, on_cuda, tmp_path):
    case = Case(cell, 3, 4, (3, 1, 2), "ragged", directions)
    lines = run.compared([case], run.PRECISIONS, 60.0, "cpu")
    assert [(line["mode"], line["precision"]) for line in lines] == [
        (mode, precision) for precision in ("fp32", "tf32") for mode in ("training", "inference")
    ]
    for line in lines:
        assert line["not compared"] == ([] if directions == 1 else ["torch padded"])
        assert line["engines"].keys() == {OURS, "torch packed", "torch padded"}
        assert all(len(its["rounds"]) >= run.LEAST for its in line["engines"].values())
        assert line["engines"][OURS]["seconds"] == np.median(line["engines"][OURS]["rounds"])
    assert vr.get_float32_matmul_precision() == "fp32", "it is as it was"
    results.write(tmp_path / "gpu.jsonl", [{"gpu": "none"}, *lines])
    assert len(results.read(tmp_path / "gpu.jsonl")[1]) == 4


@pytest.mark.slow
def test_nobody_is_timed_if_results_differ(on_cuda, monkeypatch):
    from benchmarks.gpu import engines

    class Wrong(engines.Packed):
        def training(self):
            found = super().training()
            return found | {"weight_hh_l0": found["weight_hh_l0"] * 1.001}

    monkeypatch.setitem(engines.ENGINES, "torch packed", Wrong)
    training, inference = run.compared([Case("LSTM", 3, 4, (3, 1), "ragged")], ["fp32"], 60.0, "cpu")
    assert "weight_hh_l0 of torch packed" in training["failed"]
    assert "engines" not in training
    assert "engines" in inference


def test_the_time_ends_the_run_and_is_named(capsys):
    assert run.compared(cases(False), run.PRECISIONS, 0.0, "cpu") == []
    number = len(cases(False)) * 2
    assert f"the time is over: the last {number} of {number} cases were not run" in capsys.readouterr().out


def test_all_sizes_cells_and_directions_are_among_the_cases():
    found = {(case.cell, case.hidden_size, case.directions) for case in cases(False)}
    assert found == {(cell, size, n) for cell in ("LSTM", "GRU") for size in SIZES for n in (1, 2)}
    assert {case.distribution for case in cases(False)} == {"equal", "lognormal", "pareto"}


@pytest.mark.skipif(run.missing() is None, reason="this machine has a GPU")
def test_without_a_gpu_it_ends_with_a_sentence():
    command = [sys.executable, "-m", "benchmarks", "gpu"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("python -m benchmarks gpu: ")
    assert "Traceback" not in ended.stderr
