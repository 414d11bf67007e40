"""The names that annotations share."""

import os
from collections.abc import Iterable
from typing import SupportsIndex, TypeAlias

from numpy.typing import ArrayLike

StrPath: TypeAlias = str | os.PathLike[str]

# Rows, with or without a LoD: a Variable and a LoDTensor have `__array__`, which makes them array_like.
Rows: TypeAlias = ArrayLike

# One level of detail, in its two forms: an array, or a list of ints.
Offsets: TypeAlias = Iterable[SupportsIndex]
Lengths: TypeAlias = Iterable[SupportsIndex]
