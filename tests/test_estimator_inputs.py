"""What estimators take beside plain sequences: missing numbers, padding, static features, a set to evaluate on."""

import pickle

import numpy as np
import pytest

import varlen_rnn as vr

pytest.importorskip("sklearn")

from sklearn.model_selection import GridSearchCV, cross_val_score

from varlen_rnn.sklearn import SequenceClassifier, SequenceRegressor, SequenceTagger, load
from varlen_rnn.sklearn.inputs import Inputs
from varlen_rnn.sklearn.recurrent import Recurrent
from varlen_rnn.sklearn.samples import Samples

SMALL = {"hidden_size": 8, "random_state": 0}
FEW = SMALL | {"max_epochs": 2}
NAN = float("nan")


def series(number=40, seed=0):
    """Return series of 1 to 12 rows of two features, and whether the first feature ends above its beginning."""
    rng = np.random.default_rng(seed)
    X = [rng.standard_normal((length, 2)).cumsum(axis=0).astype(np.float32) for length in rng.integers(1, 13, number)]
    return X, np.array([int(x[-1, 0] > 0) for x in X])


def with_gaps(X, columns, seed=1):
    rng, found = np.random.default_rng(seed), [x.copy() for x in X]
    for x in found:
        for column in columns:
            x[rng.random(len(x)) < 0.3, column] = np.nan
    return found


def filled_by_hand(X, means, indicated):
    """Return rows with the last number in place of each NaN, or the mean, and columns of ones where NaNs were."""
    found = []
    for x in X:
        rows, last = [], list(means)
        for row in x:
            last = [old if np.isnan(new) else new for old, new in zip(last, row, strict=True)]
            rows.append([*last, *[float(np.isnan(row[k])) for k in indicated]])
        found.append(np.array(rows, np.float32).reshape(len(x), len(means) + len(indicated)))
    return found


def test_missing_numbers_are_carried_forward_and_indicated():
    X = [*with_gaps(series()[0], [0]), np.zeros((0, 2), np.float32)]
    inputs = Inputs.learn(X)
    means = np.nanmean(np.concatenate(X), axis=0, dtype=np.float64).astype(np.float32)
    np.testing.assert_allclose(inputs.filling.means, means, rtol=1e-6)
    assert (inputs.filling.indicated, inputs.size, inputs.features) == ((0,), 3, 2)
    new = [*with_gaps(series(seed=5)[0], [0, 1]), *X]
    for found, wanted in zip(inputs.rows_of(new), filled_by_hand(new, inputs.filling.means, [0]), strict=True):
        np.testing.assert_array_equal(found, wanted)
        assert found.dtype == np.float32
    never = Inputs.learn([np.full((2, 1), np.nan)])
    assert never.rows_of([[[NAN], [4.0], [NAN]]])[0].tolist() == [[0, 1], [4, 0], [4, 1]]


@pytest.mark.parametrize("model", ["recurrent", "convolutions"])
def test_a_model_learns_from_numbers_and_from_their_absence(tmp_path, model):
    rng = np.random.default_rng(0)
    X = [rng.standard_normal((rng.integers(4, 12), 2)) for _ in range(60)]
    y = np.arange(60) % 2
    for x, label in zip(X, y, strict=True):
        x[rng.integers(len(x)), label] = np.nan
    fitted = SequenceClassifier(**SMALL, model=model, max_epochs=40).fit(X, y)
    assert fitted.score(X, y) > 0.9
    assert fitted.n_features_in_ == 2
    fitted.save(tmp_path / "model")
    for other in (load(tmp_path / "model"), pickle.loads(pickle.dumps(fitted))):
        np.testing.assert_array_equal(other.predict_proba(X), fitted.predict_proba(X))
        assert other.n_features_in_ == 2
        assert other._inputs == fitted._inputs
    with pytest.raises(vr.ShapeError, match="rows of 2 features, as in the training, got 3 features"):
        fitted.predict([np.zeros((4, 3))])


