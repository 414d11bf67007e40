"""`data.read`: files of every kind, labels of every kind, numbers that are missing, and what is ambiguous."""

import argparse
import dataclasses
import inspect
import io
import json
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.cli import reading
from varlen_rnn.data import formats, from_texts, options, read, read_csv, read_jsonl

LONG = """id,t,f1,f2,y
b,2,3,30,up
a,1,1,10,down
b,1,2,20,up
a,3,5,50,down
c,1,4,40,up
"""


def saved(tmp_path, text, name="data.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_rows_of_an_id_are_a_sequence_in_the_order_of_time(tmp_path):
    data = read(saved(tmp_path, LONG), id="id", time="t", label="y")
    assert [rows.tolist() for rows in data.sequences] == [[[2, 20], [3, 30]], [[1, 10], [5, 50]], [[4, 40]]]
    assert all(rows.dtype == np.float32 for rows in data.sequences)
    assert (data.labels.tolist(), data.classes, data.label_kind) == ([1, 0, 1], ["down", "up"], "classes")
    in_file_order = read(saved(tmp_path, LONG), id="id", features=["f2"], label="y")
    assert [rows.ravel().tolist() for rows in in_file_order.sequences] == [[30, 20], [10, 50], [40]]
    assert read(saved(tmp_path, LONG), id="id", time="t", features=["f1"]).labels is None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "times",
    [
        ["2026-02-01", "2026-01-31T23:59:59.5", "2026-02-01T00:00:01"],
        ["10", "9", "11"],
        ["1769860000000000002", "1769860000000000001", "1769860000000000003"],  # nanoseconds, more than float64 holds
        ["99999999999999999998", "1", "2e20"],
        ["2400-01-01", "2020-01-01", "2900-01-01T12:00"],  # more nanoseconds than 64 bits hold
        ["2026-01-01T00:00:00.000000002", "2026-01-01T00:00:00.000000001", "2026-01-02"],
        ["2026-01-01T00:00Z", "2026-01-01T00:30+01:00", "2026-01-01T00:00-01:00"],
    ],
)
def test_times_are_numbers_or_dates_not_texts(tmp_path, times):
    text = "id,t,x\n" + "".join(f"a,{time},{number}\n" for number, time in enumerate(times))
    assert read(saved(tmp_path, text), id="id", time="t").sequences[0].ravel().tolist() == [1, 0, 2]


def test_many_ids_against_a_loop(tmp_path):
    rng = np.random.default_rng(0)
    lines = [(int(rng.integers(50)), float(rng.integers(5)), float(rng.random())) for _ in range(500)]
    text = "id,t,x\n" + "".join(f"{i},{t},{x!r}\n" for i, t, x in lines)
    with pytest.warns(UserWarning, match="rows that repeat an id and a time"):  # which stay in the order of the file
        data = read(saved(tmp_path, text), id="id", time="t")
    by_id = {}
    for i, t, x in lines:
        by_id.setdefault(i, []).append((t, x))
    for rows, entries in zip(data.sequences, by_id.values(), strict=True):
        expected = [x for _, x in sorted(entries, key=lambda entry: entry[0])]
        np.testing.assert_array_equal(rows.ravel(), np.float32(expected))


def test_labels_that_change_within_an_id_are_of_rows(tmp_path):
    text = "id,x,y\na,1,u\na,2,v\nb,3,v\n"
    data = read(saved(tmp_path, text), id="id", label="y")
    assert (data.label_kind, [labels.tolist() for labels in data.labels]) == ("classes of rows", [[0, 1], [1]])
    numbers = read(saved(tmp_path, "id,x,y\na,1,0.5\na,2,1\n"), id="id", label="y")
    assert (numbers.label_kind, numbers.labels[0].tolist()) == ("numbers of rows", [0.5, 1])
    constant = read(saved(tmp_path, "id,x,y\na,1,0.5\na,2,0.5\nb,3,2\n"), id="id", label="y")
    assert (constant.label_kind, constant.labels.tolist()) == ("numbers", [0.5, 2])
    text = "id,x,y\na,1,u\na,2,u\n"
    assert read(saved(tmp_path, text), id="id", label="y", label_kind="classes of rows").labels[0].tolist() == [0, 0]


def test_a_series_per_row(tmp_path):
    data = read(saved(tmp_path, "y,t1,t2,t3\n1.5,1,2,3\n2,4,,\n3,5,6,\n"), wide=True, label="y")
    assert [rows.ravel().tolist() for rows in data.sequences] == [[1, 2, 3], [4], [5, 6]]
    assert data.labels.tolist() == [1.5, 2, 3]
    some = read(saved(tmp_path, "y,t1,t2\na,1,2\n"), wide=True, features=["t2"], label="y")
    assert some.sequences[0].tolist() == [[2]]


def test_fields_that_are_ignored_may_be_missing(tmp_path):
    text = "id,note,t1,t2\na,x,1,2\n"
    wide = read(saved(tmp_path, text), wide=True, id="id", ignore=["note", "y"])
    assert (wide.features, wide.sequences[0].ravel().tolist()) == (("t1", "t2"), [1, 2])
    long = read(saved(tmp_path, text), id="id", ignore=["note"])
    assert (long.features, long.sequences[0].tolist()) == (("t1", "t2"), [[1, 2]])


