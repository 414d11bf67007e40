"""What an import brings with it; how long it takes is for `python -m benchmarks startup`: no test asserts a time."""

import subprocess
import sys


def modules_after(program):
    command = [sys.executable, "-c", f"{program}; import sys; print(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, check=True, text=True, timeout=120).stdout.split())


def test_an_import_brings_nothing_that_only_some_programs_use():
    added = modules_after("import varlen_rnn") - modules_after("import numba")
    assert "varlen_rnn.nn.recurrent" in added
    unwanted = {"scipy", "tqdm", "torch", "matplotlib", "pandas", "varlen_rnn.cli"}
    assert not {name for name in added if name.split(".")[0] in unwanted or name in unwanted}
