"""`--unless-passed` leaves out quick tests that passed in the last run, and no others."""

import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import HANGS

ROOT = Path(__file__).parent.parent

TESTS = """
import os, pytest

def test_passes():
    pass

def test_passes_at_last():
    assert "SECOND" in os.environ

def test_is_skipped_first():
    if "SECOND" not in os.environ:
        pytest.skip("not yet")

@pytest.fixture
def breaks():
    yield
    assert "SECOND" in os.environ

def test_has_a_fixture_that_fails_afterwards(breaks):
    pass

@pytest.mark.slow
def test_is_slow():
    pass
"""

RUN = """
import sys, pytest
from tests.passed import Passed

class Plugin:
    def pytest_addoption(self, parser):
        parser.addoption("--unless-passed", action="store_true")

    def pytest_configure(self, config):
        config.addinivalue_line("markers", "slow: slow")
        config.pluginmanager.register(Passed(config))

sys.exit(pytest.main(["-q", "-rA", *sys.argv[1:]], plugins=[Plugin()]))
"""


def ran(folder, *options, **variables):
    """Return what pytest prints about the tests above."""
    command = [sys.executable, "-c", RUN, "-n", "0", *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    run = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=HANGS, check=False
    )
    return run.stdout


def test_only_quick_tests_that_passed_are_left_out(tmp_path):
    (tmp_path / "test_five.py").write_text(TESTS)
    first = ran(tmp_path)
    assert "1 failed, 3 passed, 1 skipped, 1 error" in first, first
    second = ran(tmp_path, "--unless-passed", SECOND="1")
    assert "4 passed in" in second, second
    assert "test_passes\n" not in second
    third = ran(tmp_path)  # no option, no test left out
    assert "3 passed" in third, third
