"""Export a program for inference as a C library, which needs no Python."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from varlen_rnn.c_library import files, self_test
from varlen_rnn.c_library.counts import Counts, counts_of
from varlen_rnn.c_library.cover import Part, cover
from varlen_rnn.c_library.runs import dry_run, roles_of
from varlen_rnn.c_library.source import Expressions, Names, Source, Weights, identifier, unused
from varlen_rnn.errors import InputError, ProgramError
from varlen_rnn.program.boxes import sizes_of
from varlen_rnn.program.desc import of_var
from varlen_rnn.program.executor import Executor
from varlen_rnn.program.instructions import Instructions
from varlen_rnn.program.program import Program
from varlen_rnn.program.replay import Ran
from varlen_rnn.rows.lod import NO_LOD, LoD, LoDTensor, rows_of
from varlen_rnn.runtime.cache.level import HOST_LEVEL, LEVELS
from varlen_rnn.runtime.device import moved
from varlen_rnn.runtime.numba_internals import object_of
from varlen_rnn.runtime.place import HOST
from varlen_rnn.runtime.placeholder import Unbound
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.whole_file import write_file

_OF_PYTHON = re.compile(r"NRT_|numba|_?Py")  # names of functions that only a process with Numba has
# The features of processors that GCC and Clang can ask for, among LLVM's names.
_ASKED = frozenset("avx avx2 bmi bmi2 fma popcnt sse4.2 avx512bw avx512cd avx512dq avx512f avx512vl".split())


def export(program: Program, folder: Path, states: Mapping[str, str]) -> None:
    """Write a C library that runs a program for inference to a folder.

    Parameters
    ----------
    program : Program
        A program with `fetch_names`, such as a pruned or a loaded one.
    folder : path
        Created if it does not exist; files with the same names are replaced.  Its name, which must be a name in C, is
        the begin of all names of the library.
    states : dict of str to str
        For each feed that is a state of a stream, the fetch with the state after a row.

    Raises
    ------
    ProgramError
        If an operator cannot run without Python, or its products are in bfloat16; the error names it.
    """
    _Export(program, folder, states).write()


class _Export:
    def __init__(self, program: Program, folder: Path, states: Mapping[str, str]) -> None:
        self._folder, self._prefix, self._states = folder, folder.name, dict(states)
        if identifier(f"{self._prefix}_") != f"{self._prefix}_" or self._prefix == "main":
            hint = "all names of the library begin with the folder's name, and main.c is its test"
            raise InputError("export, c", expected="a folder whose name is a name in C", got=str(folder), hint=hint)
        if HOST_LEVEL is None:
            hint = "a library holds code for a level, such as x86-64-v3"
            raise InputError("export", expected="a processor of a known level", got="another one", hint=hint)
        fetches = program.fetch_names
        if not fetches:
            hint = "save_inference_model and Program.prune set the fetches"
            raise ProgramError("export", expected="a program that has fetches", got="none", hint=hint)
        self._program = program.prune(fetches)
        block = self._program.desc.blocks[0]
        _check_precisions(self._program)
        specs = {var.name: of_var(var) for var in block.vars}
        self._feeds: dict[str, TensorSpec] = {name: specs[name] for name in self._program.feed_names}
        self._dtypes = {name: np.dtype(spec.dtype) for name, spec in self._feeds.items()}
        self._fetches = list(self._program.fetch_names)
        self._persistables = {name: _array(name, value) for name, value in self._program.persistables.items()}
        kept = [*self._fetches, *self._persistables]
        self._instructions = Instructions(self._program.desc, block, kept=kept, given=self._feeds)

    def _run(self, structure: Any, counts: tuple[int, ...]) -> Ran:
        return dry_run(self._instructions, self._persistables, self._dtypes, self._fetches, structure, counts)

    def write(self) -> None:
        """Make everything, and then write the files."""
        try:
            counts = counts_of(self._feeds, self._run)
            parts = list(cover(counts.box, functools.partial(self._run, counts.structure)))
        except Unbound as refused:
            hint = "a library has the operators that run without Python"
            raise ProgramError("export", expected="operators that can be bound", got=str(refused), hint=hint) from None
        whole = max(parts, key=lambda part: part.box.lowest)
        fields, roles = _fields(counts, self._feeds, whole, self._fetches)
        self._check_states(fields)
        weights = Weights()
        source = Source(Names(self._prefix, counts.names, roles), weights, self._persistables)
        for part in parts:
            source.add(part, roles_of(part.ran, self._persistables, self._fetches))
        level = LEVELS[HOST_LEVEL]
        content, missing = object_of(level.cpu, source.codes)
        for name, functions in missing.items():
            python = [one for one in functions if _OF_PYTHON.match(one) and one not in files.RUNTIME]
            if python:
                does = "allocates memory" if python[0].startswith("NRT_MemInfo_alloc") else f"calls {python[0]}"
                got = f"operator {source.operators[name]!r}, whose kernel {name} {does}"
                hint = "fetch what the operator takes, and prune the program to it"
                raise ProgramError("export", expected="kernels that need no Python", got=got, hint=hint)
        features = tuple(one for one in level.features if one in _ASKED)
        most = dict(zip(counts.names, counts.box.highest, strict=True))
        runtime = tuple(one for one in files.RUNTIME if any(one in functions for functions in missing.values()))
        library = files.Library(self._prefix, most, fields, self._states, features, runtime)
        texts = {
            f"{self._prefix}.h": files.header(library),
            f"{self._prefix}.c": files.source(library, source) + self._self_test(library, counts),
            f"{self._prefix}_weights.S": files.weights(self._prefix),
            "Makefile": files.makefile(self._prefix),
            "main.c": self_test.main(self._prefix),
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        write_file(self._folder / f"{self._prefix}_kernels.o", content)
        write_file(self._folder / f"{self._prefix}_weights.bin", bytes(weights.content))
        for name, text in texts.items():
            write_file(self._folder / name, text.encode())

    def _check_states(self, fields: list[files.Field]) -> None:
        """Raise unless each state is a feed with an axis of streams, and a fetch has the state after a row."""
        found = {field.feed: field for field in fields if field.ends is None}
        for feed, fetch in self._states.items():
            if feed not in self._feeds or fetch not in self._fetches:
                expected, got = f"one of {list(self._feeds)}={self._fetches}", f"{feed}={fetch}"
                raise InputError("export, state", expected=expected, got=got)
            if self._feeds[feed].shape.count(-1) != 1:
                got = list(self._feeds[feed].shape)
                raise InputError(f"export, state {feed}", expected="exactly one unknown size, of streams", got=got)
            if found[feed][1:3] != found[fetch][1:3]:
                expected, got = (f"{found[one].dtype} {found[one].shape}" for one in (feed, fetch))
                raise InputError(f"export, state {feed}={fetch}", expected=expected, got=got)

    def _self_test(self, library: files.Library, counts: Counts) -> str:
        """Return the source of a test of a batch whose size all counts allow, with the results of the Executor."""
        number = np.random.default_rng(0)
        size = 3
        arrays: dict[Any, np.ndarray] = {}
        feeds, lods = {}, {}
        sizes = sizes_of(counts.structure, counts.box.counts_at((size,) * len(counts.names)))
        for (name, dtype), (shape, own, _) in zip(self._dtypes.items(), sizes, strict=True):
            values = number.standard_normal(shape) if dtype.kind == "f" else np.zeros(shape)
            arrays[name] = values.astype(dtype)
            if own:
                levels = [np.arange(count + 1) for count in own]
                levels[-1] = np.array([0, 2, 2, 3])
                lods[name] = LoD(levels)
                arrays |= {(name, level): offsets for level, offsets in enumerate(levels)}
            feeds[name] = LoDTensor.wrap(arrays[name], lods.get(counts.like.get(name, name), NO_LOD))
        results = Executor().run(self._program, feeds, self._fetches)
        arrays |= {name: np.asarray(value) for name, value in zip(self._fetches, results, strict=True)}
        content, level = {}, dict.fromkeys(self._feeds, 0)
        for field in library.fields:
            key: Any = field.feed
            if field.ends is not None:
                key = field.feed, level[field.feed]
                level[field.feed] += 1
            content[field.name] = arrays[key]
        return self_test.source(library, [size] * len(counts.names), content)


def _check_precisions(program: Program) -> None:
    """Raise if an operator's products are in bfloat16, whose kernels follow the host instead of a level."""
    for op in (op for block in program.desc.blocks for op in block.ops):
        if op.precision.startswith("bf16"):
            got, hint = f"{op.type!r} in {op.precision!r}", "record the program at the precision 'fp32'"
            raise ProgramError("export, c", expected="products in 'fp32'", got=got, hint=hint)


