"""The planner: sequences sorted by length, longest first, so that the batch of each time step only shrinks.

`sorted_seqs` is made once per LoD, without a Python loop over steps, and is kept on the LoD: layers that share a
LoD share the plan.  Row of the sequence of rank k at step t is `starts[k] + t`; the sequences still alive at step
t are the first `batch_sizes[t]` ranks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import numpy as np

from varlen_rnn.errors import DTypeError, LoDError, OutOfRangeError, check_flag, check_int
from varlen_rnn.frozen import Frozen
from varlen_rnn.rows.checks import read_only
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of, remember
from varlen_rnn.typing import Offsets

# Of a plan, for kernels, the very arrays: never handed out.
ranks_of = attrgetter("_starts", "_seq_lens", "_sorted_indices")


class SortedSeqItem(NamedTuple):
    """One sequence of a plan: its entries `start` to `end`, and its `index` in the caller's order."""

    start: int
    end: int
    index: int  # type: ignore[assignment]  # the method of tuples is hidden


class PaddingReport(NamedTuple):
    """What padding would have cost: rows in all, and as ratios to the rows that exist (1.0 is no padding).

    `padded_rows` pads every sequence to the longest; `bucketed_rows` pads each bucket, neighbours in length, to
    its own longest.

    Examples
    --------
    >>> report = sort_by_seq_len([0, 1, 11, 13]).padding(bucket_size=2)
    >>> report.rows_saved, report.bucketed_ratio
    (17, 1.6153846153846154)
    """

    rows: int
    padded_rows: int
    bucketed_rows: int

    @property
    def rows_saved(self) -> int:
        """Rows of padding that a batch without padding does not have."""
        return self.padded_rows - self.rows

    @property
    def padding_ratio(self) -> float:
        """Rows of the padded batch for each row that exists; 1.0 for a batch without rows."""
        return self.padded_rows / self.rows if self.rows else 1.0

    @property
    def bucketed_ratio(self) -> float:
        """Rows of the bucketed batch for each row that exists; 1.0 for a batch without rows."""
        return self.bucketed_rows / self.rows if self.rows else 1.0


class SortedSeqs(Frozen):
    """The plan of one LoD level: its sequences, longest first, and how many of them each step has.

    Made by `sort_by_seq_len`.  All arrays are int64 and read-only: views that nobody else holds.

    Attributes
    ----------
    offsets : (num_sequences + 1,)
        Those of the level.
    sorted_indices : (num_sequences,)
        The caller's index of each rank; equal lengths keep the caller's order.
    starts, seq_lens : (num_sequences,)
        First entry (a row, at the last level) and length in steps, of each rank.
    batch_sizes : (max_seq_len,)
        Sequences still alive at each step; never rises.
    total_len : int
        Entries in all.

    Examples
    --------
    >>> plan = sort_by_seq_len([0, 1, 4, 6])
    >>> plan.seq_lens, plan.starts, plan.batch_sizes
    (array([3, 2, 1]), array([1, 4, 0]), array([3, 2, 1]))

    Source: PaddlePaddle's design document "Variable-length supported RNN", section "sorted by length".
    """

    __slots__ = ("_made", "_offsets", "_seq_lens", "_sorted_indices", "_starts", "total_len")

    total_len: int
    _made: dict[Hashable, Any]
    _offsets: np.ndarray
    _seq_lens: np.ndarray
    _sorted_indices: np.ndarray
    _starts: np.ndarray

    def __init__(self, offsets: Offsets) -> None:
        self._sort(LoD([offsets]), 0)

    @classmethod
    def of_level(cls, lod: LoD, level: int) -> SortedSeqs:
        """Return the plan of a level of a LoD."""
        plan = cls.__new__(cls)
        plan._sort(lod, level)
        return plan

    def _sort(self, lod: LoD, level: int) -> None:
        offsets = levels_of(lod)[level]
        lengths = np.diff(offsets)
        order = np.argsort(-lengths, kind="stable")
        self._put("_offsets", offsets)
        self._put("_sorted_indices", read_only(order))
        self._put("_starts", read_only(offsets[:-1][order]))
        self._put("_seq_lens", read_only(lengths[order]))
        self._put("total_len", int(offsets[-1]))
        self._put("_made", {})  # arrays made on demand, with `setdefault` because threads may ask at once

    def __reduce__(self) -> tuple[type[SortedSeqs], tuple[np.ndarray]]:
        return SortedSeqs, (self.offsets,)  # NumPy's copies of read-only arrays can be written to

    @property
    def offsets(self) -> np.ndarray:
        """The offsets of the level."""
        return self._offsets.view()

    @property
    def sorted_indices(self) -> np.ndarray:
        """The caller's index of each rank."""
        return self._sorted_indices.view()

    @property
    def starts(self) -> np.ndarray:
        """The first entry of each rank."""
        return self._starts.view()

    @property
    def seq_lens(self) -> np.ndarray:
        """The length of each rank, in steps."""
        return self._seq_lens.view()

    @property
    def batch_sizes(self) -> np.ndarray:
        """Sequences still alive at each step."""
        # Made when asked for: two offsets that came over a pipe may claim more steps than fit in memory.
        found = self._made.get("batch_sizes")
        if found is None:
            # The count of lengths above t, by bisection in the lengths, which fall.
            sizes = np.searchsorted(-self._seq_lens, -np.arange(self.max_seq_len), side="left")
            found = self._made.setdefault("batch_sizes", read_only(sizes))
        return found.view()

    @property
    def num_sequences(self) -> int:
        """The number of sequences, empty ones too."""
        return len(self._seq_lens)

    @property
    def max_seq_len(self) -> int:
        """Steps of the longest sequence; 0 when there is none."""
        return int(self._seq_lens[0]) if len(self._seq_lens) else 0

    @property
    def padding_ratio(self) -> float:
        """Rows of the padded batch for each row that exists; `padding()` tells more."""
        return self.padding().padding_ratio

    def padding(self, bucket_size: int = 32) -> PaddingReport:
        """Return the cost of padding this batch, as a whole and in buckets of `bucket_size` sequences.

        Examples
        --------
        >>> report = sort_by_seq_len([0, 1, 11, 13]).padding(bucket_size=2)
        >>> report.rows, report.padded_rows, report.bucketed_rows
        (13, 30, 21)
        """
        step = min(check_int(bucket_size, "bucket_size", 1), self.num_sequences + 1)
        longest = self._seq_lens[::step]
        sizes = np.minimum(step, self.num_sequences - np.arange(len(longest)) * step)
        padded = self.num_sequences * self.max_seq_len
        return PaddingReport(self.total_len, padded, int((longest * sizes).sum()))

    def previous_rows(self, reverse: bool = False) -> np.ndarray:
        """Return, for every row, the row of the step before it; -1 - i at the first step of the caller's sequence i.

        Parameters
        ----------
        reverse : bool
            Whether each sequence runs from its last row to its first.

        Examples
        --------
        >>> sort_by_seq_len([0, 1, 4]).previous_rows(), sort_by_seq_len([0, 1, 4]).previous_rows(reverse=True)
        (array([-1, -2,  1,  2]), array([-1,  2,  3, -2]))
        """
        reverse = check_flag(reverse, "reverse")
        found = self._made.get(("previous_rows", reverse))  # layers share a plan
        if found is None:
            step = 1 if reverse else -1
            rows = np.arange(step, self.total_len + step)
            filled = np.flatnonzero(np.diff(self._offsets))
            first = self._offsets[1:][filled] - 1 if reverse else self._offsets[:-1][filled]
            rows[first] = -1 - filled
            found = self._made.setdefault(("previous_rows", reverse), read_only(rows))
        return found.view()

    def __getitem__(self, rank: int) -> SortedSeqItem:
        """Return the sequence of a rank as `SortedSeqItem(start, end, index)`; rank 0 is the longest."""
        rank = check_int(rank, "rank")
        if not -len(self) <= rank < len(self):
            raise OutOfRangeError("rank", expected=f"less than {len(self)}, the number of sequences", got=rank)
        start = int(self._starts[rank])
        return SortedSeqItem(start, start + int(self._seq_lens[rank]), int(self._sorted_indices[rank]))

    def __len__(self) -> int:
        return len(self._seq_lens)

    def __iter__(self) -> Iterator[SortedSeqItem]:
        return (self[rank] for rank in range(len(self)))

    def __repr__(self) -> str:
        return f"SortedSeqs({self.num_sequences} sequences, {self.max_seq_len} steps, {self.total_len} rows)"


