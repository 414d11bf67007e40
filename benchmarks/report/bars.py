"""The bars: what was promised, what was aimed at, what came out."""

import statistics
from typing import NamedTuple

from benchmarks.cells.case import KINDS
from benchmarks.engines import BUILT_IN, FORMS, GROUPED, IN_TORCH, MODES, OF_STEPS, OURS, PEERS, PYTORCH
from benchmarks.results import best_ratio, disturbed, efficiency, ratio, seconds
from benchmarks.suites.cells import of_built_in
from benchmarks.suites.groups import SIZES as GROUP_SIZES
from benchmarks.suites.memory import of_packed
from benchmarks.suites.overhead import WAYS, beyond
from benchmarks.suites.recurrent import MAIN_SIZES
from benchmarks.suites.sequence import best
from benchmarks.suites.serving import over, served
from benchmarks.suites.torch import ONE_STEP

CELLS = ("LSTM", "GRU")
ALONE, MAIN = ("efficiency", MAIN_SIZES), ("recurrent", MAIN_SIZES)
IN_GROUPS = ("groups", GROUP_SIZES)
ONE, TINY = ("recurrent", [(1, 256, 256)]), ("small", [(4, 32, 32)])
HEADER = ["measure", "floor", "aim", "measured", "verdict"]


def against(*engines):
    """Return a function of a line: how many times as long as ours the fastest of the engines takes."""
    return lambda line: best_ratio(line, engines)


# Floor and aim of the share of the multiply-add rate were 0.85 and 1 of sgemm, where OpenBLAS knew the processor: there
# it runs at 0.9 of that rate.
# For each cell: words, floor, aim, the value of a line; and the lines: suite, sizes, lengths, mode.
TIMES = [
    ("training, equal: share of the multiply-add rate", 0.77, 0.9, efficiency, *ALONE, "equal", "training"),
    ("training, ragged: share of the multiply-add rate", 0.77, 0.9, efficiency, *ALONE, "lognormal", "training"),
    ("training, ragged: over PyTorch packed", 8, 12, against("torch packed"), *MAIN, "lognormal", "training"),
    ("training, ragged: over PyTorch padded", 4, 6, against("torch padded"), *MAIN, "lognormal", "training"),
    ("training, ragged: over PyTorch in groups", 1.5, 1.85, against(GROUPED), *IN_GROUPS, "lognormal", "training"),
    ("training, equal: over PyTorch padded", 1, 1.15, against("torch padded"), *MAIN, "equal", "training"),
    ("inference, ragged: over the best peer", 1.5, 3, against(*PEERS), *MAIN, "lognormal", "inference"),
    ("training, one sequence: over PyTorch", 1, 1.5, against(*PYTORCH), *ONE, "equal", "training"),
    ("inference, one sequence: over PyTorch", 1, 1.5, against(*PYTORCH), *ONE, "equal", "inference"),
    ("training, 4 sequences of 5 steps: over PyTorch", 1, 2, against(*PYTORCH), *TINY, "equal", "training"),
    ("inference, 4 sequences of 5 steps: over PyTorch", 1, 2, against(*PYTORCH), *TINY, "equal", "inference"),
]

# Of each promise of a cell: words, floor.
SHARES = {
    "one product": ("cells of one product, a user's and options", 0.95),
    "reset before the product": ("GRU that resets before its product", 0.85),
    "layer norm": ("LSTM and GRU with layer norm", 0.75),
    "projected outputs": ("LSTM with projected outputs", 0.9),
    "ordinary operators": ("LSTM of ordinary operators in DynamicRNN", 0.77),
}


class Bar(NamedTuple):
    """A promise, and a value for each case that it covers; None where a case gave no figures, or disturbed ones.

    Where the aim is below the floor, less is better.

    Examples
    --------
    >>> Bar("speed", 1.0, 2.0, {"small": 1.5, "large": 2.5}).verdict()
    'floor met'
    >>> Bar("memory", 1.0, 0.5, {"small": 0.4}).verdict()
    'aim met'
    """

    measure: str
    floor: float
    aim: float
    values: dict

    def verdict(self):
        """Return what the worst case says."""
        values = list(self.values.values())
        if not values or None in values:
            return "not measured"
        sign = -1 if self.aim < self.floor else 1
        worst = min(sign * value for value in values)
        if worst >= sign * self.aim:
            return "aim met"
        return "floor met" if worst >= sign * self.floor else "**below the floor**"

    def cells(self):
        """Return the row of the table."""
        measured = [f"{'-' if value is None else f'{value:.2f}'} {case}" for case, value in self.values.items()]
        sign = "at most " if self.aim < self.floor else ""
        return [self.measure, f"{sign}{self.floor:g}", f"{sign}{self.aim:g}", ", ".join(measured), self.verdict()]


def all_bars(lines):
    """Return the bars.

    Parameters
    ----------
    lines : dict
        The lines of each suite; none of one that has not run.
    """
    times = [
        Bar(f"{cell} {words}", floor, aim, _values(lines[suite], value, sizes, (cell, lengths, mode)))
        for cell in CELLS
        for words, floor, aim, value, suite, sizes, lengths, mode in TIMES
    ]
    peaks = {f"{line['cell']} {size_of(line)}": of_packed(line) for line in lines["memory"]}
    memory = Bar("memory of a training step: of PyTorch packed", 1, 0.5, peaks)
    return [
        *times,
        *(_cells(lines["cells"], promise) for promise in SHARES),
        *_sequence(lines["sequence"]),
        *_in_torch(lines["torch"]),
        *_serving(lines["serving"]),
        memory,
        _policies(lines["policies"]),
        *(_overhead(lines["overhead"], way) for way in WAYS),
    ]


