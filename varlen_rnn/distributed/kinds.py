"""The kinds of the values that lead to a loss: which are the same on all ranks, and which are of a rank's rows.

An example: `(x @ w).mean(axis=0)` is a sum over rows, and `(x @ w).T.mean(axis=1)` is, too, since the rows moved to
axis 1.  `(x @ w).max(axis=0)` compares rows, and `y - y.mean(axis=0)` puts rows beside sums: no ranks that know only
their own rows can compute them.  Such values are `MIXED`, and a loss must not depend on them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from varlen_rnn.rows.lod import NO_LOD, LoDTensor
from varlen_rnn.tape.axes import follow, with_rows, without_rows
from varlen_rnn.tape.gradient import Record
from varlen_rnn.tape.index import BASIC_INDEX
from varlen_rnn.tape.kinds import LOD_TENSOR
from varlen_rnn.tape.operator import Op
from varlen_rnn.tape.origins import Detached
from varlen_rnn.tape.spec import TensorSpec, describe, spec_of_tensor
from varlen_rnn.tape.values import memory_of
from varlen_rnn.tape.variable import Variable

# Of parameters alone, of sums over rows, of rows, and of rows that know each other.  The first two are equal on ranks.
PARAMETERS, SUMS, ROWS, MIXED = range(4)


class Kind(NamedTuple):
    """The kind of a value.

    Attributes
    ----------
    kind : int
    axis : int
        The axis of the rows, for `ROWS`.
    """

    kind: int
    axis: int = 0


_MIXED = Kind(MIXED)


def is_watched(variable: Variable | None) -> bool:
    """Return whether a Variable is a parameter or a buffer that ranks have in common, and no divided table."""
    if variable is None or variable.hooks is None or variable.shard is not None:
        return False
    return variable.hooks.watcher is not None


def kinds_of(
    records: Sequence[Record], is_common: Callable[[Variable | None], bool] = is_watched
) -> tuple[dict[int, list[Kind]], set[int]]:
    """Return the kinds of the results of each record, by its number, and the numbers of sums and means over rows.

    The records are in the order of their application.  `is_common` decides which leaves are parameters.
    """
    found: dict[int, list[Kind]] = {}
    reductions: set[int] = set()
    constants = [
        v for record in records if record.op.type != "weighted_mean"  # which knows its weights
        for v in record.inputs if v is not None and v.origin is not None and v.record is None and _is_reduced(v)
    ]  # fmt: skip
    if constants:
        rows = _memory_of_rows(records, _kinds(records, {}, set(), is_common), is_common)
        for variable in constants:
            _trace(variable, rows, found, reductions, is_common)
    return _kinds(records, found, reductions, is_common), reductions


def _kinds(
    records: Sequence[Record], found: dict[int, list[Kind]], reductions: set[int], is_common: Callable[..., bool]
) -> dict[int, list[Kind]]:
    """Add the kinds of the results of each record to `found`, and sums and means over rows to `reductions`."""
    for record in records:
        given = [None if v is None else kind_of(v, found, is_common) for v in record.inputs]
        kinds = _without_rows(record, given)
        if kinds is None:
            kinds = _of_rows(record, given)
            if kinds[0].kind == SUMS:
                reductions.add(record.number)
        found[record.number] = kinds
    return found


def _is_reduced(variable: Variable) -> bool:
    """Return whether a sum, or another operator that takes an axis or rows away, led to a constant."""
    stack, seen = [variable.origin], set()
    while stack:
        origin = stack.pop()
        if origin is None or origin.number in seen or isinstance(origin, Detached):
            continue
        seen.add(origin.number)
        shapes = [v.value.shape for v in origin.inputs if v is not None and isinstance(v.value, LoDTensor)]
        result = origin.values[0]
        if origin.op.divisor is not None or not isinstance(result, LoDTensor):
            return True
        if len(result.shape) < max(map(len, shapes), default=0) or result.shape[:1] not in [s[:1] for s in shapes]:
            return True
        stack += [v.origin for v in origin.inputs if v is not None]
    return False


def _memory_of_rows(
    records: Sequence[Record], found: dict[int, list[Kind]], is_common: Callable[..., bool]
) -> dict[int, int]:
    """Return the memory, by its identity, that holds a number for each row, and the axis of rows there.

    A mask beside rows is such a constant; `y.detach()` has the memory of `y`.
    """
    memory: dict[int, int] = {}
    for record in records:
        kinds = found[record.number]
        memory |= {id(memory_of(v)): k.axis for v, k in zip(record.values, kinds, strict=True) if k.kind == ROWS}
        given = [None if v is None else kind_of(v, found, is_common) for v in record.inputs]
        beside = next(((v, k) for v, k in zip(record.inputs, given, strict=True) if k and k.kind == ROWS), None)
        for variable, kind in zip(record.inputs, given, strict=True):
            if variable is None or variable.record is not None or kind is not None or not variable.ndim:
                continue
            if beside is None:  # beside parameters
                axis = 0 if kinds[0].kind == ROWS else -1
            else:
                rows, (_, at) = beside
                more = variable.ndim - rows.ndim  # initial states have more axes than rows: their first one has layers
                axis = at + (more if record.op.ufunc or record.op.scalar is not None else max(more, 0))
                axis = axis if 0 <= axis < variable.ndim and variable.shape[axis] == rows.shape[at] else -1
            for value in _made_of(variable, axis) if axis >= 0 else ():
                memory[id(memory_of(value))] = axis
    return memory


def _made_of(variable: Variable, axis: int) -> list[Any]:
    """Return the value of a constant with a number for each row, and values of as many rows that led to it."""
    count, found = variable.shape[axis], {id(variable): variable}
    stack = [variable]
    while stack:
        origin = stack.pop().origin
        for v in () if origin is None else origin.inputs:
            if v is not None and id(v) not in found and v.ndim > axis and v.shape[axis] == count:
                found[id(v)] = v
                stack.append(v)
    return [v.value for v in found.values()]


def _trace(
    variable: Variable,
    rows: dict[int, int],
    found: dict[int, list[Any]],
    reductions: set[int],
    is_common: Callable[..., bool],
) -> None:
    """Add the kinds of values without a gradient that led to a constant: None for those that no row acts on."""
    origin = variable.origin
    if origin is None or origin.number in found or isinstance(origin, Detached):
        return
    given = []
    for v in origin.inputs:
        if v is not None:
            _trace(v, rows, found, reductions, is_common)
        kind = None if v is None else kind_of(v, found, is_common)
        is_leaf = v is not None and (v.origin is None or isinstance(v.origin, Detached))
        axis = None if kind is not None or not is_leaf else rows.get(id(memory_of(v.value)))
        given.append(kind if axis is None or axis >= v.ndim else Kind(ROWS, axis))
    kinds: list[Kind | None] = [None] * len(origin.values)
    if {ROWS, SUMS, MIXED} & {kind.kind for kind in given if kind is not None}:
        kinds = list(_without_rows(origin, given) or _of_rows(origin, given))
        if kinds[0] is not None and kinds[0].kind == SUMS and ROWS in {kind.kind for kind in given if kind}:
            reductions.add(origin.number)
        if not {SUMS, MIXED} & {kind.kind for kind in given if kind}:
            # Rows that one operator made of as many rows of a rank are its data, however it made them.
            sizes = {v.shape[k.axis] for v, k in zip(origin.inputs, given, strict=True) if k and k.kind == ROWS}
            pairs = zip(kinds, origin.values, strict=True)
            kinds = [None if k == _MIXED and value.shape[:1] and value.shape[0] in sizes else k for k, value in pairs]
    found[origin.number] = kinds


def kind_of(
    variable: Variable, found: dict[int, list[Kind]], is_common: Callable[[Variable | None], bool] = is_watched
) -> Kind | None:
    """Return the kind of a Variable, or None for a constant, whose kind depends on the values beside it."""
    if variable.record is not None:
        return found[variable.record.number][variable.position]
    if is_common(variable):
        return Kind(PARAMETERS)
    if variable.origin is not None and (kinds := found.get(variable.origin.number)) is not None:
        if (kind := kinds[variable.position]) is not None:
            return kind
    return Kind(ROWS, variable.value.structure.axis) if _is_data(variable.value) else None


def _is_data(value: Any) -> bool:
    return isinstance(value, LoDTensor) and value.structure is not NO_LOD


def _without_rows(record: Record, given: Sequence[Kind | None]) -> list[Kind] | None:
    """Return the kinds of the results of an operator whose operands have no rows, or mixed ones; otherwise None."""
    present = {kind.kind for kind in given if kind is not None}
    if MIXED in present or ({ROWS, SUMS} <= present and record.op.type != "weighted_mean"):
        return [_MIXED] * len(record.values)
    if ROWS in present:
        return None
    if SUMS in present:  # a constant with more elements, as a target for each row, makes rows of them again
        return [Kind(SUMS) if _fits(value, record, given) else _MIXED for value in record.values]
    constants = [v for v, kind in zip(record.inputs, given, strict=True) if v is not None and kind is None]
    is_data = any(v.ndim for v in constants)
    return None if is_data and not _is_beside_parameters(record, given) else [Kind(PARAMETERS)] * len(record.values)


def _of_rows(record: Record, given: Sequence[Kind | None]) -> list[Kind]:
    """Return the kinds of the results of an operator that takes rows."""
    axes = [kind.axis if kind is not None and kind.kind == ROWS else None for kind in given]
    if axes.count(None) == len(axes):  # constants beside parameters are the data of a rank
        pairs = zip(record.inputs, given, strict=True)
        axes = [0 if kind is None and v is not None and v.ndim else None for v, kind in pairs]
    op, kinds = record.op, []
    rule = _RULES.get(op.type) or (_aligned if is_apart(op, axes) else None)
    declared = _declared(record, axes) if rule is None else []
    for place, value in enumerate(record.values):
        if rule is None:
            kind = declared[place]
        else:
            kind = rule(record, axes, value) if isinstance(value, LoDTensor) else Kind(ROWS)
        kinds.append(Kind(ROWS, value.structure.axis) if kind.kind == ROWS and _is_data(value) else kind)
    return kinds


def is_apart(op: Op, axes: Sequence[int | None]) -> bool:
    """Return whether an operator keeps rows along these axes apart, whatever its trait says."""
    return bool(op.ufunc) or op.scalar is not None or (op.type in _APART and {None, 0}.issuperset(axes))


def _declared(record: Record, axes: list[int | None]) -> list[Kind]:
    """Return the kinds that follow from an operator's trait `rows`; `MIXED` if it claims nothing."""
    specs = [None if v is None else describe(v.value) for v in record.inputs]
    trait, found = trait_of(record.op, record.attrs, specs, axes)
    if trait is None or (trait == "sum" and len(record.values) > 1):
        return [_MIXED] * len(record.values)
    return [Kind(SUMS) if trait == "sum" else Kind(ROWS, axis or 0) for axis in found or [None] * len(record.values)]


