"""Run functions and modules of this library with torch's autograd; Variables share the memory of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from varlen_rnn import nn
from varlen_rnn.errors import DTypeError
from varlen_rnn.random import seeded
from varlen_rnn.rows.lod import NO_LOD, LoD, LoDTensor
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.runtime.forks import turn
from varlen_rnn.runtime.precision import at_precision, get_float32_matmul_precision
from varlen_rnn.tape.backward import propagate
from varlen_rnn.tape.modes import no_grad
from varlen_rnn.tape.variable import Variable
from varlen_rnn.torch.eager import eager, needs_gradient, refuse_transforms, saves_elsewhere
from varlen_rnn.torch.layouts import jagged, parts_of_jagged
from varlen_rnn.torch.recurrence import once

_passing = turn()  # held during a backward pass, because it sets `grad` of shared parameters


def function(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of tensors that runs `call` on Variables; torch can differentiate the result once.

    The Variables share the memory of the tensors.

    Parameters
    ----------
    call : callable
        It gets a Variable for each tensor in its arguments, also inside of lists, tuples and dicts.  A jagged nested
        tensor becomes a Variable with a LoD.  It returns a Variable, or lists, tuples or dicts of Variables.

    Returns
    -------
    callable
        It returns a tensor for each Variable, or a jagged nested tensor if the Variable has a LoD.  A sparse gradient
        of an embedding table is a sparse tensor.

    Examples
    --------
    >>> import varlen_rnn as vr
    >>> pool = function(vr.sequence_pool)
    >>> words = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(5, 3)], layout=torch.jagged)
    >>> pool(words, "sum")
    tensor([[2., 2., 2.],
            [5., 5., 5.]])
    """
    if not callable(call):
        raise DTypeError("function, call", expected="a function", got=type(call).__name__)

    @eager
    def run(*arguments: Any, **named: Any) -> Any:
        return _run(call, [], [], arguments, named)

    return run


def with_lod(lod: LoD, *rows: Variable) -> list[Variable]:
    """Return rows with a LoD, for a function of tensors that have none."""
    like = LoDTensor.wrap(np.empty((lod.num_rows, 0)), lod)
    return [x.with_lod(like) for x in rows]


def as_batch(rows: Variable) -> Variable:
    """Return rows as a batch `(1, rows, ...)` without a LoD, because a result with a LoD would be a nested tensor."""
    return rows.reshape(1, -1, *rows.shape[1:])


class Module(torch.nn.Module):
    """Wrap any module of this library as a torch module; its parameters become torch parameters of the same names.

    Parameters
    ----------
    module : nn.Module
        The module to wrap.  From now on, train, save and convert its parameters with torch.

    Examples
    --------
    >>> from varlen_rnn.cells import CELLS
    >>> layer = Module(nn.Recurrent(CELLS["gru"], 3, 4))
    >>> words = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(5, 3)], layout=torch.jagged)
    >>> output, h_n = layer(words)
    >>> h_n.shape, [name for name, _ in layer.named_parameters()][:2]
    (torch.Size([1, 2, 4]), ['weight_ih_l0', 'weight_hh_l0'])
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise DTypeError("Module, module", expected="a varlen_rnn.nn.Module", got=type(module).__name__)
        self._module = module
        for name, variable in (*module.named_parameters(), *module.named_buffers()):
            inside: torch.nn.Module = self
            *path, last = name.split(".")
            for part in path:
                if part not in inside._modules:
                    inside.add_module(part, torch.nn.Module())
                inside = inside.get_submodule(part)
            tensor = torch.from_numpy(variable.value.data)
            if isinstance(variable, nn.Parameter):
                inside.register_parameter(last, torch.nn.Parameter(tensor))
            else:
                inside.register_buffer(last, tensor)

    @eager
    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Run the module on tensors and return tensors, as `function` does."""
        for (_, buffer), tensor in zip(self._module.named_buffers(), self.buffers(), strict=True):
            buffer.value = LoDTensor.wrap(array_of(tensor))  # the forward pass updates it
        return _run(self._module, self._module.parameters(), list(self.parameters()), arguments, named)

    def train(self, mode: bool = True) -> Module:
        """Set training or evaluation mode of this module and of the wrapped module; return this module."""
        self._module.train(mode)
        return super().train(mode)


class _Place:
    """A placeholder for a tensor in the nested structure of arguments or results."""

    def __init__(self, number: int, lod: LoD, offsets: Tensor | None) -> None:
        self.number, self.lod = number, lod  # `number` is the tensor's position in the list of all
        self.offsets = offsets  # the offsets of a jagged nested tensor, otherwise None


def _run(
    call: Callable[..., Any], parameters: Sequence[Variable], tensors: Sequence[Tensor], arguments: Any, named: Any
) -> Any:
    """Set each parameter to the tensor at its position in `tensors`; call a function; return its results as tensors."""
    refuse_transforms("function")
    tensors, places = list(tensors), []

    def place_of(tensor: Tensor) -> _Place:
        lod, offsets = NO_LOD, None
        if tensor.is_nested:
            tensor, lod, offsets = parts_of_jagged(tensor)
        places.append(_Place(len(tensors), lod, offsets))
        tensors.append(tensor)
        return places[-1]

    given = _mapped((arguments, named), Tensor, place_of)
    seed = int(torch.randint(2**62, ()))  # so that a second run of the forward pass draws the same dropout
    structure: list[Any] = []  # how results are nested, because a torch Function returns only a tuple of tensors

    def forward(tensors: Sequence[Tensor], needs: Sequence[bool]) -> tuple[list[Variable], list[Variable]]:
        _set(parameters, tensors, needs)
        leaves = {}
        for place in places:
            value = LoDTensor.wrap(array_of(tensors[place.number]), place.lod)
            leaves[place] = Variable(value, requires_grad=needs[place.number])
        inside_arguments, inside_named = _mapped(given, _Place, leaves.__getitem__)
        with seeded(seed):
            found = call(*inside_arguments, **inside_named)
        outputs: list[Variable] = []

        def out(variable: Variable) -> _Place:
            outputs.append(variable)
            lod = variable.value.structure
            return _Place(len(outputs) - 1, lod, _offsets(lod, places))

        structure[:] = [_mapped(found, Variable, out)]
        return [*parameters, *leaves.values()], outputs

    if needs_gradient(*tensors):
        results = _Call.apply(forward, *tensors)
    else:
        with no_grad():
            needs = [v.requires_grad for v in parameters] + [False] * (len(tensors) - len(parameters))
            outputs = forward(tensors, needs)[1]  # keeps `requires_grad`, because other threads can read it meanwhile
        results = _results(outputs, tensors)
    return _mapped(structure[0], _Place, lambda place: jagged(results[place.number], place.offsets))


