"""Callbacks of a training loop: early stopping, schedules, averages, checkpoints, a log, a progress bar."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from varlen_rnn.errors import (
    NOT_NEGATIVE,
    DTypeError,
    InputError,
    ShapeError,
    check_choice,
    check_flag,
    check_int,
    check_number,
    check_path,
    shown,
)
from varlen_rnn.optim.average import AveragedModel
from varlen_rnn.optim.lr_scheduler import ReduceLROnPlateau
from varlen_rnn.training.files import checkpoint_path, checkpoints, remove
from varlen_rnn.training.trainer import Callback, Trainer
from varlen_rnn.typing import StrPath
from varlen_rnn.whole_file import write_file

_SECONDS = 10.0  # between two lines of progress, if there is no terminal


class EarlyStopping(Callback):
    """Ends the training if a number of the history has not improved for some epochs, and restores the best weights.

    Parameters
    ----------
    monitor : str
        The number's name in the history, such as "loss" or a name in the result of `validate`.
    patience : int
        Epochs without improvement after which the training ends.
    mode : {"min", "max"}
        Whether less or more is better.
    min_delta : float
        An improvement must be larger than this.
    restore_best : bool
        Whether the model gets the weights of its best epoch when the training is complete (`trainer.done`).  Another
        `fit` then continues from these weights.

    Examples
    --------
    >>> EarlyStopping("accuracy", patience=3, mode="max").best
    -inf
    """

    def __init__(
        self,
        monitor: str,
        patience: int = 5,
        mode: Literal["min", "max"] = "min",
        min_delta: float = 0.0,
        restore_best: bool = True,
    ) -> None:
        self.monitor, self.patience = monitor, check_int(patience, "patience", 1)
        self._sign = 1 if check_choice(mode, "mode", "min", "max") == "max" else -1
        self.min_delta = check_number(min_delta, "min_delta", *NOT_NEGATIVE)
        self.restore_best = check_flag(restore_best, "restore_best")
        self._begin()

    def _begin(self) -> None:
        self.best, self.best_epoch, self.waited = -math.inf * self._sign, 0, 0
        self._weights: dict[str, np.ndarray] = {}

    def on_fit_begin(self, trainer: Trainer) -> None:
        """Stop at once if the loaded training had stopped; forget the best epoch if a new training begins."""
        if trainer.step == 0:
            self._begin()
        trainer.stop = trainer.stop or self.waited >= self.patience

    def on_epoch_end(self, trainer: Trainer) -> None:
        """Compare the epoch with the best one."""
        value = monitored(trainer, self.monitor)
        if (value - self.best) * self._sign > self.min_delta:
            self.best, self.best_epoch, self.waited = value, trainer.epoch, 0
            self._weights = trainer.model.state_dict() if self.restore_best else {}
        else:  # also if the value is NaN
            self.waited += 1
        trainer.stop = trainer.stop or self.waited >= self.patience

    def on_fit_end(self, trainer: Trainer) -> None:
        """Restore the best weights if the training is complete."""
        if trainer.done and self._weights:
            trainer.model.load_state_dict(self._weights)

    def state_dict(self) -> dict[str, Any]:
        """Return the best epoch, and its weights."""
        # `best` is saved as None before the first epoch, because JSON has no infinity.
        best = self.best if math.isfinite(self.best) else None
        return {"best": best, "best_epoch": self.best_epoch, "waited": self.waited} | {
            f"weights.{name}": value for name, value in self._weights.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict`."""
        self.best = -math.inf * self._sign if state["best"] is None else state["best"]
        self.best_epoch, self.waited = state["best_epoch"], state["waited"]
        prefix = "weights."
        self._weights = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


class Scheduler(Protocol):
    """A schedule of `optim.lr_scheduler`."""

    def state_dict(self) -> dict[str, Any]:  # noqa: D102
        ...

    def load_state_dict(self, state: dict[str, Any], /) -> None:  # noqa: D102
        ...


