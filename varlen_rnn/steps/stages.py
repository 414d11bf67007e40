"""Which operators of a step run once for all rows, before or after the loop over steps, and which at every step.

A step depends on the step before it through its memories only.  What does not read them is computed for the rows of all
steps before the loop; what neither memories nor the loop read is computed after it.  So the product of a step's input
with a weight is one product, and so is the gradient of a weight that every step reads: a sum over rows is linear.
"""

from typing import NamedTuple

from varlen_rnn.errors import InputError
from varlen_rnn.tape.index import BASIC_INDEX
from varlen_rnn.tape.kinds import LOD_TENSOR

# What is inferred for each of these numbers of rows is so for every number: one, and primes that no size of a step is.
_COUNTS = (1, 2147483629, 2147483647)

ELEMENTWISE = {
    "add", "sub", "mul", "div", "neg", "absolute", "sqrt", "exp", "log", "pow", "tanh", "sigmoid", "relu", "silu",
    "gelu", "less", "less_equal", "greater", "greater_equal", "equal", "not_equal", "logical_not", "logical_and",
    "logical_or", "where", "maximum", "minimum", "cast",
}  # fmt: skip
_OF_ONE_ROW = ELEMENTWISE | {
    "log_softmax", "matmul", "getitem", "concat", "split", "split_grad", "split_like", "reshape", "assign", "detach",
    "sum", "sum_to", "embedding", "reduce_sum", "reduce_mean", "reduce_grad",
}  # fmt: skip
# With the gradients that are operators of their own.
_BY_ROW = _OF_ONE_ROW | {f"{name}_grad" for name in (*ELEMENTWISE, "log_softmax", "getitem", "reshape")}
_OVER_ROWS = {"row_product", "row_sum", "sum_to"}  # linear in each of their rows
_LINEAR = {"sum", "assign", "neg", "mul", "sum_to", "getitem_grad", "reshape_grad"}  # in one operand, or in all
# Whose rows and sizes are what `infer` says; what their values may be wrong in, their functions check.
_TRUSTED = _BY_ROW | _OVER_ROWS | {"fill_constant", "dropout", "dropout_grad"}


class Stages(NamedTuple):
    """The operators of a block by when they run, in their order."""

    before: list
    loop: list  # pairs of an Instruction, and whether it needs no checks
    after: list
    in_rows: frozenset[int]  # places of values with one row for each that is alive, as far as known
    totals: frozenset[int]  # places of values that are sums over all steps
    known: dict  # by place, as `of_rows` and `of_value` say it, or None

    def read_in_loop(self):
        """Return the places that the loop reads."""
        return {place for instruction, _ in self.loop for place in instruction.inputs}


def of_rows(spec):
    """Return what is known of one row for each sequence that is alive, for each of the counts."""
    return tuple(spec._replace(shape=(count, *spec.shape[1:]), lod_level=0) for count in _COUNTS)


def of_value(spec):
    """Return what is known of a value that is the same at every step, for each of the counts."""
    return (spec,) * len(_COUNTS)


def arrange(instructions, given, late, carried, summed):
    """Return the stages of a block.

    Parameters
    ----------
    instructions : list of Instruction
    given : dict of int to tuple, or None
        By place, what is known of the values that a step is given, as `of_rows` and `of_value` say it; None, nothing.
    late : set of int
        Places of those that are known only when their step runs.
    carried : iterable of int
        Places of what a step hands to the next one.
    summed : iterable of int
        Places of what is added up over steps.
    """
    return _Arrangement(instructions, given, late, set(carried), set(summed)).stages()


def _is_rows(known):
    return known is not None and known[0] is not None and known[0] != known[1]


def _is_fixed(known):
    return known is not None and known[0] == known[1]