def _array(name: str, value: Any) -> np.ndarray:
    if type(value) is not LoDTensor or value.structure is not NO_LOD:
        raise ProgramError(f"export, {name!r}", expected="an ordinary array", got=type(value).__name__)
    return np.ascontiguousarray(moved(rows_of(value), HOST))


def _fields(
    counts: Counts, declared: Mapping[str, TensorSpec], part: Part, fetches: list[str]
) -> tuple[list[files.Field], dict[tuple, str]]:
    """Return the arrays of a batch, and the name of the array for each role of a slot."""
    fields: list[files.Field] = []
    roles: dict[tuple, str] = {}
    taken = {"streams", *counts.names}

    def add(role, text, dtype, shape, **others):
        name = unused(identifier(text), taken)
        taken.add(name)
        roles[role] = name
        fields.append(files.Field(name, np.dtype(dtype), shape, role[1], **others))

    for feed, spec in declared.items():
        if counts.like.get(feed) == feed:
            names = counts.levels(feed)
            for level, (count, end) in enumerate(itertools.pairwise(names)):
                name = f"{feed}_offsets_{level}" if len(names) > 2 else f"{feed}_offsets"
                add(("level", feed, level), name, np.int64, [f"{count} + 1"], ends=end)
        shape = [str(size) for size in spec.shape]
        for axis in range(len(shape)):
            kind = "rows" if spec.lod_level and axis == 0 else "size"
            key = counts.like[feed] if kind == "rows" else feed, kind, axis
            if key in counts.which:
                shape[axis] = counts.names[counts.which[key]]
        add(("feed", feed), feed, spec.dtype, shape)
    expressions, places = Expressions(part, counts.names), part.ran.notes().places[-len(fetches) :]
    for name, value, place in zip(fetches, part.ran.fetches, places, strict=True):
        begin, axes = (place or (0, 0))[0] + 1, len(value.shape)  # the first number is where the array begins
        shape = [expressions.word(begin + axis) for axis in range(axes)]
        add(("fetch", name), name, value.dtype, shape, is_written=True)
    return fields, roles
