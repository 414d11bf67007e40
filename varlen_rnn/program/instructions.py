"""The operators of a block as instructions, and a nested block as its operator runs it: once for each time step."""

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
    """An operator over places in a list of values; a missing input stands at the last place, which is None."""

    op: Op
    attrs: dict
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    overwritten: tuple[int, ...]  # places whose value somebody else holds, so the operator gets a copy
    done: tuple[int, ...]  # places that nobody reads after it


class Instructions:
    """The operators of one block, ready to run: names are places in a list of values.

    Parameters
    ----------
    desc : ProgramDesc
    block : BlockDesc
    kept : names whose values outlive the run
    given : names whose values are somebody else's
    """

    def __init__(self, desc, block, kept, given):
        ops = [op for op in block.ops if op.type not in EDGES]
        names = dict.fromkeys(n for op in ops for n in (*op.input_names(), *op.output_names()) if n)
        names |= dict.fromkeys([*kept, *given])
        self.place = {name: number for number, name in enumerate(names)}
        self.size = len(names) + 1
        self.stages = None  # what an operator made of them for what it was given last: (what, stages)
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
        """Return the list of all values, by place, after running the operators on some, by name."""
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
    """Return the names whose value an operator must not overwrite: several read it, or it may be another's memory.

    Only what a forward operator made for its own gradient is nobody else's; `assign` and others hand on what they got.
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
    """Return a function that returns the `Nested` of an index: one for all operators that run the block."""
    return functools.cache(functools.partial(Nested, desc, tables={}))


class Nested:
    """A block of a description, and the values that it is given.

    It reads its own variables only: those that no operator of it computes are its arguments.  A block of gradients also
    reads those of the block that it differentiates.

    Parameters
    ----------
    desc : ProgramDesc
    index : int
    tables : dict, optional
        What is known of the variables of blocks, by index, to be shared with other blocks of the description.
    """

    def __init__(self, desc, index, tables=None):
        self.desc, self.block = desc, desc.blocks[index]
        self._tables = {} if tables is None else tables
        # Made when asked for, without a lock, as `cached_property` of Python 3.11 takes: a fork would leave it locked.
        self._arguments = self._instructions = None
        self.lowered = {}  # what its operator made of it, by sizes that only a run tells: a cell, or why it is none

    def _table(self, index):
        if index not in self._tables:
            self._tables[index] = {var.name: of_var(var) for var in self.desc.blocks[index].vars}
        return self._tables[index]

    @property
    def nested(self):
        """Itself, as a block that is still being recorded has one."""
        return self

    @property
    def specs(self):
        """What is known of the variables that it may read, by name."""
        return ChainMap(self._table(self.block.idx), self.of_forward)

    @property
    def of_forward(self):
        """What is known of the variables of the block that it differentiates, by name; nothing, where there is none."""
        forward = self.block.forward_block_idx
        return self._table(forward) if forward >= 0 else {}

    @property
    def arguments(self):
        """The names of its own variables that it is given."""
        if self._arguments is None:
            computed = {name for op in self.block.ops for name in op.output_names()}
            self._arguments = [var.name for var in self.block.vars if var.name not in computed]
        return self._arguments

    def spec(self, name):
        """Return what is known of a variable, or raise if the block has none of this name."""
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
