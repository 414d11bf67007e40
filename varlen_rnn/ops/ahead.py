"""What of a step reads no state, where steps are sub-sequences: it runs ahead of the recurrence, on all steps at once.

A step of a recurrence over the sentences of documents may read words with a layer and pool what it gives.  Those
operators see the words of one sentence at a time: they run on all sentences of the batch, as ordinary operators outside
of the step, and so do their gradients.  The step is what remains, often a cell.
"""

import math
from typing import NamedTuple

from varlen_rnn.cells import find_cell
from varlen_rnn.ops.stages import ELEMENTWISE
from varlen_rnn.tape.index import BASIC_INDEX
from varlen_rnn.tape.kinds import LOD_TENSOR
from varlen_rnn.tape.spec import describe
from varlen_rnn.tape.variable import Variable, apply, apply_list

_LAYERS = {"recurrent", "recomputed_recurrent"}
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


_SAME = Counted(-1, 0)  # at every step: no axis counts anything


class Ahead(NamedTuple):
    """The operators that run ahead of a step, and what the step is given of sequences, and reads from outside, now.

    Pairs of what is taken outside of the step, for what is `given` before the operators have run its symbol inside, and
    the Variable that stands for it in the step.
    """

    operators: list
    given: list
    captured: list


def split(block, arguments, results):
    """Take from the block of a step what may run ahead of it; return that, or None if there is nothing.

    Parameters
    ----------
    block : Block
        Which no other knows yet.
    arguments : list of Variable
        What the step is given of sequences.
    results : list of Variable
        What it gives.
    """
    if any(op.in_place for op, *_ in block.ops):  # an update is seen by the next step
        return None
    counts, early = _counts_and_early(block, arguments, results)
    if not early:
        return None
    ids = {id(variable.value) for variable in results}
    rest = _needed([n for n in range(len(block.ops)) if n not in early], block.ops, ids, counts)
    read = ids | {id(symbol) for n in rest for symbol in block.ops[n][1]}
    made = [symbol for n in sorted(early) for symbol in block.ops[n][2]]
    crossing = [s for s in (*(a.value for a in arguments), *made) if id(s) in read and counts[id(s)] != _SAME]
    ahead = _needed(range(len(block.ops)), block.ops, {id(symbol) for symbol in crossing}, None)
    leaves = _cut(results, crossing or [arguments[0].value])
    captured = [pair for pair in block.captures.values() if id(pair[1].value) in read]
    taken = [block.ops[n] for n in ahead]
    _forget(block, [block.ops[n] for n in rest], leaves, captured, arguments)
    return Ahead(taken, leaves, captured)


def run(ahead, xs, levels):
    """Run what is ahead of a step; return the Variables that the step is given of sequences.

    Parameters
    ----------
    xs : dict of int to Variable
        By the identity of a symbol of the step, what stands for it outside; first a sequence.
    levels : int
        How many the sequences of steps have, down to that whose entries are steps.
    """
    found = dict(xs)
    for op, inputs, outputs, attrs in ahead.operators:
        values = apply_list(op.type, *[None if s is None else found[id(s)] for s in inputs], **attrs)
        found |= {id(symbol): value for symbol, value in zip(outputs, values, strict=True)}
    return [_of_steps(found[id(variable.value)], next(iter(xs.values())), levels) for variable in ahead.given]


def _of_steps(value, x, levels):
    """Return a value with the levels of `x` down to that of the steps, where it is one row for each without them."""
    if describe(value.value).lod_level:
        return value
    while describe(x.value).lod_level > levels:
        x, _ = apply("sequence_pool", x.detach(), pool_type="first", pad_value=0.0, level=-1)
    return apply("lod_reset", value, x, target_lod=None)


def _counts_and_early(block, arguments, results):
    """Return by symbol what its axes count, and the numbers of the operators that may run ahead of the step.

    What these hand to the step must be rows of steps, or of the levels below with their LoD.
    """
    counts = _counts(block, arguments, set())
    barred = _last_products(block.ops, counts)
    results = {id(variable.value) for variable in results}
    while True:
        counts = _counts(block, arguments, barred)
        early = {n for n, (_, _, outputs, _) in enumerate(block.ops) if counts.get(id(outputs[0]), _SAME) != _SAME}
        late = [inputs for n, (_, inputs, *_) in enumerate(block.ops) if n not in early]
        read = results | {id(symbol) for inputs in late for symbol in inputs}
        wrong = {
            n for n in early for symbol in block.ops[n][2] if id(symbol) in read and not _may_cross(symbol, counts)
        }
        if not wrong:
            return counts, early
        barred |= wrong


