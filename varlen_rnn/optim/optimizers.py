"""Optimizers: SGD, Momentum, Adagrad and Adam, each one operator that takes dense and SelectedRows gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from varlen_rnn.checkpoint import state_arrays
from varlen_rnn.errors import CheckpointError, DTypeError, ShapeError, check_flag, check_list, check_number, shown
from varlen_rnn.tape.checks import FLOATS
from varlen_rnn.tape.modes import recorded
from varlen_rnn.tape.variable import Variable, backward, prepared


class Optimizer:
    """The base of optimizers: parameters, their states by name, and the learning rate.

    Parameters
    ----------
    parameters : iterable of Parameters
        One that is frozen (`requires_grad = False`) is left alone until it is thawed.
    lr : float
        Learning rate; the attribute may be set between steps.
    """

    op: str
    state_names: tuple[str, ...] = ()

    def __init__(self, parameters: Iterable[Variable], lr: float, **attrs: Any) -> None:
        self.parameters = check_list(parameters, "parameters", "a list of Parameters, as module.parameters()")
        for number, parameter in enumerate(self.parameters):
            if not _is_leaf(parameter):
                got = type(parameter).__name__
                raise DTypeError(f"parameters, entry {number}", expected="a Parameter", got=got)
            flags = parameter.value.data.flags
            if not (flags.c_contiguous and flags.writeable):
                expected, hint = "an array that can be updated in place", "nn.Parameter makes a copy that can"
                got = "one that is read-only, or not C-contiguous"
                raise ShapeError(f"parameters, entry {number}", expected=expected, got=got, hint=hint)
        if not self.parameters:
            raise ShapeError("parameters", expected="at least one Parameter", got="none")
        if len(set(self.parameters)) < len(self.parameters):
            hint = "it would be updated twice per step"
            raise ShapeError("parameters", expected="each Parameter once", got="one that is listed twice", hint=hint)
        self._lr = Variable(np.zeros((), np.float64), name="learning_rate", persistable=True)
        self.lr = lr
        self.attrs = attrs
        self._states: list[list[Variable] | None] = [None] * len(self.parameters)

    @property
    def lr(self) -> float:
        """The learning rate; a program that this optimizer recorded reads it at every run."""
        return self._lr.item()

    @lr.setter
    def lr(self, lr: float) -> None:
        self._lr.value.data[...] = _check_positive("lr", lr)

    def minimize(self, loss: Variable) -> None:
        """Drop the gradients, compute those of `loss`, and update every parameter; in a program, describe it.

        After an error, parameters and states are as they were; gradients were dropped, and some may have arrived.
        """
        self.zero_grad()
        backward(loss)
        self.step()

    def step(self) -> None:
        """Update every parameter that has a gradient, in place: all of them, or, on any error, none.

        In a program, each update is an operator of its own: an error in a run leaves those before it done.  After an
        interrupt (Ctrl-C), or where memory ends, some parameters may be updated and others not.

        Raises
        ------
        InputError
            A gradient of the wrong kind, shape or data type; an array that cannot be updated in place.
        """
        all_states, groups = list(self._states), {}
        for number, parameter in enumerate(self.parameters):
            target = recorded(parameter)
            if target.grad is None or not parameter.requires_grad:
                continue
            states = all_states[number]
            if states is None:
                states = all_states[number] = self._initial_states(parameter)
            if target is not parameter:  # a program's variables have names
                for name, state in zip(self.state_names, states, strict=True):
                    state.name = f"{target.name}.{name}"
            groups[f"parameters, entry {number}"] = target, target.grad, self._lr, *states
        update = prepared(self.op, groups, **self.attrs)
        self._states = all_states
        update()

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self.parameters:
            recorded(parameter).grad = None

    def _initial_states(self, parameter: Variable) -> list[Variable]:
        return [Variable(np.zeros_like(parameter.value.data), persistable=True) for _ in self.state_names]

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return the learning rate and copies of the states, by the parameter's number and the state's name."""
        state = {"lr": np.asarray(self.lr, np.float64)}
        for number, states in enumerate(self._states):
            for name, value in zip(self.state_names, states or (), strict=states is not None):
                state[f"{number}.{name}"] = value.value.data.copy()
        return state

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """Go on from what `state_dict` returned: all of it, or, on any error, nothing is changed.

        Raises
        ------
        CheckpointError
            A state that is missing or unexpected, or of the wrong shape or data type.
        """
        rest = state_arrays(state, "optimizer state")
        if "lr" not in rest or rest["lr"].shape != () or rest["lr"].dtype.kind != "f":
            raise CheckpointError("optimizer state", expected="'lr', a number", got=sorted(rest)[:8])
        lr = float(rest.pop("lr"))
        if not 0 <= lr < np.inf:
            raise CheckpointError("optimizer state, 'lr'", expected="finite and at least 0", got=lr)
        loaded = [self._load(number, parameter, rest) for number, parameter in enumerate(self.parameters)]
        if rest:
            raise CheckpointError("optimizer state", expected="no more names", got=sorted(rest)[:8])
        self.lr = lr
        for number, (states, values) in enumerate(zip(self._states, loaded, strict=True)):
            if states is None:
                self._states[number] = values
                continue
            # In place, for a program that was recorded holds the states themselves.
            for state, value in zip(states, values or self._initial_states(self.parameters[number]), strict=True):
                state.value.data[...] = value.value.data

    def _load(self, number: int, parameter: Variable, rest: dict[str, np.ndarray]) -> list[Variable] | None:
        names = [f"{number}.{name}" for name in self.state_names]
        if not any(name in rest for name in names):
            return None
        values = []
        for name, initial in zip(names, self._initial_states(parameter), strict=True):
            value = rest.pop(name, None)
            if value is None or value.shape != initial.shape or value.dtype != initial.dtype:
                got = None if value is None else f"{value.shape} {value.dtype}"
                raise CheckpointError(f"state {name!r}", expected=f"{initial.shape} {initial.dtype}", got=got)
            values.append(Variable(np.array(value, order="C"), persistable=True))
        return values


