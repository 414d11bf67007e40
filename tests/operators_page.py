"""The table of `docs/operators.md`, from the declarations; `python -m tests.operators_page` writes it."""

import inspect
from pathlib import Path

from varlen_rnn.ops.cost import per_output_element
from varlen_rnn.tape.operator import OPERATORS

PATH = Path(__file__).parent.parent / "docs" / "operators.md"
# An update is declared with its kernel, and the counts of a metric with the metric.
_OURS = tuple(f"varlen_rnn.{room}." for room in ("kernels", "metrics", "ops", "program", "steps"))
MARK = "<!-- This table is written by `python -m tests.operators_page`. -->\n"


def ours():
    """Return the operators that the package declares."""
    return [op for op in OPERATORS.values() if inspect.unwrap(op.forward).__module__.startswith(_OURS)]


def table():
    """Return the lines of the table: all operators of ours, by name."""
    head = "| operator | inputs | outputs | constants | cost | what it does |\n|---|---|---|---|---|---|\n"
    return head + "".join(row(op) for op in sorted(ours(), key=lambda op: op.type))


def row(op):
    """Return the line of an operator."""
    outputs = [f"({place})" if place in op.intermediate else place for place in op.outputs]
    constants = ", ".join(f"`{name}`: {kind}" for name, kind in op.attrs.items())
    cost = inspect.getdoc(op.cost or per_output_element) or "0"  # of feeds and fetches
    cost = cost.rstrip(".").splitlines()[0]
    inputs = ", ".join(f"`{place}`" for place in op.inputs)
    cells = f"`{op.type}`", inputs, ", ".join(f"`{o}`" for o in outputs), constants, cost, op.doc.splitlines()[0]
    return f"| {' | '.join(cells)} |\n"


def page():
    """Return the page with the table as it is now."""
    return PATH.read_text().partition(MARK)[0] + MARK + table()


if __name__ == "__main__":
    PATH.write_text(page())