def test_predictions_fill_what_the_training_had():
    X, y = series()
    model = SequenceClassifier(**FEW, model="recurrent").fit(X, y)
    means = np.concatenate(X).mean(axis=0, dtype=np.float64)
    gone = np.array([[NAN, 1.0], [2.0, NAN]])
    whole = np.array([[means[0], 1.0], [2.0, 1.0]])
    np.testing.assert_allclose(model.predict_proba([gone]), model.predict_proba([whole]), rtol=1e-5)
    regressor = SequenceRegressor(**FEW).fit(with_gaps(X, [1]), y * 1.0)
    assert np.isfinite(regressor.predict([[[None, 2]], np.full((3, 2), np.nan)])).all()
    tagger = SequenceTagger(**FEW).fit(with_gaps(X, [0]), [x[:, 1] > 0 for x in X])
    assert [len(found) for found in tagger.predict([gone, gone[:0]])] == [2, 0]


def test_arrays_may_be_padded_with_nan():
    X, y = series()
    padded = np.full((len(X), 14, 2), np.nan)
    for number, x in enumerate(X):
        padded[number, : len(x)] = x
    padded[3] = np.nan
    X[3] = X[3][:0]
    expected = SequenceClassifier(**FEW, model="recurrent").fit(X, y)
    found = SequenceClassifier(**FEW, model="recurrent").fit(padded, y)
    assert found._inputs.filling.indicated == ()
    np.testing.assert_array_equal(found.predict_proba(padded), expected.predict_proba(X))
    flat = SequenceClassifier(**FEW, model="recurrent").fit([x[:, :1] for x in X], y)
    np.testing.assert_array_equal(flat.predict_proba(padded[:, :, 0]), flat.predict_proba([x[:, :1] for x in X]))
    rows = Inputs.learn(padded).rows_of(np.array([[[1.0, 2.0], [NAN, NAN], [3.0, NAN], [NAN, NAN]]]))
    assert rows[0].tolist() == [[1, 2], [1, 2], [3, 2]]


@pytest.mark.parametrize("X", [[np.array([[1.0], [np.inf]])], np.array([[[1.0], [-np.inf]]]), [[1e300, NAN]]])
def test_infinity_is_an_error(X):
    with pytest.raises(vr.InputError, match="X, sequence 0: expected finite numbers that fit float32, got infinity"):
        SequenceClassifier(**FEW).fit(X, [0])


def people(number=60, seed=0):
    """Return a frame of series with the ages and sizes of people, and a class that the age decides."""
    pandas = pytest.importorskip("pandas")
    X, _ = series(number, seed)
    rng = np.random.default_rng(seed)
    age, size = rng.integers(20, 80, number), rng.normal(170, 10, number)
    column = pandas.Series([None] * number, dtype=object)
    for k, x in enumerate(X):
        column[k] = x
    return pandas.DataFrame({"age": age, "series": column, "size": size}), (age > 50).astype(int)


@pytest.mark.parametrize("model", ["recurrent", "convolutions"])
def test_static_features_are_columns_beside_the_sequences(tmp_path, model):
    X, y = people()
    fitted = SequenceClassifier(**SMALL, model=model, max_epochs=30).fit(X[:40], y[:40])
    assert fitted.score(X[40:], y[40:]) > 0.85
    np.testing.assert_array_equal(fitted.predict_proba(X[["series", "size", "age"]]), fitted.predict_proba(X))
    fitted.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict_proba(X), fitted.predict_proba(X))
    alone = [fitted.predict_proba(X[k : k + 1]) for k in range(5)]
    np.testing.assert_array_equal(np.concatenate(alone), fitted.predict_proba(X[:5]))
    gone = X.copy()
    gone.loc[3, "age"] = np.nan
    mean = X.copy()
    mean["age"] = mean["age"].astype(float)
    mean.loc[3, "age"] = X["age"][:40].mean()
    np.testing.assert_allclose(fitted.predict_proba(gone[3:4]), fitted.predict_proba(mean[3:4]), rtol=1e-5)
    for wrong in (X[["series", "age"]], X.rename(columns={"age": "years"}), list(X["series"])):
        with pytest.raises(vr.ShapeError, match="X: expected the columns 'age', 'size' beside the sequences"):
            fitted.predict(wrong)
    with pytest.raises(vr.ShapeError, match="X: expected sequences alone, as in the training, got the columns 'age'"):
        SequenceClassifier(**FEW).fit(X[["series"]], y).predict(X)


