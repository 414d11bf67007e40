"""Run one recurrent layer under torch's autograd; the kernels work on the memory of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from varlen_rnn.errors import ProgramError
from varlen_rnn.rows.lod import LoD, LoDTensor
from varlen_rnn.tape.operator import find
from varlen_rnn.tape.run import run
from varlen_rnn.torch.eager import saves_elsewhere


class Step(NamedTuple):
    """The constants of a layer.

    `cell` is the name of its cell, `num_states` the number of states of the cell, and `reverse` has 1 for each
    direction that runs backward, otherwise 0.
    """

    cell: str
    num_states: int
    reverse: tuple[int, ...]


def layer(step: Step, lod: LoD, *operands: Tensor | None) -> list[Tensor]:
    """Return the outputs of rows and the last states, with gradients if torch needs them.

    Parameters
    ----------
    step : Step
    lod : LoD
        The LoD of the rows.
    *operands : Tensor or None
            The inputs of the operator `recurrent`: rows, initial states, and the weights of each direction.  A missing
            input is None.
    """
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in operands):
        return list(_Recurrence.apply(step, lod, *operands))
    return _tensors(_forward(step, lod, operands, keep=False)[: 1 + step.num_states])


class _Recurrence(torch.autograd.Function):
    """The torch Function of a layer; its backward pass overwrites saved values, which a second pass recomputes."""

    @staticmethod
    def forward(ctx: Any, step: Step, lod: LoD, *operands: Tensor | None) -> tuple[Tensor, ...]:
        keep = not saves_elsewhere()
        outputs = _forward(step, lod, operands, keep)
        tensors = _tensors(outputs[: 1 + step.num_states])
        ctx.step, ctx.lod, ctx.kept = step, lod, outputs[1 + step.num_states :] if keep else None
        ctx.save_for_backward(tensors[0], *operands)
        ctx.set_materialize_grads(False)
        return tuple(tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        y, *operands = ctx.saved_tensors
        kept, ctx.kept = ctx.kept, None
        if kept is None:
            kept = _forward(ctx.step, ctx.lod, operands, keep=True)[1 + ctx.step.num_states :]
        needs = ctx.needs_input_grad[2:]
        values = [
            *_values(ctx.lod, operands),
            LoDTensor.wrap(y.detach().numpy(), ctx.lod),
            *kept,
            *_values(ctx.lod, gradients),
        ]
        found = run(find("recurrent_grad"), values, {
            "cell": ctx.step.cell, "reverse": ctx.step.reverse, "all_states": False, "num_forward": len(operands),
            "need_x": needs[0], "need_weights": any(needs[1 + ctx.step.num_states :]),
        })  # fmt: skip
        wanted = [value.data if need else None for value, need in zip(found, needs, strict=True)]
        return None, None, *once([*gradients, *operands], list(map(_own, wanted, [None, *wanted])))


def once(sources: Sequence[Tensor | None], gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return gradients that raise an error if torch tries to differentiate them again."""
    if not torch.is_grad_enabled():
        return list(gradients)
    by = [source for source in sources if source is not None and source.requires_grad]
    present = [gradient for gradient in gradients if gradient is not None]
    marked = iter(_Once.apply(len(by), *by, *present))
    return [gradient if gradient is None else next(marked) for gradient in gradients]


class _Once(torch.autograd.Function):
    """Returns gradients unchanged, but connects them with their sources, so that a second derivative raises."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.view_as(tensor) for tensor in tensors[count:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:
        hint = "torch's own layers have one: varlen_rnn.torch.restore(model)"
        raise ProgramError("gradient of a gradient", expected="a first one", got="a second one", hint=hint)


def _own(array: np.ndarray | None, before: np.ndarray | None) -> Tensor | None:
    """Return a gradient as a tensor, copied if it shares memory with the previous gradient.

    If gradients of two biases shared memory, torch would add to both at once.
    """
    if array is None:
        return None
    shares = before is not None and np.may_share_memory(array, before)
    return torch.from_numpy(array.copy() if shares else array)


def _forward(step: Step, lod: LoD, operands: Sequence[Tensor | None], keep: bool) -> list[Any]:
    """Run the operator `recurrent`; return outputs, last states, and the values saved for the backward pass."""
    values = _values(lod, operands)
    return run(
        find("recurrent"), values, {"cell": step.cell, "keep": keep, "reverse": step.reverse, "all_states": False}
    )


def _values(lod: LoD, tensors: Sequence[Tensor | None]) -> list[LoDTensor | None]:
    """Return LoDTensors that share the memory of tensors; the first gets the LoD."""
    first, *others = [None if tensor is None else tensor.detach().contiguous().numpy() for tensor in tensors]
    wrapped = [None if array is None else LoDTensor.wrap(array) for array in others]
    return [None if first is None else LoDTensor.wrap(first, lod), *wrapped]


def _tensors(values: Sequence[LoDTensor]) -> list[Tensor]:
    """Return tensors that share the memory of LoDTensors."""
    return [torch.from_numpy(value.data) for value in values]
