"""Options of cells: the record `Option`, the options that several cells share, and functions for their equations."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from varlen_rnn.cells.derivation.trace import Row
from varlen_rnn.cells.named_activations import NAMED, check_activation
from varlen_rnn.errors import ShapeError, check_flag, check_list, check_number, shown
from varlen_rnn.kernels.activations import clip, constant


class Option(NamedTuple):
    """An option of a family of cells, or of its layers.

    check: `check(value, name)` returns the value in canonical form, or raises
    kind, doc: the option's type and its meaning, as texts for docstrings
    in_onnx: whether ONNX has the option
    """

    default: Any
    check: Callable[[Any, str], Any]
    kind: str
    doc: str
    in_onnx: bool = False

    def documented(self, name: str) -> str:
        """Return the option's entry in the parameters of a docstring."""
        indented = {"initial_indent": "    ", "subsequent_indent": "    ", "break_on_hyphens": False}
        return f"{name} : {self.kind}\n{textwrap.fill(self.doc, 116, **indented)}"  # type: ignore[arg-type]


def check_bound(bound: Any, name: str) -> float | None:
    """Return a positive bound as a float, or None if there is no bound."""
    if bound is None:
        return None
    return float(check_number(bound, name, "a positive number", lambda value: value > 0))


def flag(default: bool, doc: str, in_onnx: bool = False) -> Option:
    """Return an option that is True or False."""
    return Option(default, check_flag, "bool", doc, in_onnx)


def bound(doc: str, in_onnx: bool = False) -> Option:
    """Return an option that bounds the absolute value of numbers; by default there is no bound."""
    return Option(None, check_bound, "float, optional", f"The largest absolute value of {doc}.", in_onnx)


def activations_of(**places: Any) -> Option:
    """Return an option that is a tuple of activations; `places` maps places in the cell to default activations."""
    count = len(places)

    def check(given: Any, name: str) -> tuple[Any, ...]:
        expected = f"{count}, for {', '.join(places)}"
        specs = check_list(given, name, f"a tuple of {expected}")
        if len(specs) != count:
            raise ShapeError(name, expected=expected, got=shown(given))
        return tuple(check_activation(spec, f"{name}, {place}") for spec, place in zip(specs, places, strict=True))

    doc = f"The activations of {', '.join(places)}, in this order.  Each is {ACTIVATION}."
    return Option(tuple(places.values()), check, f"tuple of {count}", doc, in_onnx=True)


ACTIVATION = f"a name, or a tuple of a name and its parameters; names: {', '.join(map(repr, NAMED))}"
# Options that make a cell read masks as row inputs.  A layer has probabilities instead, and draws the masks.
MASKS = {
    "zoneout": flag(False, "Whether masks of units that keep their state are inputs of rows (Krueger et al., 2017)."),
    "recurrent_dropout": flag(
        False, "Whether a mask multiplies the operand of the recurrent products (Gal and Ghahramani, 2016)."
    ),
}


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
    """Return a function with a signature of these names that calls `step` with all arguments in one mapping."""
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
