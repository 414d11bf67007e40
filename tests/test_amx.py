"""Kernels of AMX, the matrix unit of Intel's processors: with its instructions in software, on any host.

On a host with the unit, `test_bfloat16` runs them on it; `tests/on_amx` emulates such a host.
"""

import shutil

import numpy as np
import pytest

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
from varlen_rnn.products import amx
from varlen_rnn.recurrence import schedule
from varlen_rnn.runtime import threads
threads.SMALL_WORK, schedule._BARRIER_COST = 0, 0

def results():
    two_phases = {"reset_after": False, "bidirectional": True, "recompute": 4}
    layers = [(vr.nn.LSTM, (9, 70), options) for options in ({}, {"num_heads": 2}, {"proj_size": 33})]
    for cell, size, options in (*layers, (vr.nn.GRU, (5, 33), two_phases)):
        for lengths in ([3, 0, 17, 1], [5] * 40, [1], list(range(60))):
            yield from tests.results_of(cell, size, lengths, **options)
    x = vr.create_lod_tensor(np.random.default_rng(3).standard_normal((130, 48)).astype("f"), [[60, 0, 70]])
    yield np.asarray(vr.nn.MultiheadAttention(48, 4)(x, x, x)[0])

by_unit = []
for count in (1, 2):
    vr.set_num_threads(count)
    by_unit.append(list(results()))
products = unit.count_products()
amx.is_allowed = lambda: False
tests._forget_addresses()
for first, second, emulated in zip(*by_unit, results(), strict=True):
    tests.same_bits(first, emulated)
    tests.same_bits(second, emulated)
assert unit.count_products() == products  # the emulation uses no instruction of the unit
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ compiles the instructions in software")
@pytest.mark.parametrize("program", [PRODUCTS, LAYERS], ids=["products", "layers"])
def test_kernels_of_amx_with_instructions_in_software(program, tmp_path):
    """Products have the bits of the oracle, and layers have the bits of the emulation, for any number of threads."""
    printed = run_as_another(BEGIN + program + END, tmp_path, X86, "avx avx512f", 12, 32)
    assert printed.split() == ["0", "True"]


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
