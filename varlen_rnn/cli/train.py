"""The command `train DATA --label COLUMN --out MODEL`: train a model on a file, or resume a training."""

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path

from varlen_rnn.cli import forecasts, reading
from varlen_rnn.cli.estimators import KIND_OF, baseline_of, estimators, metrics_of, print_metrics
from varlen_rnn.data.formats import SUFFIXES
from varlen_rnn.distributed import connect
from varlen_rnn.errors import CheckpointError, InputError, shown
from varlen_rnn.nn.matrix.names import BY_NAME
from varlen_rnn.training import Callback, plot_history
from varlen_rnn.training.files import checkpoint_path, forget
from varlen_rnn.training.picture import figure_for


def number(text):
    """Convert the text of an option to an int, or return "auto"."""
    return text if text == "auto" else int(text)


# Options of estimators: their types and help.  An option that is not given has the estimator's default, which its help
# names.
OPTIONS = {
    "cell": (
        str,
        f"lstm, gru, rnn, {', '.join(BY_NAME)}, or the name of another cell; default lstm, with --horizon gru",
    ),
    "hidden_size": (int, "units of a layer in a direction; default 64, with --horizon 32"),
    "num_layers": (int, "recurrent layers; default 1"),
    "max_epochs": (number, "passes over the sequences; default auto"),
    "batch_size": (number, "sequences of a step; default auto"),
    "lr": (float, "the highest learning rate; default 0.004, of a tagger 0.01"),
    "season_length": (number, "steps of a season of series, with --horizon; default auto"),
    "quantiles": (forecasts.numbers, "a regressor predicts them, as 0.1,0.5,0.9"),
}


def add_to(commands):
    """Add the command `train` to the commands of a parser."""
    text = (
        "Train a classifier, a regressor or a tagger on a file of sequences, without padding, and save it. A tenth of "
        "the sequences is held back to measure it. With --model recurrent, and for a tagger, the same command goes on "
        "with a training that was stopped. Under torchrun and mpiexec, all processes train the network together; only "
        "the first prints, and writes files. With --horizon, it is a forecaster of series, in one process."
    )
    parser = commands.add_parser("train", help="train a model on a file of sequences", description=text)
    parser.add_argument("data", metavar="DATA", help=f"a file in {', '.join(SUFFIXES)}; - is stdin")
    parser.add_argument("--out", metavar="MODEL", required=True, help="the file of the model")
    reading.add_options(parser)
    add = parser.add_argument_group("the model, and its training").add_argument
    add(
        "--model",
        choices=["auto", "recurrent", "convolutions", "ngrams", "ridge"],
        default="auto",
        help="a network; random convolutions of numbers, or n-grams of texts, with a ridge; with --horizon a network "
        "or a ridge; default auto, what predicts best the sequences that were left out; a tagger is always a network",
    )
    for name, (kind, text) in OPTIONS.items():
        add(f"--{name.replace('_', '-')}", type=kind, metavar="N" if kind in (int, number) else name.upper(), help=text)
    add("--horizon", type=int, metavar="N", help="forecast so many steps of series: of rows with --wide, or of ids")
    add("--class-weight", choices=["balanced"], help="give rare classes a larger weight")
    add("--early-stopping", action="store_true", help="hold another tenth back, and keep the best epoch's weights")
    add("--seed", type=int, default=0, help="the seed of all random numbers; default 0")
    add("--test-fraction", type=float, default=0.1, metavar="SHARE", help="sequences that are held back; default 0.1")
    add("--picture", metavar="FILE", help="a picture of the loss, also on the held-back sequences, as curve.png")
    add("--restart", action="store_true", help="begin anew, and forget a training that was stopped")
    add("--quiet", action="store_true", help="show no progress")
    parser.set_defaults(run=_run)


