"""The files of a C library beside its kernels and weights: the header, the source, and the Makefile."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from varlen_rnn.c_library.source import FIRST_CHECK, TYPES, Source, count_lines, identifier


class Field(NamedTuple):
    """An array of a batch.

    name: the name in C
    dtype: the data type
    shape: each size as an expression in C
    feed: the feed or fetch, or the feed whose offsets it has
    is_written: whether a run writes it
    ends: for offsets, the count that is the last one; otherwise None
    """

    name: str
    dtype: np.dtype
    shape: list[str]
    feed: str
    is_written: bool = False
    ends: str | None = None

    @property
    def declaration(self) -> str:
        """The declaration of a pointer."""
        return f"{'' if self.is_written else 'const '}{TYPES[self.dtype.name]} *{self.name};"

    @property
    def numbers(self) -> str:
        """The number of elements, as an expression in C."""
        return " * ".join(f"({size})" for size in self.shape) or "1"


class Library(NamedTuple):
    """The names and arrays that the files declare.

    prefix: the begin of all names
    counts: the names of counts, and the largest value of each
    fields: the arrays of a batch
    states: for each feed that is a state, the fetch with the state after a row
    features: the features that the processor must have, by GCC's names
    runtime: the functions of Numba's runtime that kernels call
    """

    prefix: str
    counts: dict[str, int]
    fields: list[Field]
    states: dict[str, str]
    features: tuple[str, ...]
    runtime: tuple[str, ...]


def _comment(field):
    shape = f"[{', '.join(field.shape)}]"
    if field.ends is not None:
        return f"{shape}: offsets of {identifier(field.feed)!r}, from 0 to {field.ends}, which do not decrease"
    return f"{shape}, written" if field.is_written else shape


def _fields(fields: Iterable[Field]) -> str:
    return "".join(f"    {field.declaration} /* {_comment(field)} */\n" for field in fields)


def header(library: Library) -> str:
    """Return the text of the header."""
    up = library.prefix.upper()
    counts = "".join(f"    int64_t {name}; /* at most {most} */\n" for name, most in library.counts.items())
    return f"""/* The program {library.prefix}, exported by varlen_rnn.

The caller owns all memory, and no function writes a global variable, so any number of threads may call at once, each
with a workspace of its own.  Arrays are contiguous, begin at a multiple of the size of their numbers, and do not
overlap.  A pointer to an array without elements may be NULL. */

#ifndef {up}_H
#define {up}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

/* A batch: its counts and its arrays. */
typedef struct {{
{counts}{_fields(library.fields)}}} {library.prefix}_batch;

/* What a run returns.  Codes from {FIRST_CHECK} on belong to checks of operators, such as of ids. */
enum {{
    {up}_OK = 0,
    {up}_BAD_PROCESSOR = 1, /* this processor lacks an instruction set */
    {up}_BAD_ARGUMENT = 2,  /* no batch can have these counts, or a pointer is missing */
    {up}_BAD_OFFSETS = 3,   /* offsets do not begin with 0, decrease, or do not end at their count */
    {up}_BAD_WORKSPACE = 4, /* the workspace is too small */
    {up}_FAILED = 5,        /* a kernel failed */
    {up}_OTHER_BITS = 6     /* the results of the self-test have other bits than in Python */
}};

/* Return how many bytes of workspace a batch with these counts needs, or -1 if no batch can have them. */
int64_t {library.prefix}_workspace(const {library.prefix}_batch *batch);

/* Run the program, and write its results; return {up}_OK, or why there are none.  Then the results mean nothing. */
int {library.prefix}_run(const {library.prefix}_batch *batch, void *workspace, int64_t bytes);

/* Run a batch that the library has, and compare the bits of its results with the results of Python; return {up}_OK, or
why they are not equal.  Call it once after loading, with a workspace of the size that the second function returns. */
int {library.prefix}_self_test(void *workspace, int64_t bytes);
int64_t {library.prefix}_self_test_workspace(void);

/* Return what a code means. */
const char *{library.prefix}_error(int code);
{_step_header(library) if library.states else ""}
#ifdef __cplusplus
}}
#endif

#endif
"""


def step_fields(library: Library) -> list[Field]:
    """Return the arrays of a step: the arrays of a batch without offsets, and each state once."""
    found = []
    for field in library.fields:
        if field.ends is None and field.feed not in library.states.values():
            shape = [_in_streams(size, library.counts) for size in field.shape]
            found.append(field._replace(shape=shape, is_written=field.is_written or field.feed in library.states))
    return found


def _in_streams(size, counts, streams="streams"):
    """Return the size of an array of a batch whose counts are all the number of streams."""
    return re.sub(r"\b(" + "|".join(counts) + r")\b", streams, size)


def _step_header(library):
    lines = ""
    for field in step_fields(library):
        is_state = field.feed in library.states
        shape = f"[{', '.join(field.shape)}]"
        comment = f"{shape}, a state: read, and then written" if is_state else _comment(field)
        lines += f"    {field.declaration} /* {comment} */\n"
    most = min(library.counts.values())
    return f"""
