"""Tables divided over ranks (processes): each rank stores and updates its rows, and serves them to the other ranks.

Rank `i % size` has row i, at index `i // size`.  For example, two ranks have the rows 0, 2, 4 and 1, 3 of a table of 5.
Ids of vocabularies are sorted by frequency: if ranks had blocks of rows, rank 0 would get nearly all lookups.

Ids are sent to the ranks that have the rows, and the rows come back.  Later, the gradient of each row is sent to the
same rank, with the position of its sequence in the global batch.  The rank sorts gradients by position, so that their
sums have the order, and the bits, of one process that has the whole batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from varlen_rnn.communicator import Communicator
from varlen_rnn.errors import OutOfRangeError, ProgramError, ShapeError
from varlen_rnn.nn.module import Parameter
from varlen_rnn.ops.indices import indices, rows_at
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.rows.selected_rows import SelectedRows
from varlen_rnn.tape.checks import check_integer
from varlen_rnn.tape.gradient import watch
from varlen_rnn.tape.modes import grad_enabled, recorder
from varlen_rnn.tape.spec import describe
from varlen_rnn.tape.variable import Variable, required
from varlen_rnn.typing import Rows

_BLOCK = 2**20  # the most numbers that are drawn at a time
_GRAD = vars(Variable)["grad"]  # Variable's own descriptor: the subclasses here define another `grad`


class Shard:
    """A rank's rows of a table, and the gradients that it has not yet sent to the ranks that have their rows.

    Parameters
    ----------
    comm : Communicator
    height : int
        Rows of the whole table.

    Attributes
    ----------
    comm, height
    rank, size : int
        The rank and size of `comm`: this rank has the rows `rank`, `rank + size`, and so on.
    """

    def __init__(self, comm: Communicator, height: int) -> None:
        self.comm, self.height = comm, height
        self.rank, self.size = comm.rank, comm.size
        self._collected: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # ids, positions, gradients
        self._is_due = False  # whether a lookup since the last `settle` needs gradients; equal on all ranks

    def __deepcopy__(self, memo: dict[int, Any]) -> Shard:
        return Shard(self.comm, self.height)

    def look_up(self, ids: Rows, weight: Parameter, padding_idx: int | None) -> Variable:
        """Return rows of the whole table by ids; all ranks must call this, each with its own ids, or with none."""
        if recorder() is not None:
            hint = "a program runs in one process, but all ranks (processes) look up together"
            raise ProgramError("Embedding with a shard", expected="eager mode", got="a program", hint=hint)
        value = required(ids, "embedding, ids").value
        check_integer("embedding", ids=describe(value))
        flat, rows = self._fetch(value, weight.data)
        result = LoDTensor.wrap(rows.reshape(*value.shape, weight.shape[1]), value.structure)
        if not (weight.requires_grad and grad_enabled()):
            return Variable(result)
        self._is_due = True
        leaf = FetchedRows(result, self, functools.partial(self._collect, flat, _positions(value), padding_idx))
        if weight.hooks is not None and weight.hooks.watcher is not None:
            watch(leaf, weight.hooks.watcher)  # a pass that reaches the leaf also reaches the table
        return leaf

    def _fetch(self, ids: LoDTensor, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the flattened ids, and their rows from all ranks; each distinct id is sent once."""
        refused = None
        try:
            flat = indices("embedding, ids", ids, self.height, "id", ", the table's number of rows")
        except OutOfRangeError as error:  # the other ranks wait: they get a sign, so that they raise, too
            flat, refused = np.empty(0, np.int64), error
        distinct, inverse = np.unique(flat, return_inverse=True)
        order, ends = self._by_owner(distinct)
        asked = np.split(distinct[order], ends)
        came = self.comm.all_to_all([np.append(part, refused is not None) for part in asked])
        if refused is not None:
            raise refused
        if failed := [rank for rank, part in enumerate(came) if part[-1]]:
            expected = f"0 <= id < {self.height}, the number of rows of the table"
            raise OutOfRangeError("embedding, ids", expected=expected, got=f"other ids on the ranks {failed}")
        answers = self.comm.all_to_all([rows_at(table, part[:-1] // self.size) for part in came])
        rows = np.empty((len(distinct), table.shape[1]), table.dtype)
        rows[order] = np.concatenate(answers)
        return flat, rows_at(rows, inverse.reshape(-1))

    def _by_owner(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the order that sorts ids by owner (the rank that has the row), and where owners 1, 2, ... begin."""
        owners = ids % self.size
        order = np.argsort(owners, kind="stable")
        return order, np.searchsorted(owners[order], np.arange(1, self.size))

    def _collect(self, ids: np.ndarray, positions: np.ndarray, padding_idx: int | None, gradient: Any) -> None:
        array = gradient.data if isinstance(gradient, LoDTensor) else gradient
        values = array.reshape(len(ids), array.shape[-1])
        if padding_idx is not None:
            kept = ids != padding_idx
            ids, positions, values = ids[kept], positions[kept], values[kept]
        self._collected.append((ids, positions, values))

    def forget(self) -> None:
        """Drop the gradients that were not sent yet."""
        self._collected = []

    def settle(self, weight: Parameter) -> None:
        """Send gradients to the ranks that have their rows, and add received gradients to `weight.grad`, on all ranks.

        A rank that receives no gradient gets a gradient without rows, unless no rank has computed a gradient.
        """
        if not self._is_due:
            return
        collected, self._collected, self._is_due = self._collected, [], False
        keys = [np.empty((0, 3), np.int64)]
        values = [np.empty((0, weight.shape[1]), weight.dtype)]
        for number, (ids, positions, part) in enumerate(collected):
            # If a sequence is looked up several times, gradients of its first lookup come before later gradients.
            # Shards of `replicate(reproducible=)` have different sequences, so the order of gradients does not depend
            # on which rank has a shard.
            before = [np.isin(positions, other) for _, other, _ in collected[:number]]
            times = np.sum(before, axis=0, dtype=np.int64) if before else np.zeros(len(ids), np.int64)
            keys.append(np.stack([ids, times, positions], axis=1))
            values.append(part)
        joined, gradient = np.concatenate(keys), np.concatenate(values)
        order, ends = self._by_owner(joined[:, 0])
        head = np.array([[len(collected), 0, 0]])
        sent = [np.concatenate([head, part]) for part in np.split(joined[order], ends)]
        came = self.comm.all_to_all(sent)
        gradient = np.concatenate(self.comm.all_to_all(np.split(gradient[order], ends)))
        if any(part[0, 0] for part in came):
            joined = np.concatenate([part[1:] for part in came])
            order = np.lexsort((joined[:, 2], joined[:, 1]))  # stable: equal keys stay in the order of ranks
            found = SelectedRows.wrap(joined[order, 0] // self.size, gradient[order], len(weight.data))
            weight.grad = found if weight.grad is None else weight.grad + found


class FetchedRows(Variable):
    """Rows received from all ranks: a leaf whose gradients go to its Shard, so that its own `grad` stays None."""

    __slots__ = ("_collect", "shard")

    def __init__(self, rows: LoDTensor, shard: Shard, collect: Callable[[Any], None]) -> None:
        self.shard, self._collect = shard, collect
        super().__init__(rows, requires_grad=True)

    @property
    def grad(self) -> Any:
        """Always None."""
        return None

    @grad.setter
    def grad(self, gradient: Any) -> None:
        if gradient is not None:
            self._collect(gradient)


class ShardedParameter(Parameter):
    """The rows of a table that this rank has; ranks exchange gradients when an optimizer or clipping needs them."""

    __slots__ = ("shard",)

    def __init__(self, array: ArrayLike, shard: Shard, requires_grad: bool = True, *, copy: bool = True) -> None:
        self.shard = shard
        super().__init__(array, requires_grad, copy=copy)

    @property
    def grad(self) -> Any:
        """The gradient of this rank's rows, as received from all ranks."""
        return _GRAD.__get__(self)

    @grad.setter
    def grad(self, gradient: Any) -> None:
        if gradient is None and (shard := getattr(self, "shard", None)) is not None:
            shard.forget()
        _GRAD.__set__(self, gradient)


def drawn_rows(comm: Communicator, shape: tuple[int, ...], draw: Callable[..., np.ndarray]) -> np.ndarray:
    """Return this rank's rows of the table `draw(shape)`, drawing a block of rows at a time.

    Every rank draws all rows, so that the table does not depend on the number of ranks, and the generators of all ranks
    stay equal.
    """
    height, width = shape
    own = np.empty((len(range(comm.rank, height, comm.size)), width), np.float32)
    block = comm.size * max(1, _BLOCK // (width * comm.size))
    for first in range(0, height, block):
        rows = draw((min(block, height - first), width))[comm.rank :: comm.size]
        own[first // comm.size : first // comm.size + len(rows)] = rows
    return own


def check_alike(comm: Communicator, **numbers: int | None) -> None:
    """Raise, on all ranks, unless each of `numbers` is equal on all ranks."""
    own = np.array([[-1 if number is None else number for number in numbers.values()]], np.int64)
    found = np.concatenate(comm.all_gather(own))
    for name, values in zip(numbers, found.T, strict=True):
        if (values != values[0]).any():
            raise ShapeError(f"Embedding, {name}", expected="the same number on all ranks", got=values.tolist())


def whole_height(comm: Communicator, rows: int) -> int:
    """Return the number of rows of the whole table, given this rank's number; raise if these do not fit together."""
    counts = np.concatenate(comm.all_gather(np.array([rows])))
    height = int(counts.sum())
    if counts.tolist() != [len(range(rank, height, comm.size)) for rank in range(comm.size)]:
        expected = f"on each rank r the rows r, r + {comm.size}, r + {2 * comm.size}, ... of one table"
        raise ShapeError("from_pretrained, embeddings", expected=expected, got=f"{counts.tolist()} rows on the ranks")
    return height


def _positions(ids: LoDTensor) -> np.ndarray:
    """Return, for each id, the position of its sequence in the global batch; all 0 if the batch has no positions."""
    lod, count = ids.structure, ids.data.size
    positions = lod.positions
    if positions is None or lod.axis:
        return np.zeros(count, np.int64)
    of_rows = np.repeat(positions, np.diff(lod.rows_of_level(0))) if lod.num_levels else positions
    return np.repeat(of_rows, count // max(len(of_rows), 1))
