"""The command line: what it prints, and that bad input ends in a line and status 2, never in a traceback."""

import functools
import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from numba import config

import varlen_rnn as vr
from tests.waiting import HANGS
from varlen_rnn.cli import compare, main
from varlen_rnn.cli.lengths import read_lengths
from varlen_rnn.cli.measure import Measured, Subject, cost, cut, divide, fastest_number, random_rows
from varlen_rnn.cli.packed import Packed
from varlen_rnn.cli.report import print_times, verdict

SMALL = ["--input-size", "3", "--hidden-size", "4", "--batch-size", "3", "--batches", "2", "--threads", "1"]


def test_alone_it_prints_help(capsys):
    assert main([]) == 0
    text = capsys.readouterr().out
    assert "cache" in text
    assert "compare" in text


def test_a_command_that_does_not_exist_is_refused(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["compute"])
    assert exit.value.code == 2
    assert "compute" in capsys.readouterr().err


def test_python_dash_m():
    command = [sys.executable, "-m", "varlen_rnn", "compare", "/no/such/file"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANGS)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "varlen-rnn: /no/such/file: expected a file of lengths, got No such file or directory\n"


def test_the_console_script_is_this_function():
    with (Path(__file__).parent.parent / "pyproject.toml").open("rb") as file:
        (entry,) = tomllib.load(file)["project"]["scripts"].values()
    module, _, name = entry.partition(":")
    assert getattr(importlib.import_module(module), name) is main


# compare


def test_the_peak_of_a_step_counts_memory_that_earlier_steps_let_go():
    batch, layer = np.full(16, 40), vr.nn.LSTM(64, 256)
    subject = Subject(layer, [batch], random_rows([batch], 64))
    for _ in range(2):
        subject.step(batch)
    first, second = subject.peak(), subject.peak()
    assert first >= batch.sum() * layer.cell.num_kept * 256 * 4
    assert abs(second - first) <= first / 20


