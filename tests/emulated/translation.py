"""Translate the PTX of a kernel to C++: a function that runs one thread, over registers as local variables."""

import re

from tests.emulated import arithmetic, meetings, memory
from tests.emulated.operands import TYPE, Operands, called, passed, register, symbol, table
from tests.emulated.ptx import Unsupported, instruction

_EMITTERS = arithmetic.EMITTERS | memory.EMITTERS | meetings.EMITTERS
_TEXT = """#include "runtime.h"
{tables}
{functions}
static void kernel(Thread *t, char **P) {{
{declarations}
{statements}
}}
extern "C" int run(const Given *given, char *error, u64 *switches) {{
  return ptx_launch(kernel, given, {is_plain}, {unit}, error, switches);
}}
extern "C" int tables(u64 *out) {{
{ranges}
  return {num_tables};
}}
"""


def translate(source):
    """Return the C++ text of a `Source`."""
    of, names = Operands(source, source), [table(name) for name in source.tables]
    return _TEXT.format(
        tables="\n".join(_table(name, value) for name, value in source.tables.items()),
        functions="\n".join(_function(source, function) for function in source.functions),
        declarations="\n".join(of.declare(source)),
        statements="\n".join(_statement(of, text) for text in source.statements()),
        is_plain=int(source.is_plain),
        unit=source.unit,
        ranges="\n".join(
            f"  out[{2 * k}] = (u64){n}; out[{2 * k + 1}] = (u64){n} + sizeof {n};" for k, n in enumerate(names)
        ),
        num_tables=len(names),
    )


def _function(source, function):
    """Return the definition of a function; its last parameter is the result."""
    of = Operands(source, function)
    params = ", ".join(f"u64 &{passed(name)}" for name in function.params)
    lines = [*of.declare(function), *(_statement(of, text) for text in function.statements())]
    return f"static void {called(function.name)}(Thread *t, {params}) {{\n{chr(10).join(lines)}\n}}"


def _statement(of, text):
    if text.endswith(":"):
        return f"{symbol(text[:-1].strip())}: ;"
    guard = re.match(r"@(!?)(%[\w$]+)\s+(.*)", text, re.S)
    if guard:
        return f"if ({guard[1]}{register(guard[2])}) {{ {_emitted(of, guard[3])} }}"
    return f"{{ {_emitted(of, text)} }}"


def _emitted(of, text):
    found = instruction(text)
    try:
        return _EMITTERS[found.name](of, found, TYPE.get(found.parts[-1]))
    except Unsupported as error:
        raise Unsupported(f"{text[:150]}: {error}") from None
    except (KeyError, IndexError, TypeError, ValueError, StopIteration) as error:
        raise Unsupported(f"{text[:150]} ({type(error).__name__}: {error})") from None


def _table(name, given):
    """Return the definition of a table of constants, whose floats are written as bits."""
    values = given.values or "{0}"
    values = values if values.startswith("{") else f"{{{values}}}"
    values = re.sub(r"0[fF]([0-9a-fA-F]{8})", r"0x\1u", values)
    values = re.sub(r"0[dD]([0-9a-fA-F]{16})", r"0x\1ull", values)
    if re.search(r"[A-Za-z_$]", re.sub(r"0x[0-9a-fA-F]+(u|ull)?|\d+U", "", values)):
        raise Unsupported(f"a table of addresses, {name}")
    kind = {"f32": "u32", "f64": "u64"}.get(TYPE[given.kind], TYPE[given.kind])
    return f"alignas({given.align}) static {kind} {table(name)}[{given.count}] = {values};"
