"""Check a description when it is read and before it is written: a description without errors can be run."""

from collections import ChainMap

from varlen_rnn.errors import InputError, ProgramError, check_choice, shown
from varlen_rnn.program.attrs import decode
from varlen_rnn.program.desc import VERSION, of_var
from varlen_rnn.program.feed import EDGES
from varlen_rnn.program.instructions import nested_blocks
from varlen_rnn.program.structure import check_fields, check_structure
from varlen_rnn.runtime.precision import PRECISIONS
from varlen_rnn.tape.kinds import Type
from varlen_rnn.tape.operator import find
from varlen_rnn.tape.spec import describe

_MOST_BLOCKS = 1000
_MOST_DEPTH = 32  # how deep blocks can be nested, because each level takes frames of Python's stack


def check_program(desc):
    """Raise a ProgramError unless names, operators, constants and inferred specs of a description fit together."""
    check_fields(desc)
    if not 0 < desc.version <= VERSION:
        hint = "a newer varlen_rnn wrote it" if desc.version > VERSION else None
        raise ProgramError("program, version", expected=f"1 to {VERSION}", got=desc.version, hint=hint)
    if not 0 < len(desc.blocks) <= _MOST_BLOCKS:
        raise ProgramError("program, blocks", expected=f"1 to {_MOST_BLOCKS}", got=len(desc.blocks))
    for number, block in enumerate(desc.blocks):
        if block.idx != number or not (-1 <= block.parent_idx < number) or (block.parent_idx < 0) != (number == 0):
            got = f"idx {block.idx}, parent_idx {block.parent_idx}"
            raise ProgramError(f"block {number}", expected=f"idx {number}, and an earlier block as parent", got=got)
        if not -1 <= block.forward_block_idx < len(desc.blocks):
            expected = f"a forward block from -1 to {len(desc.blocks) - 1}"
            raise ProgramError(f"block {number}", expected=expected, got=block.forward_block_idx)
    check_structure(desc)
    known: dict[str, int] = {}
    for block in desc.blocks:
        for var in block.vars:
            if var.name in known:
                got = f"definitions in blocks {known[var.name]} and {block.idx}"
                raise ProgramError(f"variable {var.name!r}", expected="one definition", got=got)
            known[var.name] = block.idx
    blocks = nested_blocks(desc)
    _check_block(blocks(0), blocks, (), set())


