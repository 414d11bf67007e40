"""Plans: the sequences of a LoD sorted by length, longest first, so that the batch only shrinks from step to step.

A plan is computed once per LoD and cached on it, so that all layers share it.  The row of the sequence with rank k at
step t is `starts[k] + t`.  The sequences that have not ended at step t are the first `batch_sizes[t]` ranks.  For
example, sequences of 1, 3 and 2 rows have the ranks 2, 0 and 1, and the batch sizes 3, 2 and 1.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from varlen_rnn.errors import DTypeError, LoDError, OutOfRangeError, check_flag, check_int
from varlen_rnn.frozen import Frozen
from varlen_rnn.kernels.plans import find_previous_rows, sort_sequences
from varlen_rnn.rows.checks import read_only
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of, remember, view_of
from varlen_rnn.runtime.device import empty
from varlen_rnn.runtime.placeholder import Placeholder
from varlen_rnn.typing import Offsets

# A function that returns a plan's own arrays, for kernels; users must never get them.
ranks_of = attrgetter("_starts", "_seq_lens", "_sorted_indices")


class SortedSeqItem(NamedTuple):
    """A sequence of a plan: it has the entries `start` to `end` (excluded), and the number `index` of the caller."""

    start: int
    end: int
    index: int  # type: ignore[assignment]  # hides `tuple.index`


class PaddingReport(NamedTuple):
    """The cost of padding a batch: its numbers of rows without and with padding.

    `rows` is the number of rows without padding.  `padded_rows` is the number after padding every sequence to the
    longest.  `bucketed_rows` is the number if sequences are sorted into buckets by length, and each bucket is padded to
    its own longest sequence.  Ratios are relative to `rows`; 1.0 means no padding.

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
        """The number of padding rows that a batch without padding saves."""
        return self.padded_rows - self.rows

    @property
    def padding_ratio(self) -> float:
        """`padded_rows` divided by `rows`; 1.0 for a batch without rows."""
        return self.padded_rows / self.rows if self.rows else 1.0

    @property
    def bucketed_ratio(self) -> float:
        """`bucketed_rows` divided by `rows`; 1.0 for a batch without rows."""
        return self.bucketed_rows / self.rows if self.rows else 1.0


class SortedSeqs(Frozen):
    """The plan of one LoD level: its sequences, longest first, and the number of sequences at each step.

    `sort_by_seq_len` makes it.  All arrays are int64 and read-only views.

    Attributes
    ----------
    offsets : (num_sequences + 1,)
        The offsets of the level.
    sorted_indices : (num_sequences,)
        The index in the caller's order of each rank; sequences of equal length stay in the caller's order.
    starts, seq_lens : (num_sequences,)
        The first entry (for the last level, the first row) and the length in steps of each rank.
    batch_sizes : (max_seq_len,)
        The number of sequences that have not ended at each step; it never rises.
    total_len : int
        The total number of entries.

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
        if type(offsets) is Placeholder:
            self._put_placeholders(lod, level % lod.num_levels)
            return
        lengths = np.diff(offsets)
        order = np.argsort(-lengths, kind="stable")
        self._put("_offsets", offsets)
        self._put("_sorted_indices", read_only(order))
        self._put("_starts", read_only(offsets[:-1][order]))
        self._put("_seq_lens", read_only(lengths[order]))
        self._put("total_len", int(offsets[-1]))
        self._put("_made", {})  # arrays computed on demand

    def _put_placeholders(self, lod: LoD, level: int) -> None:
        levels = levels_of(lod)
        made = [empty((len(levels[level]) - 1,), levels[level]) for _ in range(3)]
        sort_sequences(levels[level], *made)
        for name, array in zip(("_sorted_indices", "_starts", "_seq_lens"), made, strict=True):
            array.flags.writeable = False
            self._put(name, array)
        self._put("_offsets", levels[level])
        self._put("total_len", lod.num_rows if level == lod.num_levels - 1 else len(levels[level + 1]) - 1)
        self._put("_made", {})

    def __reduce__(self) -> tuple[type[SortedSeqs], tuple[np.ndarray]]:
        return SortedSeqs, (self.offsets,)  # unpickling calls the constructor, because unpickled arrays are writeable

    offsets: Final[np.ndarray] = view_of("_offsets", "The offsets of the level.")
    sorted_indices: Final[np.ndarray] = view_of("_sorted_indices", "The index in the caller's order of each rank.")
    starts: Final[np.ndarray] = view_of("_starts", "The first entry of each rank.")
    seq_lens: Final[np.ndarray] = view_of("_seq_lens", "The length of each rank, in steps.")

    @property
    def batch_sizes(self) -> np.ndarray:
        """The number of sequences that have not ended at each step."""
        # They are computed on demand, because untrusted offsets may claim more steps than fit into memory.
        found = self._made.get("batch_sizes")
        if found is None:
            # For each step t, the number of lengths above t, by bisection: lengths are sorted in descending order.
            sizes = np.searchsorted(-self._seq_lens, -np.arange(self.max_seq_len), side="left")
            found = self._made.setdefault("batch_sizes", read_only(sizes))
        return found.view()

    @property
    def num_sequences(self) -> int:
        """The number of sequences, including empty ones."""
        return len(self._seq_lens)

    @property
    def max_seq_len(self) -> int:
        """The number of steps of the longest sequence; 0 if there are no sequences."""
        return int(self._seq_lens[0]) if len(self._seq_lens) else 0

    @property
    def padding_ratio(self) -> float:
        """The number of rows after padding, divided by the number of rows; `padding()` returns more details."""
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
        """Return, for every row, the index of the row of the previous step; -1 - i for the first step of sequence i.

        Sequences are numbered in the caller's order.

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
        found = self._made.get(("previous_rows", reverse))  # cached, because layers share a plan
        if found is None and type(self._offsets) is Placeholder:
            found = self._made["previous_rows", reverse] = empty((self.total_len,), self._offsets)
            find_previous_rows(self._offsets, reverse, found)
            found.flags.writeable = False
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


