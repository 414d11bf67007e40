"""The recorder collects the operators of a program block by block, and gives their inputs and outputs names.

Parameters, the states of optimizers and the learning rate are the program's *persistables*.  The program holds their
Variables, so running its updates trains the recorded model itself, on the host or a device.  All other arrays that the
recorded code uses become constants of the program.
"""

import contextlib

import numpy as np

from varlen_rnn.errors import InputError, ProgramError, shown
from varlen_rnn.program import attrs as constants
from varlen_rnn.program.desc import BlockDesc, OpDesc, ProgramDesc, Var, to_var
from varlen_rnn.program.feed import FEED_LIST
from varlen_rnn.program.instructions import Nested
from varlen_rnn.program.structure import A_NAME, is_name
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.tape.kinds import TYPES
from varlen_rnn.tape.modes import grad_enabled
from varlen_rnn.tape.operator import find
from varlen_rnn.tape.run import check_given
from varlen_rnn.tape.spec import Symbol, describe
from varlen_rnn.tape.variable import Variable, apply, as_variable


class Block:
    """Operators in the order in which they run, and Symbols (variables without values) of their inputs and outputs."""

    def __init__(self, recorder, parent=None, differentiates=None):
        self.recorder, self.parent, self.differentiates = recorder, parent, differentiates
        self.idx = len(recorder.blocks)
        self.symbols, self.ops, self._nested = [], [], None
        self.variables = {}  # arguments and results of a step, by name
        self.gradient = None  # the description of this step's gradient, once it exists
        self.captures = {}  # id of an outer Variable that a nested block reads: (the Variable, its stand-in inside)
        self._has_gradient = parent is not None and differentiates is None and grad_enabled()
        self._reached = {}  # {id of a symbol that a gradient reaches: its `detach`ed symbol, or None}
        recorder.blocks.append(self)

    def declare(self, name, spec):
        """Return a new Symbol of this block; raise if its name is taken or no description can hold its data type."""
        if spec.dtype is not None and spec.dtype not in TYPES:
            to_var(name, spec)  # raises here instead of later, when the description is made
        symbol = Symbol(self, None, spec)
        symbol.rename(name)
        self.symbols.append(symbol)
        return symbol

    def declare_outputs(self, names, specs):
        """Return new Symbols for names that the recorder made; such names are valid and seldom taken."""
        named = self.recorder.named
        if not named.keys().isdisjoint(names):
            self.recorder.claim(next(name for name in names if name in named), None)  # raises the error
        # Data types need no check as in `declare`: they come from checked inputs or from the operator itself.
        symbols = [Symbol(self, name, spec) for name, spec in zip(names, specs, strict=True)]
        named.update(zip(names, symbols, strict=True))
        self.symbols += symbols
        return symbols

    def capture(self, variable):
        """Return this block's stand-in for a Variable from outside, which becomes an input of the block's operator."""
        if id(variable) not in self.captures:
            self.captures[id(variable)] = (
                variable,
                self.take("captured", describe(variable.value), variable.requires_grad),
            )
        return self.captures[id(variable)][1]

    def argument(self, stem, variable, requires_grad, lod_level=0):
        """Return this block's stand-in, with `lod_level` levels, for one step's rows of a Variable from outside."""
        spec = describe(variable.value)
        return self.take(stem, spec._replace(shape=(-1, *spec.shape[1:]), lod_level=lod_level), requires_grad)

    def take(self, stem, spec, requires_grad=False):
        """Return a new argument of this block, a Variable described by `spec`."""
        variable = Variable(self.declare(self.recorder.fresh(stem), spec), requires_grad=requires_grad)
        if requires_grad and self._has_gradient:
            self._reached[id(variable.value)] = None
        return variable

    def stopped(self, op, variables):
        """Return the Symbols of an operator's inputs, after inserting a `detach` where the code stopped a gradient.

        `no_grad` is no operator, so without a `detach` the block would not show that a gradient stops.
        """
        symbols = [None if variable is None else variable.value for variable in variables]
        if self._has_gradient and op.type != "detach":
            for position, variable in enumerate(variables):
                if variable is not None and not variable.requires_grad and id(variable.value) in self._reached:
                    symbols[position] = self.stop(variable)
        return symbols

    def stop(self, variable):
        """Return the Symbol of a Variable of this block; insert a `detach` if the code stopped its gradient."""
        symbol = variable.value
        if variable.requires_grad or id(symbol) not in self._reached:
            return symbol
        if self._reached[id(symbol)] is None:
            self._reached[id(symbol)] = apply("detach", variable).value
        return self._reached[id(symbol)]

    def reach(self, op, symbols, outputs):
        """Remember that a gradient reaches the floating-point outputs if it reaches an input."""
        if self._has_gradient and op.type != "detach" and any(id(symbol) in self._reached for symbol in symbols):
            for symbol in outputs:
                if symbol.dtype is not None and symbol.dtype.kind == "f":
                    self._reached.setdefault(id(symbol), None)

    @property
    def nested(self):
        """The `Nested` of this block, which an operator runs; read it only after all operators are recorded."""
        if self._nested is None:
            described = _Described(self.recorder)
            if self.differentiates is not None:
                described[self.differentiates.idx]  # described now, because its results may be renamed later
            self._nested = Nested(described, self.idx)
        return self._nested

    def desc(self, persistables):
        """Return the description of this block."""
        variables = tuple(to_var(s.name, s.spec, s.name in persistables) for s in self.symbols)
        ops = tuple(_describe_op(*op) for op in self.ops)
        parent, forward = (-1 if block is None else block.idx for block in (self.parent, self.differentiates))
        return BlockDesc(self.idx, parent, variables, ops, forward)


