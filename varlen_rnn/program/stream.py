"""`ProgramStream`, a program that carries states from one row of each sequence to the next."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from varlen_rnn.errors import DTypeError, OutOfRangeError, ProgramError, ShapeError, check_int, shown
from varlen_rnn.program.desc import of_var
from varlen_rnn.program.executor import Executor
from varlen_rnn.program.program import Program
from varlen_rnn.rows.checks import as_indices, as_rows
from varlen_rnn.rows.lod import LoD, LoDTensor
from varlen_rnn.runtime.forks import turn


class ProgramStream:
    """A program whose states are stored between calls, with a slot for each of several streams.

    Each call takes the next row of each stream, or of some, such as a frame of audio.  `reset` starts a new stream in a
    slot.  Later changes of the program's persistables have no effect.  A stream has the same results as alone, as long
    as the program does not mix rows.  Calls from several threads run one after another.

    Parameters
    ----------
    program : Program
    states : dict of str to str
        For each feed that is a state, the fetch with the state after the row.  Exactly one size of such a feed is
        unknown: its axis runs over streams.  States begin as zeros.
    num_sequences : int
        The number of slots.

    Raises
    ------
    ProgramError
        If the program lacks a feed or a fetch, or a state does not have exactly one unknown size.

    Examples
    --------
    >>> from varlen_rnn.program.guard import feed_data, program_guard
    >>> with program_guard() as program:
    ...     total = feed_data("row", [-1, 2], "float32") + feed_data("state", [-1, 2], "float32")
    ...     total.name = "total"
    >>> stream = ProgramStream(program.prune([total]), {"state": "total"}, num_sequences=3)
    >>> [stream({"row": np.ones((3, 2), np.float32)}) for _ in range(2)][-1], stream.states["state"][:, 0]
    ([], array([2., 2., 2.], dtype=float32))
    """

    def __init__(self, program: Program, states: Mapping[str, str], num_sequences: int = 1) -> None:
        if not isinstance(program, Program) or not isinstance(states, Mapping):
            got = f"{type(program).__name__}, {type(states).__name__}"
            raise DTypeError("stream, states", expected="a Program, and a dict of feed to fetch", got=got)
        self.num_sequences = check_int(num_sequences, "stream, num_sequences", 1)
        feeds, fetches, declared = program.feed_names, program.fetch_names, program.desc.blocks[0].vars
        specs = {var.name: of_var(var) for var in declared if var.name in feeds}
        for feed, fetch in states.items():
            if feed not in feeds or fetch not in fetches:
                raise ProgramError("stream, states", expected=f"of {feeds} to {fetches}", got=f"{feed!r}: {fetch!r}")
            if specs[feed].shape.count(-1) != 1 or specs[feed].lod_level:
                hint = "onnx.load(path, fixed={...: (2, None, 128)}) frees a size that a model declares"
                got = list(specs[feed].shape)
                raise ProgramError(f"stream, state {feed!r}", expected="exactly one unknown size", got=got, hint=hint)
        self._program, self._next, self._names = program.frozen(), dict(states), fetches
        self._fed = [name for name in feeds if name not in states]
        self._levels = {name: specs[name].lod_level for name in self._fed}
        self._axes = {name: specs[name].shape.index(-1) for name in states}
        sizes = {name: [num_sequences if size == -1 else size for size in specs[name].shape] for name in states}
        self._states = {name: np.zeros(sizes[name], specs[name].dtype) for name in states}
        self._all, self._turn = np.arange(num_sequences), turn()
        self._lods: dict[tuple[int, int], LoD] = {}  # by levels and sequences

    def __deepcopy__(self, memo: dict[int, Any]) -> ProgramStream:
        """Return an independent stream of the same program that continues from the same states."""
        made = copy.copy(self)
        made._turn, made._states = turn(), self.states
        return made

    def __call__(self, rows: Mapping[str, ArrayLike], at: Sequence[int] | np.ndarray | None = None) -> list[np.ndarray]:
        """Return the outputs for the next row of each stream, or of the streams in the slots `at`.

        Parameters
        ----------
        rows : dict of str to array
            A value for each feed that is no state.  A feed of sequences takes one row per stream.
        at : sequence of int, optional
            The slot of each row, all different; by default, row i goes to slot i.

        Returns
        -------
        list of arrays
            The program's fetches, without the states.

        Raises
        ------
        ProgramError, DTypeError, ShapeError, OutOfRangeError
            If a feed is missing or does not fit, or a slot does not exist or occurs twice; the states stay unchanged.
        """
        if not isinstance(rows, Mapping):
            raise DTypeError("stream, rows", expected="a dict of feed to array", got=type(rows).__name__)
        slots = self._all if at is None else self._slots(at)
        fed = {name: self._row(name, value, len(slots)) for name, value in rows.items()}
        with self._turn:
            held = {
                name: state if at is None else state.take(slots, self._axes[name])
                for name, state in self._states.items()
            }
            found = dict(zip(self._names, Executor().run(self._program, fed | held), strict=True))
            later = {name: np.asarray(found[fetch]) for name, fetch in self._next.items()}
            for name, value in later.items():
                if value.shape != held[name].shape or value.dtype != held[name].dtype:
                    expected, got = f"shape {held[name].shape}", f"{value.dtype} {value.shape}"
                    raise ShapeError(f"stream, {self._next[name]!r}", expected=expected, got=got)
            for name, value in later.items():
                self._states[name][... if at is None else self._at(name, slots)] = value
        carried = set(self._next.values())
        return [np.asarray(value) for name, value in found.items() if name not in carried]

    def _row(self, name: str, value: Any, count: int) -> Any:
        if not self._levels.get(name):
            return value
        levels = self._levels[name]
        if np.shape(value)[:1] != (count,):
            expected = f"{count} rows, one for each stream"
            raise ShapeError(f"stream, {name!r}", expected=expected, got=list(np.shape(value)))
        lod = self._lods.get((levels, count))  # one LoD keeps its plan
        lod = lod or self._lods.setdefault((levels, count), LoD([np.arange(count + 1)] * levels))
        return LoDTensor(np.asarray(value), lod)

    def _at(self, name: str, slots: np.ndarray) -> Any:
        return (*[slice(None)] * self._axes[name], slots)

    def _slots(self, at: Any) -> np.ndarray:
        slots = as_indices(at, self.num_sequences, "stream, at")
        if len(set(slots.tolist())) < len(slots):
            raise OutOfRangeError("stream, at", expected="slots that differ", got=shown(at))
        return slots

    def reset(
        self, slots: Sequence[int] | np.ndarray | None = None, states: Mapping[str, ArrayLike] | None = None
    ) -> None:
        """Start new streams in the given slots, or in all slots.

        Parameters
        ----------
        slots : sequence of int, optional
            Different slots; all slots by default.
        states : dict of str to array, optional
            Initial states by the name of the feed, with as many streams as slots; a missing state is zeros.

        Raises
        ------
        ProgramError, ShapeError, OutOfRangeError
            If there is no such state, its shape or data type is another one, or a slot does not exist or occurs twice.
        """
        places, given = self._all if slots is None else self._slots(slots), {}
        if states is not None and (not isinstance(states, Mapping) or not states.keys() <= self._states.keys()):
            raise ProgramError("stream, reset, states", expected=f"of {list(self._states)}", got=shown(states))
        for name, value in (states or {}).items():
            given[name], state = as_rows(value, f"stream, reset, {name!r}"), self._states[name]
            shape = tuple(len(places) if axis == self._axes[name] else size for axis, size in enumerate(state.shape))
            if given[name].shape != shape or given[name].dtype != state.dtype:
                expected, got = f"{state.dtype} {shape}", f"{given[name].dtype} {given[name].shape}"
                raise ShapeError(f"stream, reset, {name!r}", expected=expected, got=got)
        with self._turn:
            for name, state in self._states.items():
                state[self._at(name, places)] = given.get(name, 0)

    @property
    def states(self) -> dict[str, np.ndarray]:
        """Copies of the states of all slots, by the name of the feed."""
        with self._turn:
            return {name: state.copy() for name, state in self._states.items()}


Program.stream_type = ProgramStream
