"""`replicate` a model on ranks (processes): then `loss.backward()` computes the gradients of all ranks' loss."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from varlen_rnn import random
from varlen_rnn.communicator import Communicator, check_communicator
from varlen_rnn.distributed.buckets import CROWDED, DENSE, SPARSE, EngineSum, Layout, share, sums_over
from varlen_rnn.distributed.grid import GridSum
from varlen_rnn.distributed.launched import connect
from varlen_rnn.distributed.reductions import Part, Terms, combine, count_of, own_count_of, part_of, restoring, terms_of
from varlen_rnn.errors import DTypeError, InputError, OutOfRangeError, ProgramError, ShapeError, check_int, shown, warn
from varlen_rnn.nn import Module
from varlen_rnn.ops.batch_norm import summing
from varlen_rnn.optim import Optimizer
from varlen_rnn.runtime.device import copy_into, host_numbers
from varlen_rnn.runtime.precision import PRECISIONS
from varlen_rnn.tape import origins
from varlen_rnn.tape.gradient import Pass, Record, was_updated, watch
from varlen_rnn.tape.values import moved_value
from varlen_rnn.tape.variable import Variable

_MOST_SHARDS = 2**16  # a sum of 62 bits over so many shards leaves 46 bits for the gradient of each shard


class Shard(NamedTuple):
    """A part of each global batch (the rows of all ranks).

    Attributes
    ----------
    rank : int
        Its number, from 0.
    size : int
        How many parts there are.
    """

    rank: int
    size: int


class _Waiting(NamedTuple):
    """A backward pass that waits for the passes of other shards, and its loss."""

    passing: Pass
    pairs: list[tuple[Variable, Variable]]
    records: list[Record]
    terms: Terms
    part: Part


class Replica:
    """A model of which each rank trains a copy, as `replicate` makes it.

    Attributes
    ----------
    comm : Communicator
    shards : list of Shard
        The parts of each global batch that this rank computes: one part, or with `reproducible` one or more.  Call
        `backward` for the loss of each part, in this order; the last call leaves the gradients of all ranks.
    """

    def __init__(
        self,
        parameters: Sequence[Variable],
        buffers: Sequence[Variable],
        comm: Communicator,
        reproducible: int | None,
    ) -> None:
        self.comm = comm
        self._is_reproducible, size = reproducible is not None, comm.size if reproducible is None else reproducible
        first, end = (rank * size // comm.size for rank in (comm.rank, comm.rank + 1))
        self.shards = [Shard(number, size) for number in range(first, end)]
        self._parameters = [parameter for parameter in parameters if parameter.shard is None]
        self._numbers = {parameter: number for number, parameter in enumerate(self._parameters)}
        self._divided = {parameter for parameter in parameters if parameter.shard is not None}
        if self._divided and size % comm.size:
            expected = f"a multiple of {comm.size}, the number of ranks, because they divide a table"
            raise InputError("replicate, reproducible", expected=expected, got=reproducible)
        self._buffers = list(buffers)
        self._moments: list[np.ndarray] = []  # the values of the buffers after the first shard
        self._weigh: Callable[[float | None], float] | None = None
        self._has_warned, self._scale = False, 1.0
        self._waiting: list[_Waiting] = []
        self._layouts: dict[bytes, Layout] = {}
        self._begin = random.drawn()
        for parameter in self._parameters:
            share(comm, parameter)
            was_updated(parameter)
            watch(parameter, self)
        for parameter in self._divided:  # their gradients are not summed here
            watch(parameter, self)
        for buffer in self._buffers:
            watch(buffer, self)
        self._share_buffers()
        if not self.is_alone:
            origins.keep_for(self)

    @property
    def is_alone(self) -> bool:
        """Whether one process trains the model as if it were not replicated."""
        return self.comm.size == 1 and not self._is_reproducible

    @contextlib.contextmanager
    def weighing(self, weigh: Callable[[float | None], float]) -> Iterator[None]:
        """In this context, multiply the gradients of each batch by `weigh(count)`; see `reductions.count_of`."""
        self._weigh = weigh
        try:
            yield
        finally:
            self._weigh = None

    def forget(self) -> None:
        """Forget the passes of an incomplete batch, after an error or an interrupt, so that a batch can begin again.

        Examples
        --------
        >>> import varlen_rnn as vr
        >>> model = vr.nn.Linear(2, 1)
        >>> replica = replicate(model, vr.optim.SGD(model.parameters(), lr=0.1), reproducible=2)
        >>> model(np.ones((3, 2), np.float32)).sum().backward()
        >>> replica.forget()  # the next call of `backward` is that of the first shard again
        """
        if self._waiting:
            self._waiting = []
            random.rewind(self._first_call())

    def summing_moments(self) -> contextlib.AbstractContextManager[None]:
        """Let layers that normalise batches compute their moments over the rows of all ranks."""
        if self.comm.size == 1 or self._is_reproducible or not self._buffers:
            return contextlib.nullcontext()
        return summing(functools.partial(sums_over, self.comm))

    def take(self, passing: Pass, pairs: list[tuple[Variable, Variable]], records: list[Record]) -> None:
        """Keep a pass that reaches the parameters; once each shard has a pass, run all (see `tape.gradient.watch`)."""
        if self.is_alone:
            passing.over(pairs, records)
            return
        self._keep_buffers()
        terms = terms_of([variable for variable, _ in pairs], records)
        self._waiting.append(_Waiting(passing, pairs, records, terms, part_of(terms, records)))
        if not self._is_last():
            return
        waiting, self._waiting = self._waiting, []
        every, kinds, in_one_order = self._meet(waiting)
        layout = self._layout(kinds)
        number = self.shards[0].size
        total = (
            GridSum(self.comm, layout, number)
            if self._is_reproducible
            else EngineSum(self.comm, layout, bool(self._buffers) and not in_one_order)
        )
        for one in waiting:
            with restoring(one.terms):
                self._over(one, every, total, is_first=one is waiting[0])
            total.end_of_pass()
        for leaf, gradient in total.finish():
            waiting[0].passing.leaves.add(leaf, Variable(moved_value(gradient, leaf.device)))
        if self._is_reproducible:  # otherwise, buffers are moments of all ranks' rows, and equal
            self._share_buffers()

    def _over(self, one: _Waiting, every: Part, total: EngineSum | GridSum, is_first: bool) -> None:
        """Set a loss to its value over all ranks, and send its gradients back."""
        number = self.shards[0].size
        factors = combine(one.terms, one.part, every) if number > 1 else {}
        if is_first:
            self._scale = 1.0 if self._weigh is None else self._weigh(count_of(one.terms, every))
        pairs, scale = one.pairs, self._scale
        if one.terms.shares and number > 1:  # the gradient is equal on all ranks: each takes a share
            factors = {record: factor * number for record, factor in factors.items()}
            scale /= number
        if scale != 1.0:
            pairs = [(variable, gradient * scale) for variable, gradient in pairs]
        with self.summing_moments():
            one.passing.over(pairs, one.records, functools.partial(_ready, one.passing, total), factors)

    def _own_count(self, one: _Waiting) -> int | None:
        """Return this rank's count by which a sum over rows is divided; None if no sum is, or after a warning."""
        if self._has_warned or self.shards[0].size == 1 or not any(map(math.isnan, one.part.weights.tolist())):
            return None
        return own_count_of(one.terms, one.part)

    def _keep_buffers(self) -> None:
        """Set buffers to the values that they had after the first shard, so that they are equal on all ranks."""
        if not self._waiting:
            self._moments = [buffer.value.data.copy() for buffer in self._buffers]
        for buffer, moments in zip(self._buffers, self._moments, strict=True):
            copy_into(buffer.value.data, moments)

    def _share_buffers(self) -> None:
        for buffer in self._buffers:
            share(self.comm, buffer)

    def _is_last(self) -> bool:
        """Return whether each shard has a pass; if not, let the next shard use the same random draws as this shard."""
        if len(self._waiting) < len(self.shards):
            random.rewind(self._first_call())
            return False
        self._begin = random.drawn()  # if gradients accumulate, the next batch goes on from here
        return True

    def _first_call(self) -> int:
        """Return the number of this batch's first random draw: 0 if an optimizer made a step since the last batch."""
        return self._begin[1] if self._begin[0] == random.drawn()[0] else 0

    def _meet(self, waiting: list[_Waiting]) -> tuple[Part, np.ndarray, bool]:
        """Exchange with all ranks; return three values for all passes.

        They are the sum of the passes' Parts; for each parameter, the bits of its kinds of gradients; and whether all
        passes have the same order (see `_order`).
        """
        table, counts = [], [self._own_count(one) for one in waiting]
        for one, own in zip(waiting, counts, strict=True):
            numbers = np.concatenate(one.part).view(np.uint8)
            checked = np.frombuffer(one.terms.constants + bytes([bool(one.terms.trouble)]), np.uint8)
            flags = np.array([own is not None, _precisions(one.records)], np.uint8)
            table.append(np.concatenate([numbers, checked, flags, self._order(one.records), self._kinds(one.records)]))
        try:
            every = np.concatenate(self.comm.all_gather(np.stack(table)))
        except ShapeError as error:
            hint = "all ranks must compute the same loss"
            expected = "the same number of sums and means over rows on all ranks"
            raise ProgramError("backward of a replica", expected=expected, got=error, hint=hint) from error
        ends = np.cumsum([len(array) for array in waiting[0].part])
        numbers, checked, flags, orders, kinds = np.split(every, 8 * ends[-1] + np.array([0, 9, 11, 19]), axis=1)
        divides, precisions = flags.T
        if len(every) > 1:
            _check_precisions(precisions)
            _check_loss(checked, [one.terms.trouble for one in waiting if one.terms.trouble])
        if counts[0] is not None and divides.all():  # all ranks have all rows and can divide by their number
            self._has_warned = True
            expected, got = "a sum over rows divided by a count of all ranks", f"{counts[0]}, a count of this rank"
            hint = "mean() divides by the rows of all ranks; comm.all_reduce adds counts of ranks"
            warn("backward of a replica", expected=expected, got=got, hint=hint)
        # Numbers are added in the order of shards, so that the number of ranks changes no bit.
        sums = np.ascontiguousarray(numbers).view(np.float64).sum(axis=0)
        return Part(*np.split(sums, ends[:-1])), np.bitwise_or.reduce(kinds, axis=0), bool((orders == orders[0]).all())

    def _order(self, records: list[Record]) -> np.ndarray:
        """Return a digest of the order in which a pass sums moments over ranks and finishes gradients of parameters."""
        if not self._buffers:  # nothing is summed during the pass
            return np.zeros(8, np.uint8)
        told = [(r.op.type, [self._numbers[v] for v in r.inputs if v in self._numbers]) for r in records]
        return np.frombuffer(hashlib.blake2b(repr(told).encode(), digest_size=8).digest(), np.uint8)

    def _kinds(self, records: list[Record]) -> np.ndarray:
        """Return, for each parameter, the bits (see `buckets`) of the gradients that a pass can bring."""
        found: dict[Variable, int] = {}
        for record in records:
            kind = _kind_of(record)
            for variable in record.inputs:
                if variable is not None and variable.hooks is not None and variable.requires_grad:
                    if variable in self._divided:
                        hint = "a penalty: weight_decay of the optimizer acts on all rows of the table"
                        got = f"the operator {record.op.type!r}, which reads only the rows of one rank"
                        expected = "only lookups of a table that ranks divide"
                        raise ProgramError("backward of a replica", expected=expected, got=got, hint=hint)
                    found[variable] = found.get(variable, 0) | kind
        return np.array([found.get(parameter, 0) for parameter in self._parameters], np.uint8)

    def _layout(self, kinds: np.ndarray) -> Layout:
        key = kinds.tobytes()
        if key not in self._layouts:
            bits, itemsize = (~CROWDED, 8) if self._is_reproducible else (~0, 0)
            self._layouts[key] = Layout(self._parameters, [kind & bits for kind in kinds.tolist()], itemsize)
        return self._layouts[key]


