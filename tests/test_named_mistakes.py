"""Input that estimators and readers would take for something else: they put it right, or say so."""

import numpy as np
import pytest

import varlen_rnn as vr

pytest.importorskip("sklearn")

import pandas as pd
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_score

from varlen_rnn.sklearn import (
    SequenceClassifier,
    SequenceForecaster,
    SequenceRegressor,
    SequenceTagger,
    forecaster,
    load,
    network,
)

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
    with pytest.raises(vr.ShapeError, match="X, columns: expected the features of the training, 'a', 'b', got also"):
        model.predict(vr.data.read(table.rename(columns={"a": "c"}), id="id", label="y"))
    with pytest.raises(vr.ShapeError, match=r"X, sequence 1, columns: .* got no 'b' .feature names should match"):
        model.predict([X[0], X[1][["a"]]])


def test_steps_stay_in_the_order_of_the_training():
    wide = pd.DataFrame(
        np.random.default_rng(0).standard_normal((20, 6)), columns=pd.date_range("2026-01-01", periods=6)
    )
    model = SequenceClassifier(**FIRST).fit(wide, np.arange(20) % 2)
    assert not hasattr(model, "feature_names_in_")
    assert len(model.predict(wide[wide.columns[2:]])) == 20
    for X in (wide[wide.columns[::-1]], vr.data.read(wide[wide.columns[::-1]], wide=True)):
        with pytest.raises(vr.ShapeError, match="X, columns: expected steps in the order of the training, '2026-01-01"):
            model.predict(X)


GAPS = {
    "None": None,
    "NaN": float("nan"),
    "pandas.NA": pd.NA,
    "NaT": np.datetime64("NaT"),
    "float32": np.float32("nan"),
}


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
    np.testing.assert_allclose(model._labels.mean, there[0].mean())
    found = model.predict(X)
    assert np.isfinite(np.concatenate(found)).all()
    assert np.isfinite(model.history_[-1]["loss"])
    kept = [np.array([number is not gap for number in own]) for own in y]
    wanted = r2_score(there[0], np.concatenate([own[rows] for own, rows in zip(found, kept, strict=True)]))
    assert model.score(X, y) == pytest.approx(wanted)
    other = [[1e6 if number is gap else number for number in own] for own in y]  # a gap has no gradient
    assert model._labels.weights_of_losses(model._labels.encode(y, list(map(len, X))), None).sum() == len(there[0])
    assert model.score(X, other) != pytest.approx(wanted)
    with pytest.raises(
        vr.InputError, match="y, sequence 0: expected finite numbers, or None for a row without a number, got"
    ):
        model.fit(X, [[np.inf] * len(x) for x in X])
    with pytest.raises(vr.InputError, match="y: expected a number for at least one row, got no numbers"):
        model.fit(X, [[gap] * len(x) for x in X])


def test_a_missing_token_is_no_word():
    with pytest.raises(vr.DTypeError, match="X, sequence 1, entry 1: expected a text, because others are, got nan"):
        SequenceClassifier(**FIRST).fit([["a", "b"], ["a", float("nan")]], [0, 1])


def test_rows_that_repeat_an_id_and_a_time_are_counted(tmp_path):
    table = pd.DataFrame({"id": list("aabab"), "t": [1, 2, 1, 1, 2], "x": np.arange(5.0)})
    message = r"frame, row 3: expected one row for each id and time, got 1 row that repeats an id .*frame.drop_dup"
    with pytest.warns(UserWarning, match=message) as found:
        assert len(vr.data.read(table, id="id", time="t")) == 2
    assert found[0].filename == __file__
    twice = pd.concat([table, table])
    twice.to_csv(tmp_path / "twice.csv", index=False)
    with pytest.warns(UserWarning, match=r"twice.csv, line 5: .* got 6 rows that repeat an id and a time"):
        vr.data.read(tmp_path / "twice.csv", id="id", time="t")
    vr.data.read(twice.drop_duplicates(["id", "t"]), id="id", time="t")
    vr.data.read(twice, id="id")


def test_a_label_that_differs_within_few_ids_is_named():
    X, y = frames(60)
    table = long(X, y.astype(str)).reset_index(drop=True)
    table.loc[30, "y"] = "1" if table.y[30] == "0" else "0"
    message = r"frame, `label` 'y': expected .* got a label that differs between rows of '3' \(1 of 60 ids\) \(correct"
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


def test_a_forecaster_says_that_series_are_too_short():
    message = r"fit, X: expected series long enough .* 9 values at the end, got series of at most 8 values .the model"
    with pytest.warns(UserWarning, match=message):
        model = SequenceForecaster(9, **FIRST).fit([np.arange(8.0), np.arange(5.0)])
    assert model.candidates_[0]["candidate"] == "naive"
    X = [np.arange(4.0), np.arange(30.0), np.arange(9.0)]
    with pytest.warns(UserWarning, match=r"X, series 0: .* than 9 values, the horizon, got 4 values .2 of 3 series"):
        found = model.evaluate(X)
    assert found == model.evaluate(X[1:2])
    assert model.score(X[1:2]) == -found["forecaster"]["MASE"]


