"""Quantiles and numbers of rows beside all else that estimators take: static features, sets to evaluate on, ranks."""

import datetime

import numpy as np
import pytest

import varlen_rnn as vr

pytest.importorskip("sklearn")

from tests.rank_threads import run_ranks
from tests.test_estimator_inputs import people, with_gaps
from varlen_rnn.cli import main, train
from varlen_rnn.sklearn import (
    SequenceClassifier,
    SequenceForecaster,
    SequenceRegressor,
    SequenceTagger,
    choice,
    load,
)
from varlen_rnn.sklearn.choice import Choice
from varlen_rnn.sklearn.gaps import as_array, of_one_kind
from varlen_rnn.sklearn.linear import Targets

SMALL = {"hidden_size": 8, "random_state": 0, "max_epochs": 4}


def noisy(number, seed=0, plus=0.0):
    """Return series of numbers, and a number for each with noise."""
    rng = np.random.default_rng(seed)
    X = [rng.random((length, 2)).astype("f") for length in rng.integers(1, 9, number)]
    return X, plus + np.array([x.mean() for x in X]) + rng.standard_normal(number)


def of_rows(number, seed=0, plus=0.0):
    """Return the same series, and a number for each row."""
    X, y = noisy(number, seed, plus)
    return X, [target + np.random.default_rng(seed).standard_normal(len(x)) for x, target in zip(X, y, strict=True)]


def test_rows_have_static_features_and_missing_numbers(tmp_path):
    frame, _ = people()
    frame["series"] = with_gaps(list(frame["series"]), [0])
    y = [np.repeat(age / 10.0, len(x)) for x, age in zip(frame["series"], frame["age"], strict=True)]
    model = SequenceRegressor("gru", loss="quantile", **SMALL | {"max_epochs": 30}).fit(frame, y)
    found = model.predict(frame)
    assert [own.shape for own in found] == [own.shape for own in y]
    assert model.score(frame, y) > 0.5
    older = frame.assign(age=frame["age"] + 20)
    assert np.mean(np.concatenate(model.predict(older)) > np.concatenate(found)) > 0.9
    model.save(tmp_path / "model")
    for one, other in zip(
        load(tmp_path / "model").predict_quantiles(frame), model.predict_quantiles(frame), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("make", "model"), [(noisy, "auto"), (noisy, "recurrent"), (of_rows, "auto")])
def test_a_set_to_evaluate_on_calibrates_quantiles(monkeypatch, make, model):
    """It trains nothing: its numbers are larger by 5, and only the calibration says so."""
    monkeypatch.setattr(choice, "_LEAST_SEQUENCES", 20)
    (X, y), (others, wanted) = make(60), make(300, 1, plus=5.0)
    regressor = SequenceRegressor(loss="quantile", **SMALL, model=model).fit(X, y, eval_set=(others, wanted))
    found, wanted = regressor.predict_quantiles(others), wanted
    if make is of_rows:
        found, wanted = np.concatenate(found), np.concatenate(wanted)
    np.testing.assert_allclose((wanted[:, None] <= found).mean(axis=0), [0.1, 0.5, 0.9], atol=0.02)
    if model == "auto" and make is noisy:
        assert len(regressor.candidates_) == 3
    assert (regressor.module_ is None) == ("recurrent" not in regressor._shares)
    if regressor.module_ is not None:
        assert "valid_loss" in regressor.history_[0]
        outputs = regressor._candidates["recurrent"].outputs(regressor._rows(others))
        assert (outputs * regressor._labels.scale + regressor._labels.mean).mean() < 2


def test_more_sequences_calibrate_quantiles_than_choose(monkeypatch):
    monkeypatch.setattr(choice, "_LEAST_GAIN", -1e6)  # no fold shows that a network is not worth its cost
    for name, number in (
        ("_LEAST_SEQUENCES", 20),
        ("_LEAST_HELD", 10),
        ("_ENOUGH_HELD", 10),
        ("_LEAST_FOR_QUANTILES", 30),
    ):
        monkeypatch.setattr(choice, name, number)
    held = []
    for loss in ("squared", "quantile"):
        model = SequenceRegressor("rnn", loss=loss, **SMALL | {"max_epochs": 1}).fit(*noisy(60))
        held.append(model.candidates_[1]["sequences"])
    assert held == [12, 36]


def choice_of(outputs):
    """Return a choice between candidates of quantiles, given their outputs by name."""
    values = np.repeat(np.random.default_rng(0).standard_normal((40, 1)), 2, axis=1)
    choice = Choice(Targets(values, "numbers", np.ones(40), np.array([0.2, 0.7])), 0)
    for name, own in outputs.items():
        choice.add(name, own, 0.0)
    return choice


