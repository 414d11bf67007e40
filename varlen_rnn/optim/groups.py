"""Groups of parameters, with the options that a group shares; an option is checked whenever it is set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np

from varlen_rnn.errors import NOT_NEGATIVE, DTypeError, InputError, ShapeError, check_flag, check_number, shown
from varlen_rnn.tape.modes import recorder
from varlen_rnn.tape.variable import Variable


def check_positive(name: str, value: Any) -> float:
    """Return `value` as a number of at least 0, or raise an error that names it `name`."""
    return check_number(value, name, *NOT_NEGATIVE)


def check_fraction(name: str, value: Any) -> float:
    """Return `value` as a number of at least 0 and less than 1, or raise an error that names it `name`."""
    return check_number(value, name, "at least 0 and less than 1", lambda number: 0 <= number < 1)


def _check_betas(name: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ShapeError(name, expected="a pair of numbers", got=shown(value))
    first, second = (check_fraction(name, beta) for beta in value)
    return first, second


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "lr": check_positive,
    "momentum": check_positive,
    "weight_decay": check_positive,
    "eps": check_positive,
    "epsilon": lambda name, value: None if value is None else check_positive(name, value),
    "alpha": check_fraction,
    "rho": check_fraction,
    "betas": _check_betas,
    "nesterov": lambda name, value: check_flag(value, name),
    "lazy": lambda name, value: check_flag(value, name),
}


def settle(parameters: Iterable[Variable]) -> None:
    """Send gradients of divided tables to the ranks that have the rows; with such tables, every rank must call it."""
    if recorder() is None:
        for parameter in parameters:
            if parameter.shard is not None:
                parameter.shard.settle(parameter)


def checked_options(options: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Return checked and converted options, or raise an error that names the invalid option."""
    return {name: _CHECKS[name](where + name, value) for name, value in options.items()}


class ParamGroup(MutableMapping[str, Any]):
    """Parameters and the options that they share, as a dict: "params", "lr", "weight_decay" and so on.

    The next step uses the current options.  A recorded program reads "lr" at every run; its other options are constants
    of its operators.

    Examples
    --------
    >>> group = vr.optim.SGD([vr.nn.Parameter([1.0])], lr=0.5).param_groups[0]
    >>> group["lr"] = 0.25
    >>> group["lr"], group["momentum"]
    (0.25, 0.0)
    """

    def __init__(self, params: list[Variable], options: dict[str, Any]) -> None:
        self.params, self._options = params, options
        self.rate = Variable(np.array(options["lr"], np.float64), name="learning_rate", persistable=True)
        self.initial_lr: float | None = None  # the learning rate when the first schedule of the group was made

    def __getitem__(self, name: str) -> Any:
        if name == "lr":  # read from the Variable, because a run of a program may have changed it
            return self.rate.item()
        return self.params if name == "params" else self._options[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str) or name not in self._options:
            hint = "add parameters with add_param_group" if isinstance(name, str) and name == "params" else None
            expected = f"an option, one of {list(self._options)}"
            raise InputError("param_groups", expected=expected, got=shown(name), hint=hint)
        if (into := recorder()) is not None:
            into.changes(f"{name} of an optimizer set")
        self._options |= checked_options({name: value})
        if name == "lr":
            self.rate.value.data[...] = self._options[name]

    def __delitem__(self, name: str) -> None:
        raise DTypeError("param_groups", expected="options that are only set", got=f"del group[{shown(name)}]")

    def __iter__(self) -> Iterator[str]:
        return iter(["params", *self._options])

    def __len__(self) -> int:
        return 1 + len(self._options)

    def __repr__(self) -> str:
        return f"ParamGroup({len(self.params)} parameters, {', '.join(f'{k}={self[k]!r}' for k in self._options)})"
