"""Draw a program: Graphviz text for `dot -Tsvg`."""

from varlen_rnn.program.feed import EDGES


def to_dot(desc):
    """Return the text of a graph: boxes are operators, ellipses are variables, shaded ellipses are persistables.

    Feeds and fetches have a double line.
    """
    numbers = {var.name: f"v{number}" for number, var in enumerate(var for block in desc.blocks for var in block.vars)}
    ops = [op for op in desc.blocks[0].ops if op.type in EDGES]
    lists = {name for op in ops for name in (op.input_names() if op.type == "feed" else op.output_names())}
    double = {name for op in ops for name in (*op.input_names(), *op.output_names())} - lists
    lines = [line for block in desc.blocks for line in _block(block, numbers, double, lists)]
    return "\n".join(["digraph program {", *lines, "}"])


def _block(block, numbers, double, lists):
    lines = [f"subgraph cluster_{block.idx} {{", f"label={_quoted(f'block {block.idx}')}"] if block.idx else []
    lines += [_variable(var, numbers, double) for var in block.vars if var.name not in lists]
    for number, op in enumerate(block.ops):
        if op.type not in EDGES:
            lines += _operator(f"o{block.idx}_{number}", op, numbers)
    return [f"  {line}" for line in lines + ["}"] * (block.idx > 0)]


def _variable(var, numbers, double):
    label = _quoted(var.name, str(var.type).removeprefix("LOD_TENSOR "))
    style = ", style=filled, fillcolor=lightgrey" if var.persistable else ""
    style += ", peripheries=2" if var.name in double else ""
    return f"{numbers[var.name]} [label={label}, shape=ellipse{style}]"


def _operator(place, op, numbers):
    label = _quoted(op.type, *map(str, op.attrs), *([] if op.precision == "fp32" else [op.precision]))
    lines = [f"{place} [label={label}, shape=box]"]
    for variables, arrow in ((op.inputs, "{0} -> {1}"), (op.outputs, "{1} -> {0}")):
        named = [(var.parameter, name) for var in variables for name in var.arguments if name]
        lines += [f"{arrow.format(numbers[name], place)} [label={_quoted(label)}]" for label, name in named]
    return lines


def _quoted(*lines):
    """Return lines as one quoted text for Graphviz, with backslashes and quotes escaped."""
    escaped = [line.replace("\\", "\\\\").replace('"', '\\"') for line in lines]
    return '"' + "\\n".join(escaped) + '"'