class _Call(torch.autograd.Function):
    """The torch Function of one call; its backward pass sends gradients back through the recorded operators."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Any], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.run, ctx.precision = run, get_float32_matmul_precision()
        recorded = run(tensors, ctx.needs_input_grad[1:])
        outputs = recorded[1]
        ctx.recorded = None if saves_elsewhere() else recorded
        results = _results(outputs, tensors)
        ctx.mark_non_differentiable(*(r for r, v in zip(results, outputs, strict=True) if not v.requires_grad))
        ctx.save_for_backward(*tensors, *results)  # so that torch detects changes in place
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad[1:]
        tensors = ctx.saved_tensors[: len(needs)]  # raises if a tensor was changed or freed meanwhile
        recorded, ctx.recorded = ctx.recorded, None
        if recorded is None:  # a second backward pass (retain_graph) needs new records
            recorded = at_precision(ctx.precision, ctx.run, tensors, needs)
        leaves, outputs = recorded
        arrived = [
            None if d is None else Variable(LoDTensor.wrap(array_of(d), output.value.structure))
            for d, output in zip(gradients, outputs, strict=True)
        ]
        with _passing:
            _set(leaves, tensors, needs)  # again, because another call can have set other values meanwhile
            for leaf in leaves:
                leaf.grad = None
            propagate(outputs, arrived)
            found = [leaf.grad for leaf in leaves]
            for leaf in leaves:
                leaf.grad = None
        return None, *once([*gradients, *tensors], list(map(_tensor, found)))


def _set(leaves: Sequence[Variable], tensors: Sequence[Tensor], needs: Sequence[bool]) -> None:
    """Let each leaf use the memory of the tensor at the same position, and set whether it needs a gradient."""
    for leaf, tensor, need in zip(leaves, tensors, needs, strict=False):
        leaf.value, leaf.requires_grad = LoDTensor.wrap(array_of(tensor), leaf.value.structure), need


def array_of(tensor: Tensor) -> np.ndarray:
    """Return an array that shares the memory of a CPU tensor; raise for other devices, or types that NumPy lacks."""
    if tensor.device.type != "cpu":
        got = f"a tensor on {tensor.device}"
        raise DTypeError("tensor", expected="a tensor on the CPU", got=got, hint="call tensor.cpu()")
    try:
        return tensor.detach().contiguous().numpy()
    except TypeError as error:
        hint = "call tensor.float()"
        raise DTypeError("tensor", expected="a data type of NumPy", got=tensor.dtype, hint=hint) from error


def _tensor(gradient: Any) -> Tensor | None:
    if isinstance(gradient, SelectedRows):
        rows, values = torch.from_numpy(np.array(gradient.rows)), torch.from_numpy(gradient.value)
        return torch.sparse_coo_tensor(rows[None], values, gradient.shape, check_invariants=False)
    return None if gradient is None else torch.from_numpy(np.asarray(gradient))


def _results(outputs: Sequence[Variable], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors of the results; a result that shares memory with an argument or another result is copied."""
    taken, results = [tensor.detach().numpy() for tensor in tensors if tensor.numel()], []
    for output in outputs:
        array = np.asarray(output.value.data)
        if not array.flags.writeable or any(np.may_share_memory(array, other) for other in taken):
            array = array.copy()
        taken.append(array)
        results.append(torch.from_numpy(array))
    return results


def _offsets(lod: LoD, places: Sequence[_Place]) -> Tensor | None:
    """Return a LoD's offsets; if an argument has this LoD, return its tensor, because torch compares by identity."""
    if not lod.num_levels:
        return None
    if lod.num_levels > 1:
        hint = "keep only the last level, with with_lod"
        got = f"a result with {lod.num_levels} levels"
        raise DTypeError("function, result", expected="a result with at most one level", got=got, hint=hint)
    same = next((place.offsets for place in places if place.lod is lod), None)
    return torch.from_numpy(lod.levels[0].copy()) if same is None else same


def _mapped(structure: Any, kind: type, change: Callable[[Any], Any]) -> Any:
    """Return nested lists, tuples and dicts with each value of type `kind` replaced by `change(value)`."""
    if isinstance(structure, kind):
        return change(structure)
    if isinstance(structure, PackedSequence):
        hint = "pass torch.nested.nested_tensor(sequences, layout=torch.jagged)"
        raise DTypeError("function", expected="a jagged nested tensor", got="a PackedSequence", hint=hint)
    if isinstance(structure, dict):
        return {name: _mapped(value, kind, change) for name, value in structure.items()}
    if isinstance(structure, (list, tuple)):
        parts = [_mapped(value, kind, change) for value in structure]
        return structure._make(parts) if hasattr(structure, "_make") else type(structure)(parts)
    return structure
