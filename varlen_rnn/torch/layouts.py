"""Convert torch's layouts of sequences of unequal length to rows, one sequence after another, and back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from varlen_rnn.errors import DTypeError, ShapeError, shown
from varlen_rnn.ops.sequence.taken import rows_taken
from varlen_rnn.rows.lod import LoD

_FEW_STEPS = 1  # the most steps of a batch whose LoD is cached


def _same(tensor: Tensor) -> Tensor:
    return tensor


class Batch(NamedTuple):
    """Rows of sequences, one sequence after another, with their LoD and functions that restore the caller's layout."""

    rows: Tensor
    lod: LoD
    shaped: Callable[[Tensor], Any] = _same  # converts rows to the caller's layout
    sort: Callable[[Tensor], Tensor] = _same  # reorders states (layers, sequences, units) like the rows
    unsort: Callable[[Tensor], Tensor] = _same  # the inverse of `sort`
    is_one: bool = False  # whether it is a single sequence, whose states have no axis of sequences

    @property
    def state_axes(self) -> tuple[int, ...]:
        """The sizes of the axes between the layers and the units of the caller's states."""
        return () if self.is_one else (len(self.lod.levels[0]) - 1,)


def of_rows(rows: Tensor, offsets: Any) -> Batch:
    """Return a Batch of rows; sequence i has the rows `offsets[i]` to `offsets[i + 1]`."""
    lod = LoD([numbers(offsets, "offsets")])
    if rows.dim() != 2 or len(rows) != lod.num_rows:
        expected = f"shape ({lod.num_rows}, features), because the last offset is {lod.num_rows}"
        raise ShapeError("input", expected=expected, got=f"shape {tuple(rows.shape)}")
    return Batch(rows, lod)


def of_one(rows: Tensor) -> Batch:
    """Return a Batch of a single sequence, whose states have no axis of sequences."""
    lod = LoD([[0, len(rows)]])
    return Batch(rows, lod, _same, lambda state: state.unsqueeze(1), lambda state: state.squeeze(1), is_one=True)


def of_jagged(nested: Tensor) -> Batch:
    """Return a Batch of a jagged nested tensor; rows share its memory, unless it has gaps between sequences."""
    rows, lod, offsets = parts_of_jagged(nested)
    return Batch(rows, lod, lambda rows: jagged(rows, offsets))


def parts_of_jagged(nested: Any) -> tuple[Tensor, LoD, Tensor]:
    """Return the rows of a jagged nested tensor, their LoD, and its offsets tensor."""
    if nested.layout != torch.jagged:
        hint = "pass torch.nested.nested_tensor(..., layout=torch.jagged)"
        got = f"the layout {nested.layout}"
        raise ShapeError("nested tensor", expected="the layout torch.jagged", got=got, hint=hint)
    if nested.dim() < 2 or getattr(nested, "_ragged_idx", 1) != 1:
        got = f"shape {tuple(nested.shape)}"
        raise ShapeError("nested tensor", expected="shape (sequences, rows, ...), ragged in rows", got=got)
    whole = nested if nested.lengths() is None else nested.contiguous()
    rows, lod = whole.values(), LoD([whole.offsets().numpy()])
    if lod.num_rows != len(rows):
        expected, got = f"{lod.num_rows} rows, its last offset", f"{len(rows)} rows in values()"
        raise ShapeError("nested tensor", expected=expected, got=got)
    return rows, lod, whole.offsets()


def jagged(rows: Tensor, offsets: Tensor | None) -> Tensor:
    """Return a jagged nested tensor of rows, or the rows themselves if `offsets` is None."""
    return rows if offsets is None else torch.nested.nested_tensor_from_jagged(rows, offsets)


def of_packed(packed: PackedSequence) -> Batch:
    """Return a Batch of a PackedSequence, the longest sequence first; rows are copied, and results are copied back."""
    sizes = packed.batch_sizes.numpy()
    if not sizes.size or sizes[-1] < 0 or (sizes[1:] > sizes[:-1]).any() or sizes.sum() != len(packed.data):
        expected = f"numbers that never rise and add up to {len(packed.data)}, the number of rows"
        raise ShapeError("PackedSequence, batch_sizes", expected=expected, got=shown(sizes.tolist()))
    sequences = np.arange(sizes[0])
    lengths = np.searchsorted(-sizes, -sequences)  # sequence k has a row at each step with more than k sequences
    lod = LoD.from_lengths([lengths])
    steps = np.arange(len(packed.data)) - np.repeat(lod.levels[0][:-1], lengths)
    places = (np.cumsum(sizes) - sizes)[steps] + np.repeat(sequences, lengths)
    batch = _taken(packed.data, places, lod, lambda rows: packed._replace(data=rows))
    order, back = packed.sorted_indices, packed.unsorted_indices
    if order is None or back is None:
        return batch
    return batch._replace(
        sort=lambda state: state.index_select(1, order), unsort=lambda state: state.index_select(1, back)
    )


