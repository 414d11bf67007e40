"""The own tests of packages, with PyTorch's layers and with ours.

    python -m benchmarks.clients.own_tests FOLDER FILE...

FOLDER is an unpacked source distribution, such as `sb3_contrib-2.9.2`, and each FILE one of its files of tests.  The
environment has the same version of the package.  Doctests of these files count, too.  As a plugin of pytest, this
module replaces each recurrent layer of PyTorch, each recurrent policy of sb3-contrib, and what runs an ONNX model in
silero-vad, when it is made.
"""

import contextlib
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.clients import packages, page

REPORT, REPLACED = "VARLEN_RNN_REPORT", "VARLEN_RNN_REPLACED"
MADE = {  # modules and classes whose objects are replaced as soon as they are made
    "torch.nn": ("RNN", "LSTM", "GRU"),
    "sb3_contrib.common.recurrent.policies": ("RecurrentActorCriticPolicy",),
    "silero_vad.utils_vad": ("OnnxWrapper",),
    "silero_vad.sequence_vad": ("SileroVADSequence",),
}
OUTCOMES = {}  # {name of a test: its outcome}


def pytest_configure():
    """Replace the objects that constructors make, if the run tests our layers."""
    packages.stand_in_for_torchaudio()
    for module, names in MADE.items() if REPLACED in os.environ else ():
        with contextlib.suppress(ModuleNotFoundError):
            for name in names:
                replace_new(getattr(importlib.import_module(module), name))


def replace_new(cls):
    """Let the constructor of a class replace each new object; a layer's constructor leaves subclasses alone."""
    import varlen_rnn.torch

    make, is_layer = cls.__init__, cls.__module__.startswith("torch.")

    @functools.wraps(make)
    def made(self, *args, **options):
        make(self, *args, **options)
        if cls.__module__.startswith("silero_vad."):
            self.session = packages.Session(args[0])
        elif type(self) is cls or not is_layer:
            varlen_rnn.torch.replace(self)

    cls.__init__ = made


def pytest_runtest_logreport(report):
    """Note the outcome of a test: of its call, or of what failed or was skipped before."""
    if report.when == "call" or report.outcome != "passed":
        OUTCOMES[report.nodeid] = report.outcome


def pytest_sessionfinish():
    """Write the outcomes."""
    Path(os.environ[REPORT]).write_text(json.dumps(OUTCOMES))


def outcomes(folder, files, **environment):
    """Return the outcome of each test."""
    with tempfile.TemporaryDirectory() as place:
        report = Path(place, "report.json")
        paths = os.environ | {"PYTHONPATH": str(page.ROOT), REPORT: str(report)} | environment
        command = [sys.executable, "-m", "pytest", "-q", "--doctest-modules", "-p", "benchmarks.clients.own_tests"]
        subprocess.run([*command, *files], cwd=folder, env=paths, stdout=sys.stderr, check=False)
        return json.loads(report.read_text())


def main(folder, *files):
    """Run the tests both ways, put the line in place of the package's last one, and write the page."""
    package, _, version = Path(folder).name.rpartition("-")
    before, after = outcomes(folder, files), outcomes(folder, files, **{REPLACED: "1"})
    counts = [sum(outcome == "passed" for outcome in found.values()) for found in (before, after)]
    lost = sorted(name for name, outcome in before.items() if outcome == "passed" != after.get(name))
    named = {"client": package.replace("_", "-"), "version": version, "files": files}
    page.add(page.TESTS, named | {"tests": len(before), "passed": counts, "lost": lost})


if __name__ == "__main__":
    main(*sys.argv[1:])
