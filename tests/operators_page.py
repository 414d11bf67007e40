"""The table of `docs/operators.md`, from the declarations; `python -m tests.operators_page` writes it."""

import inspect
from pathlib import Path

from varlen_rnn.ops.cost import per_output_element
from varlen_rnn.tape.operator import OPERATORS

PATH = Path(__file__).parent.parent / "docs" / "operators.md"
# An update is declared with its kernel, and the counts of a metric with the metric.
_OURS = tuple(f"varlen_rnn.{room}." for room in ("kernels", "metrics", "ops", "program", "steps"))
MARK = "<!-- This table is written by `python -m tests.operators_page`. -->\n"
# The words for costs that are a lambda in the declaration of their operator.
COSTS = {
    "additive_attention_grad": "3 times the cost of the operator",
    "attention_weights_grad": "2 times the cost of the operator",
    "batched_matmul": "2 m k n operations for each product of a matrix (m, k) and a matrix (k, n)",
    "clip_by_global_norm": "3 operations per element: 2 for the norm and 1 for the scaling",
    "feed": "0",
    "fetch": "0",
    "im2sequence_grad": "1 operation per element of the windows",
    "row_product": "2 m k n operations for the product of (k, m), transposed, and (k, n)",
    "sequence_conv_grad": "2 k n operations per row for a weight of (k, n)",
    "sequence_conv_padding_grad": "2 k n operations per row of padding, for a weight of (k, n)",
    "sequence_conv_weight_grad": "2 k n operations per row for a weight of (k, n)",
    "sequence_scatter": "1 operation per element of the updates",
}


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
    cost = inspect.getdoc(op.cost or per_output_element) or COSTS[op.type]
    cost = cost.rstrip(".").splitlines()[0]
    inputs = ", ".join(f"`{place}`" for place in op.inputs)
    cells = f"`{op.type}`", inputs, ", ".join(f"`{o}`" for o in outputs), constants, cost, op.doc.splitlines()[0]
    return f"| {' | '.join(cells)} |\n"


def page():
    """Return the page with the table as it is now."""
    return PATH.read_text().partition(MARK)[0] + MARK + table()


if __name__ == "__main__":
    PATH.write_text(page())
