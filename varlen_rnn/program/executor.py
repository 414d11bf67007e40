"""Running a program: the operators of its description one after another, on the same kernels as without one."""

from typing import NamedTuple

from varlen_rnn.errors import DTypeError, InputError, LoDError, ProgramError, ShapeError
from varlen_rnn.lod import LoDTensor
from varlen_rnn.program.attrs import decode
from varlen_rnn.program.block import VALUES, Variable, run
from varlen_rnn.program.desc import ProgramDesc
from varlen_rnn.program.feed import EDGES
from varlen_rnn.program.gradient import memory_of, own
from varlen_rnn.program.nested import Nested
from varlen_rnn.program.program import Program, names_of
from varlen_rnn.program.registry import Op, find
from varlen_rnn.program.spec import TensorSpec, describe, of_var


class Step(NamedTuple):
    """An operator over the places of its variables; a missing input stands at the last place, which is None."""

    op: Op
    attrs: dict
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    overwritten: tuple[int, ...]  # places whose value somebody else holds, so the operator gets a copy
    done: tuple[int, ...]  # places that nobody reads after it


class Steps:
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
        last = {name: number for number, op in enumerate(ops) for name in (*op.input_names(), *op.output_names())}
        not_ours = {*kept, *given, *_shared(ops)}
        self.steps = [self._step(desc, number, op, last, not_ours, kept) for number, op in enumerate(ops)]

    def _step(self, desc, number, op, last, not_ours, kept):
        kind, inputs, outputs = find(op.type), op.input_names(), op.output_names()
        attrs = decode(kind, op.attrs, lambda index: Nested(desc, index))
        used = () if kind.overwrites is None else kind.overwrites(len(inputs), **attrs)
        done = {name for name in (*inputs, *outputs) if name and last[name] == number and name not in kept}
        return Step(
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
        for op, attrs, inputs, outputs, overwritten, done in self.steps:
            given = [held[place] for place in inputs]
            for position in overwritten:
                given[position] = given[position].copy()
            try:
                results = run(op, given, attrs)
            except InputError:
                raise
            except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
                raise ProgramError(f"operator {op.type!r}", expected="inputs that fit", got=str(error)[:300]) from error
            for place, result in zip(outputs, results, strict=True):
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


class Executor:
    """Runs programs.

    Examples
    --------
    >>> import numpy as np
    >>> from varlen_rnn.program.recording import data, program_guard
    >>> with program_guard() as program:
    ...     x = data("x", shape=[-1, 2], dtype="float32")
    ...     y = x * 2.0
    >>> Executor().run(program, feed={"x": np.ones((1, 2), np.float32)}, fetch_list=[y])
    [array([[2., 2.]], dtype=float32)]

    Source: `fluid.Executor` of PaddlePaddle Fluid.
    """

    def run(self, program, feed=None, fetch_list=None):
        """Run all operators of a program; return the values of some variables.

        Updates change the program's persistables, in place.  A value is let go after the last operator that reads it.

        Parameters
        ----------
        program : Program
        feed : dict of str to LoDTensor or array
            A value for each of `program.feed_names`.
        fetch_list : list of Variables or str, optional
            By default `program.fetch_names`.

        Returns
        -------
        list
            An array, or a LoDTensor where there is a LoD, or SelectedRows, for each fetched variable; the caller's own.

        Raises
        ------
        ProgramError
            A feed that is missing or unknown, a name that the program does not have; nothing is run.
        LoDError, DTypeError, ShapeError
            A feed with another number of levels, data type or shape than declared; nothing is run.
        """
        if not isinstance(program, Program):
            raise DTypeError("run, program", expected="a Program", got=type(program).__name__)
        desc = program.desc
        names = None if fetch_list is None else tuple(names_of(desc, fetch_list, recorder=program.recorder))
        ready = program.prepared.get(names)
        if ready is None or ready.desc is not desc:  # the first run, or recorded further since
            program.prepared[names] = ready = _prepare(program, desc, names)
        fed = _checked_feeds(ready.feeds, {} if feed is None else feed)
        given = program.persistables | fed
        held, place = ready.steps.run(given), ready.steps.place
        # A view of a parameter would change at the next run, one of another fetch with what its user does to it.
        owned = {id(array): array for array in map(memory_of, given.values())}
        return [_fetched(own(held[place[name]], owned)) for name in ready.fetches]


class Ready(NamedTuple):
    """A program as it is run for some fetches."""

    desc: ProgramDesc
    steps: Steps
    feeds: dict[str, TensorSpec]
    fetches: tuple[str, ...]


def _prepare(program, desc, names):
    fetches = tuple(program.fetch_names) if names is None else names
    declared = {var.name: of_var(var) for var in desc.blocks[0].vars}
    feeds = {name: declared[name] for name in program.feed_names}
    steps = Steps(desc, desc.blocks[0], kept=[*fetches, *program.persistables], given=feeds)
    return Ready(desc, steps, feeds, fetches)


def _checked_feeds(declared, feed):
    """Return the fed values by name, each as declared."""
    if not isinstance(feed, dict):
        raise DTypeError("feed", expected="a dict of name to value", got=type(feed).__name__)
    if feed.keys() != declared.keys():
        missing, unknown = [n for n in declared if n not in feed], [n for n in feed if n not in declared]
        expected = f"a value for {missing}" if missing else f"only {list(declared)}"
        raise ProgramError("feed", expected=expected, got=f"unknown {unknown}" if unknown else "none")
    return {name: _checked_feed(name, feed[name], spec) for name, spec in declared.items()}


def _checked_feed(name, value, spec):
    value = value.value if isinstance(value, Variable) else value
    try:
        value = value if isinstance(value, VALUES) else LoDTensor(value)
    except InputError as error:
        raise type(error)(f"feed {name!r}, {error}") from error
    given = describe(value)
    if given.kind != spec.kind:
        raise DTypeError(f"feed {name!r}", expected=f"a {spec.kind.name}", got=f"a {given.kind.name}")
    if given.lod_level != spec.lod_level:
        hint = "give the rows their lengths with create_lod_tensor" if spec.lod_level else None
        raise LoDError(f"feed {name!r}", expected=f"{spec.lod_level} levels", got=given.lod_level, hint=hint)
    if given.dtype != spec.dtype:
        hint = "data types are never mixed silently: use astype"
        raise DTypeError(f"feed {name!r}", expected=spec.dtype, got=given.dtype, hint=hint)
    fits = len(given.shape) == len(spec.shape) and all(
        want in (-1, size) for size, want in zip(given.shape, spec.shape, strict=True)
    )
    if not fits:
        raise ShapeError(f"feed {name!r}", expected=f"shape {list(spec.shape)}", got=list(given.shape))
    return value


def _fetched(value):
    """Return a value as its user expects it: an array where there is no LoD."""
    return value.data if isinstance(value, LoDTensor) and not value.num_levels else value
