"""The training loop: loss, gradients, clipping, update.  It can stop after any step and resume with the same bits."""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from varlen_rnn import random
from varlen_rnn.checkpoint import load, save
from varlen_rnn.communicator import Communicator
from varlen_rnn.distributed import Replica, replicate
from varlen_rnn.errors import (
    CheckpointError,
    DTypeError,
    InputError,
    OutOfRangeError,
    ShapeError,
    check_callable,
    check_int,
    check_list,
    check_number,
    check_path,
    shown,
)
from varlen_rnn.nn import Module
from varlen_rnn.nn.module import assign_rows, matched
from varlen_rnn.optim import Optimizer, clip_grad_norm_
from varlen_rnn.optim.lr_scheduler import LRScheduler
from varlen_rnn.runtime.precision import get_float32_matmul_precision
from varlen_rnn.shards import is_shard
from varlen_rnn.tape import origins
from varlen_rnn.tape.backward import backward
from varlen_rnn.tape.modes import evaluating, no_grad
from varlen_rnn.tape.variable import Variable, apply
from varlen_rnn.training.bound import bound as bound_step
from varlen_rnn.training.files import checkpoint_path, newest, part_path, remove_parts, step_of, together
from varlen_rnn.training.joined import Counting, JoinedLoss
from varlen_rnn.typing import StrPath


class Epochs(Protocol):
    """The batches of an epoch by number, and the batches of other epochs, as `data.batches` returns them."""

    def __len__(self) -> int: ...
    def __getitem__(self, batch: int, /) -> Any: ...
    def at_epoch(self, epoch: int, /) -> Epochs: ...  # noqa: D102


class _Made:
    """The batches of an epoch, made by calling a function with the number of the epoch."""

    def __init__(self, function: Callable[[int], Iterable[Any]], epoch: int) -> None:
        self._function, self._epoch = function, epoch
        self._batches = check_list(function(epoch), f"batches of epoch {epoch}", "a list of batches")
        if not self._batches:
            raise ShapeError(f"Trainer, batches of epoch {epoch}", expected="at least one batch", got="no batch")

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, batch: int, /) -> Any:
        return self._batches[batch]

    def at_epoch(self, epoch: int, /) -> _Made:
        return self if epoch == self._epoch else _Made(self._function, epoch)


_KEYS = {"identity", "step", "steps_per_epoch", "joined", "history", "random", "callbacks"}
_runs_last = operator.attrgetter("runs_last")


class Callback:
    """The base of callbacks of a `Trainer`: subclasses override the methods that they need.

    `on_fit_end` is called even after an error or an interrupt; `trainer.done` is True if the training is complete.
    State that a training needs to resume belongs into `state_dict`: arrays, and values that JSON can hold.  Callbacks
    with `on_first_rank_only`, such as those that write files, run on rank 0 of ranks that train together.  Callbacks
    with `runs_last` run after all other callbacks, wherever they are in the list, because a callback that saves the
    training must see the effects of all other callbacks.

    Examples
    --------
    >>> class Print(Callback):
    ...     def on_epoch_end(self, trainer):
    ...         print(trainer.history[-1])
    """

    runs_last = False
    on_first_rank_only = False

    def on_fit_begin(self, trainer: Trainer) -> None:
        """Called before the first step of each `fit`."""

    def on_step_end(self, trainer: Trainer) -> None:
        """Called after each update."""

    def on_epoch_end(self, trainer: Trainer) -> None:
        """Called after each epoch, when its record is in the history."""

    def on_fit_end(self, trainer: Trainer) -> None:
        """Called when `fit` ends, even by an error or an interrupt."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state to save with the training."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict`."""


