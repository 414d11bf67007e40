"""Instructions: the operators of a block, ready to run.  A nested block runs once for each time step."""

import functools
from collections import ChainMap
from typing import NamedTuple

from varlen_rnn.errors import ProgramError
from varlen_rnn.program.attrs import decode
from varlen_rnn.program.desc import of_var
from varlen_rnn.program.feed import EDGES
from varlen_rnn.tape.operator import Op, find
from varlen_rnn.tape.run import run


class Instruction(NamedTuple):
    """An operator over positions in a list of values; a missing input has the last position, whose value is None."""

    op: Op
    attrs: dict  # the operator's constants
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    overwritten: tuple[int, ...]  # inputs that the operator overwrites but others still hold: it gets copies of them
    done: tuple[int, ...]  # positions that no later instruction reads


class Instructions:
    """The operators of one block, ready to run: each name is a position in a list of values.

    Values of the names `kept` outlive the run, and values of the names `given` belong to the caller.
    """

    def __init__(self, desc, block, kept, given):
        ops = [op for op in block.ops if op.type not in EDGES]
        names = dict.fromkeys(n for op in ops for n in (*op.input_names(), *op.output_names()) if n)
        names |= dict.fromkeys([*kept, *given])
        self.place = {name: number for number, name in enumerate(names)}
        self.size = len(names) + 1
        self.stages = None  # the Stages of the last run of this block as a step, with the specs that they were made for
        last = {name: number for number, op in enumerate(ops) for name in (*op.input_names(), *op.output_names())}
        not_ours = {*kept, *given, *_shared(ops)}
        nested = nested_blocks(desc)
        self.all = [self._instruction(nested, number, op, last, not_ours, kept) for number, op in enumerate(ops)]

    def _instruction(self, nested, number, op, last, not_ours, kept):
        kind, inputs, outputs = find(op.type), op.input_names(), op.output_names()
        attrs = decode(kind, op.attrs, nested)
        used = () if kind.overwrites is None else kind.overwrites(len(inputs), **attrs)
        done = {name for name in (*inputs, *outputs) if name and last[name] == number and name not in kept}
        return Instruction(
            kind, attrs,
            tuple(self.place[name] if name else self.size - 1 for name in inputs),
            tuple(self.place[name] for name in outputs),
            tuple(position for position in used if inputs[position] in not_ours),
            tuple(self.place[name] for name in done),
        )  # fmt: skip

    def run(self, values):
        """Run the operators on values by name; return the list of all values by position."""
        held = [None] * self.size
        for name, value in values.items():
            held[self.place[name]] = value
        for op, attrs, inputs, outputs, overwritten, done in self.all:
            given = [held[place] for place in inputs]
            for position in overwritten:
                given[position] = given[position].copy()
            for place, result in zip(outputs, run(op, given, attrs), strict=True):
                held[place] = result
            for place in done:
                held[place] = None
        return held


def _shared(ops):
    """Return the names whose values an operator must not overwrite: others read them, or own their memory.

    A value is free to overwrite only if a forward operator made it for its own gradient: operators such as `assign`
    hand on the memory of their input.
    """
    made = {name: op.type for op in ops for name in op.output_names()}
    seen, shared = set(), set()
    for op in ops:
        for name in op.input_names():
            if name in seen or f"{made.get(name)}_grad" != op.type:
                shared.add(name)
            seen.add(name)
    return shared


def nested_blocks(desc):
    """Return a function from the index of a block to its `Nested`, shared by all operators that run the block."""
    return functools.cache(functools.partial(Nested, desc, tables={}))


class Nested:
    """A nested block, which reads only its own variables; one that none of its operators computes is an argument.

    A block of gradients also reads the variables of the block that it differentiates.  `tables` has the specs of each
    block's variables by name; all nested blocks of the description share it.
    """

    def __init__(self, desc, index, tables=None):
        self.desc, self.block = desc, desc.blocks[index]
        self._tables = {} if tables is None else tables
        # No `cached_property`: in Python 3.11 it takes a lock, which a fork could leave locked.
        self._arguments = self._instructions = None
        self.lowered = {}  # {sizes known in a run only: the lowered cell, or a text that says why there is none}

    def _table(self, index):
        if index not in self._tables:
            self._tables[index] = {var.name: of_var(var) for var in self.desc.blocks[index].vars}
        return self._tables[index]

    @property
    def nested(self):
        """Return self, so that callers can write `block.nested` for a recorded block and for one from a file."""
        return self

    @property
    def specs(self):
        """The specs of the variables that it may read, by name."""
        return ChainMap(self._table(self.block.idx), self.of_forward)

    @property
    def of_forward(self):
        """The specs of the variables of the block that it differentiates, by name; empty if there is no such block."""
        forward = self.block.forward_block_idx
        return self._table(forward) if forward >= 0 else {}

    @property
    def arguments(self):
        """The names of its arguments."""
        if self._arguments is None:
            computed = {name for op in self.block.ops for name in op.output_names()}
            self._arguments = [var.name for var in self.block.vars if var.name not in computed]
        return self._arguments

    def spec(self, name):
        """Return the spec of a variable, or raise if the block has no variable with this name."""
        if name not in self.specs:
            raise ProgramError(f"block {self.block.idx}", expected=f"a variable {name!r}", got="none")
        return self.specs[name]

    @property
    def instructions(self):
        """Its operators, ready to run."""
        if self._instructions is None:
            names = [var.name for var in self.block.vars]
            self._instructions = Instructions(self.desc, self.block, kept=names, given=list(self.specs))
        return self._instructions