class _Arrangement:
    def __init__(self, instructions, given, late, carried, summed):
        self.all, self.known, self.carried, self.summed = instructions, dict(given), carried, summed
        self.trusted = [self._infer(instruction) for instruction in instructions]
        self.early = {place for place, known in given.items() if known is not None and place not in late}
        self.in_order = any(instruction.op.in_place for instruction in instructions)  # an update is seen by the next
        self.is_early = [self._runs_before(number) for number in range(len(instructions))]

    def _infer(self, instruction):
        """Learn what an operator gives, for any number of rows; return whether it needs no checks then."""
        op, inputs = instruction.op, [self.known.get(place) for place in instruction.inputs]
        found = []
        if op.type in _TRUSTED and None not in inputs:
            try:
                counts = zip(*inputs, strict=True) if inputs else [()] * len(_COUNTS)
                found = list(zip(*(op.specs(specs, instruction.attrs) for specs in counts), strict=True))
            except InputError:
                pass  # of some number of rows: the run tells
        is_known = len(found) > 0 and all(map(_is_regular, found))
        for number, place in enumerate(instruction.outputs):
            self.known[place] = found[number] if is_known else None
        return is_known

    def _are(self, check, places):
        return all(check(self.known[place]) for place in places)

    def _is_by_row(self, number):
        """Return whether each row of what an operator gives depends on nothing but that row of what it takes."""
        op, attrs, inputs, outputs, *_ = self.all[number]
        if not (self.trusted[number] and op.type in _BY_ROW and self._are(_is_rows, outputs)):
            return False
        rank = len(self.known[inputs[0]][0].shape)
        if op.type in ("getitem", "getitem_grad"):
            items = attrs["index"] if isinstance(attrs["index"], tuple) else (attrs["index"],)
            return BASIC_INDEX.issuperset(map(type, items)) and items[:1] == (slice(None),)
        if op.type == "matmul":
            return rank > 1 and self._are(_is_rows, inputs[:1]) and self._are(_is_fixed, inputs[1:])
        if op.type in ("concat", "split", "split_grad", "split_like"):
            return attrs["axis"] % rank != 0 and self._are(_is_rows, inputs)
        if op.type == "embedding":
            return self._are(_is_rows, inputs[:1]) and self._are(_is_fixed, inputs[1:])
        if op.type in ("log_softmax", "log_softmax_grad"):
            return rank > 1
        return op.type not in ("sum", "sum_to", "reduce_grad") or self._are(_is_rows, inputs)

    def _runs_before(self, number):
        op, _, inputs, outputs, *_ = self.all[number]
        is_same = self.trusted[number] and self._are(_is_fixed, outputs) and not self.summed & set(outputs)
        is_same = is_same and op.type in _BY_ROW | {"fill_constant"} and self._are(_is_fixed, inputs)
        if self.in_order or not (self.early.issuperset(inputs) and (is_same or self._is_by_row(number))):
            return False
        self.early.update(outputs)
        return True

    def stages(self):
        """Return the stages: what may run after the loop does, unless it reads what only the loop knows."""
        held = set(range(len(self.all))) if self.in_order else set()
        late, wrong = self._after(held)
        while wrong is not None:
            held.add(wrong)
            late, wrong = self._after(held)
        numbered = list(enumerate(self.all))
        return Stages(
            [one for n, one in numbered if self.is_early[n]],
            [(one, self.trusted[n]) for n, one in numbered if not self.is_early[n] and n not in late],
            [one for n, one in numbered if n in late],
            frozenset(place for place, known in self.known.items() if _is_rows(known)),
            frozenset(self.totals),
            self.known,
        )

    def _after(self, held):
        """Return the operators that nothing in the loop reads but the `held` ones, and the first that cannot be one."""
        needed, late = set(self.carried), []
        for number in range(len(self.all) - 1, -1, -1):
            if not self.is_early[number]:
                if number in held or not self.trusted[number] or needed.intersection(self.all[number].outputs):
                    needed.update(self.all[number].inputs)
                else:
                    late.append(number)
        self.totals = set()
        for number in reversed(late):
            is_total = self._is_total(number)
            outputs = self.all[number].outputs
            if is_total:
                self.totals.update(outputs)
            elif self.summed.intersection(outputs) or not (self._is_by_row(number) and self._are_whole(number)):
                return late, number
        return frozenset(late), None

    def _are_whole(self, number):
        """Return whether what an operator takes is known for all rows, or the same at every step."""
        return all(_is_rows(self.known[place]) or place in self.early for place in self.all[number].inputs)

    def _is_total(self, number):
        """Return whether an operator gives the sum over all steps if it takes all rows, or sums over all steps."""
        op, _, inputs, outputs, *_ = self.all[number]
        if not self.summed or not self._are(_is_fixed, outputs):
            return False
        sums = [place in self.totals for place in inputs]
        if op.type in _OVER_ROWS and not any(sums):
            rows = inputs[:1] if op.type == "sum_to" else inputs
            return self._are(_is_rows, rows) and self._are_whole(number)
        others = [place in self.early for place, is_sum in zip(inputs, sums, strict=True) if not is_sum]
        wanted = len(inputs) if op.type == "sum" else 1
        return op.type in _LINEAR and sum(sums) == wanted and all(others) and self._is_linear_in(number, sums)

    def _is_linear_in(self, number, sums):
        """Return whether the operand that is a sum is one in which the operator is linear."""
        op = self.all[number].op.type
        return sums[-1] if op in ("getitem_grad", "reshape_grad") else sums[0] or op == "mul"


def _is_regular(known):
    """Return whether what is inferred for some numbers of rows is the same but for them, or the same."""
    if any(spec.kind is not LOD_TENSOR or -1 in spec.shape for spec in known):
        return False
    return known == of_value(known[0]) or (known[0].shape != () and known == of_rows(known[0]))
