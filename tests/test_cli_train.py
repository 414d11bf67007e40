"""`varlen-rnn train`, `predict` and `evaluate`: from a file to a model and its predictions, and on after Ctrl-C."""

import argparse
import csv
import inspect
import io
import json
import os
import re
import signal
import sys

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.cli import main, train

pytest.importorskip("sklearn")

from varlen_rnn.sklearn import load

SMALL = ["--model", "recurrent", "--hidden-size", "8", "--max-epochs", "6", "--quiet"]


def texts_file(tmp_path):
    """Write texts of which those with an "a" are of another class."""
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("abcd"), rng.integers(1, 8))) for _ in range(120)]
    with (tmp_path / "texts.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [["name", "kind"], *[[text, "with" if "a" in text else "without"] for text in texts]]
        )
    return tmp_path / "texts.csv"


def series_file(tmp_path):
    rng = np.random.default_rng(0)
    lines = ["id,t,u,v,y"]
    for number in range(80):
        rows = rng.standard_normal((rng.integers(1, 9), 2))
        lines += [f"s{number},{t},{u},{v},{rows[:, 0].mean()}" for t, (u, v) in enumerate(rows)]
    (tmp_path / "series.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "series.csv"


def tags_file(tmp_path):
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(80):
        tokens = [str(token) for token in rng.choice(["the", "cat", "runs"], rng.integers(1, 7))]
        lines.append(json.dumps({"tokens": tokens, "tags": [token[:1].upper() for token in tokens]}))
    (tmp_path / "tags.jsonl").write_text("\n".join(lines))
    return tmp_path / "tags.jsonl"


CASES = {
    "texts": (texts_file, ["--sequence", "name", "--label", "kind"], "accuracy"),
    "series": (series_file, ["--id", "id", "--time", "t", "--label", "y"], "R2"),
    "tags": (tags_file, ["--sequence", "tokens", "--label", "tags"], "accuracy"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_file_becomes_a_model_and_predictions(tmp_path, capsys, case):
    write, options, metric = CASES[case]
    path, model = str(write(tmp_path)), str(tmp_path / "my.model")
    command = ["train", path, *options, "--out", model, *SMALL, "--picture", str(tmp_path / "curve.svg")]
    assert main(command if case == "series" else [*command, "--class-weight", "balanced"]) == 0
    printed = capsys.readouterr().out
    assert f"sequences that were held back: {metric} " in printed
    assert (tmp_path / "curve.svg").exists()
    assert not (tmp_path / "my.model.run").exists()
    assert main(["evaluate", model, path]) == 0
    printed = capsys.readouterr().out
    assert metric in printed
    score = float(printed.split(f"{metric} ")[1].split(",")[0])
    assert score > (0.1 if case == "series" else 0.6)
    assert main(["predict", model, path]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    given = dict(zip([name.removeprefix("--") for name in options[::2]], options[1::2], strict=True))
    data = vr.data.read(path, **given)
    assert len(lines) == len(data)
    assert main(["predict", model, path, "--out", str(tmp_path / "lines.jsonl")]) == 0
    assert [json.loads(line) for line in (tmp_path / "lines.jsonl").read_text().splitlines()] == lines
    estimator = load(model)
    if case == "texts":
        right = [line["prediction"] == data.classes[label] for line, label in zip(lines, data.labels, strict=True)]
        np.testing.assert_allclose(np.mean(right), score, atol=1e-4)
        texts = [row[0] for row in csv.reader(io.StringIO((tmp_path / "texts.csv").read_text()))][1:]
        assert estimator.predict(texts).tolist() == [line["prediction"] for line in lines]
        assert all(0.5 <= line["probability"] <= 1 for line in lines)
    if case == "tags":
        assert [len(line["prediction"]) for line in lines] == data.lengths.tolist()


def test_ids_with_one_row_each_are_questioned(tmp_path, capsys):
    path, model = series_file(tmp_path), str(tmp_path / "my.model")
    command = ["train", str(path), "--label", "y", "--out", model, *SMALL]
    assert main([*command, "--id", "id", "--ignore", "t"]) == 0
    assert "is --id right?" not in capsys.readouterr().err
    head, *lines = path.read_text().splitlines()
    path.write_text("\n".join([f"row,{head}", *(f"{number},{line}" for number, line in enumerate(lines))]))
    assert main([*command, "--id", "row", "--ignore", "id"]) == 0
    assert "each id has one row, so sequences have one step: is --id right?" in capsys.readouterr().err


def test_a_ts_file_trains_and_is_predicted(tmp_path, capsys):
    rng, path = np.random.default_rng(0), tmp_path / "waves.ts"
    rows = [rng.standard_normal(rng.integers(3, 9)) + 2 * (number % 2) for number in range(60)]
    lines = [",".join(map(str, numbers)) + f":{'low high'.split()[number % 2]}" for number, numbers in enumerate(rows)]
    path.write_text("\n".join(["@classLabel true low high", "@data", *lines]))
    model = str(tmp_path / "my.model")
    assert main(["train", str(path), "--out", model]) == 2
    assert "expected --label COLUMN, got no such option (the columns are 'class')" in capsys.readouterr().err
    assert main(["train", str(path), "--label", "class", "--out", model, *SMALL]) == 0
    assert main(["predict", model, str(path)]) == 0
    found = [json.loads(line)["prediction"] for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert np.mean([text == line.rpartition(":")[2] for text, line in zip(found, lines, strict=True)]) > 0.7


@pytest.mark.parametrize("case", ["texts", "series"])
def test_the_default_chooses_a_model(tmp_path, capsys, case):
    write, options, metric = CASES[case]
    path, model = str(write(tmp_path)), str(tmp_path / "my.model")
    command = ["train", path, *options, "--out", model, "--hidden-size", "4", "--max-epochs", "2"]
    assert main([*command, "--picture", str(tmp_path / "curve.svg")]) == 0
    printed = capsys.readouterr().out
    assert f"sequences that were held back: {metric} " in printed
    assert "chosen: " in printed
    trained = load(model).module_ is not None
    assert (tmp_path / "curve.svg").exists() == trained
    assert ("picture: none, because no network was trained" in printed) == (not trained)
    assert main(["evaluate", model, path]) == 0
    printed = capsys.readouterr().out
    assert ("calibration error 0." in printed) == ("log loss" in printed) == (case == "texts")
    assert main(["predict", model, path]) == 0


def test_missing_numbers_may_be_left_to_the_model(tmp_path, capsys):
    path, model = series_file(tmp_path), str(tmp_path / "model")
    head, *lines = path.read_text().splitlines()
    lines = [re.sub(r"^(s\d+,[02],)[^,]*", r"\1", line) for line in lines]
    path.write_text("\n".join([head, *lines]) + "\n")
    options = ["--id", "id", "--time", "t", "--label", "y", "--out", model, *SMALL]
    assert main(["train", str(path), *options]) == 2
    assert "--missing drop leaves such rows out, 'zero' and 'forward' fill them, 'keep'" in capsys.readouterr().err
    assert main(["train", str(path), *options, "--missing", "keep"]) == 0
    assert load(model)._inputs.filling.indicated == (0,)
    capsys.readouterr()
    assert main(["predict", model, str(path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 80


def test_ctrl_c_saves_the_best_model_so_far(tmp_path, capsys, monkeypatch):
    from varlen_rnn.sklearn.recurrent import Recurrent

    def interrupted(*_, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(Recurrent, "fit", interrupted)
    path = str(texts_file(tmp_path))
    command = ["train", path, "--sequence", "name", "--label", "kind", "--out", str(tmp_path / "m"), "--quiet"]
    assert main(command) == 130
    assert "stopped: it is the best model so far" in capsys.readouterr().out
    assert main(["evaluate", str(tmp_path / "m"), path]) == 0


def test_a_tagger_is_a_network(tmp_path, capsys):
    path, options = str(tags_file(tmp_path)), CASES["tags"][1]
    assert main(["train", path, *options, "--out", str(tmp_path / "m"), "--model", "ngrams"]) == 2
    assert "train, --model: expected recurrent, because rows have classes, got ngrams" in capsys.readouterr().err


def test_predictions_need_no_labels_and_take_standard_input(tmp_path, capsys, monkeypatch):
    model = str(tmp_path / "my.model")
    options = CASES["series"][1]
    assert main(["train", str(series_file(tmp_path)), *options, "--out", model, *SMALL]) == 0
    text = "id,t,u,more,v\nx,1,0.5,no,1\nx,0,0.5,no,2\n"
    (tmp_path / "new.csv").write_text(text)
    capsys.readouterr()
    assert main(["predict", model, str(tmp_path / "new.csv")]) == 0
    expected = capsys.readouterr().out
    assert len(expected.splitlines()) == 1
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert main(["predict", model, "-", "--format", "csv"]) == 0
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize("step", [7, 12])
def test_ctrl_c_ends_between_two_steps_and_the_same_command_goes_on(tmp_path, capsys, monkeypatch, step):
    """In the middle of an epoch, and at its end: the model's bits are those of a training that nobody stopped."""
    path = str(texts_file(tmp_path))
    command = ["train", path, "--sequence", "name", "--label", "kind", *SMALL, "--early-stopping"]
    assert main([*command, "--out", str(tmp_path / "whole")]) == 0
    took = train._Stop.on_step_end

    def on_step_end(self, trainer):
        if trainer.step == step:
            os.kill(os.getpid(), signal.SIGINT)
        took(self, trainer)

    with monkeypatch.context() as patch:
        patch.setattr(train._Stop, "on_step_end", on_step_end)
        assert main([*command, "--out", str(tmp_path / "part")]) == 130
    assert f"stopped after step {step}: the same command goes on" in capsys.readouterr().out
    assert not (tmp_path / "part").exists()
    assert main([*command, "--out", str(tmp_path / "part"), "--lr", "0.5"]) == 2
    assert "expected the training" in capsys.readouterr().err
    assert main([*command, "--out", str(tmp_path / "part")]) == 0
    assert f"going on after step {step};" in capsys.readouterr().out
    whole, part = load(tmp_path / "whole"), load(tmp_path / "part")
    for name, value in whole.module_.state_dict().items():
        np.testing.assert_array_equal(part.module_.state_dict()[name], value)
    assert whole.history_ == part.history_


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["train", "texts.csv", "--out", "m"],
            "train: expected --label COLUMN, got no such option (the columns are 'name', 'kind')",
        ),
        (["train", "series.csv", "--out", "m", "--format", "npz"], "train: expected --label COLUMN, got no such"),
        (["train", "texts.csv", "--label", "kind", "--out", "m"], "expected options that say where the sequences are"),
        (
            ["train", "texts.csv", "--label", "size", "--sequence", "name", "--out", "m"],
            "--label: expected the field 'size', got only",
        ),
        (["train", "none.csv", "--label", "kind", "--out", "m"], "none.csv"),
        (
            ["train", "series.csv", "--id", "id", "--label", "y", "--class-weight", "balanced", "--out", "m"],
            "labels that are classes",
        ),
        (
            ["train", "texts.csv", "--sequence", "name", "--label", "kind", "--cell", "cell", "--out", "m"],
            "cell: expected one of",
        ),
        (["train", "one.csv", "--label", "y", "--out", "m"], "--label: expected at least two classes, got ['u']"),
        (
            ["train", "texts.csv", "--label", "kind", "--out", "texts.csv"],
            "--out: expected a file that the command",
        ),
        (
            ["train", "texts.csv", "--label", "kind", "--out", "no/m"],
            "--out: expected a file in a folder that exists",
        ),
        (["train", "-", "--label", "kind", "--out", "m"], "standard input: expected an option such as --format"),
        (["predict", "texts.csv", "series.csv", "--out", "series.csv"], "--out: expected a file that the command"),
        (
            ["train", "texts.csv", "--sequence", "name", "--label", "kind", "--seed", "4294967296", "--out", "m"],
            "train, --seed: expected 0 to 4294967295, got 4294967296",
        ),
        (
            ["train", "texts.csv", "--sequence", "name", "--label", "kind", "--out", "."],
            "train, --out: expected a file, got the folder '.'",
        ),
        (
            ["train", "texts.csv", "--sequence", "name", "--label", "kind", "--out", ""],
            "train, --out: expected a file, got ''",
        ),
        (["predict", "texts.csv", "texts.csv"], "expected a safetensors file"),
        (
            ["train", "texts.csv", "--sequence", "name", "--label", "kinds", "--out", "m"],
            "--label: expected the field 'kinds', got only the fields 'name', 'kind' (is it 'kind'?)",
        ),
        (
            ["train", "texts.csv", "--label", "kind", "--out", "m"],
            "(pass --sequence for a column of texts or lists, --id (and --time)",
        ),
        (["train", "series.csv", "--id", "ids", "--label", "y", "--out", "m"], "series.csv, line 1, --id: expected"),
        (
            ["train", "texts.csv", "--sequence", "name", "--label", "kind", "--features", "a", "--out", "m"],
            "varlen-rnn: --features: expected no such option for texts, got ['a']",
        ),
        (["train", "gap.csv", "--id", "id", "--label", "y", "--out", "m"], "(--missing drop leaves such rows out"),
        (
            ["train", "blank.csv", "--label", "y", "--out", "m"],
            "(to leave it out, pass --missing drop)",
        ),
        (
            ["train", "differ.csv", "--id", "id", "--label", "y", "--label-kind", "classes", "--out", "m"],
            "(for a label per row, pass --label-kind 'classes of rows' or 'numbers of rows')",
        ),
        (["train", "semi.csv", "--id", "id", "--label", "y", "--out", "m"], "(--delimiter ';')"),
        (
            ["train", "texts.csv", "--sequence", "name", "--label", "kind", "--hidden-size", "0", "--out", "m"],
            "varlen-rnn: --hidden-size: expected at least 1, got 0",
        ),
        (
            ["train", "texts.csv", "--sequence", "name", "--label", "kind", "--test-fraction", "2", "--out", "m"],
            "varlen-rnn: --test-fraction: expected 0 to 1",
        ),
        (
            ["train", "texts.csv", "--sequence", "name", "--label", "kind", "--max-epochs", "0", "--out", "m"],
            "varlen-rnn: --max-epochs: expected at least 1, got 0",
        ),
        (
            ["train", "texts.csv", "--sequence", "name", "--label", "kind", "--out", "m", "--picture", "curve.xls"],
            "train, --picture: expected a suffix among .",
        ),
        (
            ["compare", "texts.csv"],
            "--field: expected the field 'text', got only the fields 'name', 'kind' (--field names",
        ),
        (["compare", "lengths.txt", "--hidden-size", "0"], "varlen-rnn: --hidden-size: expected at least 1, got 0"),
        (["evaluate", "none.model", "texts.csv"], "none.model"),
    ],
)
def test_errors_are_one_line(tmp_path, capsys, monkeypatch, arguments, message):
    texts_file(tmp_path)
    series_file(tmp_path)
    (tmp_path / "one.csv").write_text("text,y\nab,u\nb,u\n")
    (tmp_path / "blank.csv").write_text("text,y\nab,u\nb,\n")
    (tmp_path / "gap.csv").write_text("id,x,y\na,1,u\na,,u\nb,2,v\n")
    (tmp_path / "differ.csv").write_text("id,x,y\na,1,u\na,2,v\nb,2,v\n")
    (tmp_path / "semi.csv").write_text("id;x;y\na;1;u\n")
    (tmp_path / "lengths.txt").write_text("3 4")
    monkeypatch.chdir(tmp_path)
    assert main([*arguments, *(["--quiet"] if arguments[0] == "train" else [])]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("varlen-rnn: ")
    assert message in printed
    assert len(printed.splitlines()) == 1
    assert not (tmp_path / "m.run").exists()


def test_labels_to_evaluate_are_of_the_models_kind(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = lambda *labels: "id,x,y\n" + "".join(f"{k // 2},{k},{labels[k % len(labels)]}\n" for k in range(80))
    for name, labels in {"rows": "ab", "constant": "aabb"}.items():
        (tmp_path / f"{name}.csv").write_text(lines(*labels))
    options = ["--id", "id", "--label", "y", *SMALL]
    assert main(["train", "rows.csv", *options, "--out", "tagger"]) == 0
    assert main(["evaluate", "tagger", "constant.csv"]) == 0  # each row has its label, though those of an id are equal
    assert "40 sequences: accuracy" in capsys.readouterr().out
    assert main(["train", "constant.csv", *options, "--out", "classifier"]) == 0
    assert main(["evaluate", "classifier", "rows.csv"]) == 2
    assert "line 3, label: expected 'a', as in the first row of its id, got 'b'" in capsys.readouterr().err


def test_what_others_put_into_the_folder_of_a_run_stays(tmp_path):
    path, run = texts_file(tmp_path), tmp_path / "m.run"
    run.mkdir()
    (run / "mine.txt").write_text("mine")
    command = ["train", str(path), "--sequence", "name", "--label", "kind", *SMALL, "--restart"]
    assert main([*command, "--out", str(tmp_path / "m")]) == 0
    assert [one.name for one in run.iterdir()] == ["mine.txt"]


def test_predictions_of_series_have_their_ids(tmp_path, capsys):
    path, model = series_file(tmp_path), str(tmp_path / "model")
    command = ["train", str(path), "--id", "id", "--time", "t", "--label", "y", "--max-epochs", "1", "--out", model]
    assert main(command) == 0
    (tmp_path / "new.csv").write_text("id,t,u,v\nb,1,1,2\na,0,1,2\nb,0,3,1\n")
    capsys.readouterr()
    assert main(["predict", model, str(tmp_path / "new.csv")]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [list(record) for record in records] == [["id", "prediction"]] * 2
    assert [record["id"] for record in records] == ["b", "a"]
    (tmp_path / "gap.csv").write_text("id,t,u,v\nb,1,1,2\na,0,,2\n")
    assert main(["predict", model, str(tmp_path / "gap.csv"), "--missing", "drop"]) == 0
    printed = capsys.readouterr()
    assert "gap.csv: 1 of 2 sequences have no rows" in printed.err
    assert len(printed.out.splitlines()) == 2


def wide_text(rows, label=None, notes=()):
    """Return a wide file of series: ids, notes if there are any, steps, and labels if there is a function of them."""
    steps = max(map(len, rows))
    lines = [["id", *(["note"] if notes else []), *(f"t{k}" for k in range(steps)), *([] if label is None else ["y"])]]
    for number, row in enumerate(rows):
        note = [str(notes[number])] if notes else []
        blanks = [""] * (steps - len(row))
        lines.append([f"s{number}", *note, *map(str, row), *blanks, *([] if label is None else [label(row)])])
    return "".join(",".join(line) + "\n" for line in lines)


def lines_of(command, capsys):
    capsys.readouterr()
    assert main(command) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("steps", [2, 6, 9])
def test_a_wide_file_of_another_number_of_steps_is_read_whole(tmp_path, capsys, steps):
    """Fewer, as many or more columns than in the training; with the label, which is no step, and without it."""
    rng, label = np.random.default_rng(0), lambda row: "up" if row[-1] > 0 else "down"
    draw = lambda count, most: [rng.standard_normal(rng.integers(1, most + 1)).tolist() for _ in range(count)]
    model = str(tmp_path / "model")
    (tmp_path / "wide.csv").write_text(wide_text([[1.0] * 6, *draw(59, 6)], label))
    command = ["train", str(tmp_path / "wide.csv"), "--wide", "--id", "id", "--label", "y"]
    assert main([*command, "--out", model, *SMALL]) == 0
    rows = [[0.5] * steps, *draw(9, steps)]
    expected = load(model).predict_proba([np.array(row, np.float32)[:, None] for row in rows]).max(axis=1)
    for number, text in enumerate((wide_text(rows), wide_text(rows, label))):
        path = tmp_path / f"{number}.csv"
        path.write_text(text)
        records = lines_of(["predict", model, str(path)], capsys)
        assert [record["id"] for record in records] == [f"s{k}" for k in range(10)]
        np.testing.assert_allclose([record["probability"] for record in records], expected, atol=1e-5)
    assert main(["evaluate", model, str(tmp_path / "1.csv")]) == 0
    assert "10 sequences: accuracy" in capsys.readouterr().out


def test_columns_of_a_wide_file_that_are_no_steps_are_remembered(tmp_path, capsys):
    rows, model = [[float(k), float(k % 3)] for k in range(40)], str(tmp_path / "model")
    path, label = tmp_path / "wide.csv", lambda row: str(row[1])
    path.write_text(wide_text(rows, label, notes=range(40)))
    command = ["train", str(path), "--wide", "--id", "id", "--label", "y", "--out", model, *SMALL]
    assert main([*command, "--ignore", "note"]) == 0
    expected = lines_of(["predict", model, str(path)], capsys)
    (tmp_path / "plain.csv").write_text(wide_text(rows))
    assert lines_of(["predict", model, str(tmp_path / "plain.csv")], capsys) == expected
    assert main([*command, "--features", "t0,t1"]) == 2
    error = capsys.readouterr().err
    assert "--features: expected no such option with --wide, got 't0,t1' (name the columns that are no steps" in error


def test_many_classes_that_are_numbers_are_mentioned(tmp_path, capsys):
    path = tmp_path / "ages.csv"
    path.write_text("text,age\n" + "".join(f"{'a' * (k % 5 + 1)},{k // 2}\n" for k in range(40)))
    command = ["train", str(path), "--label", "age", "--max-epochs", "1", "--out", str(tmp_path / "m")]
    assert main(command) == 0
    assert "20 classes of whole numbers; --label-kind numbers trains a regressor" in capsys.readouterr().out
    assert main([*command, "--label-kind", "numbers"]) == 0
    assert "R2" in capsys.readouterr().out


def test_a_sequence_may_have_several_classes(tmp_path, capsys):
    rng = np.random.default_rng(0)
    path, model = tmp_path / "many.jsonl", str(tmp_path / "model")
    texts = ["".join(rng.choice(list("abcd"), rng.integers(1, 6))) for _ in range(200)]
    path.write_text("".join(json.dumps({"text": t, "label": [c for c in "abc" if c in t]}) + "\n" for t in texts))
    assert main(["train", str(path), "--label", "label", "--max-epochs", "30", "--out", model, "--quiet"]) == 0
    assert main(["evaluate", model, str(path)]) == 0
    assert float(re.search(r"200 sequences: accuracy (\S+),", capsys.readouterr().out)[1]) > 0.95
    (tmp_path / "new.jsonl").write_text('{"text": "ddca"}\n{"text": "d"}\n')
    assert main(["predict", model, str(tmp_path / "new.jsonl")]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["prediction"], second["prediction"]) == (["a", "c"], [])
    assert list(first["probabilities"]) == ["a", "b", "c"]


def test_a_picture_that_cannot_be_drawn_is_found_before_the_training(tmp_path, capsys, monkeypatch):
    command = ["train", str(texts_file(tmp_path)), "--sequence", "name", "--label", "kind", *SMALL]
    command += ["--out", str(tmp_path / "m"), "--picture", str(tmp_path / "curve.png")]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.figure", None)
        assert main(command) == 2
    printed = capsys.readouterr()
    assert "train, --picture: expected matplotlib, got no such package (pip install" in printed.err
    assert (printed.out, (tmp_path / "m").exists()) == ("", False)


def test_a_picture_without_a_suffix_is_a_png_file_that_is_named(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    command = ["train", str(texts_file(tmp_path)), "--sequence", "name", "--label", "kind", *SMALL]
    assert main([*command, "--out", str(tmp_path / "m"), "--picture", str(tmp_path / "curve")]) == 0
    assert f"picture: {tmp_path / 'curve.png'}" in capsys.readouterr().out
    assert (tmp_path / "curve.png").exists()


@pytest.mark.parametrize("case", CASES)
def test_the_history_has_the_loss_of_what_is_held_back(tmp_path, capsys, case):
    write, options, _ = CASES[case]
    path, model, curve = write(tmp_path), tmp_path / "m", tmp_path / "curve.svg"
    weigh = [] if case == "series" else ["--class-weight", "balanced"]
    assert main(["train", str(path), *options, *weigh, "--out", str(model), *SMALL, "--picture", str(curve)]) == 0
    assert "<!-- test_loss -->" in curve.read_text()
    estimator = load(model)
    found = [record["test_loss"] for record in estimator.history_]
    assert len(found) == 6
    assert found[-1] < found[0]
    if case == "series":  # the last is the squared error of standardised targets, of the model that was saved
        given = dict(zip([name.removeprefix("--") for name in options[::2]], options[1::2], strict=True))
        _, test = vr.data.read(path, **given).split(0.1, seed=0)
        error = np.mean((estimator.predict(test) - test.labels) ** 2) / estimator._labels.scale[0] ** 2
        np.testing.assert_allclose(found[-1], error, rtol=1e-4)


def test_the_loss_of_what_is_held_back_changes_no_bit(tmp_path, monkeypatch):
    path, models = str(tags_file(tmp_path)), []
    for name in ("with", "without"):
        command = [
            "train",
            path,
            *CASES["tags"][1],
            "--class-weight",
            "balanced",
            "--out",
            str(tmp_path / name),
            *SMALL,
        ]
        assert main(command) == 0
        models.append(load(tmp_path / name))
        monkeypatch.setattr(train._HeldBack, "on_epoch_end", lambda self, trainer: None)
    assert "test_loss" not in models[1].history_[0]
    for name, value in models[0].module_.state_dict().items():
        np.testing.assert_array_equal(models[1].module_.state_dict()[name], value)


def test_labels_that_only_the_held_back_sequences_have_leave_the_curve_out(tmp_path, capsys):
    path = tmp_path / "tags.jsonl"
    lines = [json.dumps({"tokens": list("aaab"), "tags": ["A", "A", "A", f"only {number}"]}) for number in range(20)]
    path.write_text("\n".join(lines))
    assert main(["train", str(path), *CASES["tags"][1], "--out", str(tmp_path / "m"), *SMALL]) == 0
    assert "test_loss" not in load(tmp_path / "m").history_[0]
    assert "always the most frequent class, 'A': accuracy 0.7500" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "options", "baseline"),
    [
        (
            "text,y\n" + "a,u\nb,u\nc,v\n" * 20,
            [],
            "always the most frequent class, 'u': accuracy 0.6667, macro F1 0.4000",
        ),
        ("text,y\n" + "a,1.5\nb,2.5\n" * 30, [], "always the mean, 2"),
    ],
)
def test_the_score_of_a_constant_is_beside_that_of_the_model(tmp_path, capsys, text, options, baseline):
    (tmp_path / "data.csv").write_text(text)
    command = ["train", str(tmp_path / "data.csv"), "--label", "y", "--out", str(tmp_path / "m"), *SMALL, *options]
    assert main([*command, "--test-fraction", "0.1"]) == 0
    own, constant = capsys.readouterr().out.splitlines()[1:3]
    assert "6 sequences that were held back: " in own
    assert constant.startswith(baseline)


def test_a_model_that_is_worse_than_the_constant_is_warned_of(tmp_path, capsys):
    rng = np.random.default_rng(0)
    lines = [f"{' '.join(rng.choice(list('abcdefgh'), 4))},{rng.standard_normal():.3f}" for _ in range(60)]
    (tmp_path / "noise.csv").write_text("\n".join(["text,y", *lines]))
    arguments = ["train", str(tmp_path / "noise.csv"), "--sequence", "text", "--label", "y", *SMALL, "--lr", "0.3"]
    main([*arguments, "--test-fraction", "0.5", "--out", str(tmp_path / "model")])
    assert "worse than always the mean, " in capsys.readouterr().err
    path, options, _ = texts_file(tmp_path), ["--sequence", "name", "--label", "kind"], capsys.readouterr()
    main(["train", str(path), *options, "--quiet", "--model", "ngrams", "--out", str(tmp_path / "model")])
    assert "worse" not in capsys.readouterr().err


def test_without_a_terminal_a_training_says_how_far_it_is(tmp_path, capsys):
    command = ["train", str(texts_file(tmp_path)), "--sequence", "name", "--label", "kind", "--max-epochs", "2"]
    command += ["--model", "recurrent"]
    assert main([*command, "--out", str(tmp_path / "m")]) == 0
    *_, line = capsys.readouterr().err.splitlines()  # a slow machine writes earlier lines, too
    assert re.fullmatch(r"step (\d+)/\1, loss .*; epoch 2: loss .*, test_loss 0\.\d+", line)
    assert main([*command, "--out", str(tmp_path / "m"), "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_defaults_in_the_help_of_train_are_those_of_the_estimators():
    pytest.importorskip("sklearn")
    from varlen_rnn.sklearn import SequenceClassifier, SequenceForecaster, SequenceRegressor, SequenceTagger

    parser = argparse.ArgumentParser()
    train.add_to(parser.add_subparsers())
    given = vars(parser.parse_args(["train", "data.csv", "--out", "model"]))
    assert {given[name] for name in train.OPTIONS} == {None}
    for estimator, other in (
        (SequenceClassifier, None), (SequenceRegressor, None), (SequenceTagger, "of a tagger "),
        (SequenceForecaster, "with --horizon "),
    ):  # fmt: skip
        own = {name: parameter.default for name, parameter in inspect.signature(estimator).parameters.items()}
        for name in own.keys() & train.OPTIONS.keys() - {"quantiles"}:
            words = train.OPTIONS[name][1].partition("default ")[2]
            default = words.partition(other)[2] if other and other in words else words.split(",")[0]
            assert default == str(own[name]), (estimator, name)
