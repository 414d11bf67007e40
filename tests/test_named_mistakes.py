"""Input that estimators and readers would take for something else: they put it right, or say so."""

import numpy as np
import pytest

import varlen_rnn as vr

pytest.importorskip("sklearn")
pd = pytest.importorskip("pandas")

from sklearn.metrics import r2_score

from varlen_rnn.sklearn import SequenceClassifier, SequenceRegressor, SequenceTagger, load

FIRST = {"random_state": 0}


def frames(number=20, seed=0):
    """Return frames whose first column differs between two classes, and whose second has other units."""
    rng = np.random.default_rng(seed)
    X = [pd.DataFrame({"a": rng.standard_normal(9) + 2 * (k % 2), "b": 100 * rng.random(9)}) for k in range(number)]
    return X, np.arange(number) % 2


def long(X, y):
    return pd.concat([frame.assign(id=k, y=label) for k, (frame, label) in enumerate(zip(X, y, strict=True))])


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_features_are_put_into_the_order_of_the_training(library, tmp_path):
    X, y = frames()
    convert = {
        "pandas": lambda frame: frame,
        "polars": lambda frame: pytest.importorskip("polars").from_pandas(frame),
        "pyarrow": lambda frame: pytest.importorskip("pyarrow").Table.from_pandas(frame),
    }[library]
    model = SequenceClassifier(**FIRST).fit([X[0], *(convert(frame[["b", "a"]]) for frame in X[1:])], y)
    model.save(tmp_path / "model")
    for fitted in (model, load(tmp_path / "model")):
        assert fitted.feature_names_in_.tolist() == ["a", "b"]
        others = fitted.predict_proba([convert(frame[["b", "a"]]) for frame in X])
        np.testing.assert_array_equal(others, fitted.predict_proba([frame.to_numpy() for frame in X]))
    model.fit([frame.to_numpy() for frame in X], y)
    assert not hasattr(model, "feature_names_in_")
    unnamed = [pd.DataFrame(frame.to_numpy()) for frame in X]
    np.testing.assert_array_equal(model.fit(unnamed, y).predict_proba(X), others)


def test_features_of_data_sets_have_names():
    X, y = frames()
    table = long(X, y.astype(str))
    data = vr.data.read(table, id="id", label="y")
    other = vr.data.read(table[["b", "id", "y", "a"]], id="id", label="y")
    model = SequenceClassifier(**FIRST).fit(data)
    np.testing.assert_array_equal(model.predict_proba(other), model.predict_proba(data))
    with pytest.raises(vr.ShapeError, match="X, columns: expected the features of the training, 'a', 'b', got 'c' as"):
        model.predict(vr.data.read(table.rename(columns={"a": "c"}), id="id", label="y"))
    with pytest.raises(vr.ShapeError, match="X, sequence 1, columns: .* got no 'b' .feature names should match"):
        model.predict([X[0], X[1][["a"]]])


def test_steps_stay_in_the_order_of_the_training():
    wide = pd.DataFrame(np.random.default_rng(0).standard_normal((20, 6)), columns=pd.date_range("2026-01-01", periods=6))
    model = SequenceClassifier(**FIRST).fit(wide, np.arange(20) % 2)
    assert not hasattr(model, "feature_names_in_")
    assert len(model.predict(wide[wide.columns[2:]])) == 20
    for X in (wide[wide.columns[::-1]], vr.data.read(wide[wide.columns[::-1]], wide=True)):
        with pytest.raises(vr.ShapeError, match="X, columns: expected steps in the order of the training, '2026-01-01"):
            model.predict(X)


GAPS = {"None": None, "NaN": float("nan"), "pandas.NA": pd.NA, "NaT": np.datetime64("NaT"), "float32": np.float32("nan")}


@pytest.mark.parametrize("gap", GAPS.values(), ids=GAPS)
def test_missing_labels_are_no_classes(gap):
    X = [np.arange(k % 5 + 2.0) for k in range(20)]
    for y in (["a", gap] * 10, pd.Series(["a", gap] * 10), [1, gap] * 10):
        with pytest.raises(vr.InputError, match="y, entry 1: expected a label, got N"):
            SequenceClassifier(**FIRST).fit(X, y)
    model = SequenceClassifier(**FIRST).fit(X, ["a", "b"] * 10)
    with pytest.raises(vr.InputError, match="y, entry 1: expected a label, got N"):
        model.score(X, ["a", gap] * 10)


