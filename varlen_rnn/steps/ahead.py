"""If steps are sub-sequences, run the operators of a step that read no state once, ahead of the recurrence.

For example, a recurrence over the sentences of a document can run, at each step, a layer over the words of the sentence
and pool the results.  These operators read one sentence and no state, so they and their gradients can run on all
sentences of the batch at once, as ordinary operators outside of the step.  The remaining operators form the step.
Often, it can then be lowered to a cell.
"""

from typing import Any, NamedTuple

from varlen_rnn.tape.axes import follow, with_rows, without_rows
from varlen_rnn.tape.spec import describe
from varlen_rnn.tape.variable import Variable, apply, apply_op


class Ahead(NamedTuple):
    """The operators that run ahead of a step, and the inputs of the step without them.

    operators: the operators, in the order in which they run
    given: the Variables with rows that the step reads, which are its arguments or results of these operators
    captured: pairs of a value from outside and the Variable that represents it in the step
    """

    operators: list
    given: list
    captured: list


def split(block, arguments, results):
    """Remove the operators that can run ahead from the block of a step; return an Ahead, or None if there are none.

    `arguments` are the arguments of the step that come from sequences, and `results` are its results.  The block must
    be new, because nothing that refers to it is updated.
    """
    # If an operator updates in place, nothing runs ahead, because the next step must see the update.
    if any(op.in_place for op, *_ in block.ops):
        return None
    known, early = _known_and_early(block, arguments, results)
    if not early:
        return None
    ids = {id(variable.value) for variable in results}
    rest = _needed([n for n in range(len(block.ops)) if n not in early], block.ops, ids, known)
    read = ids | {id(symbol) for n in rest for symbol in block.ops[n][1]}
    made = [symbol for n in sorted(early) for symbol in block.ops[n][2]]
    crossing = [s for s in (*(a.value for a in arguments), *made) if id(s) in read and _has_rows(known[id(s)])]
    ahead = _needed(range(len(block.ops)), block.ops, {id(symbol) for symbol in crossing}, None)
    leaves = _cut(results, crossing or [arguments[0].value])
    captured = [pair for pair in block.captures.values() if id(pair[1].value) in read]
    taken = [block.ops[n] for n in ahead]
    _forget(block, [block.ops[n] for n in rest], leaves, captured, arguments)
    return Ahead(taken, leaves, captured)


def run(ahead, xs, levels):
    """Run the operators ahead of a step; return the Variables whose sequences the step reads.

    `xs` maps the identity (`id`) of each symbol that the step takes from outside to the Variable outside; its first
    entry is a sequence.  `levels` counts the LoD levels of the sequences, down to the level whose entries are steps.
    """
    found = dict(xs)
    for op, inputs, outputs, attrs in ahead.operators:
        values = apply_op(op, [None if s is None else found[id(s)] for s in inputs], attrs)
        values = values if isinstance(values, list) else [values]
        found |= {id(symbol): value for symbol, value in zip(outputs, values, strict=True)}
    return [_of_steps(found[id(variable.value)], next(iter(xs.values())), levels) for variable in ahead.given]


def _of_steps(value, x, levels):
    """Return `value` unchanged if it has a LoD; otherwise its rows, one per step, with the upper LoD levels of `x`."""
    if describe(value.value).lod_level:
        return value
    while describe(x.value).lod_level > levels:
        x, _ = apply("sequence_pool", x.detach(), pool_type="first", pad_value=0.0, level=-1)
    return apply("lod_reset", value, x, target_lod=None)


