"""Many processes that meet an empty cache compile each kernel once, and a killed one blocks nobody."""

import multiprocessing
import subprocess
import sys
import time

import pytest
from numba import config

from tests.kernel_places import environment
from varlen_rnn.runtime.cache import disk
from varlen_rnn.runtime.cache.disk import Alone
from varlen_rnn.runtime.jit import cpu_kernel

COMPILE = """
import multiprocessing, sys
import numpy as np
from varlen_rnn.kernels.moves import pick_ends
from varlen_rnn.kernels.rows import gather_rows
from varlen_rnn.runtime.cache.disk import DiskCache

saved = []
def save(self, *arguments, save=DiskCache.save_overload):
    saved.append(self._function.__name__)
    save(self, *arguments)
DiskCache.save_overload = save

def work(barrier, counts):
    x, out = np.ones((3, 2)), np.zeros((1, 2))
    barrier.wait()
    gather_rows(x, np.array([1]), out)
    pick_ends(x, np.array([0, 3]), False, out)
    assert out.sum() == 2
    counts.put(saved)

if __name__ == "__main__":
    context, many = multiprocessing.get_context(sys.argv[1]), int(sys.argv[2])
    barrier, counts = context.Barrier(many), context.SimpleQueue()
    workers = [context.Process(target=work, args=(barrier, counts), daemon=True) for _ in range(many)]
    for worker in workers:
        worker.start()
    found = [name for _ in workers for name in counts.get()]
    for worker in workers:
        worker.join()
    print(*sorted(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("method", "many"), [("fork", 8), ("spawn", 3)])
def test_each_kernel_is_compiled_by_one_process(method, many, tmp_path):
    """By daemonic workers, which may have no children of their own."""
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip("not on this system")
    (tmp_path / "compile.py").write_text(COMPILE)
    command, given = [sys.executable, tmp_path / "compile.py", method, str(many)], environment(tmp_path / "cache")
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["gather_rows_cpu", "pick_ends_cpu"]
    assert not list(tmp_path.rglob("*.lock"))


HOLD = """
import sys, time
from pathlib import Path
from varlen_rnn.runtime.cache.disk import Alone
held = Alone(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_killed_process_blocks_nobody(tmp_path):
    path = tmp_path / "kernel.nbc"
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        assert path.with_suffix(".lock").exists()
        process.kill()
    began = time.monotonic()
    Alone(path).release()
    assert time.monotonic() - began < disk.LONGEST_WAIT / 2
    assert not path.with_suffix(".lock").exists()


def test_a_stopped_process_is_not_waited_for_forever(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "LONGEST_WAIT", 0.1)
    first, second = Alone(tmp_path / "kernel.nbc"), Alone(tmp_path / "kernel.nbc")
    assert first._file is not None
    assert second._file is None
    second.release()
    assert (tmp_path / "kernel.lock").exists()  # the first one still has it
    first.release()


def test_what_does_not_compile_is_let_go(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    kernel = cpu_kernel(lambda x: x.nothing_of_the_kind)
    for _ in range(2):
        with pytest.raises(Exception, match="nothing_of_the_kind"):
            kernel(1.0)
    assert list(tmp_path.rglob("*")) != []
    assert not list(tmp_path.rglob("*.lock"))


def test_a_folder_that_cannot_be_written_is_not_locked(tmp_path):
    (tmp_path / "a file").write_text("")
    Alone(tmp_path / "a file" / "kernel.nbc").release()