class Holder(Protocol):
    """What holds rows or a LoD, as a Variable does."""

    value: Any


def sort_by_seq_len(x: LoDTensor | LoD | Holder | Offsets, level: int = -1) -> SortedSeqs:
    """Return the plan of a level: its sequences sorted by length, longest first, ties in the caller's order.

    Parameters
    ----------
    x : LoDTensor, Variable, LoD or sequence of int
        Where the offsets come from; a sequence of int is one level of offsets.
    level : int
        By default the last, whose entries are rows; entries of an upper level are sequences of the next lower.

    Returns
    -------
    SortedSeqs
        Kept on the LoD: a second call returns the same object.

    Raises
    ------
    LoDError
        There is no such level, or the offsets are invalid.

    Examples
    --------
    >>> plan = sort_by_seq_len([0, 1, 4, 6])
    >>> plan.sorted_indices, plan.batch_sizes
    (array([1, 2, 0]), array([3, 2, 1]))
    >>> plan[0]
    SortedSeqItem(start=1, end=4, index=1)
    """
    if not isinstance(x, (LoDTensor, LoD)):
        x = getattr(x, "value", x)  # a Variable
    if isinstance(x, LoDTensor):
        x = x.structure
    if not isinstance(x, LoD):
        if isinstance(x, np.ndarray) and x.dtype.kind == "f":
            raise DTypeError("x", expected="a LoDTensor, or one level of offsets", got=f"an array of {x.dtype}")
        return SortedSeqs(x)  # type: ignore[arg-type]  # the content of a Holder
    level, num_levels = check_int(level, "level"), len(x)
    if not -num_levels <= level < num_levels:
        raise LoDError("level", expected=f"one of the {num_levels} levels", got=level)
    level = level % num_levels - num_levels  # from the end, as `plan_of_rows` counts
    return remember(x, ("plan", level), SortedSeqs.of_level, x, level)


def plan_of_rows(lod: LoD) -> SortedSeqs:
    """Return the plan of a LoD's last level, as `sort_by_seq_len`, without a check: every layer asks for it."""
    return remember(lod, ("plan", -1), SortedSeqs.of_level, lod, -1)


def check_is_plan(sorted_seqs: object) -> None:
    """Raise unless `sorted_seqs` is a plan."""
    if not isinstance(sorted_seqs, SortedSeqs):
        raise DTypeError("sorted_seqs", expected="the result of sort_by_seq_len", got=type(sorted_seqs).__name__)