def trends(number=24):
    rng = np.random.default_rng(0)
    return [np.cumsum(1 + 0.1 * rng.standard_normal(length)) for length in rng.integers(20, 30, number)]


def test_searches_and_cross_validation_take_a_forecaster():
    model = SequenceForecaster(2, model="ridge", **FIRST)
    X = trends()
    assert (cross_val_score(model, X, cv=3) < 0).all()
    assert GridSearchCV(model, {"season_length": [1, 2]}, cv=2).fit(X).best_score_ < 0


def test_values_that_are_missing_before_a_series_begins_are_left_out(tmp_path):
    X, known = trends(), [np.arange(float(len(x) + 2))[:, None] % 3 for x in trends()]
    model = SequenceForecaster(2, model="ridge", **FIRST)
    wanted = model.fit(X, future_covariates=known).predict(X, known)
    late = [np.concatenate([np.full(k % 3, np.nan), x]) for k, x in enumerate(X)]
    columns = [np.concatenate([np.full((k % 3, 1), 7.0), own]) for k, own in enumerate(known)]
    np.testing.assert_allclose(model.fit(late, future_covariates=columns).predict(late, columns), wanted)
    assert model.evaluate(late, columns) == model.evaluate(X, known)
    with pytest.raises(vr.InputError, match=r"X, series 0: expected finite numbers, got NaN \(.*frame.interpolate"):
        model.fit([[np.nan, 1.0, np.nan, 2.0]])
    with pytest.raises(vr.InputError, match="future_covariates, series 0: expected finite numbers, got NaN"):
        model.fit([[1.0, 2.0]], future_covariates=[[1.0, np.nan]])
    with pytest.raises(vr.InputError, match="X, series 0: expected at least one value, got no values"):
        model.fit([[np.nan]])


def test_a_forecaster_knows_the_order_of_columns(tmp_path):
    rng = np.random.default_rng(0)
    known = [pd.DataFrame(rng.standard_normal((28, 2)), columns=["a", "b"]) for _ in range(20)]
    X = pd.DataFrame([10 + 3 * own["a"][:-2] + 0.1 * own["b"][:-2] for own in known]).reset_index(drop=True)
    model = SequenceForecaster(2, model="ridge", **FIRST).fit(X, future_covariates=known)
    model.save(tmp_path / "model")
    for fitted in (model, load(tmp_path / "model")):
        swapped = [own[["b", "a"]] for own in known]
        np.testing.assert_array_equal(fitted.predict(X, swapped), model.predict(X, known))
        with pytest.raises(vr.ShapeError, match="X, columns: expected steps in the order of the training"):
            fitted.predict(X[X.columns[::-1]], known)
        with pytest.raises(vr.ShapeError, match="future_covariates, sequence 0, columns: expected the features of the"):
            fitted.predict(X, [own[["a"]] for own in known])


@pytest.mark.parametrize("training", [1, 2])
def test_an_interrupt_leaves_a_forecaster_of_the_other_candidates(monkeypatch, training):
    X, count, real = trends(), [0], SequenceForecaster._train

    model = SequenceForecaster(2, max_epochs=1, **FIRST)
    real_add = forecaster.Choice._add

    def add(self, name, found, seconds):
        real_add(self, name, found, seconds)
        if "recurrent" in name:
            self.candidates[-1]["loss"] = 0.0

    def train(self, *inputs):
        count[0] += 1
        if count[0] == training:
            raise KeyboardInterrupt
        real(self, *inputs)

    monkeypatch.setattr(SequenceForecaster, "_train", train)
    monkeypatch.setattr(forecaster.Choice, "_add", add)

    with pytest.raises(KeyboardInterrupt):
        model.fit(X)
    assert count == [training]
    assert [found["candidate"] for found in model.candidates_ if found["chosen"]] == ["ridge"]
    np.testing.assert_array_equal(model.predict(X), SequenceForecaster(2, model="ridge", **FIRST).fit(X).predict(X))
    count[0] = training - 1
    with pytest.raises(KeyboardInterrupt):
        SequenceForecaster(2, model="recurrent", max_epochs=1, **FIRST).fit(X)


