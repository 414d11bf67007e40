"""Memory that runs write and callers get: a run writes it again as soon as nobody else has it.

Take the gradients of a training step.  The caller puts them into `grad` of the parameters, and clears them before the
next step.  Then only `Loans` has the arrays, so the next run writes to them.  If the caller has kept one, or a view of
it, the next run gets new memory in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import NamedTuple

import numpy as np

from varlen_rnn.runtime.device import empty
from varlen_rnn.tape.values import memory_of_array

_BYTES = np.empty(0, np.uint8)


class Form(NamedTuple):
    """The form of a C-contiguous array inside of some memory.

    size: bytes of the memory
    begin: where the array begins, in bytes
    """

    size: int
    begin: int
    shape: tuple[int, ...]
    dtype: np.dtype

    def made(self) -> tuple[np.ndarray, np.ndarray]:
        """Return new memory, and the array in it."""
        memory = empty((self.size,), _BYTES)
        return memory, np.ndarray(self.shape, self.dtype, memory, self.begin)


class Loans:
    """Arrays of some forms, each in memory of its own.

    Attributes
    ----------
    arrays : list of array

    Examples
    --------
    >>> loans = Loans([Form(64, 0, (3,), np.dtype(np.float32))], lambda number, memory: None)
    >>> kept = loans.arrays[0][1:]
    >>> loans.renew()
    >>> np.shares_memory(loans.arrays[0], kept)
    False
    """

    def __init__(self, forms: Sequence[Form], lend: Callable[[int, np.ndarray], None]) -> None:
        """Make the arrays; `lend(number, memory)` is called with the memory of each array as soon as it is made."""
        self._forms, self._lend, made = list(forms), lend, [form.made() for form in forms]
        self._memories, self.arrays = [memory for memory, _ in made], [array for _, array in made]
        del made
        list(map(lend, range(len(self._forms)), self._memories))
        # Views of an array refer to the owner of its memory instead of the array.
        self._owners = list(map(memory_of_array, self.arrays))
        self._alone = self._counts()

    def _counts(self) -> list[int]:
        """Return how many references the arrays have, and then how many the owners of their memory have."""
        return [*map(getrefcount, self.arrays), *map(getrefcount, self._owners)]

    def renew(self) -> None:
        """Replace the arrays that somebody else has, or views of them."""
        counts = self._counts()
        if counts == self._alone:
            return
        alone, size = self._alone, len(self._forms)
        for number, form in enumerate(self._forms):
            if counts[number] != alone[number] or counts[size + number] != alone[size + number]:
                memory, array = form.made()
                self._lend(number, memory)  # first: after an interrupt, the next call makes the memory again
                self._memories[number], self.arrays[number] = memory, array
                del memory, array
                self._owners[number] = memory_of_array(self.arrays[number])
