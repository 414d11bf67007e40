"""Check a block once for many runs: infer its specs, and note the comparisons of sizes on which they depend.

The first run of a block checks and infers each operator as `tape.run` does, and notes how (`program.sizes`).  A later
run whose arguments have the same kinds, data types, levels and fixed sizes, and whose other sizes compare alike, takes
the same way through each `infer`.  So its operators run without it.  Each result is compared with the spec that was
found.  As soon as a size or a result differs, the rest of the run is checked as before, which raises the same errors.
"""

from typing import NamedTuple

from varlen_rnn.program.sizes import BEFORE, Sizes, with_numbers
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.tape.kinds import LOD_TENSOR
from varlen_rnn.tape.run import like_of, run, run_checked
from varlen_rnn.tape.spec import TensorSpec, describe, sizes_fit

_new_tuple = tuple.__new__  # makes a NamedTuple without calling its Python constructor


class Result(NamedTuple):
    """The rule of a result.

    position: its position among the results of the operator
    spec: the number of its spec
    same: the position of the input that it is; None if it is new
    measured: pairs of an axis and a slot, of the sizes that only the result shows
    """

    position: int
    spec: int
    same: int | None
    measured: tuple[tuple[int, int], ...]


class Later(NamedTuple):
    """Consequences of sizes that became known: sizes computed from them, comparisons, and specs of results."""

    made: tuple  # (slot, function, slot, slot)
    compared: tuple  # (function, slot, slot, result)
    specs: tuple  # (number of the spec, slots of its shape, data type, levels, kind)


class Step(NamedTuple):
    """An instruction, the rules of its results, and the consequences of their sizes.

    specs: the numbers of the results' specs
    likes: for each result, the position of the input whose LoD an array gets (`like_of`); None if each run checks
    """

    instruction: tuple
    results: tuple[Result, ...]
    specs: tuple[int, ...]
    likes: tuple[int | None, ...] | None
    later: Later | None


class Checked:
    """The operators of a block, checked for all runs whose arguments and sizes are as in the run that was traced."""

    def __init__(self, arguments, first, steps, sizes, specs):
        # Triples: the place, the spec with -1 for sizes that differ, and pairs of such an axis and a slot.
        fixed = [one for one in arguments if _is_fixed(one[1])]
        self._places, self._fixed = [one[0] for one in fixed], [one[1][:3] for one in fixed]
        self._others = [one for one in arguments if one not in fixed]
        self._first, self._steps, self._sizes, self._specs = first, steps, sizes, specs

    def begin(self, held):
        """Return the sizes and the specs of a run on these arguments; None if they are not as in the traced run."""
        values = [held[place] for place in self._places]
        if not {LoDTensor}.issuperset(map(type, values)):
            return None
        if [(value.shape, value.dtype, value.num_levels) for value in values] != self._fixed:
            return None
        sizes, specs = self._sizes.copy(), self._specs.copy()
        for place, spec, measured in self._others:
            value = held[place]
            if not is_like(value, spec):
                return None
            for axis, slot in measured:
                sizes[slot] = value.shape[axis]
        return (sizes, specs) if _follows(self._first, sizes, specs) else None

    def run(self, held, sizes, specs):
        """Run the operators on `held`, the values by position; return how many ran.

        If a result is not as in the traced run, the other operators are left to the caller, who checks them.
        """
        for number, (instruction, results, numbers, likes, later) in enumerate(self._steps):
            op, attrs, *_ = instruction
            values = instruction.taken(held)
            if likes is None:
                found = run(op, values, attrs)
            else:
                found = run_checked(op, values, attrs, [specs[number] for number in numbers], likes)
            instruction.put(held, found)
            is_known = True
            for position, spec, same, measured in results:
                value = found[position]
                if same is not None and value is values[same]:
                    continue
                if not is_like(value, specs[spec]):
                    is_known = False
                    break
                for axis, slot in measured:
                    sizes[slot] = value.shape[axis]
            if not is_known or (later is not None and not _follows(later, sizes, specs)):
                return number + 1
        return len(self._steps)


def _is_fixed(spec):
    """Return whether a spec describes a tensor without levels whose sizes are the same in each run, as a parameter."""
    return spec.kind is LOD_TENSOR and not spec.lod_level and -1 not in spec.shape


def is_like(value, spec):
    """Return whether a value is valid and has a spec, in which -1 fits any size; no value has the spec None."""
    if type(value) is not LoDTensor:
        if value is None or spec is None:
            return value is spec
        found = describe(value)
        return found[1:] == spec[1:] and sizes_fit(found.shape, spec.shape)
    if spec is None:
        return False
    wanted, dtype, levels, kind = spec
    data, lod = value.data, value.structure
    shape = data.shape
    if lod.num_levels != levels or (data.dtype is not dtype and data.dtype != dtype) or kind is not LOD_TENSOR:
        return False
    return (shape == wanted or sizes_fit(shape, wanted)) and (not levels or shape[0] == lod.num_rows)


