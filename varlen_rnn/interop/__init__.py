"""Convert ragged arrays (sequences of unequal length) from and to other libraries, if possible without a copy."""

from varlen_rnn.interop.arrow import from_arrow, to_arrow
from varlen_rnn.interop.awkward import from_awkward, to_awkward

__all__ = ["from_arrow", "from_awkward", "to_arrow", "to_awkward"]


def __dir__() -> list[str]:
    return __all__