def test_the_first_candidate_keeps_the_shift_of_all_sequences():
    whole = choice_of({"convolutions": np.zeros((40, 2))})
    part = whole.among(np.arange(10))
    assert part.candidates[0]["loss"] != whole.candidates[0]["loss"]
    np.testing.assert_array_equal(part.shift, whole.shift)


def test_ranks_agree_on_the_shift_of_the_first():
    def agree(comm):
        rng = np.random.default_rng(comm.rank)
        choice = choice_of({name: rng.standard_normal((40, 2)) for name in ("convolutions", "recurrent")})
        own = choice.shift
        choice.agree(comm)
        return own, choice.shift, choice.shares

    (own, shift, shares), (other, shift_too, shares_too) = run_ranks(2, agree)
    assert (own != other).all()
    np.testing.assert_array_equal(shift, own)
    np.testing.assert_array_equal(shift_too, own)
    assert shares == shares_too


def test_quantiles_and_numbers_of_rows_on_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr(choice, "_LEAST_SEQUENCES", 20)
    quantiles = SMALL | {"loss": "quantile", "max_epochs": 2}

    def fits(comm):
        return {
            "chosen": SequenceRegressor(**quantiles).fit(*noisy(40), comm=comm),
            "alone": SequenceRegressor(**quantiles, model="recurrent").fit(*noisy(40), comm=comm),
            "rows": SequenceRegressor(**quantiles, batch_size=1).fit(*of_rows(12), np.arange(12) + 1.0, comm=comm),
            "evaluated": SequenceRegressor(**quantiles).fit(*of_rows(40), eval_set=of_rows(20, 1), comm=comm),
        }

    found = run_ranks(2, fits)
    for name, model in found[0].items():
        assert model._shift.shape == (3,)
        for rank, each in enumerate(found):
            each[name].save(tmp_path / f"{name}.{rank}")
        groups = [vr.load(tmp_path / f"{name}.{rank}") for rank in range(2)]
        np.testing.assert_equal(*groups)
    by_rank = [each["rows"].predict_quantiles(noisy(5)[0]) for each in found]
    np.testing.assert_equal(*by_rank)


def test_a_part_of_a_batch_may_be_without_sequences():
    for crf in (False, True):
        fit = lambda comm, crf=crf: SequenceTagger(**SMALL, batch_size=1, crf=crf).fit(
            ["ab", "b"], ["ab", "b"], comm=comm
        )
        assert [len(model.predict(["ab"])[0]) for model in run_ranks(2, fit)] == [2, 2]


@pytest.mark.parametrize("loss", ["squared", "quantile"])
def test_sequences_without_rows_have_no_numbers(loss):
    empty = np.zeros((0, 1), "f")
    X, y = [empty, empty, np.ones((3, 1), "f")] * 2, [np.zeros(0), np.zeros(0), np.arange(3.0)] * 2
    model = SequenceRegressor(**SMALL, batch_size=1, loss=loss).fit(X, y)
    assert [own.shape for own in model.predict([empty, empty])] == [(0,), (0,)]
    if loss == "quantile":
        assert [own.shape for own in model.predict_quantiles([empty])] == [(0, 3)]


def test_attributions_of_quantiles_are_those_of_the_median():
    X, y = noisy(40)
    model = SequenceRegressor(**SMALL, loss="quantile", quantiles=(0.1, 0.9), model="recurrent")
    model.fit(X, np.column_stack([y, -3 * y]))
    means = [np.tile(np.float32(model._inputs.filling.means), (len(x), 1)) for x in X]
    medians = [model._outputs(some, None)[1].reshape(40, 2, 3)[:, :, 1] * model._labels.scale for some in (X, means)]
    for target in (0, 1):
        found = [own.sum() for own in model.integrated_gradients(X, target, steps=40)]
        np.testing.assert_allclose(found, (medians[0] - medians[1])[:, target], atol=0.02)
    with pytest.raises(vr.OutOfRangeError, match="target: expected less than 2, the number of targets, got 2"):
        model.integrated_gradients(X, 2)


@pytest.mark.parametrize("method", ["transform", "integrated_gradients"])
def test_numbers_of_rows_have_no_embedding_and_no_attributions(method):
    model = SequenceRegressor(**SMALL | {"max_epochs": 1}).fit(*of_rows(10))
    with pytest.raises(vr.InputError, match=f"{method}: expected an estimator fitted on one label per sequence"):
        getattr(model, method)(noisy(3)[0])


