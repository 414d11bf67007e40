"""Numbers of rows, losses other than the squared one, and quantiles whose intervals cover as much as they say."""

import json

import numpy as np
import pytest

import varlen_rnn as vr

pytest.importorskip("sklearn")

from sklearn.metrics import mean_pinball_loss, r2_score

from varlen_rnn.cli import main
from varlen_rnn.sklearn import SequenceClassifier, SequenceRegressor, SequenceTagger, load
from varlen_rnn.sklearn.labels_of_numbers import Numbers
from varlen_rnn.sklearn.quantiles import check_quantiles, pinball, quantiles_of

SMALL = {"hidden_size": 8, "random_state": 0}
UNINFORMED = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # X says little of y


def noisy(number, seed=0):
    """Return sequences and targets, the mean of each with noise that is larger if the first value is."""
    rng = np.random.default_rng(seed)
    X = [rng.random(length) for length in rng.integers(2, 9, number)]
    return X, np.array([x.mean() + (0.1 + x[0]) * rng.exponential() for x in X])


def test_the_loss_is_the_one_of_scikit_learn():
    rng = np.random.default_rng(0)
    outputs, values = rng.random((20, 1)), rng.random((20, 1))
    for level in (0.1, 0.5, 0.9):
        found = pinball(outputs, values, np.array([level])).mean()
        np.testing.assert_allclose(found, mean_pinball_loss(values, outputs, alpha=level))


def test_quantiles_of_weights_are_those_of_repeated_numbers():
    """Another number lies below the quantile with its probability: the share of the k-th of n is k / (n + 1)."""
    rng = np.random.default_rng(0)
    values = rng.random((30, 2))
    levels = np.array([0.25, 0.8])
    expected = [np.quantile(values[:, k], level, method="weibull") for k, level in enumerate(levels)]
    np.testing.assert_allclose(quantiles_of(values, levels), expected)
    np.testing.assert_allclose(quantiles_of(values, levels, np.full(30, 2.0)), expected)
    weights = (np.arange(30) < 10).astype(float)
    np.testing.assert_allclose(quantiles_of(values, levels, weights), quantiles_of(values[:10], levels))
    assert quantiles_of(values, levels, np.zeros(30)).tolist() == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "early_stopping"), [("auto", False), ("recurrent", False), ("recurrent", True)])
def test_intervals_cover_what_they_say(model, early_stopping):
    X, y = noisy(200 if model == "auto" else 500)
    params = SMALL | {
        "max_epochs": 2 if model == "auto" else 12,
        "model": model,
        "early_stopping": early_stopping,
        "validation_fraction": 0.2,
    }
    regressor = SequenceRegressor("gru", loss="quantile", **params).fit(X, y)
    others, wanted = noisy(2000, 1)
    found = regressor.predict_quantiles(others)
    assert found.shape == (2000, 3)
    assert (np.diff(found, axis=1) >= 0).all()
    assert 0.72 < ((found[:, 0] <= wanted) & (wanted <= found[:, 2])).mean() < 0.88
    np.testing.assert_array_equal(regressor.predict(others), found[:, 1])
    assert abs((wanted <= found[:, 1]).mean() - 0.5) < 0.12


def test_wide_intervals_stand_where_the_noise_is_large():
    X, y = noisy(400)
    params = SMALL | {"loss": "quantile", "model": "recurrent", "max_epochs": 10}
    regressor = SequenceRegressor("gru", **params).fit(X, y)
    low, _, high = regressor.predict_quantiles(X).T
    first = np.array([x[0] for x in X])
    assert (high - low)[first > 0.8].mean() > 1.2 * (high - low)[first < 0.2].mean()