@pytest.mark.parametrize(
    ("missing", "expected"),
    [
        ("drop", [[4, 40], [5, 50]]),
        ("zero", [[0, 10], [1, 0], [4, 40], [5, 50]]),
        ("forward", [[0, 10], [1, 10], [4, 40], [5, 50]]),
        ("keep", [[np.nan, 10], [1, np.nan], [4, 40], [5, 50]]),
    ],
)
def test_numbers_that_are_missing(tmp_path, missing, expected):
    text = "id,f1,f2\na,NA,10\na,1,\na,4,40\na,5,50\n"
    np.testing.assert_array_equal(read(saved(tmp_path, text), id="id", missing=missing).sequences[0], expected)
    with pytest.raises(vr.InputError, match="line 2: expected numbers, got a missing number"):
        read(saved(tmp_path, text), id="id")
    labelled = "id,x,y\na,1,u\na,,v\na,3,w\n"
    rows = read(saved(tmp_path, labelled), id="id", missing=missing, label="y").labels[0].tolist()
    assert rows == ([0, 1] if missing == "drop" else [0, 1, 2])  # of the rows that are left


def test_labels_that_are_missing(tmp_path):
    text = "id,x,y\na,1,u\na,2,\nb,3,\nb,4,\nc,5,v\n"
    with pytest.raises(vr.InputError, match="line 3, label: expected a label, got no label"):
        read(saved(tmp_path, text), id="id", label="y")
    data = read(saved(tmp_path, text), id="id", label="y", missing="drop")
    assert (data.ids, data.take([1]).ids) == (("a", "c"), ("c",))
    assert (data.lengths.tolist(), data.labels.tolist()) == ([2, 1], [0, 1])  # one for all rows, where it stands once
    data = read(saved(tmp_path, text), id="id", label="y", missing="drop", label_kind="classes of rows")
    assert [labels.tolist() for labels in data.labels] == [[0, -100], [1]]
    with pytest.raises(vr.InputError, match=r"line 3, label: expected 'u', as in the first row of its id, got 'w'"):
        read(saved(tmp_path, "id,x,y\na,1,u\na,2,w\n"), id="id", label="y", label_kind="classes")


def test_another_delimiter_is_named(tmp_path):
    with pytest.raises(vr.InputError, match=r"line 2: expected 1 field, got 2 fields .`delimiter=';'`"):
        read(saved(tmp_path, "id;x\na,1;2\n"), id="id")
    with pytest.raises(vr.InputError, match=r"`label`: expected the field 'y', got only the field 'text;y'"):
        vr.data.read_csv(saved(tmp_path, "text;y\na;1\n"), "text;y", "y")


TEXTS = {"csv": "text,y\nab,1.5\ncd,\nef,nan\ngh,2.5\n", "jsonl": '{"text":"ab","y":1.5}\n{"text":"cd","y":null}\n'
         '{"text":"ef"}\n{"text":"gh","y":2.5}\n'}  # fmt: skip


@pytest.mark.parametrize("suffix", TEXTS)
def test_texts_without_a_label_are_left_out_or_named(tmp_path, suffix):
    path = saved(tmp_path, TEXTS[suffix], f"data.{suffix}")
    message = {"csv": "field 'y': expected a label", "jsonl": "`label`: expected the field 'y', got only the field"}[
        suffix
    ]
    with pytest.raises(vr.InputError, match=f"line 3, {message}"):
        read(path, label="y")
    data = read(path, label="y", missing="drop")
    assert (data.label_kind, data.labels.tolist(), len(data.vocabulary)) == ("numbers", [1.5, 2.5], 5)
    assert len(read(path)) == 4
    if suffix == "csv":
        path = saved(tmp_path, "text,y\nab,x\ncd, \nef,none\n", "classes.csv")
        assert read(path, label="y", missing="drop").classes == ["none", "x"]  # a name that is one's own


def gaps(tmp_path, suffix):
    rows, labels = [[[1.0], [None], [3.0]], [[4.0]], []], [[0, 1, 0], [1], []]
    path = tmp_path / f"gaps.{suffix}"
    if suffix == "jsonl":
        lines = [json.dumps({"x": x, "y": y}) for x, y in zip(rows, labels, strict=True)]
        path.write_text("\n".join(lines))
    elif suffix == "npz":
        np.savez(path, x=np.array([1, np.nan, 3, 4], np.float32), offsets=[0, 3, 4, 4])
    else:
        pa = pytest.importorskip("pyarrow")
        flat = pa.array([[row[0] for row in x] for x in rows], pa.list_(pa.float32()))
        table = pa.table({"x": flat, "y": pa.array(labels, pa.list_(pa.int64()))})
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    return path


@pytest.mark.parametrize("suffix", ["jsonl", "arrow", "npz"])
def test_numbers_that_are_missing_in_lists(tmp_path, suffix):
    path = gaps(tmp_path, suffix)
    expected = {"drop": [1, 3], "zero": [1, 0, 3], "forward": [1, 1, 3], "keep": [1, np.nan, 3]}
    for missing, first in expected.items():
        data = read(path, sequence="x", label=None if suffix == "npz" else "y", missing=missing)
        for rows, wanted in zip(data.sequences, [first, [4], []], strict=True):
            np.testing.assert_array_equal(rows.ravel(), wanted)
        if suffix != "npz":
            assert data.labels[0].tolist() == ([0, 0] if missing == "drop" else [0, 1, 0])
    if suffix == "jsonl":
        with pytest.raises(vr.InputError, match="line 1, field 'x', row 1: expected numbers, got a missing number"):
            read(path, sequence="x", label="y")


