"""Runs the suite with the oldest and the newest Numba and NumPy that `pyproject.toml` allows.

    python -m tests.versions                  # what depends on Numba most, in fresh virtual environments
    python -m tests.versions --all            # the whole suite
    python -m tests.versions --only oldest

By hand, once a release and before a bound changes.  The results stand in `tests/versions.txt`, one line for each end of
the bounds, and are committed.  Every run compiles all kernels anew.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "tests" / "versions.txt"
ENDS = ("oldest", "newest")
# Kernels, the cache, products, the recurrence, attention, forks, inlining, and what an import brings with it.
CHOSEN = [
    *(f"tests/test_{name}.py" for name in ("jit", "jit_cache", "forks", "startup", "tile", "sums", "kernels")),
    *(f"tests/test_{name}.py" for name in ("activations", "recurrence_kernels", "attention")),
    *(f"varlen_rnn/{room}" for room in ("runtime", "kernels", "products", "cells", "recurrence")),
]
NEEDED = ("pytest", "hypothesis", "threadpoolctl")  # by the chosen tests
SHOWN = ("numba", "llvmlite", "numpy", "scipy")


def project():
    """Return the part `project` of `pyproject.toml`."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirements(end):
    """Return the package's requirements for pip: at the lower bound of each if `end` is "oldest".

    Examples
    --------
    >>> [line for line in requirements("oldest") if line.startswith("numpy")]
    ['numpy==2.0']
    """
    allowed = project()["dependencies"]
    if end == "newest":
        return allowed
    return [re.sub(r">=([^,]+).*", r"==\1", requirement) for requirement in allowed]


def of_tests(everything):
    """Return the requirements of the tests: all of them, or only those that the chosen tests need."""
    known = project()["optional-dependencies"]["test"]
    return known if everything else [line for line in known if re.match(r"[\w-]+", line)[0] in NEEDED]


def run(end, tests, everything):
    """Make an environment, run the tests in it, and return a line that says how it went."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder, "bin" if os.name == "posix" else "Scripts", "python")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *requirements(end), *of_tests(everything)], check=True)
        environment = os.environ | {"PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(Path(folder, "kernels"))}
        environment |= {"VARLEN_RNN_QUIET": "1", "MPLBACKEND": "Agg"}
        versions = f"from importlib.metadata import version as v; print(*(n + ' ' + v(n) for n in {SHOWN}), sep=', ')"
        done = subprocess.run([python, "-c", versions], capture_output=True, text=True, check=True)
        print(f"{end}: {done.stdout.strip()}", flush=True)
        last = ""
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                print(line, end="", flush=True)
                last = line.strip() or last
        python_version = ".".join(map(str, sys.version_info[:3]))
        return f"{end}: Python {python_version}, {done.stdout.strip()}: {last}"


def main():
    """Run the tests at both ends, or at one, and write the results; end with 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="the whole suite")
    parser.add_argument("--only", choices=ENDS)
    given = parser.parse_args()
    before = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    lines = {line.partition(":")[0]: line for line in before}
    for end in [given.only] if given.only else ENDS:
        tests = ["-m", "slow or not slow"] if given.all else CHOSEN
        lines[end] = f"{run(end, tests, given.all)}, {'whole suite' if given.all else 'chosen tests'}, {date.today()}"
        RESULTS.write_text("".join(f"{lines[name]}\n" for name in ENDS if name in lines))
    print("", *lines.values(), sep="\n")
    sys.exit(any("failed" in line or "error" in line for line in lines.values()))


if __name__ == "__main__":
    main()