@pytest.mark.parametrize("cell", ["rnn", "lstm", "gru"])
def test_compare_prints_rows_times_and_a_verdict(cell, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("varlen_rnn.cli.compare.Packed", no_packed)
    path = tmp_path / "lengths.txt"
    path.write_text("5 0 1\n7,2\n3\n")
    assert main(["compare", str(path), "--cell", cell, *SMALL]) == 0
    text = capsys.readouterr().out
    assert "6 sequences of 0 to 7 rows, median 2.5" in text
    assert re.search(r"unpadded +18 +1\.00", text)
    batches = cut(np.array([5, 0, 1, 7, 2, 3]), 3, shuffle=True, bucket=False, seed=0)
    padded = cost(batches).padded_rows
    assert re.search(rf"padded +{padded} +{padded / 18:.2f}", text)
    assert re.search(rf"\npadded +{padded / 2:.0f} +\d+\.\d\d +\d+\.\d\d", text)
    assert "Packed sequences are not measured. No PyTorch here." in text
    assert re.search(r"\ngroups +\d+ +\d+\.\d\d", text)
    assert re.search(r"the fastest number was \d+ for groups\.", text)
    assert re.search(r"\nUse (unpadded|bucketed|groups|padded): ", text)


def no_packed(*arguments):
    raise OSError("No PyTorch here.")


def test_compare_measures_packed_sequences(tmp_path, capsys):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    path = tmp_path / "lengths.txt"
    path.write_text("5 0 1 7 2 3 0 0 0")
    assert main(["compare", str(path), *SMALL]) == 0
    text = capsys.readouterr().out
    assert re.search(r"\npacked +\d+ +\d+\.\d\d", text)
    assert re.search(r"\ntorch groups +\d+ +\d+\.\d\d", text)
    assert re.search(r"the fastest number was \d+ for groups and \d+ for torch groups\.", text)
    assert f"PyTorch {torch.__version__}" in text


@pytest.fixture
def fake_torch(tmp_path, monkeypatch):
    """Let the process of `Packed` import a PyTorch that prints, and does what the function returned is given."""
    utils = tmp_path / "torch" / "nn" / "utils"
    utils.mkdir(parents=True)
    (tmp_path / "torch" / "nn" / "__init__.py").write_text("")
    (utils / "rnn.py").write_text("pack_padded_sequence = None")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    def write(program):
        (tmp_path / "torch" / "__init__.py").write_text(f"print('This is PyTorch.')\n__version__ = 'fake'\n{program}")

    return write


def start_packed():
    return Packed("lstm", 3, 4, 1, [np.array([2, 1])])


def test_what_pytorch_prints_is_no_answer(fake_torch):
    fake_torch("""
import os
import torch.nn.utils.rnn as rnn
from torch import nn
from unittest.mock import MagicMock
def randn(*shape, **options):
    os.system("echo printed by a library")
    return MagicMock()
nn.LSTM = lambda *sizes, **options: MagicMock(return_value=(MagicMock(), None))
set_num_threads = tensor = ones_like = MagicMock()
rnn.pack_padded_sequence = MagicMock()
""")
    with start_packed() as packed:
        assert packed.version == "fake"
        assert [seconds > 0 for seconds in packed.seconds()] == [True]


def test_why_pytorch_does_not_run(fake_torch):
    fake_torch("raise ImportError('a library is missing')")
    with pytest.raises(OSError, match="PyTorch does not run: ImportError: a library is missing"):
        start_packed()


def test_an_interrupt_ends_the_process_of_pytorch(fake_torch, monkeypatch):
    fake_torch("import time; time.sleep(60)")
    started, popen = [], subprocess.Popen

    def interrupt(packed, question):
        raise KeyboardInterrupt

    monkeypatch.setattr(Packed, "_ask", interrupt)
    monkeypatch.setattr(
        subprocess, "Popen", lambda *args, **options: started.append(popen(*args, **options)) or started[0]
    )
    with pytest.raises(KeyboardInterrupt):
        start_packed()
    assert started[0].poll() is not None


def test_a_wrong_number_of_threads_in_the_environment_is_told_by_what_needs_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VARLEN_RNN_NUM_THREADS", "many")
    (tmp_path / "lengths.txt").write_text("1 2")
    assert main(["cache"]) == 0
    assert main(["compare", str(tmp_path / "lengths.txt")]) == 2
    assert "VARLEN_RNN_NUM_THREADS: expected an integer of at least 1, got 'many'" in capsys.readouterr().err


def test_a_command_computes_at_its_precision(tmp_path, monkeypatch):
    found = []
    path = tmp_path / "lengths.txt"
    path.write_text("3")
    monkeypatch.setattr(compare, "_measure", lambda *given: found.append(vr.get_float32_matmul_precision()))
    for given in (["--precision", "bf16"], []):
        assert main(["compare", str(path), *given]) == 0
    assert found == ["bf16", "fp32"]


def test_compare_leaves_the_callers_modes_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("varlen_rnn.cli.compare.Packed", no_packed)
    (tmp_path / "lengths.txt").write_text("1 2")
    vr.manual_seed(3)
    before = vr.get_num_threads(), vr.random.get_state()
    main(["compare", str(tmp_path / "lengths.txt"), *SMALL, "--threads", "7"])
    assert (vr.get_num_threads(), vr.random.get_state()) == before


def test_lengths_of_every_kind_of_file(tmp_path):
    (tmp_path / "a.txt").write_text("3 0,12\n")
    np.save(tmp_path / "a.npy", np.array([3, 0, 12], np.uint8))
    sequences = ["abc", "", "a" * 12]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"words": text}) + "\n" for text in sequences))
    (tmp_path / "a.csv").write_text('words\nabc\n""\naaaaaaaaaaaa\n')
    for name in ("a.txt", "a.npy", "a.jsonl", "a.csv"):
        lengths = read_lengths(tmp_path / name, field="words")
        assert lengths.tolist() == [3, 0, 12], name
        assert lengths.dtype == np.int64
    assert read_lengths(tmp_path / "a.csv", "words", "words").tolist() == [1, 0, 1]


BAD_TEXTS = {
    "empty": ("", "at least one length"),
    "white space": (" \n", "at least one length"),
    "negative": ("3 -1", "entry 2: expected a length from 0 to 2,147,483,647 rows, got -1"),
    "a fraction": ("3 1.5", "entry 2: expected an integer, got '1.5'"),
    "words": ("three", "entry 1: expected an integer"),
    "bytes": (b"\xff\xfe", "entry 1: expected an integer"),
    "all zero": ("0 0 0", "a length above 0"),
    "huge": ("3 9999999999", "entry 2: expected a length from 0 to 2,147,483,647 rows"),
    "more than 64 bits": ("1" * 5000, "entry 1: expected at most"),
    "more than fits": ("2147483647", "4 GiB at most"),
}


