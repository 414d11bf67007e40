"""Whether installed kernels keep to their level: `python -m tests.instructions PYTHON`; needs GNU binutils.

Every instruction of every kernel is disassembled, and assembled again for a processor that has the level's features and
no others.  Exits with 1 where the assembler refuses one, or there are no kernels.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

V3 = "generic64+sse4.2+avx2+fma+f16c+bmi+bmi2+lzcnt+movbe+popcnt+cx16+xsave"
STRANGE = "vpdpbusd %ymm1,%ymm2,%ymm3"  # neither level has it: an assembler that takes it checks nothing
PROCESSORS = {"x86-64-v3": V3, "x86-64-v4": f"{V3}+avx512f+avx512bw+avx512cd+avx512dq+avx512vl"}

# Writes the machine code of installed kernels to a folder, in a folder for each level, and prints how many.
WRITE = """
import pickle, sys
from pathlib import Path
from varlen_rnn.runtime.cache import installed_bundles
from varlen_rnn.runtime.cache.folders import read_kernel
for bundle in installed_bundles():
    folder = Path(sys.argv[1]) / bundle.description.split()[-1]
    folder.mkdir()
    for path in bundle.path.glob("*.nbc"):
        _, kind, (code, _) = pickle.loads(read_kernel(path))[0]
        assert kind == "object"
        (folder / f"{path.stem}.o").write_bytes(code)
"""


def instructions_of(paths):
    """Return the instructions of object files, each once, without jumps and the fillers before targets."""
    command = ["objdump", "--disassemble", "--no-show-raw-insn", *paths]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found = (re.match(r"\s*[0-9a-f]+:\t([^<#]*)", line) for line in lines)
    return sorted({match[1].strip() for match in found if match and not re.match("j|call|data16", match[1])})


def refused(instructions, processor):
    """Return the instructions that an assembler refuses for a processor."""
    command = ["as", f"-march={processor}", "-o", "/dev/null", "--"]
    lines = [STRANGE, *instructions]
    done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=False)
    numbers = re.findall(r"^\{standard input\}:(\d+): Error", done.stderr, re.MULTILINE)
    first, *others = [lines[int(number) - 1] for number in numbers] or [done.stderr]
    assert first == STRANGE, first
    return others


def main(python):
    """Print a line for each level; return whether no instruction was refused."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-c", WRITE, folder], cwd=folder, check=True)
        strange = {}
        for level in sorted(Path(folder).iterdir()):
            found = instructions_of(sorted(level.glob("*.o")))
            strange[level.name] = refused(found, PROCESSORS[level.name])
            print(f"{level.name}: {len(found)} instructions, refused: {'; '.join(strange[level.name]) or 'none'}")
    return bool(strange) and not any(strange.values())


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1]))
