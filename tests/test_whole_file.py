"""A file appears whole or not at all: modes, links, killed and interrupted writers, and several at once."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import varlen_rnn as vr
from tests.waiting import HANGS
from varlen_rnn import whole_file
from varlen_rnn.whole_file import write_file

POSIX = pytest.mark.skipif(whole_file.fcntl is None, reason="needs POSIX")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file"


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def names_in(folder):
    return sorted(os.listdir(folder))


@POSIX
def test_a_new_file_has_the_mode_that_the_umask_leaves_which_nobody_touches(path, monkeypatch):
    before = os.umask(0o027)
    try:
        with monkeypatch.context() as patched:  # between two calls, files of other threads would have another mode
            patched.setattr(os, "umask", None)
            write_file(path, b"new")
    finally:
        os.umask(before)
    assert mode_of(path) == 0o640


@POSIX
@pytest.mark.parametrize("mode", [0o600, 0o444, 0o666, 0o755])
def test_a_file_keeps_its_mode(path, mode):
    path.touch()
    path.chmod(mode)
    write_file(path, b"new")
    assert (path.read_bytes(), mode_of(path)) == (b"new", mode)


@POSIX
def test_a_file_that_others_may_not_read_is_never_one_that_they_may(path, monkeypatch):
    path.touch()
    path.chmod(0o600)
    seen = []
    monkeypatch.setattr(whole_file, "_fill", lambda file, *rest: seen.append(mode_of(Path(file.name))))
    write_file(path, b"new")
    assert seen == [0o600]


def test_a_link_stays_a_link(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder / "file")
    for payload in (b"first", b"second"):
        write_file(tmp_path / "link", payload)
        assert (tmp_path / "link").is_symlink()
        assert (folder / "file").read_bytes() == payload
    assert names_in(folder) == ["file"]


def test_links_that_lead_nowhere_are_an_error(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(OSError, match="symbolic links") as error:
        write_file(tmp_path / "a", b"new")
    assert error.value.filename == str(tmp_path / "a")
    assert (tmp_path / "a").is_symlink()


@POSIX
def test_what_is_no_file_is_written_to(path):
    os.mkfifo(path)
    read = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    write_file(path, b"through a pipe")
    reader.join(HANGS)
    assert read == [b"through a pipe"]
    assert stat.S_ISFIFO(path.stat().st_mode)


@pytest.mark.parametrize("at", ["none/file", "a file/file", "."])
def test_errors_name_the_path_that_was_given(tmp_path, at):
    (tmp_path / "a file").touch()
    given = os.path.join(tmp_path, at)
    with pytest.raises(OSError, match="directory") as error:
        write_file(given, b"new")
    assert error.value.filename == given
    assert names_in(tmp_path) == ["a file"]


def test_the_file_is_synced_before_it_moves_and_its_folder_after(path, monkeypatch):
    replace, done = os.replace, []
    monkeypatch.setattr(
        os, "fsync", lambda handle: done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
    )
    monkeypatch.setattr(os, "replace", lambda *paths: done.append("move") or replace(*paths))
    write_file(path, b"new")
    assert done == ["file", "move", "folder"]
    done.clear()
    write_file(path, b"newer", durable=False)
    assert done == ["move"]


@pytest.mark.parametrize("name", ["n" * 255, "\N{EM DASH}" * 80, ".hidden", "a b\n"])
def test_any_name_will_do(tmp_path, name):
    write_file(tmp_path / name, b"new")
    assert names_in(tmp_path) == [name]


# Writers that end early.

WRITER = """
import os, sys, varlen_rnn as vr
def wait(handle):
    print("writing", flush=True)
    sys.stdin.read()
os.fsync = wait
vr.save(sys.argv[1], what="of the writer")
"""


def writer_in_the_middle(path):
    """Return a process that has written most of a file, and goes on when its input is closed."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], text=True, **pipes)
    assert process.stdout.readline() == "writing\n"
    return process


@pytest.mark.slow
@POSIX
def test_what_killed_writers_left_is_removed_and_what_living_ones_write_is_not(tmp_path, path):
    killed, other, living = [writer_in_the_middle(p) for p in (path, tmp_path / "other", path)]
    assert len(names_in(tmp_path)) == 3
    for process in (killed, other):
        process.kill()
        process.communicate()
    vr.save(path, what="mine")
    assert vr.load(path) == {"what": "mine"}
    assert len(names_in(tmp_path)) == 3, "that of the living one, and that of another file"
    living.communicate()
    assert living.returncode == 0
    assert vr.load(path) == {"what": "of the writer"}
    vr.save(tmp_path / "other", what="mine")
    assert names_in(tmp_path) == ["file", "other"]


@POSIX
def test_a_writer_whose_file_was_taken_for_a_leftover_takes_another(path, monkeypatch):
    hold, lost = whole_file._hold, []

    def remove_before(file):
        if not lost:
            lost.append(file.name)
            whole_file._remove_leftovers(path.parent, os.path.basename(file.name))
        return hold(file)

    monkeypatch.setattr(whole_file, "_hold", remove_before)
    write_file(path, b"new")
    assert len(lost) == 1
    assert path.read_bytes() == b"new"
    assert names_in(path.parent) == ["file"]


def interrupted(function, after):
    """Call a function, and raise an interrupt before so many steps of the interpreter; return whether it came."""
    left = after

    def trace(frame, event, argument):
        nonlocal left
        frame.f_trace_opcodes = True
        left -= 1
        if left < 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a file that is closed when it is freed
@pytest.mark.parametrize("there", [True, False])
def test_an_interrupt_at_any_moment_is_an_interrupt(path, there):
    after, seen = 0, set()
    while True:
        path.unlink(missing_ok=True)
        if there:
            path.write_bytes(b"old")
        came = interrupted(lambda: write_file(path, b"new"), after)
        seen.add(path.read_bytes() if path.exists() else None)
        if not came:
            break
        after += 1
    assert seen == {b"old" if there else None, b"new"}
    write_file(path, b"newer")
    if whole_file.fcntl is not None:
        assert names_in(path.parent) == ["file"]


def test_of_writers_at_once_one_wins_whole(path):
    payloads = [bytes([number]) * 100_000 for number in range(4)]
    failed = []

    def write(payload):
        try:
            for _ in range(25):
                write_file(path, payload, durable=False)
                assert path.read_bytes() in payloads
        except BaseException as error:
            failed.append(error)

    writers = [threading.Thread(target=write, args=(payload,)) for payload in payloads]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failed == []
    assert names_in(path.parent) == ["file"]