def test_rows_that_are_left_out_take_no_label_along(tmp_path):
    path = saved(tmp_path, "id,x,y\na,,u\na,1,v\nb,2,v\n")
    data = read(path, id="id", label="y", missing="drop")  # a's labels differ: they are of rows
    assert (data.label_kind, [labels.tolist() for labels in data.labels]) == ("classes of rows", [[0], [0]])
    path = saved(tmp_path, "id,x,y\na,,u\na,,u\nb,2,v\nb,,\n")
    data = read(path, id="id", label="y", missing="drop", label_kind="classes")
    assert ([rows.tolist() for rows in data.sequences], data.labels.tolist()) == ([[], [[2]]], [0, 1])
    assert data.classes == ["u", "v"]


def test_a_long_text_beside_numbers_takes_little_memory(tmp_path):
    lines = "".join(f"{'i' * 10**5 if number == 7 else number},1\n" for number in range(2000))
    path = saved(tmp_path, "id,x\n" + lines)
    tracemalloc.start()
    try:
        assert len(read(path, id="id")) == 2000
        with pytest.raises(vr.InputError, match="line 9, field 'id': expected a number"):
            read(path, id="x", features=["id"])
        assert tracemalloc.get_traced_memory()[1] < 10**8
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("labels", "kind", "expected", "classes"),
    [
        (["x", "y"], "classes", [0, 1], ["x", "y"]),
        ([10, 9], "classes", [1, 0], ["9", "10"]),
        ([True, False], "classes", [1, 0], ["false", "true"]),
        ([0.5, 2], "numbers", [0.5, 2], []),
        ([[0.5, 1], [2, 3]], "numbers", [[0.5, 1], [2, 3]], []),
        ([["x"], ["y", "x", "z"]], "several classes", [[1, 0, 0], [1, 1, 1]], ["x", "y", "z"]),
        ([["x", "y"], ["y"]], "classes of rows", [[0, 1], [1]], ["x", "y"]),
        ([[0, 1], [1]], "classes of rows", [[0, 1], [1]], ["0", "1"]),
        ([[0.5, 1], [1]], "numbers of rows", [[0.5, 1], [1]], []),
    ],
)
def test_labels_are_what_they_look_like(tmp_path, labels, kind, expected, classes):
    lines = [json.dumps({"x": x, "y": y}) for x, y in zip([[1.5, 2.5], [3.5]], labels, strict=True)]
    data = read(saved(tmp_path, "\n".join(lines), "data.jsonl"), sequence="x", label="y")
    assert (data.label_kind, [np.asarray(label).tolist() for label in data.labels], data.classes) == (
        kind,
        expected,
        classes,
    )
    if classes:
        again = read(saved(tmp_path, lines[0], "one.jsonl"), sequence="x", label="y", classes=classes, label_kind=kind)
        assert np.asarray(again.labels[0]).tolist() == expected[0]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[0, 1], [1, 1]], "line 2, field 'y': expected 1 label, one per row, got 2"),
        ([0.5, [1]], "line 2, field 'y': expected a single label, no list"),
        ([0.5, None], "line 2, field 'y': expected a label, got no label .to leave it out, pass `missing='drop'`"),
        ([["x", None], ["y"]], "line 1, field 'y': expected a label, got no label"),
        ([0.5, 1e300], "line 2, field 'y': expected a finite number"),
        ([[0.5, 1], ["x"]], "line 1, field 'y': expected a string or an integer, got 0.5"),
    ],
)
def test_labels_that_fit_nothing_are_named(tmp_path, labels, message):
    lines = [json.dumps({"x": x, "y": y}) for x, y in zip([[1.5, 2.5], [3.5]], labels, strict=True)]
    if labels == [[0, 1], [1, 1]]:  # as many as there are in all, so numbers; as classes of rows they are wrong
        with pytest.raises(vr.InputError, match=message):
            read(saved(tmp_path, "\n".join(lines), "d.jsonl"), sequence="x", label="y", label_kind="classes of rows")
        return
    with pytest.raises(vr.InputError, match=message):
        read(saved(tmp_path, "\n".join(lines), "d.jsonl"), sequence="x", label="y")


