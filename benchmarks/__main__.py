"""Measure varlen_rnn beside other engines.

`python -m benchmarks [SUITE ...] [--quick]` runs suites; `python -m benchmarks report` writes docs/benchmarks.md;
`python -m benchmarks against OTHER` compares a layer's training step with that of another checkout,
or of kernels for a level of processors; `python -m benchmarks scale --ranks N` prints what a model says of many ranks;
`python -m benchmarks quality` compares the estimators' defaults with simple baselines;
`python -m benchmarks gpu` compares layers on a CUDA device with PyTorch's there.
"""

import argparse
import sys
import time
from pathlib import Path

import varlen_rnn as vr
from benchmarks import against, machine, measure, results, scale
from benchmarks.engines import ALL, lacking
from benchmarks.gpu import run as gpu
from benchmarks.processes import ROOT, EngineError
from benchmarks.quality import run as quality
from benchmarks.report import write_report
from benchmarks.suites import SUITES
from benchmarks.tables import text_row

FULL, QUICK = ROOT / "benchmarks" / "results", ROOT / "out" / "benchmarks"


def run_suite(name, threads, quick, folder):
    """Run a suite, print its lines as they come, and write them when all are there."""
    suite, lines, began = SUITES[name], [machine.describe(threads)], time.perf_counter()
    widths = suite.columns.values()
    points = suite.points(quick, threads)
    print(f"\n{name}\n{text_row(suite.columns, widths)}", flush=True)
    for number, point in enumerate(points):
        spent = time.perf_counter() - began
        left = f", about {spent / number * (len(points) - number) / 60:.1f} min to go" if number else ""
        print(f"[{name} {number + 1}/{len(points)}{left}] {point}", file=sys.stderr, flush=True)
        for line in suite.run(point, measure.QUICK if quick else suite.patience):
            lines.append(line)
            print(text_row(suite.cells(line), widths), flush=True)
            if "failed" in line:
                print(f"  no figures: {line['failed']}", flush=True)
            if results.disturbed(line):
                print(f"  others used the machine in every round of {', '.join(results.disturbed(line))}", flush=True)
    path = folder / f"{name}.jsonl"
    results.write(path, lines)
    print(f"{path}: {time.perf_counter() - began:.0f} s", file=sys.stderr)


def warn():
    """Say what will be missing."""
    for engine in ALL:
        if lacking(engine):
            print(f'{engine} is left out: {" and ".join(lacking(engine))} not installed (pip install ".[bench]")')


def main():
    try:
        if sys.argv[1:2] == ["against"]:
            against.main(sys.argv[2:])
        elif sys.argv[1:2] == ["scale"]:
            scale.main(sys.argv[2:])
        elif sys.argv[1:2] == ["quality"]:
            quality.main(sys.argv[2:])
        elif sys.argv[1:2] == ["gpu"]:
            gpu.main(sys.argv[2:])
        else:
            main_of_suites()
    except EngineError as error:
        raise SystemExit(str(error)) from error


def main_of_suites():
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=f"{', '.join(SUITES)}; all of them by default")
    parser.add_argument("--quick", action="store_true", help="sizes that only show that everything runs")
    parser.add_argument("--threads", type=int, default=vr.get_num_threads(), help="of every engine; default all cores")
    parser.add_argument("--results", type=Path, help="folder of the results; default benchmarks/results, quick: out/")
    arguments = parser.parse_args()
    folder = arguments.results or (QUICK if arguments.quick else FULL)
    if arguments.suites == ["report"]:
        write_report(folder, ROOT / "docs")
        print(f"{ROOT / 'docs' / 'benchmarks.md'}, of the results in {folder}")
        return
    unknown = set(arguments.suites) - set(SUITES)
    if unknown:
        parser.error(f"no suite {', '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    warn()
    for name in arguments.suites or SUITES:
        run_suite(name, arguments.threads, arguments.quick, folder)


if __name__ == "__main__":
    main()
