"""Make batches of sequences, in an order that changes with every epoch (every pass over the batches).

The order depends only on (seed, epoch), so that a run that was stopped can continue with exactly the next batch.
Batches need no padding, but `bucket` still saves time, because sequences of similar length keep every step busy.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypedDict, TypeVar, Unpack, overload

import numpy as np
from numpy.typing import ArrayLike

from varlen_rnn.data.gather import Store, store_of
from varlen_rnn.data.parts import STEP_COST, StepCost, balanced_parts
from varlen_rnn.errors import (
    DTypeError,
    InputError,
    LoDError,
    OutOfRangeError,
    ShapeError,
    check_flag,
    check_int,
    check_list,
    count,
    hinting,
    shown,
)
from varlen_rnn.rows.checks import as_rows, check_no_gradient, check_unmasked, ends_of, read_only
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of
from varlen_rnn.typing import Rows

# Batches per pool.  A large pool gives batches of very similar lengths, a small pool gives a more random order.
POOL = 50

Batch = TypeVar("Batch")  # a LoDTensor, or a tuple of a LoDTensor and labels
Labels: TypeAlias = Rows | Iterable[Rows]  # one label per sequence, or one per row
_NUMBERS = (int, float, np.generic)
_MOST = 2**50  # the largest budget; POOL times this fits 64 bits


class Batches(Generic[Batch]):
    """The batches of an epoch, as `batches` returns them.

    `len(b)` is the number of batches, `b[k]` is batch k, and `b.at_epoch(n)` are the batches of another epoch.

    With `shuffle` or `weights`, each pass has an order of its own, as in PyTorch's DataLoader: the first loop over `b`
    has the order of the epoch `b.epoch`, and each later loop begins the next epoch.  The order is a function of the
    seed and the epoch, so `b.at_epoch(n)` begins a pass again, or resumes.  `len(b)`, `b[k]` and `b.indices(k)` belong
    to the pass that began last.

    Examples
    --------
    >>> b = batches([[1, 2], [3], [4, 5, 6]], np.array([0, 1, 0]), batch_size=2)
    >>> b
    Batches: 2 batches of 3 sequences, epoch 0
    >>> x, labels = b[0]
    >>> x.to_sequences(), labels
    ([array([1, 2]), array([3])], array([0, 1]))
    >>> b = batches([[1], [2], [3], [4]], batch_size=4, shuffle=True)
    >>> [batch.data.tolist() for epoch in range(2) for batch in b], b.epoch
    ([[3, 1, 2, 4], [4, 1, 3, 2]], 1)
    """

    def __init__(
        self,
        stores: Sequence[Store],
        static: np.ndarray | None,
        labels: np.ndarray | Store | None,
        cut: Callable[[int], list[np.ndarray]],
        epoch: int,
        is_random: bool,
    ) -> None:
        self._stores, self._static, self._labels = stores, static, labels
        self._cut, self._is_random, self._has_begun = cut, is_random, False
        # One assignment sets epoch and batches, because an interrupt between two would leave them inconsistent.
        self._of_epoch = epoch, cut(epoch)
        self._part: tuple[int, int, StepCost] | None = None

    @property
    def epoch(self) -> int:
        """The epoch of the latest pass, or of the first pass if no pass has begun."""
        return self._of_epoch[0]

    def at_epoch(self, epoch: int) -> Batches[Batch]:
        """Return new batches at the beginning of another epoch; without `shuffle` and `weights`, all epochs are equal.

        Examples
        --------
        >>> b = batches([[k] for k in range(20)], batch_size=20, shuffle=True)
        >>> first, second, again = (b.at_epoch(epoch)[0].data.tolist() for epoch in (0, 1, 0))
        >>> first == second, first == again
        (False, True)
        """
        epoch, made = check_int(epoch, "epoch", 0), copy.copy(self)
        made._of_epoch, made._has_begun = (epoch, self._cut(epoch)), False
        return made

    def part(self, rank: int, size: int, cost: StepCost = STEP_COST) -> Batches[Batch]:
        """Return one of `size` parts of each batch, divided so that parts take about the same time.

        Every sequence of a batch is in exactly one part.  A part can be empty.  The LoD of a part has the positions of
        its sequences in the whole batch (`LoD.positions`), so that dropout draws the same mask as for the whole batch.

        Parameters
        ----------
        rank : int
            Which part: `0 <= rank < size`.
        size : int
        cost : StepCost
            How long a step takes, the same for all parts; see `balanced_parts`.

        Examples
        --------
        >>> b = batches([[1, 2], [3], [4, 5, 6]], batch_size=3)
        >>> [b.part(rank, 2)[0].to_sequences() for rank in (0, 1)]
        [[array([4, 5, 6])], [array([1, 2]), array([3])]]
        >>> b.part(1, 2)[0].structure.positions
        array([0, 1])
        """
        size = check_int(size, "part, size", 1)
        rank = check_int(rank, "part, rank", 0)
        if rank >= size:
            raise OutOfRangeError("part, rank", expected=f"less than {size}, the number of parts", got=rank)
        balanced_parts([], size, cost)  # raises if the cost is invalid
        made = self.at_epoch(self.epoch)
        made._part = rank, size, cost
        return made

    def lengths(self, batch: int) -> np.ndarray:
        """Return the lengths of the sequences of a whole batch, not only of this part, in the batch's order, int64.

        Examples
        --------
        >>> batches([[1, 2], [3], [4]], batch_size=2).part(0, 2).lengths(0)
        array([2, 1])
        """
        return self._stores[0].lengths[self._whole(batch)]

    def _whole(self, batch: int) -> np.ndarray:
        batch, found = check_int(batch, "batch"), self._of_epoch[1]
        if not -len(found) <= batch < len(found):
            raise OutOfRangeError("batch", expected=f"less than {len(found)}, the number of batches", got=batch)
        return found[batch].copy()

    def _chosen(self, whole: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the indices of the sequences in this part of a batch, and their positions in the whole batch."""
        if self._part is None:
            return whole, None
        rank, size, cost = self._part
        positions = balanced_parts(self._stores[0].lengths[whole], size, cost)[rank]
        return whole[positions], read_only(positions)

    def indices(self, batch: int) -> np.ndarray:
        """Return which sequences of the caller's list are in a batch, or in this part of it, as int64 indices.

        Examples
        --------
        >>> batches([[1, 2], [3], [4]], batch_size=2, bucket=True).indices(0)
        array([1, 2])
        """
        return self._chosen(self._whole(batch))[0]

    def __getitem__(self, batch: int) -> Batch:
        return self._batch(*self._chosen(self._whole(batch)))

    def _batch(self, indices: np.ndarray, positions: np.ndarray | None) -> Any:
        parts: list[Any] = [store.gather(indices) for store in self._stores]
        if positions is not None:
            lods = [LoD.trusted(levels_of(part.structure), positions) for part in parts]
            parts = [LoDTensor.wrap(part.data, lod) for part, lod in zip(parts, lods, strict=True)]
        if self._static is not None:
            parts.append(self._static[indices])
        if isinstance(self._labels, np.ndarray):
            parts.append(self._labels[indices])
        elif self._labels is not None:
            # Labels of rows share the LoD object with the rows, so that the plan that the object caches is reused.
            parts.append(LoDTensor(self._labels.gather(indices).data, parts[0].structure))
        return parts[0] if len(parts) == 1 else tuple(parts)

    def __len__(self) -> int:
        return len(self._of_epoch[1])

    def __iter__(self) -> Iterator[Batch]:
        if self._is_random and self._has_begun:
            self._of_epoch = self.epoch + 1, self._cut(self.epoch + 1)
        self._has_begun = True
        # The generator keeps this pass's order, because another pass can begin before this one ends.
        return (self._batch(*self._chosen(whole.copy())) for whole in self._of_epoch[1])

    def __repr__(self) -> str:
        part = "" if self._part is None else f", part {self._part[0]} of {self._part[1]}"
        return f"Batches: {len(self)} batches of {len(self._stores[0].lengths)} sequences, epoch {self.epoch}{part}"


