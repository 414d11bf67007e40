"""The build hook: which wheels have kernels, and that no failure breaks an installation."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from varlen_rnn.runtime.cache.environment import environment_of_level
from varlen_rnn.runtime.cache.level import LEVELS

pytest.importorskip("hatchling", reason="hatchling is not installed")

ROOT = Path(__file__).parent.parent
# In place of `cache warm`: a kernel.
WARM = """
import os, sys
os.environ["VARLEN_RNN_LEVEL"] = sys.argv[2]
import numpy as np
from varlen_rnn.kernels.moves import pick_ends
pick_ends(np.ones((3, 2)), np.array([0, 3]), False, np.zeros((1, 2)))
"""


@pytest.fixture
def hooks(monkeypatch):
    """Return `(make, warnings)`: a hook of a configuration, and what hooks have warned of."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "hatch_build", module)
    monkeypatch.setattr(module, "WARM", ["-c", WARM])
    monkeypatch.delenv("VARLEN_RNN_KERNELS", raising=False)
    warnings = []
    app = SimpleNamespace(display_warning=warnings.append)
    metadata = SimpleNamespace(core=SimpleNamespace(dependencies=["numba>=0.60.0"]))

    def make(**options):
        return module.KernelHook(str(ROOT), options, None, metadata, "", "wheel", app)

    return make, warnings


def initialized(hook, version="standard"):
    build_data = {"force_include": {}, "pure_python": True, "infer_tag": False}
    hook.initialize(version, build_data)
    sources = map(Path, build_data["force_include"])
    folders = {source.name: [path.name for path in source.iterdir()] for source in sources}
    hook.finalize(version, build_data, "")
    return build_data, folders


@pytest.mark.slow
def test_a_wheel_has_the_kernels_of_the_levels_asked_for(hooks, monkeypatch):
    make, warnings = hooks
    monkeypatch.setenv("VARLEN_RNN_KERNELS", ",".join(LEVELS))
    build_data, folders = initialized(make())
    assert warnings == []
    assert set(folders) == {environment_of_level(level).name for level in LEVELS}
    assert set(build_data["force_include"].values()) == {f"varlen_rnn_kernels/{name}" for name in folders}
    assert all("environment.txt" in names and len(names) == 2 for names in folders.values())
    assert (build_data["pure_python"], build_data["infer_tag"]) == (False, True)
    assert make().dependencies() == ["numba>=0.60.0"]


@pytest.mark.parametrize(("wanted", "version"), [("none", "standard"), ("host", "editable")])
def test_a_wheel_without_kernels_is_for_every_system(hooks, monkeypatch, wanted, version):
    make, warnings = hooks
    monkeypatch.setenv("VARLEN_RNN_KERNELS", wanted)
    build_data, folders = initialized(make(), version)
    assert (folders, warnings) == ({}, [])
    assert (build_data["pure_python"], build_data["infer_tag"]) == (True, False)
    assert bool(make().dependencies()) == (wanted != "none")


def test_a_failure_with_words_in_another_encoding_is_a_warning(hooks, monkeypatch):
    make, warnings = hooks
    failing = "import os; os.write(2, b'\\xff no\\n'); raise SystemExit(1)"
    monkeypatch.setattr(sys.modules["hatch_build"], "WARM", ["-c", failing])
    assert initialized(make())[1] == {}
    assert "no kernels are compiled ahead for host: \ufffd no" in warnings[0]


def test_a_failure_is_a_warning_unless_the_kernels_are_all_there_is(hooks, monkeypatch):
    make, warnings = hooks
    monkeypatch.setenv("VARLEN_RNN_KERNELS", "x86-64-v9")
    build_data, folders = initialized(make())
    assert folders == {}
    assert build_data["pure_python"]
    (warning,) = warnings
    assert "no kernels are compiled ahead for x86-64-v9" in warning
    assert "KeyError" in warning
    with pytest.raises(RuntimeError, match="no kernels for x86-64-v9"):
        initialized(make(required=True))
