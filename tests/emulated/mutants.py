"""Remove or weaken each synchronisation of a kernel, one at a time: race checking must see every such mutant."""

import re

from tests.emulated.kernels import Kernel, LaunchError, Schedule

# The order of numbers, random orders, and orders in which threads also give way within a run of accesses.
SCHEDULES = (Schedule(), Schedule(seed=1), Schedule(seed=2, preempt=5), Schedule(seed=3, preempt=3))


def mutants(ptx):
    """Return a dict of description to PTX.

    Each barrier is removed, each release and acquire relaxed, each arrival by `red` removed, each wait for asynchronous
    copies removed.
    """
    found = {}

    def add(match, change, replacement):
        line = ptx.count("\n", 0, match.start()) + 1
        found[f"line {line}: {' '.join(match[0].split())} {change}"] = (
            ptx[: match.start()] + replacement + ptx[match.end() :]
        )

    for match in re.finditer(r"\b(?:bar|barrier)\.[^;]*;|\bred\.[^;]*;|\bcp\.async\.wait[^;]*;", ptx):
        add(match, "removed", ";")
    for match in re.finditer(r"\b(red|atom|ld|st)\.(release|acquire|acq_rel)\b", ptx):
        add(match, "made relaxed", f"{match[1]}.relaxed")
    for match in re.finditer(r"\b(?:fence|membar)\.[^;]*;", ptx):
        add(match, "removed", ";")
    return found


def schedules_that_see(ptx, run, schedules=SCHEDULES):
    """Return the number of schedules in which a kernel fails.

    Parameters
    ----------
    ptx : str
    run : callable
        `run(kernel, schedule)` launches a `Kernel` and asserts that its results are right.
    schedules : tuple of Schedule
    """
    kernel, seen = Kernel(ptx), 0
    for schedule in schedules:
        try:
            run(kernel, schedule)
        except (LaunchError, AssertionError):
            seen += 1
    return seen


def survivors(ptx, run, schedules=SCHEDULES):
    """Return the descriptions of mutants that no schedule sees; the kernel itself must pass in all schedules."""
    if schedules_that_see(ptx, run, schedules):
        raise AssertionError("the kernel without any change fails")
    return [name for name, changed in mutants(ptx).items() if not schedules_that_see(changed, run, schedules)]
