"""Refuse integers of 2**63 and more, such as hashes, among measurements, because floats would round them.

For example, 2**63 + 5 and 2**63 + 6 are one number in float64, and in float32.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from numbers import Integral
from typing import Any

import numpy as np

from varlen_rnn.data.missing import Where
from varlen_rnn.errors import InputError, shown

_INTEGER = re.compile(r"\s*[+-]?\d+\s*")


def check_no_large_id(floats: np.ndarray, entries: Iterable[Any], where: str | Where, bits: int = 63) -> None:
    """Raise if an entry that became a float was an integer of 2**bits or more, or of -2**bits or less.

    Entries are in the order of the floats.  `where` describes all entries, or `where(k)` describes entry k.
    """
    found = large_id(floats, entries, bits)
    if found is not None:
        position, entry = found
        hint = "for ids or hashes, pass lists of texts such as '18', which are tokens; write a measurement as 1e19"
        place = where if isinstance(where, str) else where(position)
        raise InputError(place, expected=f"an integer below 2**{bits}, or a float", got=shown(int(entry)), hint=hint)


def large_id(floats: np.ndarray, entries: Iterable[Any], bits: int = 63) -> tuple[int, Any] | None:
    """Return the position of the first integer of 2**bits or more, and the integer; None if there is none."""
    positions = np.flatnonzero(np.abs(floats) >= 2.0**bits)
    if len(positions):
        given = list(entries)
        for position in positions:
            entry = given[position]
            is_integer = isinstance(entry, Integral) or (isinstance(entry, str) and _INTEGER.fullmatch(entry))
            if is_integer and abs(int(entry)) >= 2**bits:  # check the integer, because its float may be rounded up
                return int(position), entry
    return None
