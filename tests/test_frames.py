"""Frames in memory, of pandas, polars and Arrow: every form that files have, for `data.read` and for the estimators."""

import datetime
import io

import numpy as np
import pytest

import varlen_rnn as vr
from varlen_rnn.data import read

LONG = {
    "id": ["b", "a", "b", "a", "c"],
    "t": [2, 1, 1, 3, 1],
    "u": [3.0, 1.0, 2.0, 5.0, 4.0],
    "v": [30, 10, 20, 50, 40],
    "y": ["up", "down", "up", "down", "up"],
}
LIBRARIES = ["pandas", "polars", "pyarrow"]


def frame(library, columns):
    """Return the columns, a dict of lists, as a frame of a library."""
    module = pytest.importorskip(library)
    return module.table(columns) if library == "pyarrow" else module.DataFrame(columns)


def csv_of(columns):
    lines = [columns, *zip(*columns.values(), strict=True)]
    return io.StringIO("".join(",".join("" if x is None else str(x) for x in line) + "\n" for line in lines))


def assert_same(found, expected):
    """Assert that two data sets are equal, down to the data types of their sequences."""
    assert [rows.tolist() for rows in found.sequences] == [rows.tolist() for rows in expected.sequences]
    assert [rows.dtype for rows in found.sequences] == [rows.dtype for rows in expected.sequences]
    for name in ("vocabulary", "classes", "features", "ids", "tokens", "label_kind"):
        assert getattr(found, name) == getattr(expected, name), name
    if expected.labels is None:
        assert found.labels is None
    else:
        assert [np.asarray(x).tolist() for x in found.labels] == [np.asarray(x).tolist() for x in expected.labels]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("columns", "options"),
    [
        (LONG, {"id": "id", "time": "t", "label": "y"}),
        (LONG, {"id": "id", "features": ["v"], "ignore": ["none"]}),
        (LONG, {"id": "id", "time": "t", "label": "y", "label_kind": "classes of rows"}),
        (LONG, {"id": "id", "ignore": ["y", "t"], "label": "u"}),
        ({"k": [7, 8, 7], "x": [1.0, None, 3.0], "y": ["p", None, "p"]}, {"id": "k", "label": "y", "missing": "drop"}),
        ({"k": [7, 8, 7], "x": [1.0, None, 3.0], "y": [1, None, 0]}, {"id": "k", "label": "y", "missing": "zero"}),
        ({"k": [7, 8, 7], "x": [1.0, 2.0, 3.0], "y": [0.5, 1.5, 0.5]}, {"id": "k", "label": "y"}),
        ({"a": [1.0, 4.0, 5.0], "b": [2.0, None, 6.0], "y": [1.5, 2.0, 3.0]}, {"wide": True, "label": "y"}),
        ({"s": [7, 8], "a": [1, 3], "b": [2, None], "y": ["u", "v"]}, {"wide": True, "label": "y", "id": "s"}),
        ({"text": ["ab", "b"], "y": ["u", "v"]}, {"label": "y"}),
        (
            {"review": ["good food", "bad"], "stars": [5, 1]},
            {"label": "stars", "sequence": "review", "tokens": "words"},
        ),
        ({"text": ["ab", "b", "a"], "y": [1.5, None, 2.5]}, {"label": "y", "missing": "drop"}),
    ],
)
def test_a_frame_is_the_data_set_of_its_file(library, columns, options):
    if "pandas" == library and columns.get("y") == [1, None, 0]:
        columns = columns | {"y": pytest.importorskip("pandas").array(columns["y"], "Int64")}  # others are floats
        expected = read(io.StringIO("k,x,y\n7,1.0,1\n8,,\n7,3.0,0\n"), format="csv", **options)
    else:
        expected = read(csv_of(columns), format="csv", **options)
    assert_same(read(frame(library, columns), **options), expected)


@pytest.mark.parametrize("library", LIBRARIES)
def test_lists_in_a_column_are_sequences(library):
    columns = {
        "x": [[1.0, 2.0], [], [3.0]], "rows": [[[1.0, 2.0], [3.0, 4.0]], [], [[5.0, 6.0]]], "ids": [[1, 2], [], [3]],
        "words": [["p", "q"], [], ["p"]], "tags": [["t", "s"], [], ["t"]], "y": ["u", "v", "u"],
    }  # fmt: skip
    table = frame(library, columns)
    data = read(table, sequence="x", label="y")
    assert [rows.tolist() for rows in data.sequences] == [[[1], [2]], [], [[3]]]
    assert {rows.dtype for rows in data.sequences} == {np.dtype(np.float32)}
    assert (data.labels.tolist(), data.classes) == ([0, 1, 0], ["u", "v"])
    rows = read(table, sequence="rows").sequences
    assert [x.tolist() for x in rows] == columns["rows"]
    assert {(x.dtype, x.shape[1:]) for x in rows} == {(np.dtype(np.float32), (2,))}
    ids = read(table, sequence="ids").sequences
    assert [x.tolist() for x in ids] == columns["ids"]
    assert {x.dtype for x in ids} == {np.dtype(np.int64)}
    tags = read(table, sequence="words", label="tags")
    assert (tags.vocabulary, tags.tokens, tags.label_kind) == (["<unk>", "p", "q"], "list", "classes of rows")


