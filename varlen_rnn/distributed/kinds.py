"""The kinds of the values in a loss: some are equal on all ranks (processes), some belong to the rows of one rank.

An example: `(x @ w).mean(axis=0)` is a mean over rows, and so is `(x @ w).T.mean(axis=1)`, because the rows moved to
axis 1.  `(x @ w).max(axis=0)` compares rows, and `y - y.mean(axis=0)` combines rows with sums: a rank that knows only
its own rows cannot compute them.  Such values are `MIXED`, and a loss must not depend on them.

An operator's trait `rows` decides whether ranks can divide its rows.  This file derives the kinds of its results.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from varlen_rnn.rows.lod import NO_LOD, LoDTensor
from varlen_rnn.tape.axes import divide, takes_rows
from varlen_rnn.tape.gradient import Record
from varlen_rnn.tape.kinds import LOD_TENSOR
from varlen_rnn.tape.origins import Detached
from varlen_rnn.tape.spec import TensorSpec, describe, spec_of_tensor
from varlen_rnn.tape.values import memory_of
from varlen_rnn.tape.variable import Variable

# Parameters and sums over rows are equal on all ranks.  The other operands decide whether a constant has rows.  Rows
# that depend on each other are MIXED.  Each kind is one bit, so that one number holds the kinds of all operands.
CONSTANT, PARAMETERS, SUMS, ROWS, MIXED = 0, 1, 2, 4, 8
IsCommon = Callable[[Variable | None], bool]


class Kind(NamedTuple):
    """The kind of a value.

    spec: the value's spec with 1 for the number of rows, so that batches of all sizes have equal kinds; None if rows
      are mixed, or the operand is missing
    axis: if the kind is `ROWS`, the axis that runs over rows
    """

    kind: int
    spec: Any = None
    axis: int = 0

    @property
    def is_open(self) -> bool:
        """Whether this is a constant with at least one axis, which could have an entry for each row."""
        return self.kind == CONSTANT and self.spec is not None and len(self.spec.shape) > 0


_MIXED, _MISSING = Kind(MIXED), Kind(CONSTANT)
Found: TypeAlias = tuple[list[Kind], Sequence[int | None]]


def is_watched(variable: Variable | None) -> bool:
    """Return whether a Variable is a parameter or buffer that is equal on all ranks, not a table that ranks divide."""
    if variable is None or variable.hooks is None or variable.shard is not None:
        return False
    return variable.hooks.watcher is not None


def kinds_of(records: Sequence[Record], is_common: IsCommon = is_watched) -> tuple[dict[int, list[Kind]], set[int]]:
    """Return {number of a record: kinds of its results}, and the numbers of records that are sums or means over rows.

    Records are applied operators, in the order of application.  `is_common(leaf)` is True for parameters.
    """
    kinds = _Kinds(is_common)
    constants = [
        v for record in records if record.op.divisor is None  # the weights of a mean are no constants
        for v in record.inputs if v is not None and v.record is None and not isinstance(v.origin, Detached | None)
    ]  # fmt: skip
    if constants:
        rows = _memory_of_rows(records, _Kinds(is_common))
        for variable in constants:
            kinds.trace(variable, rows)
    for record in records:
        kinds.add(record, [kinds.of(v) for v in record.inputs])
    return kinds.found, kinds.reductions


class _Kinds:
    """The results of `kinds_of` so far: `found` has the kinds, `reductions` the numbers of sums and means over rows."""

    def __init__(self, is_common: IsCommon) -> None:
        self.found: dict[int, list[Any]] = {}
        self.reductions: set[int] = set()
        self._is_common = is_common

    def of(self, variable: Variable | None) -> Kind:
        return _MISSING if variable is None else kind_of(variable, self.found, self._is_common)

    def add(self, record: Record, given: Sequence[Kind]) -> Sequence[int | None]:
        """Derive the kinds of a record's results from its operands' kinds; return the operands' axes of rows."""
        kinds, axes = _after(record, given)
        if axes and kinds[0].kind == SUMS:
            self.reductions.add(record.number)
        self.found[record.number] = kinds
        return axes

    def trace(self, variable: Variable, rows: dict[int, int]) -> None:
        """Find the kinds of the values without a gradient that led to a constant; None if they depend on no row."""
        origin = variable.origin
        if origin is None or origin.number in self.found or isinstance(origin, Detached):
            return
        given = []
        for v in origin.inputs:
            if v is not None:
                self.trace(v, rows)
            kind = self.of(v)
            if v is not None and kind.kind == CONSTANT and (v.origin is None or isinstance(v.origin, Detached)):
                axis = rows.get(id(memory_of(v.value)), v.ndim)
                kind = kind if axis >= v.ndim else rows_along(axis, kind.spec)
            given.append(kind)
        present = _kinds_among(given)
        if present <= PARAMETERS:
            self.found[origin.number] = [None] * len(origin.values)
            return
        self.add(origin, given)
        if not present & (SUMS | MIXED):
            # A result with as many rows as an operand is data of this rank, even if the operator mixed the rows.
            sizes = {v.shape[k.axis] for v, k in zip(origin.inputs, given, strict=True) if k.kind == ROWS}
            self.found[origin.number] = [
                None if kind is _MIXED and value.shape[:1] and value.shape[0] in sizes else kind
                for kind, value in zip(self.found[origin.number], origin.values, strict=True)
            ]


