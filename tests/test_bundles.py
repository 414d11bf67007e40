"""Kernels that were compiled ahead for a level of processors: found where they lie, not run where they are foreign."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import numba
import pytest
from numba import config

from tests.kernel_places import environment
from varlen_rnn.cli import cache, main
from varlen_rnn.runtime.cache import again, bundles, level
from varlen_rnn.runtime.cache.environment import environment_of_level, this_environment
from varlen_rnn.runtime.cache.level import HOST_LEVEL, LEVELS, level_of, levels_of, runs_here, variables_of

# One kernel of each kind: of the engine, called by its address, and for others; the digest is of what they compute.
PROGRAM = """
import hashlib, os, sys
import numpy as np
from varlen_rnn.kernels.pool import pool_sum
from varlen_rnn.products.row_sums import row_product
from varlen_rnn.runtime.cache.disk import DiskCache
save, saved = DiskCache.save_overload, []
DiskCache.save_overload = lambda self, *args: saved.append(self._function.__name__) or save(self, *args)
rng = np.random.default_rng(0)
a, b = rng.standard_normal((40, 7)), rng.standard_normal((40, 9))
sums = np.zeros((2, 7))
pool_sum(a, np.array([0, 30, 40]), np.ones(2), sums)
digest = hashlib.sha256(row_product(a, b).tobytes() + sums.tobytes())
print(len(saved), digest.hexdigest())
"""

X86 = "x86_64-unknown-linux-gnu"
needs_level = pytest.mark.skipif(HOST_LEVEL is None, reason="no kernels are compiled ahead for this processor")


def run(cache, *path, program=PROGRAM, **variables):
    """Run a program in a process of its own; return how many kernels it compiled, and what follows that."""
    command, given = [sys.executable, "-c", program], environment(cache, *path, **variables)
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    count, *words = done.stdout.split()
    return int(count), words, done.stderr


def build(tmp_path_factory, wanted, **variables):
    """Return a folder of the path in which the program's kernels are installed, and what it computed."""
    cache = tmp_path_factory.mktemp("cache")
    count, digest, _ = run(cache, **(variables or variables_of(wanted)))
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(cache / "varlen_rnn", site / "varlen_rnn_kernels")
    assert [folder.name for folder in (site / "varlen_rnn_kernels").iterdir()] == [environment_of_level(wanted).name]
    (site / "varlen_rnn_kernels" / "__init__.py").touch()  # hides the installed kernels
    return site, count, digest


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    return build(tmp_path_factory, HOST_LEVEL)


# Which level.


def test_a_host_takes_the_level_that_it_has_all_features_of():
    v3, v4 = (dict.fromkeys(levels_of(X86)[name].features, True) for name in ("x86-64-v3", "x86-64-v4"))
    assert level_of(X86, v3) == "x86-64-v3"
    assert level_of(X86, v4 | {"avx512vnni": True}) == "x86-64-v4"
    for name in v3:
        assert level_of(X86, v3 | {name: False}) is None
        assert level_of(X86, v4 | {name: False}) is None
    assert level_of(X86, v3 | {"avx512f": True}) is None  # its tile has the shape of v4, whose features it lacks
    assert level_of(X86, {}) is None


@pytest.mark.parametrize("triple", ["aarch64-unknown-linux-gnu", "arm64-apple-darwin23.1.0", "aarch64-pc-windows-msvc"])
def test_every_arm64_processor_has_the_one_level(triple):
    assert level_of(triple, {"neon": True}) == level_of(triple, {}) == "arm64"
    assert list(levels_of(triple)) == ["arm64"]


def test_an_unknown_architecture_has_no_level():
    assert not levels_of("riscv64-unknown-linux-gnu")
    assert level_of("riscv64-unknown-linux-gnu", {"v": True}) is None