def of_padded(padded: Tensor, batch_first: bool, lengths: Any) -> Batch:
    """Return a Batch of a padded batch's rows outside of the padding; rows are copied, and results are copied back."""
    if padded.dim() != 3:
        expected = "a padded batch of three axes, because lengths are given"
        raise ShapeError("input", expected=expected, got=f"shape {tuple(padded.shape)}")
    num_sequences, steps = padded.shape[:2] if batch_first else padded.shape[1::-1]
    given = numbers(lengths, "lengths")
    places = places_of_padded(given, num_sequences, steps, batch_first)
    flat = padded.reshape(num_sequences * steps, padded.shape[2])
    axes = padded.shape[:2]
    return _taken(flat, places, LoD.from_lengths([given]), lambda rows: rows.reshape(*axes, rows.shape[1]))


def places_of_padded(lengths: np.ndarray, num_sequences: int, steps: int, batch_first: bool) -> np.ndarray:
    """Return where the rows of sequences, one after another, are among all rows of a padded batch; check lengths."""
    if lengths.shape != (num_sequences,) or not ((lengths >= 0) & (lengths <= steps)).all():
        expected = f"{num_sequences} numbers (one per sequence of the input) from 0 to {steps}, its steps"
        raise ShapeError("lengths", expected=expected, got=shown(lengths.tolist()))
    sequence, step = np.nonzero(np.arange(steps) < lengths[:, None])
    return sequence * steps + step if batch_first else step * num_sequences + sequence


def of_equal(padded: Tensor, batch_first: bool) -> Batch:
    """Return a Batch of sequences of equal lengths; rows share the memory of `padded` if that is in their order."""
    num_sequences, steps = padded.shape[:2] if batch_first else padded.shape[1::-1]
    lod = lod_of_equal(num_sequences, steps) if steps <= _FEW_STEPS else LoD([np.arange(num_sequences + 1) * steps])
    if batch_first or steps == 1 or num_sequences == 1:  # the rows are already in the right order
        axes, rows = padded.shape[:2], padded.reshape(num_sequences * steps, padded.shape[2])
        return Batch(rows, lod, lambda rows: rows.reshape(*axes, rows.shape[1]))

    def shaped(rows: Tensor) -> Tensor:
        return rows.reshape(num_sequences, steps, rows.shape[1]).transpose(0, 1).contiguous()

    return Batch(padded.transpose(0, 1).reshape(num_sequences * steps, padded.shape[2]), lod, shaped)


@functools.lru_cache(maxsize=8)  # all layers of a model, and their gradients, share one with its plan
def lod_of_offsets(offsets: bytes) -> LoD:
    """Return the LoD of offsets of int64."""
    return LoD([np.frombuffer(offsets, np.int64)])


@functools.lru_cache(maxsize=32)
def lod_of_equal(num_sequences: int, steps: int) -> LoD:
    """Return the LoD of sequences of `steps` rows each; both it and its plan are cached for loops of single steps."""
    return LoD([np.arange(num_sequences + 1) * steps])


def numbers(given: Any, name: str) -> np.ndarray:
    """Return the integers of a tensor, an array or a list as an int64 array, or raise."""
    try:
        array = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    except ValueError as error:  # lists of unequal length
        raise DTypeError(name, expected="integers", got=shown(given)) from error
    if array.dtype.kind not in "iu" and array.size:
        raise DTypeError(name, expected="integers", got=array.dtype)
    return array.astype(np.int64)


def _taken(data: Tensor, places: np.ndarray, lod: LoD, shaped: Callable[[Tensor], Any]) -> Batch:
    """Return a Batch of the rows of `data` at `places`; its `shaped` puts rows back there, with zeros elsewhere."""
    back = np.full(len(data), -1)
    back[places] = np.arange(len(places))
    return Batch(_Taken.apply(data, places, back), lod, lambda rows: shaped(_Taken.apply(rows, back, places)))


class _Taken(torch.autograd.Function):
    """Gather the rows at `places`, none twice, with zeros for -1; the gradient gathers at the inverse `back`."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: np.ndarray, back: np.ndarray) -> Tensor:
        ctx.places, ctx.back = places, back
        return torch.from_numpy(rows_taken(rows.detach().numpy(), places))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Taken.apply(gradient, ctx.back, ctx.places), None, None