def _check_block(nested, blocks, around, checked):
    """Check the operators of a block in time proportional to its own text, without copying tables of other blocks.

    `blocks` is a function from a block's index to its `Nested`.  `around` has the indices of the blocks around this
    block, because a block cannot be inside itself.  `checked` has the blocks that were already checked.
    """
    block, specs = nested.block, nested.specs
    for var in block.vars:
        if var.persistable and (block.idx or var.type.type != Type.LOD_TENSOR or specs[var.name].lod_level):
            expected = "a tensor without LoD in block 0, because it is persistable"
            got = f"{var.type} in block {block.idx}"
            raise ProgramError(f"variable {var.name!r}", expected=expected, got=got)
    persistable = {var.name for var in block.vars if var.persistable}
    lists_of_feeds = [var.name for var in block.vars if var.type.type == Type.FEED_MINIBATCH]
    begin = nested.arguments if block.idx else {*persistable, *lists_of_feeds}
    # A block of gradients can also read the variables of the block that it differentiates, which runs first.
    bound = ChainMap(dict.fromkeys(begin), nested.of_forward)
    around = (*around, block.idx)
    for number, op in enumerate(block.ops):
        where = f"block {block.idx}, operator {number} ({op.type})"
        try:
            _check_op(op, specs, bound, persistable, blocks, around, checked)
        except ProgramError as error:
            raise ProgramError(where, got=str(error)) from error
        except (InputError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise ProgramError(where, expected="inputs and constants that fit", got=str(error)[:300]) from error
        bound.update(dict.fromkeys(op.output_names()))
    for name in bound.maps[0]:
        if name not in specs:
            raise ProgramError(f"variable {name!r}", expected="a description in its block", got="none")
    for var in block.vars:
        if var.name not in bound:
            raise ProgramError(f"variable {var.name!r}", expected="an operator that computes it", got="none")


def _check_op(op, specs, bound, persistable, blocks, around, checked):
    kind = find(op.type)
    if kind.multiplies:
        check_choice(op.precision, "precision", *PRECISIONS)
    elif op.precision != "fp32":
        raise ProgramError("precision", expected="'fp32', because it multiplies nothing", got=shown(op.precision))
    inputs, outputs = op.input_names(), op.output_names()
    attrs = decode(kind, op.attrs, lambda index: _checked_nested(index, blocks, around, checked))
    for given, pairs in zip((op.inputs, op.outputs), kind.by_place(inputs, outputs, attrs), strict=True):
        if [(var.parameter, var.arguments) for var in given] != pairs:
            expected = f"the names {[place for place, _ in pairs]}"
            raise ProgramError("inputs and outputs", expected=expected, got=[var.parameter for var in given])
    if (position := kind.missing([name or None for name in inputs])) is not None:
        raise ProgramError(kind.input_name(position), expected="a variable", got="none")
    for name in inputs:
        if name and name not in bound:
            raise ProgramError(f"variable {name!r}", expected="an operator, before this one, that computes it")
    if len(inputs) < sum(not place.startswith("*") for place in kind.inputs):
        raise ProgramError("inputs", expected=f"at least {kind.inputs}", got=inputs)
    if op.type in EDGES:
        _check_edge(op, specs, bound, outermost=around == (0,))
        return
    inferred = kind.specs([specs[name] if name else None for name in inputs], attrs)
    if len(inferred) != len(outputs):
        raise ProgramError("outputs", expected=f"{len(inferred)} variables", got=len(outputs))
    for position, (name, spec) in enumerate(zip(outputs, inferred, strict=True)):
        if kind.in_place:
            source = inputs[kind.in_place[position]]
            if name != source or name not in persistable or inputs.count(name) > 1:
                expected = f"{source!r}, which must be persistable and an input only once, to be updated in place"
                raise ProgramError(f"output {name!r}", expected=expected)
        elif name in bound:
            raise ProgramError(f"variable {name!r}", expected="one operator that computes it", got="two")
        if name not in specs or specs[name] != spec:
            raise ProgramError(f"variable {name!r}", expected=f"{spec}", got=f"{specs.get(name)}")


def _checked_nested(index, blocks, around, checked):
    """Check a nested block, and that its parent is the block of its operator; return its `Nested`."""
    outer = blocks(around[-1])
    homes = (around[-1], outer.block.forward_block_idx)  # a block of gradients runs its forward block, too
    if not 0 < index < len(outer.desc.blocks) or outer.desc.blocks[index].parent_idx not in homes:
        raise ProgramError("block", expected=f"the index of a block inside block {around[-1]}", got=index)
    nested = blocks(index)
    forward = nested.block.forward_block_idx
    if forward >= index:
        raise ProgramError(f"block {index}", expected="an earlier block to differentiate", got=f"block {forward}")
    if index in around:
        raise ProgramError(f"block {index}", expected="a block that is not inside itself", got=f"blocks {around}")
    if index not in checked:
        if len(around) > _MOST_DEPTH:
            expected = f"at most {_MOST_DEPTH} blocks, one inside the other"
            raise ProgramError(f"block {index}", expected=expected, got="more")
        _check_block(nested, blocks, around, checked)
        checked.add(index)
    return nested


def _check_edge(op, specs, bound, outermost):
    """Raise unless a `feed` or `fetch` is in the outermost block and names the list of feeds or fetches."""
    feeds = op.type == "feed"
    a_list, name = (op.input_names()[0], op.output_names()[0]) if feeds else (op.output_names()[0], op.input_names()[0])
    wanted = Type.FEED_MINIBATCH if feeds else Type.FETCH_LIST
    if feeds and name in bound:
        raise ProgramError(f"variable {name!r}", expected="one operator that computes it", got="two")
    if not outermost or specs[a_list].kind != wanted or specs[name].kind in (Type.FEED_MINIBATCH, Type.FETCH_LIST):
        expected = f"a {wanted.name} variable and a variable with a value, in block 0"
        raise ProgramError(op.type, expected=expected, got=f"{specs[a_list]} and {specs[name]}")


def check_persistables(desc, values):
    """Raise unless there is one value for each persistable variable, and each value is as described."""
    described = {var.name: of_var(var) for var in desc.blocks[0].vars if var.persistable}
    if described.keys() != values.keys():
        missing, unexpected = sorted(described.keys() - values.keys()), sorted(values.keys() - described.keys())
        expected = f"values for {missing}" if missing else "values only for the described persistables"
        got = f"values for {unexpected}" if unexpected else "no values for them"
        raise ProgramError("persistables", expected=expected, got=got)
    for name, value in values.items():
        if describe(value) != described[name]:
            raise ProgramError(f"persistable {name!r}", expected=described[name], got=describe(value))
        if not (value.data.flags.c_contiguous and value.data.flags.writeable):
            hint = "np.array(..., order='C')"
            expected, got = "an array that can be updated in place", "a strided or read-only array"
            raise ProgramError(f"persistable {name!r}", expected=expected, got=got, hint=hint)
