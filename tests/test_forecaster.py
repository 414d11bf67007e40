"""Tests of forecasts: accuracy, rows without knowledge of the future, calibrated intervals, files and refused input."""

import itertools
import json
import pickle

import numpy as np
import pytest

import varlen_rnn as vr

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.utils.estimator_checks import estimator_checks_generator

from tests.each import check_each
from tests.test_wrong_types import WRONG
from varlen_rnn.cli import main
from varlen_rnn.sklearn import SequenceForecaster, forecaster, load
from varlen_rnn.sklearn.ends import Ends
from varlen_rnn.sklearn.lags import Form, Ridge, Rows, season_of

QUICK = {"max_epochs": 2, "hidden_size": 8, "random_state": 0}
# What of scikit-learn's checks does not fit: a row of a 2-D array is a series of any number of steps, and our error for
# a dict among numbers names the series.
DO_NOT_FIT = {"check_n_features_in", "check_n_features_in_after_fitting", "check_dtype_object"}
DO_NOT_FIT |= {"check_estimators_nan_inf"}  # a NaN before the first value of a series is left out


def trends(number=40, seed=0):
    """Return series of 12 to 40 values: a trend and noise, on scales of 1 to 1,000."""
    rng = np.random.default_rng(seed)
    return [
        scale * (5 + 0.2 * np.arange(length) + 0.2 * rng.standard_normal(length))
        for length, scale in zip(rng.integers(12, 41, number), 10 ** rng.uniform(0, 3, number), strict=True)
    ]