def _known_and_early(block, arguments, results):
    """Return the spec of each symbol for any number of rows, and the positions of operators that can run ahead.

    If the remaining step reads a result of such an operator, this result must have one row per step, or one row per
    entry of the levels below, and their LoD.
    """
    followed: dict[Any, Any] = {}
    excluded = _last_products(block.ops, _known_of(block, arguments, set(), followed))
    results = {id(variable.value) for variable in results}
    while True:
        known = _known_of(block, arguments, excluded, followed)
        early = {n for n, (_, _, outputs, _) in enumerate(block.ops) if _has_rows(known.get(id(outputs[0])))}
        late = [inputs for n, (_, inputs, *_) in enumerate(block.ops) if n not in early]
        read = results | {id(symbol) for inputs in late for symbol in inputs}
        wrong = {n for n in early for symbol in block.ops[n][2] if id(symbol) in read and not _may_cross(symbol, known)}
        if not wrong:
            return known, early
        excluded |= wrong


def _known_of(block, arguments, excluded, followed):
    """Return the spec of each symbol that is computed row by row, or sequence by sequence, by the symbol's `id`.

    Results of the operators in `excluded` have no spec.  `followed` caches the results of `follow`, by the number of
    the operator and the specs of its inputs.
    """
    known = {id(v.value): with_rows(v.value.spec, depth=v.value.spec.lod_level) for v in arguments}
    known |= {id(own.value): without_rows(own.value.spec) for _, own in block.captures.values()}
    for number, (op, inputs, outputs, attrs) in enumerate(block.ops):
        given = [without_rows(None) if symbol is None else known.get(id(symbol)) for symbol in inputs]
        if number not in excluded and None not in given:
            key = number, tuple(given)
            if key not in followed:
                followed[key] = follow(op, attrs, given)
            trait, found = followed[key]
            if trait in ("same", "each", "sequence"):
                known |= {id(symbol): one for symbol, one in zip(outputs, found, strict=True) if one is not None}
    return known


def _has_rows(known):
    return known is not None and known.axis is not None


def _is_same(known):
    return known is not None and known.axis is None


def _last_products(operators, known):
    """Return the positions of the last products with one row per step: no later such product depends on them.

    These products stay in the step, as the gates of its cell.
    """
    last, before = set[int](), set[int]()
    for number in range(len(operators) - 1, -1, -1):
        op, inputs, outputs, _ = operators[number]
        found = known.get(id(outputs[0]))
        is_product = op.type == "matmul" and _has_rows(found) and (found.axis, found.depth) == (0, 0)
        is_before = any(id(symbol) in before for symbol in outputs)
        if is_product and not is_before:
            last.add(number)
        if is_product or is_before:
            before.update(map(id, inputs))
    return last


def _may_cross(symbol, known):
    found = known.get(id(symbol))
    return found is not None and found.axis == 0 and symbol.spec.lod_level == found.depth


def _needed(numbers, operators, ids, known):
    """Return which operators of `numbers` are needed: a result is in `ids`, or another needed operator reads it.

    If `known` is given, an operator whose results differ from step to step is always needed, too.
    """
    needed, found = set(ids), []
    for number in sorted(numbers, reverse=True):
        _, inputs, outputs, _ = operators[number]
        is_late = known is not None and not _is_same(known.get(id(outputs[0])))
        if is_late or any(id(symbol) in needed for symbol in outputs):
            needed.update(map(id, inputs))
            found.append(number)
    return found[::-1]


def _cut(results, symbols):
    """Return the Variables of `symbols`, found by walking back from the results; each forgets how it was computed."""
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
    """Leave only the given operators in a block, and remove the symbols that these operators do not use."""
    own = {id(own.value) for _, own in block.captures.values()} | {id(variable.value) for variable in arguments}
    own |= {id(symbol) for _, _, outputs, _ in block.ops for symbol in outputs}
    kept = {id(variable.value) for variable in leaves} | {id(variable.value) for _, variable in captured}
    kept |= {id(symbol) for _, _, outputs, _ in operators for symbol in outputs}
    for symbol in block.symbols:
        if id(symbol) in own - kept:
            block.recorder.named.pop(symbol.name, None)
    block.symbols = [symbol for symbol in block.symbols if id(symbol) not in own - kept]
    block.ops = operators
