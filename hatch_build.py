"""Kernels compiled while a wheel is built, so that an installation's first training step compiles nothing.

`VARLEN_RNN_KERNELS` says for which processors: `host`, the level of this one (the default); levels, as
`x86-64-v3,x86-64-v4`; or `none`.  Where anything fails, the wheel has no kernels, and they are compiled at their first
use.  A wheel that is there for its kernels (`required`, in `kernels_wheel/pyproject.toml`) is not built then.

pip builds in an isolated environment, but kernels fit one release of Numba: that of the environment which pip installs
into.  If that environment has all packages that compiling needs, they compile, and its installed kernels of the same
sources and versions are copied, so that installing again compiles only what is missing.
"""

import functools
import os
import subprocess
import sys
import tempfile
from importlib.metadata import distribution
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.requirements import Requirement

SOURCES = Path(__file__).parent
WARM = ["-m", "varlen_rnn", "cache", "warm", "--float64"]
LONGEST = 1800  # seconds, for a level
VERSIONS = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
HIDING = {"PYTHONPATH", "PYTHONNOUSERSITE"}  # the variables by which pip isolates a build


class KernelHook(BuildHookInterface):
    """Adds bundles of kernels to a wheel, as the folder `varlen_rnn_kernels`."""

    PLUGIN_NAME = "custom"

    def dependencies(self):
        """Return what compiling needs, unless `requires` of a build says it, or the environment of pip has it."""
        needs_none = self.config.get("required") or not self._levels() or self._around
        return [] if needs_none else list(self.metadata.core.dependencies)

    def initialize(self, version, build_data):
        """Compile, in processes of their own, and include what they saved."""
        levels = self._levels() if version != "editable" else []  # whose sources change
        self._memory = tempfile.TemporaryDirectory(prefix="varlen_rnn_kernels")
        found = []
        for level in levels:
            try:
                found += self._compiled(level)
            except (OSError, subprocess.SubprocessError) as error:
                reason = getattr(error, "stderr", None) or error
                if self.config.get("required"):
                    self._memory.cleanup()
                    raise RuntimeError(f"no kernels for {level}: {reason}") from error
                self.app.display_warning(f"no kernels are compiled ahead for {level}: {reason}")
        for folder in found:
            build_data["force_include"][str(folder)] = f"varlen_rnn_kernels/{folder.name}"
        if found:  # for one system, and one minor version of Python
            build_data["pure_python"], build_data["infer_tag"] = False, True
        if self.config.get("required"):
            build_data["tag"] = _tag_of_index()

    def finalize(self, version, build_data, artifact_path):
        """Remove what was compiled."""
        self._memory.cleanup()

    def _levels(self):
        wanted = os.environ.get("VARLEN_RNN_KERNELS") or self.config.get("levels", "host")
        return [level for level in map(str.strip, wanted.split(",")) if level != "none"]

    @functools.cached_property
    def _around(self):
        """Variables of processes in the environment that pip installs into; None if it lacks what compiling needs."""
        variables = {name: value for name, value in os.environ.items() if name not in HIDING}
        needed = list(map(Requirement, self.metadata.core.dependencies))
        command = [sys.executable, "-c", VERSIONS, *(one.name for one in needed)]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        if done.returncode:
            return None
        found = zip(needed, done.stdout.split(), strict=True)
        return variables if all(one.specifier.contains(version) for one, version in found) else None

    def _compiled(self, level):
        """Return the folders of the kernels of a level: one."""
        place = Path(self._memory.name) / level
        added = {"NUMBA_CACHE_DIR": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
        # `-m` finds the sources in the current folder.  An isolated build of pip would take them out of PYTHONPATH,
        # if the environment around it has them installed as editable.
        subprocess.run(
            [sys.executable, *WARM, "--level", level],
            env=(self._around or os.environ) | added, cwd=SOURCES,
            capture_output=True, text=True, errors="replace", check=True, timeout=LONGEST,
        )  # fmt: skip
        return [folder for folder in (place / "varlen_rnn").iterdir() if folder.is_dir()]


def _tag_of_index():
    """Return the tag of a wheel of kernels, with the platforms of llvmlite's wheel, which kernels need.

    An index refuses the platform `linux_x86_64`, and auditwheel finds none for kernels because they are no libraries.
    """
    lines = distribution("llvmlite").read_text("WHEEL").splitlines()
    platforms = sorted({line.rpartition("-")[2] for line in lines if line.startswith("Tag: ")})
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return f"{python}-{python}{getattr(sys, 'abiflags', '')}-{'.'.join(platforms)}"
