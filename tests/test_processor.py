"""The table of processors: which row a host gets, and what the engine makes of it."""

import ctypes
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from llvmlite import binding as llvm
from llvmlite import ir

from varlen_rnn.products import sync
from varlen_rnn.runtime import threads
from varlen_rnn.runtime.processor import PROCESSORS, processor_of

LINUX, MAC, WINDOWS = "unknown-linux-gnu", "apple-darwin23.1.0", "pc-windows-msvc"


@pytest.mark.parametrize(
    ("triple", "features", "name"),
    [
        (f"x86_64-{LINUX}", "avx avx512f", "x86-64 with AVX-512"),
        (f"x86_64-{WINDOWS}", "avx avx2", "x86-64 with AVX"),
        (f"x86_64-{MAC}", "sse4.2", "x86-64"),
        (f"arm64-{MAC}", "neon", "arm64 of Apple"),
        (f"aarch64-{MAC}", "", "arm64 of Apple"),
        (f"aarch64-{LINUX}", "neon sve", "arm64"),
        (f"aarch64-{WINDOWS}", "neon", "arm64"),
        (f"riscv64-{LINUX}", "v", "any other"),
        (f"powerpc64le-{LINUX}", "", "any other"),
    ],
)
def test_a_host_gets_the_row_of_its_architecture_and_features(triple, features, name):
    assert processor_of(triple, dict.fromkeys(features.split(), True)) is PROCESSORS[name]


def test_sums_of_a_tile_leave_registers():
    """One register holds a number of a row, and each vector of the panel takes one."""
    for name, row in PROCESSORS.items():
        rows, vectors = row.tile
        registers = 32 if row.vector_bytes == 64 or "arm64" in name else 16
        assert rows * vectors + vectors + 1 <= registers, name


PRINT = """
import sys
import llvmlite.binding as llvm
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
llvm.get_process_triple = lambda: sys.argv[1]
llvm.get_host_cpu_features = lambda: llvm.targets.FeatureMap({"neon": True})
from varlen_rnn.products import sync, vectors
from varlen_rnn.runtime import memory
from varlen_rnn.runtime.cache.level import HOST_LEVEL, LEVELS
print(vectors.TILE_ROWS, vectors.TILE_VECTORS, vectors.VECTOR_BYTES, sync.COUNTER, memory.CACHE_LINE)
print(HOST_LEVEL, *LEVELS)
"""


@pytest.mark.parametrize(
    ("triple", "said"), [(f"arm64-{MAC}", "6 4 16 16 128 arm64 arm64"), (f"aarch64-{LINUX}", "6 4 16 8 64 arm64 arm64")]
)
def test_the_engine_takes_its_numbers_from_the_row(triple, said):
    command = [sys.executable, "-c", PRINT, triple]
    variables = {name: value for name, value in os.environ.items() if name != "VARLEN_RNN_LEVEL"}
    assert (
        subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
        == said.split()
    )


@pytest.mark.parametrize(
    ("name", "triple", "wanted"),
    [
        *((name, f"x86_64-{LINUX}", ["pause", "retq"]) for name in PROCESSORS if "x86-64" in name),
        ("arm64", f"aarch64-{LINUX}", ["isb", "ret"]),
        ("arm64 of Apple", f"arm64-{MAC}", ["isb", "ret"]),
        ("any other", f"x86_64-{LINUX}", ["retq"]),
    ],
)
def test_a_wait_has_the_hint_of_its_processor(name, triple, wanted):
    module = ir.Module()
    module.triple = triple
    builder = ir.IRBuilder(ir.Function(module, ir.FunctionType(ir.VoidType(), []), "wait").append_basic_block())
    sync.emit_pause(builder, PROCESSORS[name].pause)
    builder.ret_void()
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine()
    words = machine.emit_assembly(llvm.parse_assembly(str(module))).split()
    assert [word for word in words if word in ("pause", "isb", "ret", "retq")] == wanted


@pytest.mark.parametrize(("status", "wanted"), [(0, 4), (-1, 10)])
def test_a_mac_counts_its_performance_cores(monkeypatch, status, wanted):
    """A failed request, as on an older system, counts all cores."""

    def sysctlbyname(name, number, size, new, length):
        assert name == b"hw.perflevel0.logicalcpu"
        number._obj.value = 4
        return status

    monkeypatch.delattr(threads.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 10)
    monkeypatch.setattr(threads.sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(sysctlbyname=sysctlbyname))
    assert threads._available_cores() == wanted
