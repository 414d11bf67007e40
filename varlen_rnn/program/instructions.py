"""Instructions: the operators of a block, prepared to run.  A nested block runs once for each time step."""

import functools
import operator
from collections import ChainMap
from typing import Any, NamedTuple

from varlen_rnn.errors import ProgramError
from varlen_rnn.program.attrs import decode
from varlen_rnn.program.checked import Trace
from varlen_rnn.program.desc import of_var
from varlen_rnn.program.feed import EDGES
from varlen_rnn.tape.operator import Op, find
from varlen_rnn.tape.run import run

_MOST_CHECKED = 8  # ways through `infer` that a block remembers


class Instruction(NamedTuple):
    """An operator whose inputs and outputs are positions in a list of values; a missing input is the last one, None."""

    op: Op
    attrs: dict  # the operator's constants
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    overwritten: tuple[int, ...]  # inputs that the operator overwrites but others use: it gets copies
    done: tuple[int, ...]  # positions that no later instruction reads

    def taken(self, held):
        """Return the operator's inputs, given the list of values."""
        values = [held[place] for place in self.inputs]
        for position in self.overwritten:
            values[position] = values[position].copy()
        return values

    def put(self, held, results):
        """Put the operator's results into the list of values, and release those that no later instruction reads."""
        for place, result in zip(self.outputs, results, strict=True):
            held[place] = result
        for place in self.done:
            held[place] = None


class Instructions:
    """The operators of one block, prepared to run: each variable has a position in a list of values.

    The variables `kept` are not released during a run, and the values of the variables `given` belong to the caller.
    """

    def __init__(self, desc, block, kept, given):
        """`given` maps the names of the arguments to their specs."""
        ops = _with_late_updates([op for op in block.ops if op.type not in EDGES])
        names = dict.fromkeys(n for op in ops for n in (*op.input_names(), *op.output_names()) if n)
        names |= dict.fromkeys([*kept, *given])
        self.place = {name: number for number, name in enumerate(names)}
        self.size = len(names) + 1
        self.stages = None  # the Stages of the last run of this block as a step, and the specs that they were made for
        last = {name: number for number, op in enumerate(ops) for name in (*op.input_names(), *op.output_names())}
        not_ours = {*kept, *given, *_shared(ops)}
        nested = nested_blocks(desc)
        self._declared = {self.place[name]: spec for name, spec in given.items()}
        self._checked = []  # a Checked for each way through `infer` that runs took
        self.all = [self._instruction(nested, number, op, last, not_ours, kept) for number, op in enumerate(ops)]

    def _instruction(self, nested, number, op, last, not_ours, kept):
        kind, inputs, outputs = find(op.type).at(op.precision), op.input_names(), op.output_names()
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
        """Run the operators on `values`, a dict by name; return the list of all values by position."""
        held = [None] * self.size
        for name, value in values.items():
            held[self.place[name]] = value
        for checked in self._checked:
            if (begun := checked.begin(held)) is not None:
                self._run_on(held, checked.run(held, *begun))
                return held
        if len(self._checked) < _MOST_CHECKED:
            self._trace(held)
        else:
            self._run_on(held, 0)
        return held

    def _run_on(self, held, first):
        """Run the operators from number `first` on, each with all checks."""
        for instruction in self.all[first:]:
            instruction.put(held, run(instruction.op, instruction.taken(held), instruction.attrs))

    def _trace(self, held):
        """Run the operators with all checks, and keep the findings for later runs."""
        trace = Trace(held, self._declared)
        for instruction in self.all:
            trace.run(instruction, held)
        self._checked = [trace.end(), *self._checked]  # at once, because other threads may run the block


def _with_late_updates(ops):
    """Return the operators in an order in which each update comes as late as it can.

    An operator that raises then leaves no persistable changed, where eager steps have moved the moments of BatchNorm.

    A value that can have the memory of an updated variable is read before or after the update, as it was recorded.
    """
    order: list[Any] = []
    updates: list[Any] = []
    updated = dict.fromkeys(name for op in ops if find(op.type).in_place for name in op.output_names())
    memory = {name: 1 << number for number, name in enumerate(updated)}  # a bit for each updated variable
    read, written = set[str](), 0
    for op in ops:
        kind, inputs, outputs = find(op.type), op.input_names(), op.output_names()
        is_update = bool(kind.in_place)
        can_share = functools.reduce(operator.or_, [memory.get(name, 0) for name in (*inputs, *outputs)], 0)
        if not is_update and (can_share & written or not read.isdisjoint(outputs)):
            order += updates  # the operator needs their results, or changes their inputs
            updates, read, written = [], set(), 0
        if is_update:
            read |= set(inputs)
            written |= functools.reduce(operator.or_, [memory[name] for name in outputs])
        else:
            memory |= dict.fromkeys(outputs, can_share if kind.shares else 0)
        (updates if is_update else order).append(op)
    return order + updates


def _shared(ops):
    """Return the names whose values an operator must not overwrite: other operators read them, or share their memory.

    An operator can overwrite a value only if it is the gradient of the operator that made the value, and alone reads
    it: an operator such as `assign` returns the memory of its input.
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
    """Return a function from a block's index to its `Nested`, which all operators that run the block share."""
    return functools.cache(functools.partial(Nested, desc, tables={}))


class Nested:
    """A nested block.  It reads only its own variables; those that none of its operators computes are its arguments.

    A block of gradients also reads the variables of the block that it differentiates.  `tables` has the specs of each
    block's variables by name; all nested blocks of the description share it.
    """

    def __init__(self, desc, index, tables=None):
        self.desc, self.block = desc, desc.blocks[index]
        self._tables = {} if tables is None else tables
        # No `cached_property`: in Python 3.11 it takes a lock, which a fork could leave locked.
        self._arguments = self._instructions = None
        self.lowered = {}  # {sizes known only in a run: the cell compiled from this block, or why there is none}

    def _table(self, index):
        if index not in self._tables:
            self._tables[index] = {var.name: of_var(var) for var in self.desc.blocks[index].vars}
        return self._tables[index]

    @property
    def nested(self):
        """Return self, so that callers can write `block.nested` for a recorded block and for a block from a file."""
        return self

    @property
    def specs(self):
        """The specs of the variables that the block can read, by name."""
        return ChainMap(self._table(self.block.idx), self.of_forward)

    @property
    def of_forward(self):
        """The specs of the variables of the block that it differentiates, by name; empty if there is no such block."""
        forward = self.block.forward_block_idx
        return self._table(forward) if forward >= 0 else {}

    @property
    def arguments(self):
        """The names of the block's arguments: its variables that none of its operators computes."""
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
        """The block's operators, prepared to run."""
        if self._instructions is None:
            names = [var.name for var in self.block.vars]
            self._instructions = Instructions(self.desc, self.block, kept=names, given=dict(self.specs))
        return self._instructions
