"""The moving average of a model's weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from varlen_rnn.checkpoint import state_arrays
from varlen_rnn.errors import SHARE, CheckpointError, DTypeError, check_number, shown
from varlen_rnn.runtime.device import copy_into, moved, on_device
from varlen_rnn.runtime.place import HOST
from varlen_rnn.shards import shard_name
from varlen_rnn.tape.checks import FLOATS
from varlen_rnn.tape.gradient import was_updated
from varlen_rnn.tape.modes import no_grad, recorder, recording
from varlen_rnn.tape.variable import Variable


class AveragedModel:
    """The average of a model's parameters over updates, to evaluate the model with it instead of the last parameters.

    Parameters
    ----------
    model : nn.Module
    decay : float or None
        Each update sets `average = decay average + (1 - decay) parameter`.  None means the mean over all updates.  The
        first update copies the parameters.  The averages are on the device of the parameters.

    Examples
    --------
    >>> model = vr.nn.Linear(1, 1, bias=False)
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
        self.decay = None if decay is None else check_number(decay, "decay", *SHARE)
        self.model, self.n_averaged = model, 0
        self._averages = {name: variable.value.data.copy() for name, variable in self._kept()}

    def _kept(self) -> list[tuple[str, Any]]:
        parameters = [
            (shard_name(name, parameter.shard), parameter) for name, parameter in self.model.named_parameters()
        ]
        return parameters + self.model.named_buffers()

    def _average_of(self, name: str, variable: Any) -> Any:
        self._averages[name] = moved(self._averages[name], variable.device)
        return self._averages[name]

    def update(self) -> None:
        """Update the average with the current parameters; call it after each step of the optimizer."""
        if (into := recorder()) is not None:
            into.changes("an average updated")
        self.n_averaged += 1
        share = 1 / self.n_averaged if self.decay is None or self.n_averaged == 1 else 1 - self.decay
        buffers = {name for name, _ in self.model.named_buffers()}
        for name, variable in self._kept():
            average, array = self._average_of(name, variable), variable.value.data
            if name in buffers or array.dtype not in FLOATS:  # copy float16, and batch moments, which are averages
                copy_into(average, array)
            else:
                with no_grad(), recording(None):
                    before = Variable(average)
                    copy_into(average, (before + (Variable(array) - before) * share).value.data)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the averages inside a `with` block; afterwards, give its own parameters back."""
        own = [(variable, variable.value.data.copy()) for _, variable in self._kept()]
        for name, variable in self._kept():
            _overwrite(variable, self._average_of(name, variable))
        try:
            yield
        finally:
            for variable, array in own:
                _overwrite(variable, moved(array, variable.device))

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return copies of the averages by name, on the host, and the number of updates as "n_averaged"."""
        averages = {
            name: moved(value, HOST) if on_device(value) else value.copy() for name, value in self._averages.items()
        }
        return averages | {"n_averaged": np.array(self.n_averaged)}

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """Continue from the result of `state_dict`; an error changes nothing."""
        arrays, own = state_arrays(state, "AveragedModel"), self.state_dict()
        for name in own.keys() | arrays.keys():
            expected, got = (
                f"shape {d[name].shape}, type {d[name].dtype}" if name in d else "no such array" for d in (own, arrays)
            )
            if expected != got:
                raise CheckpointError(f"AveragedModel, {name!r}", expected=expected, got=got)
        self.n_averaged = int(arrays.pop("n_averaged"))
        self._averages = {name: np.array(value, order="C") for name, value in arrays.items()}


def _overwrite(variable: Any, array: Any) -> None:
    copy_into(variable.value.data, array)
    was_updated(variable)