def test_a_forecaster_names_what_it_does_not_take(tmp_path, monkeypatch, capsys):
    frame, _ = people(10)
    with pytest.raises(vr.InputError, match=r"X: expected one column of series, got also the columns .*age"):
        SequenceForecaster().fit(frame)
    monkeypatch.setattr(train, "connect", lambda: type("Ranks", (), {"size": 2, "rank": 0})())
    (tmp_path / "sales.csv").write_text("1,2,3,4,5,6,7\n")
    command = ["train", str(tmp_path / "sales.csv"), "--wide", "--horizon", "1", "--out", str(tmp_path / "model")]
    assert main(command) != 0
    assert "train, --horizon: expected one process, got 2 ranks" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["auto", "recurrent"])
@pytest.mark.parametrize(
    ("params", "change"),
    [
        ({}, {"y": [np.full(3, np.nan)] * 30}),
        ({"loss": "mae"}, {"sample_weight": [1.0]}),
        ({"cell": "none"}, {}),
        ({"quantiles": (0.3, 0.2)}, {}),
        ({"model": "ngrams"}, {}),
        ({}, {"eval_set": 3}),
    ],
)
def test_a_fit_that_fails_leaves_the_estimator_as_it_was(model, params, change):
    X, y = noisy(30)
    estimator = SequenceRegressor("gru", loss="quantile", model=model, **SMALL).fit(X, y)
    before, attributes = estimator.predict(X), set(vars(estimator))
    first = estimator.get_params()
    with pytest.raises((ValueError, TypeError)):
        estimator.set_params(**params).fit(**{"X": [np.ones((3, 1))] * 30, "y": 2 * y} | change)
    np.testing.assert_array_equal(estimator.set_params(**first).predict(X), before)
    assert set(vars(estimator)) == attributes


def test_a_part_of_a_fit_that_fails_keeps_the_calibration():
    X, y = noisy(30)
    model = SequenceRegressor("gru", loss="quantile", model="recurrent", **SMALL).fit(X, y)
    before = model.predict_quantiles(X)
    with pytest.raises(vr.ShapeError, match="numbers of sequences, as in the first fit"):
        model.partial_fit(X, [np.zeros(len(x)) for x in X])
    np.testing.assert_array_equal(model.predict_quantiles(X), before)


@pytest.mark.parametrize("again", ["partial_fit", "warm_start"])
def test_a_network_is_trained_after_a_fit_that_chose_none(again):
    X, y = noisy(20)
    model = SequenceRegressor("gru", **SMALL).fit(X, y)
    assert model.module_ is None
    model.set_params(model="recurrent", warm_start=again == "warm_start")
    model = model.partial_fit(X, y) if again == "partial_fit" else model.fit(X, y)
    assert model.module_ is not None
    assert model.predict(X).shape == (20,)


def test_a_frame_of_several_targets():
    X, y = noisy(20)
    pandas = pytest.importorskip("pandas")
    model = SequenceRegressor("gru", **SMALL)
    found = model.fit(X, pandas.DataFrame({"a": y, "b": -y})).predict(X)
    np.testing.assert_allclose(found, model.fit(X, np.stack([y, -y], axis=1)).predict(X), atol=1e-5)


def test_quantiles_that_the_fit_had_not_are_named():
    X, y = noisy(20)
    model = SequenceRegressor("gru", loss="quantile", **SMALL).fit(X, y).set_params(quantiles=[0.2])
    with pytest.raises(vr.InputError, match=r"quantiles: expected only the fitted quantiles 0.1, 0.5, 0.9, got"):
        model.predict_quantiles(X)
    model = SequenceRegressor("gru", **SMALL).fit(X, y).set_params(loss="quantile")
    with pytest.raises(vr.InputError, match="quantiles: expected an estimator fitted with quantiles"):
        model.predict_quantiles(X)


def test_parameters_of_a_search_over_arrays_are_saved(tmp_path):
    X, y = noisy(20)
    params = SMALL | {"hidden_size": np.int64(8), "quantiles": np.array([0.1, 0.9])}
    model = SequenceRegressor("gru", loss="quantile", **params).fit(X, y)
    model.save(tmp_path / "model")
    found = load(tmp_path / "model")
    assert list(found.quantiles) == [0.1, 0.9]
    np.testing.assert_array_equal(found.predict_quantiles(X), model.predict_quantiles(X))


