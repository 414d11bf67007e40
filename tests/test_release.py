"""What a release uploads: an sdist with all files, and wheels that a package index takes."""

import importlib.util
import os
import subprocess
import sys
import zipfile

import pytest

from tests import release
from tests.release import ROOT, built_sdist, check_wheels

NEEDS = "the sdist is compared with a checkout by git, and hatchling builds it"


@pytest.mark.skipif(not (ROOT / ".git").exists() or importlib.util.find_spec("hatchling") is None, reason=NEEDS)
def test_the_sdist_has_the_files_of_the_repository(tmp_path):
    unpacked = built_sdist(tmp_path)
    assert (unpacked / "conftest.py").exists()
    assert not (unpacked / ".github").exists()


def wheels_of(folder, *platforms):
    for platform in platforms:
        with zipfile.ZipFile(folder / f"a-0.1.0-cp311-cp311-{platform}.whl", "w") as file:
            file.writestr("varlen_rnn_kernels/0/a.nbc", "")
    return folder


@pytest.mark.parametrize("platform", ["manylinux_2_27_x86_64.manylinux_2_28_x86_64", "macosx_12_0_arm64", "win_amd64"])
def test_wheels_with_a_platform_of_an_index_pass(platform, tmp_path, capsys):
    check_wheels(wheels_of(tmp_path, "any", platform))
    assert capsys.readouterr().out.count("kernels: 1") == 2


@pytest.mark.parametrize("platform", ["linux_x86_64", "linux_aarch64", "manylinux_2_27_x86_64.linux_x86_64"])
def test_a_wheel_that_an_index_refuses_is_named(platform, tmp_path):
    with pytest.raises(SystemExit, match=rf"{platform}\.whl: a package index takes no platform linux_"):
        check_wheels(wheels_of(tmp_path, "any", platform))


def test_a_missing_wheel_is_an_error(tmp_path):
    with pytest.raises(SystemExit, match="expected the wheels of the package and of the kernels, got"):
        check_wheels(wheels_of(tmp_path, "any"))


@pytest.fixture
def commands(monkeypatch):
    """Return a list that gets each command that would run, and its variables."""
    found = []
    monkeypatch.setattr(release, "run", lambda *command, **added: found.append((command, added)) or "")
    return found


def test_kernels_are_built_with_the_python_of_the_tests(commands, tmp_path, monkeypatch):
    """The `python3` of the path may be another version, which takes no kernels of this one."""
    monkeypatch.setattr(release, "built_sdist", lambda folder: ROOT)
    for name in ("check_wheels", "installed", "check_training_step", "check_collection"):
        monkeypatch.setattr(release, name, lambda path: None)
    release.main(tmp_path / "dist", "0.66.0")
    build = ROOT / "kernels_wheel" / "build", tmp_path / "dist", "0.66.0"
    assert commands == [(build, {"PYTHON": sys.executable})]


def test_kernels_are_tried_with_the_python_of_the_tests(commands, tmp_path):
    (tmp_path / "varlen_rnn_kernels-0.1.0.whl").touch()
    release.installed(tmp_path)
    assert commands[0][0] == (sys.executable, "-m", "venv", tmp_path / "venv")


@pytest.mark.skipif(os.name != "posix", reason="the build is a shell script")
def test_the_build_of_kernels_takes_the_python_that_it_is_given(tmp_path):
    python = tmp_path / "some python"
    python.write_text('#!/bin/sh\necho "$@"\nexit 3\n')
    python.chmod(0o755)
    command = [ROOT / "kernels_wheel" / "build", tmp_path / "dist"]
    variables = os.environ | {"PYTHON": str(python)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, f"-m venv {tmp_path / 'dist' / 'build'}\n")