/* The next row of each of some streams, and the states of the streams, which begin as zeros. */
typedef struct {{
    int64_t streams; /* at most {most} */
{lines}}} {library.prefix}_rows;

/* As {library.prefix}_workspace, for a step. */
int64_t {library.prefix}_step_workspace(const {library.prefix}_rows *rows);

/* Run the program on a row of each stream, and replace the states; return as {library.prefix}_run.  After an error, the
states are as before. */
int {library.prefix}_step(const {library.prefix}_rows *rows, void *workspace, int64_t bytes);
"""


def source(library: Library, calls: Source) -> str:
    """Return the text of the source."""
    declarations, functions = "\n".join(calls.declarations()), "\n".join(calls.functions())
    return f"""/* The program {library.prefix}, exported by varlen_rnn: its calls of kernels. */

#include "{library.prefix}.h"

#include <string.h>

/* Kernels, in {library.prefix}_kernels.o.  They return 0 or -2, or another number if they failed. */
{declarations}

extern const char {library.prefix}_weights[];

static int failed(int32_t status) {{ return status != 0 && status != -2; }}

static int64_t round_up(int64_t bytes) {{ return (bytes + 63) / 64 * 64; }}

static char *aligned(void *workspace) {{ return (char *)workspace + (64 - (uintptr_t)workspace % 64) % 64; }}

{"".join(f"{RUNTIME[name]}{chr(10)}" for name in library.runtime)}{functions}
{_OFFSETS if any(field.ends is not None for field in library.fields) else ""}{_run_source(library, calls)}
{_error_source(library, calls)}{_step_source(library) if library.states else ""}"""


_OFFSETS = """/* Return whether offsets begin with 0, do not decrease, and end at `end`. */
static int are_offsets(const int64_t *offsets, int64_t count, int64_t end) {
    if (offsets[0] != 0 || offsets[count] != end) return 0;
    for (int64_t i = 0; i < count; i++)
        if (offsets[i + 1] < offsets[i]) return 0;
    return 1;
}

"""


# The functions of Numba's runtime that kernels call, in C.  Each name maps to its text.
_OWN = '__attribute__((weak, visibility("hidden")))'
RUNTIME = {
    "numba_attempt_nocopy_reshape": f"""/* Set strides for another shape; return 0 if the array is not contiguous. */
{_OWN} int numba_attempt_nocopy_reshape(
    int64_t ndim, const int64_t *shape, const int64_t *strides, int64_t new_ndim, const int64_t *new_shape,
    int64_t *new_strides, int64_t itemsize, int is_f_order) {{
    int64_t expected = itemsize, size = 1;
    for (int64_t i = 0; i < ndim; i++) size *= shape[i];
    for (int64_t i = ndim - 1; i >= 0; expected *= shape[i--])
        if (size && shape[i] != 1 && strides[i] != expected) return 0;
    expected = itemsize;
    for (int64_t i = new_ndim - 1; i >= 0; expected *= new_shape[i--]) new_strides[i] = expected;
    return !is_f_order || ndim < 2;
}}
""",
    "NRT_MemInfo_call_dtor": f"""/* Nobody calls this function, because no kernel allocates memory. */
{_OWN} void NRT_MemInfo_call_dtor(void *it) {{ (void)it; }}
""",
}


def _run_source(library, calls):
    up, boxes = library.prefix.upper(), range(calls.num_boxes)
    layouts = "".join(f"        case {k}: bytes = layout_{k}(batch, at); break;\n" for k in boxes)
    runs = "".join(f"        case {k}: return run_{k}(batch, w);\n" for k in boxes)
    features = " && ".join(f'__builtin_cpu_supports("{one}")' for one in library.features) or "1"
    return f"""int64_t {library.prefix}_workspace(const {library.prefix}_batch *batch) {{
    int64_t at[{calls.most_places()}], bytes = 0;
    switch (box_of(batch)) {{
{layouts}        default: return -1;
    }}
    return bytes + 64; /* to begin at a cache line */
}}