@pytest.mark.parametrize("gap", GAPS.values(), ids=GAPS)
@pytest.mark.parametrize("classes", [("low", "high"), (0, 1), (0.0, 1.0), (False, True)])
def test_steps_without_a_label_do_not_count(gap, classes):
    X = [np.arange(k % 4 + 2.0) for k in range(12)]
    if gap is GAPS["NaT"] and not isinstance(classes[0], str):
        pytest.skip("NumPy makes dates of it")
    whole = [[classes[int(step > 1)] for step in x] for x in X]
    y = [[None, *labels[1:]] for labels in whole]
    short = FIRST | {"hidden_size": 4, "max_epochs": 2}
    model = SequenceTagger(**short).fit(X, y)
    for labels in ([[gap, *own[1:]] for own in whole], pd.Series([[gap, *own[1:]] for own in whole])):
        other = SequenceTagger(**short).fit(X, labels)
        assert other.classes_.tolist() == model.classes_.tolist() == sorted(classes)
        np.testing.assert_equal(other.predict_proba(X), model.predict_proba(X))
        assert other.score(X, labels) == model.score(X, y)


@pytest.mark.parametrize("loss", ["squared", "mae", "quantile"])
@pytest.mark.parametrize("gap", [None, float("nan"), pd.NA])
def test_rows_without_a_number_do_not_count(loss, gap):
    rng = np.random.default_rng(0)
    X = [rng.standard_normal(k % 4 + 2) for k in range(12)]
    short = FIRST | {"hidden_size": 4, "max_epochs": 2, "loss": loss}
    whole = [np.cumsum(x).tolist() for x in X]
    y = [[gap, *own[1:]] for own in whole[:-1]] + [[gap] * len(whole[-1])]
    model = SequenceRegressor(**short).fit(X, y)
    there = [np.array([number for own in y for number in own if number is not gap])]
    np.testing.assert_allclose(model._mean, there[0].mean())
    found = model.predict(X)
    assert np.isfinite(np.concatenate(found)).all() and np.isfinite(model.history_[-1]["loss"])
    kept = [np.array([number is not gap for number in own]) for own in y]
    wanted = r2_score(there[0], np.concatenate([own[rows] for own, rows in zip(found, kept, strict=True)]))
    assert model.score(X, y) == pytest.approx(wanted)
    other = [[1e6 if number is gap else number for number in own] for own in y]  # what has no number has no gradient
    assert model._weights_of_losses(model._encode_labels(y, list(map(len, X))), None).sum() == len(there[0])
    assert model.score(X, other) != pytest.approx(wanted)
    with pytest.raises(vr.InputError, match="y, sequence 0: expected finite numbers, or None for a row without one, got"):
        model.fit(X, [[np.inf] * len(x) for x in X])
    with pytest.raises(vr.InputError, match="y: expected numbers of some rows, got none"):
        model.fit(X, [[gap] * len(x) for x in X])


def test_a_missing_token_is_no_word():
    with pytest.raises(vr.DTypeError, match="X, sequence 1, entry 1: expected a text, as others, got nan"):
        SequenceClassifier(**FIRST).fit([["a", "b"], ["a", float("nan")]], [0, 1])


def test_rows_that_repeat_an_id_and_a_time_are_counted(tmp_path):
    table = pd.DataFrame({"id": list("aabab"), "t": [1, 2, 1, 1, 2], "x": np.arange(5.0)})
    message = r"frame, row 3: expected one row for each id and time, got 1 row that repeats an id .* first \(frame.drop_dup"
    with pytest.warns(UserWarning, match=message) as found:
        assert len(vr.data.read(table, id="id", time="t")) == 2
    assert found[0].filename == __file__
    twice = pd.concat([table, table])
    twice.to_csv(tmp_path / "twice.csv", index=False)
    with pytest.warns(UserWarning, match=r"twice.csv, line 5: .* got 6 rows that repeat an id and a time; "):
        vr.data.read(tmp_path / "twice.csv", id="id", time="t")
    vr.data.read(twice.drop_duplicates(["id", "t"]), id="id", time="t")
    vr.data.read(twice, id="id")


def test_a_label_that_differs_within_few_ids_is_named():
    X, y = frames(60)
    table = long(X, y.astype(str)).reset_index(drop=True)
    table.loc[30, "y"] = "1" if table.y[30] == "0" else "0"
    message = r"frame, `label` 'y': expected .* got a label that differs between rows of '3' \(1 of 60 ids\) \(`label_kind"
    with pytest.warns(UserWarning, match=message):
        data = vr.data.read(table, id="id", label="y")
    assert data.label_kind == "classes of rows"
    assert vr.data.read(table, id="id", label="y", label_kind="classes of rows").label_kind == "classes of rows"
    message = r"X, labels of the data set: expected a class per sequence, got a label that differs between rows of '3' "
    for fit in (SequenceClassifier().fit, lambda data: SequenceClassifier().fit(X, y, eval_set=data)):
        with pytest.raises(vr.InputError, match=message + r"\(1 of 60 ids\) .*label_kind='classes'"):
            fit(data)
    table.loc[table.index % 9 == 1, "y"] = "2"
    assert vr.data.read(table, id="id", label="y").label_kind == "classes of rows"