def trait_of(
    op: Op, attrs: Mapping[str, Any], specs: Sequence[TensorSpec | None], axes: Sequence[int | None]
) -> tuple[str | None, list[int | None]]:
    """Return an operator's trait for operands with these axes of rows, and the axes of the results; see `axes.follow`.

    A constant beside rows may have a row for each of them, or belong to all rows.  It suffices if the operator has a
    trait in one of these readings, with the sequences of the last level or with rows alone.
    """
    if op.rows is None:
        return None, []
    at = next(axis for axis in axes if axis is not None)
    count = next(spec.shape[at] for spec, axis in zip(specs, axes, strict=True) if axis == at and spec is not None)
    beside = tuple([
        at if axis is None and spec is not None and len(spec.shape) > at and spec.shape[at] == count else axis
        for spec, axis in zip(specs, axes, strict=True)
    ])  # fmt: skip
    levels = max(min(spec.lod_level, 1) for spec in specs if spec is not None)
    # Texts are plain, because a key that is the name of a cell would hold the cell.
    constants = tuple((name, str(value) if isinstance(value, str) else value) for name, value in attrs.items())
    for chosen in (beside, tuple(axes)):
        for most_levels in range(levels, -1, -1):
            given = [(_of_any_size(spec, axis, most_levels), axis) for spec, axis in zip(specs, chosen, strict=True)]
            try:
                trait, found = _followed(op, constants, tuple(given))
            except TypeError:  # a constant that cannot be hashed
                trait, found = _followed.__wrapped__(op, constants, tuple(given))
            if trait in ("each", "sequence", "sum"):
                return trait, found
    return None, []