@pytest.mark.parametrize("library", LIBRARIES)
def test_missing_numbers_in_lists_of_a_frame(library):
    table = frame(library, {"x": [[1.0, None, 3.0], [4.0], []]})
    with pytest.raises(vr.InputError, match="frame, row 0, column 'x', row 1: expected numbers, got a missing number"):
        read(table, sequence="x")
    for missing, first in {"drop": [1, 3], "zero": [1, 0, 3], "forward": [1, 1, 3], "keep": [1, np.nan, 3]}.items():
        found = read(table, sequence="x", missing=missing).sequences
        for rows, wanted in zip(found, [first, [4], []], strict=True):
            np.testing.assert_array_equal(rows.ravel(), wanted)


@pytest.mark.parametrize("library", LIBRARIES)
def test_times_of_a_frame_may_have_any_type(library):
    dates = [datetime.datetime(2026, 1, 1, hour) for hour in (3, 1, 2)]
    zone = [date.replace(tzinfo=datetime.UTC) for date in dates]
    days = [datetime.date(2026, 1, day) for day in (3, 1, 2)]
    texts, nanoseconds = ["2026-02-01", "2026-01-01", "2026-01-02"], [2**62 + 3, 2**62 + 1, 2**62 + 2]
    for times in (dates, zone, days, [5.5, 0.5, 1.0], texts, nanoseconds):
        table = frame(library, {"id": ["a"] * 3, "t": times, "x": [3.0, 1.0, 2.0]})
        assert read(table, id="id", time="t").sequences[0].ravel().tolist() == [1, 2, 3]
    table = frame(library, {"id": ["a", "a"], "t": [dates[0], None], "x": [3.0, 1.0]})
    with pytest.raises(vr.InputError, match="frame, row 1, column 't': expected a number, or a date"):
        read(table, id="id", time="t")


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (LONG, {}, r"frame: expected options that say where the sequences are, got the columns 'id', 't', 'u', 'v'"),
        (LONG, {"id": "key"}, "frame, `id`: expected the column 'key', got only the columns 'id', 't', 'u', 'v', 'y'"),
        (LONG, {"id": "id", "label": "Y"}, "frame, `label`: expected the column 'Y', got only the columns 'id', 't'"),
        (
            {"id": ["a", "a"], "x": [1.0, 2.0], "y": [["p"], ["q"]]},
            {"id": "id", "label": "y", "label_kind": "several classes"},
            r"frame, row 1, label: expected \['p'\], as in the first row of its id, got \['q'\]",
        ),
        ({"id": ["a"], "x": [1.0], "y": [{"p": 1}]}, {"id": "id", "label": "y"}, "frame, row 0, label: expected a"),
        ({"a": [1.0], "y": ["u"]}, {"wide": True, "label": "Y"}, "frame, `label`: expected the column 'Y'"),
        ({"text": [b"ab", b"c"]}, {}, "frame, row 0, column 'text': expected a text or a list, got b'ab'"),
        ({"text": [{"a": 1}, {"a": 2}]}, {}, "frame, row 0, column 'text': expected a text or a list, got {'a': 1}"),
        ({"text": [["a", None], ["c"]]}, {}, r"frame, row 0, column 'text': expected .*, got \['a', None\]"),
        (
            {"text": [np.array([2**63 + 5], np.uint64), np.array([1], np.uint64)]},
            {},
            "frame, row 0, column 'text': expected an integer below",
        ),
        (LONG, {"id": "id", "delimiter": ";"}, "read, delimiter: expected no such option for a long form of a frame"),
        (LONG, {"id": "id", "sequence": "u"}, "read, sequence: expected no such option for a long form of a frame"),
        (LONG, {"id": "id", "format": "csv"}, "format: expected None, because the source is a frame"),
        (LONG, {"id": "id"}, "frame, row 0, column 'y': expected a number, got 'up' .*features"),
        (LONG, {"sequence": "u"}, "frame, row 0, column 'u': expected a text or a list, got 3.0"),
        ({"id": ["a", None], "x": [1.0, 2.0]}, {"id": "id"}, "frame, row 1, column 'id': expected an id, got no id"),
        ({"id": ["a"], "x": [1e39]}, {"id": "id"}, "frame, row 0: expected finite numbers"),
        ({"id": ["a", "a"], "x": [1.0, None]}, {"id": "id"}, "frame, row 1: expected numbers, got a missing number"),
        (
            {"text": ["a", None]},
            {},
            "frame, row 1, column 'text': expected a text or a list, got a missing entry .to read it as an empty",
        ),
        ({"text": ["ab"], "y": [None]}, {"label": "y"}, "frame, row 0, column 'y': expected a label, got no label"),
        ({"text": []}, {}, "frame: expected at least one record, got no record"),
        ({"id": [], "x": []}, {"id": "id"}, "frame: expected at least one record, got no record"),
        ({"x": []}, {"wide": True}, "frame: expected at least one record, got no record"),
        ({}, {"id": "id"}, "frame: expected at least one record, got no record"),
    ],
)
def test_wrong_frames_are_named(library, columns, options, message):
    with pytest.raises(vr.InputError, match=message):
        read(frame(library, columns), **options)


