"""The names that annotations share."""

import os
from typing import TypeAlias

from numpy.typing import ArrayLike

StrPath: TypeAlias = str | os.PathLike[str]

# Rows, with or without a LoD: a Variable and a LoDTensor have `__array__`, which makes them array_like.
Rows: TypeAlias = ArrayLike