def test_what_is_ambiguous_shows_what_was_read(tmp_path):
    with pytest.raises(vr.InputError, match=r"expected options that say where the sequences are, got the columns"):
        read(saved(tmp_path, LONG))
    numbers = saved(tmp_path, 'text,y\n"1 2 3",u\n"[4, 5]",v\n')
    with pytest.raises(
        vr.InputError, match=r"field 'text': expected texts, got numbers; the columns are 'text', 'y'; '1 2 3'"
    ):
        read(numbers, label="y")
    assert read(numbers, label="y", sequence="text", tokens="characters").tokens == "characters"
    texts = read(saved(tmp_path, "text,y\nab,u\nb,v\n"), label="y")
    assert (texts.vocabulary, texts.labels.tolist()) == (["<unk>", "b", "a"], [0, 1])
    assert read(saved(tmp_path, "name\ty\nab\tu\n", "data.tsv"), sequence="name", label="y").classes == ["u"]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {"id": "id"}, "expected at least one record, got no record"),
        ("id,x\n", {"id": "id"}, "expected at least one record, got no record"),
        ("id,x\na,1\n", {"id": "key"}, "line 1, `id`: expected the field 'key', got only the fields 'id', 'x'"),
        ("id,x\na,1\n", {"id": "id", "time": "t"}, "line 1, `time`: expected the field 't'"),
        ("id,x\na,1\n", {"id": "id", "features": ["z"]}, "line 1, `features`: expected the field 'z'"),
        ("id,x\na,1,2\n", {"id": "id"}, "line 2: expected 2 fields, got 3"),
        ("id,x\na,one\n", {"id": "id"}, "line 2, field 'x': expected a number, got 'one'"),
        ("id,x\na,inf\n", {"id": "id"}, "line 2: expected finite numbers"),
        ('id,x\n"a\nb",1\n\na,one\n', {"id": "id"}, "line 5, field 'x': expected a number, got 'one'"),
        ("id,x\n\na,1,2\n", {"id": "id"}, "line 3: expected 2 fields, got 3"),
        ("id,x\na,1e39\n", {"id": "id"}, "line 2: expected finite numbers"),
        ("id,t,x\na,soon,1\n", {"id": "id", "time": "t"}, "line 2, field 't': expected a number, or a date"),
        ("id\na\n", {"id": "id"}, "expected fields of numbers"),
        ("id,x\na,1\n ,2\n", {"id": "id"}, "line 3, field 'id': expected an id, got no id"),
        (
            "id,x,y\na,1,u\na,2,v\n",
            {"id": "id", "label": "y", "label_kind": "classes"},
            "line 3, label: expected 'u', as in the first row of its id, got 'v' .*pass `label_kind='classes of rows'`",
        ),
        ("x,x\n1,2\n", {"wide": True}, "expected fields of different names"),
        ('id,x\n"a,1\n', {"id": "id"}, "expected valid CSV"),
        ("id,x\na,1\n", {"id": "id", "time": "x", "wide": True}, "read, time: expected no such option for a wide form"),
        ("id,x\na,1\n", {"id": "id", "missing": "ignore"}, "missing: expected one of"),
        ("id,x\na,1\n", {"id": 3}, "id: expected the name of a field"),
        ("id,x\na,1\n", {"id": "id", "delimiter": "ab"}, "delimiter: expected a text of one character"),
        (
            "id,x,y\na,1,u\n",
            {"id": "id", "label": "y", "classes": ["v"]},
            "line 2, label: expected one of the 1 classes",
        ),
    ],
)
def test_wrong_tables_are_named(tmp_path, text, options, message):
    with pytest.raises(vr.InputError, match=message):
        read(saved(tmp_path, text), **options)


def test_a_byte_order_mark_and_windows_lines(tmp_path):
    data = read(saved(tmp_path, b"\xef\xbb\xbfid,x\r\na,1\r\na,2\r\n"), id="id")
    assert data.sequences[0].ravel().tolist() == [1, 2]
    with pytest.raises(vr.InputError, match=r"line 2: expected text in UTF-8"):
        read(saved(tmp_path, b"id,x\n\xff,1\n"), id="id")


def test_formats_go_by_suffix_or_name(tmp_path):
    with pytest.raises(vr.InputError, match="expected a suffix among"):
        read(saved(tmp_path, LONG, "data.dat"), id="id")
    assert len(read(saved(tmp_path, LONG, "data.dat"), format="csv", id="id", features=["f1"])) == 3
    with pytest.raises(vr.InputError, match="format: expected one of"):
        read(saved(tmp_path, LONG), format="xls")
    assert len(read(io.StringIO(LONG), format="csv", id="id", features=["f1"])) == 3
    assert len(read(io.BytesIO(b'{"text": "a"}\n'), format="jsonl")) == 1
    with pytest.raises(vr.InputError, match=r"^the open file, line 1, `id`: expected"):
        read(io.StringIO(LONG), format="csv", id="key")
    with pytest.raises(vr.InputError, match="because the source is an open file"):
        read(io.StringIO(LONG), id="id")


def test_every_format_is_named_where_formats_are_listed():
    annotation = inspect.signature(read).parameters["format"].annotation
    assert set(re.findall(r"'(\w+)'", annotation)) == set(formats.FORMATS)
    documented = read.__doc__.partition("follows from the suffix: ")[2].partition("\n")[0]
    assert set(re.findall(r"\.\w+", documented)) == set(formats.SUFFIXES)
    page = (Path(__file__).parent.parent / "docs" / "data.md").read_text()
    listed = page.partition("| file |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\.\w+)`", listed)) == set(formats.SUFFIXES)


def test_options_of_readers_agree_with_their_table():
    fields = {field.name: field.default for field in dataclasses.fields(options.Options)}
    given = {name: parameter.default for name, parameter in inspect.signature(read).parameters.items()}
    assert {name: given[name] for name in fields} == fields
    assert list(given) == ["source", "format", *fields]
    own = {"sequence": "text", "label": "label", "tokens": "characters", "delimiter": ","}  # of the readers of a format
    for reader in (read_csv, read_jsonl, from_texts):
        for name, parameter in inspect.signature(reader).parameters.items():
            assert name not in fields or parameter.default in (fields[name], own.get(name)), (reader, name)
    for reader in (read, read_csv, read_jsonl, from_texts):
        words = inspect.getdoc(reader).partition("Parameters\n")[2].partition("\n\n")[0]
        documented = [
            name for names in re.findall(r"^(\w[\w, ]*) ?:?", words, re.MULTILINE) for name in names.strip().split(", ")
        ]
        assert sorted(documented) == sorted(inspect.signature(reader).parameters), reader
    parser = argparse.ArgumentParser()
    reading.add_options(parser)
    actions = {action.dest: action for action in parser._actions if action.dest not in ("help", "format")}
    assert list(actions) == [name for name, option in options.OPTIONS.items() if option.command]
    for name, action in actions.items():
        assert action.help.lower().startswith(options.OPTIONS[name].text[:30].lower()), name
        assert action.default is None, name
    assert all(set(option.forms.split()) <= {"wide", "entries", "long"} for option in options.OPTIONS.values())