def _follows(later, sizes, specs):
    """Compute the consequences of known sizes; return whether all sizes compare as in the traced run."""
    made, compared, found = later
    for slot, function, a, b in made:
        sizes[slot] = function(sizes[a], sizes[b])
    for function, a, b, result in compared:
        if function(sizes[a], sizes[b]) is not result:
            return False
    for number, slots, dtype, levels, kind in found:
        specs[number] = _new_tuple(TensorSpec, (tuple([sizes[slot] for slot in slots]), dtype, levels, kind))
    return True


class Trace:
    """A checked run that notes how it was checked: `run` each instruction, and then `end`."""

    def __init__(self, held, declared):
        self._sizes, self._known, self._arguments = Sizes(), {}, []  # `_known`: {place: spec, with Sizes}
        self._specs = {}  # {(slots of the shape, data type, levels, kind): its number}
        self._steps = []
        for place, value in enumerate(held):
            if value is not None:
                self._take(place, value, declared.get(place))

    def _take(self, place, value, declared):
        """Note an argument; its sizes can differ where its declared spec has -1."""
        spec, sizes = describe(value), declared.shape if declared is not None else ()
        open_axes = [axis for axis, size in enumerate(sizes) if size == -1 and len(sizes) == len(spec.shape)]
        self._known[place], measured = self._measured(spec, open_axes, BEFORE)
        shape = tuple(-1 if axis in open_axes else size for axis, size in enumerate(spec.shape))
        self._arguments.append((place, spec._replace(shape=shape), measured))

    def _measured(self, spec, axes, ready, shape=None):
        """Return a spec with new Sizes along some axes, and pairs of such an axis and the slot of its Size."""
        sizes = list(spec.shape if shape is None else shape)
        for axis in axes:
            sizes[axis] = self._sizes.measure(spec.shape[axis], ready)
        return spec._replace(shape=tuple(sizes)), tuple((axis, sizes[axis].slot) for axis in axes)

    def run(self, instruction, held):
        """Run an operator with all checks, and note them."""
        op, attrs, inputs, outputs, *_ = instruction
        values = instruction.taken(held)
        known = [None if value is None else describe(value) for value in values]
        found = run(op, values, attrs)
        promised, likes = self._inferred(op, attrs, known, [self._known.get(place) for place in inputs])
        actual = [describe(value) for value in found]
        if promised is None or not all(map(_agrees, actual, promised)):
            likes = None
            promised = [spec._replace(shape=(-1,) * len(spec.shape)) for spec in actual]
        results = []
        for number, (place, spec, wanted) in enumerate(zip(outputs, actual, promised, strict=True)):
            axes = [axis for axis, size in enumerate(wanted.shape) if type(size) is int and size == -1]
            self._known[place], measured = self._measured(spec, axes, len(self._steps), wanted.shape)
            same = op.in_place[number] if op.in_place and found[number] is values[op.in_place[number]] else None
            results.append(Result(number, self._number(wanted), same, measured))
        self._steps.append((instruction, tuple(results), tuple(result.spec for result in results), likes))
        instruction.put(held, found)

    def _inferred(self, op, attrs, known, traced):
        """Return the specs, with Sizes, that `infer` returns, and the `like_of` of each spec.

        Return a pair of None if `infer` cannot be traced: it used a size as an int, or returned another spec.
        """
        wanted, mark = op.specs(known, attrs), self._sizes.mark()
        try:
            found = op.specs(traced, attrs)
        except Exception:  # for example, a TypeError because a Size is no int
            found = None
        if found is not None and list(map(with_numbers, found)) == wanted:
            likes = tuple(like_of(spec, traced) for spec in found)
            if likes == tuple(like_of(spec, known) for spec in wanted):
                return found, likes
        self._sizes.undo(mark)
        return None, None

    def _number(self, spec):
        """Return the number of a spec; equal specs have one number."""
        key = tuple(map(self._sizes.slot, spec.shape)), *spec[1:]
        return self._specs.setdefault(key, len(self._specs))

    def end(self):
        """Return the Checked of the run."""
        sizes, ready = self._sizes, self._sizes.ready
        at: dict = {number: ([], [], []) for number in range(BEFORE, len(self._steps))}
        for slot, function, a, b in sizes.made:
            at[ready[slot]][0].append((slot, function, a, b))
        for (function, a, b), result in sizes.compared.items():
            at[max(ready[a], ready[b])][1].append((function, a, b, result))
        specs: list = [None] * len(self._specs)
        for (slots, *others), number in self._specs.items():
            if all(map(sizes.is_constant, slots)):
                specs[number] = TensorSpec(tuple(sizes.values[slot] for slot in slots), *others)
            else:
                at[max(ready[slot] for slot in slots)][2].append((number, slots, *others))
        later = {number: Later(*map(tuple, found)) if any(found) else None for number, found in at.items()}
        steps = [Step._make((*step, later[number])) for number, step in enumerate(self._steps)]
        return Checked(self._arguments, later[BEFORE] or Later((), (), ()), steps, sizes.values, specs)


def _agrees(actual, promised):
    return actual[1:] == promised[1:] and sizes_fit(actual.shape, with_numbers(promised).shape)
