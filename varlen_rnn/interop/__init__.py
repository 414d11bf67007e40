"""Convert ragged arrays from and to other libraries, without a copy of their rows if possible."""

from varlen_rnn.interop.arrow import from_arrow, to_arrow
from varlen_rnn.interop.awkward import from_awkward, to_awkward

__all__ = ["from_arrow", "from_awkward", "to_arrow", "to_awkward"]


def __dir__() -> list[str]:
    return __all__
