"""Cut programs: `prune` keeps the operators that given variables need, `split` makes parts that run in turn."""

import dataclasses

from varlen_rnn.errors import ProgramError
from varlen_rnn.program.attrs import decode, encode
from varlen_rnn.program.desc import Attr, BlockDesc, OpDesc, ProgramDesc, Var, to_var
from varlen_rnn.program.feed import EDGES, FEED_LIST, FETCH_LIST
from varlen_rnn.program.instructions import nested_blocks
from varlen_rnn.tape.operator import find


def prune(desc, fetches):
    """Return a description with the operators that the fetched names need for inference, and `fetch` operators."""
    needed, kept = set(fetches), []
    for op in reversed(desc.blocks[0].ops):
        if op.type not in EDGES and not find(op.type).in_place and needed.intersection(op.output_names()):
            needed.update(_reads(op))
            kept.append(op)
    nested = nested_blocks(desc)
    kept = [_for_inference(nested, nested(0).specs, op) for op in reversed(kept)]
    _check_bound(desc, kept, fetches)
    steps = [block if block.idx == 0 else _step_for_inference(nested, block) for block in desc.blocks]
    desc = dataclasses.replace(desc, blocks=tuple(steps))
    return assemble(desc, kept, _declared_feeds(desc, kept, fetches), fetches)


def _reads(op):
    return {name for name in op.input_names() if name}  # the inputs include the names that a nested block reads


def _step_for_inference(nested, block):
    ops = tuple(_for_inference(nested, nested(block.idx).specs, op) for op in block.ops)
    lost = {name for op in block.ops for name in op.output_names()} - {n for op in ops for n in op.output_names()}
    return dataclasses.replace(block, ops=ops, vars=tuple(var for var in block.vars if var.name not in lost))


def _for_inference(nested, specs, op):
    """Return an operator with its constants for inference, without the outputs that it has only in training."""
    kind = find(op.type)
    if not kind.inference:
        return op
    attrs = decode(kind, op.attrs, nested) | dict(kind.inference)
    inferred = kind.specs([specs.get(name) for name in op.input_names()], attrs)
    _, pairs = kind.by_place(op.input_names(), op.output_names()[: len(inferred)], attrs)
    outputs = tuple(Var(*pair) for pair in pairs)
    return dataclasses.replace(op, outputs=outputs, attrs=encode(kind, attrs, lambda block: block.block.idx))


def _check_bound(desc, ops, fetches):
    """Raise if the remaining operators no longer compute a variable that one of them reads or that is to be fetched."""
    made_before = {name for op in desc.blocks[0].ops if op.type not in EDGES for name in op.output_names()}
    persistable = {var.name for var in desc.blocks[0].vars if var.persistable}
    made = {name for op in ops for name in op.output_names()}
    for op in ops:
        lost = (_reads(op) & made_before) - made - persistable
        if lost:
            hint = "prune is for inference: fetch outputs, not gradients"
            got = f"{sorted(lost)[0]!r}, which only training computes"
            raise ProgramError(f"prune, {op.type}", expected="inputs that inference computes", got=got, hint=hint)
    for name in fetches:
        if name in made_before - made - persistable:
            got = "a variable that only a gradient needs"
            raise ProgramError(f"prune, {name!r}", expected="an output of inference", got=got)


def _declared_feeds(desc, ops, fetches):
    """Return the names of the feeds that `ops` or `fetches` read, in the order of their declaration."""
    read = {name for op in ops for name in _reads(op)} | set(fetches)
    return [name for op in desc.blocks[0].ops if op.type == "feed" for name in op.output_names() if name in read]


def split(desc, groups):
    """Cut a description into consecutive parts, one per group of names, and a last part with the remaining operators.

    A part ends as soon as all names of its group are computed.
    """
    ops = [op for op in desc.blocks[0].ops if op.type not in EDGES]
    makers = {name: number for number, op in reversed(list(enumerate(ops))) for name in op.output_names()}
    for name in (name for names in groups for name in names):
        if name not in makers:
            expected = "a variable that an operator computes"
            raise ProgramError(f"split, {name!r}", expected=expected, got="a feed or a parameter")
    cuts = [1 + max((makers[name] for name in names), default=-1) for names in groups]
    if sorted(set(cuts)) != cuts:
        raise ProgramError("split, at", expected="variables in the order of their computation", got=groups)
    parts = [ops[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(ops)], strict=True)]
    final = [name for op in desc.blocks[0].ops if op.type == "fetch" for name in op.input_names()]
    persistable = {var.name for var in desc.blocks[0].vars if var.persistable}
    made = [list(dict.fromkeys(name for op in part for name in op.output_names() if name)) for part in parts]
    reads, found, earlier = [{name for op in part for name in _reads(op)} for part in parts], [], []
    for number, part in enumerate(parts):
        handed_in = [name for name in earlier if name in reads[number]]
        later = set(final).union(*reads[number + 1 :])
        own = [name for name in made[number] if name not in persistable]
        handed_out = [name for name in own if name in later]
        if number == len(parts) - 1:
            handed_out = final
            handed_in += [name for name in earlier if name in final and name not in handed_in]
        found.append(assemble(desc, part, _declared_feeds(desc, part, handed_out) + handed_in, handed_out))
        earlier += own
    return found


def assemble(desc, ops, feeds, fetches):
    """Return a description with `feed` operators for `feeds`, then `ops`, then `fetch` operators for `fetches`."""
    block, blocks, places = desc.blocks[0], [], {}
    used = dict.fromkeys([*feeds, *(n for op in ops for n in (*op.input_names(), *op.output_names()) if n), *fetches])
    ops = [_renumber(desc, op, blocks, places) for op in ops]
    described = {var.name: var for var in block.vars}
    feed, fetch = _unused("feed", used), _unused("fetch", used)
    edges = [to_var(feed, FEED_LIST)] if feeds else []
    edges += [to_var(fetch, FETCH_LIST)] if fetches else []
    begin = [edge("feed", feed, name, column) for column, name in enumerate(feeds)]
    end = [edge("fetch", name, fetch, column) for column, name in enumerate(fetches)]
    variables = (*edges, *(described[name] for name in used))
    return ProgramDesc((BlockDesc(0, -1, variables, (*begin, *ops, *end)), *blocks), desc.version)


def _unused(name, used):
    while name in used:
        name += "_"
    return name


def edge(kind, source, target, column):
    """Return a `feed` or `fetch` operator."""
    op = find(kind)
    places = (Var(op.inputs[0], (source,)),), (Var(op.outputs[0], (target,)),)
    return OpDesc(kind, *places, (Attr("col", column),))


def _renumber(desc, op, blocks, places):
    """Return an operator with new indices of nested blocks; append these, and all blocks inside them, to `blocks`."""
    moved = lambda attr: Attr(attr.name, _move(desc, attr.value, blocks, places), is_block=True)
    return dataclasses.replace(op, attrs=tuple(moved(attr) if attr.is_block else attr for attr in op.attrs))


def _move(desc, index, blocks, places):
    if index not in places:
        places[index] = len(blocks) + 1
        blocks.append(None)
        block = desc.blocks[index]
        ops = tuple(_renumber(desc, op, blocks, places) for op in block.ops)
        parent, forward = places.get(block.parent_idx, 0), places.get(block.forward_block_idx, -1)
        blocks[places[index] - 1] = BlockDesc(places[index], parent, block.vars, ops, forward)
    return places[index]