def _of_any_size(spec: TensorSpec | None, axis: int | None, most_levels: int) -> TensorSpec | None:
    """Return a spec with one row, so that batches of all sizes have the same."""
    if spec is None or spec.kind is not LOD_TENSOR:
        return spec
    shape, dtype, level, _ = spec
    if axis is None and level <= most_levels:
        return spec
    shape = shape if axis is None else (*shape[:axis], 1, *shape[axis + 1 :])
    return spec_of_tensor(shape, dtype, min(level, most_levels))


@functools.lru_cache(1024)
def _followed(op: Op, attrs: tuple, given: tuple) -> tuple[str | None, list[int | None]]:
    """Return the trait of an operator for operands with these specs and axes of rows, and the axes of its results."""
    known = [
        without_rows(spec) if axis is None or spec is None else with_rows(spec, axis, spec.lod_level)
        for spec, axis in given
    ]
    trait, outputs = follow(op, dict(attrs), known)
    return trait, [None if output is None else output.axis for output in outputs or ()]


def _fits(value: Any, record: Record, given: Sequence[Kind | None]) -> bool:
    """Return whether a result has no more elements, and no more axes, than an operand that is no constant."""
    own = [v for v, kind in zip(record.inputs, given, strict=True) if v is not None and kind is not None]
    return value.data.ndim <= max(v.ndim for v in own) and value.data.size <= max(v.size for v in own)


