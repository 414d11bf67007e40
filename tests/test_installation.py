"""First steps of an installation run with the variables that compile for the level of their kernels."""

from tests import installation
from varlen_rnn.runtime.cache import level


def test_a_lower_level_is_what_its_variables_say(tmp_path, monkeypatch):
    """On arm64, the level's name is no processor of LLVM's."""
    monkeypatch.setattr(level, "LEVELS", level.levels_of("aarch64-unknown-linux-gnu"))
    given = []
    monkeypatch.setattr(installation, "run", lambda *_, **variables: given.append(variables) or "0.5")
    (tmp_path / "kernels").mkdir()
    assert installation.first_step("python", "", "float32", tmp_path, ["arm64", tmp_path / "kernels"]) == (0.5, [])
    assert given == [level.variables_of("arm64")]
    assert given[0]["NUMBA_CPU_NAME"] == "generic"