def test_empty_sequences_have_static_features():
    X, y = people()
    for k in range(0, 60, 3):
        X.at[k, "series"] = np.zeros((0, 2), np.float32)
    model = SequenceClassifier(**SMALL, model="recurrent", max_epochs=30).fit(X, y)
    assert model.score(X[::3], y[::3]) > 0.85


def test_tokens_have_static_features_too():
    X, y = people()
    X["series"] = [list("ab" * (1 + k % 3)) for k in range(60)]
    for model in ("recurrent", "ngrams"):
        assert SequenceClassifier(**SMALL, model=model, max_epochs=30).fit(X, y).score(X, y) > 0.9
    tags = [[label] * len(tokens) for label, tokens in zip(y, X["series"], strict=True)]
    assert SequenceTagger(**SMALL, max_epochs=30).fit(X, tags).score(X, tags) > 0.9
    X["size"] = np.where(np.arange(60) % 2, X["size"], np.nan)
    gaps = SequenceClassifier(**SMALL, model="ngrams").fit(X, np.arange(60) % 2)
    assert gaps.score(X, np.arange(60) % 2) == 1


@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_static_features_of_other_frames(library):
    frames = pytest.importorskip(library)
    make = frames.table if library == "pyarrow" else frames.DataFrame
    rng = np.random.default_rng(0)
    series, age = [rng.standard_normal(k % 5 + 1).tolist() for k in range(30)], rng.integers(0, 2, 30).tolist()
    X = make({"series": series, "age": age})
    model = SequenceClassifier(**FEW).fit(X, age)
    assert model.score(X, age) == 1
    assert model._inputs.static.names == ("age",)


def test_scikit_learn_needs_nothing_more_for_static_features():
    X, y = people()
    model = SequenceClassifier(random_state=0, model="convolutions")
    assert cross_val_score(model, X, y, cv=3).mean() > 0.8
    search = GridSearchCV(model, {"random_state": [0, 1]}, cv=2).fit(X, y)
    assert search.predict(X).shape == (60,)


def test_static_features_that_are_infinite_are_an_error():
    X, y = people()
    X.loc[2, "size"] = np.inf
    with pytest.raises(vr.InputError, match="X, row 2, column 'size': expected finite numbers"):
        SequenceClassifier(**FEW).fit(X, y)


def weights_of(model):
    return {name: value.copy() for name, value in model.module_.state_dict().items()}


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_set_to_evaluate_on_trains_nothing(wrapped):
    X, y = series(60)
    others = series(30, seed=1)
    alone = SequenceClassifier(**FEW, model="recurrent").fit(X, y)
    model = SequenceClassifier(**FEW, model="recurrent").fit(X, y, eval_set=[others] if wrapped else others)
    for name, value in weights_of(alone).items():
        np.testing.assert_array_equal(weights_of(model)[name], value, name)
    assert [record["loss"] for record in model.history_] == [record["loss"] for record in alone.history_]
    np.testing.assert_allclose(model.history_[-1]["valid_loss"], model._loss_on(*others), rtol=1e-6)
    assert model._shares["recurrent"] != 1.0 == alone._shares["recurrent"]
    weighted = SequenceClassifier(**FEW, model="recurrent", class_weight={0: 3.0})
    weighted.fit(X, y, np.arange(60) + 1.0, eval_set=others)
    np.testing.assert_allclose(weighted.history_[-1]["valid_loss"], weighted._loss_on(*others), rtol=1e-6)


