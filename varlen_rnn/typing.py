"""The names that annotations share."""

import os
from collections.abc import Iterable
from typing import SupportsIndex, TypeAlias

from numpy.typing import ArrayLike

__all__ = ["Lengths", "Offsets", "Rows", "StrPath"]

#: The path of a file.
StrPath: TypeAlias = str | os.PathLike[str]

#: Rows, with or without a LoD: a `LoDTensor`, a `Variable`, or anything that NumPy can turn into an array.
Rows: TypeAlias = ArrayLike  # a Variable and a LoDTensor have `__array__`

#: The offsets of one level of detail, an array or a list of ints: 0, then where each sequence ends.
Offsets: TypeAlias = Iterable[SupportsIndex]

#: The lengths of one level of detail, an array or a list of ints.
Lengths: TypeAlias = Iterable[SupportsIndex]
