"""What of a step reads no state, where steps are sub-sequences: it runs ahead of the recurrence, on all steps at once.

A step of a recurrence over the sentences of documents may read words with a layer and pool what it gives.  Those
operators see the words of one sentence at a time: they run on all sentences of the batch, as ordinary operators outside
of the step, and so do their gradients.  The step is what remains, often a cell.
"""

from typing import NamedTuple

from varlen_rnn.steps.counted import SAME, Counted, counts_of
from varlen_rnn.tape.spec import describe
from varlen_rnn.tape.variable import Variable, apply, apply_list


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
    crossing = [s for s in (*(a.value for a in arguments), *made) if id(s) in read and counts[id(s)] != SAME]
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
    counts = counts_of(block, arguments, set())
    barred = _last_products(block.ops, counts)
    results = {id(variable.value) for variable in results}
    while True:
        counts = counts_of(block, arguments, barred)
        early = {n for n, (_, _, outputs, _) in enumerate(block.ops) if counts.get(id(outputs[0]), SAME) != SAME}
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


def _needed(numbers, operators, ids, counts):
    """Return those of some operators that others of them, or somebody who reads what has an identity, need.

    With `counts`, those that are not the same at each step are needed anyway.
    """
    needed, found = set(ids), []
    for number in sorted(numbers, reverse=True):
        _, inputs, outputs, _ = operators[number]
        is_late = counts is not None and counts.get(id(outputs[0])) != SAME
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
