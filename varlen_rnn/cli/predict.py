"""The commands `predict MODEL DATA` and `evaluate MODEL DATA`: predictions of a saved model, and scores."""

import itertools
import json
import sys

import numpy as np

from varlen_rnn.cli import forecasts, reading
from varlen_rnn.cli.estimators import estimators, label_kind_of, metrics_of, print_metrics
from varlen_rnn.errors import InputError


def add_to(commands):
    """Add the commands `predict` and `evaluate` to the commands of a parser."""
    text = (
        "Print a line of JSON for each sequence: its class and probability, its number, the classes or numbers of its "
        "steps, or the forecast of the values that follow."
    )
    parser = commands.add_parser("predict", help="predict the sequences of a file", description=text)
    parser.add_argument("--out", metavar="FILE", help="a file for the lines; default standard output")
    _add_files(parser, _predict)
    text = (
        "Print the scores of a model on a file with labels. For a forecaster, print the errors of its forecasts of the "
        "last steps of each series, and those of repeating the last value and the last season."
    )
    parser = commands.add_parser("evaluate", help="measure a model on a file with labels", description=text)
    _add_files(parser, _evaluate)


def _add_files(parser, run):
    parser.add_argument("model", metavar="MODEL", help="a file that train, or the save of an estimator, wrote")
    parser.add_argument("data", metavar="DATA", help="a file with the columns of the training file; - is stdin")
    reading.add_options(parser)
    parser.set_defaults(run=run)


def _read(arguments, labelled):
    """Return the model, the data set, and the field of ids; options saved with the model are the defaults."""
    model = estimators().load(arguments.model)
    given = reading.options_of(arguments)
    options = reading.fitting((model.notes_ or {}) | given, arguments.data) | given
    label = options.pop("label", None)
    if hasattr(model, "horizon"):  # a forecaster has no labels
        return model, reading.read(arguments.data, options | forecasts.DIGITS), options.get("id")
    if labelled:
        if label is None:
            hint = reading.columns_hint(arguments)
            raise InputError("evaluate", expected="--label COLUMN", got="no such option", hint=hint)
        options["label"] = label
        # The kind of labels comes from the model, because it might be guessed differently from another file.
        options.setdefault("label_kind", label_kind_of(model))
        if hasattr(model, "classes_"):
            options["classes"] = [str(name) for name in model.classes_]
    else:
        options.pop("label_kind", None)
        if options.get("wide") and label is not None:  # a label in the file must not be read as a step
            options["ignore"] = [*options.get("ignore", ()), label]
    return model, reading.read(arguments.data, options | model.read_options()), options.get("id")


def _predict(arguments):
    reading.check_out("predict, --out", arguments.out, arguments.model, arguments.data)
    model, data, id = _read(arguments, labelled=False)
    named = ({id: name} for name in data.ids) if data.ids else itertools.repeat({})
    records = (name | record for name, record in zip(named, _records(model, data), strict=False))
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    if arguments.out is None:
        sys.stdout.writelines(lines)
        return
    with open(arguments.out, "w", encoding="utf-8") as file:
        file.writelines(lines)


def _records(model, data):
    """Yield the prediction for each sequence as a dict that JSON can hold."""
    if hasattr(model, "horizon"):
        yield from forecasts.records(model, data)
        return
    if not hasattr(model, "classes_"):
        quantiles = model.predict_quantiles(data) if hasattr(model, "predict_quantiles") else itertools.repeat(None)
        for number, found in zip(model.predict(data), quantiles, strict=False):
            record = {"prediction": np.asarray(number).tolist()}
            if found is not None:
                by_level = zip(map(str, model.quantiles), np.moveaxis(found, -1, 0).tolist(), strict=True)
                record["quantiles"] = dict(by_level)
            yield record
        return
    for probabilities in model.predict_proba(data):
        if hasattr(model, "_labels") and model._labels.several:
            by_class = zip(model.classes_.tolist(), probabilities.tolist(), strict=True)
            shown = {str(name): round(probability, 6) for name, probability in by_class}
            yield {"prediction": model.classes_[probabilities > 0.5].tolist(), "probabilities": shown}
            continue
        best = probabilities.argmax(axis=-1)
        if best.ndim:
            yield {"prediction": model.classes_[best].tolist()}
        else:
            yield {"prediction": model.classes_[best].item(), "probability": round(float(probabilities[best]), 6)}


def _evaluate(arguments):
    model, data, _ = _read(arguments, labelled=True)
    if hasattr(model, "horizon"):
        forecasts.evaluate(model, data)
        return
    print_metrics(metrics_of(model, data), f"{len(data)} sequences")