def test_arrays_of_numpy(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, rows=np.arange(8.0).reshape(4, 2), offsets=[0, 1, 1, 4], y=["u", "v", "u"], z=np.ones(2))
    data = read(path, label="y")
    assert [rows.tolist() for rows in data.sequences] == [[[0, 1]], [], [[2, 3], [4, 5], [6, 7]]]
    assert data.labels.tolist() == [0, 1, 0]
    with pytest.raises(vr.InputError, match="array 'x': expected an array of this name, got only"):
        read(path, sequence="x")
    with pytest.raises(vr.InputError, match=r"array 'z': expected 3 labels, one per sequence, got shape \(2,\)"):
        read(path, label="z")
    with pytest.raises(vr.InputError, match=r"expected a file of np.savez"):
        read(saved(tmp_path, "no", "bad.npz"))
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "none.npz")


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_columns_of_arrow(tmp_path, suffix):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [[[1.0, 2.0], [3.0, 4.0]], [], [[5.0, 6.0]]]
    table = pa.table({
        "x": pa.array(rows, pa.list_(pa.list_(pa.float32(), 2))), "y": ["u", "v", "u"], "name": ["ab", "", "b"],
        "tokens": [["p", "q"], [], ["p"]], "ids": pa.array([[1, 2], [], [3]], pa.list_(pa.int64())),
        "tags": [["t", "s"], [], ["t"]],
    })  # fmt: skip
    path = str(tmp_path / f"data.{suffix}")
    if suffix == "parquet":
        parquet.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:  # in two pieces
            writer.write_table(table.slice(0, 1))
            writer.write_table(table.slice(1))
    data = read(path, sequence="x", label="y")
    assert [sequence.tolist() for sequence in data.sequences] == rows
    assert (data.labels.tolist(), data.sequences[0].dtype) == ([0, 1, 0], np.float32)
    assert read(path, sequence="name", label="y").vocabulary == ["<unk>", "b", "a"]
    assert read(path, sequence="tokens", label="tags").label_kind == "classes of rows"
    assert [ids.tolist() for ids in read(path, sequence="ids").sequences] == [[1, 2], [], [3]]
    if suffix == "arrow":  # on the pages of the file
        assert not any(rows.flags.owndata for rows in data.sequences)
    with pytest.raises(vr.InputError, match="`sequence`: expected the column 'z', got only"):
        read(path, sequence="z")
    with pytest.raises(vr.InputError, match="expected a file of format"):
        read(saved(tmp_path, "no", f"bad.{suffix}"), sequence="x")


def test_lists_of_equal_lists_are_rows(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "data.parquet"
    values = [[[1.0, 2.0], [3.0, 4.0]], [], [[5.0, 6.0]]]  # lists of any length, as pandas writes them
    parquet.write_table(pa.table({"x": values}), path, row_group_size=1)
    data = read(path, sequence="x")
    assert [rows.tolist() for rows in data.sequences] == values
    assert {rows.shape[1:] for rows in data.sequences} == {(2,)}
    parquet.write_table(pa.table({"x": [[[1.0, 2.0]], [[3.0]]]}), path)
    with pytest.raises(vr.InputError, match="'x': expected inner lists of equal length, got lengths from 1 to 2"):
        read(path, sequence="x")
    parquet.write_table(pa.table({"x": [[[[1.0]]]]}), path)
    with pytest.raises(vr.InputError, match="column 'x': expected lists of numbers, or lists of equally long lists"):
        read(path, sequence="x")


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
def test_columns_of_texts_of_any_type(tmp_path, kind):
    pa = pytest.importorskip("pyarrow")
    of = pa.dictionary(pa.int32(), pa.string()) if kind == "dictionary" else getattr(pa, kind)()
    path, texts = tmp_path / "data.arrow", pa.array(["a b", "c"])
    columns = {"text": texts.cast(of), "y": texts.cast(of)}
    if kind in ("string", "large_string"):
        columns["words"] = pa.array([["a", "b"], ["c"]], pa.large_list(of))
    table = pa.table(columns)
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)
    data = read(path, label="y", tokens="words")
    assert ([ids.tolist() for ids in data.sequences], data.classes) == ([[1, 2], [3]], ["a b", "c"])
    if "words" in columns:
        assert read(path, sequence="words").vocabulary == ["<unk>", "a", "b", "c"]


def test_a_table_without_rows_is_named(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "data.parquet")
    with pytest.raises(vr.InputError, match="expected at least one record, got no record"):
        read(tmp_path / "data.parquet")