def test_early_stopping_stops_by_the_set_to_evaluate_on():
    X, y = series(60)
    others = X, 1 - y
    model = SequenceClassifier(
        hidden_size=32, random_state=0, model="recurrent", early_stopping=True, n_iter_no_change=2, max_epochs=60
    ).fit(X, y, eval_set=others)
    losses = [record["valid_loss"] for record in model.history_]
    assert len(losses) < 60
    assert int(np.argmin(losses)) == len(losses) - 3
    np.testing.assert_allclose(min(losses), model._loss_on(*others), rtol=1e-6)


def test_the_set_to_evaluate_on_chooses_and_calibrates(monkeypatch):
    X, y = series(60)
    others = series(40, seed=1)
    alone = SequenceClassifier(**FEW, model="convolutions").fit(X, y)
    model = SequenceClassifier(**FEW, model="convolutions").fit(X, y, eval_set=others)
    weights = [each._candidates["convolutions"].linear.weight for each in (model, alone)]
    np.testing.assert_array_equal(*weights)
    assert model.candidates_[0]["error"] == pytest.approx(1 - model.score(*others))
    assert model._shares != alone._shares
    monkeypatch.setattr("varlen_rnn.sklearn.choice._LEAST_SEQUENCES", 20)
    rng = np.random.default_rng(0)
    noise, calls = rng.integers(0, 2, 60), []
    train = Recurrent.fit
    monkeypatch.setattr(Recurrent, "fit", lambda *args, **more: (calls.append(1), train(*args, **more)))
    model = SequenceClassifier(**FEW, cell="gru").fit(X, noise, eval_set=(others[0], rng.integers(0, 2, 40)))
    assert len(calls) == 1
    assert len(model.candidates_) == 3
    assert (model.module_ is not None) == ("recurrent" in model._shares)
    regressor = SequenceRegressor(**FEW).fit(X, noise + 0.5, eval_set=(others[0], others[1] + 0.5))
    assert len(regressor.candidates_) == 3


def test_sets_to_evaluate_on_of_other_kinds():
    texts, y = ["ab", "b", "ba"] * 6, [0, 1, 0] * 6
    data = vr.data.from_texts(texts, ["x", "y", "x"] * 6)
    model = SequenceClassifier(**FEW, model="recurrent").fit(data, eval_set=data)
    assert "valid_loss" in model.history_[0]
    tags = [list(text) for text in texts]
    tagger = SequenceTagger(**FEW).fit(texts, tags, eval_set=(texts[:4], tags[:4]))
    np.testing.assert_allclose(tagger.history_[-1]["valid_loss"], tagger._loss_on(texts[:4], tags[:4]), rtol=1e-6)
    for wrong in (3, texts, (texts, y, y), [(texts, y), (texts, y)], (texts,)):
        with pytest.raises(vr.DTypeError, match="fit, eval_set: expected a pair of sequences and labels"):
            SequenceClassifier(**FEW).fit(texts, y, eval_set=wrong)
    with pytest.raises(vr.InputError, match="y: expected one of the 2 classes"):
        SequenceClassifier(**FEW).fit(texts, y, eval_set=(texts, [7] * 18))
    with pytest.raises(vr.DTypeError, match="X: expected texts, as in the training, got numbers"):
        SequenceClassifier(**FEW).fit(texts, y, eval_set=([[0.5]], [0]))