def test_the_levels_are_those_of_the_host_only_where_it_has_them(monkeypatch):
    monkeypatch.setattr(level, "LEVELS", levels_of(X86))
    features = dict.fromkeys(level.LEVELS["x86-64-v3"].features, True)
    monkeypatch.setattr(level.llvm, "get_host_cpu_features", lambda: features)
    assert runs_here("x86-64-v3")
    assert not runs_here("x86-64-v4")
    assert set(variables_of("x86-64-v3")) == {"VARLEN_RNN_LEVEL", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"}
    assert set(variables_of("x86-64-v4")) == {"VARLEN_RNN_LEVEL"}


def test_code_of_the_level_arm64_is_for_the_processor_that_llvm_calls_generic(monkeypatch):
    monkeypatch.setattr(level, "LEVELS", levels_of("arm64-apple-darwin23.1.0"))
    assert variables_of("arm64")["NUMBA_CPU_NAME"] == "generic"


FOREIGN = "x86-64-v3" if "arm64" in LEVELS else "arm64"


@pytest.mark.parametrize(("wanted", "hint"), [(FOREIGN, "on a machine with it"), ("x86-64-v9", "")])
def test_levels_of_another_architecture_are_refused(wanted, hint, capsys):
    assert main(["cache", "warm", "--level", wanted]) == 2
    assert re.search(f"--level: expected a level of this architecture, .*{wanted}.*{hint}", capsys.readouterr().err)
    command = [sys.executable, "-c", "import varlen_rnn"]
    variables = environment("unused", VARLEN_RNN_LEVEL=wanted)
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert f"InputError: VARLEN_RNN_LEVEL: expected a level of this architecture, {' or '.join(LEVELS)}" in done.stderr


@pytest.mark.parametrize("levels", [LEVELS, {}])
def test_a_host_without_a_level_is_told_the_levels(levels, monkeypatch, capsys):
    monkeypatch.setattr(level, "LEVELS", levels)
    monkeypatch.setattr(cache, "HOST_LEVEL", None)
    assert main(["cache", "warm", "--level", "host"]) == 2
    known = " or ".join(levels) or "which has none"
    wanted = f"--level host: expected a level of this architecture, {known}, got a processor that has no level"
    assert wanted in capsys.readouterr().err


def test_names_of_levels_differ_from_each_other_and_from_the_host():
    assert len({this_environment().name, *(environment_of_level(name).name for name in LEVELS)}) == 1 + len(LEVELS)


def test_kernels_of_a_level_outlive_an_update_of_the_system(monkeypatch):
    """On macOS, LLVM's triple ends with the release."""
    names = set()
    for triple in ("arm64-apple-darwin23.1.0", "arm64-apple-darwin24.0", "aarch64-unknown-linux-gnu"):
        monkeypatch.setattr(level.llvm, "get_process_triple", lambda triple=triple: triple)
        names.add(environment_of_level.__wrapped__("arm64").name)
    assert len(names) == 2


# Found, and the same.


@pytest.mark.slow
@needs_level
def test_an_installed_bundle_is_run_in_place_of_compiling(installed, tmp_path):
    site, count, digest = installed
    assert count == 3
    before = {path: path.stat().st_mtime_ns for path in site.rglob("*")}
    assert run(tmp_path, site)[:2] == (0, digest)
    assert not list(tmp_path.iterdir())
    assert {path: path.stat().st_mtime_ns for path in site.rglob("*")} == before  # which may be read-only
    own, same, _ = run(tmp_path)  # code for this host
    assert (own, same) == (count, digest)


@pytest.mark.slow
@needs_level
@pytest.mark.parametrize("variables", [{"VARLEN_RNN_CHECK": "1"}, {"NUMBA_CPU_NAME": "generic"}, {"NUMBA_OPT": "2"}])
def test_who_wants_other_code_gets_it(installed, tmp_path, variables):
    site, count, _ = installed
    assert run(tmp_path, site, **variables)[0] == count


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OPT", 1), ("LOOP_VECTORIZE", 0), ("SLP_VECTORIZE", 1), ("BOUNDSCHECK", 1), ("DEBUGINFO_DEFAULT", 1),
        ("EXTEND_VARIABLE_LIFETIMES", 1), ("USING_SVML", True), ("LLVM_REFPRUNE_PASS", 0),
        ("LLVM_REFPRUNE_FLAGS", "per_bb"),
    ],
)  # fmt: skip
def test_settings_that_change_code_change_names(name, value, monkeypatch):
    made = environment_of_level.__wrapped__, this_environment.__wrapped__
    before = made[0]("a level").name, made[1]().name
    monkeypatch.setattr(config, name, value)
    assert not {made[0]("a level").name, made[1]().name} & {*before}


