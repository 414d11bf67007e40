"""What an operator costs beyond the computation that it wraps: run eagerly, recorded for a gradient, in a program."""

import time
from typing import NamedTuple

import varlen_rnn as vr
from benchmarks.operators import Operator, operators

WAYS = {"eager": "kernel", "recording": "kernel_kept", "executor": "kernel", "describing": None}
COLUMNS = {"operator": 15, "compiled, us": 14, "own call, us": 14} | {f"{way}, us": 16 for way in WAYS}
_REPEATS = 16  # of the operator in a program, and in a round


class Point(NamedTuple):
    """An operator, and how many rounds of each way it gets; a round takes about half a millisecond."""

    operator: Operator
    rounds: int

    def __str__(self):
        return self.operator.name


def points(quick, threads):
    """Return a point for each operator; all of them run on the calling thread."""
    return [Point(operator, 3 if quick else 1000) for operator in operators()]


def run(point, patience):
    """Return the line of a point: seconds of what it wraps ("kernel"), and of the operator each way.

    The ways take turns, and the lowest round counts: whatever else runs on the machine only adds to one.
    """
    found = {}
    measures = _measures(point.operator)
    for _ in range(point.rounds):
        for name, seconds in measures.items():
            found[name] = min(found.get(name, float("inf")), seconds())
    found["executor"] = max(0.0, found.pop("program") - found.pop("empty program"))
    return [{"operator": point.operator.name, "seconds": found}]


def _measures(operator):
    """Return functions that return the seconds of one application, by name."""
    plain = [vr.Variable(value) for value in operator.inputs]
    learns = operator.records
    leaves = [vr.Variable(value, requires_grad=learns and value.dtype.kind == "f") for value in operator.inputs]
    measures = {"kernel": lambda: _seconds(operator.kernel), "eager": lambda: _eager(operator, plain)}
    if learns:
        measures["kernel_kept"] = lambda: _seconds(operator.kernel_kept or operator.kernel)
        measures["recording"] = lambda: _seconds(lambda: operator.call(*leaves))
    if operator.compiled:
        measures["compiled"] = lambda: _seconds(operator.compiled)
    feed = {f"x{number}": value for number, value in enumerate(operator.inputs)}
    programs = {"program": _described(operator, _REPEATS)[0], "empty program": _described(operator, 0)[0]}
    for name, program in programs.items():
        measures[name] = lambda program=program: _once(program, feed) / _REPEATS
    return measures | {"describing": lambda: _described(operator, _REPEATS)[1]}


def _seconds(action):
    began = time.perf_counter()
    for _ in range(_REPEATS):
        action()
    return (time.perf_counter() - began) / _REPEATS


def _eager(operator, variables):
    with vr.no_grad():
        return _seconds(lambda: operator.call(*variables))


def _once(program, feed):
    executor = vr.Executor()
    began = time.perf_counter()
    executor.run(program, feed, fetch_list=[])
    return time.perf_counter() - began


def _described(operator, repeats):
    """Return a program that applies an operator some times, and the seconds that describing one of them took.

    The first is not counted: what a program does once for a parameter is not an operator's.
    """
    with vr.program_guard() as program:
        variables = [
            vr.feed_data(
                f"x{number}", [-1, *value.shape[1:]] if value.num_levels else value.shape, value.dtype, value.num_levels
            )
            for number, value in enumerate(operator.inputs)
        ]
        with vr.no_grad():
            for number in range(repeats):
                if number == 1:
                    began = time.perf_counter()
                operator.call(*variables)
            elapsed = time.perf_counter() - began if repeats > 1 else 0.0
    return program, elapsed / max(1, repeats - 1)


def beyond(line, way):
    """Return the microseconds of an operator beyond what it wraps, or None if it has no such way.

    Examples
    --------
    >>> beyond({"seconds": {"kernel": 1e-6, "eager": 9e-6}}, "eager")
    8.0
    """
    seconds, kernel = line["seconds"], WAYS[way]
    if way not in seconds:
        return None
    return round(1e6 * (seconds[way] - (seconds[kernel] if kernel else 0.0)), 3)


def cells(line):
    """Return the cells of a line."""
    compiled, kernel = (line["seconds"].get(name) for name in ("compiled", "kernel"))
    own = [seconds and 1e6 * seconds for seconds in (compiled, kernel)]
    return [line["operator"], *own, *(beyond(line, way) for way in WAYS)]