def test_what_is_no_file_of_arrays_is_named(tmp_path):
    path = tmp_path / "data.npz"
    np.savez(path, rows=np.arange(4.0), offsets=[0, 1, 4], y=np.array(3))
    good = path.read_bytes()
    with pytest.raises(vr.InputError, match=r"array 'y': expected 2 labels, one per sequence, got shape \(\)"):
        read(path, label="y")
    flipped = bytearray(good)
    flipped[good.index(np.arange(4.0).tobytes())] ^= 1
    np.save(tmp_path / "one.npy", np.arange(3))
    for wrong in (good[: len(good) // 2], bytes(flipped), (tmp_path / "one.npy").read_bytes()):
        path.write_bytes(wrong)
        with pytest.raises(vr.InputError, match=r"expected a file of np.savez"):
            read(path)


def test_splits_keep_classes_and_groups():
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2, 3], [50, 5, 2, 1])
    data = vr.data.Dataset("d", [np.array([k]) for k in range(58)], labels, ["<unk>"], list("abcd"))
    for seed in range(5):
        train, test = data.split(0.2, seed, stratify=True)
        assert sorted(int(s[0]) for part in (train, test) for s in part.sequences) == list(range(58))
        assert np.bincount(test.labels, minlength=4).tolist() == [10, 1, 1, 0]
        groups = rng.integers(12, size=58)
        train, test = data.split(0.25, seed, groups=groups)
        of_train, of_test = ({int(groups[int(s[0])]) for s in part.sequences} for part in (train, test))
        assert not of_train & of_test
        assert of_train | of_test == set(groups.tolist())
        assert len(test) >= round(58 * 0.25)
    with pytest.raises(vr.InputError, match="expected stratify or groups, got both"):
        data.split(0.2, stratify=True, groups=groups)
    with pytest.raises(vr.ShapeError, match=r"groups: expected shape \(58,\)"):
        data.split(0.2, groups=[1])
    with pytest.raises(vr.InputError, match="stratify: expected labels that are classes, got None"):
        vr.data.Dataset("d", [np.array([1])], None, ["<unk>"], []).split(stratify=True)


def test_batches_of_several_inputs_of_lengths_of_their_own():
    rng = np.random.default_rng(0)
    queries = [rng.integers(0, 9, size=n) for n in rng.integers(0, 5, size=23)]
    answers = [rng.standard_normal((n, 3)) for n in rng.integers(1, 40, size=23)]
    static, labels = rng.standard_normal((23, 2)), np.arange(23)
    made = vr.data.batches(
        queries, labels, others=[vr.LoDTensor.from_sequences(answers)], static=static,
        batch_size=4, shuffle=True, bucket=True,
    )  # fmt: skip
    seen = []
    for number, (x, y, beside, wanted) in enumerate(made.at_epoch(3)):
        np.testing.assert_array_equal(wanted, made.at_epoch(3).indices(number))
        np.testing.assert_array_equal(beside, static[wanted])
        for k, a, b in zip(wanted, x.to_sequences(), y.to_sequences(), strict=True):
            np.testing.assert_array_equal(a, queries[k])
            np.testing.assert_array_equal(b, answers[k])
        seen += wanted.tolist()
    assert sorted(seen) == list(range(23))
    (x, beside) = vr.data.batches(answers, static=static, batch_size=23)[0]
    assert (x.shape, beside.shape) == ((sum(map(len, answers)), 3), (23, 2))
    with pytest.raises(vr.ShapeError, match="others, input 0: expected 23 sequences, as in `sequences`, got 3"):
        vr.data.batches(queries, others=[answers[:3]], batch_size=2)
    with pytest.raises(vr.ShapeError, match="static: expected 23 entries, one per sequence"):
        vr.data.batches(queries, static=static[:2], batch_size=2)


def test_sequences_in_a_tuple_are_sequences():
    # As zip(*pairs) leaves them.
    signals = (np.zeros((3, 2)), np.ones((1, 2)), np.zeros((0, 2)))
    (x, labels) = vr.data.batches(signals, (np.zeros(3), np.ones(1), np.zeros(0)), batch_size=3)[0]
    assert x.lod() == labels.lod() == [[0, 3, 4, 4]]
    assert vr.data.batches(([1, 2], [3]), batch_size=2)[0].lod() == [[0, 2, 3]]
    assert len(vr.data.batches((), batch_size=2)) == 0
    (first, second) = vr.data.batches([[1, 2], [3]], others=([[4], [5, 6]],), batch_size=2)[0]
    assert (first.lod(), second.lod()) == ([[0, 2, 3]], [[0, 1, 3]])


def test_sequences_drawn_by_weight():
    sequences = [np.array([k]) for k in range(50)]
    weights = np.where(np.arange(50) < 5, 20.0, 1.0)
    weights[7] = 0
    made = vr.data.batches(sequences, weights=weights, batch_size=10, seed=1)
    drawn = np.concatenate([x.data for epoch in range(40) for x in made.at_epoch(epoch)])
    assert len(drawn) == 2000
    assert 7 not in drawn
    np.testing.assert_allclose((drawn < 5).mean(), 100 / 144, atol=0.04)
    again = vr.data.batches(sequences, weights=weights, batch_size=10, seed=1).at_epoch(3)
    for a, b in zip(made.at_epoch(3), again, strict=True):
        np.testing.assert_array_equal(a.data, b.data)
    assert not np.array_equal(made.at_epoch(0)[0].data, made.at_epoch(1)[0].data)
    for wrong in (np.zeros(50), -weights, np.full(50, np.nan)):
        with pytest.raises(vr.OutOfRangeError, match="weights: expected finite numbers of at least 0"):
            vr.data.batches(sequences, weights=wrong, batch_size=10)
    with pytest.raises(vr.ShapeError, match="weights: expected 50 entries"):
        vr.data.batches(sequences, weights=[1.0], batch_size=10)
    assert len(vr.data.batches([], weights=[], batch_size=10)) == 0


def test_a_series_that_loses_all_its_rows_keeps_its_label(tmp_path):
    path = tmp_path / "gaps.csv"
    path.write_text("id,t,u,y\na,0,1,x\na,1,,x\nb,0,,y\nc,0,3,x\n")
    data = vr.data.read(path, id="id", time="t", label="y", missing="drop")
    assert (data.lengths.tolist(), data.labels.tolist()) == ([1, 0, 1], [0, 1, 0])
    assert vr.data.read(path, id="id", time="t", features=["u"], missing="drop").lengths.tolist() == [1, 0, 1]
    of_rows = vr.data.read(path, id="id", time="t", label="y", missing="drop", label_kind="classes of rows")
    assert [labels.tolist() for labels in of_rows.labels] == [[0], [], [0]]