def test_frames_of_pandas_have_names_indices_and_types_of_their_own():
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame(np.arange(6.0).reshape(2, 3)).assign(y=pd.Categorical(["u", "v"]))
    data = read(table, wide=True, label="y")
    assert (data.features, data.classes, data.sequences[1].ravel().tolist()) == (("0", "1", "2"), ["u", "v"], [3, 4, 5])
    long = pd.DataFrame(LONG).set_index(["id", "t"])
    with pytest.raises(vr.InputError, match=r"frame, `id`: expected the column 'id'.*reset_index\(\)"):
        read(long, id="id")
    assert len(read(long.reset_index(), id="id", time="t", label="y")) == 3
    with pytest.raises(vr.InputError, match="expected columns of different names"):
        read(pd.DataFrame([[1, 2]], columns=["a", "a"]), wide=True)
    shuffled = pd.DataFrame(LONG, index=[9, 3, 3, 1, 0])  # the index is no position
    assert_same(read(shuffled, id="id", label="y", time="t"), read(pd.DataFrame(LONG), id="id", label="y", time="t"))
    classes = pd.DataFrame({"text": ["a", "b", "a"], "y": [1.0, np.nan, 0.0]})  # as pandas reads 1, blank, 0
    found = read(classes, label="y", missing="drop", label_kind="classes")
    assert (found.classes, found.labels.tolist()) == (["0", "1"], [1, 0])
    with pytest.raises(vr.InputError, match=r"source: expected a path.*to_frame"):
        read(classes["text"])
    lazy = pytest.importorskip("polars").DataFrame(LONG).lazy()
    with pytest.raises(vr.InputError, match=r"source: expected a path.*collect\(\)"):
        read(lazy, id="id")


def test_a_frame_that_pandas_read_from_parquet_has_arrays_inside_of_arrays(tmp_path):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    rows = [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]]]
    pd.DataFrame({"x": rows, "words": [["a", "b"], ["b"]], "y": [[0, 1], [1]]}).to_parquet(tmp_path / "x.parquet")
    table = pd.read_parquet(tmp_path / "x.parquet")
    assert [x.tolist() for x in read(table, sequence="x").sequences] == rows
    data = read(table, sequence="words", label="y")
    assert (data.vocabulary, data.label_kind) == (["<unk>", "b", "a"], "classes of rows")


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_files_of_columns_have_a_long_and_a_wide_form(tmp_path, suffix):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    path, wide = str(tmp_path / f"long.{suffix}"), {"a": [1.0, 3.0], "b": [2.0, None], "y": ["u", "v"]}
    write = parquet.write_table if suffix == "parquet" else feather.write_feather
    write(pa.table(LONG), path)
    options = {"id": "id", "time": "t", "label": "y"}
    assert_same(read(path, **options), read(csv_of(LONG), format="csv", **options))
    with pytest.raises(vr.InputError, match=rf"long.{suffix}, `id`: expected the column 'key'"):
        read(path, id="key")
    write(pa.table(wide), path)
    assert_same(read(path, wide=True, label="y"), read(csv_of(wide), format="csv", wide=True, label="y"))


