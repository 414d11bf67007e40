"""Forecasts of series on the command line: `train DATA --horizon N`, and `predict` and `evaluate` of its models."""

from varlen_rnn.cli import reading
from varlen_rnn.cli.estimators import estimators, print_metrics
from varlen_rnn.errors import InputError, shown

DIGITS = {"dtype": "float64"}  # for reading files: float32 lacks digits of numbers above 1.6e7
_WITHOUT = dict.fromkeys(("num_layers", "batch_size", "class_weight", "picture"))
_WITHOUT |= {"test_fraction": 0.1, "early_stopping": False}
_OPTIONS = "season_length", "max_epochs", "lr", "quantiles", "cell", "hidden_size"  # passed to the forecaster


def numbers(text):
    """Convert the text of an option to a tuple of numbers."""
    return tuple(map(float, text.split(",")))


def train(arguments):
    """Fit a forecaster to the series of a file, and save it."""
    if arguments.label is not None:
        hint = "name the column of the series with `features`"
        raise InputError("train, --label", expected="no label with --horizon", got=arguments.label, hint=hint)
    for name, default in _WITHOUT.items():
        if (value := getattr(arguments, name)) != default:
            what = f"train, --{name.replace('_', '-')}"
            raise InputError(what, expected="no such option with --horizon", got=shown(value))
    options = reading.options_of(arguments)
    data = reading.read(arguments.data, options | DIGITS)
    print(data, flush=True)
    params = {"random_state": arguments.seed, "verbose": not arguments.quiet}
    params |= {name: value for name in _OPTIONS if (value := getattr(arguments, name)) is not None}
    model = estimators().SequenceForecaster(arguments.horizon, model=arguments.model, **params)
    model.fit(data.sequences)
    for candidate in model.candidates_:
        if arguments.quiet and candidate["chosen"]:
            print(f"chosen: {candidate['candidate']}")
    model.save(arguments.out, notes=reading.notes_of(options, data))
    print(f"model: {arguments.out}")


def evaluate(model, data):
    """Print the errors of forecasts of the last steps of each series, and of naive forecasts of the same steps."""
    for name, errors in model.evaluate(data.sequences).items():
        print_metrics(errors, f"{name}, the last {model.horizon} of {len(data)} series")


def records(model, data):
    """Yield the forecast of each series as a dict that JSON can hold."""
    medians, quantiles = model.predict(data.sequences), model.predict_quantiles(data.sequences)
    for median, own in zip(medians.tolist(), quantiles, strict=True):
        by_level = zip(map(str, model.quantiles), own.T.tolist(), strict=True)
        yield {"forecast": median, "quantiles": dict(by_level)}