def _memory_of_rows(records: Sequence[Record], kinds: _Kinds) -> dict[int, int]:
    """Return {id of memory: axis of rows} for memory that holds an entry for each row.

    A mask that is multiplied by rows is such a constant; `y.detach()` has the memory of `y`.
    """
    memory: dict[int, int] = {}
    for record in records:
        given = [kinds.of(v) for v in record.inputs]
        axes = kinds.add(record, given)
        found = zip(record.values, kinds.found[record.number], strict=True)
        memory |= {id(memory_of(value)): kind.axis for value, kind in found if kind.kind == ROWS}
        for variable, kind, axis in zip(record.inputs, given, axes, strict=False):
            if variable is not None and kind.kind == CONSTANT and axis is not None:
                memory |= {id(memory_of(value)): axis for value in _made_of(variable, axis)}
    return memory


def _made_of(variable: Variable, axis: int) -> list[Any]:
    """Return the value of a constant with an entry per row, and the values with as many rows that it came from."""
    count, found = variable.shape[axis], {id(variable): variable}
    stack = [variable]
    while stack:
        origin = stack.pop().origin
        for v in () if origin is None else origin.inputs:
            if v is not None and id(v) not in found and v.ndim > axis and v.shape[axis] == count:
                found[id(v)] = v
                stack.append(v)
    return [v.value for v in found.values()]


def kind_of(variable: Variable, found: dict[int, list[Any]], is_common: IsCommon = is_watched) -> Kind:
    """Return the kind of a Variable."""
    if variable.record is not None:
        return found[variable.record.number][variable.position]
    value = variable.value
    if is_common(variable):
        return Kind(PARAMETERS, describe(value))
    if variable.origin is not None and (kinds := found.get(variable.origin.number)) is not None:
        if (kind := kinds[variable.position]) is not None:
            return kind
    if isinstance(value, LoDTensor) and value.structure is not NO_LOD:
        return rows_along(value.structure.axis, describe(value))
    return Kind(CONSTANT, describe(value))


def rows_along(axis: int, spec: TensorSpec) -> Kind:
    """Return the Kind of a value with the spec `spec` whose rows are along `axis`."""
    shape, dtype, level, kind = spec
    if kind is LOD_TENSOR:
        spec = spec_of_tensor((*shape[:axis], 1, *shape[axis + 1 :]), dtype, min(level, 1))
    return Kind(ROWS, spec, axis)


def _kinds_among(given: Sequence[Kind]) -> int:
    present = CONSTANT
    for kind in given:
        present |= kind.kind
    return present


_known: dict[tuple, Found] = {}  # {(operator, its constants, kinds of its operands): result of `_after`}
_MOST_KNOWN = 1024


def _after(record: Record, given: Sequence[Kind]) -> Found:
    """Return the kinds of a record's results, and its operands' axes of rows."""
    op = record.op
    if op.rows == "batch":  # not cached: its constants can be blocks, which a key would keep alive
        return _joined(record, given)[0]
    # Names of cells become plain strings, because a name in a key would keep its cell alive.
    constants = [(name, str(value) if name in op.finds else value) for name, value in record.attrs.items()]
    key = op, tuple(constants), tuple(given)
    try:
        return _known[key]
    except KeyError:
        found, holds_for_all = _joined(record, given)
        if holds_for_all:
            if len(_known) >= _MOST_KNOWN:
                _known.clear()
            _known[key] = found
        return found
    except TypeError:  # a constant is not hashable
        return _joined(record, given)[0]