@UNINFORMED
def test_the_mean_absolute_error_predicts_medians():
    X = [np.zeros(3)] * 80
    y = np.append(np.zeros(60), np.full(20, 10.0))
    for model in ("auto", "recurrent"):
        params = SMALL | {"max_epochs": 12, "model": model}
        assert abs(SequenceRegressor("gru", loss="mae", **params).fit(X, y).predict(X[:1])[0]) < 1
        assert abs(SequenceRegressor("gru", **params).fit(X, y).predict(X[:1])[0] - 2.5) < 1.2
    assert not hasattr(SequenceRegressor(loss="mae"), "predict_quantiles")


def test_several_targets_have_quantiles(tmp_path):
    X, y = noisy(60)
    regressor = SequenceRegressor(loss="quantile", quantiles=(0.2, 0.7), random_state=0)
    regressor.fit(X, np.column_stack([y, -y]))
    found = regressor.predict_quantiles(X)
    assert found.shape == (60, 2, 2)
    assert regressor.predict(X).shape == (60, 2)
    regressor.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict_quantiles(X), found)
    shares = [(found[:, 0, 1] >= y).mean(), (found[:, 1, 0] >= -y).mean()]
    np.testing.assert_allclose(shares, [0.7, 0.2], atol=0.2)


def sums(number=80, seed=0):
    """Return sequences, and the running sum of each."""
    rng = np.random.default_rng(seed)
    X = [rng.standard_normal((length, 2)) for length in rng.integers(0, 9, number)]
    return X, [np.cumsum(x[:, 0]) for x in X]


@pytest.mark.parametrize("model", ["auto", "recurrent"])
def test_a_number_for_each_row(tmp_path, model):
    X, y = sums()
    regressor = SequenceRegressor("gru", 16, model=model, random_state=0, max_epochs=60).fit(X, y)
    found = regressor.predict(X)
    assert [one.shape for one in found] == [one.shape for one in y]
    assert regressor.score(X, y) == r2_score(np.concatenate(y), np.concatenate(found))
    assert regressor.score(X, y) > 0.9
    weights = np.arange(80) % 2
    odd = [x for x, weight in zip(X, weights, strict=True) if weight], [x for x, w in zip(y, weights, strict=True) if w]
    np.testing.assert_allclose(regressor.score(X, y, weights), regressor.score(*odd))
    regressor.save(tmp_path / "model")
    for one, other in zip(load(tmp_path / "model").predict(X), found, strict=True):
        np.testing.assert_array_equal(one, other)
    data = vr.data.Dataset("d", [np.float32(x) for x in X], [np.float32(own) for own in y], [], [])
    of_data = SequenceRegressor("gru", 16, model=model, random_state=0, max_epochs=1).fit(data)
    assert [one.shape for one in of_data.predict(data)] == [one.shape for one in y]
    assert of_data.score(data) < 1


@UNINFORMED
def test_quantiles_of_rows_cover_what_they_say():
    rng = np.random.default_rng(0)
    X = [rng.random(length) for length in rng.integers(1, 9, 300)]
    y = [x + rng.standard_normal(len(x)) for x in X]
    regressor = SequenceRegressor("gru", loss="quantile", **SMALL, max_epochs=8).fit(X[:150], y[:150])
    found = regressor.predict_quantiles(X[150:])
    assert [one.shape for one in found] == [(len(x), 3) for x in X[150:]]
    low, _, high = np.concatenate(found).T
    wanted = np.concatenate(y[150:])
    assert 0.72 < ((low <= wanted) & (wanted <= high)).mean() < 0.88


@UNINFORMED
def test_weights_of_sequences_weigh_their_rows():
    X, y = sums(40)
    weights = (np.arange(40) < 20).astype(float)
    wrong = [own + 100 * (k >= 20) for k, own in enumerate(y)]
    regressor = SequenceRegressor("gru", **SMALL, max_epochs=30)
    weighted = regressor.fit(X, wrong, sample_weight=weights).score(X[:20], y[:20])
    assert weighted > regressor.fit(X, wrong).score(X[:20], y[:20])
    losses = regressor._labels.losses(
        vr.Variable(np.zeros((5, 1), np.float32)),
        regressor._labels.arrays([np.ones((3, 1), "f"), np.ones((2, 1), "f")]),
        None,
    )
    assert losses.shape == (5,)
    np.testing.assert_array_equal(
        regressor._labels.weights_of_losses([np.ones((3, 1)), np.ones((2, 1))], np.array([1.0, 2.0])), [1, 1, 1, 2, 2]
    )