class Ranks(Protocol):
    """The processes that share the work; this process has the number `rank`, from 0, among `size` processes."""

    @property
    def rank(self) -> int: ...  # noqa: D102
    @property
    def size(self) -> int: ...  # noqa: D102


_IN_MEMORY = "leave it out: this process cuts batches from memory, or from memory-mapped files"
_of_loaders = hinting(
    "static=array adds an entry per sequence to each batch, and others=[sequences] adds further sequences",
    X="its name is sequences", batch_sampler="max_tokens= limits the rows of a batch, bucket= batches similar lengths",
    collate_fn="leave it out: a batch is the rows of its sequences, without padding", generator="pass seed=0 instead",
    lengths="leave it out: each sequence has its own length", num_workers=_IN_MEMORY, persistent_workers=_IN_MEMORY,
    pin_memory=_IN_MEMORY, prefetch_factor=_IN_MEMORY, random_state="its name is seed",
    sampler="weights= draws by weights, part= divides batches among ranks", targets="its name is labels",
    y="its name is labels",
)  # fmt: skip


class BatchOptions(TypedDict, total=False):
    """The options of `batches` that do not change the type of its result; `batches` documents them."""

    batch_size: int | None
    max_tokens: int | None
    shuffle: bool
    bucket: bool
    drop_last: bool
    seed: int
    epoch: int
    weights: ArrayLike | None
    part: Ranks | None