class Schedule(Callback):
    """Advances a schedule of `optim.lr_scheduler` after each step or epoch.

    Parameters
    ----------
    scheduler : object with `step`, `state_dict` and `load_state_dict`
    per : {"step", "epoch"}, optional
        When the schedule advances; by default per epoch with a monitor, and per step without one.
    monitor : str, optional
        The name of the number in the history to pass to `scheduler.step`, as `ReduceLROnPlateau` requires.
    """

    def __init__(
        self, scheduler: Scheduler, per: Literal["step", "epoch"] | None = None, monitor: str | None = None
    ) -> None:
        if not all(hasattr(scheduler, name) for name in ("step", "state_dict", "load_state_dict")):
            raise DTypeError("scheduler", expected="a schedule of optim.lr_scheduler", got=shown(scheduler))
        self.scheduler: Any = scheduler
        per = ("step" if monitor is None else "epoch") if per is None else check_choice(per, "per", "step", "epoch")
        self.per, self.monitor = per, monitor
        if isinstance(scheduler, ReduceLROnPlateau) and monitor is None:
            expected = "the name of a number of the history, for ReduceLROnPlateau"
            raise InputError("Schedule, monitor", expected=expected, got="None")
        if monitor is not None and per == "step":
            expected = "'epoch' with a monitor, because the history has a record per epoch"
            raise InputError("Schedule, per", expected=expected, got="'step'")

    def on_step_end(self, trainer: Trainer) -> None:
        """Take a step of the schedule."""
        if self.per == "step":
            self.scheduler.step()

    def on_epoch_end(self, trainer: Trainer) -> None:
        """Take a step of the schedule."""
        if self.per == "epoch":
            self.scheduler.step(*([] if self.monitor is None else [monitored(trainer, self.monitor)]))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the schedule."""
        return self.scheduler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict`."""
        self.scheduler.load_state_dict(dict(state))


