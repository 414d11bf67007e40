"""Run a module, and compile each of its kernels a second time: for the processor that `tests/on_amx` emulates.

    python -m tests.compile_for_amx show > PROCESSOR                         # on that processor: how LLVM describes it
    python -m tests.compile_for_amx run PROCESSOR LIBRARY MODULE ARGUMENTS   # on any x86-64, with its instructions

The kernels that run are those of that processor, too, in this host's instructions: their vectors have 64 bytes, and
LIBRARY has the instructions of AMX in software (`amx_in_software`).  Code for the processor is saved where the
processor looks for it.
"""

import json
import runpy
import sys
from pathlib import Path

import llvmlite.binding as llvm
import numba


def answer_as(processor):
    """Let LLVM answer as on another processor, while Numba goes on compiling for this one."""
    numba.njit(lambda: None)()  # Numba asks LLVM when it compiles for the first time, and not again
    llvm.get_host_cpu_features = lambda: llvm.targets.FeatureMap(processor["features"])


def save_for(processor, library):
    """From now on, save kernels for another processor, and compute with the instructions of AMX in software."""
    from tests import amx_in_software
    from varlen_rnn.products import amx, bfloat16, rounding
    from varlen_rnn.runtime import numba_internals
    from varlen_rnn.runtime.cache import disk, environment
    from varlen_rnn.runtime.processor import Level

    of_unit, save = amx._write, disk.DiskCache.save_overload
    amx_in_software.install(library)
    in_software = amx._write
    rounding.HAS_INSTRUCTIONS = bfloat16.HAS_INSTRUCTIONS = False

    def compiled_for_processor(cpu, kernel, signature):
        amx._write, rounding.HAS_INSTRUCTIONS = of_unit, True
        try:
            return numba_internals.compiled_for_processor(cpu, kernel, signature)
        finally:
            amx._write, rounding.HAS_INSTRUCTIONS = in_software, False

    def save_once(cache, signature, compiled):
        if not cache._path(signature).exists():
            save(cache, signature, compiled)

    triple = llvm.get_process_triple()
    described = triple, processor["name"], llvm.get_host_cpu_features().flatten()
    environment.target = lambda: described
    disk.LEVELS, disk._is_for_others = {None: Level("", (), processor["name"])}, lambda: True
    disk.compiled_for_processor, disk.DiskCache.save_overload = compiled_for_processor, save_once


def main(command, *arguments):
    """Print how LLVM describes this processor, or run a module."""
    if command == "show":
        print(json.dumps({"name": llvm.get_host_cpu_name(), "features": dict(llvm.get_host_cpu_features())}))
        return
    path, library, module, *given = arguments
    processor = json.loads(Path(path).read_text())
    answer_as(processor)
    save_for(processor, library)
    sys.argv = [module, *given]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