@pytest.mark.slow
@needs_level
def test_other_versions_are_reported_and_not_run(installed, tmp_path):
    site, count, _ = installed
    other = 'import numba; numba.__version__ = "0.1.2"\n'
    found, _, said = run(tmp_path, site, program=other + PROGRAM, VARLEN_RNN_QUIET="0")
    assert found == count
    first, second = said.splitlines()
    assert "compiling kernels" in first
    assert environment_of_level(HOST_LEVEL).description in second
    assert "Numba 0.1.2" in second
    assert f"(install kernels for its versions: {sys.executable} -m pip install " in second


class Installed:
    """A distribution, as `importlib.metadata` knows it: by name, and where it was installed from."""

    def __init__(self, name, **origin):
        self.name, self.origin = name, origin

    def read_text(self, name):
        return json.dumps(self.origin) if name == "direct_url.json" and self.origin else None


@pytest.mark.parametrize(
    ("installed", "command"),
    [
        (["varlen-rnn", "varlen-rnn-kernels"], "varlen-rnn-kernels numba==" + numba.__version__),
        (["varlen-rnn"], "--force-reinstall --no-deps --no-binary varlen-rnn varlen-rnn"),
        ([], "--force-reinstall --no-deps --no-binary varlen-rnn varlen-rnn"),
    ],
)
def test_the_command_for_other_versions_is_that_of_the_distribution(installed, command, monkeypatch):
    found = {name: Installed(name) for name in installed}
    monkeypatch.setattr(again, "distribution", lambda name: found[name] if name in found else missing(name))
    assert again.command_for_kernels() == f"{sys.executable} -m pip install {command}"


def test_the_command_for_other_versions_names_the_folder_of_sources(tmp_path, monkeypatch):
    folder = tmp_path / "a clone"
    origin = Installed("varlen-rnn", url=folder.as_uri(), dir_info={})
    monkeypatch.setattr(again, "distribution", lambda name: origin if name == origin.name else missing(name))
    assert "--no-binary" in again.command_for_kernels()  # the folder is gone
    folder.mkdir()
    assert again.command_for_kernels().endswith(f" --force-reinstall --no-deps {shlex.quote(str(folder))}")


@pytest.mark.parametrize(
    ("platform", "quoted"), [("linux", "'/opt/a place/python' -m pip"), ("win32", '"/opt/a place/python" -m pip')]
)
def test_the_command_for_other_versions_quotes_python_as_the_system_does(platform, quoted, monkeypatch):
    monkeypatch.setattr(again, "distribution", missing)
    monkeypatch.setattr(again, "sys", SimpleNamespace(executable="/opt/a place/python", platform=platform))
    assert again.command_for_kernels().startswith(quoted)


def missing(name):
    raise PackageNotFoundError(name)


# Damaged.