@overload
def batches(sequences: Iterable[Rows], labels: None = None, **options: Unpack[BatchOptions]) -> Batches[LoDTensor]: ...
@overload
def batches(
    sequences: Iterable[Rows], labels: Labels, **options: Unpack[BatchOptions]
) -> Batches[tuple[LoDTensor, Any]]: ...
@overload
def batches(
    sequences: Iterable[Rows],
    labels: Labels | None = None,
    *,
    static: ArrayLike | None = None,
    others: Sequence[Iterable[Rows]] = (),
    **options: Unpack[BatchOptions],
) -> Batches[tuple[Any, ...]]: ...
@_of_loaders
def batches(
    sequences: Iterable[Rows],
    labels: Labels | None = None,
    *,
    batch_size: int | None = None,
    max_tokens: int | None = None,
    shuffle: bool = False,
    bucket: bool = False,
    drop_last: bool = False,
    seed: int = 0,
    epoch: int = 0,
    static: ArrayLike | None = None,
    others: Sequence[Iterable[Rows]] = (),
    weights: ArrayLike | None = None,
    part: Ranks | None = None,
) -> Batches[Any]:
    """Return batches of sequences; each is a LoDTensor, or a pair of LoDTensor and labels.

    Parameters
    ----------
    sequences : list of array_like, LoDTensor or Variable
        Arrays of shape `(rows, ...)` with the same row shape and data type.  Or lists of such arrays, which differ in
        length: sequences of sequences, as texts of sentences, with two levels; lists that are all equally long are rows
        (`LoDTensor.from_sequences` reads any).  Or a LoDTensor, whose sequences of level 0 are batched together with
        their lower levels.  Sequences may be empty.
    labels : array or list, optional
        One label per sequence: an array or list of shape `(num_sequences, ...)`.  Or one label per row: a list of
        arrays or a LoDTensor; the labels of a batch are then a LoDTensor with the LoD of its rows.
    batch_size : int, optional
        Sequences per batch; the last batch may have fewer.  Give either `batch_size` or `max_tokens`.
    max_tokens : int, optional
        The largest number of rows per batch; a longer sequence gets a batch of its own.
    shuffle : bool
        Whether to shuffle the sequences, in an order that depends only on `seed` and the epoch.  Each pass over the
        batches begins the next epoch.
    bucket : bool
        Whether to batch sequences of similar length together.  With `shuffle`, sequences are sorted by length within
        pools of 50 batches, and then the batches are shuffled.  Without `shuffle`, all sequences are sorted by length,
        shortest first.
    drop_last : bool
        Whether to leave out the last batch if it has fewer sequences than `batch_size`, or fewer rows than
        `max_tokens`.
    seed : int
        At least 0.
    epoch : int
        The epoch of the first pass, at least 0.
    static : array, shape `(num_sequences, ...)`, optional
        A further input with one entry per sequence.  A batch is then a tuple that contains it before the labels.
    others : list of sequences
        Further inputs of sequences, such as answers to the queries in `sequences`; their lengths may differ.  A batch
        is then a tuple that contains them after the first input.  `max_tokens` and `bucket` use the lengths of the
        first input only.
    weights : array, shape `(num_sequences,)`, optional
        Weights for sampling: an epoch then draws `num_sequences` sequences with replacement, with probabilities in
        proportion to the weights.  The draw depends only on `seed` and the epoch.
    part : object with `rank` and `size`, optional
        The processes that share each batch: this one, number `rank` of `size`, gets `Batches.part(rank, size)`.  All
        processes give the same other arguments, and make the same passes: `at_epoch` names the epoch.

    Returns
    -------
    Batches
        They contain every sequence exactly once, unless `drop_last` or `weights` are given.

    Raises
    ------
    InputError
        If not exactly one of `batch_size` and `max_tokens` is given, rows differ in shape or data type, or labels do
        not fit the sequences.

    Examples
    --------
    >>> for x in batches([[1, 2], [3], [], [4, 5, 6, 7]], max_tokens=3):
    ...     print(x.to_sequences())
    [array([1, 2]), array([3]), array([], dtype=int64)]
    [array([4, 5, 6, 7])]
    """
    if (batch_size is None) == (max_tokens is None):
        got = "neither" if batch_size is None else "both"
        raise InputError("batch_size, max_tokens", expected="exactly one of them", got=got)
    by_rows = batch_size is None
    budget = check_int(max_tokens, "max_tokens", 1) if by_rows else check_int(batch_size, "batch_size", 1)
    budget = min(budget, _MOST)
    seed, epoch = check_int(seed, "seed", 0), check_int(epoch, "epoch", 0)
    shuffle, bucket = check_flag(shuffle, "shuffle"), check_flag(bucket, "bucket")
    drop_last = check_flag(drop_last, "drop_last")
    others = _each_input(others)
    stores = [store_of(sequences), *(store_of(other, f"others, input {k}") for k, other in enumerate(others))]
    store, number = stores[0], len(stores[0].lengths)
    for place, other in enumerate(stores[1:]):
        if len(other.lengths) != number:
            expected, got = f"{number} sequences, as in `sequences`", count(len(other.lengths), "sequence")
            hint = "for one further input, pass a list of it: others=[sequences]"
            raise ShapeError(f"others, input {place}", expected=expected, got=got, hint=hint)
    if isinstance(static, Mapping):
        expected = f"one array of shape ({number}, ...)"
        hint = "np.column_stack(list(static.values())) is such an array"
        raise DTypeError("static", expected=expected, got=shown(static), hint=hint)
    beside = None if static is None else _one_each(static, number, "static")
    chances = None if weights is None else _chances(weights, number)
    is_random = shuffle or chances is not None
    costs = store.lengths if by_rows else np.ones_like(store.lengths)

    cut = functools.partial(
        _cut, lengths=store.lengths, costs=costs, chances=chances, budget=budget, bucket=bucket, drop_last=drop_last,
        seed=seed if is_random else None,
    )  # fmt: skip
    made: Batches[Any] = Batches(stores, beside, _check_labels(labels, store), cut, epoch, is_random)
    if part is None:
        return made
    try:
        rank, size = part.rank, part.size
    except AttributeError as error:
        raise DTypeError("part", expected="an object with `rank` and `size`", got=shown(part)) from error
    return made.part(rank, size)


