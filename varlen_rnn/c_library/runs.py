"""Dry runs of a program for a C library: calls of kernels whose words have a meaning.

For example, the word of a feed's address is `Word("slot", 4, 0)` in each dry run, wherever the array of that run is,
and the word of 7 rows of 16 numbers is `Word("number", 0, 112)`.  `fit` compares the words of dry runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from varlen_rnn.program.dry_runs import dry_run_of
from varlen_rnn.program.instructions import Instructions
from varlen_rnn.rows.lod import NO_LOD, LoDTensor, rows_of
from varlen_rnn.runtime.numba_internals import is_code
from varlen_rnn.runtime.placeholder import Placeholder, Unbound

_ADDRESSES = range(2**40, 2**48)  # of arrays and code; no count is so large
_ARRAY = re.compile("ppqqp")  # the letters of an array's first words; its address is the fifth


class Word(NamedTuple):
    """A word of a call.

    kind: "number"; "float"; "slot", an address in a piece of memory; "constant", the address of an array that never
        changes; or "code", the address of compiled code
    which: the bits of a float, the number of the slot or of the constant, or the address of the code
    value: the number, or the distance from the begin of the slot in bytes
    """

    kind: str
    which: int
    value: int


class Call(NamedTuple):
    """A call of a kernel by an operator.

    letters: the types of the words after the first one, which is the code
    unread: positions of words that the kernel does not read, because they are strides along axes with one element
    """

    operator: str
    kernel: str
    letters: str
    words: list[Word]
    unread: list[int]


class Sizes(NamedTuple):
    """The sizes of a feed in a dry run.

    shape: its shape
    levels: the number of sequences of each level; empty if an earlier feed has its LoD
    like: the feed that has its LoD, or None
    """

    shape: tuple[int, ...]
    levels: tuple[int, ...]
    like: str | None


class Run(NamedTuple):
    """The calls of a dry run, and their memory.

    calls: the calls, in order
    sizes: the bytes of each slot
    roles: the meaning of each slot that is no workspace, by its number: ("persistable", name), ("feed", name),
        ("level", name, level) or ("fetch", name)
    constants: arrays that never change
    fetches: the name and the data type of each fetch
    shapes: the shape of each fetch
    """

    calls: list[Call]
    sizes: list[int]
    roles: dict[int, tuple]
    constants: list[np.ndarray]
    fetches: list[tuple[str, np.dtype]]
    shapes: list[tuple[int, ...]]


class Refused(Exception):
    """Raised for a dry run that an operator refuses; the message names the operator."""


def dry_run(
    instructions: Instructions,
    persistables: Mapping[str, np.ndarray],
    feeds: Mapping[str, tuple[Sizes, Any]],
    fetches: list[str],
) -> Run:
    """Return the Run of a program whose feeds have these sizes and data types, or raise Refused."""
    numbers = {name: number for number, name in enumerate(feeds)}
    structure, counts = [], []
    for name, (sizes, _) in feeds.items():
        like = numbers[sizes.like] if sizes.like else numbers[name] if sizes.levels else None
        structure.append((len(sizes.shape), len(sizes.levels), like))
        counts += [*sizes.shape, *sizes.levels]
    given = {name: LoDTensor.wrap(array) for name, array in persistables.items()}
    fed = {name: LoDTensor.wrap(np.empty(0, dtype)) for name, (_, dtype) in feeds.items()}
    try:
        ran = dry_run_of(instructions, tuple(fetches), given, fed, tuple(structure), tuple(counts))
    except Unbound as error:
        raise Refused(str(error)) from None
    if ran.dry_run.drawn is not None:
        raise Refused("an operator draws random numbers")
    return _run(ran, list(persistables), fetches)


def _run(ran, persistables, fetches):
    noted, found, shapes = ran.dry_run, [], []
    roles: dict[int, tuple] = {number: ("persistable", name) for number, name in enumerate(persistables)}
    for name, (rows, levels) in ran.fed.items():
        roles[noted.slots.index(rows.slot)] = "feed", name
        roles |= {noted.slots.index(level.slot): ("level", name, number) for number, level in enumerate(levels)}
    noted.operator = "fetch"
    for name, value in zip(fetches, ran.fetches, strict=True):
        is_known = type(value) is LoDTensor and (value.structure is NO_LOD or id(value.structure) in ran.lods)
        if not is_known or type(rows_of(value)) is not Placeholder:
            raise Refused(f"the fetch {name!r} is no array, has offsets of its own, or depends on sizes alone")
        array = rows_of(value)
        number = noted.slots.index(array.slot)
        if number in roles or array.nbytes != array.slot.form.nbytes or not array.flags.c_contiguous:
            number, array = len(noted.slots), array.copy()
        roles[number] = "fetch", name
        found.append((name, array.dtype))
        shapes.append(array.shape)
    calls, constants = _named(noted)
    return Run(calls, [slot.form.nbytes for slot in noted.slots], roles, constants, found, shapes)


def _named(noted):
    """Return the calls of a DryRun with the meanings of their words, and the constants."""
    kept, numbers = iter(noted.kept), {id(slot): number for number, slot in enumerate(noted.slots)}
    calls: list[Call] = []
    constants: list[np.ndarray] = []
    for call in noted.calls:
        words = [_word(call, *pair) for pair in zip("q" + call.letters, call.words, strict=True)]
        for found in _ARRAY.finditer(call.letters):
            at = found.end()
            if at in call.slots:
                slot = call.slots[at]
                words[at] = Word("slot", numbers[id(slot)], call.words[at] - _address(slot.form))
            else:
                words[at] = Word("constant", len(constants), 0)
                constants.append(next(kept))
        calls.append(Call(call.operator, call.name, call.letters, words, call.unread))
    return calls, constants


def _word(call, letter, number):
    if letter in "df":
        return Word("float", number, 0)
    if letter == "q" and number in _ADDRESSES and not is_code(number):
        raise Refused(f"operator {call.operator!r}: kernel {call.name} takes an address of this process")
    return Word("code", number, 0) if is_code(number) else Word("number", 0, number)


def _address(array):
    return array.__array_interface__["data"][0]
