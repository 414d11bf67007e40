"""What options of cells have in common: bounds, and activations for each of a cell's places."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from varlen_rnn.errors import ShapeError, check_list, check_number, shown
from varlen_rnn.kernels.activations import clip


def check_bound(bound: Any, name: str) -> float | None:
    """Return a positive bound, or None for none."""
    if bound is None:
        return None
    return float(check_number(bound, name, "a positive number", lambda value: value > 0))


def check_names(given: Any, name: str, places: tuple[str, ...], check: Callable[[Any, str], Any]) -> tuple[Any, ...]:
    """Return activations, one for each place, after checking each."""
    specs = check_list(given, name, f"a tuple of {len(places)}: of {', '.join(places)}")
    if len(specs) != len(places):
        raise ShapeError(name, expected=f"{len(places)}: of {', '.join(places)}", got=shown(given))
    return tuple(check(spec, f"{name}, {place}") for spec, place in zip(specs, places, strict=True))


def clipped(x: Any, bound: float | None) -> Any:
    """Return what goes into an activation, between -bound and bound where there is one."""
    return x if bound is None else clip(x, -bound, bound)
