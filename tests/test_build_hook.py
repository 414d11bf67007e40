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


# In place of `cache warm`: a failure that says by how many variables the process is isolated.
ISOLATED = """
import os, sys
sys.exit(f"isolated by {sum(name in os.environ for name in ('PYTHONPATH', 'PYTHONNOUSERSITE'))} variables")
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

    def make(needs="numba>=99", **options):
        metadata = SimpleNamespace(core=SimpleNamespace(dependencies=[needs]))
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
    assert make().dependencies() == ["numba>=99"]


@pytest.mark.parametrize(("wanted", "version"), [("none", "standard"), ("host", "editable")])
def test_a_wheel_without_kernels_is_for_every_system(hooks, monkeypatch, wanted, version):
    make, warnings = hooks
    monkeypatch.setenv("VARLEN_RNN_KERNELS", wanted)
    build_data, folders = initialized(make(), version)
    assert (folders, warnings) == ({}, [])
    assert (build_data["pure_python"], build_data["infer_tag"]) == (True, False)
    assert bool(make().dependencies()) == (wanted != "none")


@pytest.mark.parametrize(("needs", "around"), [("numba>=0.60.0", True), ("numba>=99", False), ("no-such-name", False)])
def test_kernels_are_compiled_in_the_environment_of_pip_if_it_has_what_they_need(hooks, monkeypatch, needs, around):
    """An isolated build of pip hides that environment by variables; with its Numba, the kernels would fit no other."""
    make, warnings = hooks
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")
    monkeypatch.setattr(sys.modules["hatch_build"], "WARM", ["-c", ISOLATED])
    assert make(needs).dependencies() == ([] if around else [needs])
    assert initialized(make(needs))[1] == {}
    assert f"isolated by {0 if around else 2} variables" in warnings[0]


def test_a_wheel_of_kernels_has_a_tag_that_an_index_takes(hooks, monkeypatch):
    """It is llvmlite's, for one minor version of Python."""
    make, _ = hooks
    module, lines = sys.modules["hatch_build"], "Root-Is-Purelib: false\nTag: cp39-abi3-manylinux_2_28_x86_64\n"
    monkeypatch.setattr(module.KernelHook, "_compiled", lambda self, level: [])
    wheel = SimpleNamespace(read_text=lambda name: f"{lines}Tag: cp39-abi3-manylinux_2_27_x86_64\n")
    monkeypatch.setattr(module, "distribution", lambda name: wheel)
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    tag = initialized(make(required=True))[0]["tag"]
    assert tag == f"{python}-{python}{sys.abiflags}-manylinux_2_27_x86_64.manylinux_2_28_x86_64"
    assert "tag" not in initialized(make())[0]


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
    assert "expected a level of this architecture" in warning
    with pytest.raises(RuntimeError, match="no kernels for x86-64-v9"):
        initialized(make(required=True))
