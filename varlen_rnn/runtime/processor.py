"""What is known of each kind of processors: one table, which tiles, waits, memory, levels and the cost model read.

For example, an Apple M1 has vectors of 16 bytes and 32 registers, so its tile is 6 rows of 4 vectors: 24 sums.  Its
cache lines have 128 bytes, so counters lie 128 bytes apart.  To add a processor, add a row: the first row that matches
a host is the host's.
"""

import re
from typing import NamedTuple


class Level(NamedTuple):
    """Processors that run the same machine code, compiled ahead.

    Attributes
    ----------
    name : str
    features : tuple of str
        LLVM's names of the features that the code may use.
    cpu : str
        LLVM's name of the processor to compile for.
    """

    name: str
    features: tuple[str, ...]
    cpu: str


class Costs(NamedTuple):
    """Measured costs of a recurrent step, for the cost model; their unit is the products of one row, if none is named.

    Attributes
    ----------
    weight_pass, far_weight_pass : float
        Reading all weights once, as each step of a group does: from L2, and from beyond.
    one_row, two_rows : float
        Extra cost of a step of one row, and of two.
    member_lag : float
        Time of the slowest member of a team over the mean; members fetch each other's results.
    """

    weight_pass: float
    far_weight_pass: float
    one_row: float
    two_rows: float
    member_lag: float


class Processor(NamedTuple):
    """A kind of processors.

    Attributes
    ----------
    triple : str
        A regular expression for the beginning of LLVM's triple of the host.
    feature : str or None
        LLVM's name of the feature that the kind has, unlike the rows below it; None if it needs no feature.
    level : Level or None
        The level for which kernels are compiled ahead; None if there is none.
    vector_bytes : int
        Bytes of a vector.
    tile : (int, int)
        Rows of a tile, and vectors of a row.  Its sums must leave registers for a row's number and the panel's vectors.
    pause : tuple
        LLVM's intrinsic for spin loops, and its int32 arguments; empty if there is none.
    costs : Costs
    line_bytes : int
        Bytes of a cache line.
    l2_bytes : int
        Packed weights of more bytes are assumed not to stay in L2.
    """

    triple: str
    feature: str | None
    level: Level | None
    vector_bytes: int
    tile: tuple[int, int]
    pause: tuple
    costs: Costs
    line_bytes: int = 64
    l2_bytes: int = 2**21


_V3_FEATURES = (
    *("avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sahf", "sse4.2", "xsave"),
)
_V4_FEATURES = (*_V3_FEATURES, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_V4 = Level("x86-64-v4", _V4_FEATURES, "x86-64-v4")
_V3 = Level("x86-64-v3", _V3_FEATURES, "x86-64-v3")
_ARM64 = Level("arm64", (), "generic")  # all have vectors of 16 bytes, which LLVM uses without being told

# Measured on two cores each of x86-64.  With vectors of 64 bytes, the products of a row take half the time.
_WIDE = Costs(weight_pass=1.5, far_weight_pass=4, one_row=1.1, two_rows=0.7, member_lag=1.2)
_NARROW = Costs(weight_pass=0.5, far_weight_pass=0.5, one_row=1.4, two_rows=0.5, member_lag=1.1)

_X86, _ARM, _APPLE = "x86_64", "aarch64|arm64", "(aarch64|arm64)-apple"  # LLVM's arm64 on macOS, aarch64 elsewhere
_PAUSE, _BARRIER = ("llvm.x86.sse2.pause",), ("llvm.aarch64.isb", 15)  # `yield` of arm64 takes no time, `isb` some

# With 32 registers a tile has 24 sums; with 16, it has 12.
PROCESSORS = {
    "x86-64 with AVX-512": Processor(_X86, "avx512f", _V4, 64, (12, 2), _PAUSE, _WIDE),
    "x86-64 with AVX": Processor(_X86, "avx", _V3, 32, (6, 2), _PAUSE, _NARROW),
    "x86-64": Processor(_X86, None, None, 16, (6, 2), _PAUSE, _NARROW),
    "arm64 of Apple": Processor(_APPLE, None, _ARM64, 16, (6, 4), _BARRIER, _NARROW, line_bytes=128),
    "arm64": Processor(_ARM, None, _ARM64, 16, (6, 4), _BARRIER, _NARROW),
    "any other": Processor("", None, None, 16, (6, 2), (), _NARROW),
}


def rows_of(triple):
    """Return the rows of the table for a triple, in order; the last one is for any host."""
    return [row for row in PROCESSORS.values() if re.match(row.triple, triple)]


def processor_of(triple, features):
    """Return the Processor of a host.

    Parameters
    ----------
    triple : str
        LLVM's triple.
    features : dict of str to bool
        By LLVM's name of each feature, whether the host has it.

    Examples
    --------
    >>> processor_of("aarch64-unknown-linux-gnu", {"neon": True}).level.name
    'arm64'
    >>> processor_of("x86_64-unknown-linux-gnu", {"avx": True}).vector_bytes
    32
    """
    return next(row for row in rows_of(triple) if row.feature is None or features.get(row.feature))
