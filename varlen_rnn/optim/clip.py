"""Clipping of gradients by their global norm, dense and SelectedRows alike."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from varlen_rnn.errors import DTypeError, check_list, check_number
from varlen_rnn.ops.clip import scaled, sum_of_squares
from varlen_rnn.optim.groups import settle
from varlen_rnn.runtime.place import CUDA
from varlen_rnn.tape.modes import recorded, recorder
from varlen_rnn.tape.values import plain
from varlen_rnn.tape.variable import Variable, apply_list


def clip_grad_norm_(parameters: Iterable[Variable], max_norm: float) -> float | Any:
    """Scale all gradients by one factor so that their global norm is at most `max_norm`; return the unscaled norm.

    Duplicate rows of a SelectedRows gradient are summed first, because the gradient of a row is their sum.  If ranks
    divide a table, the norm counts the rows of all ranks, and every rank calls this function.

    Parameters
    ----------
    parameters : iterable of Variables
        Parameters without a gradient are skipped; a parameter that is listed twice counts once.
    max_norm : float
        At least 0; infinity leaves the gradients as they are.

    Returns
    -------
    float; a Variable in a program, and of gradients on a CUDA device, since a number would wait for the device

    Raises
    ------
    DTypeError, ShapeError
        If a `grad` is no gradient; all gradients are then unchanged.

    Examples
    --------
    >>> p = vr.nn.Parameter([0.0, 0.0]); p.grad = np.array([3.0, 4.0])
    >>> clip_grad_norm_([p], 1.0), p.grad
    (5.0, array([0.6, 0.8]))

    Source: Pascanu, Mikolov and Bengio (2013), section 3.2.
    """
    max_norm = check_number(max_norm, "max_norm", "at least 0", lambda number: number >= 0)
    parameters = check_list(parameters, "clip_grad_norm_, parameters", "a list of Variables")
    for number, parameter in enumerate(parameters):
        if not isinstance(parameter, Variable):
            got = type(parameter).__name__
            raise DTypeError(f"clip_grad_norm_, parameters, entry {number}", expected="a Variable", got=got)
    parameters = list(dict.fromkeys(parameters))
    settle(parameters)
    targets = [target for target in map(recorded, parameters) if target.grad is not None]
    if any(target.shard is not None for target in targets):
        return _clip_over_ranks(targets, max_norm)
    norm, *clipped = apply_list("clip_by_global_norm", *(target.grad for target in targets), max_norm=max_norm)
    for target, gradient in zip(targets, clipped, strict=True):
        target.grad = gradient if recorder() is not None else plain(gradient.value)
    return norm if recorder() is not None or norm.device == CUDA else norm.item()


def _clip_over_ranks(targets: list[Variable], max_norm: float) -> float:
    """Clip by one norm over all ranks' rows of divided tables and over gradients that every rank has (counted once)."""
    _, *merged = apply_list("clip_by_global_norm", *(target.grad for target in targets), max_norm=math.inf)
    values = [gradient.value for gradient in merged]
    of_shards: dict[Any, list[Any]] = {}
    of_all: list[Any] = []
    for target, value in zip(targets, values, strict=True):
        (of_all if target.shard is None else of_shards.setdefault(target.shard.comm, [])).append(value)
    squares = sum_of_squares(of_all)
    for comm, own in of_shards.items():
        number = sum_of_squares(own)
        comm.all_reduce(number)
        squares += number
    norm, clipped = scaled(values, squares, max_norm)
    for target, value in zip(targets, clipped, strict=True):
        target.grad = plain(value)
    return norm.item()
