"""The suites by name: which points each has, how one is run, and how its lines are shown."""

from benchmarks.suites import (
    bf16,
    cells,
    distributed,
    efficiency,
    end_to_end,
    groups,
    layers,
    memory,
    overhead,
    policies,
    readme,
    recurrent,
    scaling,
    sequence,
    serving,
    small,
    startup,
    torch,
)
from benchmarks.suites.suite import Suite

SUITES = {
    "readme": Suite(readme.points, layers.run, layers.COLUMNS, layers.cells, readme.PATIENCE),
    "recurrent": Suite(recurrent.points, layers.run, layers.COLUMNS, layers.cells),
    "groups": Suite(groups.points, layers.run, groups.COLUMNS, groups.cells),
    "bf16": Suite(bf16.points, bf16.run, bf16.COLUMNS, bf16.cells, bf16.PATIENCE),
    "efficiency": Suite(efficiency.points, layers.run, efficiency.COLUMNS, efficiency.cells, efficiency.PATIENCE),
    "cells": Suite(cells.points, cells.run, cells.COLUMNS, cells.cells, cells.PATIENCE),
    "sequence": Suite(sequence.points, sequence.run, sequence.COLUMNS, sequence.cells, sequence.PATIENCE),
    "torch": Suite(torch.points, layers.run, torch.COLUMNS, torch.cells),
    "serving": Suite(serving.points, layers.run, serving.COLUMNS, serving.cells),
    "end_to_end": Suite(end_to_end.points, end_to_end.run, end_to_end.COLUMNS, end_to_end.cells),
    "policies": Suite(policies.points, policies.run, policies.COLUMNS, policies.cells, policies.PATIENCE),
    "small": Suite(small.points, layers.run, layers.COLUMNS, layers.cells),
    "overhead": Suite(overhead.points, overhead.run, overhead.COLUMNS, overhead.cells),
    "memory": Suite(memory.points, memory.run, memory.COLUMNS, memory.cells),
    "startup": Suite(startup.points, startup.run, startup.COLUMNS, startup.cells),
    "scaling": Suite(scaling.points, layers.run, layers.COLUMNS, layers.cells),
    "distributed": Suite(distributed.points, distributed.run, distributed.COLUMNS, distributed.cells),
}
