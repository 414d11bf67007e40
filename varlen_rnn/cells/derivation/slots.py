"""Choose the numbers that each row saves for the gradient: as few as possible.

The choice is a minimum cut between the inputs of a step and the nodes that its gradient reads (Ford and Fulkerson,
1956).  For `y = tanh(x + h)` the gradient reads `1 - y * y`.  Saving x and h would cost two slots.  Saving x + h would
cost one slot and a second tanh.  The cut saves y, which costs one slot and no second tanh.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from varlen_rnn.cells.derivation.operations import COMPARISONS, OPERATIONS
from varlen_rnn.cells.derivation.trace import Trace

SLOT = 1000  # the price of saving a number; an addition that is computed twice costs 1
_INFINITE = 10**9
# Prices of computing a tanh or exp twice, tried in this order: the first forbids it, the last is an eighth of a slot.
_PRICES = (10**6, 2 * SLOT, SLOT * 3 // 4, SLOT * 2 // 5, SLOT // 4, SLOT // 8)
_LOWEST_SANE = SLOT * 2 // 5

_Room = dict[Any, dict[Any, int]]


def choose(trace: Trace, needed: set[int], free: set[int], native: set[int], num_columns: int) -> list[int]:
    """Return the nodes to save per row so that all `needed` nodes can be computed again.

    `free` nodes need no column (a place in a saved row).  The forward step computes `native` nodes anyway.  Gradients
    need `num_columns` columns in any case, so saving fewer nodes pays only if no tanh or exp is then computed twice.
    """
    cuts: list[list[int]] = []
    fewest = None
    for price in _PRICES:
        kept = _cheapest_cut(trace, needed - free, free, native, price)
        cuts.append(kept)
        if price >= _LOWEST_SANE:
            fewest = len(kept) if fewest is None else min(fewest, len(kept))
    most = max(fewest or 0, num_columns)
    return next(kept for kept in cuts if len(kept) <= most)


def _network(trace: Trace, needed: set[int], free: set[int], native: set[int], transcendental: int) -> _Room:
    """Return the capacity of each edge of the flow network, whose source is "forward" and whose sink is "gradient".

    Each node k of the trace is two vertices, (k, "in") and (k, "out").  Cutting the edge between them means saving k,
    and its capacity is the price of a slot.  Cutting the edge from "forward" to (k, "in") means computing k again, from
    operands that must then be on the gradient's side of the cut, too.  A node that is not `native` is computed in the
    gradient only, so that edge costs 0.  Saving such a node costs a little more than saving others, because inference
    would compute it in vain.
    """
    room: _Room = {"forward": {}}

    def edge(a: Any, b: Any, capacity: int) -> None:
        room.setdefault(a, {})[b] = room.get(a, {}).get(b, 0) + capacity
        room.setdefault(b, {}).setdefault(a, 0)

    nodes = [k for k in trace.reach(needed, free) if k not in free and trace.value(k) is None]
    for k in nodes:
        op, operands, _ = trace.nodes[k]
        edge((k, "in"), (k, "out"), _INFINITE if op in COMPARISONS else SLOT + (k not in native))
        price = OPERATIONS[op].price if op in OPERATIONS else _INFINITE
        price = transcendental if price is None else price
        edge("forward", (k, "in"), price if k in native or price == _INFINITE else 0)
        for operand in operands if op in OPERATIONS else ():
            if operand in nodes:
                edge((operand, "out"), (k, "in"), _INFINITE)
        if k in needed:
            edge((k, "out"), "gradient", _INFINITE)
    return room


def _cheapest_cut(trace: Trace, needed: set[int], free: set[int], native: set[int], transcendental: int) -> list[int]:
    """Return the nodes to save by a minimum cut: fill shortest paths with flow until no path has capacity left."""
    room = _network(trace, needed, free, native, transcendental)
    while True:
        came: dict[Any, Any] = {"forward": None}
        todo = deque(["forward"])
        while todo and "gradient" not in came:
            a = todo.popleft()
            for b, capacity in room[a].items():
                if capacity > 0 and b not in came:
                    came[b] = a
                    todo.append(b)
        if "gradient" not in came:
            nodes = sorted({place[0] for place in room if isinstance(place, tuple)})
            return [k for k in nodes if (k, "in") in came and (k, "out") not in came]
        path, b = [], "gradient"
        while came[b] is not None:
            path.append((came[b], b))
            b = came[b]
        most = min(room[a][b] for a, b in path)
        for a, b in path:
            room[a][b] -= most
            room[b][a] += most