def seasons(number=20, seed=0, length=60):
    """Return noisy series with a season of seven steps; each series has its own phase."""
    rng = np.random.default_rng(seed)
    steps = np.arange(length)
    return [20 + 5 * np.sin(2 * np.pi * (steps + k) / 7) + 0.5 * rng.standard_normal(length) for k in range(number)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("estimator", "check"),
    [
        pytest.param(estimator, check, id=check.func.__name__)
        for estimator, check in estimator_checks_generator(SequenceForecaster(**QUICK))
        if check.func.__name__ not in DO_NOT_FIT
    ],
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("model", ["auto", "ridge", "recurrent"])
def test_a_trend_is_forecast_better_than_by_the_last_value(model):
    X = trends()
    forecaster = SequenceForecaster(4, model=model, hidden_size=16, random_state=0).fit([x[:-4] for x in X])
    found = forecaster.predict([x[:-4] for x in X])
    assert found.shape == (40, 4)
    wanted, naive = np.stack([x[-4:] for x in X]), np.stack([x[-5:-4] for x in X])
    assert (np.abs(found / wanted - 1)).mean() < 0.7 * np.abs(naive / wanted - 1).mean()


def test_a_season_is_found_and_repeated():
    X = seasons()
    forecaster = SequenceForecaster(7, model="ridge", random_state=0).fit([x[:-7] for x in X])
    assert forecaster.season_length_ == 7
    errors = forecaster.evaluate(X)
    assert list(errors) == ["forecaster", "naive", "seasonal naive"]
    assert errors["forecaster"]["MASE"] < errors["seasonal naive"]["MASE"] < 0.5 * errors["naive"]["MASE"]
    assert season_of(trends()) == 1
    assert season_of([np.ones(30), np.arange(2.0)]) == 1


def test_errors_are_those_of_the_definitions():
    X = [np.array([1.0, 3, 2, 4]), np.array([5.0, 5, 5, 10])]
    model = SequenceForecaster(1, random_state=0, model="ridge", season_length=1).fit(trends())
    with pytest.warns(UserWarning, match="X, series 1: .* got values that are all alike .MASE leaves 1 of 2"):
        errors = model.evaluate(X)["naive"]
    np.testing.assert_allclose(errors["sMAPE"], (200 * 2 / 6 + 200 * 5 / 15) / 2)
    np.testing.assert_allclose(errors["MASE"], 2 / 1.5)  # the second series did not change before


@pytest.mark.parametrize("factor", [2.0**-126, 2.0**100])
def test_forecasts_scale_with_series(factor):
    X = [np.sin(np.arange(30.0) + start) for start in range(6)]
    expected = SequenceForecaster(2, random_state=0, model="ridge", season_length=1).fit(X).predict(X)
    scaled = [x * factor for x in X]
    found = SequenceForecaster(2, random_state=0, model="ridge", season_length=1).fit(scaled).predict(scaled)
    np.testing.assert_allclose(found / factor, expected, rtol=1e-6)


def test_exactly_periodic_series_have_no_part_in_mase():
    period = np.array([0.1, 0.7, 0.3, 0.2]) / 3
    noisy = np.tile(period, 8) + 0.1 * np.random.default_rng(0).standard_normal(32)
    forms = [np.tile(period, 8), np.tile(period, 8) * np.resize([1, 1 + 2**-51], 32), np.full(32, 7.0), noisy]
    model = SequenceForecaster(2, random_state=0, model="ridge", season_length=4).fit([noisy])
    with pytest.warns(UserWarning, match="MASE leaves 3 of 4 series out"):
        errors = model.evaluate(forms)
    assert {name: own["MASE"] for name, own in errors.items()} == {
        name: own["MASE"] for name, own in model.evaluate([noisy]).items()
    }
    with pytest.warns(UserWarning, match="MASE leaves 2 of 2 series out"):
        assert np.isnan(model.score(forms[:2]))


@pytest.mark.parametrize("quantiles", [(0.1, 0.9), (0.25, 0.5, 0.75)])
def test_intervals_cover_what_they_say_and_do_not_cross(quantiles):
    """A thousand random walks whose steps differ in size, forecast by a model of two hundred others."""
    rng = np.random.default_rng(0)
    walks = [scale * np.cumsum(rng.standard_normal(40)) for scale in 10 ** rng.uniform(-2, 2, 1200)]
    model = SequenceForecaster(5, quantiles=quantiles, model="ridge", random_state=0).fit(walks[:200])
    found = model.predict_quantiles([x[:-5] for x in walks[200:]])
    assert (np.diff(found, axis=2) >= 0).all()
    wanted = np.stack([x[-5:] for x in walks[200:]])
    share = ((found[:, :, 0] <= wanted) & (wanted <= found[:, :, -1])).mean()
    assert abs(share - (quantiles[-1] - quantiles[0])) < 0.05


@pytest.mark.parametrize("logarithm", [False, True])
@pytest.mark.parametrize("seasonal", [False, True])
def test_rows_know_nothing_of_later_steps(logarithm, seasonal):
    rng = np.random.default_rng(0)
    x, columns = rng.random(20) + 1, rng.random((23, 2))
    form = Form(3, 4, 5, logarithm, seasonal, (0.1, 0.1))
    whole, part = Rows(form, [x], [columns]), Rows(form, [x[:11]], [columns[:14]])
    for name in ("features", "last", "base", "scale", "unit"):
        np.testing.assert_array_equal(getattr(whole, name)[:11], getattr(part, name))
    changes = whole.changes()
    np.testing.assert_allclose(whole.forecasts(changes[5:6, :, None], np.array([5]))[0, :, 0], x[6:9])
    assert np.isnan(part.changes()[-1]).all()
    assert np.isfinite(part.changes()[7]).all()


def test_a_row_by_hand():
    """Differences with the values before, with the mean, slope, and with the values of a season before."""
    x = np.array([5.0, 7, 6, 8, 9])
    rows = Rows(Form(2, 3, 2, False, False, (9.0, 0.25)), [x])
    scale = (3 + 4 * 0.25 * 6) / (2 + 4)  # at step 2: differences 2 and 1, and four typical differences, each 6 / 4
    np.testing.assert_allclose(rows.scale[2], scale)
    np.testing.assert_allclose(rows.features[2], np.array([6 - 7, 6 - 5, 6 - 6, 0.5, 5 - 6, 7 - 6]) / scale)
    np.testing.assert_allclose(rows.changes()[2], np.array([2, 3]) / scale)
    np.testing.assert_allclose(rows.features[0], np.zeros(6))


def test_the_ridge_is_the_one_of_scikit_learn():
    from sklearn.linear_model import Ridge as Theirs
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(0)
    features = np.column_stack([rng.standard_normal((50, 3)) * [1, 10, 0.1], np.ones(50)])
    changes = features[:, :2] + 0.1 * rng.standard_normal((50, 2))
    ridge = Ridge()
    ((ridge.weight, ridge.bias),) = ridge.fit(features, changes, np.array([0.1]))
    scaled = StandardScaler().fit_transform(features)
    theirs = Theirs(alpha=5.0).fit(scaled, changes).predict(scaled)
    np.testing.assert_allclose(ridge.outputs(features), np.clip(theirs, -ridge.bound, ridge.bound), atol=1e-9)


def test_ends_that_are_held_out_are_not_learned():
    lengths, horizon = np.array([30, 3, 12]), 4
    ends = Ends.of(lengths, horizon)
    steps = np.concatenate([np.arange(n) for n in lengths])
    number = np.repeat(np.arange(3), lengths)
    assert (steps[ends.before] + horizon < ends.first[number[ends.before]]).all()
    assert (steps[ends.held] + 1 >= ends.first[number[ends.held]]).all()
    assert (steps[ends.held] + horizon < lengths[number[ends.held]]).all()
    assert 1 not in number[ends.held]
    assert len(Ends.of(np.array([9, 9]), 4).held) == 0


def test_changes_after_the_ends_of_series_change_nothing(monkeypatch):
    """A network that is trained without the ends gets no value of them."""
    X = trends(30)
    seen = []
    train = SequenceForecaster._train

    def spy(self, rows, lengths):
        train(self, rows, lengths)
        seen.append([value.value.data.copy() for value in self._network.module.parameters()])

    monkeypatch.setattr(SequenceForecaster, "_train", spy)
    monkeypatch.setattr(SequenceForecaster, "_choose_form", lambda self, series, covariates, ends: FIXED(self, series))

    def FIXED(self, series):
        rows = Rows(Form(self.horizon, 1, 2, False, False, (0.1, 0.1)), series)
        self._ridge = Ridge()
        ((self._ridge.weight, self._ridge.bias),) = self._ridge.fit(rows.features[:9], rows.changes()[:9], np.ones(1))
        return rows, 1.0

    for ends in (0, 1):
        SequenceForecaster(3, model="recurrent", **QUICK).fit([np.append(x[:-3], x[-3:] + ends) for x in X])
    for one, other in zip(seen[0], seen[2], strict=True):
        np.testing.assert_array_equal(one, other)


def test_columns_that_are_known_ahead_are_used():
    rng = np.random.default_rng(0)
    columns = [rng.standard_normal((50, 2)) for _ in range(20)]
    X = [10 + 3 * own[:, 0] + 0.1 * rng.standard_normal(50) for own in columns]
    before = [x[:-3] for x in X]
    with_columns = SequenceForecaster(3, model="ridge", random_state=0, season_length=1)
    with_columns.fit(before, future_covariates=[own[:-3] for own in columns])
    without = SequenceForecaster(3, model="ridge", random_state=0, season_length=1).fit(before)
    error = with_columns.evaluate(X, columns)["forecaster"]["MASE"]
    assert error < 0.2 * without.evaluate(X)["forecaster"]["MASE"]
    for given, message in (
        (None, "future_covariates: expected the columns of the training, got None"),
        ([own[:-3] for own in columns], r"future_covariates, series 0: expected shape \(50, 2\)"),
        (columns[:3], "future_covariates: expected one array for each of 20 series"),
        ([own[:, :1] for own in columns], r"future_covariates, series 0: expected shape \(50, 2\)"),
        (3, "future_covariates: expected many sequences"),
    ):
        with pytest.raises(vr.InputError, match=message):
            with_columns.predict(before, given)
    with pytest.raises(vr.InputError, match="future_covariates: expected None, as in the training"):
        without.predict(before, columns)


@pytest.mark.parametrize("model", ["ridge", "recurrent", "auto"])
def test_files_copies_and_equal_bits(tmp_path, model):
    X = trends(30)
    forecaster = SequenceForecaster(3, model=model, **QUICK).fit(X)
    forecaster.save(tmp_path / "model", notes={"of": "me"})
    loaded, unpickled = load(tmp_path / "model"), pickle.loads(pickle.dumps(forecaster))
    assert loaded.notes_ == {"of": "me"}
    assert loaded.get_params() == forecaster.get_params()
    assert loaded.candidates_ == forecaster.candidates_
    for other in (loaded, unpickled, clone(forecaster).fit(X)):
        np.testing.assert_array_equal(other.predict_quantiles(X), forecaster.predict_quantiles(X))
    alone = forecaster.predict(X[5:6])
    np.testing.assert_array_equal(alone[0], forecaster.predict(X)[5])
    loaded.save(tmp_path / "again")
    assert load(tmp_path / "again").notes_ == {"of": "me"}


def test_forms_of_series_are_the_same():
    X = [np.round(x) for x in trends(20)]
    wanted = SequenceForecaster(2, **QUICK).fit(X).predict(X)
    for form in (
        [x.astype(int) for x in X],
        [x.astype(int).tolist() for x in X],
        [x[:, None] for x in X],
        vr.LoDTensor.from_sequences([np.float32(x) for x in X]),
        vr.data.Dataset("d", [np.float32(x[:, None]) for x in X], None, [], []),
    ):
        np.testing.assert_array_equal(SequenceForecaster(2, **QUICK).fit(form).predict(form), wanted)


@pytest.mark.filterwarnings("ignore:fit, X. expected series long enough")
@pytest.mark.parametrize(
    "X",
    [
        [[1.0]],
        [[1.0, 2.0]],
        [[3.0] * 40, [0.0] * 40],
        [[0.0, 1.0] * 20, [-1.0, -5.0, 3.0]],
        [[1e30, -1e30, 1e30, 0.0] * 10, [1e-30, 2e-30, 1e-30] * 10],
        [np.arange(1.0, 30), [5.0]],
    ],
)
def test_troubles(X, tmp_path):
    model = SequenceForecaster(3, **QUICK).fit(X)
    found = model.predict_quantiles([*X, [7.0]])
    assert np.isfinite(found).all()
    assert (np.diff(found, axis=2) >= 0).all()
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").predict(X), model.predict(X))


@pytest.mark.parametrize(
    ("X", "params", "message"),
    [
        (3, {}, "X: expected many sequences"),
        (["ab", "c"], {}, "X: expected numbers, got texts"),
        ([], {}, "X: expected at least one series"),
        ([[1.0], []], {}, "X, series 1: expected at least one value"),
        ([np.ones((3, 2))], {}, r"X, series 0: expected a number per step, got shape \(3, 2\) .*future_covariates"),
        ([[1.0, np.nan]], {}, "X, se.* 0: expected finite numbers, got NaN"),
        ([[1.0, 2.0]], {"horizon": 0}, "horizon: expected at least 1"),
        ([[1.0, 2.0]], {"horizon": "a"}, "horizon: expected an int"),
        ([[1.0, 2.0]], {"quantiles": (0.9, 0.1)}, "quantiles: expected rising numbers"),
        ([[1.0, 2.0]], {"quantiles": (0.0,)}, "quantiles: expected between 0 and 1"),
        ([[1.0, 2.0]], {"quantiles": 3}, "quantiles: expected"),
        ([[1.0, 2.0]], {"season_length": 0}, "season_length: expected at least 1"),
        ([[1.0, 2.0]], {"model": "forest"}, "model: expected one of 'auto', 'ridge' or 'recurrent'"),
        (trends(), {"cell": "none"}, "cell: expected one of"),
        (trends(), {"max_epochs": 0}, "max_epochs: expected at least 1"),
    ],
)
def test_what_is_no_series_is_named(X, params, message):
    with pytest.raises(vr.InputError, match=message):
        SequenceForecaster(**params).fit(X)


@pytest.mark.filterwarnings("ignore")
def test_arguments_of_every_wrong_type():
    """Each is refused by an error of ours, or taken."""
    names = ["X", "future_covariates", *SequenceForecaster(**QUICK).get_params()]
    check_each(itertools.product(names, WRONG), fit_with_a_wrong_argument)


def fit_with_a_wrong_argument(case):
    name, wrong = case
    params = {"model": "ridge", "random_state": 0}
    params |= {} if name in ("X", "future_covariates") else {name: WRONG[wrong]()}
    fit = {"X": [np.arange(4.0), np.ones(3)]} | ({name: WRONG[wrong]()} if name in ("X", "future_covariates") else {})
    if name == "random_state" or (name == "verbose" and wrong == "no printing"):
        return  # scikit-learn checks the one; any object is true or false
    try:
        SequenceForecaster(**params).fit(**fit)
    except vr.InputError:
        pass


def test_evaluate_needs_more_values_than_the_horizon():
    model = SequenceForecaster(3, model="ridge").fit(trends())
    with pytest.raises(vr.InputError, match="X, series 0: expected more than 3 values, the horizon, got 2 values"):
        model.evaluate([[1.0, 2.0]])


def test_what_was_chosen_is_printed(capsys):
    model = SequenceForecaster(3, model="ridge", verbose=1, random_state=0).fit(trends())
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ridge: quantile loss 0.")
    assert lines[-1] == "chosen: ridge"
    assert [candidate["chosen"] for candidate in model.candidates_] == [True]


@pytest.mark.parametrize("wide", [True, False])
def test_the_command_line(tmp_path, capsys, wide):
    X = trends(30)
    if wide:
        lines = [",".join(f"s{k}" for k in range(40)), *(",".join(map(str, x)) + "," * (40 - len(x)) for x in X)]
        options = ["--wide"]
    else:
        lines = ["id,t,x", *(f"a{k},{t},{value}" for k, x in enumerate(X) for t, value in enumerate(x))]
        options = ["--id", "id", "--time", "t"]
    path, model = tmp_path / "series.csv", str(tmp_path / "model")
    path.write_text("\n".join(lines) + "\n")
    command = ["train", str(path), *options, "--out", model, "--horizon", "3", "--quantiles", "0.2,0.8", "--quiet"]
    assert main(command) == 0
    assert "chosen: " in capsys.readouterr().out
    assert main(["evaluate", model, str(path)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("forecaster, the last 3 of 30 series: sMAPE ")
    assert printed[1].startswith("naive, the last 3 of 30 series: sMAPE ")
    assert main(["predict", model, str(path)]) == 0
    records = list(map(json.loads, capsys.readouterr().out.splitlines()))
    assert len(records) == 30
    assert list(records[0]["quantiles"]) == ["0.2", "0.8"]
    assert len(records[0]["forecast"]) == len(records[0]["quantiles"]["0.8"]) == 3
    assert main([*command, "--label", "x"]) == 2
    assert "--label: expected no label with --horizon" in capsys.readouterr().err


def test_the_command_line_keeps_the_digits_of_large_numbers(tmp_path, capsys):
    X = [2.0**30 + 1 + 3 * np.arange(20 + k) for k in range(12)]  # float32 knows multiples of 128 there
    path, model = tmp_path / "series.csv", str(tmp_path / "model")
    path.write_text("\n".join(["id,x", *(f"a{k},{value}" for k, x in enumerate(X) for value in x)]) + "\n")
    options = ["--id", "id", "--horizon", "2", "--model", "ridge", "--season-length", "1", "--quiet"]
    assert main(["train", str(path), *options, "--out", model]) == 0
    capsys.readouterr()
    assert main(["predict", model, str(path)]) == 0
    found = [json.loads(line)["forecast"] for line in capsys.readouterr().out.splitlines()]
    wanted = SequenceForecaster(2, model="ridge", season_length=1, random_state=0).fit(X).predict(X)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_allclose(np.array(found) - 2.0**30, [x[-1] - 2.0**30 + [3, 6] for x in X], atol=0.5)


@pytest.mark.parametrize("large", [2.0**40, 1e12])
def test_large_numbers_keep_their_digits(large):
    X = [large + 8 * np.arange(20 + k) for k in range(5)]
    found = SequenceForecaster(2, model="ridge").fit(X).predict(X[:1]) - large
    np.testing.assert_allclose(found, [[160, 168]], atol=1)


def test_a_fit_that_fails_leaves_the_forecaster_as_it_was(monkeypatch):
    X = trends(20)
    model = SequenceForecaster(2, model="ridge").fit(X)
    before = model.predict_quantiles(X)
    with pytest.raises(vr.ShapeError):
        model.set_params(quantiles=[0.3], season_length=3).fit(X, future_covariates=[[1.0]])
    with monkeypatch.context() as patch:
        patch.setattr(forecaster.Choice, "closed", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            model.fit(X[:15])
    np.testing.assert_array_equal(model.set_params(quantiles=(0.1, 0.5, 0.9)).predict_quantiles(X), before)


def test_parameters_of_a_later_fit_do_not_change_forecasts():
    X = trends(20)
    model = SequenceForecaster(2, model="ridge").fit(X)
    before, errors = model.predict(X), model.evaluate(X)
    model.set_params(horizon=5)
    np.testing.assert_array_equal(model.predict(X), before)
    assert model.evaluate(X) == errors
    with pytest.raises(vr.InputError, match=r"quantiles: expected only the fitted quantiles 0\.1, 0\.5, 0\.9"):
        model.set_params(quantiles=[0.2]).predict_quantiles(X)


def test_options_of_the_command_line_are_used_or_refused(tmp_path, capsys):
    path, out = tmp_path / "series.csv", str(tmp_path / "model")
    path.write_text("id,x\n" + "".join(f"a{k},{value}\n" for k, x in enumerate(trends(12)) for value in x))
    command = ["train", str(path), "--id", "id", "--horizon", "2", "--model", "recurrent", "--out", out, "--quiet"]
    assert main([*command, "--cell", "lstm", "--hidden-size", "5", "--max-epochs", "1", "--lr", "0.01"]) == 0
    model = load(out)
    assert (model.cell, model.hidden_size, model.max_epochs, model.lr) == ("lstm", 5, 1, 0.01)
    assert main([*command, "--model", "ridge"]) == 0
    assert "chosen: ridge" in capsys.readouterr().out
    for options in (["--early-stopping"], ["--num-layers", "2"], ["--batch-size", "4"], ["--picture", "a.png"]):
        assert main([*command, *options]) == 2
        assert f"train, {options[0]}: expected no such option with --horizon" in capsys.readouterr().err
    assert main(["train", str(path), "--id", "id", "--label", "x", "--season-length", "3", "--out", out]) == 2
    assert "train, --season-length: expected no such option without --horizon, got 3" in capsys.readouterr().err