def _cut(
    epoch: int,
    lengths: np.ndarray,
    costs: np.ndarray,
    chances: np.ndarray | None,
    budget: int,
    bucket: bool,
    drop_last: bool,
    seed: int | None,
) -> list[np.ndarray]:
    """Return, for each batch of an epoch, the indices of its sequences.

    `budget` limits the sum of the `costs` of a batch; the cost of a sequence is its number of rows, or 1.  `chances`
    has each sequence's probability to be drawn.  If `seed` is None, each epoch has the same batches.
    """
    number = len(lengths)
    if seed is None:
        order = np.argsort(lengths, kind="stable") if bucket else np.arange(number)
    else:
        rng = np.random.default_rng([seed, epoch])
        order = rng.permutation(number) if chances is None else rng.choice(number, number, p=chances)
        if bucket:
            pools = (np.cumsum(costs[order]) - costs[order]) // (POOL * budget)
            # Lengths rise in one pool and fall in the next, so that a batch that spans two pools has similar lengths.
            keys = np.where(pools % 2, -lengths[order], lengths[order])
            order = order[np.lexsort((keys, pools))]
    spent, bounds = ends_of(costs[order]), [0]
    while bounds[-1] < len(order):  # a batch has as many sequences as the budget allows, and at least one
        begin = bounds[-1]
        bounds.append(max(begin + 1, int(np.searchsorted(spent, spent[begin] + budget, side="right")) - 1))
    found = [order[a:b] for a, b in itertools.pairwise(bounds)]
    if drop_last and found and costs[found[-1]].sum() < budget:
        found.pop()
    return found if seed is None or not bucket else [found[index] for index in rng.permutation(len(found))]


