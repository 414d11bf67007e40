"""Specs: the kind, shape, data type and number of LoD levels of a value that an operator has not computed yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from varlen_rnn.errors import LoDError, ProgramError
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.plan import SortedSeqs
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.tape.kinds import LOD_RANK_TABLE, LOD_TENSOR, SELECTED_ROWS, STEP_SCOPES, Type


class TensorSpec(NamedTuple):
    """The properties of a variable that are known without its value; -1 in `shape` is an unknown size.

    Examples
    --------
    >>> print(TensorSpec((-1, 3), np.dtype(np.float32), lod_level=1))
    LOD_TENSOR float32 [-1, 3], lod_level 1
    """

    shape: tuple[int, ...]
    dtype: np.dtype | None
    lod_level: int = 0
    kind: Type = LOD_TENSOR

    def __str__(self) -> str:
        tensor = "" if self.dtype is None else f" {self.dtype} {list(self.shape)}"
        return f"{self.kind.name}{tensor}" + (f", lod_level {self.lod_level}" if self.lod_level else "")


_new_tuple = tuple.__new__
PLAN = TensorSpec((), None, 0, LOD_RANK_TABLE)
SCOPES = TensorSpec((), None, 0, STEP_SCOPES)


def spec_of_tensor(shape: tuple[int, ...], dtype: np.dtype | None, lod_level: int = 0) -> TensorSpec:
    """Return the TensorSpec of a tensor; a call takes a third of the time of `TensorSpec(...)`."""
    return _new_tuple(TensorSpec, (shape, dtype, lod_level, LOD_TENSOR))


def sizes_fit(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Return whether two shapes can be equal, where -1 fits any size."""
    if shape == wanted:
        return True
    if len(shape) != len(wanted):
        return False
    if shape[1:] == wanted[1:]:  # nearly always, only the number of rows differs
        return shape[0] == -1 or wanted[0] == -1
    for size, other in zip(shape, wanted, strict=True):  # faster than a generator
        if size != other and size != -1 and other != -1:
            return False
    return True


class UnknownSize(int):
    """A size that is unknown until a run: it equals -1, and arithmetic with it raises an error."""

    def _refuse(self, *_: object) -> Any:
        hint = "use the size only in reshape or an index, where it stays -1; mean() divides by it"
        got = "-1, a size that is unknown until a run"
        raise ProgramError("a size of a program's variable", expected="a number to compute with", got=got, hint=hint)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __abs__ = __float__ = _refuse


class Symbol:
    """A value of a program that is being recorded: it has a name and a spec, but numbers only when the program runs."""

    __slots__ = ("block", "name", "spec")

    def __init__(self, block: Any, name: Any, spec: TensorSpec) -> None:
        self.block, self.name, self.spec = block, name, spec

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape; -1 for sizes that are unknown until a run."""
        return self.spec.shape

    @property
    def dtype(self) -> np.dtype | None:
        """The data type."""
        return self.spec.dtype

    @property
    def num_levels(self) -> int:
        """The number of LoD levels."""
        return self.spec.lod_level

    def num_elements(self, level: int) -> int:
        """Return -1, because the number of elements is unknown until a run."""
        return -1

    def rename(self, name: str) -> None:
        """Change the name to one that nothing in the program has yet."""
        self.name = self.block.recorder.claim(name, self)

    def take_name(self, name: str) -> None:
        """Take a name; rename the variable that had it.  So the latest sum of gradients is always named `x@GRAD`."""
        holder = self.block.recorder.named.get(name)
        if holder is not None and holder is not self:
            holder.rename(self.block.recorder.fresh(f"{name}@RENAME"))
        self.rename(name)

    @property
    def data(self) -> Any:
        """Raise: there are no values."""
        hint = "functional.where(condition, x, y) chooses by values, while_loop repeats, functional has tanh, exp ..."
        got = "a variable of a step or a loop, whose code runs only once, to describe all of its runs"
        if self.block.parent is None:
            got, hint = "a variable of a program", f"Executor().run fetches its value; in the program, {hint}"
        raise ProgramError(f"variable {self.name!r}", expected="a value", got=got, hint=hint)

    structure = levels = data

    def lod(self) -> Any:
        """Raise: there are no values."""
        return self.data

    __array__ = lambda self, *_, **__: self.data
    __len__ = lambda self: self.data

    def __repr__(self) -> str:
        return f"{self.name}: {self.spec}"


class Scopes(dict[str, Any]):
    """Values that the steps of a recurrence save for its gradient, by name; each has the rows of all steps."""

    plan: SortedSeqs
    fused: Any = None  # the numbers that the steps saved, if they ran as a compiled cell


Value: TypeAlias = LoDTensor | Symbol | SelectedRows | SortedSeqs | Scopes
VALUES = (LoDTensor, Symbol, SelectedRows, SortedSeqs, Scopes)  # the types of operators' inputs and outputs


def describe(value: Value) -> TensorSpec:
    """Return the spec of a value, or raise if the array of a LoDTensor got another number of rows than its LoD has."""
    if isinstance(value, LoDTensor):
        # Every input of every operator passes this check, so kernels can trust the rows.  It is inlined to save a call.
        data, lod = value.data, value.structure
        shape, levels = data.shape, lod.num_levels
        if levels and (not shape or shape[0] != lod.num_rows):
            hint = "its array was changed to another shape in place; reshape() returns a new array"
            what, expected = "rows of a LoDTensor", f"{lod.num_rows}, because its last offset is {lod.num_rows}"
            raise LoDError(what, expected=expected, got=f"shape {shape}", hint=hint)
        return _new_tuple(TensorSpec, (shape, data.dtype, levels, LOD_TENSOR))
    if isinstance(value, SelectedRows):
        return TensorSpec(value.shape, value.dtype, 0, SELECTED_ROWS)
    if isinstance(value, SortedSeqs):
        return PLAN
    if isinstance(value, Scopes):
        return SCOPES
    return value.spec
