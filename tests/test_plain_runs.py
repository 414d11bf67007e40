"""A plain run leaves slow tests out, and says how many; a run that names tests, or a marker, has them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import HANGS

ROOT = Path(__file__).parent.parent
FILE = """
import pytest

@pytest.mark.slow
def test_slow():
    pass

def test_quick():
    pass
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("plain")
    (found / "test_two.py").write_text(FILE)
    (found / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    return found


def run(folder, arguments):
    """Run pytest as this repository does, in a folder with a slow and a quick test."""
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", *arguments]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=HANGS, check=False, cwd=folder, env=variables
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("-n 0", "1 passed, 1 deselected"),
        ("-n 2", "1 passed, 1 deselected"),
        ("-n 0 .", "1 passed, 1 deselected"),
        ("--collect-only", "1/2 tests collected (1 deselected)"),
        ("test_two.py", "2 passed"),
        ("test_two.py -n 2", "2 passed"),
        ("test_two.py::test_slow", "1 passed"),
        ("-n 0 -k slow", "1 passed, 1 deselected"),
        ("-n 0 -m slow", "1 passed, 1 deselected"),
        ("-n 2 -m slow", "1 passed, 1 deselected"),
    ],
)
def test_slow_tests_run_if_they_are_asked_for(folder, arguments, wanted):
    done = run(folder, arguments.split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(rf"=* {re.escape(wanted)} in .*", done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.needs_device
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_of_all_tests_fails_without_its_twins(folder, workers):
    """The folder has no twins, and nothing was left out on purpose: the gate of `tests/emulated/session.py` judges."""
    done = run(folder, ["-n", workers, "-m", "slow or not slow"])
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "2 passed" in done.stdout
    assert "test_kernels.py: did not run" in done.stdout


WITHOUT = """
import sys
sys.modules |= dict.fromkeys(sys.argv[1:])
import pytest
sys.exit(pytest.main(["-q", "-n", "0", "--collect-only", "varlen_rnn/runtime", "varlen_rnn/torch"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("packages", [["numba.cuda", "numba_cuda", "cuda"], ["torch"]])
def test_doctests_are_collected_without_packages_that_only_some_modules_need(packages):
    command = [sys.executable, "-c", WITHOUT, *packages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout


CI = ROOT / ".ci" / "run"


@pytest.mark.skipif(not CI.exists(), reason="not in a distribution")
def test_ci_begins_with_the_command_of_the_readme_and_then_asks_for_all_other_tests():
    """Nothing else that runs tests stands there: with other options, the gate of twins might not judge."""
    _, command, *_ = (ROOT / "README.md").read_text().partition("## Test it")[2].split("```")
    runs = [line.strip() for line in CI.read_text().splitlines() if "pytest" in line]
    assert runs == [command.strip(), 'python -m pytest -q -m "slow or not slow" --unless-passed']


COLLECT = """
import sys, pytest
from tests.emulated import device

assert pytest.main(["-q", "-n", "0", "--collect-only", "-p", "no:cacheprovider", *sys.argv[1:]]) == 0
assert device.missing.cache_info().misses == 0, "collecting asked for the device, which compiles a kernel"
"""


@pytest.mark.slow
def test_collecting_does_not_ask_for_the_emulated_device():
    files = [path for path in ROOT.glob("tests/test_*.py") if "emulated.device" in path.read_text()]
    command = [sys.executable, "-c", COLLECT, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr
