"""The C source of a library: calls of kernels, whose arguments are computed from the counts of a batch."""

from __future__ import annotations

import re
import struct
from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from varlen_rnn.c_library.cover import Part
from varlen_rnn.c_library.runs import Role, kind_of
from varlen_rnn.program.replay import Ran
from varlen_rnn.runtime.memory import CACHE_LINE
from varlen_rnn.runtime.numba_internals import is_code, name_of_code
from varlen_rnn.runtime.records import EXPECT

TYPES = {
    "float32": "float", "float64": "double", "bool": "uint8_t", "int8": "int8_t", "uint8": "uint8_t",
    "int16": "int16_t", "uint16": "uint16_t", "int32": "int32_t", "uint32": "uint32_t", "int64": "int64_t",
    "uint64": "uint64_t",
}  # fmt: skip
_LETTERS = {
    "p": "void *", "q": "int64_t", "i": "int32_t", "h": "int16_t", "c": "int8_t", "b": "uint8_t", "d": "double",
    "f": "float",
}  # fmt: skip
FIRST_CHECK = 16  # the code that a run returns if its first check failed
_KEYWORDS = frozenset(  # of C and C++, and two names that GCC defines
    "_Alignas _Alignof _Atomic _Bool _Complex _Generic _Imaginary _Noreturn _Static_assert _Thread_local alignas "
    "alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class co_await "
    "co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype default delete "
    "do double dynamic_cast else enum explicit export extern false float for friend goto if inline int linux long "
    "mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register "
    "reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast struct switch "
    "template this thread_local throw true try typedef typeid typename typeof typeof_unqual union unix unsigned using "
    "virtual void volatile wchar_t while xor xor_eq".split()
)


class Names(NamedTuple):
    """Names in C.

    prefix: the begin of all names that other files see
    counts: the counts, in the order of a point
    fields: the field of the batch for each role of a slot
    """

    prefix: str
    counts: list[str]
    fields: dict[tuple, str]

    def weight(self, begin: int) -> str:
        """Return the address of a weight, given where it begins in the file of weights."""
        return f"(char *){self.prefix}_weights + {begin}"


def identifier(text: str) -> str:
    """Return a name in C for a name of a variable.

    Examples
    --------
    >>> identifier("sequence_pool.out"), identifier("2x")
    ('sequence_pool_out', '_2x')
    """
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return f"_{name}" if not name or name[0].isdigit() or name in _KEYWORDS else name


def unused(name: str, used: Container[str]) -> str:
    """Return a name, with underscores behind it so that no other has it."""
    while name in used:
        name += "_"
    return name


class Weights:
    """The content of the file of weights: arrays, one after another, each at a multiple of a cache line."""

    def __init__(self) -> None:
        self.content = bytearray()
        self._begins: dict[bytes, int] = {}

    def add(self, array: np.ndarray) -> int:
        """Return where the bytes of an array begin; equal bytes are stored once."""
        content = array.tobytes()
        if content not in self._begins:
            self.content += bytes(-len(self.content) % CACHE_LINE)
            self._begins[content] = len(self.content)
            self.content += content
        return self._begins[content]


