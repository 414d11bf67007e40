"""What a release uploads, and that it works: `python -m tests.release FOLDER [NUMBA]`, with the extra `test` installed.

Builds the sdist and, from it, the wheel without kernels and the wheel of kernels into FOLDER.  Then FOLDER/index is a
local index with all that they need, from which FOLDER/venv is installed, without any other index.

Exits with an error if the sdist lacks a file, a package index would refuse the tag of a wheel, README's training step
fails or compiles a kernel in FOLDER/venv, or the tests of the sdist cannot be collected.
"""

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
# The platforms that package indexes take; `linux_x86_64` says nothing of the system's libraries.
PLATFORM = re.compile(r"any|(manylinux|musllinux)_\w+|manylinux(1|2010|2014)_\w+|macosx_\w+|win32|win_(amd64|arm64)")
NOT_IN_SDIST = (".github/",)  # only the repository's own machinery reads it
TRIES = 5  # of kernels whose names are shown


def run(*command, cwd=None, **added):
    """Run a command with more variables, and without those that let other packages be imported; return its output."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=variables | added, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stdout[-3000:]}")
    return done.stdout


def built_sdist(folder):
    """Build the sdist, check that it has the files of the repository, and return the path of its unpacked folder."""
    run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", folder, cwd=ROOT)
    (path,) = folder.glob("*.tar.gz")
    with tarfile.open(path) as file:
        file.extraction_filter = getattr(tarfile, "data_filter", None)  # not in the first releases of Python 3.11
        file.extractall(folder / "sdist")
    (unpacked,) = (folder / "sdist").iterdir()
    if missing := missing_files(unpacked):
        raise SystemExit(
            f"{path.name} lacks {', '.join(missing)}: see tool.hatch.build.targets.sdist in pyproject.toml"
        )
    print(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB, all files of the repository", flush=True)
    return unpacked


def missing_files(unpacked):
    """Return the names of files that git has in the checkout and an unpacked sdist does not have."""
    tracked = run("git", "ls-files", cwd=ROOT).splitlines()
    return [name for name in tracked if not name.startswith(NOT_IN_SDIST) and not (unpacked / name).exists()]


def check_wheels(folder):
    """Check the tags of the wheels as a package index does, and print their sizes."""
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 2:
        raise SystemExit(f"{folder}: expected the wheels of the package and of the kernels, got {[*map(str, wheels)]}")
    for wheel in wheels:
        refused = [name for name in wheel.stem.rpartition("-")[2].split(".") if not PLATFORM.fullmatch(name)]
        if refused:
            raise SystemExit(f"{wheel.name}: a package index takes no platform {', '.join(refused)}")
        with zipfile.ZipFile(wheel) as file:
            kernels = sum(name.endswith(".nbc") for name in file.namelist())
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB, kernels: {kernels}", flush=True)


def installed(folder):
    """Make the local index, install the kernels and their requirements from it, and return the path of Python."""
    run(sys.executable, "-m", "venv", folder / "venv")
    python, index = folder / "venv" / "bin" / "python", folder / "index"
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    (kernels,) = folder.glob("varlen_rnn_kernels-*.whl")
    run(*pip, "download", "--only-binary", ":all:", "--find-links", folder, "--dest", index, kernels)
    alone = ["--isolated", "--no-index", "--find-links", index]  # the user's settings might name another index
    run(*pip, "install", *alone, "varlen-rnn-kernels", PIP_CONFIG_FILE=os.devnull)
    return python


def check_training_step(python):
    """Run README's training step from an empty folder on an empty cache; nothing may be compiled."""
    examples = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    example = examples[-1]  # the others need extras
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as elsewhere:
        said = run(python, "-W", "error", "-c", example, cwd=elsewhere, NUMBA_CACHE_DIR=cache)
        compiled = [path.name for path in Path(cache).rglob("*.nbc")]
    if compiled:
        raise SystemExit(f"README's training step compiled {len(compiled)} kernels: {', '.join(compiled[:TRIES])}")
    print(f"README's training step, from the local index: {said.strip()}; compiled nothing", flush=True)


def check_collection(unpacked):
    """Collect the tests of an unpacked sdist."""
    said = run(sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", cwd=unpacked)
    print(f"the sdist's tests: {said.strip().splitlines()[-1]}", flush=True)


def main(folder, *numba):
    """Build, install and check."""
    folder = Path(folder).resolve()
    folder.mkdir(parents=True)  # a folder that exists might have wheels of others
    unpacked = built_sdist(folder)
    run(unpacked / "kernels_wheel" / "build", folder, *numba, PYTHON=sys.executable)
    check_wheels(folder)
    check_training_step(installed(folder))
    check_collection(unpacked)


if __name__ == "__main__":
    main(*sys.argv[1:])
