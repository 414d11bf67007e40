"""`python -m benchmarks gpu`: compare results, then time the engines in turns on one GPU, within a limit of time."""

import argparse
import contextlib
import importlib.util
import statistics
import subprocess
import time
from importlib import metadata
from pathlib import Path

from benchmarks import machine, results
from benchmarks.engines import MODES, OURS
from benchmarks.gpu.case import cases
from benchmarks.parity import disagreement
from benchmarks.processes import ROOT, EngineError
from benchmarks.tables import text_row

PRECISIONS = "fp32", "tf32"
# TF32 rounds factors to 2^-11 of their size, 5e-4.  Engines round different factors, and steps add up the differences.
TOLERANCES = {"fp32": 1e-5, "tf32": 1e-2}
WARM_UPS, LEAST, MOST = 2, 3, 50  # steps before the clock runs, and timed rounds
COLUMNS = {"cell": 5, "B,D,H": 14, "lengths": 11, "directions": 12, "mode": 11, "precision": 11, "ms": 10}
COLUMNS |= {"torch packed": 14, "torch padded": 14}


def main(arguments):
    """`python -m benchmarks gpu [--minutes 9] [--quick] [--results FOLDER]`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description=main.__doc__)
    parser.add_argument("--minutes", type=float, default=9.0, help="begin no case after this time")
    parser.add_argument("--quick", action="store_true", help="sizes that only show that everything runs")
    parser.add_argument("--results", type=Path, help="folder of the results; default benchmarks/results, quick: out/")
    given = parser.parse_args(arguments)
    if reason := missing():
        raise EngineError(f"python -m benchmarks gpu: {reason}")
    folder = given.results or ROOT / ("out/benchmarks" if given.quick else "benchmarks/results")
    lines = compared(cases(given.quick), PRECISIONS, 60 * given.minutes, "cuda")
    results.write(folder / "gpu.jsonl", [described(), *lines])
    print(folder / "gpu.jsonl")


def missing():
    """Return why this machine cannot compare engines on a GPU, or None if it can."""
    lacking = [name for name in ("torch", "numba_cuda") if importlib.util.find_spec(name) is None]
    if lacking:
        return f"{' and '.join(lacking)} not installed"
    import torch

    if not torch.cuda.is_available():
        version = "without CUDA" if torch.version.cuda is None else f"with CUDA {torch.version.cuda}"
        return f"PyTorch {torch.__version__}, built {version}, finds no GPU"
    return None


def described():
    """Return the first line of the file: the machine, its GPU and driver, and the versions."""
    import torch

    return machine.describe(torch.get_num_threads()) | {
        "gpu": torch.cuda.get_device_name(),
        "capability": list(torch.cuda.get_device_capability()),
        "driver": _driver(),
        "cuda of torch": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "numba-cuda": metadata.version("numba-cuda"),
    }


def _driver():
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.partition("\n")[0] or None
    except OSError:
        return None


def compared(all_cases, precisions, seconds, device):
    """Return the lines of cases at each precision; a case that would begin after so many seconds has none.

    Parameters
    ----------
    device : str
        The place of PyTorch's tensors; ours are on "cuda", whatever stands in the place of the driver.
    """
    end, lines = time.monotonic() + seconds, []
    points = [(case, precision) for case in all_cases for precision in precisions]
    print(text_row(COLUMNS, COLUMNS.values()), flush=True)
    for number, (case, precision) in enumerate(points):
        left = end - time.monotonic()
        if left <= 0:
            print(f"the time is over: the last {len(points) - number} of {len(points)} cases were not run", flush=True)
            break
        for line in lines_of(case, precision, left / (len(points) - number), device):
            lines.append(line)
            print(text_row(_cells(line), COLUMNS.values()), flush=True)
            if "failed" in line:
                print(f"  no figures: {line['failed']}", flush=True)
    return lines


def lines_of(case, precision, seconds, device):
    """Return a line for each mode of a case: figures of all engines, or why nobody is believed."""
    from benchmarks.gpu.engines import ENGINES, computes_the_same, set_precision

    with _precision(set_precision, precision):
        engines = {name: make(case, "cuda" if name == OURS else device) for name, make in ENGINES.items()}
        same = [name for name in engines if computes_the_same(name, case)]
        lines = []
        for mode in MODES:
            line = {**case.summary(), "mode": mode, "precision": precision, "flops": case.flops(mode)}
            outputs = {name: engines[name].arrays(getattr(engines[name], mode)()) for name in same}
            if failed := disagreement(outputs, TOLERANCES[precision]):
                lines.append(line | {"failed": failed})
                continue
            steps = {name: getattr(engine, mode) for name, engine in engines.items()}
            taken = rounds(steps, seconds / len(MODES), _wait(device))
            figures = {name: {"seconds": statistics.median(its), "rounds": its} for name, its in taken.items()}
            lines.append(line | {"engines": figures, "not compared": sorted(engines.keys() - set(same))})
        return lines


@contextlib.contextmanager
def _precision(set_precision, precision):
    set_precision(precision)
    try:
        yield
    finally:
        set_precision("fp32")


def _wait(device):
    """Return the function that waits for all streams of the process's GPU, ours too."""
    import torch

    return torch.cuda.synchronize if device == "cuda" else lambda: None


def rounds(steps, seconds, wait):
    """Return the seconds of each round of each engine: they take turns, and a round is one step, until `wait` returns.

    Examples
    --------
    >>> found = rounds({"a": lambda: 0, "b": lambda: 0}, 0.0, lambda: None)
    >>> {name: len(its) for name, its in found.items()}
    {'a': 3, 'b': 3}
    """
    for step in steps.values():
        for _ in range(WARM_UPS):
            step()
    found, end = {name: [] for name in steps}, time.monotonic() + seconds
    for number in range(MOST):
        if number >= LEAST and time.monotonic() > end:
            break
        for name, step in steps.items():
            wait()
            began = time.perf_counter()
            step()
            wait()
            found[name].append(time.perf_counter() - began)
    return found


def _cells(line):
    """Return the cells of a line: our milliseconds, then how many times as long PyTorch takes."""
    size = ",".join(map(str, line["size"]))
    names = [line[name] for name in ("cell", "lengths", "directions", "mode", "precision")]
    names.insert(1, size)
    if "failed" in line:
        return [*names, None, None, None]
    return [*names, results.seconds(line, OURS) * 1e3, *(results.ratio(line, name) for name in list(COLUMNS)[-2:])]
