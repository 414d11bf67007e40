"""Instructions of AMX in software: `install` lets kernels of `products.amx` call them, on any x86-64 with g++."""

import ctypes
import re
import subprocess
import tempfile
from pathlib import Path

from llvmlite import ir

from varlen_rnn.products import amx

SOURCE = Path(__file__).with_suffix(".cpp")


def install(path=None):
    """Let this process compute with the instructions, in a library at `path` or compiled now; return the library."""
    with tempfile.TemporaryDirectory() as folder:
        if path is None:
            path = Path(folder) / "amx.so"
            subprocess.run(["g++", "-O2", "-ffp-contract=off", "-fPIC", "-shared", SOURCE, "-o", path], check=True)
        library = ctypes.CDLL(str(path))
    amx._write = lambda builder, lines, operands=(): _write(library, builder, lines, operands)
    amx.is_allowed = lambda: True
    return library


def _write(library, builder, lines, operands):
    """Call a function for each line such as "tileloadd 64($0,$1,1), %tmm3"; prefetches are left out."""
    whole = ir.IntType(64)
    values = [builder.ptrtoint(v, whole) if isinstance(v.type, ir.PointerType) else v for v in operands]
    for line in lines:
        name, _, rest = line.partition(" ")
        if name.startswith("prefetch"):
            continue
        given = []
        for before, at, step, number in re.findall(r"(\d*)\(\$(\d)(?:,\$(\d),1)?\)|%tmm(\d)", rest):
            if number:
                given.append((1, ir.Constant(whole, int(number))))
                continue
            given.append((0, builder.add(values[int(at)], ir.Constant(whole, int(before or 0)))))
            given += [(0, values[int(step)])] if step else []
        given = [value for _, value in sorted(given, key=lambda pair: pair[0])]  # addresses first
        kind = ir.FunctionType(ir.VoidType(), [whole] * len(given))
        address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        builder.call(builder.inttoptr(ir.Constant(whole, address), kind.as_pointer()), given)
