"""Figures of a kernel by ptxas, for several architectures, and instructions of float64 in kernels of float32."""

import functools
import hashlib
import importlib.util
import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.emulated.folder import kept

ARCHITECTURES = 75, 80, 90
_LEAST_OF_TF32 = 80  # older tensor cores have no tf32


@functools.cache
def find_ptxas():
    """Return the path of ptxas, or None; the package nvidia-cuda-nvcc comes first."""
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations if spec else ():
        for found in (*Path(root).glob("cu*/bin/ptxas"), *Path(root).glob("cuda_nvcc/bin/ptxas")):
            return str(found)
    return shutil.which("ptxas")


@functools.cache
def _version(ptxas):
    return subprocess.run([ptxas, "--version"], capture_output=True, text=True, check=False).stdout


def figures_of(ptx):
    """Return a dict of architecture to figures; they are kept in the folder.

    Figures are registers of a thread, and bytes of its stack frame, of its spills and of its block's shared memory, or
    an `error` of ptxas.  The same PTX is assembled for all architectures, by its `.target`.
    """
    text = f"{ptx} {find_ptxas()} {_version(find_ptxas())} {ARCHITECTURES} {_LEAST_OF_TF32}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:24]
    path = kept(f"{digest}.json", lambda path: path.write_text(json.dumps(_assembled(ptx))))
    return {int(architecture): figures for architecture, figures in json.loads(path.read_text()).items()}


def _assembled(ptx):
    with tempfile.TemporaryDirectory() as folder:
        wanted = [number for number in ARCHITECTURES if number >= _LEAST_OF_TF32 or ".tf32" not in ptx]
        return {architecture: _of_architecture(ptx, architecture, Path(folder)) for architecture in wanted}


def _of_architecture(ptx, architecture, folder):
    source = folder / f"{architecture}.ptx"
    source.write_text(re.sub(r"\.target\s+sm_\d+a?", f".target sm_{architecture}", ptx))
    command = [find_ptxas(), f"-arch=sm_{architecture}", "-v", "-o", str(source.with_suffix(".cubin")), str(source)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    said = run.stdout + run.stderr
    if run.returncode:
        return {"error": said.strip().splitlines()[0]}
    patterns = {
        "registers": r"Used (\d+) registers",
        "stack": r"(\d+) bytes stack frame",
        "spills": r"(\d+) bytes spill (?:stores|loads)",
        "shared": r"(\d+) bytes smem",
    }
    return {name: max([0, *map(int, re.findall(pattern, said))]) for name, pattern in patterns.items()}


def count_float64(ptx):
    """Return the number of instructions that compute, convert, read or write float64."""
    return len(re.findall(r"^\s*(?:@!?%p\d+\s+)?[a-z][\w.:]*\.f64\b", ptx, re.M))


def faults_of(ptx, is_float32):
    """Return sentences on all that is wrong with a kernel, none if nothing is.

    Parameters
    ----------
    ptx : str
    is_float32 : bool
        Whether its arrays of floats are all of float32.
    """
    faults = []
    for architecture, figures in figures_of(ptx).items():
        if "error" in figures:
            faults.append(f"sm_{architecture}: {figures['error']}")
        faults += [f"sm_{architecture}: {figures[n]} bytes of {n}" for n in ("stack", "spills") if figures.get(n)]
    if is_float32 and (count := count_float64(ptx)):
        faults.append(f"{count} float64 instructions, with arrays of float32")
    return faults