@pytest.mark.parametrize(("content", "message"), BAD_TEXTS.values(), ids=BAD_TEXTS)
def test_bad_lengths_are_a_line(content, message, tmp_path, capsys):
    path = tmp_path / "bad.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["compare", str(path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


BAD_ARRAYS = {
    "fractions": (np.ones(3), "expected integers, got data type float64"),
    "two dimensions": (np.ones((2, 2), int), "expected an array of one axis, got an array of shape (2, 2)"),
    "objects": (np.array([1, "a"], object), "expected a NumPy array of integers"),
    "none": (np.ones(0, int), "at least one length"),
    "unsigned": (np.array([2**64 - 1], np.uint64), "entry 1: expected a length from 0 to"),
}


@pytest.mark.parametrize(("array", "message"), BAD_ARRAYS.values(), ids=BAD_ARRAYS)
def test_bad_arrays_are_a_line(array, message, tmp_path, capsys):
    np.save(tmp_path / "bad.npy", array)
    assert main(["compare", str(tmp_path / "bad.npy")]) == 2
    assert message in capsys.readouterr().err


def test_other_bad_files_and_options_are_a_line(tmp_path, capsys):
    (tmp_path / "bad.npy").write_text("no array")
    (tmp_path / "good.txt").write_text("1 2 3")
    (tmp_path / "bad.jsonl").write_text('{"words": "a"}\n')
    good = str(tmp_path / "good.txt")
    for arguments, message in (
        ([str(tmp_path)], "Is a directory"),
        ([str(tmp_path / "bad.npy")], "a NumPy array of integers"),
        ([str(tmp_path / "bad.jsonl")], "line 1, --field: expected the field 'text'"),
        ([good, "--hidden-size", "0"], "--hidden-size: expected at least 1, got 0"),
        ([good, "--hidden-size", "1000000"], "4 GiB at most, got about 29,810 GiB, mostly for weights (choose smaller"),
        ([good, "--input-size", "1000000", "--hidden-size", "1000"], "mostly for weights"),
        ([good, "--batches", "-1"], "batches: expected at least 1, got -1"),
    ):
        assert main(["compare", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_buckets_hold_the_same_sequences_in_as_many_batches():
    lengths = np.random.default_rng(0).integers(0, 50, 100)
    for shuffle in (False, True):
        plain, buckets = (cut(lengths, 8, shuffle=shuffle, bucket=bucket) for bucket in (False, True))
        assert len(plain) == len(buckets) == 13
        assert sorted(np.concatenate(plain)) == sorted(np.concatenate(buckets)) == sorted(lengths)
        assert cost(buckets).rows == cost(plain).rows == lengths.sum()
        assert cost(buckets).padded_rows < cost(plain).padded_rows


def test_groups_sum_the_gradients_of_the_weights_of_all_their_sequences():
    batch, layer = np.array([5, 0, 1, 7, 2]), vr.nn.LSTM(3, 4)
    seen = []
    assert [group.tolist() for group in divide(batch, 16)] == [[1], [2], [5], [7]]
    for groups in (None, 2):
        subject = Subject(layer, [batch], random_rows([batch], 3)[:1].repeat(15, axis=0), groups)
        subject.run = Recorded(layer, seen)
        subject.step(batch)
    assert np.allclose(seen[0], seen[1], rtol=1e-5)
    assert layer.bias_hh_l0.grad is None


class Recorded:
    """A layer whose gradient is noted when its parameters are asked for."""

    def __init__(self, layer, seen):
        self.layer, self.seen = layer, seen

    def __call__(self, x):
        return self.layer(x)

    def parameters(self):
        self.seen.append(np.array(self.layer.bias_hh_l0.grad))
        return self.layer.parameters()


def test_the_fastest_number_of_groups_is_that_of_the_best_try():
    asked = []

    def seconds_of(number):
        asked.append(number)
        return {2: 5.0, 4: 2.0 if len(asked) > 8 else 9.0, 8: 3.0, 16: 4.0}[number]

    assert fastest_number(seconds_of) == 4
    assert asked == [2, 4, 8, 16] * 3


def verdict_of(padded_rows=20, **seconds):
    rows = {"unpadded": 9, "padded": padded_rows, "bucketed": min(padded_rows, 10), "packed": 9}
    return verdict({way: Measured(rows[way], taken, 1) for way, taken in seconds.items()})


def test_the_verdict_names_the_fastest():
    of = verdict_of
    assert of(unpadded=1.0, padded=2.0, bucketed=1.5, packed=3.0).startswith("Use unpadded: 2.00 times as fast as p")
    assert of(unpadded=2.0, padded=3.0, bucketed=2.5, packed=1.0) == "Use packed: 2.00 times as fast as unpadded."
    # Of what is alike, the one that needs no order of batches.
    assert of(unpadded=1.0, padded=2.0, bucketed=0.92).startswith("Use unpadded")


def test_where_nothing_is_padded_chance_decides_nothing():
    of = functools.partial(verdict_of, 9)
    same_work, use = of(unpadded=1.4, padded=1.4, bucketed=1.0).splitlines()
    assert same_work.startswith("Nothing is padded here: ")
    assert use == "Use unpadded, which runs batches of any lengths."
    packed = of(unpadded=1.4, padded=1.4, bucketed=1.0, packed=2.8)
    assert packed.endswith("\nUse unpadded: 2.00 times as fast as packed.")
    packed = of(unpadded=1.4, padded=1.4, bucketed=1.0, packed=0.7)
    assert packed.endswith("\nUse packed: 2.00 times as fast as unpadded.")


def test_numbers_of_one_read_well(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("varlen_rnn.cli.compare.Packed", no_packed)
    path = tmp_path / "lengths.txt"
    path.write_text("7")
    assert main(["compare", str(path), *SMALL]) == 0
    text = capsys.readouterr().out
    assert "lengths.txt: 1 sequence of 7 rows; batches of 3\n" in text
    assert "float32, 1 thread\n" in text
    assert "the mean of 1 batch, each" in text
    assert "Less than 10% between two ways decides nothing." in text
    assert "Nothing is padded here: " in text


@pytest.mark.parametrize(
    ("peak", "words"),
    [(2**20, "as much memory"), (2**20 - 9, "as much memory"), (2**21, "1.0 MiB less"), (2**19, "0.5 MiB more")],
)
def test_memory_is_less_or_more_or_as_much(peak, words, capsys):
    print_times({"unpadded": Measured(9, 1.0, 2**20), "padded": Measured(9, 1.0, peak)})
    assert capsys.readouterr().out.endswith(f"\nWithout padding, the largest step takes {words}.\n")


# cache


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    return tmp_path / "varlen_rnn"


def make_stale(folder):
    stale = folder / ("0" * 32)
    stale.mkdir(parents=True)
    (stale / "kernel-1.nbc").write_bytes(b"x" * 2**20)
    (stale / "environment.txt").write_text("another machine")
    return stale


def test_show_and_clear_stale(folder, capsys):
    stale = make_stale(folder)
    assert main(["cache"]) == main(["cache", "show"]) == 0
    first, *_ = text = capsys.readouterr().out.splitlines()
    assert first == f"{folder}: 1 kernel, 1.0 MiB in 1 environment"
    assert re.fullmatch(r" +stale +1 kernel, 1.0 MiB, used today: another machine", text[1])
    assert main(["cache", "clear", "--stale"]) == 0
    assert capsys.readouterr().out == f"{folder}: removed 1 kernel, 1.0 MiB\n"
    assert not stale.exists()
    assert main(["cache", "show"]) == 0
    assert "0 kernels" in capsys.readouterr().out


def test_clear_removes_what_is_ours_and_nothing_else(folder, capsys):
    stale = make_stale(folder)
    (folder / "mine").mkdir()
    (stale / "mine.py").write_text("x = 1")
    (folder / "mine" / "kernel-1.nbc").write_text("not of ours")
    assert main(["cache", "clear"]) == 2  # the folder stays, with a stranger's file in it
    assert "expected a folder that can be removed" in capsys.readouterr().err
    assert [path.name for path in stale.iterdir()] == ["mine.py"]
    assert (folder / "mine" / "kernel-1.nbc").exists()


TRAININGS = """
import numpy as np, varlen_rnn as vr
from varlen_rnn.runtime.cache.disk import DiskCache
def refuse(self, signature, compiled): raise AssertionError(f"{self._function.__name__} {signature}")
DiskCache.save_overload = refuse
x, labels = vr.data.batches([[1, 2], [0]], np.array([0, 1]), batch_size=2)[0]
nn, optim = vr.nn, vr.optim
cells = [(nn.RNN, {}), (nn.RNN, {"nonlinearity": "relu"}), (nn.LSTM, {"num_layers": 2}), (nn.GRU, {"bias": False})]
rules = [optim.SGD, optim.Momentum, optim.Adagrad, optim.Adam]
public = [getattr(optim, name) for name in optim.__all__]
others = [found for found in public if isinstance(found, type) and issubclass(found, optim.Optimizer)]
others = set(others) - {optim.Optimizer, *rules}
assert {optim.AdamW, optim.RMSprop, optim.Adadelta} <= others
for dtype in (np.float32, np.float64):
    for (cell, options), rule, pool in zip(cells, rules, ("sum", "max", "first", "sqrt")):
        for sparse in (True, False):
            embedding, output = nn.Embedding(3, 20, sparse=sparse, dtype=dtype), nn.Linear(70, 2, dtype=dtype)
            layer = cell(20, 70, dtype=dtype, **options)
            y, _ = layer(embedding(x))
            nn.functional.cross_entropy(output(vr.sequence_pool(y, pool)), labels).backward()
            rule([*embedding.parameters(), *layer.parameters(), *output.parameters()], lr=0.1).step()
        layer.prepare()(embedding(x))
        layer.stream(2)(np.asarray(embedding(x))[:2])
    heads, field = nn.MultiheadAttention(20, 2, dtype=dtype), nn.LinearChainCRF(20, dtype=dtype)
    attended = heads(*[embedding(x)] * 3)
    field(attended, x).sum().backward()
    field.decode(attended)
    for rule in others:
        rule(embedding.parameters(), lr=0.1).step()
    plan = vr.sort_by_seq_len(x)
    vr.concat_outputs([vr.segment_inputs(embedding(x), plan, t) for t in range(2)], plan).sum().backward()
    for layer in (nn.SequenceConv(20, 3, 2, dtype=dtype), nn.RowConv(20, 3, dtype=dtype)):
        layer(embedding(x)).sum().backward()
    many = vr.create_lod_tensor(np.ones((9000, 8), dtype), [[9] * 1000])
    nn.GRU(8, 9, dtype=dtype)(many)[0].sum().backward()
    embedding, layer, output = nn.Embedding(3, 5, dtype=dtype), nn.GRU(5, 7, dtype=dtype), nn.Linear(7, 3, dtype=dtype)
    rule = optim.Adam([*embedding.parameters(), *layer.parameters(), *output.parameters()], lr=0.1)
    @vr.bound
    def step(ids, labels):
        rule.zero_grad()
        loss = nn.functional.cross_entropy(output(vr.sequence_pool(layer(embedding(ids))[0], "last")), labels)
        loss.backward()
        rule.step()
        return loss
    for rows in range(1, 13):
        step(vr.create_lod_tensor(np.ones(rows + 2, int), [[rows, 2]]), np.zeros(2, int))
"""


@pytest.mark.slow
def test_warm_compiles_what_trainings_use(monkeypatch, capsys):
    """In a process of its own, trainings after `cache warm` find all their kernels: they write no file."""
    monkeypatch.setenv("VARLEN_RNN_QUIET", "0")
    assert main(["cache", "warm", "--float64"]) == 0
    assert re.search(r"\d+ kernels, \d+\.\d MiB for this environment, in \d", capsys.readouterr().out)
    done = subprocess.run([sys.executable, "-c", TRAININGS], capture_output=True, text=True, check=False, timeout=HANGS)
    assert (done.returncode, done.stderr) == (0, "")


def test_warm_says_when_nothing_can_be_saved(tmp_path, monkeypatch, capsys):
    (tmp_path / "a file").write_text("")
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "a file"))
    monkeypatch.setattr("varlen_rnn.cli.cache.warm", lambda dtypes: None)
    monkeypatch.setattr("varlen_rnn.cli.cache.usable_bundles", list)  # as if no kernels were installed
    assert main(["cache", "warm"]) == 2
    assert "NUMBA_CACHE_DIR" in capsys.readouterr().err