def test_series_of_a_wide_form_may_have_ids(tmp_path):
    data = read(saved(tmp_path, "series,a,b,y\n7,1,2,u\n8,3,,v\n"), id="series", label="y", wide=True)
    assert ([rows.ravel().tolist() for rows in data.sequences], data.ids) == ([[1, 2], [3]], ("7", "8"))
    assert data.features == ("a", "b")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("a.jsonl", {"id": "id"}, "read, id: expected no such option for a .jsonl file, got 'id'"),
        ("a.arrow", {"time": "t"}, "read, time: expected no such option for sequences in a column of an .arrow file"),
        ("a.npz", {"tokens": "words"}, "read, tokens: expected no such option for an .npz file"),
        ("a.csv", {"features": ["x"]}, "read, features: expected no such option for texts"),
        ("a.csv", {"ignore": ["x"]}, "read, ignore: expected no such option for texts"),
        ("a.csv", {"id": "id", "sequence": "x"}, "read, sequence: expected no such option for a long form"),
    ],
)
def test_options_that_a_file_has_not_are_named(tmp_path, name, options, message):
    with pytest.raises(vr.InputError, match=message):
        read(tmp_path / name, **options)


def test_batches_of_sequences_of_sequences():
    texts = [[[1, 2], [3]], [[4, 5, 6]], [], [[7], [8, 9], [1]]]
    tensor = vr.LoDTensor.from_sequences(texts)
    made = vr.data.batches(texts, np.arange(4), batch_size=2)
    for (x, labels), (expected, _) in zip(made, vr.data.batches(tensor, np.arange(4), batch_size=2), strict=True):
        assert x.lod() == expected.lod()
        np.testing.assert_array_equal(x.data, expected.data)
        assert [[s.tolist() for s in text] for text in x.to_sequences()] == [texts[k] for k in labels]
    of_rows = [[np.ones((2, 3)), np.zeros((1, 3))], [np.ones((4, 3))]]
    (x,) = vr.data.batches(of_rows, batch_size=2)
    assert (x.lod(), x.shape) == ([[0, 2, 3], [0, 2, 3, 7]], (7, 3))
    answers = vr.data.batches([[1], [2]], others=[of_rows], batch_size=2)[0]
    assert answers[1].lod() == x.lod()
    labels = [[[0, 1], [1]], [[1, 0, 1]], [], [[0], [1, 1], [0]]]
    (batch,) = vr.data.batches(texts, labels, batch_size=4)
    assert batch[0].lod() == batch[1].lod()
    assert vr.data.batches(texts, max_tokens=4, bucket=True)[0].lod()[0][-1] >= 1
    rows = [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]]]  # lists of equal length are rows, as they always were
    assert vr.data.batches(rows, batch_size=2)[0].shape == (3, 2)
    equal = [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]  # the same, of whole numbers
    assert vr.data.batches(equal, batch_size=2)[0].lod() == [[0, 2, 4]]
    with pytest.raises(vr.ShapeError, match=r"sequence 0: expected rows of one shape.*from_sequences"):
        vr.data.batches([[[1, 2], [3]], [1, 2]], batch_size=2)


def test_a_missing_text_of_json_is_empty_or_named(tmp_path):
    path = saved(tmp_path, '{"text": "ab"}\n{"text": null}\n', "data.jsonl")
    with pytest.raises(vr.InputError, match=r"line 2, field .text.: expected a text or a list, got a missing entry"):
        read(path)
    assert read(path, missing="drop").lengths.tolist() == [2, 0]


def test_a_file_of_columns_names_the_options_that_make_sequences(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({"id": ["a"], "x": [1.0]}), tmp_path / "data.parquet")
    with pytest.raises(vr.InputError, match=r"expected options that say where the sequences are, got the columns"):
        read(tmp_path / "data.parquet")
    with pytest.raises(vr.InputError, match=r"`sequence`: expected the field 'text', got only the field 'x'"):
        read(saved(tmp_path, '{"x": "ab"}\n', "data.jsonl"))


def test_a_file_that_is_read_by_another_delimiter_or_format_is_hinted(tmp_path):
    with pytest.raises(vr.InputError, match=r"where the sequences are.*\(`delimiter='\\t'`\)"):
        read(saved(tmp_path, "a\tb\n1\t2\n", "tabs.csv"), label="b")
    with pytest.raises(vr.InputError, match=r"expected a suffix among .*, got '.dat' \(for another suffix, pass"):
        read(saved(tmp_path, "a\n", "series.dat"))


def test_a_data_set_says_that_its_labels_are_of_rows(tmp_path):
    data = read(saved(tmp_path, "id,x,y\na,1,0.5\na,2,1.5\n"), id="id", label="y")
    assert repr(data).endswith("labels that are numbers of rows")


TS = """# two channels
@problemName Walks
@timestamps false
@classLabel true up down
@data
1.5,2:0.1,0.2:up
# a remark
3,4,5:6,7,?:down
"""