def _each_input(others: Any) -> list[Any]:
    """Return the further inputs as a list; raise if they have names, or if an entry is not a list of sequences."""
    if isinstance(others, Mapping):
        hint = "a batch is a tuple of the inputs in their order: others=list(inputs.values())"
        raise DTypeError("others", expected="a list of inputs", got=shown(others), hint=hint)
    inputs = check_list(others, "others", "a list of inputs")
    for number, given in enumerate(inputs):
        is_list = isinstance(given, (list, tuple)) or (isinstance(given, np.ndarray) and given.ndim > 0)
        entry = given[0] if is_list and len(given) else None
        if isinstance(entry, _NUMBERS):  # the input is one sequence, not a list of sequences
            what, hint = f"others, input {number}", "for one further input, pass a list of it: others=[sequences]"
            raise ShapeError(what, expected="a list of sequences", got=f"one sequence, {shown(given)}", hint=hint)
    return inputs


def _one_each(values: ArrayLike, number: int, name: str) -> np.ndarray:
    array = as_rows(values, name)
    if array.ndim == 0 or len(array) != number:
        raise ShapeError(name, expected=f"{number} entries, one per sequence", got=f"shape {array.shape}")
    return array


def _chances(weights: ArrayLike, number: int) -> np.ndarray | None:
    """Return probabilities in proportion to the weights, or raise if these are invalid."""
    array = _one_each(weights, number, "weights")
    if array.ndim != 1:
        expected = f"{number} numbers, one per sequence"
        raise ShapeError("weights", expected=expected, got=f"{array.dtype} of shape {array.shape}")
    found = array.astype(np.float64)
    if number == 0:
        return None
    if not (np.isfinite(found).all() and (found >= 0).all() and 0 < found.sum() < np.inf):
        expected = "finite numbers of at least 0, and at least one above 0"
        raise OutOfRangeError("weights", expected=expected, got=shown(weights))
    return found / found.sum()


def _check_labels(labels: Labels | None, store: Store) -> np.ndarray | Store | None:
    """Return labels of sequences as an array, labels of rows as a store, or None if there are none."""
    if labels is None:
        return None
    if _are_of_rows(labels):
        return _check_row_labels(labels, store)
    check_no_gradient(labels, "labels")
    check_unmasked(labels, "labels")
    try:
        array = np.asarray(labels).view()  # a view, because the caller may later change the shape of its own array
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ShapeError("labels", expected="entries of one shape", got=shown(labels)) from error
    expected = f"{len(store.lengths)} entries, one per sequence"
    if array.ndim == 0 or len(array) != len(store.lengths):
        raise ShapeError("labels", expected=expected, got=f"shape {array.shape}")
    return array


def _are_of_rows(labels: Labels) -> bool:
    if isinstance(labels, LoDTensor):
        return labels.num_levels > 0
    return isinstance(labels, (list, tuple)) and any(
        isinstance(item, (list, tuple, LoDTensor)) or (isinstance(item, np.ndarray) and item.ndim) for item in labels
    )


def _check_row_labels(labels: Any, store: Store) -> Store:
    found = store_of(labels, "labels")
    hint = "for one label per sequence, pass an array of shape (num_sequences, ...)"
    if len(found.lengths) != len(store.lengths):
        expected = f"labels of the rows of {count(len(store.lengths), 'sequence')}"
        got = f"labels of {count(len(found.lengths), 'sequence')}"
        raise ShapeError("labels", expected=expected, got=got, hint=hint)
    wrong = np.flatnonzero(found.lengths != store.lengths)
    if len(wrong):
        number = int(wrong[0])
        expected = f"{count(int(store.lengths[number]), 'label')}, one per row"
        hint = f"for sequences of other lengths, pass others=[targets]; {hint}"
        raise ShapeError(f"labels, sequence {number}", expected=expected, got=int(found.lengths[number]), hint=hint)
    if isinstance(labels, LoDTensor) and labels.num_levels > 1:
        # Labels with one level need only the right lengths; several levels must equal the levels of the sequences.
        tensor = getattr(store, "tensor", None)
        if tensor is None or tensor.structure != labels.structure:
            raise LoDError("labels", expected="the LoD of the sequences, or one level", got=f"the LoD {labels.lod()}")
    return found