def _joined(record: Record, given: Sequence[Kind]) -> tuple[Found, bool]:
    """Return the result of `_after`, and True if it is the same for batches of all sizes."""
    values, present = record.values, _kinds_among(given)
    if present >= MIXED or (present & SUMS and present & ROWS and record.op.divisor is None):
        return ([_MIXED] * len(values), ()), True
    if present & SUMS and not present & ROWS:
        # A constant with more elements, such as a target for each row, turns sums into rows again.
        own = [v for v, kind in zip(record.inputs, given, strict=True) if kind.kind != CONSTANT]
        axes, size = (max(getattr(v, name) for v in own) for name in ("ndim", "size"))
        is_sum = [value.data.ndim <= axes and value.data.size <= size for value in values]
        return ([Kind(SUMS, describe(v)) if fits else _MIXED for v, fits in zip(values, is_sum, strict=True)], ()), True
    if any(kind.is_open for kind in given):
        return _beside(record, given) if present & ROWS else _beside_parameters(record, given), False
    if not present & ROWS:
        return ([Kind(PARAMETERS, describe(value)) for value in values], ()), True
    trait, found, axes = _divided(record, given)
    if trait is None or (trait == "sum" and len(values) > 1):
        return ([_MIXED] * len(values), axes), trait is not None
    if trait == "sum":
        return ([Kind(SUMS, describe(values[0]))], axes), True
    kinds, is_open = [], trait == "batch" or any(known is not None and -1 in known.specs[0].shape for known in found)
    for value, known in zip(values, found, strict=True):
        spec, axis = describe(value), 0 if known is None else known.axis or 0
        # A single number depends on all rows.
        is_number = spec.kind is LOD_TENSOR and axis >= len(spec.shape)
        kinds.append(_MIXED if is_number else rows_along(axis, spec))
    return (kinds, axes), not is_open


def _divided(record: Record, given: Sequence[Kind]) -> tuple[str | None, Sequence[Any], list[int | None]]:
    """Return a record's trait, the Knowns of its results (see `tape.axes`), and its operands' axes of rows."""
    specs = [None if v is None else describe(v.value) for v in record.inputs]
    axes = [kind.axis if kind.kind == ROWS else None for kind in given]
    return *divide(record.op, record.attrs, specs, axes, len(record.values)), axes


def _beside(record: Record, given: Sequence[Kind]) -> Found:
    """Return the result of `_after` if the operands are rows and constants.

    A constant has an entry for each row, or a state for each sequence, or belongs to all rows, or has other rows.  They
    are tried in this order, until the operator keeps rows separate.
    """
    rows = [(v, kind.axis) for v, kind in zip(record.inputs, given, strict=True) if kind.kind == ROWS]
    at, count = next(((axis, v.shape[axis]) for v, axis in rows if axis < v.ndim), (0, -1))
    tensors = [v.value for v, _ in rows if isinstance(v.value, LoDTensor)]
    counts = {count, *(value.num_elements(-1) for value in tensors if value.num_levels)}  # of rows, and of sequences
    choices, own = [], list(given)
    for number, kind in enumerate(given):
        choices.append([kind])
        if kind.is_open:
            axes = [axis for axis, size in enumerate(kind.spec.shape) if size in counts]
            choices[-1] = [*(rows_along(axis, kind.spec) for axis in axes), Kind(PARAMETERS, kind.spec)]
            own[number] = rows_along(at, kind.spec) if at < len(kind.spec.shape) else choices[-1][-1]
    for reading in itertools.product(*choices):
        found = _after(record, reading)
        if found[0][0] is not _MIXED:
            return found
    return _joined(record, own)[0] if _divided(record, own)[0] == "batch" else found


def _beside_parameters(record: Record, given: Sequence[Kind]) -> Found:
    """Return the result of `_after` if the operands are parameters and constants.

    The first axis of a constant runs over the rows of a rank, unless the operator accepts only one size of this axis.
    """
    found: Found = [Kind(PARAMETERS, describe(value)) for value in record.values], ()
    specs = [kind.spec for kind in given]
    for number, kind in enumerate(given):
        if kind.is_open:
            reading = _after(record, [*given[:number], rows_along(0, kind.spec), *given[number + 1 :]])
            if reading[0][0] is not _MIXED:
                return reading
            if takes_rows(record.op, record.attrs, specs, number):
                found = reading
    return found
