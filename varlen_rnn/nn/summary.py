"""A table of a model's layers: output shapes, numbers of parameters, and numbers of operations for a batch."""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from varlen_rnn.errors import DTypeError, LoDError, ProgramError, count, shown
from varlen_rnn.nn.module import Module, Parameter
from varlen_rnn.ops.cost import cost_of
from varlen_rnn.program.executor import Executor
from varlen_rnn.program.feed import EDGES
from varlen_rnn.program.guard import feed_data, program_guard
from varlen_rnn.program.instructions import nested_blocks
from varlen_rnn.program.program import Program
from varlen_rnn.rows.lod import LoD, LoDTensor
from varlen_rnn.tape.modes import no_grad, recorder
from varlen_rnn.tape.operator import find
from varlen_rnn.tape.spec import TensorSpec, describe
from varlen_rnn.tape.variable import Variable
from varlen_rnn.typing import Offsets

# The attributes in which layers store the number of columns of their input rows.
_COLUMNS = ("input_size", "in_features", "num_features", "features", "embed_dim")


@dataclass(frozen=True)
class LayerSummary:
    """One module of a model, without the modules inside it.

    Attributes
    ----------
    name : str
        The module's name, as in `named_modules`; "" for the model itself.
    kind : str
        The name of the class.
    shapes : tuple of shapes
        The shapes of its outputs in its last call; empty if the model does not call it.  -1 is a size inside of a loop.
    parameters : int
        How many numbers its own Parameters have.  A Parameter that several modules share counts for the first module.
    operations : int
        The floating-point operations of its own operators for the batch, in all of its calls.
    precision : str
        The precision of its own products of float32; several, joined by "and", if they differ.
    """

    name: str
    kind: str
    shapes: tuple[tuple[int, ...], ...]
    parameters: int
    operations: int
    precision: str = "fp32"


