"""The page on kernels: what its functions return, from Python, threads, JAX and C, and that it shows all kernels."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.oracles import philox, transducer
from tests.test_checked_kernels import FUNCTIONS
from tests.test_readme import blocks_of, names_after
from varlen_rnn.kernels import pool as kernels
from varlen_rnn.runtime.numba_internals import is_inlined

PAGE = Path(__file__).parent.parent / "docs" / "kernels.md"
HELPERS = {"too few offsets", "a block beyond the rows", "of_the_user"}


@pytest.fixture(scope="module")
def names():
    return names_after(PAGE)


def sequences(names):
    return np.split(names["x"], names["offsets"][1:-1])


def test_every_kernel_is_shown():
    blocks = "".join(blocks_of(PAGE))
    bodies = {name for name, value in FUNCTIONS.items() if is_inlined(value)}
    missing = [
        name
        for name in FUNCTIONS.keys() - bodies - HELPERS
        if f"    {name}(" not in blocks and f"if {name}(" not in blocks
    ]
    assert not missing


@pytest.mark.slow
def test_pooling(names):
    parts = sequences(names)
    assert np.allclose(names["mean"], [part.sum(axis=0) / max(1, len(part)) for part in parts])
    assert np.allclose(names["most"], [part.max(axis=0) if len(part) else [0, 0] for part in parts])
    assert np.array_equal(names["again"], names["most"])
    assert np.allclose(names["gradient"][:, 0], [0.5, 1.5, 1 / 3, 1 / 3, 4 / 3])
    assert names["places"].tolist() == [1, 0, 4, 3]
    assert names["highest"][0].tolist() == [[8, 9], [6, 7]]
    assert np.array_equal(names["highest"][1], names["x"] * (names["x"] > 5))
    assert np.array_equal(names["taken"], names["x"][[1, 1, 4]])
    assert names["d_table"][:, 0].tolist() == [0, 2, 0, 0, 1]
    assert names["first_rows"][:, 0].tolist() == [0, -1, 4]
    ends, d_ends, backwards, d_x = names["others"]
    assert np.array_equal(ends, [names["x"][1], [0, 0], names["x"][4]])
    assert d_ends[:, 0].tolist() == [0, 1, 0, 0, 1]
    assert np.array_equal(backwards, names["x"][[1, 0, 4, 3, 2]])
    assert (d_x == 2).all()


@pytest.mark.slow
def test_within_sequences(names):
    parts = sequences(names)
    ends = [np.exp(part) / np.exp(part).sum(axis=0) for part in parts]
    assert np.allclose(names["softmax"], np.concatenate(ends))
    assert np.allclose(names["d_softmax"], 0)
    assert np.allclose(names["sums"], np.concatenate([part.cumsum(axis=0) for part in parts]))
    ahead = [part + np.concatenate([part[1:], np.zeros((min(1, len(part)), 2))]) for part in parts]
    assert np.allclose(names["windows"], np.concatenate(ahead))
    assert np.allclose(names["normalised"], np.tile([-1, 1], (5, 1)), atol=1e-4)
    assert np.allclose(names["d_rows"], 0, atol=1e-6)
    assert np.allclose(names["means"], names["x"].mean(axis=1))
    assert (names["total"], names["maximum"]) == (45, 9)


@pytest.mark.slow
def test_classes_of_rows(names):
    """In each row, the second number is the first plus 1; the fourth row has no label."""
    of_first, of_second = np.log(1 + np.exp([1, -1]))
    assert np.allclose(names["losses"], [of_first, of_second, of_first, 0, of_first])
    assert np.allclose(names["class_losses"], [3 * of_first, of_second])
    shares = np.exp([-of_first, -of_second])
    one_hot = np.array([[1, 0], [0, 1], [1, 0], shares, [1, 0]])
    assert np.allclose(names["d_scores"], shares - one_hot)
    marks, place = names["checked"]
    assert marks[:, 0].tolist() == [1, 0, 1, 1, 1]
    assert place == -1


@pytest.mark.slow
def test_windows(names):
    assert names["padded_sums"][:, 0].tolist() == [102, 202, 110, 18, 214]
    y, after, d_x, d_state, d_weight, d_ahead = names["chunk"]
    assert y[:, 0].tolist() == [7, 20, 47, 64, 86]
    assert after[:, 0, 0].tolist() == [2, 7, 8]
    assert d_x[:, 0].tolist() == [11, 10, 11, 11, 10]
    assert d_state[:, 0, 0].tolist() == [1, 0, 1]
    assert d_weight[:, 0].tolist() == [24, 20]
    assert d_ahead[:, 0].tolist() == [20, 16]
    assert names["level"][:, 0].tolist() == [0, -1, -1, -2, -3]
    assert names["patches"][0, 1, 0, 0].tolist() == [[3, 4], [6, 7]]
    assert names["counts"][0, 0].tolist() == [[1, 2, 1], [2, 4, 2], [1, 2, 1]]


@pytest.mark.slow
def test_alignments_labellings_and_texts(names):
    assert names["tags"].tolist() == [1] * 5
    ends = [log_sum_exp(part) for part in sequences(names)]
    labels = np.split(np.array([0, 1, 0, 1, 1]), names["offsets"][1:-1])
    scores = [part[np.arange(len(part)), tags].sum() for part, tags in zip(sequences(names), labels, strict=True)]
    assert np.allclose(names["costs"], np.array(ends) - scores)
    assert names["labellings"].tolist() == [[1, 1, 0, 0, 0], [0, 1, 1, 0, 0]]  # the second changes the closest row
    # "1 1", "1 blank" and "blank 1"; nothing; "1 blank 1", of three steps
    assert np.allclose(np.exp(-names["text_costs"]), [0.84, 1, 0.1 * 0.2 * 0.1])
    assert names["texts"].tolist() == [1, 1]
    assert names["distances"].tolist() == [0, 0, 1]
    assert names["spans"].tolist() == [[0, 0, 2], [2, 1, 3]]
    # "1" has the probability 0.836, and "1 1", 0.002: a bonus of 7 is more than the logarithm of 418
    assert [names["plain"].tolist(), names["long"].tolist()] == [[1], [1, 1]]


@pytest.mark.slow
def test_the_transducer_loss(names):
    x, lattices = names["x"], [names["x"][:2, None] + names["x"][:2], names["x"][2:, None] + names["x"][2:3]]
    wanted = [transducer.by_recursion(scores, labels, 0) for scores, labels in zip(lattices, ([1], []), strict=True)]
    assert np.allclose(names["lattice_losses"], [loss for loss, _ in wanted])
    assert np.allclose(names["d_lattice"], np.concatenate([d.reshape(-1, x.shape[1]) for _, d in wanted]))


def log_sum_exp(part):
    """Return the logarithm of the sum over all labellings of a sequence of independent rows."""
    return np.log(np.exp(part).sum(axis=1)).sum()


@pytest.mark.slow
def test_steps_and_updates(names):
    wanted, last = [], []
    for part in sequences(names):
        h = np.zeros(2)
        for row in part:
            h = 0.5 * h + row
            wanted.append(h)
        last.append(h)
    assert np.allclose(names["y"], wanted)
    assert np.allclose(names["last"], last)
    assert (names["table"][[0, 2]] == 1).all()
    assert (names["table"][[1, 3]] < 0.8).all()


@pytest.mark.slow
def test_on_all_cores(names):
    assert np.array_equal(names["in_parts"], [part.sum(axis=0) for part in sequences(names)])


@pytest.mark.slow
def test_from_c(names, tmp_path):
    wanted = [part.sum(axis=0) for part in sequences(names)]
    assert np.array_equal(names["from_c"], wanted)
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("no compiler of C")
    (tmp_path / "a.c").write_text(
        "#include <stdint.h>\n"
        "typedef void (*pool)(double *, int64_t *, int64_t, int64_t, double *);\n"
        "void run(pool pool_sum, double *x, int64_t *offsets, double *out) { pool_sum(x, offsets, 3, 2, out); }\n"
    )
    library = tmp_path / "a.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "a.c"], check=True)
    import ctypes

    out = np.empty((3, 2))
    arguments = [names["c_pool_sum"].address, names["x"].ctypes.data, names["offsets"].ctypes.data, out.ctypes.data]
    ctypes.CDLL(str(library)).run(*map(ctypes.c_void_p, arguments))
    assert np.array_equal(out, wanted)


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_from_jax():
    """In a process of its own: once JAX is imported, every fork of a process warns."""
    subprocess.run(
        [sys.executable, "-c", "from tests.test_recipes import in_jax; in_jax()"], check=True, cwd=PAGE.parent.parent
    )


def in_jax():
    """Compare the recipe for JAX, compiled and differentiated, with NumPy."""
    import jax

    # Its block alone: what the others define takes a quarter of a minute to compile.
    (block,) = (block for block in blocks_of(PAGE) if "def jax_pool" in block)
    names = {"np": np, "x": np.arange(10.0).reshape(5, 2), "offsets": np.array([0, 2, 2, 5])}
    names |= {name: getattr(kernels, name) for name in ("pool_sum_cpu", "pool_sum_grad_cpu")}
    exec(block, names)
    pool = names["jax_pool"](names["offsets"])
    x = jax.numpy.asarray(names["x"], np.float32)
    wanted = np.stack([part.sum(axis=0) for part in sequences(names)])
    assert np.array_equal(jax.jit(pool)(x), wanted)
    weights = np.arange(6, dtype=np.float32).reshape(3, 2)
    gradient = jax.jit(jax.grad(lambda rows: (pool(rows) * weights).sum()))(x)
    assert np.array_equal(gradient, np.repeat(weights, np.diff(names["offsets"]), axis=0))


@pytest.mark.slow
def test_masks_by_place(names):
    """The mask is the one that dropout draws for these sequences."""
    key, share, places = philox.key_of(7, 0, 0), 2**30, [(0, 0), (0, 1), (2, 0), (2, 1), (2, 2)]
    kept = [[philox.word(*place, column, key) >= share for column in (0, 1)] for place in places]
    assert np.array_equal(names["thinned"], names["x"] * kept * (4 / 3))
    assert np.array_equal(names["noted"], np.array(kept) * (4 / 3))
