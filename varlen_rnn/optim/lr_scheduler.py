"""Schedules: the learning rate of each group as a function of the steps taken.

Names, arguments and numbers are as in `torch.optim.lr_scheduler`.  Rates depend only on the optimizer's rate when the
schedule was made and on the number of steps, so a schedule resumes from its `state_dict` exactly.  A recorded program
reads the rate at every run.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from varlen_rnn.errors import (
    POSITIVE,
    SHARE,
    CheckpointError,
    DTypeError,
    InputError,
    OutOfRangeError,
    ShapeError,
    check_callable,
    check_choice,
    check_int,
    check_list,
    check_number,
    count,
    shown,
)
from varlen_rnn.optim.groups import check_fraction, check_positive
from varlen_rnn.optim.optimizers import Optimizer
from varlen_rnn.tape.modes import recorder

__all__ = [
    "CosineAnnealingLR", "ExponentialLR", "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR", "OneCycleLR",
    "ReduceLROnPlateau", "SequentialLR", "StepLR",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__


def _steps(value: int, name: str, minimum: int) -> int:
    """Return a number of steps, at most 2**53, up to which float64 counts; raise unless it is at least `minimum`."""
    return min(check_int(value, name, minimum), 2**53)


def _per_group(optimizer: Optimizer, value: Any, name: str, noun: str) -> list[Any]:
    """Return a list with an entry for each group of the optimizer: the list `value`, or `value` for every group."""
    number = len(optimizer.param_groups) if isinstance(optimizer, Optimizer) else 1
    entries = list(value) if isinstance(value, (list, tuple)) else [value] * number
    if len(entries) != number:
        raise ShapeError(name, expected=f"{count(number, noun)}, one per group", got=count(len(entries), noun))
    return entries


# The types of values in a state, by name; values with other names are counts (int).
_KINDS: dict[str, tuple[type, ...]] = {"base_lrs": (int, float), "best": (int, float, type(None))}


class LRScheduler:
    """The base of schedules.  Call `step` after each step of the optimizer, or after each epoch, as you prefer.

    Parameters
    ----------
    optimizer : Optimizer

    Attributes
    ----------
    base_lrs : list of float
        The rate of each group when its first schedule was made.
    last_epoch : int
        The number of calls of `step`.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise DTypeError("optimizer", expected="an optimizer of varlen_rnn.optim", got=shown(optimizer))
        self.optimizer = optimizer
        self.base_lrs = []
        for group in optimizer.param_groups:  # not set again, because an earlier schedule may have changed the rate
            group.initial_lr = group["lr"] if group.initial_lr is None else group.initial_lr
            self.base_lrs.append(group.initial_lr)
        self.last_epoch = 0
        self._set()

    def rate(self, base: float, step: int) -> float:
        """Return the rate at a step, for a group whose rate was `base`; subclasses define this method."""
        raise NotImplementedError

    def rates(self, step: int) -> list[float]:
        """Return the rate of each group at a step."""
        return [self.rate(base, step) for base in self.base_lrs]

    def step(self) -> None:
        """Set the rates of the next step."""
        if (into := recorder()) is not None:
            into.changes("a schedule advanced")
        self.last_epoch += 1
        self._set()

    def _set(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self.rates(self.last_epoch), strict=False):
            group["lr"] = rate

    def get_last_lr(self) -> list[float]:
        """Return the current rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the values that change, as values that JSON can hold."""
        return {"base_lrs": list(self.base_lrs), "last_epoch": self.last_epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state_dict`; the optimizer's state has the rates.

        Raises
        ------
        CheckpointError
            If it is the state of another schedule.
        """
        expected = self.state_dict()
        if not isinstance(state, Mapping) or state.keys() != expected.keys():
            what = f"a dict with the keys {sorted(expected)}"
            raise CheckpointError("state of a schedule", expected=what, got=shown(state))
        for name, value in state.items():
            numbers, own = (v if isinstance(v, list) else [v] for v in (value, expected[name]))
            if len(numbers) != len(own) or not all(isinstance(n, _KINDS.get(name, int)) for n in numbers):
                what = f"state of a schedule, {name!r}"
                expected_value = f"a value of the kind of {expected[name]}"
                raise CheckpointError(what, expected=expected_value, got=shown(value))
        vars(self).update({name: list(value) if isinstance(value, list) else value for name, value in state.items()})


class LambdaLR(LRScheduler):
    """Multiply the rate by a function of the step.

    Parameters
    ----------
    optimizer
    lr_lambda : function, or list of one per group
        It takes the number of steps and returns a factor.

    Examples
    --------
    >>> optimizer = vr.optim.SGD([vr.nn.Parameter([1.0])], lr=1.0)
    >>> schedule = LambdaLR(optimizer, lambda step: 0.5 ** step)
    >>> schedule.step(); schedule.step(); optimizer.lr
    0.25
    """

    def __init__(self, optimizer: Optimizer, lr_lambda: Callable[[int], float] | list[Callable[[int], float]]) -> None:
        functions = _per_group(optimizer, lr_lambda, "lr_lambda", "function")
        self._factors = [check_callable(function, "lr_lambda") for function in functions]
        super().__init__(optimizer)

    def rates(self, step: int) -> list[float]:
        """Return the rate of each group at a step."""
        return [base * factor(step) for base, factor in zip(self.base_lrs, self._factors, strict=True)]


class StepLR(LRScheduler):
    """Multiply the rate by `gamma` after every `step_size` steps."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        self.step_size, self.gamma = _steps(step_size, "step_size", 1), check_positive("gamma", gamma)
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        """Return the rate at a step."""
        return base * self.gamma ** (step // self.step_size)


class MultiStepLR(LRScheduler):
    """Multiply the rate by `gamma` at each listed step; a step that is listed twice counts twice."""

    def __init__(self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1) -> None:
        numbers = [check_int(step, "milestones", 0) for step in check_list(milestones, "milestones")]
        self._milestones, self.gamma = sorted(numbers), check_positive("gamma", gamma)
        self.milestones = Counter(numbers)
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        """Return the rate at a step."""
        return base * self.gamma ** bisect.bisect_right(self._milestones, step)


class ExponentialLR(LRScheduler):
    """Multiply the rate by `gamma` at every step."""

    def __init__(self, optimizer: Optimizer, gamma: float) -> None:
        self.gamma = check_positive("gamma", gamma)
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        """Return the rate at a step."""
        return base * self.gamma**step


class LinearLR(LRScheduler):
    """Multiply the rate by a factor that goes linearly from `start_factor` to `end_factor` in `total_iters` steps.

    Examples
    --------
    >>> optimizer = vr.optim.SGD([vr.nn.Parameter([1.0])], lr=1.0)
    >>> schedule = LinearLR(optimizer, start_factor=0.5, total_iters=2)
    >>> rates = [optimizer.lr]
    >>> for _ in range(3): schedule.step(); rates.append(optimizer.lr)
    >>> rates
    [0.5, 0.75, 1.0, 1.0]
    """

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1 / 3, end_factor: float = 1.0, total_iters: int = 5
    ) -> None:
        self.start_factor = check_number(start_factor, "start_factor", "more than 0, at most 1", lambda f: 0 < f <= 1)
        self.end_factor = check_number(end_factor, "end_factor", *SHARE)
        self.total_iters = _steps(total_iters, "total_iters", 1)
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        """Return the rate at a step."""
        share = min(step, self.total_iters) / self.total_iters
        return base * (self.start_factor + (self.end_factor - self.start_factor) * share)


class CosineAnnealingLR(LRScheduler):
    """Lower the rate to `eta_min` along half a cosine in `T_max` steps, and raise it again in as many.

    Source: Loshchilov and Hutter (2017), without restarts.
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:
        self.T_max, self.eta_min = _steps(T_max, "T_max", 1), check_positive("eta_min", eta_min)
        super().__init__(optimizer)

    def rate(self, base: float, step: int) -> float:
        """Return the rate at a step."""
        return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * step / self.T_max)) / 2


class OneCycleLR(LRScheduler):
    """Raise the rate to `max_lr`, then lower it to almost 0: one cycle over all steps of the training.

    Parameters
    ----------
    optimizer
    max_lr : float, or list of one per group
    total_steps : int, optional
        By default `epochs` times `steps_per_epoch`.
    pct_start : float
        The share of the steps in which the rate rises.
    anneal_strategy : {"cos", "linear"}
    div_factor : float
        The first rate is `max_lr / div_factor`.
    final_div_factor : float
        The last rate is the first rate divided by `final_div_factor`.

    Raises
    ------
    OutOfRangeError
        If a step is beyond the last one.

    Source: Smith and Topin (2018), in the form of PyTorch's with `cycle_momentum=False`.

    Examples
    --------
    >>> optimizer = vr.optim.SGD([vr.nn.Parameter([1.0])], lr=1.0)
    >>> schedule = OneCycleLR(optimizer, 1.0, total_steps=5, pct_start=0.6, anneal_strategy="linear", div_factor=5.0)
    >>> rates = [optimizer.lr]
    >>> for _ in range(4): schedule.step(); rates.append(round(optimizer.lr, 3))
    >>> rates
    [0.2, 0.6, 1.0, 0.5, 0.0]
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: Literal["cos", "linear"] = "cos",
        *,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
    ) -> None:
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise InputError("OneCycleLR", expected="total_steps, or epochs and steps_per_epoch", got="neither")
            total_steps = _steps(epochs, "epochs", 1) * _steps(steps_per_epoch, "steps_per_epoch", 1)
        self.total_steps = _steps(total_steps, "total_steps", 1)
        self.pct_start = check_number(pct_start, "pct_start", *SHARE)
        self.anneal_strategy = check_choice(anneal_strategy, "anneal_strategy", "cos", "linear")
        self.div_factor = check_number(div_factor, "div_factor", *POSITIVE)
        self.final_div_factor = check_number(final_div_factor, "final_div_factor", *POSITIVE)
        self._highest = [check_positive("max_lr", rate) for rate in _per_group(optimizer, max_lr, "max_lr", "rate")]
        super().__init__(optimizer)

    def rates(self, step: int) -> list[float]:
        """Return the rate of each group at a step."""
        if step > self.total_steps:
            expected = f"at most {self.total_steps}, the number of steps of the cycle"
            raise OutOfRangeError("OneCycleLR, step", expected=expected, got=step)
        top, last = self.pct_start * self.total_steps - 1, self.total_steps - 1
        rising = step <= top
        share = step / top if rising and top else (step - top) / (last - top) if last > top else 1.0
        found = []
        for highest in self._highest:
            first = highest / self.div_factor
            begin, end = (first, highest) if rising else (highest, first / self.final_div_factor)
            if self.anneal_strategy == "linear":
                found.append(max(0.0, begin + (end - begin) * share))
            else:
                found.append(end + (begin - end) * (1 + math.cos(math.pi * share)) / 2)
        return found


class SequentialLR(LRScheduler):
    """Follow one schedule after another; at each milestone the next schedule begins at its own step 0.

    Parameters
    ----------
    optimizer
    schedulers : list of LRScheduler
        Schedules of this optimizer; their rates depend on the optimizer's initial rate.
    milestones : list of int
        The steps at which the next schedule begins; one entry fewer than schedules.
    """

    def __init__(self, optimizer: Optimizer, schedulers: list[LRScheduler], milestones: list[int]) -> None:
        self._schedulers = check_list(schedulers, "schedulers", "a list of schedules")
        for number, schedule in enumerate(self._schedulers):
            if not isinstance(schedule, LRScheduler) or schedule.optimizer is not optimizer:
                expected = "a schedule of the same optimizer"
                raise DTypeError(f"schedulers, entry {number}", expected=expected, got=shown(schedule))
        self._milestones = [check_int(step, "milestones", 1) for step in check_list(milestones, "milestones")]
        rising = all(a < b for a, b in zip(self._milestones, self._milestones[1:], strict=False))
        if len(self._schedulers) != len(self._milestones) + 1 or not rising:
            expected = f"{count(len(self._schedulers) - 1, 'rising step')}, one fewer than the schedules"
            raise ShapeError("milestones", expected=expected, got=shown(milestones))
        super().__init__(optimizer)

    def rates(self, step: int) -> list[float]:
        """Return the rate of each group at a step."""
        number = bisect.bisect_right(self._milestones, step)
        return self._schedulers[number].rates(step - (self._milestones[number - 1] if number else 0))


class ReduceLROnPlateau:
    """Multiply the rate by `factor` if a number has not improved for more than `patience` steps.

    Parameters
    ----------
    optimizer
    mode : {"min", "max"}
        Whether less or more is better.
    factor : float
        Less than 1.
    patience : int
        The number of steps without improvement that are tolerated.
    threshold : float
    threshold_mode : {"rel", "abs"}
        An improvement must exceed `threshold`: times the best number ("rel"), or in absolute terms ("abs").
    cooldown : int
        Steps after a reduction that do not count.
    min_lr : float
    eps : float
        The rate stays if it would change by no more than this.

    Examples
    --------
    >>> optimizer = vr.optim.SGD([vr.nn.Parameter([1.0])], lr=1.0)
    >>> schedule = ReduceLROnPlateau(optimizer, patience=1)
    >>> for loss in (3.0, 2.0, 2.0, 2.0): schedule.step(loss)
    >>> optimizer.lr
    0.1
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: Literal["min", "max"] = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: Literal["rel", "abs"] = "rel",
        cooldown: int = 0,
        min_lr: float = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise DTypeError("optimizer", expected="an optimizer of varlen_rnn.optim", got=shown(optimizer))
        self.optimizer = optimizer
        self.mode = check_choice(mode, "mode", "min", "max")
        self.factor = check_fraction("factor", factor)
        self.patience, self.cooldown = _steps(patience, "patience", 0), _steps(cooldown, "cooldown", 0)
        self.threshold = check_positive("threshold", threshold)
        self.threshold_mode = check_choice(threshold_mode, "threshold_mode", "rel", "abs")
        self.min_lr, self.eps = check_positive("min_lr", min_lr), check_positive("eps", eps)
        self.best: float | None = None
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0

    def step(self, metrics: float) -> None:
        """Compare a number with the best so far; lower the rate after more than `patience` steps without progress."""
        if (into := recorder()) is not None:
            into.changes("a schedule advanced")
        value = check_number(metrics, "metrics", "any", lambda number: True)
        self.last_epoch += 1
        if self._is_better(value):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            for group in self.optimizer.param_groups:
                rate = max(group["lr"] * self.factor, self.min_lr)
                if group["lr"] - rate > self.eps:
                    group["lr"] = rate
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0

    def _is_better(self, value: float) -> bool:
        sign = 1 if self.mode == "max" else -1
        if self.best is None:
            return sign * value > -math.inf
        if self.threshold_mode == "rel":
            return sign * value > sign * self.best * (1 + sign * self.threshold)
        return sign * value > sign * self.best + self.threshold

    get_last_lr = LRScheduler.get_last_lr
    load_state_dict = LRScheduler.load_state_dict

    def state_dict(self) -> dict[str, Any]:
        """Return the values that change, as values that JSON can hold."""
        return {name: getattr(self, name) for name in ("best", "num_bad_epochs", "cooldown_counter", "last_epoch")}
