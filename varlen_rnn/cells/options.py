"""Options that several cells share: bounds, activations for each gate or state, and zoneout."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from varlen_rnn.cells.derivation.trace import Row
from varlen_rnn.cells.named_activations import check_activation
from varlen_rnn.errors import ShapeError, check_flag, check_list, check_number, shown
from varlen_rnn.kernels.activations import clip, constant


class Option(NamedTuple):
    """An option of a family of cells.

    Attributes
    ----------
    default : object
    check : function
        `check(value, name)` returns the value in canonical form, or raises.
    """

    default: Any
    check: Callable[[Any, str], Any]


def check_bound(bound: Any, name: str) -> float | None:
    """Return a positive bound as a float, or None if there is no bound."""
    if bound is None:
        return None
    return float(check_number(bound, name, "a positive number", lambda value: value > 0))


def activations_of(**places: Any) -> Option:
    """Return an option that is a tuple of activations, given their names in the cell and their defaults."""

    def check(given: Any, name: str) -> tuple[Any, ...]:
        expected = f"{len(places)}, for {', '.join(places)}"
        specs = check_list(given, name, f"a tuple of {expected}")
        if len(specs) != len(places):
            raise ShapeError(name, expected=expected, got=shown(given))
        return tuple(check_activation(spec, f"{name}, {place}") for spec, place in zip(specs, places, strict=True))

    return Option(tuple(places.values()), check)


BOUND = Option(None, check_bound)
# Options that make a cell read masks as row inputs; the layer draws the masks.
MASKS = {"zoneout": Option(False, check_flag), "recurrent_dropout": Option(False, check_flag)}


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
