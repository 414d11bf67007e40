"""What the rows of each value of a step count, where steps are sub-sequences: steps, or entries of sequences below.

An operator whose operands count the same runs on all steps at once as it does in one.
"""

import math
from typing import NamedTuple

from varlen_rnn.cells import find_cell
from varlen_rnn.steps.stages import ELEMENTWISE
from varlen_rnn.tape.index import BASIC_INDEX
from varlen_rnn.tape.kinds import LOD_TENSOR

_LAYERS = {"recurrent"}
_WEIGHTED = _LAYERS | {"sequence_conv", "row_conv"}
# Whose last level's sequences know nothing of each other.
_BY_SEQUENCE = _WEIGHTED | {
    "sequence_pool", "sequence_softmax", "sequence_reverse", "sequence_cumsum", "sequence_concat",
    "scaled_dot_product_attention",
}  # fmt: skip
_SAME_AT_EACH_STEP = ELEMENTWISE | {
    "assign", "detach", "sum", "matmul", "reshape", "transpose", "getitem", "concat", "split", "fill_constant",
}  # fmt: skip


class Counted(NamedTuple):
    """What an axis of a value counts: entries so many levels below the steps'; 0 levels, the steps themselves."""

    axis: int
    depth: int


SAME = Counted(-1, 0)  # at every step: no axis counts anything


def counts_of(block, arguments, barred):
    """Return by symbol what its axes count, of the operators of a step but those that are `barred`, by number."""
    counts = {id(variable.value): Counted(0, variable.value.spec.lod_level) for variable in arguments}
    counts |= {id(own.value): SAME for _, own in block.captures.values()}
    for number, (op, inputs, outputs, attrs) in enumerate(block.ops):
        given = [None if symbol is None else counts.get(id(symbol), ()) for symbol in inputs]
        if number not in barred and () not in given:
            found = _counted(op.type, inputs, given, outputs, attrs)
            counts |= {id(symbol): count for symbol, count in zip(outputs, found, strict=False)}
    return counts


def _counted(kind, inputs, given, outputs, attrs):
    """Return what axes of an operator's outputs count, of the first ones; of none, where it must stay in the step."""
    counted = [(symbol, count) for symbol, count in zip(inputs, given, strict=True) if count not in (None, SAME)]
    if not counted:
        return [SAME] * len(outputs) if kind in _SAME_AT_EACH_STEP else []
    if kind in _BY_SEQUENCE:
        return _of_sequences(kind, inputs, given, outputs, attrs)
    first, count = counted[0]
    shape = first.spec.shape
    alike = all(one == count and len(symbol.spec.shape) == len(shape) for symbol, one in counted)
    fixed = [symbol.spec.shape for symbol, one in zip(inputs, given, strict=True) if one == SAME]
    found = None
    if kind in ELEMENTWISE or kind in ("assign", "detach", "sum"):
        found = count if alike and all(_broadcasts(len(shape) - count.axis, other) for other in fixed) else None
    elif kind in ("concat", "split"):
        found = count if alike and not fixed and attrs["axis"] % len(shape) != count.axis else None
    elif len(counted) == 1 and given[0] == count:
        found = _of_one_operand(kind, shape, count, attrs)
    return [] if found is None else [found] * len(outputs)


def _broadcasts(from_end, shape):
    """Return whether a value has one entry, or none, on an axis so far from the end of others'."""
    return len(shape) < from_end or (len(shape) == from_end and shape[0] == 1)


def _of_one_operand(kind, shape, count, attrs):
    """Return what an operator makes of the count of its first operand, or None of one that mixes what is counted."""
    rank, axis = len(shape), count.axis
    if kind in ("matmul", "log_softmax", "layer_norm"):
        return count if axis < rank - 1 else None
    if kind == "embedding":
        return count if axis == 0 else None
    if kind == "transpose":
        moved = {attrs["axis0"] % rank: attrs["axis1"] % rank, attrs["axis1"] % rank: attrs["axis0"] % rank}
        return count._replace(axis=moved.get(axis, axis))
    if kind in ("reduce_sum", "reduce_mean"):
        over = None if attrs["axis"] is None else attrs["axis"] % rank
        before = over is not None and over < axis and not attrs["keepdims"]
        return None if over in (None, axis) else count._replace(axis=axis - before)
    if kind == "reshape":
        sizes, rest = attrs["shape"], shape[axis + 1 :]
        is_first = math.prod(shape[:axis]) == 1 and sizes[:1] == (-1,) and -1 not in rest
        return Counted(0, count.depth) if is_first and math.prod(sizes[1:]) == math.prod(rest) else None
    return _of_index(attrs["index"], count) if kind == "getitem" else None


def _of_index(index, count):
    """Return what an index leaves of a count, or None of one that picks among what is counted."""
    items = index if isinstance(index, tuple) else (index,)
    before, at = items[: count.axis], items[count.axis : count.axis + 1]
    if not BASIC_INDEX.issuperset(map(type, items)) or at not in ((), (slice(None),)) or len(before) < count.axis:
        return None
    if not all(isinstance(item, (int, slice)) for item in before):
        return None
    return count._replace(axis=sum(isinstance(item, slice) for item in before))


def _of_sequences(kind, inputs, given, outputs, attrs):
    """As `_counted`, of an operator over the sequences of a last level."""
    depth = inputs[0].spec.lod_level if given[0] not in (None, SAME) else 0
    of_rows, of_states = Counted(0, depth), Counted(1, depth - 1)
    if depth == 0 or given[0] != of_rows or (kind not in _WEIGHTED and SAME in given):
        return []
    for symbol, count in zip(inputs, given, strict=True):
        has_lod = count == of_rows and symbol.spec.lod_level == depth
        if not (count in (None, SAME) or has_lod or (kind in _LAYERS and count == of_states)):
            return []
    if kind in _LAYERS:
        if SAME in given[1 : 1 + len(find_cell(attrs["cell"]).states)]:  # of as many sequences as a step has
            return []
        values = [symbol.spec for symbol in outputs]
        ends = next(number for number, spec in enumerate(values) if spec.kind is not LOD_TENSOR)  # the plan
        return [of_rows if spec.lod_level else of_states for spec in values[:ends]]
    if kind == "sequence_pool":
        return [Counted(0, depth - 1)] if attrs["level"] == -1 else []
    return [of_rows]
