"""Type aliases that annotations share."""

import os
from collections.abc import Iterable
from typing import SupportsIndex, TypeAlias

from numpy.typing import ArrayLike

__all__ = ["Lengths", "Offsets", "Rows", "StrPath"]

#: The path of a file.
StrPath: TypeAlias = str | os.PathLike[str]

#: Rows, with or without a LoD: a `LoDTensor`, a `Variable`, or anything that NumPy can turn into an array.
Rows: TypeAlias = ArrayLike  # includes Variable and LoDTensor, which have `__array__`

#: The offsets of one LoD level, an array or a list of ints: 0, then the end of each sequence.
Offsets: TypeAlias = Iterable[SupportsIndex]

#: The lengths of the sequences of one LoD level, an array or a list of ints.
Lengths: TypeAlias = Iterable[SupportsIndex]