def test_taggers_have_calibrated_logarithms_of_probabilities(tmp_path):
    rng = np.random.default_rng(0)
    X = [rng.standard_normal((length, 2)) for length in rng.integers(0, 9, 80)]
    y = [np.where(rng.random(len(x)) < 0.3, rng.random(len(x)) < 0.5, x[:, 0] > 0) for x in X]
    parts = (X[:50], y[:50]), (X[50:], y[50:])
    plain = SequenceTagger(**SMALL, max_epochs=60).fit(*parts[0])
    model = SequenceTagger(**SMALL, max_epochs=60).fit(*parts[0], eval_set=parts[1])
    assert plain._shares["recurrent"] == 1.0 != model._shares["recurrent"]
    right = np.concatenate(parts[1][1]).astype(int)
    losses = [-np.concatenate(m.predict_log_proba(parts[1][0]))[np.arange(len(right)), right].mean()
              for m in (plain, model)]  # fmt: skip
    assert losses[1] < losses[0]
    np.testing.assert_equal(model.predict(X), plain.predict(X))
    for one, other in zip(model.predict_log_proba(X), model.predict_proba(X), strict=True):
        np.testing.assert_allclose(np.exp(one), other, rtol=1e-5)
    model.save(tmp_path / "model")
    np.testing.assert_equal(load(tmp_path / "model").predict_proba(X), model.predict_proba(X))
    assert model.partial_fit(*parts[0])._shares["recurrent"] == 1.0
    field = SequenceTagger(**FEW, crf=True).fit(*parts[0], eval_set=parts[1])
    for one, other in zip(field.predict_log_proba(X), field.predict_proba(X), strict=True):
        np.testing.assert_allclose(np.exp(one), other, rtol=1e-5)


def test_weights_count_when_a_tagger_is_calibrated():
    """A weight of 2 counts as two sequences, and a weight of 0 as none."""
    rng = np.random.default_rng(0)
    X = [rng.standard_normal((length, 2)) for length in rng.integers(1, 9, 80)]
    y = [np.where(rng.random(len(x)) < 0.3, rng.random(len(x)) < 0.5, x[:, 0] > 0).astype(int) for x in X]
    model = SequenceTagger(**SMALL, max_epochs=60).fit(X[:40], y[:40])
    weights = np.tile([0, 1, 2, 2], 20).astype("f")
    weights[:40] = 0
    sequences = model._rows(X)
    model._calibrate(Samples(sequences, y, weights), None)
    weighted = model._shares["recurrent"]
    more = np.repeat(np.arange(80), weights.astype(int))
    model._calibrate(Samples(model._rows([X[k] for k in more]), [y[k] for k in more], None), None)
    np.testing.assert_allclose(weighted, model._shares["recurrent"], rtol=0.01)  # more of them leave less doubt
    model._calibrate(Samples(sequences, y, None), None)
    assert abs(weighted / model._shares["recurrent"] - 1) > 0.05


@pytest.mark.parametrize(
    "first",
    [
        [2**31, 1], [2**63, 1], [2**64, 1], np.array([2**63, 1], np.uint64), [np.uint64(2**63), np.int64(1)],
        np.array([1, 2**40]),
    ],
)  # fmt: skip
def test_hashes_are_tokens_and_never_measurements(first):
    with pytest.raises(vr.InputError, match=r"X, sequence 1: expected ids from 0 and below 2\*\*31, got .*map\(str, x"):
        SequenceClassifier().fit([[3, 4], first], [0, 1])
    X = [list(map(str, x)) for x in [[3, 4], first]]
    assert SequenceClassifier(random_state=0).fit(X, [0, 1]).predict(X).tolist() == [0, 1]


def test_an_array_of_unsigned_hashes_is_no_array_of_measurements():
    with pytest.raises(vr.InputError, match=r"got a large integer, 9223372036854775808 .*map\(str, x"):
        SequenceClassifier().fit(np.array([[2**63, 1], [1, 2]], np.uint64), [0, 1])
    with pytest.raises(vr.InputError, match=r"X, sequence 0: expected an integer below 2\*\*63, or a float"):
        SequenceClassifier().fit([[2**63, 0.5], [1.5]], [0, 1])
    assert np.isfinite(SequenceRegressor(random_state=0).fit(np.array([[2**40], [1]]), [0, 1]).predict([[3.0]])).all()