def _is_beside_parameters(record: Record, given: Sequence[Kind | None]) -> bool:
    """Return whether constants are of the shape of parameters, as the weights are that others stay near."""
    op, value = record.op, record.values[0]
    if op.type == "matmul":  # parameters times a matrix, or a vector, which has no rows, times parameters
        return given[0] is not None or record.inputs[0].ndim < 2
    if not (op.ufunc or op.scalar is not None or op.type in ("squared_error", "huber")):
        return False
    own = [v for v, kind in zip(record.inputs, given, strict=True) if v is not None and kind is not None]
    # A first axis of one entry is broadcast over rows.
    return any(v.shape == value.shape and (not v.ndim or v.shape[0] != 1) for v in own)


Rule = Callable[[Record, list[int | None], Any], Kind]


def _aligned(record: Record, axes: list[int | None], value: Any) -> Kind:
    """Return the kind of results with the axes of an operand, or of operands that are broadcast against each other."""
    op, ndim = record.op, value.data.ndim
    if axes.count(None) < len(axes) - 1 and (op.ufunc or op.scalar is not None):
        pairs = zip(record.inputs, axes, strict=True)
        if len({variable.ndim - axis for variable, axis in pairs if axis is not None}) > 1:
            return _MIXED  # as (rows, 1) + (rows,), which adds each row to each other
    for variable, axis in zip(record.inputs, axes, strict=True):
        if axis is not None and (op.ufunc or op.scalar is not None or variable.ndim == ndim):
            return Kind(ROWS, max(ndim - variable.ndim + axis, 0))
    return Kind(ROWS)


def _reduced(record: Record, axes: list[int | None], value: Any) -> Kind:
    axis = record.attrs.get("axis")
    rows, ndim = axes[0] or 0, record.inputs[0].ndim
    if axis is None or not ndim or axis % ndim == rows:
        return Kind(SUMS) if record.op.divisor is not None else _MIXED
    return Kind(ROWS, rows - (axis % ndim < rows and not record.attrs["keepdims"]))


def _transposed(record: Record, axes: list[int | None], value: Any) -> Kind:
    rows, ndim = axes[0] or 0, record.inputs[0].ndim
    first, second = (record.attrs[name] % ndim for name in ("axis0", "axis1"))
    return Kind(ROWS, {first: second, second: first}.get(rows, rows))


def _product(record: Record, axes: list[int | None], value: Any) -> Kind:
    x, y = axes[:2]
    depth = 2 if record.op.type == "batched_matmul" else 1  # the last axes, which a product needs as a whole
    first, second = (record.inputs[n].ndim for n in (0, 1))
    if x is not None and (x == first - 1 or (depth == 1 and y is not None)):
        return _MIXED
    if y is not None and (depth == 1 or y == second - 2 or (x is not None and first - x != second - y)):
        return _MIXED
    place = first - x if x is not None else second - (y or 0)
    return Kind(ROWS, value.data.ndim - place)


def _reshaped(record: Record, axes: list[int | None], value: Any) -> Kind:
    """Return the kind of rows in another shape: their elements stay beside each other if as many axes precede them."""
    old, new, rows = record.inputs[0].shape, value.shape, axes[0] or 0
    before, count = math.prod(old[:rows]), old[rows] if old else 1
    asked = record.attrs["shape"]
    possible = [axis for axis in range(len(new)) if math.prod(new[:axis]) == before]
    fitting = [axis for axis in possible if (new[axis] % count == 0 if count else not new[axis])]
    open_ones = [axis for axis in fitting if asked[axis] == -1]
    exact = [axis for axis in fitting if new[axis] == count]
    for axis in (*open_ones, *exact, *fitting):
        return Kind(ROWS, axis)
    return _MIXED


