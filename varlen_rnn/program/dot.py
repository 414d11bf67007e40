"""Draw a program: Graphviz text for `dot -Tsvg`."""

from varlen_rnn.program.feed import EDGES


def to_dot(desc):
    """Return the text of a graph: boxes are operators, ellipses variables, shaded ones persistables.

    Feeds and fetches have a double line.

    Examples
    --------
    >>> from varlen_rnn.program.desc import ProgramDesc
    >>> print(to_dot(ProgramDesc()))
    digraph program {
    }
    """
    numbers = {var.name: f"v{number}" for number, var in enumerate(_variables(desc))}
    lines = [line for block in desc.blocks for line in _block(block, numbers, _edge_names(desc))]
    return "\n".join(["digraph program {", *lines, "}"])


def _variables(desc):
    return [var for block in desc.blocks for var in block.vars]


def _edge_names(desc):
    """Return the names that are fed or fetched, and the names of the lists of feeds and fetches."""
    ops = [op for block in desc.blocks for op in block.ops if op.type in EDGES]
    lists = {name for op in ops for name in (op.input_names() if op.type == "feed" else op.output_names())}
    return {name for op in ops for name in (*op.input_names(), *op.output_names())} - lists, lists


def _block(block, numbers, edges):
    double, lists = edges
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
    label = _quoted(op.type, *map(str, op.attrs))
    lines = [f"{place} [label={label}, shape=box]"]
    for var in op.inputs:
        lines += [f"{numbers[name]} -> {place} [label={_quoted(var.parameter)}]" for name in var.arguments if name]
    for var in op.outputs:
        lines += [f"{place} -> {numbers[name]} [label={_quoted(var.parameter)}]" for name in var.arguments if name]
    return lines


def _quoted(*lines):
    """Return lines as one quoted text for Graphviz, with backslashes and quotes escaped."""
    escaped = [line.replace("\\", "\\\\").replace('"', '\\"') for line in lines]
    return '"' + "\\n".join(escaped) + '"'