class SGD(Optimizer):
    """`p -= lr g`; a sparse gradient touches only its rows.

    Examples
    --------
    >>> from varlen_rnn.nn import Parameter
    >>> p = Parameter([1.0]); p.grad = np.array([2.0])
    >>> SGD([p], lr=0.25).step(); p.data
    array([0.5])

    Source: PaddlePaddle Fluid, operator `sgd`.
    """

    op = "sgd"

    def __init__(self, parameters: Iterable[Variable], lr: float) -> None:
        super().__init__(parameters, lr)


class Momentum(Optimizer):
    """`v = momentum v + g; p -= lr v`, or with Nesterov's `p -= lr (g + momentum v)`; all rows move.

    Examples
    --------
    >>> from varlen_rnn.nn import Parameter
    >>> p = Parameter([1.0]); p.grad = np.array([2.0])
    >>> Momentum([p], lr=0.25).step(); p.data
    array([0.5])

    Source: Polyak (1964), Nesterov (1983), in the form of PaddlePaddle Fluid's operator `momentum`.
    """

    op = "momentum"
    state_names = ("velocity",)

    def __init__(
        self, parameters: Iterable[Variable], lr: float, momentum: float = 0.9, nesterov: bool = False
    ) -> None:
        momentum = _check_positive("momentum", momentum)
        super().__init__(parameters, lr, momentum=momentum, nesterov=check_flag(nesterov, "nesterov"))


class Adagrad(Optimizer):
    """`m += g^2; p -= lr g / (sqrt(m) + epsilon)`; a sparse gradient touches only its rows, merged first.

    Examples
    --------
    >>> from varlen_rnn.nn import Parameter
    >>> p = Parameter([1.0]); p.grad = np.array([2.0])
    >>> Adagrad([p], lr=0.25).step(); p.data.round(4)
    array([0.75])

    Source: Duchi, Hazan and Singer (2011), in the form of PaddlePaddle Fluid's operator `adagrad`.
    """

    op = "adagrad"
    state_names = ("moment",)

    def __init__(self, parameters: Iterable[Variable], lr: float = 1e-2, epsilon: float = 1e-6) -> None:
        super().__init__(parameters, lr, epsilon=_check_positive("epsilon", epsilon))


class Adam(Optimizer):
    """Adaptive moments, corrected for their start at zero.

    `m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
    p -= lr sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + epsilon)`

    Parameters
    ----------
    parameters : iterable of Parameters
    lr : float
    betas : pair of float
    epsilon : float
        Added to the uncorrected root, as in the paper's section 2 and in Fluid.
    lazy : bool
        Whether a sparse gradient moves only its rows; otherwise moments decay and parameters move in all rows.

    Examples
    --------
    >>> from varlen_rnn.nn import Parameter
    >>> p = Parameter([1.0]); p.grad = np.array([2.0])
    >>> Adam([p], lr=0.25).step(); p.data.round(4)
    array([0.75])

    Source: Kingma and Ba (2015), in the form of PaddlePaddle Fluid's operator `adam`.
    """

    op = "adam"
    state_names = ("step", "moment1", "moment2")

    def __init__(
        self,
        parameters: Iterable[Variable],
        lr: float = 1e-3,
        betas: tuple[float, float] | list[float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        lazy: bool = False,
    ) -> None:
        if not isinstance(betas, (tuple, list)) or len(betas) != 2:
            raise ShapeError("betas", expected="a pair of numbers", got=shown(betas))
        beta1, beta2 = (_check_fraction("betas", beta) for beta in betas)
        epsilon, lazy = _check_positive("epsilon", epsilon), check_flag(lazy, "lazy")
        super().__init__(parameters, lr, beta1=beta1, beta2=beta2, epsilon=epsilon, lazy=lazy)

    def _initial_states(self, parameter: Variable) -> list[Variable]:
        return [Variable(np.zeros((), np.int64), persistable=True), *super()._initial_states(parameter)[1:]]

    def _load(self, number: int, parameter: Variable, rest: dict[str, np.ndarray]) -> list[Variable] | None:
        values = super()._load(number, parameter, rest)
        if values is not None and not 0 <= (step := values[0].item()) < np.iinfo(np.int64).max:
            raise CheckpointError(f"state '{number}.step'", expected="at least 0, and less than 2**63 - 1", got=step)
        return values


def _is_leaf(parameter: object) -> bool:
    """Return whether a value is a Variable that an optimizer may update, perhaps when it is thawed."""
    if not isinstance(parameter, Variable) or parameter.record is not None:
        return False
    return parameter.requires_grad or (parameter.persistable and parameter.dtype in FLOATS)


def _check_positive(name: str, value: float) -> float:
    return check_number(value, name, "finite and at least 0", lambda number: 0 <= number < np.inf)


def _check_fraction(name: str, value: float) -> float:
    return check_number(value, name, "at least 0 and less than 1", lambda number: 0 <= number < 1)
