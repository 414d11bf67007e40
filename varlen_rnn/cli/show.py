"""The command `show FILE`: print the parts of a saved program and its cost, or the content of a checkpoint."""

from pathlib import Path

import numpy as np

from varlen_rnn.checkpoint import load
from varlen_rnn.errors import CheckpointError, ProgramError
from varlen_rnn.ops.cost import Cost, costs
from varlen_rnn.program.inference import load_inference_model
from varlen_rnn.program.layout import aligned, columns
from varlen_rnn.program.program import Program
from varlen_rnn.tape.operator import find


def add_to(commands):
    """Add the command `show` to the commands of a parser."""
    text = (
        "Show a saved program: its variables and operators, its parameters, and its cost. A size that only a feed "
        "determines counts as 1, so the cost of a program over rows is the cost of one row, plus the cost of a run."
    )
    parser = commands.add_parser("show", help="show the parts and the cost of a saved program", description=text)
    parser.add_argument(
        "file", metavar="FILE", help="a file of Program.save, a folder of save_inference_model, or a checkpoint"
    )
    parser.set_defaults(run=lambda arguments: _show(Path(arguments.file)))


def program_of(path):
    """Return the program in a file of `Program.save` or a folder of `save_inference_model`."""
    return load_inference_model(path) if path.is_dir() else Program.load(path)


def _show(path):
    try:
        program = program_of(path)
    except ProgramError as error:
        _show_checkpoint(path, error)
        return
    print(f"{path}: a program\n")
    print(f"feeds    {', '.join(program.feed_names) or 'none'}")
    print(f"fetches  {', '.join(program.fetch_names) or 'none of its own'}\n")
    print(program)
    print("\npersistables")
    for line in columns(persistable_rows(program)):
        print(f"  {line}")
    print("\ncost, an unknown size being one")
    for line in columns(cost_rows(program.desc)):
        print(f"  {line}")
    print("FLOPs: those of products, and 1 per element of other operators; bytes: all inputs, weights and outputs.")


def persistable_rows(program):
    """Return the rows of a table of persistables, by group, such as parameters or states of optimizers."""
    groups = {name: _group(program.desc, name) for name in program.persistables}
    rows = []
    for group in sorted(set(groups.values())):
        arrays = [value.data for name, value in program.persistables.items() if groups[name] == group]
        rows.append((group, len(arrays), sum(array.size for array in arrays), sum(array.nbytes for array in arrays)))
    rows.append(("total", *(sum(row[column] for row in rows) for column in (1, 2, 3))))
    names, *numbers = zip(*rows, strict=True)
    return list(zip(names, *map(aligned, numbers, ("arrays", "numbers", "bytes")), strict=True))


def _group(desc, name):
    """Return the group under which a persistable (a saved array) is listed: parameters, states, or constants.

    The first output of an update operator is a parameter, its other outputs are states of the optimizer.
    """
    updates = [op for op in desc.blocks[0].ops if find(op.type).in_place]
    if not updates:
        return "parameters and constants"
    if any(op.output_names()[0] == name for op in updates):
        return "parameters"
    return "states of optimizers" if any(name in op.output_names() for op in updates) else "rates and constants"


def cost_rows(desc):
    """Return the rows of a table of costs: every operator that computes, with its first output, and the total."""
    found = costs(desc)
    total = Cost(*(sum(column) for column in zip(*[cost for _, cost in found], strict=True))) if found else Cost(0, 0)
    flops, sizes = zip(*[cost for _, cost in found], total, strict=True)
    names = [(op.type, op.output_names()[0]) for op, _ in found] + [("total", "")]
    columns_of_numbers = aligned(flops, "FLOPs"), aligned(sizes, "bytes")
    return [(*name, *numbers) for name, *numbers in zip(names, *columns_of_numbers, strict=True)]


def _show_checkpoint(path, error):
    """Print the content of a checkpoint, or raise `error` if the file is no checkpoint."""
    try:
        groups = load(path)
    except (CheckpointError, OSError):
        raise error from None
    print(f"{path}: a checkpoint of varlen_rnn.save: arrays by name, and no program; varlen_rnn.load reads it\n")
    for name, content in groups.items():
        if isinstance(content, dict) and content and all(isinstance(value, np.ndarray) for value in content.values()):
            numbers, size = (sum(getattr(a, what) for a in content.values()) for what in ("size", "nbytes"))
            print(f"  {name!r}: {len(content)} arrays, {numbers:,} numbers, {size:,} bytes")
        else:
            print(f"  {name!r}: {content!r}"[:100])