def test_a_list_of_rows_and_an_array_of_targets_differ():
    X = [np.ones(2), np.zeros(2)]
    of_rows = SequenceRegressor("gru", **SMALL, max_epochs=1).fit(X, [[1.0, 2.0], [3.0, 4.0]]).predict(X)
    assert [one.shape for one in of_rows] == [(2,), (2,)]
    assert isinstance(of_rows, list)
    of_targets = SequenceRegressor("gru", **SMALL, max_epochs=1).fit(X, np.array([[1.0, 2.0], [3.0, 4.0]])).predict(X)
    assert of_targets.shape == (2, 2)


def test_numbers_for_a_tagger_are_refused_with_advice():
    X, y = sums(5)
    for estimator in (SequenceTagger, SequenceClassifier):
        with pytest.raises(vr.InputError, match=r"y: .*use SequenceRegressor"):
            estimator(**SMALL).fit(X, y if estimator is SequenceTagger else np.arange(5) + 0.5)


@pytest.mark.parametrize(
    ("params", "y", "message"),
    [
        (
            {"loss": "median"},
            None,
            "loss: expected one of 'squared', 'mae', 'quantile', 'squared_error' or 'absolute_error'",
        ),
        ({"loss": "quantile", "quantiles": ()}, None, "quantiles: expected rising numbers"),
        ({"loss": "quantile", "quantiles": "ab"}, None, "quantiles: expected"),
        ({"quantiles": (0.5, 0.5)}, None, "quantiles: expected rising numbers"),
        ({"model": "convolutions"}, "rows", "model: expected 'auto' or 'recurrent', because y has numbers of rows"),
        ({}, "long", "y, sequence 1: expected .* labels, one per step"),
        ({}, "texts", "y: expected labels of one kind, texts or numbers"),
        ({}, "objects", "y, sequence 0: expected"),
    ],
)
def test_what_is_no_number_is_named(params, y, message):
    X, rows = sums(5, seed=3)
    X = [np.zeros((2 + k, 2)) for k in range(5)]
    rows = [np.ones(2 + k) for k in range(5)]
    given = {
        None: np.arange(5.0),
        "rows": rows,
        "long": [rows[0], np.ones(9), *rows[2:]],
        "texts": [["a", "b"], *rows[1:]],
        "objects": [[None, object()], *rows[1:]],
    }[y]
    with pytest.raises(vr.InputError, match=message):
        SequenceRegressor(**SMALL | params).fit(X, given)


def test_labels_of_sequences_and_rows_do_not_mix():
    X, y = sums(20)
    model = SequenceRegressor("gru", model="recurrent", **SMALL, max_epochs=1).fit(X, [len(x) for x in X])
    with pytest.raises(
        vr.InputError, match="y: expected numbers of sequences, as in the first fit, got numbers of rows"
    ):
        model.partial_fit(X, y)
    rows = SequenceRegressor("gru", model="recurrent", **SMALL, max_epochs=1).fit(X, y)
    with pytest.raises(vr.InputError, match="y, sequence 0"):
        rows.partial_fit(X, np.ones(20))


def test_levels_are_checked():
    assert check_quantiles(np.array([0.1, 0.9])) == [0.1, 0.9]
    for wrong in ([0, 0.5], [1.5], ["a"], [None], [0.9, 0.1], 0.5, None):
        with pytest.raises(vr.InputError, match=r"^quantiles"):
            check_quantiles(wrong)