def _run(arguments):
    if arguments.label is None and arguments.horizon is None:
        raise InputError("train", expected="--label COLUMN", got="no such option", hint=reading.columns_hint(arguments))
    if arguments.season_length is not None and arguments.horizon is None:
        expected = "no such option without --horizon"
        raise InputError("train, --season-length", expected=expected, got=arguments.season_length)
    if arguments.picture is not None and not Path(arguments.picture).suffix:
        arguments.picture += ".png"  # as matplotlib would later; the name is checked below
    for option, path in (("train, --out", arguments.out), ("train, --picture", arguments.picture)):
        reading.check_out(option, path, arguments.data)
    if arguments.picture is not None:
        figure_for(arguments.picture, "train, --picture")
    if not 0 <= arguments.seed < 2**32:  # the range of scikit-learn's seeds
        raise InputError("train, --seed", expected=f"0 to {2**32 - 1}", got=arguments.seed)
    comm = connect()
    if comm.size > 1 and arguments.data == "-":
        raise InputError("train, DATA", expected="a file, because all ranks read it", got="standard input")
    if comm.size > 1 and arguments.horizon is not None:
        raise InputError("train, --horizon", expected="one process", got=f"{comm.size} ranks")
    with contextlib.ExitStack() as stack:
        if comm.rank:
            file = stack.enter_context(open(os.devnull, "w"))
            stack.enter_context(contextlib.redirect_stdout(file))
            stack.enter_context(contextlib.redirect_stderr(file))
        if arguments.horizon is None:
            _train(arguments, comm)
        else:
            forecasts.train(arguments)
    comm.close()


def _train(arguments, comm):
    options = reading.options_of(arguments)
    if arguments.wide and arguments.features is not None:  # because other files may have other steps
        expected, hint = "no such option with --wide", "name the columns that are no steps with --ignore"
        raise InputError("train, --features", expected=expected, got=shown(arguments.features), hint=hint)
    data = reading.read(arguments.data, options)
    print(data, flush=True)
    if arguments.id is not None and 1 < len(data) == data.lengths.sum():
        print("each id has one row, so sequences have one step: is --id right?", file=sys.stderr)
    if data.label_kind not in KIND_OF:
        raise InputError("train, --label", expected="a column of classes or numbers", got=data.label_kind)
    if data.label_kind in ("classes", "classes of rows") and len(data.classes) < 2:
        raise InputError("train, --label", expected="at least two classes", got=shown(data.classes))
    if all(name.lstrip("-").isdigit() for name in data.classes) and 10 < len(data.classes) > len(data) / 10:
        print(f"{len(data.classes)} classes of whole numbers; --label-kind numbers trains a regressor")
    train, test = data.split(arguments.test_fraction, seed=arguments.seed, stratify=data.label_kind == "classes")
    folder = Path(arguments.out + ".run")
    if arguments.restart and comm.rank == 0:
        forget(folder)
    comm.barrier()
    stop = _Stop(folder)
    model = _estimator(arguments, data.label_kind, folder)
    resumes = model.checkpoints is not None
    # On several ranks, `_Stop` is not used, because an interrupt comes after different steps on different ranks.
    model.set_params(callbacks=[_HeldBack(model, test), *([stop] if resumes and comm.size == 1 else [])])
    try:
        model.fit(train, comm=comm)
    except CheckpointError as error:
        expected, hint = "a stopped training with these options and data", "--restart begins anew"
        raise InputError(str(folder), expected=expected, got=error, hint=hint) from error
    except KeyboardInterrupt:
        if resumes and comm.size > 1:
            print("\nstopped: the same command goes on from the last checkpoint")
        elif resumes:
            print(f"\nstopped after step {stop.step}: the same command goes on from there")
        elif hasattr(model, "candidates_") and comm.rank == 0:
            _save(arguments, model, data, options)
            print("stopped: it is the best model so far")
        raise
    from varlen_rnn.sklearn import ranks

    finish = lambda: _finish(arguments, model, (data, train, test), options)
    ranks.from_first(ranks.several(comm), lambda: ({}, finish()))
    if comm.rank == 0:
        forget(folder)


