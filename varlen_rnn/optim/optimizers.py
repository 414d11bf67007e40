"""Optimizers.  Each update rule is an operator that takes dense and SelectedRows gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from varlen_rnn.checkpoint import state_arrays
from varlen_rnn.errors import (
    CheckpointError,
    DTypeError,
    InputError,
    ShapeError,
    check_flag,
    check_list,
    hinting,
    shown,
)
from varlen_rnn.optim.groups import ParamGroup, check_positive, checked_options, settle
from varlen_rnn.random import next_step
from varlen_rnn.runtime import device_array
from varlen_rnn.runtime.device import moved, on_device, overwrite, zeros
from varlen_rnn.runtime.maps import zeros_beside
from varlen_rnn.runtime.place import HOST
from varlen_rnn.shards import find_rows, names_of, shard_name
from varlen_rnn.tape.backward import backward
from varlen_rnn.tape.in_place import prepared
from varlen_rnn.tape.modes import recorded, recorder
from varlen_rnn.tape.operator import find
from varlen_rnn.tape.values import zeros_like
from varlen_rnn.tape.variable import Variable

_STATES = slice(3, None)  # an update's inputs after the parameter, the gradient and the learning rate are states
_FASTER = "leave it out: there is only one implementation"
_of_pytorch = hinting(params="its name is parameters", foreach=_FASTER, fused=_FASTER)


class Optimizer:
    """The base of optimizers: parameters in groups, their states by name, and the learning rates.

    Parameters
    ----------
    parameters : iterable of Parameters, or of dicts
        A frozen parameter (`requires_grad = False`) is not updated until it requires a gradient again.  A dict is a
        group with options of its own, such as `{"params": [...], "lr": 0.1}`; other options are the optimizer's.
    **options
        The options of groups that do not set them.

    Attributes
    ----------
    param_groups : list of ParamGroup
        A dict of each group's options; `optimizer.param_groups[0]["lr"] = 0.1` takes effect at the next step.
    parameters : list of Parameters
        The parameters of all groups.
    """

    def __init__(self, parameters: Iterable[Any], **options: Any) -> None:
        self.defaults = checked_options(options)
        self.param_groups: list[ParamGroup] = []
        self.parameters: list[Variable] = []
        self._states: list[list[Variable] | None] = []
        entries = check_list(parameters, "parameters", "a list of Parameters, as module.parameters()")
        groups = entries if entries and isinstance(entries[0], Mapping) else [{"params": entries}]
        for group in groups:
            self.add_param_group(group)
        if not self.parameters:
            raise ShapeError("parameters", expected="at least one Parameter", got="an empty list")

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Add parameters, with options of their own.

        Parameters
        ----------
        group : dict
            "params", and any of the optimizer's options.
        """
        where = f"parameters, group {len(self.param_groups)}, " if self.param_groups else ""
        if not isinstance(group, Mapping) or "params" not in group:
            raise DTypeError(f"{where}parameters", expected="dicts with the key 'params'", got=shown(group))
        own = {name: value for name, value in group.items() if name != "params"}
        unknown = [name for name in own if name not in self.defaults]
        if unknown:
            expected = f"options among {list(self.defaults)}"
            raise InputError(f"{where}parameters", expected=expected, got=shown(unknown[0]))
        options = self.defaults | checked_options(own, where)
        params = [group["params"]] if isinstance(group["params"], Variable) else group["params"]
        params = check_list(params, "parameters", "a list of Parameters, as module.parameters()")
        for number, parameter in enumerate(params, len(self.parameters)):
            _check_parameter(parameter, f"parameters, entry {number}")
        together = [*self.parameters, *params]
        if len(set(together)) < len(together):
            hint = "a step would update it twice"
            raise ShapeError("parameters", expected="different Parameters", got="a Parameter twice", hint=hint)
        self.param_groups.append(ParamGroup(params, options))
        self.parameters = together
        self._states += [None] * len(params)

    @property
    def lr(self) -> float:
        """The learning rate of the first group; setting it sets all groups.

        Programs that were recorded before use the new rate, too: they read it at every run.
        """
        return self.param_groups[0]["lr"]

    @lr.setter
    def lr(self, lr: float) -> None:
        lr = check_positive("lr", lr)
        for group in self.param_groups:
            group["lr"] = lr

    _update = ""  # the name of the update operator

    def _update_of(self, group: ParamGroup) -> str:
        return self._update

    def _constant(self, group: ParamGroup, name: str) -> Any:
        """Return the value of an operator's constant, from the options of a group."""
        if name == "epsilon":
            return group["eps"] if group.get("epsilon") is None else group["epsilon"]
        return group["betas"][int(name[-1]) - 1] if name in ("beta1", "beta2") else group[name]

    def minimize(self, loss: Variable) -> None:
        """Drop old gradients, compute the gradients of `loss`, and update every parameter; a program records all three.

        After an error, parameters and states are unchanged, but old gradients are gone, and some new ones may be set.
        """
        self.zero_grad()
        backward(loss)
        self.step()

    def step(self) -> None:
        """Update every parameter that has a gradient, in place; if there is any error, update none.

        In a program, each update is an operator of its own, so an error in a run leaves earlier updates done.  After an
        interrupt (Ctrl-C), or if memory runs out, some parameters may be updated and others not.

        Raises
        ------
        InputError
            If a gradient has the wrong kind, shape or data type, or an array cannot be updated in place.
        """
        if (into := recorder()) is not None:
            into.meets(self)
        settle(self.parameters)
        all_states, updates, first = list(self._states), [], 0
        for group in self.param_groups:
            op, entries = find(self._update_of(group)), {}
            names = op.inputs[_STATES]
            for number, parameter in enumerate(group.params, first):
                target = recorded(parameter)
                if target.grad is None or not parameter.requires_grad:
                    continue
                states = all_states[number]
                if states is None or len(states) != len(names):
                    states = all_states[number] = self._initial_states(parameter, names)
                if device_array.in_use:
                    _follow(parameter, names, states)
                if target is not parameter:  # states need names, because a program is being recorded
                    for name, state in zip(names, states, strict=True):
                        state.name = f"{target.name}.{name}"
                entries[f"parameters, entry {number}"] = target, target.grad, group.rate, *states
            first += len(group.params)
            updates.append(prepared(op.type, entries, **{name: self._constant(group, name) for name in op.attrs}))
        self._states = all_states
        for update in updates:
            update()
        if recorder() is None:
            next_step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients.

        Parameters
        ----------
        set_to_none : bool
            Whether `grad` becomes None, so that `step` does not change a parameter that the next loss does not reach.
            Otherwise a gradient becomes zeros, so that momentum and weight decay still move it.  In a program, `grad`
            becomes None in both cases.
        """
        set_to_none = check_flag(set_to_none, "zero_grad, set_to_none") or recorder() is not None
        if (into := recorder()) is not None:
            into.clears(self.parameters)
        for parameter in self.parameters:
            target = recorded(parameter)
            target.grad = None if set_to_none else zeros_like(target.grad)

    def _initial_states(self, parameter: Variable, names: tuple[str, ...]) -> list[Variable]:
        return [Variable(self._initial(name, parameter), persistable=True) for name in names]

    def _initial(self, name: str, parameter: Variable) -> np.ndarray:
        """Return the initial value of a state: zeros beside the parameter, or the number 0 for "step", on the host."""
        if name == "step":
            return np.zeros((), np.int64)
        data = parameter.value.data
        return zeros(data.shape, data) if on_device(data) else zeros_beside(data)

    def _names(self) -> list[tuple[str, ...]]:
        return [find(self._update_of(group)).inputs[_STATES] for group in self.param_groups for _ in group.params]

    def state_dict(self, copy: bool = True) -> dict[str, np.ndarray]:
        """Return learning rates and states as arrays on the host, named by the parameter's number and the state's name.

        The rate of the first group is named "lr", the next "lr.1", and so on.

        Parameters
        ----------
        copy : bool
            Whether to return copies, which later steps do not change; without copies, `vr.save` can write states that
            are larger than the memory.
        """
        copied = check_flag(copy, "state_dict, copy")
        state = {name: np.asarray(group["lr"], np.float64) for name, group in self._rates()}
        for number, (states, names) in enumerate(zip(self._states, self._names(), strict=True)):
            if states is None or len(states) != len(names):  # an option has changed, so the next step makes new states
                continue
            for name, value in zip(names, states, strict=True):
                shard = None if name == "step" else self.parameters[number].shard
                own = value.value.data
                here = own.copy() if copied and not on_device(own) else moved(own, HOST)
                state[shard_name(f"{number}.{name}", shard)] = here
        return state

    def _rates(self) -> list[tuple[str, ParamGroup]]:
        return [(f"lr.{number}" if number else "lr", group) for number, group in enumerate(self.param_groups)]

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """Continue from the result of `state_dict`; an error changes nothing.

        Raises
        ------
        CheckpointError
            If a state is missing or unexpected, or has the wrong shape or data type.
        """
        rest = state_arrays(state, "optimizer state")
        rates = [_rate_of(rest, name) for name, _ in self._rates()]
        names = self._names()
        pairs = enumerate(zip(self.parameters, names, strict=True))
        loaded = [self._load(number, parameter, own, rest) for number, (parameter, own) in pairs]
        if rest:
            expected, got = "only the names of this optimizer's states", f"also {sorted(rest)[:8]}"
            raise CheckpointError("optimizer state", expected=expected, got=got)
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate
        for number, (states, values) in enumerate(zip(self._states, loaded, strict=True)):
            if states is None or len(states) != len(names[number]):
                self._states[number] = values
                continue
            # Overwrite states in place, because a recorded program holds the same Variables.
            fresh = values or self._initial_states(self.parameters[number], names[number])
            if device_array.in_use:
                _follow(self.parameters[number], names[number], states)
            for state, value in zip(states, fresh, strict=True):
                overwrite(state.value.data, ..., value.value.data)

    def _load(
        self, number: int, parameter: Variable, names: tuple[str, ...], rest: dict[str, np.ndarray]
    ) -> list[Variable] | None:
        if not any(names_of(rest, f"{number}.{name}") for name in names):
            return None
        values = self._initial_states(parameter, names)
        for name, state in zip(names, values, strict=True):
            key, shard = f"{number}.{name}", None if name == "step" else parameter.shard
            parts = find_rows(rest, key, shard, state, "state ")
            if parts is None:
                expected = f"an array of shape {state.shape} and type {state.dtype}"
                raise CheckpointError(f"state {key!r}", expected=expected, got="no such array, or only some rows")
            for rows, array in parts:
                overwrite(state.value.data, rows if array.ndim else ..., array)
            if name == "step" and not 0 <= state.item() < np.iinfo(np.int64).max:
                expected = "a number of steps from 0 to 2**63 - 2"
                raise CheckpointError(f"state {key!r}", expected=expected, got=state.item())
            for other in names_of(rest, key):
                del rest[other]
        return values


class SGD(Optimizer):
    """`p -= lr g`, or with momentum `v = momentum v + g; p -= lr v`.

    Without momentum, a sparse gradient changes only its rows.

    Parameters
    ----------
    parameters, lr
    momentum : float
        If it is not 0, all rows change, as in `Momentum`.
    weight_decay : float
        `weight_decay` times the parameter is added to the gradient, in the rows that change.
    nesterov : bool
        Whether to update by `p -= lr (g + momentum v)`.

    Examples
    --------
    >>> p = vr.nn.Parameter([1.0]); p.grad = np.array([2.0])
    >>> SGD([p], lr=0.25).step(); p.data
    array([0.5])

    Source: PaddlePaddle Fluid, operator `sgd`; `torch.optim.SGD`, without dampening.
    """

    @_of_pytorch
    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float,
        momentum: float = 0.0,
        *,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov)

    def _update_of(self, group: ParamGroup) -> str:
        return "momentum" if group["momentum"] else "sgd"


class Momentum(SGD):
    """`v = momentum v + g; p -= lr v`, or with Nesterov's `p -= lr (g + momentum v)`; all rows change.

    Examples
    --------
    >>> p = vr.nn.Parameter([1.0]); p.grad = np.array([2.0])
    >>> Momentum([p], lr=0.25).step(); p.data
    array([0.5])

    Source: Polyak (1964), Nesterov (1983), in the form of PaddlePaddle Fluid's operator `momentum`.
    """

    @_of_pytorch
    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float,
        momentum: float = 0.9,
        *,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr, momentum, weight_decay=weight_decay, nesterov=nesterov)

    def _update_of(self, group: ParamGroup) -> str:
        return "momentum"


class Adagrad(Optimizer):
    """`m += g^2; p -= lr g / (sqrt(m) + eps)`; a sparse gradient is merged first, and changes only its rows.

    Parameters
    ----------
    parameters, lr
    eps : float
        A small number that keeps the quotient finite.
    weight_decay : float
        `weight_decay` times the parameter is added to the gradient, in the rows that change.
    initial_accumulator_value : float
        The initial value of `m`.
    epsilon : float, optional
        Fluid's name for `eps`, with the default 1e-6 there.

    Examples
    --------
    >>> p = vr.nn.Parameter([1.0]); p.grad = np.array([2.0])
    >>> Adagrad([p], lr=0.25).step(); p.data.round(4)
    array([0.75])

    Source: Duchi, Hazan and Singer (2011), in the form of Fluid's operator `adagrad` and of `torch.optim.Adagrad`.
    """

    _update = "adagrad"

    @_of_pytorch
    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float = 1e-2,
        *,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        epsilon: float | None = None,
    ) -> None:
        self._start = check_positive("initial_accumulator_value", initial_accumulator_value)
        super().__init__(parameters, lr=lr, eps=eps, weight_decay=weight_decay, epsilon=epsilon)

    def _initial(self, name: str, parameter: Variable) -> np.ndarray:
        state = super()._initial(name, parameter)
        if self._start:
            overwrite(state, ..., np.asarray(self._start))
        return state


class Adam(Optimizer):
    """Adaptive moments, corrected for their start at zero.

    `m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g^2;
    p -= lr / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + eps)`

    Parameters
    ----------
    parameters : iterable of Parameters, or of dicts
    lr : float
    betas : pair of float
    eps : float
        Added to the corrected root, as PyTorch does.
    weight_decay : float
        `weight_decay` times the parameter is added to the gradient, in the rows that change.
    lazy : bool
        Whether a sparse gradient changes only its rows; otherwise the moments and parameters of all rows change.
    epsilon : float, optional
        Instead of `eps`: a number added to the uncorrected root, as in section 2 of the paper and in Fluid (1e-8).

    Examples
    --------
    >>> p = vr.nn.Parameter([1.0]); p.grad = np.array([2.0])
    >>> Adam([p], lr=0.25).step(); p.data.round(4)
    array([0.75])

    Source: Kingma and Ba (2015), in the form of `torch.optim.Adam`; with `epsilon`, of Fluid's operator `adam`.
    """

    _update, _decoupled = "adam", False

    @_of_pytorch
    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] | list[float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        lazy: bool = False,
        epsilon: float | None = None,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "lazy": lazy}
        super().__init__(parameters, **options, epsilon=epsilon)

    def _constant(self, group: ParamGroup, name: str) -> Any:
        own = {"corrected": group["epsilon"] is None, "decoupled": self._decoupled}
        return own[name] if name in own else super()._constant(group, name)


class AdamW(Adam):
    """Adam with weight decay outside of the gradient: `p -= lr weight_decay p` before the update.

    With `lazy`, only the listed rows of a sparse gradient decay.  Parameters are as in `Adam`.

    Examples
    --------
    >>> p = vr.nn.Parameter([1.0]); p.grad = np.array([0.0])
    >>> AdamW([p], lr=0.5, weight_decay=0.1).step(); p.data
    array([0.95])

    Source: Loshchilov and Hutter (2019), in the form of `torch.optim.AdamW`.
    """

    _decoupled = True

    @_of_pytorch
    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] | list[float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        lazy: bool = False,
        epsilon: float | None = None,
    ) -> None:
        super().__init__(parameters, lr, betas, eps, weight_decay, lazy=lazy, epsilon=epsilon)


class RMSprop(Optimizer):
    """`s = alpha s + (1 - alpha) g^2; b = momentum b + g / (sqrt(s) + eps); p -= lr b`; all rows change.

    Examples
    --------
    >>> p = vr.nn.Parameter([1.0]); p.grad = np.array([2.0])
    >>> RMSprop([p], lr=0.1, alpha=0.75).step(); p.data
    array([0.8])

    Source: Tieleman and Hinton (2012), in the form of `torch.optim.RMSprop`, without centering.
    """

    _update = "rmsprop"

    @_of_pytorch
    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum)


class Adadelta(Optimizer):
    """Steps in the parameter's own unit: `s = rho s + (1 - rho) g^2; d = sqrt(a + eps) / sqrt(s + eps) g; p -= lr d`.

    Then `a = rho a + (1 - rho) d^2`.  All rows change.

    Examples
    --------
    >>> p = vr.nn.Parameter([1.0]); p.grad = np.array([2.0])
    >>> Adadelta([p], rho=0.75, eps=1.0).step(); p.data.round(4)
    array([-0.4142])

    Source: Zeiler (2012), in the form of `torch.optim.Adadelta`.
    """

    _update = "adadelta"

    @_of_pytorch
    def __init__(
        self, parameters: Iterable[Any], lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, lr=lr, rho=rho, eps=eps, weight_decay=weight_decay)


def _check_parameter(parameter: object, where: str) -> None:
    """Raise unless a value is a Variable that an optimizer can update, now or once it requires a gradient."""
    if (
        not isinstance(parameter, Variable)
        or parameter.record is not None
        or not (parameter.requires_grad or (parameter.persistable and parameter.dtype.kind == "f"))
    ):
        raise DTypeError(where, expected="a Parameter", got=type(parameter).__name__)
    flags = parameter.value.data.flags
    if parameter.requires_grad and not (flags.c_contiguous and flags.writeable):
        expected, hint = "an array that can be updated in place", "nn.Parameter(array) copies it to such an array"
        raise ShapeError(where, expected=expected, got="a read-only array, or one that is not C-contiguous", hint=hint)


def _follow(parameter: Variable, names: tuple[str, ...], states: list[Variable]) -> None:
    """Move states to the device of their parameter; the number of steps stays on the host, as in PyTorch."""
    for name, state in zip(names, states, strict=True):
        if name != "step" and state.device != parameter.device:
            state.value = state.value.to(parameter.device)


def _rate_of(rest: dict[str, np.ndarray], name: str) -> float:
    """Remove a learning rate from a state and return it; raise if it is missing or invalid."""
    if name not in rest or rest[name].shape != () or rest[name].dtype.kind != "f":
        got = f"the names {sorted(rest)[:8]}"
        raise CheckpointError("optimizer state", expected=f"a floating-point number {name!r}", got=got)
    rate = float(rest.pop(name))
    if not 0 <= rate < np.inf:
        raise CheckpointError(f"optimizer state, {name!r}", expected="a finite number of at least 0", got=rate)
    return rate