def step_rows(plan: SortedSeqs, reverse: bool) -> np.ndarray:
    """Return the row indices of all steps, step by step, in the order of ranks within a step, as a read-only array.

    Step t has `batch_sizes[t]` indices, after the indices of earlier steps.

    Examples
    --------
    >>> step_rows(sort_by_seq_len([0, 1, 4, 6]), False)
    array([1, 4, 0, 2, 5, 3])
    """
    found = plan._made.get(("step_rows", reverse))  # cached, because layers share a plan
    if found is None:
        sizes = plan.batch_sizes
        steps = np.repeat(np.arange(len(sizes)), sizes)
        ranks = np.arange(len(steps)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        steps = plan._seq_lens[ranks] - 1 - steps if reverse else steps
        found = plan._made.setdefault(("step_rows", reverse), read_only(plan._starts[ranks] + steps))
    return found


class Holder(Protocol):
    """An object whose `value` has rows or a LoD, such as a Variable."""

    value: Any


def sort_by_seq_len(x: LoDTensor | LoD | Holder | Offsets, level: int = -1) -> SortedSeqs:
    """Return the plan of a level: its sequences sorted by length, longest first.

    Sequences of equal length stay in the caller's order.

    Parameters
    ----------
    x : LoDTensor, Variable, LoD or sequence of int
        An object with a LoD, or a sequence of int, which is one level of offsets.
    level : int
        By default the last level, whose entries are rows.  The entries of an upper level are the sequences of the next
        lower level.

    Returns
    -------
    SortedSeqs
        It is cached on the LoD, so that a second call returns the same object.

    Raises
    ------
    LoDError
        If there is no such level, or the offsets are invalid.

    Examples
    --------
    >>> plan = sort_by_seq_len([0, 1, 4, 6])
    >>> plan.sorted_indices, plan.batch_sizes
    (array([1, 2, 0]), array([3, 2, 1]))
    >>> plan[0]
    SortedSeqItem(start=1, end=4, index=1)
    """
    if not isinstance(x, (LoDTensor, LoD)):
        x = getattr(x, "value", x)  # x may be a Variable
    if isinstance(x, LoDTensor):
        x = x.structure
    if not isinstance(x, LoD):
        if isinstance(x, np.ndarray) and x.dtype.kind == "f":
            raise DTypeError("x", expected="a LoDTensor, or one level of offsets", got=f"an array of {x.dtype}")
        return SortedSeqs(x)  # type: ignore[arg-type]
    level, num_levels = check_int(level, "level"), len(x)
    if not -num_levels <= level < num_levels:
        raise LoDError("level", expected=f"one of the {num_levels} levels", got=level)
    level = level % num_levels - num_levels  # negative, as in the cache key of `plan_of_rows`
    return remember(x, ("plan", level), SortedSeqs.of_level, x, level)


def plan_of_rows(lod: LoD) -> SortedSeqs:
    """Return the plan of a LoD's last level, as `sort_by_seq_len` does, but without checks, to save time."""
    return remember(lod, ("plan", -1), SortedSeqs.of_level, lod, -1)


def check_is_plan(sorted_seqs: object) -> None:
    """Raise unless `sorted_seqs` is a SortedSeqs."""
    if not isinstance(sorted_seqs, SortedSeqs):
        raise DTypeError("sorted_seqs", expected="a result of sort_by_seq_len", got=type(sorted_seqs).__name__)
