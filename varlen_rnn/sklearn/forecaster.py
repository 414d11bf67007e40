"""`SequenceForecaster`: one model forecasts quantiles of the next values of many series of unequal length.

All candidates are fitted without the ends of the series.  These ends choose between candidates and calibrate quantiles.
Then the chosen candidates are fitted again, on all values.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from varlen_rnn import random
from varlen_rnn.checkpoint import save
from varlen_rnn.errors import InputError, ShapeError, check_choice, check_int, count, listed, shown, warn
from varlen_rnn.sklearn.base import kept_after
from varlen_rnn.sklearn.columns import Columns
from varlen_rnn.sklearn.ends import Choice, Ends, ordered
from varlen_rnn.sklearn.inputs import Inputs
from varlen_rnn.sklearn.labels_of_numbers import QUANTILES, Changes
from varlen_rnn.sklearn.lags import PENALTIES, Form, Ridge, Rows, season_of, typical_differences
from varlen_rnn.sklearn.options import PRECISION, Options, listed_in_docstring, option
from varlen_rnn.sklearn.quantiles import check_quantiles, places_of, with_median
from varlen_rnn.sklearn.recurrent import Recurrent
from varlen_rnn.sklearn.restored import finite_of, numbers_of, scales_of, texts_of
from varlen_rnn.sklearn.samples import Samples
from varlen_rnn.sklearn.series import scale_of_columns, series_of
from varlen_rnn.sklearn.static import Sequences

# Of all series together, at most about _MOST_STEPS last steps are used.  A row has at most _MOST_LAGS lags.
_MOST_STEPS, _MOST_LAGS = 20_000, 100
_ROUNDING = 1e-12  # differences below this share of a series' largest number are rounding
# The fitted attributes that JSON holds.
_FITTED = "candidates_", "season_length_", "_levels", "_keep", "_columns", "_chosen"
_NO_ORDERS: tuple[Columns | None, Columns | None] = (None, None)


@listed_in_docstring
@dataclasses.dataclass(eq=False, repr=False, match_args=False)
class SequenceForecaster(BaseEstimator):
    """Forecast series of unequal length: the median of each of the next values, and other quantiles.

    One model learns from all series.  Models forecast changes from the last value of a series, or from the value one
    season before, divided by the series' own scale: the mean absolute difference of neighbouring values so far.  Series
    of positive numbers become logarithms if that forecasts better.  The candidates are

    * naive, which repeats the last value, and seasonal naive, which repeats the last season,
    * a ridge from the last values to the changes of all steps ahead,
    * a recurrent network from the same rows to the quantiles of these changes (as MQ-RNN, arXiv 1711.11053, which
      forecasts from each row of a series in the training),
    * the mean of ridge and network.

    All are fitted without the last `horizon` values of each series (and without further ends if there are few series).
    The candidate with the least quantile loss on these ends is fitted again on all values.  The same ends calibrate the
    quantiles, so that intervals cover as much as they say (conformalized quantile regression, arXiv 1905.03222); the
    median stays.

    Parameters
    ----------
    {options}

    Attributes
    ----------
    candidates_ : list of dict
        For each candidate its name ("candidate"), "loss" and "error" (the mean absolute error of the median) on
        held-out ends, both over the scale of the series, "seconds", and whether it was "chosen".
    season_length_ : int

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = [10 + rng.random() * np.cumsum(1 + rng.standard_normal(length)) for length in rng.integers(12, 40, size=30)]
    >>> model = SequenceForecaster(horizon=3, model="ridge", random_state=0).fit(X)
    >>> model.predict(X).shape, model.predict_quantiles(X[:2]).shape
    ((30, 3), (2, 3, 3))
    >>> errors = model.evaluate(X)
    >>> errors["forecaster"]["MASE"] < errors["naive"]["MASE"]
    True
    """

    horizon: int = option(1, "int", "The number of steps to forecast.")
    _: dataclasses.KW_ONLY
    quantiles: Sequence[float] = option(
        QUANTILES,
        "list of float",
        "Rising numbers between 0 and 1; the default is an interval of 80 % and the median.",
    )
    season_length: int | str = option(
        "auto",
        'int or "auto"',
        'The steps of a season, 12 for months with a yearly pattern; 1 means none.  "auto" takes the lag at which the '
        "differences of the series are alike.",
    )
    model: str = option("auto", '{"auto", "ridge", "recurrent"}', '"auto" chooses.')
    cell: str = option("gru", "str", "The cell of the network, as in `SequenceClassifier`.")
    hidden_size: int = option(32, "int", "The units of the network.")
    max_epochs: int | str = option("auto", 'int or "auto"', '"auto" trains the network for about 500 steps.')
    precision: str | None = option(*PRECISION)
    lr: float = option(4e-3, "float", "The learning rate of AdamW.")
    random_state: Any = option(  # noqa: RUF009
        None, "int, RandomState or None", "With an int, every fit gives the same result, bit for bit."
    )
    verbose: int = option(0, "int", "1 or more prints the candidates.")

    # Fitting.

    def fit(self, X: Any, y: Any = None, future_covariates: Any = None) -> Any:
        """Fit the candidates on series, and choose between them; return the forecaster.

        Parameters
        ----------
        X : series
            A list of arrays of numbers, `(steps,)` or `(steps, 1)`, of any lengths; an array `(series, steps)`; or
            another form of sequences that `SequenceClassifier.fit` takes.  The last value of a series is the newest;
            NaNs before its first value are left out.
        y
            Not used: the values of a series are its labels.
        future_covariates : list of arrays, optional
            Numbers that are known ahead, such as the day of the week, `(steps, columns)` for each series.

        Notes
        -----
        An interrupt (Ctrl-C) during the training of the network is raised, but with `model="auto"` the forecaster is
        fitted: it predicts by the best other candidate.

        Warns
        -----
        UserWarning
            If the series are too short for the horizon, so that candidates cannot be compared.
        """
        with kept_after(self):
            series, known, self._orders = series_of(X, future_covariates, _NO_ORDERS)
            interrupt = self._learn(series, known)
        if interrupt is not None:
            raise interrupt
        return self

    def _learn(self, series: list[np.ndarray], known: list[np.ndarray] | None) -> KeyboardInterrupt | None:
        """Check the parameters, and fit; return an interrupt (Ctrl-C) that only stopped the network, otherwise None."""
        _check_steps(self.horizon, "horizon")
        check_choice(self.model, "model", "auto", "ridge", "recurrent")
        self._levels = with_median(check_quantiles(self.quantiles))
        auto = isinstance(self.season_length, str) and self.season_length == "auto"
        season = season_of(series) if auto else _check_steps(self.season_length, "season_length")
        self.season_length_ = season
        self._keep = max(_MOST_STEPS // len(series), 4 * season, 10 * self.horizon)
        self._columns = None if known is None else scale_of_columns(known)
        covariates = self._covariates(known, series, 0)
        series = [x[-self._keep :] for x in series]
        with random.seeded(int(check_random_state(self.random_state).randint(2**31 - 1))):
            return self._fit(series, covariates, Ends.of(np.array(list(map(len, series))), self.horizon))

    def _fit(
        self, series: list[np.ndarray], covariates: list[np.ndarray] | None, ends: Ends
    ) -> KeyboardInterrupt | None:
        """Fit the candidates without the held-out ends, choose, and fit the chosen candidates on all values."""
        began = time.perf_counter()
        rows, penalty = self._choose_form(series, covariates, ends)
        choice = Choice(rows, ends, self._levels, self.verbose)
        names = ["naive"] + ["seasonal naive"] * (self.season_length_ > 1) if self.model == "auto" else []
        names += [] if self.model == "recurrent" else ["ridge"]
        for name in names if len(ends.held) else ():
            choice.add(name, self._outputs(name, rows), time.perf_counter() - began if name == "ridge" else 0.0)
        try:
            if len(ends.held) and self.model != "ridge":
                began = time.perf_counter()
                self._train(rows, ends.first)
                choice.add("recurrent", self._outputs("recurrent", rows), time.perf_counter() - began)
                choice.add_mean()
            self._close(choice, rows, ends, penalty)
        except KeyboardInterrupt as interrupt:
            choice.candidates = [found for found in choice.candidates if "recurrent" not in found["candidate"]]
            if self.model == "recurrent" or not choice.candidates:
                raise
            self._close(choice, rows, ends, penalty)
            return interrupt
        return None

    def _close(self, choice: Choice, rows: Rows, ends: Ends, penalty: float) -> None:
        """Choose, and fit the chosen candidates.  Warn if the series are too short for a choice."""
        default = ("ridge" if self.model == "auto" else self.model) if len(ends.complete) else "naive"
        self._chosen, self._shift, self.candidates_ = choice.closed(default)
        if not len(ends.held):
            expected = f"series long enough to hold out {count(self.horizon, 'value')} at the end"
            got = f"series of at most {count(int(ends.lengths.max()), 'value')}"
            hint = f"the model is {default!r} without a comparison; pass a smaller `horizon`, or longer series"
            warn("fit, X", expected=expected, got=got, hint=hint)
        self._fit_chosen(rows, ends, penalty)

    def _fit_chosen(self, rows: Rows, ends: Ends, penalty: float) -> None:
        """Fit the chosen candidates on all values; a network gets the features scaled by the ridge."""
        self._form = rows.form
        self._network: Any = None
        if not len(ends.complete):
            return
        found = self._ridge.fit(rows.features[ends.complete], rows.changes()[ends.complete], np.array([penalty]))
        self._ridge.weight, self._ridge.bias = found[0]
        if "recurrent" in self._chosen:
            self._train(rows, ends.lengths)

    def _choose_form(
        self, series: list[np.ndarray], covariates: list[np.ndarray] | None, ends: Ends
    ) -> tuple[Rows, float]:
        """Return the rows and the penalty with which a ridge has the least error at the ends; keep this ridge."""
        best: Any = None
        for form in self._forms(series):
            rows = Rows(form, series, covariates)
            if not len(ends.held):
                self._ridge = Ridge()
                return rows, 0.1
            ridge = Ridge()
            solutions = ridge.fit(rows.features[ends.before], rows.changes()[ends.before])
            for penalty, (ridge.weight, ridge.bias) in zip(PENALTIES, solutions, strict=True):
                found = rows.forecasts(ridge.outputs(rows.features[ends.held])[:, :, None], ends.held)[:, :, 0]
                error = float((np.abs(found - rows.future[ends.held]).mean(axis=1) / rows.unit[ends.held]).mean())
                if best is None or error < best[0]:
                    best = error, rows, penalty, ridge, ridge.weight, ridge.bias
        _, rows, penalty, self._ridge, self._ridge.weight, self._ridge.bias = best
        return rows, float(penalty)

    def _forms(self, series: list[np.ndarray]) -> Iterator[Form]:
        season, half = self.season_length_, int(np.median([len(x) for x in series])) // 2
        wanted = (2, 4, 8) if season == 1 else (2, season, 2 * season)
        lags = sorted({max(1, min(few, half, _MOST_LAGS)) for few in wanted})
        typical = typical_differences(series)
        for logarithm in (True, False) if any(x.min() > 0 for x in series) else (False,):
            for seasonal in (False, True) if season > 1 else (False,):
                for few in lags:
                    yield Form(self.horizon, season, few, logarithm, seasonal, typical)

    # The network.

    def _train(self, rows: Rows, lengths: np.ndarray) -> None:
        """Train the network on the first `lengths[k]` rows of each series k, and on changes within these rows."""
        seed = check_random_state(int(random.generator().integers(2**31))).randint(2**31 - 1)
        X, y = self._features(rows), rows.by_series(rows.changes())
        inside = [np.arange(k)[:, None] + np.arange(1, self.horizon + 1) < k for k in lengths]
        y = [np.where(there, own[:k], np.nan) for own, there, k in zip(y, inside, lengths, strict=True)]
        sequences = Sequences(x[:k] for x, k in zip(X, lengths, strict=True))
        self._network = self._new_network(rows.features.shape[1])
        with random.seeded(int(seed)):
            self._network.begin(sequences)
            self._network.fit(Samples(sequences, [changes.astype(np.float32) for changes in y], None), alone=False)

    def _new_network(self, num_features: int) -> Recurrent:
        own = {name: getattr(self, name) for name in ("cell", "hidden_size", "max_epochs", "precision", "lr")}
        options = SimpleNamespace(**vars(Options(**own, bidirectional=False)))
        return Recurrent(options, Inputs("numbers", num_features), Changes(self.horizon, self._levels))

    def _features(self, rows: Rows) -> list[np.ndarray]:
        return rows.by_series(self._ridge.scaled(rows.features).astype(np.float32))

    def _outputs(self, name: str, rows: Rows) -> np.ndarray:
        """Return the changes that a candidate forecasts after each row, `(rows, horizon, quantiles or 1)`."""
        if name == "recurrent":
            outputs = self._network.outputs(self._features(rows))
            return outputs.astype(np.float64).reshape(len(rows.last), rows.form.horizon, -1)
        if name == "ridge":
            return self._ridge.outputs(rows.features)[:, :, None]
        return rows.changes_to(rows.last[:, None] if name == "naive" else rows.seasonal)[:, :, None]

    # Forecasts.

    def predict(self, X: Any, future_covariates: Any = None) -> np.ndarray:
        """Return the median of each of the values after the end of series, float64, `(series, horizon)`.

        Parameters
        ----------
        X : series
            As in `fit`; also other series than in the training.
        future_covariates : list of arrays, `(steps + horizon, columns)`
            If the training had them; the last `horizon` rows belong to the steps to forecast.
        """
        return self._forecasts(X, future_covariates)[:, :, self._levels.index(0.5)]

    def predict_quantiles(self, X: Any, future_covariates: Any = None) -> np.ndarray:
        """Return the quantiles of each of the values after the end of series, `(series, horizon, quantiles)`.

        A later quantile is never less than one before it.

        Parameters
        ----------
        X, future_covariates
            As in `predict`.
        """
        return self._forecasts(X, future_covariates)[:, :, places_of(self.quantiles, self._levels)]

    def _forecasts(self, X: Any, future_covariates: Any) -> np.ndarray:
        check_is_fitted(self, "candidates_")
        series, known, _ = series_of(X, future_covariates, self._orders)
        covariates = self._covariates(known, series, self._form.horizon)
        rows = Rows(self._form, [x[-self._keep :] for x in series], covariates)
        last = np.cumsum(rows.lengths) - 1
        found = [self._outputs(name, rows) for name in self._chosen]
        changes = sum(found[1:], found[0]) / len(found)
        return ordered(rows, changes[last] + self._shift, last, self._levels)

    def _covariates(
        self, known: list[np.ndarray] | None, series: list[np.ndarray], ahead: int
    ) -> list[np.ndarray] | None:
        """Return each series' standardised covariates, for its kept values and `ahead` further steps, or raise."""
        if (known is None) != (self._columns is None):
            expected = "None, as in the training" if self._columns is None else "the columns of the training"
            raise InputError("future_covariates", expected=expected, got=shown(known))
        if known is None or self._columns is None:
            return None
        kept, (mean, scale) = [], np.array(self._columns)
        for number, (rows, x) in enumerate(zip(known, series, strict=True)):
            if rows.shape[1] != len(mean) or len(rows) < len(x) + ahead:
                ahead_too = " and per forecast step" * bool(ahead)
                expected = f"shape ({len(x) + ahead}, {len(mean)}), a row per step{ahead_too}"
                raise ShapeError(f"future_covariates, series {number}", expected=expected, got=f"shape {rows.shape}")
            rows = rows[max(0, len(x) - self._keep) : len(x) + ahead]
            kept.append((rows - mean) / scale)
        return kept

    def evaluate(self, X: Any, future_covariates: Any = None) -> dict[str, dict[str, float]]:
        """Forecast the last `horizon` values of series from those before; return the errors of forecasts by name.

        The names are "forecaster", "naive", which repeats the last value, and "seasonal naive", which repeats the last
        season if there is one.  "sMAPE" is the mean of `200 |y - f| / (|y| + |f|)` in percent (Makridakis, 1993),
        "MASE" the mean absolute error over the mean absolute difference of the values before (of a season apart, if
        there is one; Hyndman and Koehler, 2006).  Series whose values, or seasons, are all alike have no such
        difference, and are left out of MASE, which is NaN if no series is left.  "coverage" is the share of values
        between the first and the last of several quantiles.

        Parameters
        ----------
        X : series
            Series that have no more values than the horizon are left out, with a warning.
        future_covariates : list of arrays, optional
            As in `fit`.

        Warns
        -----
        UserWarning
            If series are too short, or are left out of MASE; the warning says how many.
        """
        check_is_fitted(self, "candidates_")
        (series, known, _), horizon = series_of(X, future_covariates, self._orders), self._form.horizon
        chosen = [number for number, x in enumerate(series) if len(x) > horizon]
        if len(chosen) < len(series):
            short = next(number for number, x in enumerate(series) if len(x) <= horizon)
            where, got = f"X, series {short}", count(len(series[short]), "value")
            expected = f"more than {count(horizon, 'value')}, the horizon"
            if not chosen:
                raise ShapeError(where, expected=expected, got=got)
            left_out = f"{len(series) - len(chosen)} of {len(series)} series are left out, because they are too short"
            warn(where, expected=expected, got=got, hint=left_out)
        series = [series[number] for number in chosen]
        known = None if known is None else [known[number] for number in chosen]
        before, after = [x[:-horizon] for x in series], np.stack([x[-horizon:] for x in series])
        found = self.predict_quantiles(before, known)
        naive = np.stack([np.repeat(x[-1:], horizon) for x in before])
        units = self._units(before)
        errors = {
            "forecaster": _errors(self.predict(before, known), units, after),
            "naive": _errors(naive, units, after),
        }
        if (season := self.season_length_) > 1:
            places = np.arange(horizon) % season - season
            repeated = [x[places] if len(x) >= season else np.repeat(x[-1:], horizon) for x in before]
            errors["seasonal naive"] = _errors(np.stack(repeated), units, after)
        if found.shape[2] > 1:
            inside = (found[:, :, 0] <= after) & (after <= found[:, :, -1])
            errors["forecaster"]["coverage"] = float(inside.mean())
        return errors

    def score(self, X: Any, y: Any = None, future_covariates: Any = None) -> float:
        """Return minus the MASE of `evaluate`, so that searches and cross-validation choose the least error.

        Parameters
        ----------
        X, future_covariates
            As in `evaluate`.
        y
            Not used.
        """
        return -self.evaluate(X, future_covariates)["forecaster"]["MASE"]

    def _units(self, series: list[np.ndarray]) -> np.ndarray:
        """Return each series' mean absolute difference of values one season apart; warn if a difference is 0.

        A difference counts as 0 if it is not larger than the rounding error of the numbers.
        """
        apart = [self.season_length_ if len(x) > self.season_length_ else 1 for x in series]
        units = [np.abs(x[k:] - x[:-k]).mean() if len(x) > 1 else 0.0 for x, k in zip(series, apart, strict=True)]
        units = [0.0 if unit <= _ROUNDING * np.abs(x).max() else unit for unit, x in zip(units, series, strict=True)]
        if (gone := units.count(0.0)) > 0:
            expected = "values, or seasons, that differ before the last `horizon` values"
            hint = f"MASE leaves {gone} of {len(series)} series out, because it divides by their differences"
            warn(f"X, series {units.index(0.0)}", expected=expected, got="values that are all alike", hint=hint)
        return np.array(units)

    # Files.

    def save(self, path: Any, notes: Any = None) -> None:
        """Write the fitted forecaster to a file, without pickle; `varlen_rnn.sklearn.load` reads it.

        Parameters
        ----------
        path : path
        notes : optional
            Any value that JSON can hold; the forecaster that `load` returns has it as `notes_`.
        """
        check_is_fitted(self, "candidates_")
        params = self.get_params() | {"quantiles": list(map(float, self.quantiles))}
        fitted = {name: getattr(self, name) for name in _FITTED}
        fitted["_orders"] = [None if order is None else dataclasses.asdict(order) for order in self._orders]
        groups: dict[str, Any] = {"shift": {"shift": self._shift}, "ridge": self._ridge.state()}
        if self._network is not None:
            groups["module"] = self._network.state()
        notes = getattr(self, "notes_", None) if notes is None else notes
        named = {"estimator": type(self).__name__, "form": dataclasses.asdict(self._form), "notes": notes}
        save(path, params=params, fitted=fitted, **named, **groups)

    def _restore(self, saved: dict[str, Any]) -> None:
        fitted, self._form = saved["fitted"], Form.restored(saved["form"])
        self.season_length_ = _check_steps(fitted["season_length_"], "season_length_")
        sizes = {"horizon": (self._form.horizon, self.horizon), "season": (self._form.season, self.season_length_)}
        for name, (found, wanted) in sizes.items():
            if found != wanted:
                raise InputError(f"form, {name}", expected=wanted, got=found)
        self._levels, self._keep = check_quantiles(fitted["_levels"]), check_int(fitted["_keep"], "_keep", 1)
        if self._levels != with_median(check_quantiles(self.quantiles)):
            raise InputError("_levels", expected="the parameter quantiles, and 0.5", got=shown(self._levels))
        orders = fitted["_orders"]
        self._orders, columns = (Columns.restored(orders[0]), Columns.restored(orders[1])), fitted["_columns"]
        if columns is not None:
            mean = numbers_of(columns[0], "_columns, mean")
            columns = [mean, scales_of(columns[1], "_columns, scale", len(mean))]
        self._columns = columns
        num_features = self._form.num_features(0 if self._columns is None else len(self._columns[0]))
        self._shift = finite_of(saved["shift"], "shift", (self._form.horizon, len(self._levels)), np.float64)
        self._ridge, self._network = Ridge(), None
        self._ridge.restore(saved.get("ridge", {}), num_features, self._form.horizon)
        if "module" in saved and self._ridge.state():
            self._network = self._new_network(num_features)
            self._network.restore(saved["module"])
        self._restore_choice(fitted)
        self.notes_ = saved["notes"]

    def _restore_choice(self, fitted: dict[str, Any]) -> None:
        """Restore which candidates predict, or raise unless the file has these candidates."""
        known = ["naive", "seasonal naive"]
        known += ["ridge"] * bool(self._ridge.state()) + ["recurrent"] * (self._network is not None)
        self._chosen, self.candidates_ = texts_of(fitted["_chosen"], "_chosen"), fitted["candidates_"]
        if not self._chosen or not set(self._chosen) <= set(known):
            raise InputError("_chosen", expected=f"some of {listed(known)}", got=shown(self._chosen))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = tags.input_tags.three_d_array = True
        tags.target_tags.required = False
        tags.non_deterministic = self.random_state is None
        return tags


def _errors(found: np.ndarray, units: np.ndarray, after: np.ndarray) -> dict[str, float]:
    """Return sMAPE, and MASE over the series whose unit is above 0."""
    error, size = np.abs(found - after), np.abs(found) + np.abs(after)
    percent = 200 * np.divide(error, size, out=np.zeros_like(error), where=size > 0)
    scaled = error.mean(axis=1)[units > 0] / units[units > 0]
    return {"sMAPE": float(percent.mean()), "MASE": float(scaled.mean()) if len(scaled) else math.nan}


def _check_steps(value: Any, name: str) -> int:
    number = check_int(value, name, 1)
    if number > _MOST_STEPS:
        raise ShapeError(name, expected=f"at most {_MOST_STEPS}", got=shown(number))
    return number
