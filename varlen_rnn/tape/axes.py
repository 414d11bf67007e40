"""Find the axis of an operator's results that runs over rows, and how the results depend on single rows.

`infer` decides where an axis goes; the operator's trait `rows` decides whether rows are mixed.  An example: `x` has a
row for each sequence that has not ended, the weight `w` has no rows.  `infer` runs for three numbers of rows, 1 to p:

    operator                    x                      w       inferred               found
    matmul(x, w)                (1, 3) ... (p, 3)      (3, 2)  (1, 2) ... (p, 2)      "each", axis 0
    transpose(x, 0, 1)          (1, 3) ... (p, 3)              (3, 1) ... (3, p)      "each", axis 1
    row_sum(x)                  (1, 3) ... (p, 3)              (3,) ... (3,)          "sum", no axis
    reduce_sum(x, axis=0)       (1, 3) ... (p, 3)              (3,) ... (3,)          None, no axis: rows are mixed
    x[::-1]                     (1, 3) ... (p, 3)              (1, 3) ... (p, 3)      None, axis 0: rows are mixed
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from varlen_rnn.errors import InputError, ProgramError, shown
from varlen_rnn.tape.kinds import LOD_TENSOR
from varlen_rnn.tape.operator import PASSED_ON, TRAITS, Op
from varlen_rnn.tape.spec import TensorSpec

# Numbers of rows for which `infer` runs: 1, and two primes that no other size of a step has.  A rule that sizes follow
# for these numbers is assumed for all numbers.
COUNTS = (1, 2147483629, 2147483647)


class Known(NamedTuple):
    """The specs of a value for the numbers of rows in `COUNTS`, and its axis of rows."""

    specs: tuple[Any, ...]  # a TensorSpec for each of `COUNTS`; None for a missing input
    axis: int | None = None  # the axis that runs over rows; None if the sizes do not depend on their number
    depth: int = 0  # LoD levels between the entries of `axis` and a step's rows; 0 if the entries are these rows


def with_rows(spec: TensorSpec, axis: int = 0, depth: int = 0) -> Known:
    """Return the Known of values with the spec `spec`, but with one entry per row along `axis`."""
    sizes = ((*spec.shape[:axis], count, *spec.shape[axis + 1 :]) for count in COUNTS)
    return Known(tuple(spec._replace(shape=shape) for shape in sizes), axis, depth)


def without_rows(spec: TensorSpec | None) -> Known:
    """Return the Known of values with the spec `spec`, whose sizes do not depend on the number of rows."""
    return Known((spec,) * len(COUNTS))


def follow(op: Op, attrs: Mapping[str, Any], given: Sequence[Any]) -> tuple[str | None, Any]:
    """Return the trait of an operator for the operands `given`, and a list with the Known of each output.

    The trait is "each" if every output has rows, and row i depends only on row i of the operands; "sum" if no output
    has rows, and each output is the sum of the results of single rows; "sequence" if the outputs for each sequence of
    the last level depend only on that sequence; "same" if no operand has rows; otherwise None.  The list is None unless
    `infer` accepts any number of rows.
    """
    if op.rows in (None, "batch") or None in given:
        return None, None
    found = _inferred(op, attrs, given)
    if found is None:
        return None, None
    trait, _ = _declared(op, attrs, [known.specs[-1] for known in given], [known.axis for known in given])
    depths = {known.depth for known in given if known.axis is not None}
    if trait == "sequence" and depths:
        return _follow_sequences(op, attrs, given, found)
    is_open = any(-1 in spec.shape for spec in (known.specs[0] for known in given) if spec is not None)
    outputs: list[Any] = [_of_rows(specs, max(depths, default=0), is_open) for specs in found]
    if None in outputs:
        return None, None
    if not depths:
        return trait and "same", outputs
    have_rows = {known.axis is not None for known in outputs}
    is_right = len(depths) == 1 and have_rows == {"each": {True}, "sum": {False}}.get(trait or "")
    return (trait if is_right else None), outputs


def _follow_sequences(op, attrs, given, found):
    depth = max(known.depth for known in given if known.axis is not None)
    if depth == 0 or not all(_may_have_sequences(known, depth) for known in given):
        return None, None
    places = zip(op.output_places(len(given), len(found), attrs), found, strict=True)
    return "sequence", [None if place in op.intermediate else _of_sequences(specs, depth) for place, specs in places]


def _inferred(op: Op, attrs: Mapping[str, Any], given: Sequence[Known]) -> list[tuple[TensorSpec, ...]] | None:
    """Return for each output its specs, one per number of rows; None if `infer` refuses one of these numbers."""
    operands: Iterable[Any] = zip(*(known.specs for known in given), strict=True) if given else [()] * len(COUNTS)
    try:
        return list(zip(*(op.specs(specs, attrs) for specs in operands), strict=True))
    except (InputError, MemoryError):
        return None


def _declared(
    op: Op, attrs: Mapping[str, Any], specs: Sequence[TensorSpec | None], axes: Sequence[int | None]
) -> tuple[str | None, int]:
    """Return the trait that an operator declares if operands have these axes of rows, and the results' axis of rows.

    The axis is 0, except for a trait `("batch", axis)`.
    """
    if op.rows == "sequence":  # operators that also have weights or states declare a function
        is_right = all(axis == 0 or spec is None for axis, spec in zip(axes, specs, strict=True))
        return ("sequence" if is_right else None), 0
    found = op.rows
    if callable(found):
        try:
            found = found(specs, axes, **attrs)
        except PASSED_ON:
            raise
        except Exception as error:
            raise op.failed(error) from error
        if isinstance(found, tuple) and len(found) == 2 and found[0] == "batch":
            if type(found[1]) is int and found[1] >= 0:
                return found
            expected = "('batch', axis), with an axis of at least 0"
            raise ProgramError(f"operator {op.type!r}, rows", expected=expected, got=shown(found))
        if found is not None and found not in TRAITS:
            raise ProgramError(f"operator {op.type!r}, rows", expected=f"one of {TRAITS}, or None", got=shown(found))
    return (found if found != "batch" or {0, None}.issuperset(axes) else None), 0


def _may_have_sequences(known: Known, depth: int) -> bool:
    """Return whether a value can be a weight, the rows of sequences, or states with sequences on a later axis."""
    if known.axis is None:
        return True
    if known.axis == 0:
        return known.depth == depth == known.specs[0].lod_level
    return known.depth == depth - 1


def _of_sequences(specs: tuple[TensorSpec, ...], depth: int) -> Known | None:
    """Return the Known of an output that has rows of sequences, or one entry per sequence; None if it has neither."""
    first = specs[0]
    if first.kind is LOD_TENSOR and specs[1:] == specs[:-1] and -1 in first.shape:
        axis = first.shape.index(-1)
        return with_rows(first, axis, depth if first.lod_level == depth and axis == 0 else depth - 1)
    found = _of_rows(specs, depth, True)
    return found if found is not None and found.axis is not None else None


def _of_rows(specs: tuple[TensorSpec, ...], depth: int, is_open: bool) -> Known | None:
    """Return the Known of an output, or None if more than one of its sizes depends on the number of rows."""
    first = specs[0]
    if any(spec.kind is not LOD_TENSOR or (-1 in spec.shape and not is_open) for spec in specs):
        return None
    if specs[1:] == specs[:-1]:
        return Known(specs)
    possible = (with_rows(first, axis, depth) for axis in range(len(first.shape)))
    return next((known for known in possible if known.specs == specs), None)


def divide(
    op: Op, attrs: Mapping[str, Any], specs: Sequence[TensorSpec | None], axes: Sequence[int | None], results: int
) -> tuple[str | None, Sequence[Any]]:
    """Return the trait of an operator if ranks (processes) divide the rows, and the Known of each of its results.

    The trait of a mean is "sum", too.  The trait is None if rows depend on each other.  If it is "batch", a Known has
    an axis but no specs.
    """
    if op.rows is None:
        return None, ()
    trait, axis = _declared(op, attrs, specs, axes)
    if trait == "batch":
        return trait, [Known((), axis)] * results
    levels = max((min(spec.lod_level, 1) for spec in specs if spec is not None), default=0)
    # It suffices if the trait holds with one level of sequences, or without levels, for rows alone.
    for most_levels in range(levels, -1, -1) if trait is not None or op.divisor is not None else ():
        known = [_with_levels(spec, axis, most_levels) for spec, axis in zip(specs, axes, strict=True)]
        trait, outputs = follow(op, attrs, known)
        if trait is None and op.divisor is not None and outputs and outputs[0].axis is None:
            trait = "sum"
        if trait in ("each", "sequence", "sum"):
            return trait, outputs
    return None, ()


def _with_levels(spec: TensorSpec | None, axis: int | None, most_levels: int) -> Known:
    if spec is None or axis is None or spec.kind is not LOD_TENSOR:
        return without_rows(spec)
    level = min(spec.lod_level, most_levels)
    return with_rows(spec._replace(lod_level=level), axis, level)


def takes_rows(op: Op, attrs: Mapping[str, Any], specs: Sequence[TensorSpec | None], number: int) -> bool:
    """Return whether an operator accepts any number of rows along the first axis of operand `number`."""
    known = [with_rows(spec) if n == number and spec else without_rows(spec) for n, spec in enumerate(specs)]
    return _inferred(op, attrs, known) is not None
