"""The gate at the end of a run of pytest that has all twin tests: workers hand over their launches, then it judges."""

import collections
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

TESTS = Path(__file__).parent.parent
PARAMETER = "emulated"  # of the fixture `device`
# By these options, pytest collects or runs a part of the tests; what other options leave out, it calls deselected.
OPTIONS = "file_or_dir", "lf", "collectonly", "ignore", "ignore_glob"


def is_emulated(item):
    """Return whether a test runs on the emulated device."""
    return getattr(getattr(item, "callspec", None), "params", {}).get("device") == PARAMETER


class Gate:
    """Gathers tests and launches of all processes."""

    def __init__(self, config):
        self.config = config
        self.wanted, self.ran, self.variants = set(), set(), collections.defaultdict(list)
        self.deselected = []
        self.faults = None  # a list after the judgement

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items):
        self.wanted |= {item.nodeid for item in items if is_emulated(item)}  # before options take some away

    def pytest_deselected(self, items):
        self.deselected += [item.nodeid for item in items]

    def pytest_runtest_logreport(self, report):
        if report.when == "call":  # a test without a device is skipped before
            self.ran.add(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error):
        found = getattr(node, "workeroutput", {})
        self.wanted |= set(found.get("wanted", ()))
        self._add(found.get("launched", {}))
        if not self.deselected and (names := found.get("deselected")):  # the same of every worker, told once
            self.config.hook.pytest_deselected(items=[SimpleNamespace(nodeid=name) for name in names])

    def _add(self, launched):
        for digest, variants in launched.items():
            self.variants[digest] += variants

    def not_run(self):
        """Return the names of twin tests that did not run, and of files with twin tests that were left out."""
        files = {name.partition("::")[0].rpartition("/")[2] for name in self.wanted}
        return sorted(self.wanted - self.ran) + sorted(self.files() - files)

    def must_judge(self, session):
        """Return whether this machine has the device, and the command line asks for all tests, of which none failed."""
        part = self.deselected or any(getattr(self.config.option, name, None) for name in OPTIONS)
        if part or session.exitstatus != pytest.ExitCode.OK:
            return False
        from tests.emulated.device import missing

        return missing() is None

    @staticmethod
    def files():
        """Return the names of the files that have twin tests."""
        return {path.name for path in TESTS.glob("test_*.py") if "pytest.mark.twins" in path.read_text()}

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session):
        launched = _launched_here()
        if hasattr(self.config, "workeroutput"):
            given = {"wanted": sorted(self.wanted), "launched": launched, "deselected": self.deselected}
            self.config.workeroutput |= given
            return
        self._add(launched)
        if not (not_run := self.not_run()):
            from tests.emulated import gate

            self.faults = gate.faults(gate.declared(), self.variants)
        elif self.must_judge(session):
            self.faults = [f"{name}: did not run" for name in not_run]
        if self.faults:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if self.faults:
            terminalreporter.section("kernels that the twin tests do not prove", red=True)
            terminalreporter.write_line("\n".join(self.faults))
        elif self.faults is not None:
            number = sum(map(len, self.variants.values()))
            terminalreporter.write_line(
                f"CUDA: {len(self.variants)} kernels launched, in each type of float ({number})"
            )


def _launched_here():
    """Return the float types of this process's launches, by digest; empty if nothing asked for the device."""
    if "tests.emulated.device" not in sys.modules:
        return {}
    from tests.emulated import device, gate

    return gate.launched(device.LAUNCHED)
