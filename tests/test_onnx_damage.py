"""Damaged nodes of every kind that `onnx.load` reads: each is an error of ours that names the node, or runs.

The tests take every seventh model; `python -m tests.test_onnx_damage` takes all 30,000, in two minutes.
"""

import collections
import itertools

import numpy as np
import pytest

import varlen_rnn as vr
import varlen_rnn.onnx as vo
from tests.onnx_damage import KINDS, ROWS, SIZE, models

FEEDS = {"x": ROWS, "free": np.ones((2, SIZE), np.float32), "lengths": np.array([3, 0, 2], np.int32)}
# Errors that are not about the node: of ONNX's checker, of the layer behind the node, and of constant outputs.
OTHERS = ("a model of ONNX", "onnx.load, output", "LSTM 'y'")


def outcome(model, path):
    """Return "runs", "stops" for an error of ours in a run, or "refused" for an error of `load`; others are raised."""
    path.write_bytes(model.SerializeToString())
    try:
        program = vo.load(path)
    except vr.InputError as error:
        is_named = any(text in str(error) for text in ("the_node", *OTHERS))
        return "refused" if is_named else f"refused without its name: {error}"
    try:
        vr.Executor().run(program, feed={name: FEEDS[name] for name in program.feed_names})
    except vr.InputError:
        return "stops"
    return "runs"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, about infinite constants
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_nodes(kind, tmp_path):
    first = KINDS.index(kind) % 7
    found = collections.Counter()
    for words, model in itertools.islice(models(kind), first, None, 7):
        try:
            found[outcome(model, tmp_path / "a.onnx")] += 1
        except Exception as error:
            raise AssertionError(f"{kind}: {words}") from error
    assert found.keys() <= {"runs", "stops", "refused"}
    assert found["refused"] > 40, found


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_node_is_read(kind, tmp_path):
    found = [outcome(model, tmp_path / "a.onnx") for words, model in models(kind) if words.endswith("whole")]
    assert "runs" in found


if __name__ == "__main__":
    import pathlib
    import tempfile

    counts: collections.Counter = collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            for words, model in models(kind):
                try:
                    counts[outcome(model, pathlib.Path(folder) / "a.onnx")] += 1
                except Exception as error:
                    counts["foreign"] += 1
                    print(f"{kind}, {words}: {type(error).__name__}: {str(error)[:200]}")
    print(dict(counts))