@pytest.mark.slow
@needs_level
def test_damage_of_any_kind_is_compiled_anew(installed, tmp_path):
    """Each file in turn has a flipped bit, another one's content, or an end that is missing."""
    site, count, digest = installed
    damaged = shutil.copytree(site, tmp_path / "site")
    paths = sorted(damaged.rglob("*.nbc"))
    for number, path in enumerate(paths):
        content = bytearray(path.read_bytes())
        if number % 3 == 0:
            content[len(content) * (number + 1) // (len(paths) + 1)] ^= 4
        elif number % 3 == 1:
            del content[-1]
        else:
            content = paths[number - 1].read_bytes()
        path.write_bytes(content)
    assert run(tmp_path / "cache", damaged)[:2] == (count, digest)


@pytest.mark.slow
@needs_level
def test_what_is_missing_is_compiled_alone(installed, tmp_path):
    site, _, digest = installed
    partly = shutil.copytree(site, tmp_path / "site")
    next(partly.rglob("pool_sum*.nbc")).unlink()
    assert run(tmp_path / "cache", partly)[:2] == (1, digest)


# Levels that the builder lacks.


@pytest.mark.slow
@pytest.mark.skipif(HOST_LEVEL is None, reason="the code is run here")
def test_a_second_code_generator_makes_the_code_of_a_level(tmp_path_factory, tmp_path):
    """Built as on a host that lacks the level, then run on this one, which has it."""
    site, _, digest = build(tmp_path_factory, HOST_LEVEL, VARLEN_RNN_LEVEL=HOST_LEVEL)
    assert run(tmp_path, site)[:2] == (0, digest)


# Carried.


@pytest.mark.slow
@needs_level
def test_what_was_exported_is_imported_and_run(installed, tmp_path, monkeypatch, capsys):
    """Installed kernels, to the cache of another machine; a damaged file stays behind, and is compiled there."""
    site, count, digest = installed
    monkeypatch.setattr(bundles, "installed_places", lambda: [site / bundles.PACKAGE])
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "here"))
    assert main(["cache", "export", str(tmp_path / "kernels")]) == 0
    assert capsys.readouterr().out.startswith(f"{count} kernels exported to")
    (path,) = (tmp_path / "kernels").rglob("pool_sum_cpu-*.nbc")
    path.write_bytes(path.read_bytes()[:-1])
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "there"))
    assert main(["cache", "import", str(tmp_path / "kernels")]) == 0
    assert f"{count - 1} kernels imported from" in (text := capsys.readouterr().out)
    assert "1 damaged file left out" in text
    assert not list((tmp_path / "there").rglob(path.name))
    assert run(tmp_path / "there")[:2] == (1, digest)
    assert main(["cache", "export", str(tmp_path / "again")]) == 0
    # What is installed and imported counts once; one kernel is also there for this host.
    assert capsys.readouterr().out.startswith(f"{count + 1} kernels exported to")
    assert main(["cache"]) == 0
    assert "stale" not in capsys.readouterr().out


@pytest.mark.slow
@needs_level
def test_warming_a_level_takes_what_is_installed_for_it(installed, tmp_path, monkeypatch):
    """Kernels of the same sources and versions are taken, except damaged ones and those of another level."""
    site, _, digest = installed
    place = shutil.copytree(site, tmp_path / "site") / bundles.PACKAGE
    shutil.copytree(place / environment_of_level(HOST_LEVEL).name, place / ("0" * 32))
    damaged = next(place.rglob(f"{environment_of_level(HOST_LEVEL).name}/pool_sum_cpu-*.nbc"))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    monkeypatch.setattr(bundles, "installed_places", lambda: [place])
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "here"))
    compiling = []
    run_nothing = lambda *_, **__: compiling.append(1) or SimpleNamespace(returncode=0)
    monkeypatch.setattr(cache, "subprocess", SimpleNamespace(run=run_nothing))
    assert main(["cache", "warm", "--level", "host"]) == 0
    taken = {path.relative_to(tmp_path / "here" / "varlen_rnn") for path in (tmp_path / "here").rglob("*.nbc")}
    assert taken == {
        path.relative_to(place) for path in place.glob(f"{environment_of_level(HOST_LEVEL).name}/*.nbc")
    } - {damaged.relative_to(place)}
    assert compiling == [1]
    assert run(tmp_path / "here")[:2] == (1, digest)


def test_kernels_of_another_version_are_not_imported(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "kernels" / ("0" * 32)
    folder.mkdir(parents=True)
    (folder / "environment.txt").write_text("another version")
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "there"))
    assert main(["cache", "import", str(tmp_path / "kernels")]) == 2
    output = capsys.readouterr()
    assert "left out, for another version or machine: another version" in output.out
    assert "expected kernels of this version" in output.err
    assert not (tmp_path / "there").exists()