def test_a_ts_file_has_channels_and_a_class(tmp_path):
    path = saved(tmp_path, TS, "walks.ts")
    data = read(path, label="class", missing="zero")
    assert [rows.tolist() for rows in data.sequences] == [
        [[1.5, np.float32(0.1)], [2, np.float32(0.2)]],
        [[3, 6], [4, 7], [5, 0]],
    ]
    assert (data.classes, data.labels.tolist(), data.name) == (["down", "up"], [1, 0], "walks.ts")
    assert read(path, missing="drop").labels is None
    assert list(read(path, missing="drop").lengths) == [2, 2]
    of_numbers = (
        TS.replace("@classLabel true up down", "@targetLabel true").replace(":up", ":1.5").replace(":down", ":?")
    )
    data = read(saved(tmp_path, of_numbers, "n.ts"), label="target", missing="drop")
    assert (data.label_kind, data.labels.tolist(), len(data)) == ("numbers", [1.5], 1)
    without = read(saved(tmp_path, "@classLabel false\n@DATA\n1,2\n\n3\n", "w.ts"))
    assert [rows.ravel().tolist() for rows in without.sequences] == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (TS, {"label": "class"}, r"d.ts, line 8, row 2: expected numbers, got a missing number"),
        (TS, {"label": "y"}, r"d.ts, `label`: expected 'class', got 'y' \(pass `label='class'`\)"),
        ("@classLabel false\n@data\n1\n", {"label": "class"}, "expected None, got 'class' .the file has no labels"),
        (TS.replace("timestamps false", "timeStamps true"), {}, "expected series without time stamps"),
        (TS.replace("0.1,0.2", "0.1"), {}, r"line 6: expected channels of equal lengths, got channels of the lengths"),
        (TS.replace("1.5,2:", "a,2:"), {}, "line 6: expected numbers, got 'a,2'"),
        (TS.replace("1.5,2:0.1,0.2:up", "up"), {}, "line 6: expected numbers, a colon, and the class, got 'up'"),
        ("@targetLabel true\n@data\n1,2:3,4\n", {"label": "target"}, r"target: expected one number, got \[3.0, 4"),
        (TS.partition("1.5")[0], {}, "expected at least one record, got no record"),
        ("1,2,3\n", {}, "expected a line '@data', got no such line"),
        ("", {}, "expected a line '@data', got no such line"),
        (TS, {"id": "a"}, "read, id: expected no such option for a .ts file"),
    ],
)
def test_what_is_wrong_in_a_ts_file_is_named(tmp_path, text, options, message):
    with pytest.raises(vr.InputError, match=message):
        read(saved(tmp_path, text, "d.ts"), **options)


DIGITS = [20_000_001.0, 30_000_003.25, 1e300]
FORMS = {
    "long": ("data.csv", "id,x\n" + "".join(f"a,{number!r}\n" for number in DIGITS), {"id": "id"}),
    "wide": ("data.csv", "x,y,z\n" + ",".join(map(repr, DIGITS)) + "\n", {"wide": True}),
    "json": ("data.jsonl", json.dumps({"x": DIGITS}) + "\n", {"sequence": "x"}),
    "ts": ("data.ts", "@problemname digits\n@data\n" + ",".join(map(repr, DIGITS)) + "\n", {}),
}


@pytest.mark.parametrize("form", FORMS)
def test_float64_keeps_the_digits_of_large_numbers(tmp_path, form):
    name, text, options = FORMS[form]
    (rows,) = read(saved(tmp_path, text, name), **options, dtype="float64").sequences
    assert (rows.dtype, rows.tolist()) == (np.float64, [[number] for number in DIGITS])
    with pytest.raises(vr.InputError, match="expected finite numbers that fit float32"):
        read(saved(tmp_path, text, name), **options)
    small = saved(tmp_path, text.replace("1e+300", "5.0"), name)
    assert [rows.dtype for rows in read(small, **options).sequences] == [np.float32]
    with pytest.raises(vr.InputError, match="dtype: expected one of 'float32' or 'float64', got 'float16'"):
        read(small, **options, dtype="float16")


def test_float64_keeps_the_digits_of_a_frame_with_missing_numbers():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": [[20_000_001.0, None], [30_000_003.25]]})
    found = read(frame, sequence="x", missing="zero", dtype="float64").sequences
    assert [rows.tolist() for rows in found] == [[[20_000_001.0], [0.0]], [[30_000_003.25]]]
    assert read(frame, sequence="x", missing="zero").sequences[0].dtype == np.float32


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet", "frame"])
@pytest.mark.parametrize("missing", ["error", "zero"])
def test_a_column_of_numbers_of_which_some_are_missing_is_no_column_of_sequences(tmp_path, form, missing):
    pandas = pytest.importorskip("pandas")
    source = frame = pandas.DataFrame({"x": [np.nan, 20.5, 3.0], "y": ["a", "b", "a"]})
    if form != "frame":
        source = tmp_path / f"data.{form}"
        {"csv": lambda: frame.to_csv(source, index=False), "parquet": lambda: frame.to_parquet(source),
         "jsonl": lambda: frame.to_json(source, orient="records", lines=True)}[form]()  # fmt: skip
    expected = "expected texts, got" if form == "csv" else "expected a text or a list, got 20.5 (if each row is a step"
    with pytest.raises(vr.InputError, match=re.escape(expected)):
        read(source, sequence="x", label="y", missing=missing)


def test_names_of_columns_that_nobody_reads_may_repeat(tmp_path):
    (tmp_path / "x.csv").write_text("text,label,,\nab,x,,\n")
    assert read_csv(tmp_path / "x.csv").labels.tolist() == [0]
    (tmp_path / "x.csv").write_text("text,text\nab,x\n")
    with pytest.raises(vr.InputError, match="expected fields of different names"):
        read_csv(tmp_path / "x.csv")