def _last_products(operators, counts):
    """Return the numbers of products of one row per step that none such follows: a cell has them in its step."""
    last, before = set[int](), set[int]()
    for number in range(len(operators) - 1, -1, -1):
        op, inputs, outputs, _ = operators[number]
        is_product = op.type == "matmul" and counts.get(id(outputs[0])) == Counted(0, 0)
        is_before = any(id(symbol) in before for symbol in outputs)
        if is_product and not is_before:
            last.add(number)
        if is_product or is_before:
            before.update(map(id, inputs))
    return last


def _may_cross(symbol, counts):
    count = counts.get(id(symbol))
    return count is not None and count.axis == 0 and symbol.spec.lod_level == count.depth


def _counts(block, arguments, barred):
    counts = {id(variable.value): Counted(0, variable.value.spec.lod_level) for variable in arguments}
    counts |= {id(own.value): _SAME for _, own in block.captures.values()}
    for number, (op, inputs, outputs, attrs) in enumerate(block.ops):
        given = [None if symbol is None else counts.get(id(symbol), ()) for symbol in inputs]
        if number not in barred and () not in given:
            found = _counted(op.type, inputs, given, outputs, attrs)
            counts |= {id(symbol): count for symbol, count in zip(outputs, found, strict=False)}
    return counts


def _counted(kind, inputs, given, outputs, attrs):
    """Return what axes of an operator's outputs count, of the first ones; of none, where it must stay in the step."""
    counted = [(symbol, count) for symbol, count in zip(inputs, given, strict=True) if count not in (None, _SAME)]
    if not counted:
        return [_SAME] * len(outputs) if kind in _SAME_AT_EACH_STEP else []
    if kind in _BY_SEQUENCE:
        return _of_sequences(kind, inputs, given, outputs, attrs)
    first, count = counted[0]
    shape = first.spec.shape
    alike = all(one == count and len(symbol.spec.shape) == len(shape) for symbol, one in counted)
    fixed = [symbol.spec.shape for symbol, one in zip(inputs, given, strict=True) if one == _SAME]
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
    depth = inputs[0].spec.lod_level if given[0] not in (None, _SAME) else 0
    of_rows, of_states = Counted(0, depth), Counted(1, depth - 1)
    if depth == 0 or given[0] != of_rows or (kind not in _WEIGHTED and _SAME in given):
        return []
    for symbol, count in zip(inputs, given, strict=True):
        has_lod = count == of_rows and symbol.spec.lod_level == depth
        if not (count in (None, _SAME) or has_lod or (kind in _LAYERS and count == of_states)):
            return []
    if kind in _LAYERS:
        if _SAME in given[1 : 1 + len(find_cell(attrs["cell"]).states)]:  # of as many sequences as a step has
            return []
        values = [symbol.spec for symbol in outputs]
        ends = next(number for number, spec in enumerate(values) if spec.kind is not LOD_TENSOR)  # the plan
        return [of_rows if spec.lod_level else of_states for spec in values[:ends]]
    if kind == "sequence_pool":
        return [Counted(0, depth - 1)] if attrs["level"] == -1 else []
    return [of_rows]


def _needed(numbers, operators, ids, counts):
    """Return those of some operators that others of them, or somebody who reads what has an identity, need.

    With `counts`, those that are not the same at each step are needed anyway.
    """
    needed, found = set(ids), []
    for number in sorted(numbers, reverse=True):
        _, inputs, outputs, _ = operators[number]
        is_late = counts is not None and counts.get(id(outputs[0])) != _SAME
        if is_late or any(id(symbol) in needed for symbol in outputs):
            needed.update(map(id, inputs))
            found.append(number)
    return found[::-1]


def _cut(results, symbols):
    """Return the Variables of symbols, from which results were computed, as leaves."""
    found, wanted, waiting, seen = {}, {id(symbol) for symbol in symbols}, list(results), set()
    while waiting:
        variable = waiting.pop()
        if variable is None or id(variable) in seen:
            continue
        seen.add(id(variable))
        if id(variable.value) in wanted:
            if variable.requires_grad or id(variable.value) not in found:
                found[id(variable.value)] = variable
        elif variable.record is not None:
            waiting.extend(variable.record.inputs)
    leaves = [found.get(id(symbol), Variable(symbol)) for symbol in symbols]
    for leaf in leaves:
        leaf.record = None
    return leaves


def _forget(block, operators, leaves, captured, arguments):
    """Leave a block some operators, what it is given, and what they make."""
    own = {id(own.value) for _, own in block.captures.values()} | {id(variable.value) for variable in arguments}
    own |= {id(symbol) for _, _, outputs, _ in block.ops for symbol in outputs}
    kept = {id(variable.value) for variable in leaves} | {id(variable.value) for _, variable in captured}
    kept |= {id(symbol) for _, _, outputs, _ in operators for symbol in outputs}
    for symbol in block.symbols:
        if id(symbol) in own - kept:
            block.recorder.named.pop(symbol.name, None)
    block.symbols = [symbol for symbol in block.symbols if id(symbol) not in own - kept]
    block.ops = operators
