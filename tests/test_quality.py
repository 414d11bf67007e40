"""The quality suite: each kind of set has errors, a run goes on where it stopped, and the page says what lines say."""

import json

import numpy as np
import pytest

from benchmarks.quality import forecasts, page, run, scores, worker
from benchmarks.quality.models import OURS, lacking
from benchmarks.quality.sets import SETS, Set, read_ts

pytest.importorskip("sklearn")


def test_a_series_ends_where_its_padding_begins(tmp_path):
    (tmp_path / "X.ts").write_text("#\n@data\n1,2,?:3,4,?:a\n5:6:b\n")
    X, y = read_ts(tmp_path / "X.ts")
    assert [x.tolist() for x in X] == [[[1, 3], [2, 4]], [[5, 6]]]
    assert y.tolist() == ["a", "b"]


def test_errors_of_numbers_and_of_tags():
    assert scores.losses_of("numbers", [1.0, 3.0], np.array([1.0, 5.0])).tolist() == [0, 1]
    losses = scores.losses_of("tags", [["a"], ["a", "b", "c"]], [["a"], ["a", "a", "a"]])
    assert losses.mean() == 2 / 4


def test_errors_and_coverage_of_forecasts():
    found, wanted = np.array([[1.0, 3.0]]), np.array([[3.0, 3.0]])
    assert scores.losses_of("forecasts", found, wanted).tolist() == [0.5]
    ends = np.array([[[0.0, 2.0], [2.0, 4.0]]])
    assert scores.summary("forecasts", found, ends, wanted)["coverage"] == 0.5


def test_baselines_of_forecasts():
    X = [np.tile([2.0, 4.0, 8.0], 20), np.tile([8.0, 4.0, 2.0], 20)]
    naive, seasonal, boosted = (
        function("forecasts", X, (4, 3), X, 0)[0]
        for function in (forecasts.naive, forecasts.seasonal, forecasts.boosted)
    )
    assert naive.tolist() == [[8] * 4, [2] * 4]
    assert seasonal.tolist() == [[2, 4, 8, 2], [8, 4, 2, 8]]
    np.testing.assert_allclose(boosted, seasonal, rtol=0.05)


TEXTS = ["the sea and the sand", "a tree and a stream", "sand", "stream of a tree", "and the sea"] * 8
SMALL = {
    "series": ([np.arange(n)[:, None] % 3 + 0.1 for n in range(3, 43)], np.arange(3, 43) > 20),
    "texts": (TEXTS, np.array(["sea" if "s" in text.split()[0] else "land" for text in TEXTS])),
    "tags": ([text.split() for text in TEXTS], [["long" if len(w) > 3 else "short" for w in t.split()] for t in TEXTS]),
}


@pytest.mark.parametrize(
    ("name", "model"),
    [("series", "boosted statistics"), ("series", "PyTorch LSTM"), ("texts", "n-grams, SVM"),
     ("texts", "n-grams, logistic"), ("tags", "CRF"), ("tags", "PyTorch LSTM"), ("tags", OURS)],
)  # fmt: skip
def test_a_model_beats_chance(monkeypatch, name, model):
    if lacking(model, False):
        pytest.skip("not installed")
    X, y = SMALL[name]
    monkeypatch.setitem(SETS, name, Set(name, lambda folder: ((X, y), (X[5:25], y[5:25])), False, "small"))
    found = worker.result(name, model, 0, ".")
    assert found["error"] < 0.5
    assert 0 <= found.get("calibration", 0) < 0.5


def test_a_run_goes_on_where_it_stopped(tmp_path, monkeypatch):
    path, asked = tmp_path / "quality.jsonl", []

    def computed(name, model, seeds, folder, given, end):
        asked.append((name, model, tuple(seeds)))
        for seed in seeds[:2]:
            yield {"set": name, "model": model, "seed": seed, "kind": "series", "test": 4, "error": 0.5}

    monkeypatch.setattr(run, "PATH", path)
    monkeypatch.setattr(run, "computed", computed)
    arguments = ["--sets", "digits", "--models", "PyTorch LSTM", "--aeon", str(tmp_path)]
    monkeypatch.setattr(run, "lacking", lambda model, aeon: [])
    for _ in range(3):
        run.main(arguments)
    assert [seeds for _, _, seeds in asked] == [(0, 1, 2, 3, 4), (2, 3, 4), (4,)]
    run.main([*arguments, "--minutes", "-1"])
    assert len(path.read_text().splitlines()) == 1 + 5


def test_a_process_that_fails_leaves_a_line_that_says_why(tmp_path):
    given = run._parser().parse_args(["--threads", "1"])
    (line,) = run.computed("GunPoint", "boosted statistics", [0, 1], tmp_path, given, run.time.monotonic() + 60)
    assert "No such file" in line["failed"]
    assert line["seed"] == 0


def test_the_page_says_what_lines_say(tmp_path, monkeypatch):
    monkeypatch.setitem(SETS, "names", Set("texts", None, False, "names"))
    line = {"set": "names", "kind": "texts", "test": 100, "of_test": 0.01, "fit": 2.0}
    lines = [line | {"model": OURS, "seed": seed, "error": 0.3, "calibration": 0.02} for seed in range(2)]
    lines += [line | {"model": "n-grams, SVM", "seed": 0, "error": 0.2, "versions": {"scikit-learn": "1.9.1"}}]
    lines += [{"set": "names", "model": "PyTorch LSTM", "seed": 0, "failed": "out of memory"}]
    machine = dict.fromkeys(("date", "processor", "cores", "threads", "varlen_rnn", "commit"), "x")
    text = page.page(machine, lines)
    assert "1 of 1 sets: names (0.300, n-grams, SVM 0.200)" in text
    assert "The mean of expected calibration errors is 0.020." in text
    assert "| names: names | 0.300 ± 0.000, 2 s | 0.200, 2 s | 1.49 |" in text
    assert "Baselines ahead of the defaults in this mean: n-grams, SVM." in text
    assert "* names, PyTorch LSTM, seed 0: out of memory" in text
    assert "Versions of the baselines: scikit-learn 1.9.1." in text
    assert "* names: varlen_rnn (2 of 5), varlen_rnn, recurrent (0 of 5), n-grams, logistic (0 of 1), P" in text
    path = tmp_path / "quality.jsonl"
    path.write_text("\n".join(map(json.dumps, [machine, *lines])))
    page.write_page(path, tmp_path)
    assert (tmp_path / "quality.md").read_text() == text
