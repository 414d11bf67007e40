"""Sizes that remember how `infer` compared them, so that one inference holds for runs of other sizes.

An example: `infer` of `cross_entropy(logits, labels)` runs once, on the sizes of a batch of 8 rows with 5 classes.

    logits.shape    labels.shape    question of `infer`      remembered
    (size 0, 5)     (size 1,)       logits.shape[1] == 0     nothing: 5 is the same in each run
                                    labels.shape == (8,)     size 0 equals size 1
                                    result: (8,)             the loss has size 0

Inference returns the same for a run with 57 rows and 57 labels, because it takes the same way.  A run with 57 rows and
56 labels takes another way, so there `infer` runs again, and raises.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from varlen_rnn.tape.spec import TensorSpec

BEFORE = -1  # sizes that are known before the first operator runs


class Sizes:
    """The sizes of one run, each in a slot, with computations and comparisons of sizes.  Constants have slots, too.

    values: the size in each slot, in the run that is traced
    ready: for each slot, the number of the operator that makes its size known; `BEFORE` if none does
    made: a `(slot, function, slot, slot)` for each size that inference computed from two sizes
    compared: for each `(function, slot, slot)` that inference compared, the result
    """

    def __init__(self) -> None:
        self.values: list[int] = []
        self.ready: list[int] = []
        self.made: list[tuple[int, Callable, int, int]] = []
        self.compared: dict[tuple[Callable, int, int], bool] = {}
        self._constants: dict[int, int] = {}  # {value: its slot}
        self._measured: set[int] = set()  # slots of sizes of arrays, which are never negative

    def measure(self, value: int, ready: int = BEFORE) -> Size:
        """Return a new size that differs from run to run."""
        size = self._new(value, ready)
        self._measured.add(size.slot)
        return size

    def _new(self, value, ready):
        self.values.append(value)
        self.ready.append(ready)
        return Size(self, len(self.values) - 1)

    def slot(self, size: Size | int) -> int:
        """Return the slot of a size or of a constant."""
        if isinstance(size, Size):
            return size.slot
        if size not in self._constants:
            self._constants[size] = self._new(size, BEFORE).slot
        return self._constants[size]

    def is_constant(self, slot: int) -> bool:
        """Return whether the size in a slot is the same in each run."""
        return slot in self._constants.values()

    def compute(self, function: Callable, a: int, b: int) -> Size:
        """Return the size that a function computes from the sizes in two slots."""
        made = self._new(function(self.values[a], self.values[b]), max(self.ready[a], self.ready[b]))
        self.made.append((made.slot, function, a, b))
        return made

    def compare(self, function: Callable, a: int, b: int) -> bool:
        """Return how the sizes in two slots compare, and remember it unless it is so in each run."""
        result = bool(function(self.values[a], self.values[b]))
        is_negative = any(one in self._measured and self.values[other] < 0 for one, other in ((a, b), (b, a)))
        if a != b and not (self.is_constant(a) and self.is_constant(b)) and not is_negative:
            self.compared[function, a, b] = result
        return result

    def mark(self) -> tuple[int, dict]:
        """Return a mark to which `undo` goes back."""
        return len(self.made), dict(self.compared)

    def undo(self, mark: tuple[int, dict]) -> None:
        """Forget the computations and comparisons since the mark."""
        del self.made[mark[0] :]
        self.compared = mark[1]


class Size:
    """A size of an array that differs from run to run; it is no int, so that nothing reads its number unnoticed.

    It can be compared, added, subtracted and multiplied.  Everything else raises a TypeError: then the operator's
    `infer` runs at each run.
    """

    __slots__ = ("_sizes", "slot")

    def __init__(self, sizes: Sizes, slot: int) -> None:
        self._sizes, self.slot = sizes, slot

    @property
    def value(self) -> int:
        """The size in the run that is traced."""
        return self._sizes.values[self.slot]

    def __bool__(self) -> bool:
        return self != 0

    __hash__ = None  # type: ignore[assignment]  # so that no cache of the library takes a size for a key


def _comparison(function: Callable) -> Callable:
    def compare(self: Size, other: object) -> Any:
        if type(other) is not Size and not isinstance(other, int):
            return NotImplemented
        return self._sizes.compare(function, self.slot, self._sizes.slot(other))

    return compare


def _arithmetic(function: Callable, is_reflected: bool) -> Callable:
    def compute(self: Size, other: object) -> Any:
        if type(other) is not Size and not isinstance(other, int):
            return NotImplemented
        pair = self.slot, self._sizes.slot(other)
        return self._sizes.compute(function, *(reversed(pair) if is_reflected else pair))

    return compute


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Size, f"__{_name}__", _comparison(getattr(operator, _name)))
for _name in ("add", "sub", "mul"):
    setattr(Size, f"__{_name}__", _arithmetic(getattr(operator, _name), False))
    setattr(Size, f"__r{_name}__", _arithmetic(getattr(operator, _name), True))


def with_numbers(spec: TensorSpec) -> TensorSpec:
    """Return a spec with the number of each Size, in the run that is traced."""
    return spec._replace(shape=tuple(size.value if isinstance(size, Size) else size for size in spec.shape))
