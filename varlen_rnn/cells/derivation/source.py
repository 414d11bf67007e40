"""Write nodes of a trace as Python, for Numba to compile and for people to read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from varlen_rnn.cells.derivation.operations import CALL, CHOICE, COMPARISON, COMPARISONS, OPERATIONS, SIGN
from varlen_rnn.cells.derivation.trace import Trace

_NAMES = {0.0: "zero", 1.0: "one", 2.0: "two", 0.5: "half"}


def write(
    trace: Trace, given: Mapping[int, str], roots: Collection[int], probe: str | None
) -> tuple[list[str], dict[int, str]]:
    """Return the lines that compute `roots` from `given` {node: text}, and a dict with the text of each root.

    Constants get the type of the expression `probe`, such as `prev[0]`.  Without it, the source computes with arrays,
    and calls functions such as `where` for choices.
    """
    needed = trace.reach(roots, given)
    mine = [k for k in needed if k not in given]
    uses = Counter(a for k in mine for a in trace.nodes[k].operands) + Counter(roots)
    # A choice mentions an operand twice.  If a line before computes that operand, the choice compiles to a select.
    chosen = {a for k in mine if trace.nodes[k].op in _CHOICES for a in trace.nodes[k].operands}
    taken = set(given.values())
    names = (name for name in (f"t{number}" for number in range(10**6)) if name not in taken)
    texts: dict[int, tuple[str, int]] = {}
    constants: list[str] = []
    lines: list[str] = []
    for k in needed:
        op, operands, what = trace.nodes[k]
        if k in given:
            texts[k] = given[k], CALL
        elif op == "number" and probe is None:
            texts[k] = repr(int(what) if what == int(what) else what), CALL if what >= 0 else SIGN
        elif op == "number":
            name = _NAMES.get(what) or f"k{len(constants)}"
            constants.append(f"{name} = type({probe})({int(what) if what == int(what) else what!r})")
            texts[k] = name, CALL
        else:
            parts = [texts[a] for a in operands]
            if probe is None and op in _CHOICES:
                texts[k] = f"{op}({', '.join(text for text, _ in parts)})", CALL
            else:
                texts[k] = _expression(op, parts), OPERATIONS[op].binds
            if uses[k] > 1 or (k in chosen and op not in COMPARISONS):
                name = next(names)
                lines.append(f"{name} = {texts[k][0]}")
                texts[k] = name, CALL
    return constants + lines, {k: texts[k][0] for k in roots}


_CHOICES = {name for name, operation in OPERATIONS.items() if operation.binds == CHOICE}


def _expression(op: str, operands: list[tuple[str, int]]) -> str:
    """Return the text of an operation, with brackets around operands that bind less tightly."""
    binds = OPERATIONS[op].binds
    parts = []
    for place, (text, tight) in enumerate(operands):
        wanted = binds + (place > 0 or binds <= COMPARISON)
        parts.append(text if tight >= wanted or binds == CALL else f"({text})")
    return OPERATIONS[op].source.format(*parts)


def as_tuple(texts: Iterable[str]) -> str:
    """Return the source of a tuple with these items."""
    texts = list(texts)
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


def function(name: str, arguments: str, unpacked: str, lines: list[str], results: Iterable[str]) -> str:
    """Return the source of a function: it runs `unpacked`, unless that is empty, and `lines`; it returns `results`."""
    body = [unpacked] * bool(unpacked) + lines + [f"return {', '.join(results)}"]
    return f"def {name}({arguments}):\n" + "".join(f"    {line}\n" for line in body)
