"""`Recurrent`, the candidate that is a network: its training, batched outputs, and file."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from varlen_rnn import random
from varlen_rnn.communicator import Communicator
from varlen_rnn.data import Batches, batches
from varlen_rnn.errors import ShapeError, check_choice, check_int, check_list, check_number
from varlen_rnn.nn import LinearChainCRF
from varlen_rnn.optim import AdamW, lr_scheduler
from varlen_rnn.sklearn import ranks, recipe
from varlen_rnn.sklearn.inputs import Inputs
from varlen_rnn.sklearn.labels import Labels
from varlen_rnn.sklearn.network import Network, features_of, of_batches, outputs_of
from varlen_rnn.sklearn.restored import check_that, finite_of
from varlen_rnn.sklearn.samples import Labelled, Samples, labels_at
from varlen_rnn.sklearn.static import Sequences, static_of, take
from varlen_rnn.tape.modes import evaluating, no_grad
from varlen_rnn.tape.variable import Variable, apply
from varlen_rnn.training import Checkpoints, EarlyStopping, Progress, Schedule, Trainer

ROWS = 8192  # the number of rows in a batch of predictions
_CALIBRATE = 5  # a network that is trained alone is calibrated on a fifth of the sequences
_POOL = "max", "mean", "last"
_NOT_IDENTIFYING = "checkpoints", "callbacks", "verbose", "random_state"


class Recurrent:
    """Predict by a recurrent network; the options are the parameters of an estimator."""

    name = "recurrent"
    module: Network

    def __init__(self, options: SimpleNamespace, inputs: Inputs, labels: Labels, stride: int = 1) -> None:
        self.options, self.inputs, self.labels = options, inputs, labels
        self.stride = stride  # the network replaces this many neighbouring rows by their mean
        self.history: list[dict[str, float]] = []  # the records of the epochs
        self.num_epochs = 0  # the number of epochs trained
        self._optimizer: AdamW | None = None  # kept between calls of `fit_epoch`

    def __getstate__(self) -> dict[str, Any]:
        """Leave the options out of copies, because callbacks can be unpicklable, and each fit sets its own options."""
        return vars(self) | {"options": None}

    def begin(self, sequences: list[np.ndarray]) -> None:
        """Create the network, which learns from the training sequences how rows are standardised."""
        self.module = self._made()
        if self.module.standardize is not None:
            self.module.standardize.fit(sequences)

    def _made(self) -> Network:
        pool = () if self.labels.by_row else _POOL
        network = Network(self.options, self.inputs, self.labels.num_outputs, pool, self.stride)
        if self.labels.has_field:
            network.crf = LinearChainCRF(self.labels.num_outputs)
        return network

    def check_options(self) -> None:
        """Raise if an option of the network or of its training is wrong; nothing is trained."""
        for name in ("max_epochs", "batch_size"):
            if (value := getattr(self.options, name)) != "auto":
                check_int(value, name, 1)
        check_list(self.options.callbacks, "callbacks", "a list of callbacks")
        sizes = {name: check_int(getattr(self.options, name), name, 1) for name in ("hidden_size", "embedding_size")}
        options = SimpleNamespace(**vars(self.options) | dict.fromkeys(sizes, 1))
        small = Recurrent(options, self.inputs, self.labels, self.stride)
        with random.seeded(0):
            small.module = small._made()
            small._scheduler(small._new_optimizer(), 2)

    # Training.

    def fit(
        self, data: Samples, comm: Communicator | None = None, callbacks: Any = None, alone: bool = True
    ) -> np.ndarray | None:
        """Train the network that `begin` created; return the indices of the sequences that were held back, or None.

        `callbacks` replace the callbacks of the options.  If `alone` (there are no other candidates), sequences are
        held back to calibrate quantiles.
        """
        given = self.options.callbacks if callbacks is None else callbacks
        seed = int(random.generator().integers(2**31))
        train, held = self._parts(data, seed, alone)
        made = self._batches(data, train, seed)
        self.module.stretches = recipe.stretches([data.sequences[k] for k in train], data.labels, self._convolved)
        optimizer = self._new_optimizer()
        epochs = self._epochs(len(made), train, data.sequences)
        callbacks = []
        if (scheduler := self._scheduler(optimizer, epochs * len(made))) is not None:
            callbacks.append(Schedule(scheduler))
        if held is not None and self.options.early_stopping:
            callbacks.append(EarlyStopping("valid_loss", self.options.n_iter_no_change))
        callbacks += check_list(given, "callbacks", "a list of callbacks")
        if (folder := self.options.checkpoints) is not None:
            callbacks.append(Checkpoints(folder, every=min(len(made), 200)))
        callbacks += [Progress()] if self.options.verbose else []
        validate = None if held is None else lambda: {"valid_loss": self._loss_of(data, held, comm)}
        trainer = Trainer(
            self.module, optimizer, self._loss(comm), made, validate=validate, clip_norm=self.options.clip_norm,
            callbacks=callbacks, identity="" if folder is None else self._identity(data, seed), comm=comm,
            bound=comm is None and self.stride == 1 and not self.module.stretches,  # both read lengths
        )  # fmt: skip
        try:
            if folder is not None:
                trainer.resume(folder)
            trainer.fit(epochs)
        finally:
            if comm is not None:
                self.module = copy.deepcopy(self.module)  # a copy exchanges no gradients with other ranks
        self.history, self.num_epochs = trainer.history, trainer.epoch
        if ranks.is_first(comm):
            recipe.warn_if_failed(self.history, self.labels.loss_of_constant(data.labels, data.weights))
        return held

    def fit_epoch(self, data: Samples) -> None:
        """Train for one more epoch, at a constant learning rate."""
        if self._optimizer is None:
            self._optimizer = self._new_optimizer()
        made = self._batches(data, np.arange(len(data)), seed=self.num_epochs)
        trainer = Trainer(self.module, self._optimizer, self._loss(None), made, clip_norm=self.options.clip_norm)
        trainer.fit(epochs=1)
        self.num_epochs += 1
        self.history = [*self.history, trainer.history[0] | {"epoch": self.num_epochs}]

    def _parts(self, data: Samples, seed: int, alone: bool) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the indices of the training sequences, and of the validation sequences (None if there are none)."""
        count, labels = len(data), data.labels
        if data.num_held:
            return np.arange(data.num_trained), np.arange(data.num_trained, count)
        order = np.random.default_rng(seed).permutation(count)
        if not self.options.early_stopping:
            if not alone or not self.labels.levels or count < _CALIBRATE:
                return np.arange(count), None
            return np.sort(order[count // _CALIBRATE :]), np.sort(order[: count // _CALIBRATE])
        between = "0 to 1", lambda share: 0 < share < 1
        share = check_number(self.options.validation_fraction, "validation_fraction", *between)
        held = max(1, round(count * share))
        if held >= count:
            expected = f"more than {held} sequences, because early stopping holds {held} back"
            raise ShapeError("X", expected=expected, got=f"{count} sequences")
        if getattr(labels, "dtype", None) == np.int64:  # stratify: each class gets the same share of both sets
            order = order[np.argsort(labels[order], kind="stable")]
            chosen = order[np.linspace(0, count - 1, held).round().astype(int)]
            return np.setdiff1d(np.arange(count), chosen), chosen
        return np.sort(order[held:]), order[:held]

    def _batches(self, data: Samples, train: np.ndarray, seed: int) -> Labelled:
        """Return batches of the training sequences and of their labels, as `_loss` takes them."""
        size = self.options.batch_size
        size = recipe.batch_size(len(train), self._convolved) if size == "auto" else check_int(size, "batch_size", 1)
        some = take(data.sequences, train)
        made = batches(some, train, static=some.static, batch_size=size, shuffle=True, seed=seed)
        return self._labelled(made, data)

    @property
    def _convolved(self) -> bool:
        return self.module.convolutions is not None

    def _epochs(self, steps_per_epoch: int, train: np.ndarray, sequences: Sequences) -> int:
        if self.options.max_epochs != "auto":
            return check_int(self.options.max_epochs, "max_epochs", 1)
        most = recipe.epochs(len(train), steps_per_epoch, self._convolved)
        return self.labels.epochs(most, steps_per_epoch, sum(len(sequences[k]) for k in train))

    def _new_optimizer(self) -> AdamW:
        """Return the optimizer; weight decay applies to matrices, but not to biases and embeddings."""
        named = [pair for pair in self.module.named_parameters() if pair[1].requires_grad]
        weights = [value for name, value in named if len(value.shape) > 1 and "embedding" not in name]
        others = [value for name, value in named if len(value.shape) < 2 or "embedding" in name]
        decayed = {"params": weights, "weight_decay": self.options.weight_decay}
        return AdamW([decayed, {"params": others, "weight_decay": 0.0}], lr=self.options.lr, lazy=True)

    def _scheduler(self, optimizer: AdamW, num_steps: int) -> Any:
        check_choice(self.options.schedule, "schedule", "one_cycle", "cosine", "constant")
        if self.options.schedule == "cosine":
            return lr_scheduler.CosineAnnealingLR(optimizer, num_steps)
        if self.options.schedule == "one_cycle":
            return lr_scheduler.OneCycleLR(optimizer, self.options.lr, total_steps=num_steps + 1, pct_start=0.2)
        return None

    def _loss(self, comm: Communicator | None) -> Callable[..., Variable]:
        """Return a function that computes the loss of a batch of `_batches`."""

        def loss(*batch: Any) -> Variable:
            *inputs, labels, own = batch
            losses = self._losses(inputs, labels)
            if own is None and (comm is None or not self.labels.by_row):
                # A tagger's batch may have only empty sequences.
                return apply("reduce_mean", losses, axis=None, keepdims=False, of_nothing=0.0)
            own = np.ones(len(losses), np.float32) if own is None else own
            return apply("weighted_mean", losses * own, own.sum())  # the mean over all ranks

        return loss

    def _losses(self, inputs: Sequence[Any], labels: tuple[Any, ...]) -> Variable:
        return self.labels.losses(self.module(*inputs), labels, self.module.crf)

    def _labelled(self, made: Batches, data: Samples) -> Labelled:
        """Return batches of sequences, static features, labels as the loss takes them, and the weights of losses."""

        def parts_at(indices: np.ndarray) -> tuple[Any, ...]:
            chosen = labels_at(data.labels, indices)
            if isinstance(chosen, list) and not chosen:  # if this rank's part of a batch has no sequence
                chosen = [data.labels[0][:0]]
            weights = None if data.weights is None else data.weights[indices]
            return self.labels.arrays(chosen), self.labels.weights_of_losses(chosen, weights)

        return Labelled(made, parts_at)

    def _loss_of(self, data: Samples, held: np.ndarray, comm: Communicator | None = None) -> float:
        """Return the weighted mean loss of the sequences `held`; each rank computes its part of every batch."""
        total = mass = 0.0
        some = take(data.sequences, held)
        made = batches(some, held, static=some.static, max_tokens=ROWS, bucket=True, part=comm)
        for *inputs, labels, own in self._labelled(made, data):
            found = np.asarray(self._losses(inputs, labels), np.float64)
            own = np.ones(len(found)) if own is None else own.astype(np.float64)
            total, mass = total + float(found @ own), mass + float(own.sum())
        total, mass = ranks.summed(comm, total, mass)
        return total / mass if mass else 0.0

    def loss_on(self, data: Samples) -> float:
        """Return the weighted mean loss of sequences."""
        with no_grad(), evaluating():
            return self._loss_of(data, np.arange(len(data)))

    def _identity(self, data: Samples, seed: int) -> str:
        """Return a digest of the settings and data, by which a resumed fit recognises its own checkpoints."""
        digest, options = hashlib.sha256(), vars(self.options)
        settings = {name: repr(value) for name, value in options.items() if name not in _NOT_IDENTIFYING}
        settings["seed"] = f"{seed} {data.num_held}"
        digest.update(json.dumps(settings, sort_keys=True).encode())
        labels = data.labels if isinstance(data.labels, list) else [data.labels]
        for part in [*data.sequences, static_of(data.sequences), *labels, data.weights]:
            array = np.ascontiguousarray(part if part is not None else [])
            digest.update(f"{array.shape}".encode() + array.tobytes())
        return digest.hexdigest()

    # Predictions, and files.

    def outputs(self, sequences: list[np.ndarray], executor: Any = None) -> np.ndarray:
        """Return the outputs of sequences or of all rows, float32, in the order of the sequences."""
        return self._computed(sequences, self.labels.num_outputs, outputs_of, executor)

    def features(self, sequences: list[np.ndarray]) -> np.ndarray:
        """Return the features that the linear layer maps to the outputs."""
        return self._computed(sequences, self.num_features, features_of, None)

    @property
    def num_features(self) -> int:
        """The number of columns of the result of `features`."""
        return self.module.output.in_features

    def _computed(
        self, sequences: list[np.ndarray], width: int, function: Callable[..., np.ndarray], executor: Any
    ) -> np.ndarray:
        lengths = [len(sequence) if self.labels.by_row else 1 for sequence in sequences]
        ends = np.cumsum(lengths)
        outputs = np.empty((int(ends[-1]), width), np.float32)
        made = batches(sequences, static=static_of(sequences), max_tokens=ROWS, bucket=True)
        for number, found in enumerate(of_batches(function, self.module, made, executor)):
            places = [np.arange(ends[k] - lengths[k], ends[k]) for k in made.indices(number)]
            outputs[np.concatenate(places)] = found
        return outputs

    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays of the network by name."""
        return self.module.state_dict(copy=False)

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Restore the result of `state`, or raise unless it is the state of a network of these options."""
        self._check_sizes(arrays)
        self.module = self._made()
        self.module.load_state_dict(arrays)
        for name, variable in [*self.module.named_parameters(), *self.module.named_buffers()]:
            finite_of(arrays, name, variable.shape, variable.dtype)
            if name.rpartition(".")[2] in ("scale", "running_var"):
                check_that(arrays[name], arrays[name] > 0, name, "numbers above 0")

    def _check_sizes(self, arrays: dict[str, np.ndarray]) -> None:
        """Raise unless a file's arrays have the sizes of the network, which could otherwise be too large to make."""
        given = self.options
        sizes = {"hidden_size": given.hidden_size, "num_layers": given.num_layers, "stride": self.stride}
        for name, size in sizes.items():
            check_int(size, name, 1)
        if self.stride > 1 and self.labels.by_row:
            raise ShapeError("stride", expected="1, because rows have outputs", got=self.stride)
        finite_of(arrays, "output.weight", (self.labels.num_outputs, None))
        if self.inputs.kind != "numbers":
            finite_of(arrays, "embedding.weight", (self.inputs.size, given.embedding_size))
        if given.num_layers > len(arrays) or not any(given.hidden_size in array.shape for array in arrays.values()):
            expected = "the numbers of layers and units of the saved arrays"
            got = f"{given.num_layers} layers of {given.hidden_size} units"
            raise ShapeError("num_layers, hidden_size", expected=expected, got=got)