def _policies(lines):
    """Return the bar of updates of policies with memory."""
    ways = ("torch padded", "torch loop over steps")
    values = {f"{line['episodes']} {_text(line['size'])}": min(ratio(line, way) for way in ways) for line in lines}
    return Bar("policies with memory, updates: over the better of PyTorch padded and a loop", 2, 3, values)


def _cells(lines, promise):
    """Return the bar of the cells under a promise: the rate of their products over the built-in's."""
    words, floor = SHARES[promise]
    values = {
        f"{line['cell']} {size_of(line)}": None if {OURS, BUILT_IN} & set(disturbed(line)) else of_built_in(line)
        for line in lines
        if KINDS[line["cell"]].promise == promise
    }
    return Bar(f"{words}: rate of products over the built-in layer's", floor, 1, values)


def _sequence(lines):
    """Return the bars of operators on sequences: the worst against its best peer, and attention against padding."""
    ragged = [line for line in lines if line["lengths"] != "equal"]
    bars = [
        Bar(f"operators on sequences, {mode}, ragged: over the best peer", 1, 1.5, _worst(ragged, mode))
        for mode in MODES
    ]
    for words, floor, aim in (("ragged", 2, 4), ("equal", 1, 1.5)):
        values = {
            f"{line['mode']}, {line['lengths']}": None if disturbed(line) else ratio(line, FORMS[0])
            for line in lines
            if line["operator"] == "attention" and (line["lengths"] == "equal") == (words == "equal")
        }
        bars.append(Bar(f"attention, {words}: over PyTorch padded", floor, aim, values))
    return bars


def _serving(lines):
    """Return the bars of inference with packed weights: the time of a step, and against onnxruntime."""
    step, whole = {}, {}
    for line in lines:
        case, quiet = f"{line['cell']} {size_of(line)}", not disturbed(line)
        if served(line) == "stream":
            spent = seconds(line, "stream")
            step[case] = spent * 1e6 if quiet and spent else None
        else:
            whole[f"{case} {line['lengths']}"] = over(line, "onnxruntime") if quiet else None
    return [
        Bar("a step of one sequence: microseconds", 15, 10, step),
        Bar("prepared layers, inference: over onnxruntime", 1, 1.2, whole),
    ]


def _in_torch(lines):
    """Return the bars of layers inside PyTorch: one step per call, and training on unequal lengths."""
    ragged = [line for line in lines if line["lengths"] not in ("equal", ONE_STEP) and line["mode"] == "training"]
    cost, speed = {}, {}
    for line in ragged:
        its = dict.fromkeys(IN_TORCH) if disturbed(line) else {engine: ratio(line, engine) for engine in IN_TORCH}
        packed = None if disturbed(line) else ratio(line, "torch packed")
        case = f"{line['cell']} {size_of(line)} {line['lengths']}"
        for engine in ("in torch, rows", "in torch, jagged"):
            value, layout = its[engine], engine.split()[-1]
            cost[f"{layout}, {case}"] = value
            speed[f"{layout}, {case}"] = value and packed and packed / value
    worst = [min(speed, key=lambda name: speed[name] or 0)] if speed else []
    step = {}
    for line in lines:
        if line["lengths"] == ONE_STEP:
            ours, theirs = (None if disturbed(line) else ratio(line, engine) for engine in OF_STEPS)
            step[f"{line['cell']}, {line['mode']}"] = ours and theirs and theirs / ours
    return [
        Bar("inside PyTorch, one step per call: over PyTorch's own", 1, 1.2, step),
        Bar("inside PyTorch, training, ragged: time over our own layer's", 1.1, 1, cost),
        Bar("inside PyTorch, training, ragged: over PyTorch packed, the least", 8, 10, {k: speed[k] for k in worst}),
    ]


def _worst(lines, mode):
    """Return the ratio of the median operator and of the worst, or None of each without figures, or with doubtful."""
    found = {
        f"{line['operator']}, {line['lengths']}": None if disturbed(line) else best(line)
        for line in lines
        if line["mode"] == mode
    }
    missing = [name for name, its in found.items() if its is None]
    if missing or not found:
        return dict.fromkeys(missing)
    worst = min(found, key=found.get)
    return {"in the median": statistics.median(found.values()), worst: found[worst]}


def _overhead(lines, way):
    """Return the bar of what operators cost beyond what they wrap: the median operator, and the worst."""
    found = {line["operator"]: cost for line in lines if (cost := beyond(line, way)) is not None}
    values = {}
    if found:
        worst = max(found, key=found.get)
        values = {"in the median": statistics.median(found.values()), worst: found[worst]}
    beyond_what = " beyond the engine's own call, or NumPy's" if WAYS[way] else ""
    return Bar(f"an operator, {way}: microseconds{beyond_what}", 15, 10, values)


def size_of(line):
    """Return sequences, features and units of a line as text."""
    return _text(line["size"])


def _text(size):
    return f"({', '.join(map(str, size))})"


def _values(lines, value, sizes, which):
    """Return the value of each of these sizes for one cell, lengths and mode, None where there is no line of it."""
    chosen = {tuple(line["size"]): line for line in lines if (line["cell"], line["lengths"], line["mode"]) == which}
    found = {_text(size): chosen.get(size) for size in sizes}
    return {size: None if line is None or disturbed(line) else value(line) for size, line in found.items()}
