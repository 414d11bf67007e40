"""Differentiate a trace: append nodes that compute the gradients of leaves from the gradients of results.

For `y = x * x + 1` with the gradient d of y, the walk from the last node to the first appends d * (x + x): x is both
operands of the product, so it gets the term d * x twice.  The terms are joined around their common factor d.
"""

from __future__ import annotations

from collections.abc import Iterable

from varlen_rnn.cells.derivation.operations import OPERATIONS
from varlen_rnn.cells.derivation.trace import Scalar, Trace


def _factors(trace: Trace, term: Scalar) -> tuple[int, dict[int, Scalar]]:
    """Return the sign of a term, and a dict {node of d: other factor} with each way to write it as a product d * x."""
    node, sign = trace.nodes[term.number], 1
    if node.op == "negative":
        term, sign = trace.scalar(node.operands[0]), -1
        node = trace.nodes[term.number]
    found = {term.number: trace.constant(1)}
    if node.op == "multiply":
        found[node.operands[0]] = trace.scalar(node.operands[1])
    return sign, found


def _join(p: Scalar, q: Scalar) -> Scalar:
    """Return the sum of two gradients; if both begin with the same factor d, write d (a + b) instead of d a + d b."""
    trace = p.trace
    (of_p, ps), (of_q, qs) = _factors(trace, p), _factors(trace, q)
    for number in ps.keys() & qs.keys():
        d, a, b = trace.scalar(number), ps[number], qs[number]
        if of_p == of_q:
            return d * (a + b) if of_p > 0 else -(d * (a + b))
        return d * (a - b) if of_p > 0 else d * (b - a)
    return p + q


def total(terms: list[Scalar]) -> Scalar:
    """Return the sum of a gradient's terms, joined around common factors."""
    out = terms[0]
    for term in terms[1:]:
        out = _join(out, term)
    return out


_PASSED = {"of": "d_operand", "norm": "d_norm"}


def differentiate(trace: Trace, results: Iterable[tuple[int, Scalar]]) -> dict[tuple[str, object], Scalar]:
    """Return the gradient of every leaf that has one, by the leaf's kind and name.

    `results` pairs each result with its gradient.  A gradient that sums over other units becomes a new leaf, because
    equations see one unit.  A product with a value of this step (leaf `of`) gives that value the gradient `d_operand`:
    a transposed product over all gates.  A norm gives its argument the gradient `d_norm`.
    """
    terms: dict[int, list[Scalar]] = {}
    gradients: dict[tuple[str, object], Scalar] = {}
    for result, d in results:
        terms.setdefault(result, []).append(d)
    for k in reversed(trace.reach([result for result, _ in results])):
        op, operands, what = trace.nodes[k]
        if k not in terms or op == "number":
            continue
        if op not in OPERATIONS:
            gradients[op, operands[0] if op == "norm" else what] = total(terms[k])
            passed = trace.node(_PASSED[op], what=operands[0]) if op in _PASSED else None
            if passed is not None and all(passed.number != term.number for term in terms.get(operands[0], ())):
                terms.setdefault(operands[0], []).append(passed)
            continue
        d, rule = total(terms[k]), OPERATIONS[op].gradient
        assert rule is not None, "comparisons get no gradients"
        for operand, term in zip(operands, rule(d, *map(trace.scalar, (k, *operands))), strict=True):
            if term is not None:
                terms.setdefault(operand, []).append(trace.scalar(trace.number_of(term)))
    return gradients