@pytest.mark.parametrize("of_row", [False, True])
def test_sequences_without_a_weight_calibrate_nothing(of_row):
    X, y = (of_rows if of_row else noisy)(60)
    weights = np.repeat([1.0, 0.0], 30)
    model = SequenceRegressor("gru", loss="quantile", model="recurrent", lr=1e-9, **SMALL | {"max_epochs": 1})
    far = [target + 1000.0 for target in y[30:]]
    y = [*y[:30], *far]
    found = model.fit(X, y, weights).predict_quantiles(X)
    assert np.concatenate(found).max() < 900


@pytest.mark.parametrize(
    ("y", "shown"),
    [
        ([1, "1"], "1 and '1'"), ([True, 1], "True and 1"), ([b"a", "a"], "b'a' and 'a'"),
        (np.array([1, "1"], object), "1 and '1'"), ([0.5, None, "a"], "0.5 and 'a'"),
    ],
)  # fmt: skip
def test_labels_of_two_kinds_are_no_classes(y, shown):
    with pytest.raises(vr.DTypeError, match=f"labels of one kind, texts or numbers, got {shown}"):
        SequenceClassifier().fit([[0.5]] * len(y), y)
    with pytest.raises(vr.DTypeError, match=f"labels of one kind, texts or numbers, got {shown}"):
        SequenceTagger().fit([[0.5]] * len(y), [[label] for label in y])


@pytest.mark.parametrize(
    "y",
    [
        [datetime.date(2020, 1, 1), datetime.date(2021, 1, 1)], np.array(["2020", "2021"], "M8[ns]"),
        np.array([1, 2], "m8[s]"), [b"a", b"b"],
    ],
)  # fmt: skip
def test_classes_that_no_file_holds_are_refused_by_fit(y):
    with pytest.raises(vr.DTypeError, match=r"y: expected classes that are texts or numbers, got .* turns all labels"):
        SequenceClassifier().fit([[0.5], [1.5]], y)


def test_classes_of_equal_numbers_or_texts_are_one():
    for y, classes in (([1.0, 1], [1]), ([np.str_("a"), "a"], ["a"]), ([2**63, 1], [1, 2**63])):
        assert SequenceClassifier(random_state=0).fit([[0.5], [1.5]], y).classes_.tolist() == classes


BESIDE = "expected integers that fit one data type, int64 or uint64, got -1 together with integers of 2\\*\\*63 or more"
MIXED_SIGNS = {
    "a list": [2**63, -1],
    "a tuple": (-1, 2**63),
    "NumPy's integers": [np.uint64(2**63), np.int64(-1)],
    "objects": np.array([2**63, -1], object),
}


@pytest.mark.parametrize("kind", MIXED_SIGNS)
@pytest.mark.parametrize("estimator", [SequenceClassifier, SequenceRegressor])
def test_large_labels_beside_negative_ones_are_refused(estimator, kind):
    with pytest.raises(vr.DTypeError, match=BESIDE):
        estimator().fit([[1.0], [2.0]], MIXED_SIGNS[kind])


def test_large_labels_are_exact():
    for labels in ([2**63 + 5, 1], [np.uint64(2**63 + 5), np.int64(1)], np.array([2**63 + 5, 1], object)):
        assert of_one_kind(as_array(labels)).tolist() == [2**63 + 5, 1]
    assert as_array([]).dtype == np.float64


class Small(SequenceClassifier):
    """An estimator whose constructor has fewer parameters."""

    def __init__(self, hidden_size=4):
        super().__init__(model="recurrent", hidden_size=hidden_size, max_epochs=1, random_state=0)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_subclass_may_have_a_constructor_of_its_own():
    X = list(np.random.default_rng(0).standard_normal((6, 5, 2)).astype(np.float32))
    assert len(Small(hidden_size=3).fit(X, [0, 1] * 3).predict(X)) == 6


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_labels_of_rows_are_series_of_any_index():
    pandas = pytest.importorskip("pandas")
    X = list(np.random.default_rng(0).standard_normal((6, 5, 2)).astype(np.float32))
    y = [pandas.Series(np.arange(5.0), index=range(7, 12)) for _ in X]
    assert len(SequenceRegressor(model="recurrent", hidden_size=4, max_epochs=1).fit(X, y).predict(X)[0]) == 5


def test_no_classes_are_an_error():
    X = list(np.random.default_rng(0).standard_normal((6, 5, 2)).astype(np.float32))
    with pytest.raises(vr.InputError, match="classes: expected at least one class, got an empty list"):
        Small().partial_fit(X, [0, 1] * 3, classes=[])
