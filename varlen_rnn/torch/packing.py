"""Say where sequences begin in a batch whose rows are packed: `with packed(offsets): model(batch)`.

The batch has the shape `(1, rows, features)`, or `(1, rows)` for the token ids that a model embeds.  Offsets 0, 2, 2, 5
of five rows are sequences of two, none and three rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar, Token
from typing import Any

from varlen_rnn.errors import ShapeError
from varlen_rnn.rows.lod import LoD
from varlen_rnn.runtime.forks import turn
from varlen_rnn.torch.eager import eager
from varlen_rnn.torch.layouts import numbers

_lod: ContextVar[LoD | None] = ContextVar("packed", default=None)
_changing = turn()
_inside: list[None] = []  # an item for each `packed` that a thread is inside of
in_use = False  # whether any thread is; `torch.compile` guards a global bool, but cannot read a ContextVar


@contextlib.contextmanager
def packed(offsets: Any) -> Iterator[None]:
    """Return a context in which the layers of a replaced model take a batch of one as several sequences.

    A replaced layer then begins anew at each offset, in a batch of shape `(1, rows, features)`.  Initial and last
    states have one entry for each sequence.  All other layers of a model must work row by row.  A thread that is
    started inside has no offsets.  If a model computes activations anew for gradients (`torch.utils.checkpoint`), call
    `backward` inside, too.

    Parameters
    ----------
    offsets : integers, shape (sequences + 1,)
        Sequence i has the rows `offsets[i]` to `offsets[i + 1]`.  The first offset is 0, the last one the number of
        rows, and offsets never fall.  An inner context replaces the offsets of the outer one.

    Raises
    ------
    LoDError
        If offsets do not begin at 0, or fall.
    ShapeError
        In the call of a layer, if its batch is not of one, or has another number of rows than the last offset.

    Examples
    --------
    >>> import torch
    >>> from varlen_rnn.torch import replace
    >>> gru = replace(torch.nn.GRU(3, 4, batch_first=True))
    >>> with packed([0, 2, 5]):
    ...     output, h_n = gru(torch.zeros(1, 5, 3))
    >>> output.shape, h_n.shape
    (torch.Size([1, 5, 4]), torch.Size([1, 2, 4]))
    """
    token = _begin(offsets)
    try:
        yield
    finally:
        _end(token)


# Torch cannot trace a LoD or a ContextVar, so a function that it compiles is cut here.
@eager
def _begin(offsets: Any) -> Token:
    global in_use
    token = _lod.set(LoD([numbers(offsets, "packed, offsets")]))
    with _changing:
        _inside.append(None)
        in_use = True
    return token


@eager
def _end(token: Token) -> None:
    global in_use
    with _changing:
        _inside.pop()
        in_use = bool(_inside)
    _lod.reset(token)


def is_packed() -> bool:
    """Return whether the caller is inside `packed`."""
    return _lod.get() is not None


def packed_lod(where: str, axes: Sequence[int]) -> Any:
    """Return the offsets of `packed` as a LoD, or None outside of it; raise unless they fit a batch.

    Parameters
    ----------
    where : str
        The name of the layer, for the message of an error.
    axes : sequence of int
        The sequences and rows of the batch: its shape without the features.
    """
    lod = _lod.get()
    if lod is not None and tuple(axes) != (1, lod.num_rows):
        expected = f"1 batch with {lod.num_rows} rows, the last offset of `packed`"
        raise ShapeError(f"{where}, input", expected=expected, got=f"an input with the axes {tuple(axes)}")
    return lod
