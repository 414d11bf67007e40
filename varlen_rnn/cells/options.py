"""Options that several cells share: bounds, activations for each gate or state, and zoneout."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from varlen_rnn.cells.derivation.trace import Row
from varlen_rnn.errors import ShapeError, check_list, check_number, shown
from varlen_rnn.kernels.activations import clip, constant


def check_bound(bound: Any, name: str) -> float | None:
    """Return a positive bound as a float, or None if there is no bound."""
    if bound is None:
        return None
    return float(check_number(bound, name, "a positive number", lambda value: value > 0))


def check_names(given: Any, name: str, places: tuple[str, ...], check: Callable[[Any, str], Any]) -> tuple[Any, ...]:
    """Return activations, one for each of the named places, after checking each."""
    specs = check_list(given, name, f"a tuple of {len(places)}, for {', '.join(places)}")
    if len(specs) != len(places):
        raise ShapeError(name, expected=f"{len(places)}, for {', '.join(places)}", got=shown(given))
    return tuple(check(spec, f"{name}, {place}") for spec, place in zip(specs, places, strict=True))


def clipped(x: Any, bound: float | None) -> Any:
    """Return `x` clipped to [-bound, bound], or `x` itself if there is no bound."""
    return x if bound is None else clip(x, -bound, bound)


def equations_of(
    step: Callable[[Mapping[str, Any]], Any],
    gates: Iterable[str],
    states: Iterable[str],
    vectors: Iterable[str] = (),
    rows: Iterable[str] = (),
) -> Callable[..., Any]:
    """Return equations with a signature of these names; `step` gets all arguments in one mapping."""
    kinds = inspect.Parameter
    parameters = [kinds(name, kinds.POSITIONAL_ONLY) for name in gates]
    parameters += [kinds(name, kinds.POSITIONAL_OR_KEYWORD) for name in states]
    parameters += [kinds(name, kinds.KEYWORD_ONLY) for name in vectors]
    parameters += [kinds(name, kinds.KEYWORD_ONLY, annotation=Row) for name in rows]
    names = [p.name for p in parameters if p.kind is not kinds.KEYWORD_ONLY]

    def equations(*given: Any, **others: Any) -> Any:
        return step(dict(zip(names, given, strict=True)) | others)

    equations.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return equations


def zoned(now: Any, before: Any, keep: Any) -> Any:
    """Return a state after zoneout: the previous state if `keep` is 1, the new one if it is 0."""
    return now + constant(keep) * (before - now)