def test_many_names_are_not_all_shown(tmp_path):
    columns = {f"t{number}": [1.0, 2.0] for number in range(300)}
    (tmp_path / "wide.csv").write_text(csv_of(columns).getvalue())
    tables = [frame(library, columns) for library in LIBRARIES]
    for source in (*tables, tmp_path / "wide.csv"):
        for options in ({"wide": True, "label": "t299x"}, {}, {"sequence": "t299x"}):
            with pytest.raises(vr.InputError) as error:
                read(source, **options)
            assert len(str(error.value)) < 700
            assert ("290 more" in str(error.value)) or not options
            assert "is it 't299'?" in str(error.value) or not options


SMALL = {"hidden_size": 8, "random_state": 0, "max_epochs": 2}


@pytest.mark.parametrize("library", LIBRARIES)
def test_estimators_take_a_frame_of_one_column(library):
    pytest.importorskip("sklearn")
    from varlen_rnn.sklearn import SequenceClassifier, SequenceTagger

    texts, y = ["ab", "b", "ba"] * 4, ["u", "v", "u"] * 4
    numbers, tokens = [[1.0, 2.0], [], [3.0]] * 4, [["p", "q"], [], ["p"]] * 4
    vectors = [[[1.0, 2.0]], [], [[3.0, 4.0], [5.0, 6.0]]] * 4
    arrays = [np.float32(x).reshape(-1, 2) for x in vectors]
    for X, column in (
        (texts, texts), (numbers, [np.float32(x) for x in numbers]), (tokens, tokens), (vectors, arrays),
    ):  # fmt: skip
        expected = SequenceClassifier(**SMALL).fit(column, y).predict_proba(column)
        table = frame(library, {"text": X, "y": y})
        if library == "pyarrow":
            X, labels = table.select(["text"]), table["y"].to_pylist()
        else:
            X, labels = table[["text"]], table["y"]
        model = SequenceClassifier(**SMALL).fit(X, labels)
        np.testing.assert_array_equal(model.predict_proba(X), expected)
        np.testing.assert_array_equal(model.predict_proba(table["text"]), expected)
        assert model.score(X, labels) <= 1
    if library != "pyarrow":
        table = frame(library, {"text": ["ab", "b"], "words": [["p", "q"], ["p"]], "tags": [["t", "s"], ["t"]]})
        table = table.assign(codes=[["t", "s"], ["t"]]) if library == "pandas" else table
        expected = SequenceTagger(**SMALL).fit([["p", "q"], ["p"]], [["t", "s"], ["t"]]).predict([["p", "q"]])
        for tags in (table["tags"], table[["tags"]]):
            found = SequenceTagger(**SMALL).fit(table[["words"]], tags)
            np.testing.assert_array_equal(found.predict([["p", "q"]]), expected)
            assert SequenceTagger(**SMALL).fit(table[["text"]], tags).vocabulary_ == ["<unk>", "b", "a"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_estimators_take_wide_frames_of_numbers(library):
    pytest.importorskip("sklearn")
    from varlen_rnn.sklearn import SequenceClassifier

    columns = {"a": [1.0, 4.0, 5.0], "b": [2, 5, 6], "c": [3.0, None, None]}
    rows = [np.float32([1, 2, 3]), np.float32([4, 5]), np.float32([5, 6])]
    expected = SequenceClassifier(**SMALL).fit(rows, [0, 1, 0]).predict_proba(rows)
    X = frame(library, columns)
    np.testing.assert_array_equal(SequenceClassifier(**SMALL).fit(X, [0, 1, 0]).predict_proba(X), expected)
    gaps = frame(library, {"a": [1.0, 2.0], "b": [None, 1.0], "c": [1.0, 1.0]})
    assert SequenceClassifier(**SMALL).fit(gaps, [0, 1]).predict(gaps).shape == (2,)
    with pytest.raises(
        vr.DTypeError, match=r"X: expected a frame with one column of sequences.*got a frame of 'id', 't'.*data.read"
    ):
        SequenceClassifier(**SMALL).fit(frame(library, LONG), LONG["y"])


def test_labels_of_frames_may_have_any_type():
    pytest.importorskip("sklearn")
    pd = pytest.importorskip("pandas")
    from varlen_rnn.sklearn import SequenceClassifier, SequenceRegressor

    X = ["ab", "b", "ba", "a"] * 2
    y = [0, 1, 0, 1] * 2
    expected = SequenceClassifier(**SMALL).fit(X, y).predict_proba(X)
    for labels in (
        pd.array(y, "Int64"),
        pd.Series(y, dtype="Int64"),
        pd.Series(map(str, y)),
        pd.Series(map(str, y), dtype="category"),
        pd.Series(y, index=range(8, 0, -1)),
    ):
        np.testing.assert_array_equal(SequenceClassifier(**SMALL).fit(X, labels).predict_proba(X), expected)
    for labels in (pd.array([None, *y[1:]], "Int64"), pd.Series([None, *y[1:]], dtype="Int64")):
        with pytest.raises(vr.InputError, match="y, entry 0: expected a label"):
            SequenceClassifier(**SMALL).fit(X, labels)
    targets = pd.DataFrame({"a": np.arange(8.0), "b": np.ones(8)})
    assert SequenceRegressor(**SMALL).fit(X, targets).predict(X).shape == (8, 2)


def test_tools_of_scikit_learn_take_frames_apart():
    pytest.importorskip("sklearn")
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    from sklearn.model_selection import cross_val_score, train_test_split

    from varlen_rnn.sklearn import SequenceClassifier

    columns = {"text": ["ab", "b", "ba", "a"] * 5, "y": ["u", "v", "u", "v"] * 5}
    for table in (pd.DataFrame(columns), pl.DataFrame(columns)):
        assert len(cross_val_score(SequenceClassifier(**SMALL), table[["text"]], table["y"], cv=2)) == 2
        train, test, labels, _ = train_test_split(table[["text"]], table["y"], random_state=0)
        assert SequenceClassifier(**SMALL).fit(train, labels).predict(test).shape == (5,)
        data = read(table, label="y")
        assert set(SequenceClassifier(**SMALL).fit(data).classes_) == {"u", "v"}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_label_of_a_table_may_be_a_list(library):
    table = frame(library, {"a": [1.0, 2.0], "b": [3.0, 4.0], "y": [["u", "v", "w"], ["u"]]})
    data = read(table, wide=True, label="y")
    assert (data.classes, data.labels.tolist()) == (["u", "v", "w"], [[1, 1, 1], [1, 0, 0]])
    table = frame(library, {"id": [5, 5, 6], "x": [1.0, 2.0, 3.0], "y": [["u", "v", "w"], ["u", "v", "w"], []]})
    data = read(table, id="id", label="y")
    assert (data.classes, data.labels.tolist()) == (["u", "v", "w"], [[1, 1, 1], [0, 0, 0]])


@pytest.mark.parametrize("library", LIBRARIES)
def test_missing_texts_and_lists_are_empty(library, tmp_path):
    columns = {"text": ["ab", None, "b"], "x": [[1.0], None, [2.0, 3.0]], "y": ["u", "v", "u"]}
    table = frame(library, columns)
    for field in ("text", "x"):
        data = read(table, sequence=field, label="y", missing="drop")
        assert (data.lengths.tolist(), data.classes) == ([2, 0, 1] if field == "text" else [1, 0, 2], ["u", "v"])
    if library == "pyarrow":
        from pyarrow import parquet

        parquet.write_table(table, tmp_path / "a.parquet")
        for field in ("text", "x"):
            found, expected = (
                read(source, sequence=field, label="y", missing="drop") for source in (tmp_path / "a.parquet", table)
            )
            assert [rows.tolist() for rows in found.sequences] == [rows.tolist() for rows in expected.sequences]
            assert (found.classes, found.labels.tolist()) == (["u", "v"], [0, 1, 0])
            with pytest.raises(vr.InputError, match="expected a text or a list, got a missing entry"):
                read(tmp_path / "a.parquet", sequence=field, label="y")


def test_frames_that_estimators_do_not_take_get_a_hint():
    pytest.importorskip("sklearn")
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    from varlen_rnn.sklearn import SequenceClassifier

    long = pd.DataFrame({"id": [0, 0, 1, 1], "t": [0, 1, 0, 1], "x": [0.5, 1.0, 2.0, 3.0]})
    with pytest.raises(vr.InputError, match=r"y: expected 4 entries.*a row per step, call fit\(varlen_rnn.data.read\("):
        SequenceClassifier(**SMALL).fit(long, [0, 1])
    for texts in (["a", None], [None, "a"]):
        with pytest.raises(vr.InputError, match=r"X, sequence [01]: expected a .*, got None \(dropna\(\)"):
            SequenceClassifier(**SMALL).fit(pd.Series(texts), [0, 1])
    with pytest.raises(vr.InputError, match=r"X: expected many sequences.*pass X.collect\(\)"):
        SequenceClassifier(**SMALL).fit(pl.DataFrame(LONG).lazy(), [0, 1])
    for source in ({"id": ["a"]}, long.to_records(), [[1.0]]):
        with pytest.raises(vr.InputError, match="source: expected a path, an open file or a frame"):
            read(source, id="id")