def _precisions(records: list[Record]) -> int:
    """Return the precisions of the products of a pass: bit i is set for `PRECISIONS[i]`."""
    return sum(1 << PRECISIONS.index(name) for name in {record.op.precision for record in records} - {None})


def _check_precisions(bits: np.ndarray) -> None:
    """Raise unless the products of all passes have the same precisions, given the result of `_precisions` for each."""
    if len(set(bits[bits > 0].tolist())) > 1:
        got = [" and ".join(name for n, name in enumerate(PRECISIONS) if of_one >> n & 1) for of_one in bits.tolist()]
        expected, hint = "products of the same precision on all ranks", "vr.set_float32_matmul_precision on each rank"
        raise ProgramError("backward of a replica", expected=expected, got=", ".join(got), hint=hint)


def _kind_of(record: Record) -> int:
    """Return the bits of `buckets` for the kind of gradient that an operator passes to its parameters."""
    if not record.attrs.get("sparse"):
        return DENSE
    ids, table = host_numbers(record.inputs[0].value.data), record.inputs[1].value.data
    if 2 * ids.size < len(table) or not ids.size:
        return SPARSE
    is_touched = np.zeros(len(table), bool)
    is_touched.put(ids.astype(np.int64, copy=False), True, mode="clip")
    return SPARSE | CROWDED if 2 * np.count_nonzero(is_touched) >= len(table) else SPARSE


