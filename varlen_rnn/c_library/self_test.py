"""The self-test of a C library: a batch, the bits of its results in Python, and the function that compares them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from varlen_rnn.c_library.files import Library


def source(library: Library, counts: Sequence[int], arrays: dict[str, np.ndarray]) -> str:
    """Return the end of the source; `arrays` has the content of each field of the batch."""
    up, prefix = library.prefix.upper(), library.prefix
    results = [field.name for field in library.fields if field.is_written]
    data = "\n".join(_constant(f"{prefix}_test_{field.name}", arrays[field.name]) for field in library.fields)
    given = "".join(f"    batch->{name} = {count};\n" for name, count in zip(library.counts, counts, strict=True))
    given += "".join(
        f"    batch->{field.name} = (const void *){prefix}_test_{field.name};\n"
        for field in library.fields if not field.is_written
    )  # fmt: skip
    places = "".join(
        f"    batch.{name} = (void *)w;\n    w += round_up(sizeof {prefix}_test_{name});\n" for name in results
    )
    compared = "".join(
        f"    differs |= differ(batch.{name}, {prefix}_test_{name}, {_form(arrays[name])});\n" for name in results
    )
    own = " + ".join(f"round_up(sizeof {prefix}_test_{name})" for name in results)
    return f"""
/* The bits of a batch, and of the results that Python computed. */
{data}

static void set_test({prefix}_batch *batch) {{
{given}}}

/* Return whether numbers of some bytes differ.  The magnitudes of NaN, which all count as equal because IEEE 754 leaves
open which NaN a sum of two is, are greater than `infinity`. */
static int differ(const void *found, const void *wanted, int64_t size, int64_t bytes, uint64_t infinity) {{
    int count = 0;
    for (int64_t i = 0; i < size; i += bytes) {{
        uint64_t one = 0, other = 0, magnitudes = UINT64_MAX >> (65 - 8 * bytes);
        memcpy(&one, (const char *)found + i, bytes);
        memcpy(&other, (const char *)wanted + i, bytes);
        count += one != other && !((one & magnitudes) > infinity && (other & magnitudes) > infinity);
    }}
    return count != 0;
}}

int64_t {prefix}_self_test_workspace(void) {{
    {prefix}_batch batch = {{0}};
    set_test(&batch);
    return 64 + {own} + {prefix}_workspace(&batch);
}}

int {prefix}_self_test(void *workspace, int64_t bytes) {{
    {prefix}_batch batch = {{0}};
    if (!workspace || bytes < {prefix}_self_test_workspace()) return {up}_BAD_WORKSPACE;
    set_test(&batch);
    char *w = aligned(workspace);
{places}    int code = {prefix}_run(&batch, w, bytes - (w - (char *)workspace));
    if (code) return code;
    int differs = 0;
{compared}    return differs ? {up}_OTHER_BITS : {up}_OK;
}}
"""


def _form(array):
    """Return the bytes of an array, the bytes of a number, and the bits of infinity, as expressions in C."""
    infinity = {"float32": "0x7f800000", "float64": "0x7ff0000000000000"}.get(array.dtype.name, "UINT64_MAX")
    return f"{array.nbytes}, {array.itemsize}, {infinity}"


def _constant(name, array):
    array = np.ascontiguousarray(array)
    words = array.reshape(-1).view(f"u{array.itemsize}").tolist() or [0]
    return f"static const uint{8 * array.itemsize}_t {name}[] = {{{', '.join(map(hex, words))}}};"


def main(prefix: str) -> str:
    """Return the text of the program that `make check` runs."""
    return f"""/* Tests the library {prefix}. */

#include "{prefix}.h"

#include <stdio.h>
#include <stdlib.h>

int main(void) {{
    int64_t bytes = {prefix}_self_test_workspace();
    void *workspace = malloc(bytes);
    int code = {prefix}_self_test(workspace, bytes);
    free(workspace);
    if (code) return puts({prefix}_error(code)), 1;
    puts("{prefix}: the same bits as Python");
    return 0;
}}
"""
