"""Kernels of AMX, the matrix unit of Intel's processors: with its instructions in software, on any host.

On a host with the unit, `test_bfloat16` runs them on it; `tests/on_amx` emulates such a host.
"""

import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests import amx_layers
from tests.test_tile import X86, run_as_another
from varlen_rnn.products import amx, bfloat16
from varlen_rnn.runtime.cache import announce

BEGIN = """
import varlen_rnn as vr
from tests import amx_in_software, test_bfloat16 as tests
unit = amx_in_software.install()
vr.set_float32_matmul_precision("bf16")
"""
END = """
print(unit.count_faults(), unit.count_products() > 1000)
"""
PRODUCTS = """
tests.test_products_have_the_bits_of_the_oracle("bf16")
tests.test_sums_below_the_least_normal_number_become_zero_after_rounding("bf16")
tests.test_sums_over_rows_have_the_bits_of_the_oracle("bf16")
tests.test_sums_over_a_million_rows_lose_at_most_a_rounding_per_block("bf16")
"""
LAYERS = """
from tests import amx_layers
assert list(amx_layers.digests()) == amx_layers.recorded()
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ compiles the instructions in software")
@pytest.mark.parametrize("program", [PRODUCTS, LAYERS], ids=["products", "layers"])
def test_kernels_of_amx_with_instructions_in_software(program, tmp_path):
    """Products have the bits of the oracle, and layers the recorded digests, for one thread and for two."""
    printed = run_as_another(BEGIN + program + END, tmp_path, X86, "avx avx512f", 12, 32)
    assert printed.split() == ["0", "True"]


@pytest.mark.slow
def test_layers_have_the_recorded_digests():
    """By the emulation of this host, or by its unit."""
    command = [sys.executable, "-m", "tests.amx_layers"]
    _, *lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    assert lines == amx_layers.recorded()


@pytest.mark.skipif(amx.is_allowed(), reason="this host has the unit")
def test_products_are_emulated_if_the_kernel_refuses_the_unit(monkeypatch, capfd):
    """The kernel of a host without the unit refuses it as some sandboxes do."""
    monkeypatch.setenv("VARLEN_RNN_QUIET", "0")
    monkeypatch.setattr(amx, "HAS_UNIT", True)
    amx.is_allowed.cache_clear()
    announce.announce_emulation.cache_clear()
    assert bfloat16.rounded_of(np.float32, "bf16") is bfloat16.EMULATED["bf16"]
    assert "because Linux refuses AMX to this process" in capfd.readouterr().err
    amx.is_allowed.cache_clear()
