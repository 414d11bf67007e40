"""The executor runs the operators of a program one after another, on the same kernels as eager mode."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from varlen_rnn.errors import DTypeError, InputError, LoDError, PlaceError, ProgramError, ShapeError, count
from varlen_rnn.program.binding import Binding
from varlen_rnn.program.desc import ProgramDesc, of_var
from varlen_rnn.program.instructions import Instructions
from varlen_rnn.program.program import Program, names_of
from varlen_rnn.random import next_step
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.runtime import device_array
from varlen_rnn.tape.kinds import LOD_TENSOR
from varlen_rnn.tape.operator import find
from varlen_rnn.tape.places import place_of_value
from varlen_rnn.tape.spec import VALUES, Symbol, TensorSpec, Value, describe, sizes_fit
from varlen_rnn.tape.values import memory_of, own, plain
from varlen_rnn.tape.variable import Variable

_MOST_PREPARED = 16  # lists of fetches whose instructions a program keeps


class Executor:
    """Runs programs.

    Examples
    --------
    >>> import numpy as np
    >>> from varlen_rnn.program.guard import feed_data, program_guard
    >>> with program_guard() as program:
    ...     x = feed_data("x", shape=[-1, 2], dtype="float32")
    ...     y = x * 2.0
    >>> Executor().run(program, feed={"x": np.ones((1, 2), np.float32)}, fetch_list=[y])
    [array([[2., 2.]], dtype=float32)]

    Source: `fluid.Executor` of PaddlePaddle Fluid.
    """

    def run(
        self, program: Program, feed: dict[str, Any] | None = None, fetch_list: Iterable[Variable | str] | None = None
    ) -> list[np.ndarray | Any]:
        """Run all operators of a program; return the values of the fetched variables.

        Updates change the program's persistables in place, and with them the parameters of the recorded model.  Then
        `backward` from values that were computed with the old parameters is an error.  If an operator raises, earlier
        updates are kept.  A value is released after the last operator that reads it.

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
            For each fetched variable an array, a LoDTensor if it has a LoD, or SelectedRows.  They belong to the
            caller, and are on the device of the program: `program.to("cuda")` moves it.

        Raises
        ------
        ProgramError
            If a feed is missing or unknown, or the program does not have a fetched name; nothing is run.
        LoDError, DTypeError, ShapeError, PlaceError
            If a feed has another number of levels, data type or shape than declared, or is not where the program is;
            nothing is run.
        """
        if not isinstance(program, Program):
            raise DTypeError("run, program", expected="a Program", got=type(program).__name__)
        ready = ready_of(program, fetch_list)
        fed = _checked_feeds(ready.feeds, {} if feed is None else feed)
        if device_array.in_use:
            _check_places(program, fed)
        return run_ready(ready, fed)


class Ready(NamedTuple):
    """The instructions of a program for one list of fetches."""

    desc: ProgramDesc  # the description that was prepared
    instructions: Instructions
    feeds: dict[str, TensorSpec]
    fetches: tuple[str, ...]
    updates: bool  # whether a run updates persistables
    binding: Binding


def run_ready(ready: Ready, fed: Mapping[str, Value]) -> list[np.ndarray | Any]:
    """Run prepared instructions on feeds that were checked; return the fetches."""
    results = ready.binding.run(fed, functools.partial(_execute, ready))
    if ready.updates:
        next_step()
    return results


def ready_of(program: Program, fetch_list: Iterable[Variable | str] | None) -> Ready:
    """Return the prepared instructions for a list of fetches; raise unless the program has them."""
    desc, names = program.desc, None
    if fetch_list is not None:
        known = _names_if_known(fetch_list, program.recorder)
        if known is not None and (ready := program.prepared.get(known)) is not None and ready.desc is desc:
            return ready
        names = tuple(names_of(desc, fetch_list, recorder=program.recorder))
    ready = program.prepared.get(names)
    if ready is None or ready.desc is not desc:  # the first run, or more operators were recorded meanwhile
        if len(program.prepared) >= _MOST_PREPARED:
            program.prepared.clear()
        program.prepared[names] = ready = _prepare(program, desc, names)
    return ready


def _names_if_known(fetch_list: Iterable[Variable | str], recorder: Any) -> tuple[str, ...] | None:
    """Return the names of fetches that are names or Variables of the recorder; None if others are among them."""
    names = []
    for variable in fetch_list if type(fetch_list) in (list, tuple) else [None]:
        value = getattr(variable, "value", None)
        if type(value) is Symbol and value.block.recorder is recorder:
            names.append(value.name)
        elif type(variable) is str:
            names.append(variable)
        else:
            return None
    return tuple(names)


def _execute(ready: Ready, given: dict[str, Value]) -> list[np.ndarray | Any]:
    """Run the operators; return the fetches."""
    held, place = ready.instructions.run(given), ready.instructions.place
    if not ready.fetches:
        return []
    # A fetch that shares memory with a parameter or another fetch is copied, since either may change later.
    owned = {id(array): array for array in map(memory_of, given.values())}
    return [plain(own(held[place[name]], owned)) for name in ready.fetches]


def _prepare(program: Program, desc: ProgramDesc, names: tuple[str, ...] | None) -> Ready:
    fetches = tuple(program.fetch_names) if names is None else names
    declared = {var.name: of_var(var) for var in desc.blocks[0].vars}
    feeds = {name: declared[name] for name in program.feed_names}
    instructions = Instructions(desc, desc.blocks[0], kept=[*fetches, *program.persistables], given=feeds)
    updates = [op for op in desc.blocks[0].ops if find(op.type).in_place]
    updated = tuple(dict.fromkeys(name for op in updates for name in op.output_names()))
    binding = Binding(instructions, fetches, updated, program.variables, program.is_frozen)
    return Ready(desc, instructions, feeds, fetches, bool(updated), binding)


def _checked_feeds(declared: dict[str, TensorSpec], feed: dict[str, Any]) -> dict[str, Value]:
    if not isinstance(feed, dict):
        raise DTypeError("feed", expected="a dict of name to value", got=type(feed).__name__)
    if feed.keys() != declared.keys():
        missing, unknown = [n for n in declared if n not in feed], [n for n in feed if n not in declared]
        expected = f"a value for {missing}" if missing else f"only {list(declared)}"
        raise ProgramError("feed", expected=expected, got=f"unknown {unknown}" if unknown else "none")
    return {name: _checked_feed(name, feed[name], spec) for name, spec in declared.items()}


def _check_places(program: Program, fed: dict[str, Value]) -> None:
    """Raise unless persistables and feeds are in one place; single numbers on the host go with any place."""
    found = {name: place_of_value(value) for name, value in program.persistables.items()}
    first = {place: name for name, place in reversed(found.items()) if place is not None}  # a name for each place
    if len(first) > 1:
        got = ", ".join(f"{name!r} on {place}" for place, name in first.items())
        raise PlaceError("program", expected="one place", got=got, hint="program.to('cuda') moves all of it")
    for name, value in fed.items():
        place = place_of_value(value)
        if first and place is not None and place not in first:
            (wanted,) = first
            expected, hint = f"values on {wanted}, where the program is", f"x.to({str(wanted)!r}) copies them"
            raise PlaceError(f"feed {name!r}", expected=expected, got=f"values on {place}", hint=hint)


def _checked_feed(name: str, value: Any, spec: TensorSpec) -> Value:
    if type(value) is np.ndarray and not spec.lod_level and spec.kind == LOD_TENSOR:  # as most, so not described
        if value.dtype == spec.dtype and sizes_fit(value.shape, spec.shape):
            return LoDTensor.wrap(value)
    value = value.value if isinstance(value, Variable) else value
    try:
        value = value if isinstance(value, VALUES) else LoDTensor(value)
    except InputError as error:
        raise type(error)(f"feed {name!r}, {error}") from error
    given = describe(value)
    if given.kind != spec.kind:
        raise DTypeError(f"feed {name!r}", expected=f"a {spec.kind.name}", got=f"a {given.kind.name}")
    if given.lod_level != spec.lod_level:
        hint = "give the rows their lengths with create_lod_tensor" if given.lod_level < spec.lod_level else None
        expected = count(spec.lod_level, "level")
        raise LoDError(f"feed {name!r}", expected=expected, got=given.lod_level, hint=hint)
    if given.dtype != spec.dtype:
        hint = "data types are never mixed silently: x.astype(dtype) converts"
        raise DTypeError(f"feed {name!r}", expected=spec.dtype, got=given.dtype, hint=hint)
    if not sizes_fit(given.shape, spec.shape):
        raise ShapeError(f"feed {name!r}", expected=f"shape {list(spec.shape)}", got=list(given.shape))
    return value