def _taken(record: Record, axes: list[int | None], value: Any) -> Kind:
    """Return the kind of rows at an index: an array may choose some of them, a number or a slice knows their order."""
    index, rows, ndim = record.attrs["index"], axes[0], record.inputs[0].ndim
    if rows is None or not ndim:
        return Kind(ROWS)
    items = list(index) if isinstance(index, tuple) else [index]
    if not BASIC_INDEX.issuperset(map(type, items)):
        return Kind(ROWS)
    if Ellipsis in items:
        at = items.index(Ellipsis)
        items[at : at + 1] = [slice(None)] * (ndim - len([item for item in items if item is not None]) + 1)
    old = new = 0
    for item in items:
        if item is None:
            new += 1
            continue
        if old == rows:
            return Kind(ROWS, new) if item == slice(None) else _MIXED
        old, new = old + 1, new + isinstance(item, slice)
    return Kind(ROWS, new + rows - old)


def _along_last(record: Record, axes: list[int | None], value: Any) -> Kind:
    """Return the kind of results of vectors, which the last axis holds."""
    x = record.inputs[0]
    return _MIXED if axes[0] is not None and axes[0] == x.ndim - 1 else _aligned(record, axes, value)


def _along(record: Record, axes: list[int | None], value: Any) -> Kind:
    """Return the kind of results along an axis."""
    x, rows = record.inputs[0], axes[0] or 0
    return _MIXED if record.attrs["axis"] % max(x.ndim, 1) == rows else Kind(ROWS, rows)


def _recurrent(record: Record, axes: list[int | None], value: Any) -> Kind:
    return Kind(ROWS, 1 if value.data.ndim == 3 else 0)  # last states: layers, sequences, units


def _summed(record: Record, axes: list[int | None], value: Any) -> Kind:
    return Kind(SUMS)


def _joined(record: Record, axes: list[int | None], value: Any) -> Kind:
    """Return the kind of operands that are put after each other: parameters among rows would come once on each rank."""
    rows = next(axis for axis in axes if axis is not None)
    if record.attrs["axis"] % value.data.ndim != rows:
        return _aligned(record, axes, value)
    pairs = zip(record.inputs, axes, strict=True)
    is_apart = all(axis == rows or (axis is None and v.record is None and not is_watched(v)) for v, axis in pairs)
    return Kind(ROWS, rows) if is_apart else _MIXED


_RULES: dict[str, Rule] = {
    "batched_matmul": _product, "concat": _joined, "cumsum": _along, "getitem": _taken, "layer_norm": _along_last,
    "log_softmax": _along_last, "matmul": _product, "reduce_max": _reduced, "reduce_mean": _reduced,
    "recurrent": _recurrent, "reduce_min": _reduced, "reduce_sum": _reduced, "reshape": _reshaped, "topk": _along,
    "transpose": _transposed, "weighted_mean": _summed,
}  # fmt: skip

# Operators of the package that keep the rows, or the sequences, of axis 0 apart, but whose trait does not say so: the
# trait is about the loop of a step, in which they may depend on its position, or have no row for each of its rows.
_APART = frozenset({
    # Rows of one sequence are joined, cut, padded, scored or counted, in the order of the sequences.
    "additive_attention", "attention_weights", "beam_search", "beam_search_decode", "crf_decoding", "crf_marginals",
    "ctc_beam_search_decoder", "ctc_greedy_decoder", "ctc_loss", "edit_distance", "linear_chain_crf", "lod_append",
    "lod_reset", "scaled_dot_product_attention", "sequence_enumerate", "sequence_erase", "sequence_expand",
    "sequence_expand_as", "sequence_mask", "sequence_pad", "sequence_pool", "sequence_reshape", "sequence_scatter",
    "sequence_slice", "sequence_split", "sequence_topk_avg_pooling", "sequence_unpad", "zeros_of_sequences",
    # Rows are chosen or moved whole, by numbers that this rank made for its own rows.
    "concat_outputs", "gather", "im2sequence", "init_memories", "merge_by_mask", "rectangle", "reorder_by_rank",
    "row_mask", "segment_inputs", "single_rows", "split_by_mask", "take_rows", "to",
    # A step runs over the rows of each sequence.
    "dynamic_rnn", "while_loop",
    # Most models have them: their traits say the same, in 12 microseconds more.
    "cross_entropy", "embedding",
    # Draws follow the positions of sequences among all ranks, and moments are summed over ranks.
    "batch_norm", "dropout",
})  # fmt: skip