def rows_file(tmp_path):
    """Write rows of sensors, each with a number."""
    lines = ["id,t,u,v,y"]
    for number, (x, own) in enumerate(zip(*sums(60), strict=True)):
        lines += [f"s{number},{t},{u},{v},{target}" for t, ((u, v), target) in enumerate(zip(x, own, strict=True))]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    return str(tmp_path / "rows.csv")


def test_the_command_line_learns_a_number_for_each_row(tmp_path, capsys):
    path, model = rows_file(tmp_path), str(tmp_path / "model")
    command = ["train", path, "--id", "id", "--time", "t", "--label", "y", "--out", model, "--max-epochs", "40"]
    assert main([*command, "--hidden-size", "16", "--quantiles", "0.1,0.9", "--quiet"]) == 0
    assert "between the quantiles 0.1 and 0.9 " in capsys.readouterr().out
    assert main(["evaluate", model, path]) == 0
    printed = capsys.readouterr().out
    assert float(printed.split("R2 ")[1].split(",")[0]) > 0.6
    assert main(["predict", model, path]) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[0])
    assert list(record) == ["id", "prediction", "quantiles"]
    assert len(record["prediction"]) == len(record["quantiles"]["0.1"]) == len(record["quantiles"]["0.9"])


def two_sums(number, gaps=False):
    """Return series, and in each row the sum and minus twice the sum of the rows before; of some rows, one is NaN."""
    X, y = sums(number)
    y = [np.column_stack([own, -2 * np.asarray(own)]) for own in y]
    for k, own in enumerate(y if gaps else ()):
        own[k % 3 :: 3, k % 2] = np.nan
    return X, y


@UNINFORMED
@pytest.mark.parametrize("loss", ["squared", "quantile"])
def test_rows_may_have_several_numbers(loss, tmp_path):
    X, y = two_sums(60, gaps=True)
    X[0], y[0] = X[0][:0], y[0][:0]
    model = SequenceRegressor("gru", **SMALL, loss=loss, max_epochs=60).fit(X, y)
    new, wanted = two_sums(20)
    found = model.predict(new)
    assert [own.shape for own in found] == [own.shape for own in wanted]
    assert model.score(new, wanted) > 0.7
    columns = [np.concatenate([own[:, k] for own in part]) for part in (wanted, found) for k in (0, 1)]
    expected = np.mean([r2_score(columns[k], columns[k + 2]) for k in (0, 1)])
    assert model.score(new, wanted) == pytest.approx(expected)
    assert np.isfinite(model.score(X, y))
    model.save(tmp_path / "model")
    np.testing.assert_equal(load(tmp_path / "model").predict(new), found)
    if loss == "quantile":
        assert [own.shape for own in model.predict_quantiles(new)] == [(len(x), 2, 3) for x in new]
    with pytest.raises(vr.ShapeError, match=r"y, sequence 0: expected shape \(\d+, 2\), got shape"):
        model.score(new, [own[:, 0] for own in wanted])


def test_a_gap_among_several_numbers_of_a_row_counts_as_their_share():
    """The loss of a row is the mean of the numbers that it has, and its weight is their share."""
    labels = Numbers(np.zeros(2), np.ones(2), [], by_row=True)
    encoded = labels.encode([[[1.0, np.nan], [3.0, 5.0], [None, None]]], np.array([3]))
    losses = labels.losses(vr.Variable(np.zeros((3, 2), np.float32)), labels.arrays(encoded), None)
    np.testing.assert_allclose(np.asarray(losses), [1, 17, 0])
    assert labels.weights_of_losses(encoded, np.array([2.0], "f")).tolist() == [1, 2, 0]


def test_a_three_dimensional_y_has_several_numbers_per_row():
    X = np.random.default_rng(0).standard_normal((8, 5, 2))
    model = SequenceRegressor("gru", **SMALL, max_epochs=2).fit(X, X.cumsum(axis=1))
    assert np.shape(model.predict(X)) == (8, 5, 2)