def _finish(arguments, model, sets, options):
    data, train, test = sets
    found = metrics_of(model, test)
    print_metrics(found, f"{len(test)} sequences that were held back")
    if len(test):
        of_constant, constant = baseline_of(model, train, test)
        print_metrics(of_constant, constant)
        name = next(iter(of_constant))  # accuracy or R2
        if found[name] < of_constant[name]:
            print(f"worse than {constant}: more data, or other options, may help", file=sys.stderr)
    _save(arguments, model, data, options)
    if arguments.picture is not None and model.history_:
        plot_history(model.history_, arguments.picture, Path(arguments.out).stem)
        print(f"picture: {arguments.picture}")
    elif arguments.picture is not None:
        print("picture: none, because no network was trained (--model recurrent trains one)")


def _save(arguments, model, data, options):
    """Write the model, with the options by which other files are read."""
    model.set_params(callbacks=(), checkpoints=None)
    # The kind of labels is saved, because it might be guessed differently from another file.
    model.save(arguments.out, notes=reading.notes_of(options | {"label_kind": data.label_kind}, data))
    print(f"model: {arguments.out}")


def _estimator(arguments, label_kind, folder):
    params = {name: value for name in OPTIONS if (value := getattr(arguments, name)) is not None}
    params |= {"early_stopping": arguments.early_stopping}
    params |= {"random_state": arguments.seed, "verbose": not arguments.quiet}
    kind = KIND_OF[label_kind]
    if kind != "SequenceTagger":
        params["model"] = arguments.model
    elif arguments.model not in ("auto", "recurrent"):
        raise InputError("train, --model", expected="recurrent, because rows have classes", got=arguments.model)
    if arguments.quantiles is not None:
        if kind != "SequenceRegressor":
            raise InputError("train, --quantiles", expected="labels that are numbers", got=label_kind)
        params["loss"] = "quantile"
    params["checkpoints"] = folder if params.get("model", "recurrent") == "recurrent" else None
    if arguments.class_weight is not None:
        if kind == "SequenceRegressor":
            raise InputError("train, --class-weight", expected="labels that are classes", got=label_kind)
        params["class_weight"] = arguments.class_weight
    return getattr(estimators(), kind)(**params)


class _HeldBack(Callback):
    """A callback that adds the loss on the sequences that were held back to each record of the history."""

    def __init__(self, model, test):
        self.model, self.test = model, test

    def on_fit_begin(self, trainer):
        from varlen_rnn.sklearn.labels import labels_of_data

        try:
            self.model._labels.encode(labels_of_data(self.test, None), self.test.lengths)
        except InputError:  # a class occurs in the held-back sequences only, so they have no loss
            self.test = self.test.take([])

    def on_epoch_end(self, trainer):
        if len(self.test):
            trainer.history[-1]["test_loss"] = self.model._loss_on(self.test, None)


class _Stop(Callback):
    """A callback that makes Ctrl-C save the training and end it, between two steps."""

    runs_last = True

    def __init__(self, folder):
        self.folder, self.step, self.asked, self.before = folder, 0, False, None

    def on_fit_begin(self, trainer):
        if trainer.step:
            print(f"going on after step {trainer.step}; --restart begins anew")
        if threading.current_thread() is threading.main_thread():
            self.before = signal.signal(signal.SIGINT, lambda *_: setattr(self, "asked", True))

    def on_step_end(self, trainer):
        self.step = trainer.step
        if self.asked and trainer.step % trainer.steps_per_epoch:  # after an epoch's last step, `on_epoch_end` saves
            self._end(trainer)

    def on_epoch_end(self, trainer):
        if self.asked:
            self._end(trainer)

    def _end(self, trainer):
        trainer.save(checkpoint_path(self.folder, trainer.step))
        raise KeyboardInterrupt

    def on_fit_end(self, trainer):
        if self.before is not None:
            signal.signal(signal.SIGINT, self.before)
