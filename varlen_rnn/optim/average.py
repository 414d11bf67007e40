"""The moving average of a model's weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from varlen_rnn.checkpoint import state_arrays
from varlen_rnn.errors import CheckpointError, DTypeError, PlaceError, check_number, shown
from varlen_rnn.runtime.place import HOST
from varlen_rnn.shards import shard_name


class AveragedModel:
    """The average of a model's parameters over updates, to evaluate the model with it instead of the last parameters.

    Parameters
    ----------
    model : nn.Module
    decay : float or None
        Each update sets `average = decay average + (1 - decay) parameter`.  None means the mean over all updates.  The
        first update copies the parameters.

    Examples
    --------
    >>> from varlen_rnn.nn import Linear
    >>> model = Linear(1, 1, bias=False)
    >>> average = AveragedModel(model, decay=0.5)
    >>> for value in (1.0, 3.0): model.weight.assign([[value]]); average.update()
    >>> with average.applied(): print(model.weight.data)
    [[2.]]
    >>> model.weight.data
    array([[3.]], dtype=float32)

    Source: Polyak and Juditsky (1992), in the form of `torch.optim.swa_utils.AveragedModel`.
    """

    def __init__(self, model: Any, decay: float | None = 0.999) -> None:
        if not hasattr(model, "named_parameters") or isinstance(model, type):
            raise DTypeError("AveragedModel, model", expected="an nn.Module", got=shown(model))
        holds = lambda number: 0 <= number <= 1
        self.decay = None if decay is None else check_number(decay, "decay", "0 to 1", holds)
        self.model, self.n_averaged = model, 0
        self._averages = model.state_dict()

    def update(self) -> None:
        """Update the average with the current parameters; call it after each step of the optimizer."""
        if any(parameter.device != HOST for parameter in self.model.parameters()):
            hint = "model.to('cpu')"
            raise PlaceError("AveragedModel", expected="parameters on cpu", got="parameters on cuda:0", hint=hint)
        self.n_averaged += 1
        share = 1 / self.n_averaged if self.decay is None or self.n_averaged == 1 else 1 - self.decay
        for name, parameter in self.model.named_parameters():
            average = self._averages[shard_name(name, parameter.shard)]
            average += share * (parameter.data - average)
        for name, buffer in self.model.named_buffers():  # moments are averages already
            self._averages[name][...] = buffer.value.data

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Let the model have the averages inside a `with` block, and its own parameters again afterwards."""
        own = self.model.state_dict()
        self.model.load_state_dict(self._averages)
        try:
            yield
        finally:
            self.model.load_state_dict(own)

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return copies of the averages by name, and the number of updates as "n_averaged"."""
        return {name: value.copy() for name, value in self._averages.items()} | {
            "n_averaged": np.array(self.n_averaged)
        }

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """Continue from the result of `state_dict`; an error changes nothing."""
        arrays, own = state_arrays(state, "AveragedModel"), self.state_dict()
        for name in own.keys() | arrays.keys():
            expected, got = (f"{d[name].shape} {d[name].dtype}" if name in d else "none" for d in (own, arrays))
            if expected != got:
                raise CheckpointError(f"AveragedModel, {name!r}", expected=expected, got=got)
        self.n_averaged = int(arrays.pop("n_averaged"))
        self._averages = {name: np.array(value, order="C") for name, value in arrays.items()}
