"""How torch holds sequences of unequal length, and the rows of all of them one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from varlen_rnn.errors import DTypeError, ShapeError, shown
from varlen_rnn.ops.sequence.taken import rows_taken
from varlen_rnn.rows.lod import LoD


def _same(tensor: Tensor) -> Tensor:
    return tensor


class Batch(NamedTuple):
    """Rows of sequences one after another, their LoD, and the conversions from and to the caller's layout.

    `shaped` brings rows into the caller's layout.  `sort` brings the caller's states, of shape (layers, sequences,
    units), into the order of the rows, and `unsort` back.  The states of one sequence alone have no axis of sequences.
    """

    rows: Tensor
    lod: LoD
    shaped: Callable[[Tensor], Any] = _same
    sort: Callable[[Tensor], Tensor] = _same
    unsort: Callable[[Tensor], Tensor] = _same
    is_one: bool = False

    @property
    def state_axes(self) -> tuple[int, ...]:
        """The sizes between the layers and the units of the caller's states."""
        return () if self.is_one else (len(self.lod.levels[0]) - 1,)


def of_rows(rows: Tensor, offsets: Any) -> Batch:
    """Return a Batch of rows with the offsets of their sequences."""
    lod = LoD([_numbers(offsets, "offsets")])
    if rows.dim() != 2 or len(rows) != lod.num_rows:
        expected = f"({lod.num_rows}, features), as the offsets say"
        raise ShapeError("input", expected=expected, got=f"shape {tuple(rows.shape)}")
    return Batch(rows, lod)


def of_one(rows: Tensor) -> Batch:
    """Return a Batch of one sequence, whose states have no axis of sequences."""
    lod = LoD([[0, len(rows)]])
    return Batch(rows, lod, _same, lambda state: state.unsqueeze(1), lambda state: state.squeeze(1), is_one=True)


def of_jagged(nested: Tensor) -> Batch:
    """Return the rows of a jagged nested tensor: its own, unless it has holes."""
    rows, lod, offsets = parts_of_jagged(nested)
    return Batch(rows, lod, lambda rows: jagged(rows, offsets))


def parts_of_jagged(nested: Any) -> tuple[Tensor, LoD, Tensor]:
    """Return the rows of a jagged nested tensor, their LoD, and its offsets, by which torch compares shapes."""
    if nested.layout != torch.jagged:
        hint = "torch.nested.nested_tensor(..., layout=torch.jagged)"
        raise ShapeError("nested tensor", expected="layout torch.jagged", got=nested.layout, hint=hint)
    if nested.dim() < 2 or getattr(nested, "_ragged_idx", 1) != 1:
        raise ShapeError("nested tensor", expected="(sequences, rows, ...)", got=f"shape {tuple(nested.shape)}")
    whole = nested if nested.lengths() is None else nested.contiguous()
    rows, lod = whole.values(), LoD([whole.offsets().numpy()])
    if lod.num_rows != len(rows):
        expected, got = f"{lod.num_rows} rows, as its offsets say", f"{len(rows)} in values()"
        raise ShapeError("nested tensor", expected=expected, got=got)
    return rows, lod, whole.offsets()


def jagged(rows: Tensor, offsets: Tensor | None) -> Tensor:
    """Return a jagged nested tensor of rows, or the rows where there are no offsets."""
    return rows if offsets is None else torch.nested.nested_tensor_from_jagged(rows, offsets)


def of_packed(packed: PackedSequence) -> Batch:
    """Return the rows of a PackedSequence, the longest sequence first, as it has them: one copy each way."""
    sizes = packed.batch_sizes.numpy()
    if not sizes.size or sizes[-1] < 0 or (sizes[1:] > sizes[:-1]).any() or sizes.sum() != len(packed.data):
        expected = f"numbers that never rise, of {len(packed.data)} rows in all"
        raise ShapeError("PackedSequence, batch_sizes", expected=expected, got=shown(sizes.tolist()))
    sequences = np.arange(sizes[0])
    lengths = np.searchsorted(-sizes, -sequences)  # how many steps have more sequences than stand before this one
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
    """Return the rows of a padded batch without its padding: one copy each way."""
    if padded.dim() != 3:
        expected = "a padded batch of rank 3, for there are lengths"
        raise ShapeError("input", expected=expected, got=f"shape {tuple(padded.shape)}")
    num_sequences, steps = padded.shape[:2] if batch_first else padded.shape[1::-1]
    given = _numbers(lengths, "lengths")
    if given.shape != (num_sequences,) or not ((given >= 0) & (given <= steps)).all():
        expected = f"{num_sequences} numbers from 0 to {steps}, as input has sequences and steps"
        raise ShapeError("lengths", expected=expected, got=shown(given.tolist()))
    sequence, step = np.nonzero(np.arange(steps) < given[:, None])
    places = sequence * steps + step if batch_first else step * num_sequences + sequence
    flat = padded.reshape(num_sequences * steps, padded.shape[2])
    axes = padded.shape[:2]
    return _taken(flat, places, LoD.from_lengths([given]), lambda rows: rows.reshape(*axes, rows.shape[1]))


def of_equal(padded: Tensor, batch_first: bool) -> Batch:
    """Return the rows of sequences of equal lengths: their own where they stand sequence by sequence."""
    by_sequence = padded if batch_first else padded.transpose(0, 1)
    num_sequences, steps, features = by_sequence.shape

    def shaped(rows: Tensor) -> Tensor:
        found = rows.reshape(num_sequences, steps, rows.shape[1])
        return found if batch_first else found.transpose(0, 1).contiguous()

    lod = LoD([np.arange(num_sequences + 1) * steps])
    return Batch(by_sequence.reshape(num_sequences * steps, features), lod, shaped)


def _numbers(given: Any, name: str) -> np.ndarray:
    """Return integers of a tensor, an array or a list."""
    try:
        array = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    except ValueError as error:  # of lists of unequal length
        raise DTypeError(name, expected="integers", got=shown(given)) from error
    if array.dtype.kind not in "iu" and array.size:
        raise DTypeError(name, expected="integers", got=array.dtype)
    return array.astype(np.int64)


def _taken(data: Tensor, places: np.ndarray, lod: LoD, shaped: Callable[[Tensor], Any]) -> Batch:
    """Return the rows at some positions of `data`, and a function that puts rows there again, with zeros elsewhere."""
    back = np.full(len(data), -1)
    back[places] = np.arange(len(places))
    return Batch(_Taken.apply(data, places, back), lod, lambda rows: shaped(_Taken.apply(rows, back, places)))


class _Taken(torch.autograd.Function):
    """Rows at places, zeros where the place is -1.  None is taken twice, so the gradient takes them back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: np.ndarray, back: np.ndarray) -> Tensor:
        ctx.places, ctx.back = places, back
        return torch.from_numpy(rows_taken(rows.detach().numpy(), places))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Taken.apply(gradient, ctx.back, ctx.places), None, None