class _Described:
    """The descriptions of a program's blocks, made when needed: to make all of them per block takes quadratic time."""

    def __init__(self, recorder):
        self._blocks, self._persistables, self._made = recorder.blocks, recorder.persistables, {}
        self.blocks = self

    def __getitem__(self, index):
        if index not in self._made:
            self._made[index] = self._blocks[index].desc(self._persistables)
        return self._made[index]


def _describe_op(op, inputs, outputs, attrs):
    names = [["" if symbol is None else symbol.name for symbol in symbols] for symbols in (inputs, outputs)]
    places = [tuple(Var(*pair) for pair in pairs) for pairs in op.by_place(*names, attrs)]
    return OpDesc(op.type, *places, constants.encode(op, attrs, lambda block: block.idx), op.precision or "fp32")


class Recorder:
    """Records one program: under `program_guard`, `apply` hands it operators instead of running them."""

    def __init__(self):
        self.blocks, self.persistables = [], {}  # `persistables`: {name: Variable}
        self._made, self._feeds = {}, []
        self.named = {}  # {name: Symbol} of all blocks; names are unique over blocks
        self._counts, self._suggested = {}, {}
        self._stand_ins = {}  # id of a caller's Variable: (the Variable, its stand-in in the program)
        self._modules = {}  # {id: module} whose parameters get its names once they are used
        self.current = Block(self)

    def claim(self, name, symbol):
        """Reserve a name for a Symbol, and return the name; raise if another Symbol has it."""
        if not is_name(name):
            raise ProgramError("name", expected=A_NAME, got=shown(name))
        if self.named.get(name, symbol) is not symbol:
            raise ProgramError(f"name {name!r}", expected="a new name", got="the name of another variable")
        old = symbol.name
        self.named.pop(old, None)
        if old in self.persistables:
            self.persistables = {name if key == old else key: v for key, v in self.persistables.items()}
        self.named[name] = symbol
        self._made = {}
        return name

    def fresh(self, stem):
        """Return the first of the names `stem`, `stem_1`, ... that is free."""
        number = self._counts.get(stem, -1) + 1
        while (name := f"{stem}_{number}" if number else stem) in self.named:
            number += 1
        self._counts[stem] = number
        return name

    def suggest(self, module):
        """Name a module's parameters in the program as the module names them, once they are used."""
        self._modules[id(module)] = module

    def meets(self, optimizer):
        """Take note of an optimizer whose step is recorded; a recorder of bound steps overrides this method."""

    def clears(self, parameters):
        """Take note of parameters whose gradients the recorded code clears; see `meets`."""

    def changes(self, change):
        """Take note of a change that Python code makes, and a run does not repeat; see `meets`."""

    def forget_modules(self):
        """Drop all modules that wait to name parameters, so that the recorder keeps none alive."""
        self._modules.clear()

    def _suggested_name(self, variable):
        for module in self._modules.values():
            for name, parameter in (*module.named_parameters(), *module.named_buffers()):
                self._suggested.setdefault(id(parameter), (name, parameter))
        self._modules.clear()
        return self._suggested.get(id(variable), (None,))[0]

    def admit(self, variable):
        """Return the program's stand-in for a caller's Variable; raise if it belongs to another program or block."""
        value, block = variable.value, self.current
        found = self._stand_ins.get(id(variable))
        if found is not None and block.parent is None:
            return found[1]
        if isinstance(value, Symbol):
            if value.block is block or value.block is block.differentiates:
                return variable
            if value.block.recorder is self and block.parent is None:
                got = "a variable of a step"
                raise ProgramError(f"variable {value.name!r}", expected="a variable of this block", got=got)
        if block.parent is not None and not _is_number(variable):
            return block.capture(variable)
        if isinstance(value, Symbol):
            got = "a variable of another program"
            raise ProgramError(f"variable {value.name!r}", expected="a variable of this program", got=got)
        if _is_number(variable):
            return apply("fill_constant", shape=(), value=value.data.item(), dtype=str(value.dtype))
        own = self._adopt(variable)
        self._stand_ins[id(variable)] = variable, own
        return own

    def leaves(self):
        """Return a dict from the names of persistables to the caller's Variables that they stand in for."""
        return {own.value.name: variable for variable, own in list(self._stand_ins.values())}

    def admit_all(self, op, inputs):
        """Return the program's stand-ins for an operator's inputs; None stays None."""
        # This does the same as `admit` for each input, but sooner: it calls no function for known Variables.
        known, admitted = self._stand_ins if self.current.parent is None else {}, []
        for given in inputs:
            if given is None:
                admitted.append(None)
            elif id(given) in known:
                admitted.append(known[id(given)][1])
            else:
                admitted.append(self.admit(as_variable(given)))
        if None in admitted:
            check_given(op, admitted)
        return admitted

    def _adopt(self, variable):
        value, persistable = variable.value, variable.persistable
        if variable.record is not None:
            hint = "compute it under program_guard, or detach() it to make it a constant"
            raise ProgramError("a variable computed outside of the program", hint=hint)
        if not isinstance(value, LoDTensor) or value.num_levels:
            hint = "declare it with vr.feed_data(name, shape, dtype, lod_level), and feed it"
            got = f"{type(value).__name__} of one batch"
            raise ProgramError("a constant of the program", expected="an array without LoD", got=got, hint=hint)
        name = variable.name or self._suggested_name(variable) or ("parameter" if persistable else "constant")
        symbol = self.blocks[0].declare(self.fresh(name), describe(value))
        # The program holds a Variable itself if a run can update it, but copies constants, which owners may change.
        flags = value.data.flags
        in_place = flags.c_contiguous and flags.writeable
        if persistable and not in_place:
            expected, hint = "an array that can be updated in place", "np.array(x, order='C') is one"
            got = "a strided or read-only array"
            raise ProgramError(f"persistable {name!r}", expected=expected, got=got, hint=hint)
        trains = persistable or (variable.requires_grad and in_place)
        self.persistables[symbol.name] = variable if trains else Variable(value.copy())
        return Variable(symbol, requires_grad=variable.requires_grad)

    def append(self, op, variables, attrs):
        """Describe an operator on Variables of this program; return the Symbols of its outputs."""
        symbols = self.current.stopped(op, variables)
        try:
            specs = op.specs([None if symbol is None else symbol.spec for symbol in symbols], attrs)
            if "index" in op.attrs.values():  # raises at once for an array of indices
                constants.encode(op, attrs, None)
        except InputError as error:
            given = [f"{op.input_name(k)} is {s.name!r}" for k, s in enumerate(symbols) if s is not None]
            raise type(error)(f"{error}; {', '.join(given)}") from error
        if op.in_place:
            outputs = [symbols[position] for position in op.in_place]
        else:
            stem = self.fresh(op.type)
            places = op.output_places(len(symbols), len(specs), attrs) if len(specs) > 1 else ()
            names = [f"{stem}.{place}" for place in places] or [stem] * len(specs)
            outputs = self.current.declare_outputs(names, specs)
        self._add(op, symbols, outputs, attrs)
        return outputs

    def _add(self, op, symbols, outputs, attrs):
        self.current.ops.append((op, symbols, outputs, attrs))
        self.current.reach(op, symbols, outputs)
        self._made = {}

    def feed(self, name, spec):
        """Declare a variable that is fed to each run; return its Symbol."""
        if self.current.parent is not None:
            got = "a call in a step of a recurrence"
            raise ProgramError(f"feed_data {name!r}", expected="a call outside of steps", got=got)
        if not self._feeds:
            self._feeds.append(self.current.declare("feed", FEED_LIST))
        symbol = self.current.declare(name, spec)
        self._add(find("feed"), [self._feeds[0]], [symbol], {"col": len(self._feeds) - 1})
        self._feeds.append(symbol)
        return symbol

    @contextlib.contextmanager
    def block(self, differentiates=None):
        """Record operators in a new block inside the `with` block: a step of a recurrence, or its gradient."""
        outer, self.current = self.current, Block(self, self.current, differentiates)
        first = self.current.idx
        try:
            yield self.current
        except BaseException:
            self.drop(first)
            raise
        finally:
            self.current = outer

    def drop(self, first):
        """Forget the blocks from `first` on, because their operator was not recorded."""
        for block in self.blocks[first:]:
            for symbol in block.symbols:
                self.named.pop(symbol.name, None)
        del self.blocks[first:]
        self._made = {}

    def desc(self) -> ProgramDesc:
        """Return the description of the program as far as it is recorded."""
        made = self._made  # each change of the program replaces this dict, so its description is complete
        if not made:
            made.setdefault("desc", ProgramDesc(tuple(block.desc(self.persistables) for block in self.blocks)))
        return made["desc"]


def _is_number(variable):
    """Return whether a Variable is a single float without a gradient, which the description itself can hold."""
    value = variable.value
    is_leaf = isinstance(value, LoDTensor) and not variable.persistable and not variable.requires_grad
    return is_leaf and value.shape == () and value.dtype in (np.float32, np.float64)