class Averaging(Callback):
    """Updates an average of the weights (`optim.AveragedModel`) after each step, and saves it with the training.

    The model continues to train with its own weights.  Inside `with averaged.applied():` it has the averages, for
    `validate` or for use after the training.

    Parameters
    ----------
    averaged : optim.AveragedModel
        The average of the model that is trained.
    """

    def __init__(self, averaged: AveragedModel) -> None:
        if not isinstance(averaged, AveragedModel):
            raise DTypeError("averaged", expected="an optim.AveragedModel", got=shown(averaged))
        self.averaged = averaged

    def on_step_end(self, trainer: Trainer) -> None:
        """Update the average."""
        self.averaged.update()

    def state_dict(self) -> dict[str, Any]:
        """Return the averages."""
        return self.averaged.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict`."""
        self.averaged.load_state_dict(state)


class Checkpoints(Callback):
    """Saves the training to a folder, and keeps the newest files; `Trainer.resume(folder)` continues from the last.

    A file is complete or does not exist, even if the process is killed while it writes.  If ranks train together, rank
    0 writes while the other ranks wait.

    Parameters
    ----------
    folder : str or path
        Created if it does not exist.
    every : int, optional
        Steps from one file to the next; one per epoch by default.
    keep : int
        The most files to keep; older files are removed.
    """

    runs_last = True

    def __init__(self, folder: StrPath, every: int | None = None, keep: int = 2) -> None:
        self.folder = Path(check_path(folder, "folder"))
        self.every = None if every is None else check_int(every, "every", 1)
        self.keep = check_int(keep, "keep", 1)
        self._due = False
        self._saving: int | None = None  # the step whose file is being written; None otherwise

    def on_fit_begin(self, trainer: Trainer) -> None:
        """Create the folder, so that an unwritable path fails before the first step; save again after an interrupt."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._saving == trainer.step:
            self._save(trainer)

    def on_step_end(self, trainer: Trainer) -> None:
        """Save after every `every` steps; after an epoch's last step, `on_epoch_end` saves, with the epoch's record."""
        due = self.every is not None and trainer.step % self.every == 0
        if due and trainer.step % trainer.steps_per_epoch:
            self._save(trainer)
        self._due = due

    def on_epoch_end(self, trainer: Trainer) -> None:
        """Save if a file is due."""
        if self._due or self.every is None:
            self._save(trainer)

    def _save(self, trainer: Trainer) -> None:
        self._saving = trainer.step
        trainer.save(checkpoint_path(self.folder, trainer.step))
        self._saving = None
        if trainer.replica is None or trainer.replica.comm.rank == 0:
            for path in checkpoints(self.folder)[: -self.keep]:
                remove(path)


class JSONLog(Callback):
    """Writes each record of the history as a line of JSON, with the seconds since `fit` began.

    A training that continues from a checkpoint continues its log; lines of later steps are dropped.

    Parameters
    ----------
    path : str or path
        An existing file is overwritten, unless the training continues.
    every : int, optional
        If given, a line with step, lr and loss is also written after every so many steps.
    """

    on_first_rank_only = True

    def __init__(self, path: StrPath, every: int | None = None) -> None:
        self.path = Path(check_path(path, "path"))
        self.every = None if every is None else check_int(every, "every", 1)
        self._began = 0.0

    def on_fit_begin(self, trainer: Trainer) -> None:
        """Open the log; keep its lines up to the current step."""
        self._began = time.perf_counter()
        lines = self.path.read_text("utf-8", "replace").splitlines() if self.path.exists() else []
        kept = [line for line in lines if 0 < _step_of(line) <= trainer.step]
        write_file(str(self.path), "".join(f"{line}\n" for line in kept).encode())

    def on_step_end(self, trainer: Trainer) -> None:
        """Write a line if one is due."""
        if self.every is not None and trainer.step % self.every == 0:
            self._write({"step": trainer.step, "lr": trainer.optimizer.lr, "loss": trainer.last_loss})

    def on_epoch_end(self, trainer: Trainer) -> None:
        """Write the epoch's record."""
        self._write(trainer.history[-1])

    def _write(self, record: dict[str, float]) -> None:
        # A metric may be NaN, which JSON does not have.
        values = {name: value if math.isfinite(value) else None for name, value in record.items()}
        values["seconds"] = round(time.perf_counter() - self._began, 3)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")


class _Lines:
    """Writes lines to standard error in place of a tqdm bar, with its methods; at most one line in `_SECONDS`."""

    def __init__(self, total: int, initial: int) -> None:
        self._total, self._step, self._due = total, initial, time.monotonic() + _SECONDS
        self._numbers, self._record = "", ""
        self._told = initial, ""  # the step and the record of the last line

    def set_postfix_str(self, text: str, refresh: bool) -> None:
        self._numbers = text

    def write(self, text: str) -> None:
        self._record = f"; {text}"

    def update(self) -> None:
        self._step += 1
        if time.monotonic() >= self._due:
            self._tell()

    def close(self) -> None:
        if self._told != (self._step, self._record):
            self._tell()

    def _tell(self) -> None:
        self._told, self._due = (self._step, self._record), time.monotonic() + _SECONDS
        if sys.stderr is not None:
            print(f"step {self._step}/{self._total}, {self._numbers}{self._record}", file=sys.stderr, flush=True)


def _draws_bars(stream: Any) -> bool:
    """Return whether a stream is a terminal or a notebook, where a carriage return lets a bar overwrite itself."""
    return type(stream).__module__.startswith("ipykernel") or (hasattr(stream, "isatty") and stream.isatty())


class Progress(Callback):
    """Shows loss, rows per second and the record of each epoch on standard error.

    On a terminal and in a notebook it is a bar; elsewhere, such as in a file, it is a line every ten seconds.
    """

    on_first_rank_only = True

    def __init__(self) -> None:
        self._bar: Any = None

    def on_fit_begin(self, trainer: Trainer) -> None:
        """Show the bar."""
        if _draws_bars(sys.stderr):
            from tqdm import tqdm  # imported here, because it takes long

            self._bar = tqdm(total=trainer.last_step, initial=trainer.step, unit="step", desc="training")
        else:
            self._bar = _Lines(trainer.last_step, trainer.step)
        self._rows = self._seconds = 0.0
        self._smooth, self._at = math.nan, time.perf_counter()

    def on_step_end(self, trainer: Trainer) -> None:
        """Advance the bar.  It shows moving averages, so the slow first batch, which compiles, is soon forgotten."""
        now = time.perf_counter()
        self._rows, self._seconds = 0.98 * self._rows + trainer.last_rows, 0.98 * self._seconds + now - self._at
        self._at = now
        known = math.isfinite(self._smooth)
        self._smooth = 0.98 * self._smooth + 0.02 * trainer.last_loss if known else trainer.last_loss
        text = f"loss {self._smooth:.3f}, {self._rows / self._seconds:,.0f} rows/s"
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update()

    def on_epoch_end(self, trainer: Trainer) -> None:
        """Write the epoch's record."""
        record = trainer.history[-1]
        numbers = [f"{name} {value:.4g}" for name, value in record.items() if name not in ("epoch", "step", "lr")]
        self._bar.write(f"epoch {record['epoch']}: {', '.join(numbers)}")
        self._at = time.perf_counter()

    def on_fit_end(self, trainer: Trainer) -> None:
        """Close the bar."""
        if self._bar is not None:  # it is None if an error came before the bar was shown
            self._bar.close()


def monitored(trainer: Trainer, name: str) -> float:
    """Return a number of the last record, or raise an error that lists the existing names."""
    record = trainer.history[-1]
    if name not in record:
        hint = "only 'loss' and the numbers that `validate` returns can be monitored"
        raise ShapeError("monitor", expected=f"one of {sorted(record)}", got=shown(name), hint=hint)
    return record[name]


def _step_of(line: str) -> int:
    """Return the step of a line of the log, or 0 if the line is incomplete, as at the end of an interrupted write."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return 0