def test_integers_that_may_be_measurements_get_a_warning():
    rng = np.random.default_rng(0)
    X = [rng.integers(0, 5000, 12) for _ in range(30)]
    message = r"fit, X: expected floating-point .* read as ids of tokens \(for measurements, pass x.astype\(float\)\)"
    with pytest.warns(UserWarning, match=message):
        SequenceClassifier(**FIRST).fit(X, np.arange(30) % 2)
    few = [x % 9 for x in X]
    with pytest.warns(UserWarning, match=message):
        model = SequenceRegressor(**FIRST).fit(few, np.arange(30.0))
    model.fit([x.astype(float) for x in few], np.arange(30.0))
    with pytest.raises(vr.DTypeError, match=r"X: expected numbers, .* got ids \(integers are read as ids of tokens"):
        model.predict(few)
    with pytest.raises(vr.DTypeError, match=r"X: expected ids, .* got numbers \(integers are read as ids of tokens"):
        SequenceClassifier(**FIRST).fit(few, np.arange(30) % 2).predict([x.astype(float) for x in few])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"age": [4, 5], "region": ["n", "s"]}, r"'region' holds texts .pandas.get_dummies\(X, columns=\['region'\]\)"),
        (
            {"v": [[1.0], [2.0]]},
            r"in which 'u' holds lists and 'v' holds lists .\[numpy.column_stack\(lists\) for lists",
        ),
        (
            {"when": pd.to_datetime(["2026-01-01"] * 2)},
            r"'when' holds values such as Timestamp.* \(.*X.drop\(columns=\['when'\]",
        ),
    ],
)
def test_columns_that_estimators_do_not_take_are_named(more, message):
    X = pd.DataFrame({"u": [[1.0], [2.0]]} | more)
    with pytest.raises(vr.DTypeError, match=f"X: expected a frame with one column of sequences.*{message}"):
        SequenceClassifier(**FIRST).fit(X, [0, 1])


def test_parameters_that_would_be_ignored_are_an_error():
    X, y = [np.arange(3.0) + k for k in range(20)], np.arange(20.0)
    message = r"quantiles: expected the default \(0.1, 0.5, 0.9\), because of loss='squared', got \(0.05, 0.95\) \(or"
    with pytest.raises(vr.InputError, match=message):
        SequenceRegressor(quantiles=(0.05, 0.95)).fit(X, y)
    for alias, name in (("squared_error", "squared"), ("absolute_error", "mae")):
        one, other = (
            SequenceRegressor(loss=loss, quantiles=[0.1, 0.5, 0.9], **FIRST).fit(X, y) for loss in (alias, name)
        )
        np.testing.assert_array_equal(one.predict(X), other.predict(X))


def test_a_network_that_is_never_trained_is_not_made(monkeypatch):
    sizes, real = [], network.Network.__init__

    def init(self, options, *inputs):
        sizes.append((options.hidden_size, options.embedding_size))
        real(self, options, *inputs)

    monkeypatch.setattr(network.Network, "__init__", init)
    SequenceClassifier(hidden_size=4000, embedding_size=999, **FIRST).fit(["ab", "b"] * 10, [0, 1] * 10)
    assert sizes == [(1, 1)]
    for name in ("hidden_size", "embedding_size"):
        with pytest.raises(vr.InputError, match=f"{name}: expected at least 1, got 0"):
            SequenceClassifier(**{name: 0}).fit(["ab", "b"] * 10, [0, 1] * 10)


def test_tokens_and_dates_in_a_table_get_advice(tmp_path):
    table = pd.DataFrame({"id": [1, 1, 2], "word": ["the", "sea", "sand"]})
    with pytest.raises(vr.InputError, match=r"frame, row 0, column 'word': .* frame.groupby\(id\).agg\(list\)"):
        vr.data.read(table, id="id")
    read = vr.data.read(table.groupby("id").agg(list).reset_index(), sequence="word")
    assert [len(x) for x in read.sequences] == [2, 1]
    (tmp_path / "a.csv").write_text("id;t;x\n1;31.01.2026;1,5\n1;01.02.2026;2,5\n")
    with pytest.raises(
        vr.InputError, match=r"line 2, field 't': expected a number, or a date .*pandas.to_datetime\(frame"
    ):
        vr.data.read(tmp_path / "a.csv", id="id", time="t", delimiter=";")
    with pytest.raises(
        vr.InputError, match=r"field 'x': expected a number, got '1,5' \(for decimal commas, pass the frame"
    ):
        vr.data.read(tmp_path / "a.csv", id="id", ignore=["t"], delimiter=";")


def test_a_model_says_what_streams():
    class Tagger(vr.nn.Module):
        def __init__(self):
            self.lstm, self.head = vr.nn.LSTM(2, 3), vr.nn.Linear(3, 1)

        def forward(self, x):
            return self.head(self.lstm(x)[0])

        @property
        def broken(self):
            raise AttributeError("a message of its own")

    for model in (Tagger(), vr.nn.Sequential(vr.nn.Linear(2, 2)), vr.nn.Linear(2, 2)):
        with pytest.raises(AttributeError, match=r"no attribute 'stream' \(write model\.lstm\.stream\(\).*model\.head"):
            model.stream()
        with pytest.raises(AttributeError, match=r"'register_buffer' \(write self\.name = nn\.Buffer"):
            model.register_buffer("mean", np.zeros(2))
        assert not hasattr(model, "stream")
    model = Tagger()
    with pytest.raises(AttributeError, match=r"a message of its own"):
        _ = model.broken
    with pytest.raises(AttributeError, match="'Tagger' object has no attribute 'nothing'"):
        _ = model.nothing
    row, stream = np.ones(2, np.float32), model.lstm.stream()
    assert model.head(stream(row)).shape == (1,)