int {library.prefix}_run(const {library.prefix}_batch *batch, void *workspace, int64_t bytes) {{
    int64_t need = {library.prefix}_workspace(batch);
    if (!({features})) return {up}_BAD_PROCESSOR;
    if (need < 0) return {up}_BAD_ARGUMENT;
{chr(10).join(count_lines(library.counts))}
{"".join(_check(library, field) for field in library.fields)}\
    if (!workspace || bytes < need) return {up}_BAD_WORKSPACE;
    char *w = aligned(workspace);
    switch (box_of(batch)) {{
{runs}        default: return {up}_BAD_ARGUMENT;
    }}
}}
"""


def _error_source(library, calls):
    up = library.prefix.upper()
    checks = "".join(
        f'        case {FIRST_CHECK + k}: return "operator {operator}, {kernel}: a number is refused, such as an id";\n'
        for k, (operator, kernel) in enumerate(calls.checks)
    )
    return f"""const char *{library.prefix}_error(int code) {{
    switch (code) {{
        case {up}_OK: return "no error";
        case {up}_BAD_PROCESSOR: return "this processor lacks an instruction set";
        case {up}_BAD_ARGUMENT: return "no batch can have these counts, or a pointer is missing";
        case {up}_BAD_OFFSETS: return "offsets do not begin with 0, decrease, or do not end at their count";
        case {up}_BAD_WORKSPACE: return "the workspace is too small";
        case {up}_FAILED: return "a kernel failed";
        case {up}_OTHER_BITS: return "the results of the self-test have other bits than in Python";
{checks}        default: return "unknown code";
    }}
}}
"""


def _check(library, field):
    up = library.prefix.upper()
    lines = f"    if (!batch->{field.name} && {field.numbers} > 0) return {up}_BAD_ARGUMENT;\n"
    if field.ends is not None:
        given = f"batch->{field.name}, {field.shape[0]} - 1, {field.ends}"
        lines += f"    if (!are_offsets({given})) return {up}_BAD_OFFSETS;\n"
    return lines


def _step_source(library):
    up, fields = library.prefix.upper(), {field.feed: field for field in library.fields if field.ends is None}
    offsets = [field for field in library.fields if field.ends is not None]
    counts = "".join(f"    batch->{name} = rows->streams;\n" for name in library.counts)
    sizes = {fetch: _bytes_of(fields[fetch], library.counts) for fetch in library.states.values()}
    own = "".join(f"    bytes += round_up({size});\n" for size in sizes.values())
    given = "".join(f"    batch.{field.name} = rows->{field.name};\n" for field in step_fields(library))
    taken = "".join(
        f"    batch.{fields[fetch].name} = (void *)w;\n    w += round_up({size});\n" for fetch, size in sizes.items()
    )
    back = "".join(
        f"    if (rows->streams) memcpy(rows->{fields[feed].name}, batch.{fields[fetch].name}, {sizes[fetch]});\n"
        for feed, fetch in library.states.items()
    )
    return f"""
/* Set the counts of a batch of one row a stream; return the bytes of its offsets and of states after the row. */
static int64_t set_counts(const {library.prefix}_rows *rows, {library.prefix}_batch *batch) {{
{counts}    int64_t bytes = round_up(8 * (rows->streams + 1));
{own}    return bytes;
}}

int64_t {library.prefix}_step_workspace(const {library.prefix}_rows *rows) {{
    {library.prefix}_batch batch = {{0}};
    if (rows->streams < 0 || rows->streams > {min(library.counts.values())}) return -1;
    int64_t own = set_counts(rows, &batch), need = {library.prefix}_workspace(&batch);
    return need < 0 ? -1 : own + 64 + need;
}}

int {library.prefix}_step(const {library.prefix}_rows *rows, void *workspace, int64_t bytes) {{
    {library.prefix}_batch batch = {{0}};
    int64_t need = {library.prefix}_step_workspace(rows);
    if (need < 0) return {up}_BAD_ARGUMENT;
    if (!workspace || bytes < need) return {up}_BAD_WORKSPACE;
    set_counts(rows, &batch);
    char *w = aligned(workspace);
    int64_t *offsets = (void *)w;
    for (int64_t i = 0; i <= rows->streams; i++) offsets[i] = i;
    w += round_up(8 * (rows->streams + 1));
{"".join(f"    batch.{field.name} = offsets;{chr(10)}" for field in offsets)}{given}{taken}\
    int code = {library.prefix}_run(&batch, w, bytes - (w - (char *)workspace));
    if (code) return code;
{back}    return {up}_OK;
}}
"""


def _bytes_of(field, counts):
    sizes = [_in_streams(size, counts, "rows->streams") for size in field.shape]
    return " * ".join([str(field.dtype.itemsize), *sizes])


def weights(prefix: str) -> str:
    """Return the text of the file that puts the weights into the library."""
    return f"""    .section .rodata
    .globl {prefix}_weights
    .hidden {prefix}_weights
    .balign 64
{prefix}_weights:
    .incbin "{prefix}_weights.bin"
    .byte 0
    .section .note.GNU-stack, "", %progbits
"""


def makefile(prefix: str) -> str:
    """Return the text of the Makefile."""
    objects = f"{prefix}.o {prefix}_kernels.o {prefix}_weights.o"
    return f"""# `make` builds the library {prefix}, static and shared; `make check` compares the bits of a batch.
CFLAGS ?= -O2

all: lib{prefix}.a lib{prefix}.so

{prefix}.o: {prefix}.c {prefix}.h
	$(CC) $(CFLAGS) -std=c11 -Wall -Werror -fPIC -c {prefix}.c

{prefix}_weights.o: {prefix}_weights.S {prefix}_weights.bin
	$(CC) -c {prefix}_weights.S

lib{prefix}.a: {objects}
	$(AR) rcs $@ {objects}

lib{prefix}.so: {objects}
	$(CC) $(LDFLAGS) -shared -o $@ {objects} -lm

main: main.c {prefix}.h lib{prefix}.a
	$(CC) $(CFLAGS) -std=c11 -Wall -Werror -o $@ main.c lib{prefix}.a -lm

check: main
	./main

clean:
	rm -f *.a *.so main {prefix}.o {prefix}_weights.o

.PHONY: all check clean
"""