@dataclass(frozen=True, repr=False)
class ModelSummary:
    """The layers of a model for one batch, as `summary` returns them; it prints as a table.

    Attributes
    ----------
    layers : list of LayerSummary
        The model itself first, each module before the modules inside it.
    parameters, operations : int
        Sums over the layers.
    rows, sequences : int
        The batch.
    """

    layers: list[LayerSummary]
    rows: int
    sequences: int

    @property
    def parameters(self) -> int:
        """The number of trained and frozen numbers in all Parameters."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def operations(self) -> int:
        """The number of floating-point operations of a forward pass."""
        return sum(layer.operations for layer in self.layers)

    def __repr__(self) -> str:
        head = f"{count(self.rows, 'row')} in {count(self.sequences, 'sequence')}, in evaluation mode"
        table = [("layer", "kind", "output", "parameters", "operations")]
        for layer in self.layers:
            shapes = ", ".join(map(str, layer.shapes)) or "not called"
            kind = layer.kind if layer.precision == "fp32" else f"{layer.kind}, {layer.precision}"
            table.append((layer.name, kind, shapes, f"{layer.parameters:,}", f"{layer.operations:,}"))
        table.append(("total", "", "", f"{self.parameters:,}", f"{self.operations:,}"))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        sides = "<<<>>"  # numbers are aligned to the right
        lines = ["  ".join(f"{v:{side}{n}}" for v, side, n in zip(row, sides, widths, strict=True)) for row in table]
        return "\n".join([head, *(line.rstrip() for line in lines)])


def summary(model: Module, lod: LoD | Iterable[Offsets] | LoDTensor | Variable) -> ModelSummary:
    """Return a model's layers with the shapes of their outputs, their parameters, and their operations for a batch.

    A copy of the model runs once in evaluation mode, on zeros unless `lod` has rows.

    Parameters
    ----------
    model : Module
        Its `forward` takes one batch of rows.
    lod : LoD, offsets of each level, or rows with a LoD
        The structure of the batch.  Its rows are zeros with as many columns as the first layer takes, or ids if the
        first layer is an `Embedding`.  If the model takes other input, pass rows with a LoD.

    Returns
    -------
    ModelSummary
        It prints as a table.  Attention counts one key per query, because operators declare costs without lengths.

    Raises
    ------
    DTypeError
        `model` is no Module.
    LoDError
        The LoD has no level.
    ProgramError
        If no layer stores its number of columns, `forward` takes more than one batch, or it reads values, which a
        program does not have.

    Examples
    --------
    >>> summary(vr.nn.Sequential(vr.nn.Embedding(100, 8), vr.nn.Linear(8, 2), vr.nn.Tanh()), [[0, 2, 5]])
    5 rows in 2 sequences, in evaluation mode
    layer  kind        output  parameters  operations
           Sequential  (5, 2)           0           0
    0      Embedding   (5, 8)         800           0
    1      Linear      (5, 2)          18         170
    2      Tanh        (5, 2)           0          10
    total                             818         180
    """
    if not isinstance(model, Module):
        raise DTypeError("summary, model", expected="a Module", got=shown(model))
    _check_forward(model)
    if recorder() is not None:
        raise ProgramError("summary", expected="eager mode", got="a call while a program is recorded")
    batch = _batch_for(model, lod)
    watch, spec = _Watch(copy.deepcopy(model).eval()), describe(batch)
    with no_grad(), program_guard() as program:
        watch.run(feed_data("rows", (-1, *spec.shape[1:]), batch.dtype, spec.lod_level))
    found = watch.layers(program, batch)
    return ModelSummary(found, len(batch.data), batch.num_elements(batch.num_levels - 1))


def _check_forward(model: Module) -> None:
    signature = inspect.signature(model.forward)
    try:
        signature.bind(None)
    except TypeError as error:
        hint = "wrap it in a Module of your own, whose forward makes the other inputs from one batch"
        got, expected = f"forward{signature}", "a forward with one argument, a batch of rows"
        raise ProgramError("summary, model", expected=expected, got=got, hint=hint) from error


def _batch_for(model: Module, lod: Any) -> LoDTensor:
    """Return the batch: the given rows, or zeros of the shape and data type that the first layer takes."""
    given = lod.value if isinstance(lod, Variable) else lod
    structure = given.structure if isinstance(given, LoDTensor) else LoD(given)
    if not structure.num_levels:
        raise LoDError("summary, lod", expected="at least one level of offsets", got="none")
    if isinstance(given, LoDTensor):
        return given
    dtype = next((parameter.dtype for parameter in model.parameters()), np.dtype(np.float32))
    for module in model.modules():
        if hasattr(module, "num_embeddings"):
            return LoDTensor(np.zeros(structure.num_rows, np.int64), structure)
        for name in _COLUMNS:
            if isinstance(columns := getattr(module, name, None), int):
                return LoDTensor(np.zeros((structure.num_rows, columns), dtype), structure)
    hint = "pass rows with a LoD instead of offsets: create_lod_tensor(rows, lengths)"
    raise ProgramError("summary, model", expected="a layer that fixes the number of columns", got="none", hint=hint)


class _Watch:
    """Records, while a program is recorded, which operators each module of a model applies, and its outputs."""

    def __init__(self, model: Module) -> None:
        self.model, self.modules = model, model.named_modules()
        self.inside: list[Module] = []  # the modules whose `forward` runs, the innermost last
        self.owners: list[Module | None] = []  # for each operator of the outermost block, the module that applied it
        self.outputs: dict[Module, list[Variable]] = {}
        for _, module in self.modules:
            vars(module)["forward"] = self._watched(module, module.forward)

    def _watched(self, module: Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*inputs: Any, **named: Any) -> Any:
            self._note()
            self.inside.append(module)
            found = forward(*inputs, **named)
            self._note()
            self.inside.pop()
            self.outputs[module] = list(_variables(found))
            return found

        return run

    def _note(self) -> None:
        """Note the innermost module as the owner of the operators that were recorded since the last call."""
        new = len(recorder().blocks[0].ops) - len(self.owners)
        self.owners += [self.inside[-1] if self.inside else None] * new

    def run(self, rows: Variable) -> None:
        self.model(rows)
        self._note()

    def layers(self, program: Program, batch: LoDTensor) -> list[LayerSummary]:
        """Run the program; return the layers with their output shapes and their costs, from the values of the run."""
        specs, desc = _specs_of_run(program, batch), program.desc
        operations, inside = Counter[Module | None](), nested_blocks(desc)
        precisions: dict[Module | None, set[str]] = {}
        for op, owner in zip(desc.blocks[0].ops, self.owners, strict=True):
            if op.type not in EDGES:
                operations[owner] += cost_of(op, specs, inside).flops
            if find(op.type).multiplies:
                precisions.setdefault(owner, set()).add(op.precision)
        found, counted = [], set[int]()
        for name, module in self.modules:
            own = {id(value): value for _, value in module._entries() if isinstance(value, Parameter)}
            parameters = sum(value.size for key, value in own.items() if key not in counted)
            counted |= own.keys()
            # A variable inside of a loop has only its described shape.
            made = [(v, specs.get(v.name or "")) for v in self.outputs.get(module, ())]
            shapes = tuple(tuple(map(int, v.shape)) if spec is None else spec.shape for v, spec in made)
            precision = " and ".join(sorted(precisions.get(module, {"fp32"})))
            found.append(LayerSummary(name, type(module).__name__, shapes, parameters, operations[module], precision))
        return found


def _specs_of_run(program: Program, batch: LoDTensor) -> dict[str, TensorSpec]:
    """Return {name of a variable: spec of its value}, from a run of a program on a batch."""
    lists = {name for op in program.desc.blocks[0].ops if op.type in EDGES for name in op.input_names()}
    names = [var.name for var in program.desc.blocks[0].vars if var.name not in lists]
    values = Executor().run(program, {"rows": batch}, names)
    return {
        name: describe(LoDTensor(value) if isinstance(value, np.ndarray) else value)
        for name, value in zip(names, values, strict=True)
    }


def _variables(found: Any) -> Iterator[Variable]:
    """Yield the Variables of a result: itself, or those inside tuples, lists and dicts."""
    if isinstance(found, Variable):
        yield found
    for part in found.values() if isinstance(found, dict) else found if isinstance(found, (list, tuple)) else ():
        yield from _variables(part)