class Trainer:
    """Trains a model: each step computes the loss of a batch and its gradients, and updates the parameters.

    Parameters
    ----------
    model : nn.Module
        The model to train.  Modules that are in evaluation mode when `fit` begins stay in it, such as a frozen
        `BatchNorm1d`; if the model itself is in evaluation mode, all its modules train.
    optimizer : optim.Optimizer
    loss : function
        It takes the parts of a batch, as in `loss(x, labels)`, and returns a Variable of one number.
    batches : Batches, or function
        The result of `data.batches`, any object with `len`, batches by number and `at_epoch(n)`, or a function from the
        number of an epoch to a list of its batches.  Each epoch has as many steps as the first one has batches; if a
        later epoch has more or fewer batches, they are spread over these steps.  Random numbers that a function draws
        from its own generator do not resume.
    validate : function, optional
        Called without arguments at the end of each epoch, under `no_grad`, with the model in evaluation mode.  Modules
        outside the model act as in evaluation mode, too, in this thread.  Afterwards, the modules of the model have
        their former modes.  It returns a dict of str to number, which is added to the epoch's record.
    clip_norm : float, optional
        The largest global norm of gradients (`optim.clip_grad_norm_`).
    accumulate : int
        Batches per step: the update is the same as for one batch that has the rows of all these batches.
    callbacks : list of Callback
    comm : Communicator, optional
        Its ranks train together (`distributed.replicate`).  All ranks make the same `batches`, as `data.batches`
        returns them for one process, and each takes its part of every batch.  A loss is the loss of all ranks.
        `validate` runs on every rank, and returns the same on all: each can look at a part of the data, and call
        `all_reduce` of its metrics.  Callbacks with `on_first_rank_only` run on rank 0.
    reproducible : int, optional
        With `comm`: the number of parts of every batch, which decides the bits of the results; see
        `distributed.replicate`.
    bound : bool
        Whether steps run by `vr.bound`, with the same bits and less time in Python.  `loss` must then be code that
        `vr.bound` records, which gets every value that differs between steps by its arguments.  Not with `comm` or
        `accumulate`.
    identity : str
        A text that identifies this training, such as a hash of settings and data.  Checkpoints with another text are
        refused.

    Attributes
    ----------
    step : int
        Steps taken.
    last_loss : float
        The loss of the last step, over the rows of all its batches; `last_rows` is their number, on all ranks.
    history : list of dict
        One record per epoch: "epoch", "step", "lr", "loss" (over the rows of all batches of the epoch, each with the
        parameters of its step), and the results of `validate`.
    stop : bool
        A callback sets it to end the training after this step.
    done : bool
        Whether the last `fit` completed all epochs or was stopped by a callback; it stays False after all steps of
        `fit(steps=...)`.

    Raises
    ------
    InputError
        If there are no batches, or an argument is of the wrong kind.

    Examples
    --------
    >>> x, y = [np.full((n, 1), n, np.float32) for n in (1, 2, 3)], np.array([[1], [2], [3]], np.float32)
    >>> vr.manual_seed(0)
    >>> model = vr.nn.Sequential(vr.nn.SequencePool("mean"), vr.nn.Linear(1, 1))
    >>> trainer = Trainer(
    ...     model, vr.optim.SGD(model.parameters(), lr=0.1),
    ...     lambda x, y: vr.nn.functional.mse_loss(model(x), y), vr.data.batches(x, y, batch_size=3),
    ... )
    >>> history = trainer.fit(epochs=50)
    >>> trainer.step, history[-1]["loss"] < 0.1
    (50, True)
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer,
        loss: Callable[..., Variable],
        batches: Epochs | Callable[[int], Iterable[Any]],
        *,
        validate: Callable[[], Mapping[str, float]] | None = None,
        clip_norm: float | None = None,
        accumulate: int = 1,
        callbacks: Sequence[Callback] = (),
        comm: Communicator | None = None,
        reproducible: int | None = None,
        bound: bool = False,
        identity: str = "",
    ) -> None:
        for value, name, kind in ((model, "model", Module), (optimizer, "optimizer", Optimizer)):
            if not isinstance(value, kind):
                raise DTypeError(f"Trainer, {name}", expected=f"an instance of {kind.__name__}", got=shown(value))
        if callable(batches):
            batches = _Made(batches, 0)
        if not all(hasattr(batches, name) for name in ("__len__", "__getitem__", "at_epoch")):
            hint = "data.batches(...) returns such an object"
            expected = "an object with len, batches by number and at_epoch, or a function"
            raise DTypeError("Trainer, batches", expected=expected, got=shown(batches), hint=hint)
        if not len(batches):
            raise ShapeError("Trainer, batches", expected="at least one batch", got="no batch")
        if clip_norm is not None:
            clip_norm = check_number(clip_norm, "clip_norm", "at least 0", lambda number: number >= 0)
        self.model, self.optimizer, self.batches = model, optimizer, batches
        self.loss = check_callable(loss, "loss")
        self.validate = None if validate is None else check_callable(validate, "validate")
        self.clip_norm, self.accumulate = clip_norm, check_int(accumulate, "accumulate", 1)
        self.callbacks = check_list(callbacks, "callbacks", "a list of Callbacks")
        for number, callback in enumerate(self.callbacks):
            if not isinstance(callback, Callback):
                hint = "pass training.Schedule(schedule)" if isinstance(callback, LRScheduler) else None
                raise DTypeError(f"callbacks, entry {number}", expected="a Callback", got=shown(callback), hint=hint)
        self.identity = identity
        self.replica = self._replica(comm, reproducible)
        if bound and (self.replica is not None or self.accumulate > 1):
            got = "a communicator" if self.replica is not None else f"accumulate={self.accumulate}"
            raise InputError("Trainer, bound", expected="one process, and one batch a step", got=got)
        self._bound = bound_step(self._whole_step) if bound else None
        self.steps_per_epoch = math.ceil(len(batches) / self.accumulate)
        self.step, self.last_loss, self.last_rows = 0, math.nan, 0
        self.history: list[dict[str, float]] = []
        self.stop = self.done = False
        self.last_step = 0  # the step after which the current `fit` ends, unless it is stopped before
        self._parameters: list[Variable] = []
        self._joined, self._counting = JoinedLoss(), Counting()  # `_joined` is the loss of this epoch's batches so far
        self._untold: list[Callback] = []  # callbacks that the last record was not passed to yet
        self._epoch: tuple[int, Any, list[Epochs]] | None = None

    def _replica(self, comm: Communicator | None, reproducible: int | None) -> Replica | None:
        if comm is None:
            if reproducible is not None:
                hint = "pass comm=distributed.connect()"
                raise InputError("Trainer, reproducible", expected="also `comm`", got="no communicator", hint=hint)
            return None
        if not all(hasattr(self.batches, name) for name in ("part", "lengths")):
            expected, hint = "batches that ranks can divide", "data.batches(...) returns such batches"
            raise DTypeError("Trainer, batches", expected=expected, got=shown(self.batches), hint=hint)
        return replicate(self.model, self.optimizer, comm, reproducible)

    def _told(self) -> list[Callback]:
        is_first = self.replica is None or self.replica.comm.rank == 0
        return sorted((c for c in self.callbacks if is_first or not c.on_first_rank_only), key=_runs_last)

    @property
    def epoch(self) -> int:
        """The number of complete epochs."""
        return self.step // self.steps_per_epoch

    def fit(self, epochs: int | None = None, *, steps: int | None = None) -> list[dict[str, float]]:
        """Train until `epochs` epochs, or `steps` steps, are complete, counted over all calls.

        Parameters
        ----------
        epochs, steps : int
            Exactly one of them.

        Returns
        -------
        list of dict
            The history.

        Raises
        ------
        InputError
            If neither or both are given.  If a loss, or with `clip_norm` the norm of the gradients, is not finite;
            parameters are then as before that step.
        """
        if (epochs is None) == (steps is None):
            got = "neither" if epochs is None else "both"
            raise InputError("fit, epochs, steps", expected="exactly one of them", got=got)
        self.last_step = (
            check_int(steps, "steps", 0) if epochs is None else check_int(epochs, "epochs", 0) * self.steps_per_epoch
        )
        self.stop = self.done = False
        self._parameters = [*self.model.parameters()]  # collected once, not at each step
        if not self.model.training:
            self.model.train()
        try:
            self._tell("on_fit_begin")
            if self._lacks_record():  # `fit` was interrupted after the epoch's last step
                self._end_epoch()
            self._tell_of_record()  # or it was interrupted before all callbacks got the record
            while self.step < self.last_step and not self.stop:
                self._take_step()
            self.done = self.stop or steps is None
        finally:
            with contextlib.ExitStack() as stack:  # so that all callbacks are called, even if one of them raises
                for callback in reversed(self._told()):
                    stack.callback(callback.on_fit_end, self)
        return self.history

    def _take_step(self) -> None:
        epoch, position = divmod(self.step, self.steps_per_epoch)
        if position == 0:
            self._joined = JoinedLoss()
        made = self._batches_of(epoch)
        numbers = self._numbers(position, len(made))
        if numbers:
            if self._bound is not None:
                self._take_bound_step(numbers[0])
            else:
                joined, self.last_rows = self._gradients(numbers)
                if self.clip_norm is not None:
                    self._clip(self.clip_norm)
                self.optimizer.step()
                self._joined.join(joined)
        else:
            self.last_rows = 0
        self.step += 1
        self._tell("on_step_end")
        if self._lacks_record():
            self._end_epoch()

    def _batches_of(self, epoch: int) -> Epochs:
        if self._epoch is None or self._epoch[0] != epoch:
            whole: Any = self.batches.at_epoch(epoch)
            parts = [whole] if self.replica is None else [whole.part(*shard) for shard in self.replica.shards]
            self._epoch = epoch, whole, parts
        return self._epoch[1]

    def _numbers(self, position: int, count: int) -> range:
        """Return the numbers of the batches that a step of an epoch takes, given its position in the epoch.

        With `max_tokens` in random order, the number of batches differs from epoch to epoch.  The number of steps does
        not differ, because schedules count steps.  So batches are spread over the steps, and some steps have no batch.
        """
        if math.ceil(count / self.accumulate) == self.steps_per_epoch:
            return range(position * self.accumulate, min((position + 1) * self.accumulate, count))
        first, end = (math.ceil(place * count / self.steps_per_epoch) for place in (position, position + 1))
        return range(first, end)

    def _lacks_record(self) -> bool:
        """Return whether an epoch was just completed, but its record is not yet in the history."""
        if not self.step or self.step % self.steps_per_epoch:
            return False
        return not self.history or self.history[-1]["step"] < self.step

    def _gradients(self, numbers: range) -> tuple[JoinedLoss, int]:
        """Compute the gradients of the joined loss of some batches; return this loss and the number of rows."""
        assert self._epoch is not None
        _, whole, parts = self._epoch
        self.optimizer.zero_grad()
        joined, rows = JoinedLoss(), 0
        counts: list[float | None] = []

        def weigh(count: float | None) -> float:
            counts.append(count)
            return joined.factor(count) if len(numbers) > 1 else 1.0

        if self.replica is not None:
            self.replica.forget()  # because an error may have left the gradients of some shards
        with contextlib.nullcontext() if self.replica is None else self.replica.weighing(weigh):
            for number in numbers:  # only one batch is in memory at a time
                for part in parts:
                    batch = _parts_of(part[number])
                    loss = self._loss_of(batch)
                    if self.replica is None:
                        self._check_finite(loss)
                        rows += _rows_of(batch)
                    if self.replica is None or self.replica.is_alone:
                        factor = weigh(self._counting.count(loss))
                        backward(loss if factor == 1.0 else loss * factor)
                    else:
                        backward(loss)
                if self.replica is not None:  # `loss` is now the loss of all ranks, so all ranks raise together
                    self._check_finite(loss)
                    rows += int(whole.lengths(number).sum())
                self.last_loss = loss.item()
                joined.add(self.last_loss, counts[-1])
        if len(numbers) > 1:
            self.last_loss = joined.value()
            joined.finish(dict.fromkeys([*self._parameters, *self.optimizer.parameters]))
        return joined, rows

    def _take_bound_step(self, number: int) -> None:
        assert self._bound is not None
        assert self._epoch is not None
        batch = _parts_of(self._epoch[1][number])
        (loss, *_), count = self._bound(*batch)
        self.last_loss, self.last_rows = loss.item(), _rows_of(batch)
        self._joined.add(self.last_loss, None if count is None else count.item())

    def _whole_step(self, *batch: Any) -> tuple[list[Variable], Variable | None]:
        """Compute gradients, and update the parameters unless a number is not finite; `vr.bound` records this.

        Return the loss, with `clip_norm` also the norm of the gradients, and the count by which the loss is a mean.
        """
        self.optimizer.zero_grad()
        loss = self._loss_of(batch)
        count = self._counting.in_step(loss)
        backward(loss)
        checked = [apply("check_finite", loss.detach(), name="loss")]
        if self.clip_norm is not None:
            norm = clip_grad_norm_(self._parameters, self.clip_norm)
            norm = norm if isinstance(norm, Variable) else Variable(np.float64(norm))
            checked.append(apply("check_finite", norm, name="norm of the gradients"))
        self.optimizer.step()
        return checked, count

    def _loss_of(self, batch: tuple[Any, ...]) -> Variable:
        with origins.keeping():
            loss = self.loss(*batch)
        if not isinstance(loss, Variable) or math.prod(loss.shape) != 1:
            raise DTypeError("loss", expected="a function that returns a Variable of one number", got=shown(loss))
        return loss

    def _check_finite(self, loss: Variable) -> None:
        if not math.isfinite(loss.item()):
            hint = "try a lower learning rate, clip_norm, or features of unit variance"
            raise OutOfRangeError(f"loss, step {self.step}", expected="a finite number", got=loss.item(), hint=hint)

    def _clip(self, most: float) -> None:
        norm = clip_grad_norm_(self._parameters, most)
        if not math.isfinite(norm):
            hint = "some gradients are infinite or NaN, such as the gradient of sqrt at 0"
            raise OutOfRangeError(f"gradients, step {self.step}", expected="a finite norm", got=norm, hint=hint)

    def _end_epoch(self) -> None:
        record = {"epoch": self.epoch, "step": self.step, "lr": self.optimizer.lr}
        record["loss"] = self._joined.value()
        if self.validate is not None:
            with self._evaluated():
                found = self.validate()
            if not isinstance(found, Mapping):
                raise DTypeError("validate", expected="a function that returns a dict of numbers", got=shown(found))
            record |= {name: float(np.asarray(value)) for name, value in found.items()}
        # If an interrupt comes between any of these lines, the next `fit` runs the remaining ones.
        self._untold = self._told()
        self.history.append(record)
        self._tell_of_record()

    @contextlib.contextmanager
    def _evaluated(self) -> Iterator[None]:
        """Set the model to evaluation mode (also for other threads that use it); afterwards, restore its modes."""
        modes = [(module, module.training) for module in self.model.modules()]
        try:
            self.model.eval()
            with evaluating(), no_grad():
                yield
        finally:
            self.model.train()  # first, because a model's own `train` can do more than set modes
            for module, mode in modes:
                module.training = mode

    def _tell_of_record(self) -> None:
        while self._untold:
            self._untold.pop(0).on_epoch_end(self)

    def _tell(self, event: str) -> None:
        for callback in self._told():
            getattr(callback, event)(self)

    def save(self, path: StrPath, **groups: Any) -> None:
        """Write the whole state of the training: model, optimizer, random generator, position, callbacks.

        If ranks train together, all of them call it, and rank 0 writes.  If there are tables that ranks divide, each
        rank first writes its rows to a file beside `path`.  The call returns on every rank once all is written; if one
        rank cannot write, the call raises on every rank.

        Parameters
        ----------
        path : str or path
        **groups
            Further content of the file, as in `vr.save`, such as a vocabulary or the names of classes.

        Raises
        ------
        InputError
            If a group has the name of one of the trainer's groups, or the model has a table that ranks divide, but the
            trainer has no `comm`.
        """
        if self.replica is None and any(parameter.shard is not None for parameter in self.optimizer.parameters):
            hint = "pass the communicator: Trainer(comm=...)"
            got = "a table whose rows the ranks divide"
            raise InputError("Trainer.save", expected="parameters that this rank has as a whole", got=got, hint=hint)
        arrays: dict[str, np.ndarray] = {}
        of_callbacks = []
        for number, callback in enumerate(self.callbacks):
            state = callback.state_dict()
            arrays |= {f"{number}.{name}": value for name, value in state.items() if isinstance(value, np.ndarray)}
            plain = {name: value for name, value in state.items() if not isinstance(value, np.ndarray)}
            of_callbacks.append({"kind": type(callback).__name__, "state": plain})
        training: dict[str, Any] = {
            "identity": self.identity, "step": self.step, "steps_per_epoch": self.steps_per_epoch,
            "joined": self._joined.state(), "history": self.history, "random": random.get_state(),
            "callbacks": of_callbacks, "precision": get_float32_matmul_precision(),
        }  # fmt: skip
        own = {"model": self.model.state_dict(copy=False), "optimizer": self.optimizer.state_dict(copy=False)}
        own |= {"training": training, "callback_arrays": arrays}
        if taken := sorted(own.keys() & groups.keys()):
            expected = f"groups with names other than {sorted(own)}"
            raise InputError("Trainer.save", expected=expected, got=taken)
        if self.replica is None:
            save(path, **groups, **own)
        else:
            self._save_on_ranks(self.replica.comm, Path(check_path(path, "path")), own, groups)

    def _save_on_ranks(self, comm: Communicator, path: Path, own: dict[str, Any], groups: dict[str, Any]) -> None:
        """Write this rank's rows of divided tables; after all ranks did, write the main file on rank 0."""
        parts: dict[str, dict[str, np.ndarray]] = {}
        for kind in ("model", "optimizer"):
            parts[kind] = {name: own[kind].pop(name) for name in list(own[kind]) if is_shard(name)}
        written: list[Path] = []
        if parts["model"]:
            written = [part_path(path, self.step, rank, comm.size) for rank in range(comm.size)]
            together(comm, lambda: save(written[comm.rank], **parts), path)
        own["training"]["parts"] = len(written)

        def finish() -> None:
            save(path, **groups, **own)
            remove_parts(path, written)

        together(comm, finish if comm.rank == 0 else lambda: None, path)

    def load(self, path: StrPath) -> None:
        """Continue from a file that `save` wrote, in a trainer with the same kind of model, optimizer and callbacks.

        Raises
        ------
        CheckpointError
            If `save` did not write the file, or the model, the optimizer, the number of batches, the precision of
            products or the list of callbacks differs.
        FileNotFoundError
        """
        saved = load(path, mmap=True)  # the model and the optimizer copy their arrays
        training, arrays = saved.get("training"), saved.get("callback_arrays")
        if not isinstance(arrays, dict) or not (isinstance(training, dict) and training.keys() >= _KEYS):
            expected = "a file that Trainer.save wrote"
            raise CheckpointError(f"{path}", expected=expected, got=f"a file of the groups {sorted(saved)}")
        size = training.get("parts", 0)  # how many ranks saved rows of divided tables in files
        for rank in range(size):
            rows = load(part_path(Path(path), training["step"], rank, size), mmap=True)
            saved["model"] |= rows["model"]
            saved["optimizer"] |= rows["optimizer"]
        if training["identity"] != self.identity:
            expected, hint = f"the training {self.identity!r}", "give each training a folder of its own"
            raise CheckpointError(f"{path}", expected=expected, got=repr(training["identity"]), hint=hint)
        precision = get_float32_matmul_precision()
        if (was := training.get("precision", precision)) != precision:  # former versions saved none
            expected, hint = f"products of the precision {precision!r}", f"vr.set_float32_matmul_precision({was!r})"
            raise CheckpointError(f"{path}", expected=expected, got=repr(was), hint=hint)
        if training["steps_per_epoch"] != self.steps_per_epoch:
            expected, got = f"{self.steps_per_epoch} steps per epoch", f"{training['steps_per_epoch']} steps"
            hint = "was the checkpoint saved with other data or another batch size?"
            raise CheckpointError(f"{path}", expected=expected, got=got, hint=hint)
        kinds = [type(callback).__name__ for callback in self.callbacks]
        if (got := [entry["kind"] for entry in training["callbacks"]]) != kinds:
            raise CheckpointError(f"{path}, callbacks", expected=kinds, got=got)
        pairs, _ = matched(self.model, saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        for variable, parts in pairs:
            assign_rows(variable, parts)
        random.set_state(training["random"])
        for number, (callback, entry) in enumerate(zip(self.callbacks, training["callbacks"], strict=True)):
            prefix = f"{number}."
            own = {name.removeprefix(prefix): arrays[name].copy() for name in arrays if name.startswith(prefix)}
            callback.load_state_dict(entry["state"] | own)
        self.step, self.history = training["step"], training["history"]
        self._joined = JoinedLoss(*training["joined"])
        self._untold = []

    def resume(self, folder: StrPath) -> bool:
        """Continue from the newest file that `Checkpoints` wrote to a folder; return whether there is one.

        Ranks that train together read the same file, the newest that rank 0 sees, so all must see the folder.  The
        number of ranks can differ from the number that wrote the file.
        """
        path = newest(folder)
        if self.replica is not None:
            step = np.array([-1 if path is None else step_of(path)])
            self.replica.comm.broadcast(step)
            path = None if step[0] < 0 else checkpoint_path(Path(folder), int(step[0]))
        if path is not None:
            self.load(path)
        return path is not None


def _parts_of(batch: Any) -> tuple[Any, ...]:
    return batch if isinstance(batch, tuple) else (batch,)


def _rows_of(parts: tuple[Any, ...]) -> int:
    rows: Any = getattr(parts[0], "data", parts[0]) if parts else None
    return len(rows) if hasattr(rows, "__len__") else 0
