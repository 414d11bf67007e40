"""The examples run, stop, resume bit for bit, and take the user's own file."""

import contextlib
import io
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest

import varlen_rnn as vr
from tests.waiting import HANGS

ROOT = Path(__file__).parent.parent


def in_a_process(script, *arguments):
    """Run an example as a reader runs it."""
    environment = os.environ | {"MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "examples" / script), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=HANGS)


def run(script, *arguments):
    """Run an example here, where all that it imports is there already: most of them take less time than an import."""
    path, out, err = str(ROOT / "examples" / script), io.StringIO(), io.StringIO()
    code = 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(sys, "argv", [path, *map(str, arguments)]))
        stack.enter_context(mock.patch.dict(os.environ, MPLBACKEND="Agg"))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:  # what a process makes of it
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            err.write(f"{end.code}\n" if isinstance(end.code, str) else "")
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def own_file(path, count=40):
    lines = [{"text": "ab" * (1 + k % 5) + "c" * (k % 2), "label": "odd" if k % 2 else "even"} for k in range(count)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_classify_names_stops_and_resumes_bit_for_bit(tmp_path):
    data = own_file(tmp_path / "own.jsonl")
    options = ["--data", data, "--batch-size", 8, "--epochs", 2]
    whole = run("classify_names.py", *options, "--out", tmp_path / "a", "abab", "ababc")
    assert whole.returncode == 0, whole.stderr
    assert "held-out accuracy" in whole.stdout
    assert "ababc: " in whole.stdout
    assert (tmp_path / "a" / "names.png").stat().st_size > 1000
    run("classify_names.py", *options, "--out", tmp_path / "b", "--steps", 3)
    rest = run("classify_names.py", "--data", data, "--out", tmp_path / "b", "--resume")
    assert rest.returncode == 0, rest.stderr
    first, second = (vr.load(tmp_path / folder / "names.safetensors") for folder in "ab")
    assert first["training"]["step"] == second["training"]["step"] > 6
    for group in ("model", "optimizer"):
        for name, value in first[group].items():
            assert np.array_equal(value, second[group][name]), name
    for name in ("random", "history"):
        assert first["training"][name] == second["training"][name], name


def test_resume_refuses_another_run(tmp_path):
    data = own_file(tmp_path / "own.jsonl")
    nothing = run("classify_names.py", "--data", data, "--out", tmp_path, "--resume")
    assert nothing.returncode == 1
    assert nothing.stderr.startswith("Cannot resume. ")
    assert run("classify_names.py", "--data", data, "--out", tmp_path, "--steps", 1).returncode == 0
    other = run("classify_names.py", "--data", data, "--out", tmp_path, "--resume", "--batch-size", 9)
    assert "batch_size 64, not 9" in other.stderr
    changed = run("classify_names.py", "--data", own_file(data, 50), "--out", tmp_path, "--resume")
    assert "other data" in changed.stderr


def test_classify_names_on_the_embedded_names(tmp_path):
    result = in_a_process("classify_names.py", "--steps", 2, "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    assert "GREEK SMALL LETTER ALPHA: " in result.stdout


BAD_FILES = {
    "no such field": ('{"text": "a", "label": "x"}\n{"txt": "a"}\n', "line 2"),
    "not JSON": ("text,label\n", "line 1"),
    "numbers": ('{"text": [1, 2], "label": "x"}\n' * 20, "at least 10 texts"),
    "too few": ('{"text": "a", "label": "x"}\n', "at least 10 texts"),
    "no file": (None, "No such file"),
}


@pytest.mark.parametrize(("content", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_bad_file_is_a_clear_error(content, message, tmp_path):
    path = tmp_path / "bad.jsonl"
    if content is not None:
        path.write_text(content)
    result = run("classify_names.py", "--data", path, "--out", tmp_path)
    assert result.returncode == 1
    assert result.stderr.startswith("Cannot use this file. ")
    assert "bad.jsonl" in result.stderr
    assert message in result.stderr


@pytest.mark.parametrize(
    ("script", "option", "value", "message"),
    [
        ("data_parallel.py", "--reproducible", "0", "expected at least 1, got 0"),
        ("data_parallel.py", "--steps", "0", "expected at least 1, got 0"),
        ("data_parallel.py", "--steps", "a", "invalid count value: 'a'"),
        ("classify_names.py", "--batch-size", "0", "expected at least 1, got 0"),
        ("classify_names.py", "--epochs", "1.5", "invalid number value: '1.5'"),
        ("classify_names.py", "--steps", "-1", "expected at least 0, got -1"),
        ("classify_names.py", "--seed", "-1", "expected at least 0, got -1"),
        ("classify_names.py", "--lr", "nan", "expected at least 0, got nan"),
    ],
)
def test_numbers_that_cannot_be_end_with_the_usage(script, option, value, message):
    result = run(script, option, value)
    assert result.returncode == 2
    assert result.stderr.startswith("usage: ")
    assert f"argument {option}: {message}" in result.stderr


@pytest.mark.slow
def test_compare_padding_finds_equal_losses(tmp_path):
    result = run("compare_padding.py", "--steps", 2, "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Largest difference between the losses: " in result.stdout
    assert result.stdout.count("bucketed ") == 3
    assert (tmp_path / "compare_padding.png").stat().st_size > 1000


def test_classify_functions_reads_lines_of_characters(tmp_path):
    lines = [
        {"text": "ab\n\n" * (1 + k % 3) + "c" * (1 + k % 2), "label": "odd" if k % 2 else "even"} for k in range(60)
    ]
    data = tmp_path / "own.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = run("classify_functions.py", "--data", data, "--batch-size", 8, "--epochs", 12)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.partition("held-out accuracy")[2].split()[0]) > 0.8
    assert "padded batches would have" in done.stdout


def lines_of(path, objects):
    path.write_text("".join(json.dumps(each) + "\n" for each in objects))
    return path


def test_match_answers_ranks_the_right_one_first(tmp_path):
    words = ["red", "green", "blue", "black", "white", "pink"]
    data = lines_of(
        tmp_path / "own.jsonl",
        (
            {"query": f"which is {words[k % 6]}", "answer": f"{words[k % 6]} it is " * (3 + 7 * (k % 5))}
            for k in range(66)
        ),
    )
    done = run("match_answers.py", "--data", data, "--batch-size", 6, "--epochs", 8)
    assert done.returncode == 0, done.stderr
    found, by_chance = map(float, done.stdout.partition("mean reciprocal rank")[2].split()[:2])
    assert found > by_chance + 0.3
    unpadded, padded = (
        int(done.stdout.partition(name)[2].split()[0].replace(",", "")) for name in ("unpadded", "\npadded")
    )
    assert unpadded < padded


def test_recommend_finds_hidden_items(tmp_path):
    data = lines_of(
        tmp_path / "own.jsonl",
        ({"items": [f"{k % 3}.{(k // 3 * i + i) % 12}" for i in range(4 + k % 5)]} for k in range(120)),
    )
    done = run("recommend.py", "--data", data, "--batch-size", 16, "--epochs", 20, "--negatives", 8)
    assert done.returncode == 0, done.stderr
    trained, popular = (float(done.stdout.partition(name)[2].split()[0]) for name in ("\ntrained", "most popular"))
    assert trained > popular + 0.2


def test_restore_vowels_learns_words(tmp_path):
    words = ["banana", "tomato", "potato", "papaya", "cucumber", "aubergine"]
    data = lines_of(tmp_path / "own.jsonl", ({"text": f"{words[k % 6]} {words[k // 6 % 6]}"} for k in range(36)))
    done = run("restore_vowels.py", "--data", data, "--batch-size", 4, "--epochs", 20, "bnn ptt")
    assert done.returncode == 0, done.stderr
    found = [done.stdout.partition(name)[2].split()[0] for name in ("the best is right", "one of 5 is right")]
    best, among = map(float, found)
    assert 0 <= best <= among <= 1
    assert among > 0.5
    assert "bnn ptt: banana potato" in done.stdout
    done = run("restore_vowels.py", "--data", lines_of(tmp_path / "few.jsonl", [{"text": "1 2 3"}]))
    assert done.stderr.startswith("Cannot use this file. ")


def test_tag_tokens_learns_what_the_letters_do_not_say(tmp_path):
    """A word is one kind after "a", another one after "b"."""
    texts = ([["a", "b"][k % 2], "xyz"[k % 3] * (1 + k // 2 % 4)] for k in range(60))
    data = lines_of(tmp_path / "own.jsonl", ({"tokens": text, "tags": ["first", text[0]]} for text in texts))
    done = run("tag_tokens.py", "--data", data, "--batch-size", 6, "--epochs", 30, "a zz")
    assert done.returncode == 0, done.stderr
    with_field, usual = map(float, done.stdout.partition("\nall ")[2].split()[1:3])
    assert with_field > max(0.9, usual)
    assert done.stdout.split()[-2:] == ["zz", "a"]
    bad = run("tag_tokens.py", "--data", lines_of(tmp_path / "bad.jsonl", [{"tokens": ["a"], "tags": []}]))
    assert bad.stderr.startswith("Cannot use this file. ")


@pytest.mark.slow
def test_language_model_knows_what_was_before_its_chunk(tmp_path):
    """Texts of one letter again and again: which one it is, a chunk of one letter does not say, its state does."""
    ends, gaps = ["xy"[k % 2] for k in range(60)], [" " * (3 + k % 4) for k in range(60)]
    data = lines_of(tmp_path / "own.jsonl", ({"text": e + gap + e} for e, gap in zip(ends, gaps, strict=True)))
    done = run("language_model.py", "--data", data, "--epochs", 60, "--width", 6, "--chunk", 2)
    assert done.returncode == 0, done.stderr
    by_frequency, forgotten, carried = (
        float(done.stdout.partition(name)[2].split()[0]) for name in ("by frequency", "forgotten", "carried")
    )
    assert carried < 0.95 * min(forgotten, by_frequency)
    other = run("language_model.py", "--data", data, "--epochs", 1, "--width", 6, "--chunk", 2, "--layer", "Mamba2")
    assert other.returncode == 0, other.stderr
    bad = run("language_model.py", "--data", lines_of(tmp_path / "few.jsonl", [{"text": "abc"}]))
    assert bad.stderr.startswith("Cannot use this file. ")


def test_attention_classify_finds_the_word_that_tells(tmp_path):
    """Its place differs, and so does the length of the text."""
    words = [["sun" if k % 2 else "rain"] + ["it"] * (k % 3) for k in range(96)]
    texts = (" ".join(["the", "a", "of"][k % 4 :] + words[k]) for k in range(96))
    data = lines_of(tmp_path / "own.jsonl", ({"text": t, "label": "sun" in t} for t in texts))
    done = run("attention_classify.py", "--data", data, "--batch-size", 8, "--epochs", 30, "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    found, largest = (float(done.stdout.partition(name)[2].split()[0]) for name in ("accuracy", "largest class"))
    assert found > max(0.9, largest)
    assert (tmp_path / "attention.png").stat().st_size > 1000
    bad = run("attention_classify.py", "--data", lines_of(tmp_path / "few.jsonl", [{"text": "a", "label": "b"}]))
    assert bad.stderr.startswith("Cannot use this file. ")


def test_attention_classify_shows_the_weights_that_it_used():
    """The words, weighed by what is shown, make the logits; of a text without words, the bias does."""
    vr.manual_seed(0)
    model = runpy.run_path(str(ROOT / "examples" / "attention_classify.py"))["Classifier"](9, 3, size=8).eval()
    ids = vr.create_lod_tensor(np.arange(7), [[2, 0, 5]])
    words, weights, output = np.asarray(model.words(ids)), np.asarray(model.attention(ids)), model.output
    for logits, part in zip(np.asarray(model(ids)), [slice(0, 2), slice(0, 0), slice(2, 7)], strict=True):
        found = weights[part].T @ words[part]
        expected = (found * np.asarray(output.weight)).sum(axis=1) + np.asarray(output.bias)
        np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_word_vectors_of_words_that_stand_together_are_near(tmp_path):
    """Words of either of two groups stand among those of their group."""
    rng, groups = np.random.default_rng(0), [["sun", "moon", "star", "sky"], ["bread", "salt", "soup", "milk"]]
    texts = ({"text": " ".join(rng.choice(groups[k % 2], 2 + k % 9))} for k in range(200))
    data = lines_of(tmp_path / "own.jsonl", texts)
    done = run("word_vectors.py", "--data", data, "--words", 64, "--epochs", 20, "sun", "salt", "stone")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.partition("told apart")[2].split()[0]) > 0.65
    for word, group in zip(["sun", "salt"], groups, strict=True):
        nearest = done.stdout.partition(f"\n{word} ")[2].split()[:6:2]
        assert sorted([word, *nearest]) == sorted(group)
    assert "stone        is not among the 8 words" in done.stdout
    bad = run("word_vectors.py", "--data", lines_of(tmp_path / "few.jsonl", [{"text": "a b"}]))
    assert bad.stderr.startswith("Cannot use this file. ")
    alone = run(
        "word_vectors.py", "--data", lines_of(tmp_path / "alone.jsonl", ({"text": "ab"[k % 2]} for k in range(40)))
    )
    assert alone.stderr.rstrip().endswith("has two frequent words near each other")


def test_recurrent_policy_remembers_a_sign():
    """In corridors of 1 to 3 steps; a policy without memory has a mean return of 1.95."""
    names = runpy.run_path(str(ROOT / "examples" / "recurrent_policy.py"))
    vr.manual_seed(0)
    settings = SimpleNamespace(steps=12_000, episodes=64, passes=6, lr=1e-2, gamma=0.99)
    model, environment, rng = names["ActorCritic"](4, 3, 16), names["TMaze"](1, 3), np.random.default_rng(0)
    with contextlib.redirect_stdout(io.StringIO()):
        names["train"](model, environment, settings, rng)
    steps = names["play"](model, environment, 100, rng)
    assert names["mean_return"](steps, 100) > 3.5
    episodes, actions, gains, returns = names["batch_of"](steps, 100, 0.99, 1.0, 1.0)
    first, rewards = [each[0][0] == 0 for each in steps], [each[-1][0] for each in steps]
    wanted = sum(0.99**t * reward for t, (reward, is_first) in enumerate(zip(rewards, first, strict=True)) if is_first)
    assert returns[0, 0] == pytest.approx(wanted, abs=1e-5)  # decay 1 leaves the critic out
    assert len(actions) == len(gains) == episodes.lod()[0][-1] == sum(len(running) for running, *_ in steps)


def test_recurrent_policy_on_poles_and_unknown_environments():
    done = run("recurrent_policy.py", "--environment", "cart-pole", "--steps", 500, "--episodes", 8)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) >= 8
    bad = run("recurrent_policy.py", "--environment", "no such environment")
    assert bad.returncode == 1


@pytest.mark.parametrize("script", ["match_answers.py", "recommend.py"])
def test_a_line_without_the_fields_is_named(script, tmp_path):
    data = lines_of(tmp_path / "bad.jsonl", [{"query": "a", "answer": "b", "items": []}, {"query": 1}])
    done = run(script, "--data", data)
    assert done.returncode == 1
    assert done.stderr.startswith("Cannot use this file. ")
    assert "bad.jsonl, line 2: expected" in done.stderr
    done = run(script, "--data", lines_of(tmp_path / "few.jsonl", [{"query": "a", "answer": "b", "items": []}]))
    assert "expected at least 20" in done.stderr.lower()


def test_stream_recall_answers_row_by_row():
    out = run("stream_recall.py", "--steps", 2, "--size", 8, "--most", 3, "--layer", "GatedLinearAttention")
    assert out.returncode == 0, out.stderr
    assert re.search(r"told: ([a-p]\d)+\nasked and answered: [a-p]\d( [a-p]\d)*\n$", out.stdout)