def _ready(passing: Pass, total: EngineSum | GridSum, leaf: Variable, gradient: Any) -> None:
    """Take the final gradient of a leaf; it is summed over ranks, unless the leaf is a table that ranks divide."""
    if leaf.shard is None:
        total.ready(leaf, gradient)
    elif gradient is not None:
        passing.leaves.add(leaf, Variable(gradient))


def replicate(
    model: Module, optimizer: Optimizer, comm: Communicator | None = None, reproducible: int | None = None
) -> Replica:
    """Train a model on all ranks, each with its part of every batch.

    Then `loss.backward()` leaves in the parameters' `grad` the gradients of the loss over all ranks.  They have the
    same bits on all ranks, so clipping and updates are alike, and parameters stay equal.  Every rank calls `backward`
    equally often, also with a batch of no sequences.  Parameters that a loss does not reach keep None on all ranks.

    `nn.BatchNorm1d` normalises by the moments of all ranks' rows; with `reproducible`, of each shard's rows.

    Sums and means in a loss are computed over the rows of all ranks: the means of `nn.functional`, with their weights,
    and sums and means of a Variable over its rows, such as `((y - x) ** 2).mean()`.  They are divided by the rows,
    sequences or weights of all ranks, and not averaged over ranks.  `loss.item()` is this rank's loss before
    `backward`, and afterwards the loss of all ranks.  Terms that depend on parameters alone, such as penalties, count
    once.  If the script itself divides, as in `loss.sum() / len(batch)`, it must divide by the count of all ranks:
    `comm.all_reduce`.  The sum of a mask that is a Variable or has a LoD is computed over all ranks without this.

    Tables that ranks divide (`nn.Embedding(shard=)`) stay divided: their gradients are sent to the rank that has the
    row when the optimizer or `clip_grad_norm_` needs them.

    Parameters
    ----------
    model : nn.Module
        All ranks get the parameters of rank 0, and its random numbers: dropout draws as in one process for the parts
        of `data.batches`, which know the positions of their sequences.
    optimizer : optim.Optimizer
        Its parameters are replicated, too.
    comm : Communicator, optional
        By default the result of `connect()`.
    reproducible : int, optional
        The number of shards into which each global batch is cut, at least the number of ranks.  A rank computes the
        losses of its `shards` one after another and calls `backward` for each: the last call computes all gradients.
        They are added as integers on a common grid, so that any number of ranks, also one, gets the same bits.  It
        costs smaller batches per pass, twice the bytes of float32, and memory for all shards of a rank.  If ranks
        divide a table, it is a multiple of their number.  By default, each rank has one part, and the engine adds
        gradients while others are still being computed; the bits then depend on the number of ranks.

    Returns
    -------
    Replica

    Raises
    ------
    InputError
        Arguments of the wrong kind; models of ranks that differ in names, shapes or data types; fewer shards than
        ranks.

    Examples
    --------
    >>> import varlen_rnn as vr
    >>> model = vr.nn.Linear(2, 1)
    >>> optimizer = vr.optim.SGD(model.parameters(), lr=0.1)
    >>> replica = replicate(model, optimizer)
    >>> loss = vr.nn.functional.mse_loss(model(np.ones((3, 2), np.float32)), np.ones((3, 1), np.float32))
    >>> loss.backward()
    >>> optimizer.step()
    >>> replica.comm.size, replica.shards
    (1, [Shard(rank=0, size=1)])

    Source: Li et al. (2020), "PyTorch Distributed", for buckets that are sent while gradients are computed.
    """
    for value, name, kind in ((model, "model", Module), (optimizer, "optimizer", Optimizer)):
        if not isinstance(value, kind):
            raise DTypeError(f"replicate, {name}", expected=f"an instance of {kind.__name__}", got=shown(value))
    comm = connect() if comm is None else check_communicator(comm, "replicate, comm")
    if reproducible is not None:
        reproducible = check_int(reproducible, "replicate, reproducible", comm.size)
        if reproducible > _MOST_SHARDS:
            expected, got = f"at most {_MOST_SHARDS} shards", shown(reproducible)
            raise OutOfRangeError("replicate, reproducible", expected=expected, got=got)
    named: dict[Variable, str] = {parameter: name for name, parameter in model.named_parameters()}
    for parameter in optimizer.parameters:
        named.setdefault(parameter, f"parameter {len(named)}")
    described = []
    for p, name in named.items():
        shape = p.shape if p.shard is None else (p.shard.height, *p.shape[1:])
        described.append((name, shape, str(p.dtype)))
    digest = np.frombuffer(hashlib.sha256(repr(described).encode()).digest(), np.uint8)
    if len({part.tobytes() for part in comm.all_gather(digest)}) > 1:
        expected = "the same names, shapes and data types of parameters on all ranks"
        raise ShapeError("replicate, model", expected=expected, got="models that differ")
    state = np.frombuffer(random.get_state().encode(), np.uint8)
    random.set_state(comm.all_gather(state)[0].tobytes().decode())  # so that all ranks draw the same dropout
    return Replica(list(named), [buffer for _, buffer in model.named_buffers()], comm, reproducible)


def _check_loss(checked: np.ndarray, troubles: list[str]) -> None:
    """Raise on all ranks unless each loss is computed from sums and means over rows, and from equal constants.

    `checked` has a row per Part: a digest of the constants, and whether the loss has trouble (see `Terms`).
    """
    if checked[:, -1].any():
        got = troubles[0] if troubles else "the loss of another rank, which mixes its rows"
        expected = "a loss that depends on rows only by sums and means over rows"
        hint = "compute a number for each row or sequence on its own, and take the sum or mean of these"
        raise ProgramError("backward of a replica", expected=expected, got=got, hint=hint)
    if (checked != checked[0]).any():
        expected, got = "the same constants in the loss on all ranks", "constants that differ"
        hint = "len(x), item(), detach() and comparisons see one rank's rows only; give a LoD to data that has rows"
        raise ProgramError("backward of a replica", expected=expected, got=got, hint=hint)