class Source:
    """Writes the parts of the source that depend on boxes.

    Attributes
    ----------
    codes : dict of int to str
        A name in C for the address of each code that is called.
    operators : dict of str to str
        For each of these names, the operator that calls the code.
    checks : list of (str, str)
        The operator and the kernel of each check of a run.
    """

    def __init__(self, names: Names, weights: Weights, persistables: dict[str, np.ndarray]) -> None:
        self._names, self._weights = names, weights
        self._begins = {name: weights.add(array) for name, array in persistables.items()}
        self.codes: dict[int, str] = {}
        self.operators: dict[str, str] = {}
        self.checks: list[tuple[str, str]] = []
        self._kinds: dict[str, str] = {}  # {name of code that C calls: the letters of its arguments}
        self._constants: dict[tuple[str, ...], str] = {}
        self._parts: list[Part] = []
        self._most_slots = 0
        self._functions: list[str] = []

    def add(self, part: Part, roles: list[Role | None]) -> None:
        """Add the functions of a part: one that lays out workspaces, and one that runs; `roles` has each slot's."""
        number, counts, slots = len(self._parts), self._names.counts, part.ran.dry_run.slots
        self._parts.append(part)
        self._most_slots = max(self._most_slots, len(slots))
        expressions, batch = Expressions(part, counts), f"const {self._names.prefix}_batch *batch"
        own = [k for k, slot in enumerate(slots) if roles[k] is None and not slot.is_outside]
        places = {k: place for place, k in enumerate(own)}
        begins = {id(slot): self._begin(slot, roles[k], places.get(k)) for k, slot in enumerate(slots)}
        calls = [*self._calls(part.ran, expressions, begins)]
        self._functions += [
            f"static int64_t layout_{number}({batch}, int64_t *at) {{",
            *count_lines(counts),
            "    int64_t end = 0;",
            *(f"    at[{place}] = end; end += round_up({expressions.size(k)});" for k, place in places.items()),
            *("    return end;", "}", ""),
            f"static int run_{number}({batch}, char *w) {{",
            *count_lines(counts),
            *(["    void *result = 0, *error = 0;"] if calls else []),  # C compilers warn of an unused variable
            f"    int64_t at[{len(places) + 1}];",
            f"    layout_{number}(batch, at);",
            *calls,
            *("    return 0;", "}", ""),
        ]

    def _begin(self, slot, role, place):
        """Return where the array of a slot begins, as an expression in C; `place` is its place among workspaces."""
        if place is not None:
            return f"w + at[{place}]"
        if role is None:
            return slot.form  # an array that never changes; its text depends on the operator that takes it first
        if role[0] == "persistable":
            return self._names.weight(self._begins[role[1]])
        return f"(char *)batch->{self._names.fields[role]}"

    def _calls(self, ran: Ran, expressions, begins):
        """Yield the lines that call the kernels of a run; `begins` has the begin of each slot, by its id."""
        at, before = 0, None
        for call in ran.dry_run.calls:
            if before is None or call.operator != before.operator:
                yield f"    /* {call.operator} */"
            name = self._code(call.words[0], call.name, call.operator, call.letters)
            values = ", ".join(
                self._value(call, k, letter, expressions.word(at + k), begins)
                for k, letter in enumerate(call.letters, 1)
            )
            code = f"{self._names.prefix.upper()}_FAILED"
            if call.name == EXPECT and before is not None:
                code = str(self._check(call.operator, before.name))
            yield f"    if (failed({name}(&result, &error, {values}))) return {code};"
            at, before = at + len(call.words), call

    def _check(self, operator, kernel):
        if (operator, kernel) not in self.checks:
            self.checks.append((operator, kernel))
        return FIRST_CHECK + self.checks.index((operator, kernel))

    def _code(self, address, kernel, operator, letters=None):
        if address not in self.codes:
            name = f"{self._names.prefix}_{len(self.codes)}_{identifier(kernel)}"
            self.codes[address], self.operators[name] = name, operator
        if letters is not None:
            self._kinds[self.codes[address]] = letters
        return self.codes[address]

    def _address(self, address, operator):
        return f"(int64_t)&{self._code(address, name_of_code(address), operator)}"

    def _value(self, call, position, letter, number, begins):
        """Return a word as an expression in C, given its number as an expression in C."""
        word = call.words[position]
        kind = kind_of(call, position, letter, word)
        if kind == "float":
            return _float(letter, word)
        if kind == "code":
            return self._address(word, call.operator)
        if kind == "array":
            begin = begins[id(call.slots[position])]
            begin = begin if isinstance(begin, str) else self._constant(begin, call.operator)
            return begin if number == "0" else f"{begin} + {number}"
        return number

    def _constant(self, array, operator):
        numbers = array.reshape(-1).tolist() if array.dtype == np.int64 else []
        if not any(map(is_code, numbers)):
            return self._names.weight(self._weights.add(array))
        values = tuple(self._address(one, operator) if is_code(one) else str(one) for one in numbers)
        name = self._constants.setdefault(values, f"constant_{len(self._constants)}")
        return f"(char *){name}"

    def declarations(self) -> Iterable[str]:
        """Yield declarations of the kernels and constants."""
        for name in self.codes.values():
            letters = self._kinds.get(name)
            kinds = "void" if letters is None else ", ".join(["void *, void **", *(_LETTERS[one] for one in letters)])
            yield f"int32_t {name}({kinds});"
        for values, name in self._constants.items():
            yield f"static const int64_t {name}[{len(values)}] = {{{', '.join(values)}}};"

    def functions(self) -> Iterable[str]:
        """Yield the functions of all boxes, and the function that returns the box of a batch."""
        yield from self._functions
        yield f"static int box_of(const {self._names.prefix}_batch *batch) {{"
        yield from count_lines(self._names.counts)
        for number, (box, *_) in enumerate(self._parts):
            ends = zip(self._names.counts, box.lowest, box.highest, strict=True)
            conditions = [f"{name} >= {low} && {name} <= {high}" for name, low, high in ends]
            yield f"    if ({' && '.join(conditions) or '1'}) return {number};"
        yield from ("    return -1;", "}", "")

    @property
    def num_boxes(self) -> int:
        """The number of boxes."""
        return len(self._parts)

    def most_places(self) -> int:
        """Return a number of workspaces that no box exceeds, and one."""
        return 1 + self._most_slots


class Expressions:
    """Returns the numbers of a Part as expressions in C, in which the counts have these names."""

    def __init__(self, part: Part, counts: Sequence[str]) -> None:
        self._numbers, self._counts = part.numbers.constants.tolist(), counts
        self._varying = {
            position: (base, coefficients)
            for position, base, coefficients in zip(
                part.numbers.varying.tolist(),
                part.numbers.bases.tolist(),
                part.numbers.coefficients.tolist(),
                strict=True,
            )
        }
        self._words = sum(len(call.words) for call in part.ran.dry_run.calls)

    def word(self, position: int) -> str:
        """Return a number, given its position among the numbers of the Notes of a dry run."""
        if position not in self._varying:
            return _integer(self._numbers[position])
        base, coefficients = self._varying[position]
        terms = [name if factor == 1 else f"{factor} * {name}"
                 for name, factor in zip(self._counts, coefficients, strict=True) if factor]  # fmt: skip
        return " + ".join([*terms, *([_integer(base)] if base or not terms else [])])

    def size(self, slot: int) -> str:
        """Return the bytes of a slot, given its number."""
        return self.word(self._words + slot)


def count_lines(counts: Iterable[str]) -> list[str]:
    """Return the lines of a function that define the counts of a batch."""
    return [f"    const int64_t {name} = batch->{name}; (void){name};" for name in counts]


def _integer(number):
    if -(2**31) < number < 2**31:
        return str(number)
    return "INT64_MIN" if number == -(2**63) else f"INT64_C({number})"


def _float(letter, bits):
    """Return the number with these bits as an expression in C."""
    kind = "d" if letter == "d" else "f"
    (number,) = struct.unpack(kind, (bits & (2**64 - 1)).to_bytes(8, "little")[: struct.calcsize(kind)])
    end = "" if letter == "d" else "f"
    if number != number:
        return f'__builtin_nan{end}("")'
    if number in (float("inf"), float("-inf")):
        return f"{'-' if number < 0 else ''}__builtin_inf{end}()"
    return number.hex() + end
