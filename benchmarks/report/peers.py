"""Where a peer is faster, in whatever line: a bar names whom it compares with, and others may win."""

from benchmarks import results
from benchmarks.engines import FORMS, LOOPS, OF_GROUPS, OURS, PEERS, PYTORCH
from benchmarks.report.bars import size_of
from benchmarks.suites import bf16
from benchmarks.suites.startup import in_all
from benchmarks.tables import markdown

TIMED = (
    "readme", "recurrent", "groups", "efficiency", "cells", "sequence", "end_to_end", "policies", "small", "scaling",
)  # fmt: skip
HEADER = ["suite", "case, mode", "peer", "its time over ours"]
HEAD = """## Where a peer is faster

A bar compares with the peers that it names, so a bar over PyTorch does not cover onnxruntime. This table lists every
line of every suite in which a peer takes less time than `varlen_rnn`, the largest advantage first.
"""
START_UP = {"first training step": lambda line: line["first_step"], "imports and first training step": in_all}


def section(lines):
    """Return the section of the report that lists every figure in which a peer takes less time.

    Parameters
    ----------
    lines : dict
        The lines of each suite; none of one that has not run.
    """
    found = [*_of_steps(lines), *_of_bfloat16(lines["bf16"]), *_of_start_up(lines["startup"])]
    rows = [row for row in found if row[-1] < 1]
    table = markdown(HEADER, sorted(rows, key=lambda row: row[-1])) if rows else "There is no such line."
    return f"{HEAD}\n{table}\n"


def case_of(line):
    """Return what a line of a suite that times steps is about."""
    if "data_set" in line:
        return f"{line['data_set']}, training"
    if "episodes" in line:
        return f"{line['episodes']}, rollouts, steps and units {size_of(line)}, training"
    if "operator" in line:
        return f"{line['operator']} {line['lengths']}, {line['mode']}, threads {line['threads']}"
    return f"{line['cell']} {size_of(line)} {line['lengths']}, {line['mode']}, threads {line['threads']}"


def _of_steps(lines):
    """Return a row for each peer of a line."""
    return [
        [name, case_of(line), engine, ratio]
        for name in TIMED
        for line in lines[name]
        for engine in dict.fromkeys((*PEERS, *OF_GROUPS, *LOOPS, *FORMS))
        if (ratio := results.ratio(line, engine)) is not None
    ]


def _of_bfloat16(lines):
    """Return a row for each peer of a line, beside ours in float32, or in bfloat16 if the peer's products are."""
    return [
        ["bf16", case_of(line), engine, ratio]
        for line in lines
        for engine in bf16.PEERS
        if (ratio := (results.ratio if engine in PYTORCH else bf16.over_ours)(line, engine)) is not None
    ]


def _of_start_up(lines):
    """Return a row for each peer beside us with compiled kernels, and without."""
    return [
        ["startup", f"{words}, kernels {ours['cache']}", theirs["engine"], seconds(theirs) / seconds(ours)]
        for words, seconds in START_UP.items()
        for ours in lines
        for theirs in lines
        if ours["engine"] == OURS and theirs["engine"] in PEERS
    ]
