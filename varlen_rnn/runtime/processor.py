"""One table of all kinds of processors, which tiles, spin loops, memory, levels and the cost model read.

For example, an Apple M1 has vectors of 16 bytes and 32 registers, so its tile is 6 rows of 4 vectors: 24 sums.  Its
cache lines have 128 bytes, so counters lie 128 bytes apart.  To add a processor, add a row: a host uses the first row
that matches it.
"""

import re
from typing import NamedTuple


class Level(NamedTuple):
    """A class of processors that can run the same kernels, compiled ahead of time for an installation."""

    name: str
    features: tuple[str, ...]  # LLVM's names of the features that the code may use
    cpu: str  # LLVM's name of the processor to compile for


class Costs(NamedTuple):
    """Measured costs of a recurrent step, for the cost model.  The unit is the time of the products of one row."""

    weight_pass: float  # reading all weights once from L2, as each step of a group does
    far_weight_pass: float  # reading all weights once from beyond L2
    one_row: float  # extra cost of a step with one row
    two_rows: float  # extra cost of a step with two rows
    member_lag: float  # time of a team's slowest member / mean time of its members, without a unit


class Processor(NamedTuple):
    """A kind of processors.

    A tile is a block of sums in registers; it must leave registers for one factor and for the vectors of weights.
    """

    triple: str  # a regular expression for the beginning of LLVM's triple of the host
    feature: str | None  # LLVM's name of a feature that a host must have; None if it needs none
    level: Level | None  # the level whose kernels, compiled ahead of time, such a host can use; None if there is none
    vector_bytes: int
    tile: tuple[int, int]  # rows, and vectors of a row
    pause: tuple  # LLVM's intrinsic for spin loops, and its int32 arguments; may be empty
    costs: Costs
    line_bytes: int = 64  # bytes of a cache line
    l2_bytes: int = 2**21  # packed weights of more bytes are assumed not to stay in L2


_V3_FEATURES = (
    *("avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sahf", "sse4.2", "xsave"),
)
_V4_FEATURES = (*_V3_FEATURES, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_V4 = Level("x86-64-v4", _V4_FEATURES, "x86-64-v4")
_V3 = Level("x86-64-v3", _V3_FEATURES, "x86-64-v3")
_ARM64 = Level("arm64", (), "generic")  # all arm64 processors have vectors of 16 bytes, LLVM's default

# Measured on two cores each of x86-64.  With vectors of 64 bytes, the products of a row take half the time.
_WIDE = Costs(weight_pass=1.5, far_weight_pass=4, one_row=1.1, two_rows=0.7, member_lag=1.2)
_NARROW = Costs(weight_pass=0.5, far_weight_pass=0.5, one_row=1.4, two_rows=0.5, member_lag=1.1)

_X86, _ARM, _APPLE = "x86_64", "aarch64|arm64", "(aarch64|arm64)-apple"  # LLVM's arm64 on macOS, aarch64 elsewhere
_PAUSE, _BARRIER = ("llvm.x86.sse2.pause",), ("llvm.aarch64.isb", 15)  # arm64's `yield` takes no time, `isb` takes some

# With 32 registers, a tile has 24 sums; with 16 registers, it has 12.
PROCESSORS = {
    "x86-64 with AVX-512": Processor(_X86, "avx512f", _V4, 64, (12, 2), _PAUSE, _WIDE),
    "x86-64 with AVX": Processor(_X86, "avx", _V3, 32, (6, 2), _PAUSE, _NARROW),
    "x86-64": Processor(_X86, None, None, 16, (6, 2), _PAUSE, _NARROW),
    "arm64 of Apple": Processor(_APPLE, None, _ARM64, 16, (6, 4), _BARRIER, _NARROW, line_bytes=128),
    "arm64": Processor(_ARM, None, _ARM64, 16, (6, 4), _BARRIER, _NARROW),
    "any other": Processor("", None, None, 16, (6, 2), (), _NARROW),
}


def rows_of(triple):
    """Return the rows of the table that match a triple, in order; the last row matches any host."""
    return [row for row in PROCESSORS.values() if re.match(row.triple, triple)]


def processor_of(triple, features):
    """Return the Processor of a host, given LLVM's triple and a dict from LLVM's names of features to bools."""
    return next(row for row in rows_of(triple) if row.feature is None or features.get(row.feature))
