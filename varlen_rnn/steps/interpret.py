"""Run a step operator by operator.

Operators that depend on no memory (state) run once for all rows, the other operators at every step.  Step t runs over
the sequences that are still alive (longer than t steps), longest first: the sequence of rank 0 is the longest.
"""

import itertools

import numpy as np

from varlen_rnn.errors import LoDError, ShapeError
from varlen_rnn.kernels import segment
from varlen_rnn.ops.indices import put_rows, rows_at
from varlen_rnn.ops.sequence.movement import flat
from varlen_rnn.ops.sums import sum_values
from varlen_rnn.rows.lod import LoD, LoDTensor, levels_of, remember, take_sequences
from varlen_rnn.runtime.device import as_operand, copy_into, empty, joined, zeros
from varlen_rnn.steps.describe import places_of
from varlen_rnn.steps.loop import Loop, OverSteps, rows_by_step, run_once
from varlen_rnn.steps.stages import arrange
from varlen_rnn.tape.axes import with_rows, without_rows
from varlen_rnn.tape.spec import describe


def _rows_at_steps(x, level, order, ends):
    """Return the positions of the rows of `x`, step after step; where each step's rows end; and each step's LoD.

    `order` lists the entries of `level`, step after step, and `ends` says where each step's entries end.  The entries
    of the last level are rows, so its steps have no LoD: then return `order`, `ends` and None.
    """
    if level == x.num_levels - 1:
        return order, ends, None
    return remember(x.structure, ("steps", level), _sub_sequences, x.structure, level, order, ends)


def _sub_sequences(structure, level, order, ends):
    below = LoD(levels_of(structure)[level + 1 :])
    taken = [take_sequences(below, order[begin:end]) for begin, end in itertools.pairwise([0, *ends])]
    rows = [index for _, index in taken]
    return np.concatenate(rows), np.cumsum(list(map(len, rows))).tolist(), [lod for lod, _ in taken]


def _steps_of(x, level, order, ends):
    index, ends, lods = _rows_at_steps(x, level, order, ends)
    rows = rows_at(x.data, index)
    if lods is None:
        return OverSteps(with_rows(describe(LoDTensor.wrap(rows))), whole=LoDTensor.wrap(rows))
    parts = zip(itertools.pairwise([0, *ends]), lods, strict=True)
    return OverSteps(steps=[LoDTensor.wrap(rows[begin:end], lod) for (begin, end), lod in parts])


def run(nested, names, xs, states, others, plan, level, keep):
    """Run all steps; return the output rows, the last states by rank, and an OverSteps for each variable by name."""
    place, (order, ends) = nested.instructions.place, rows_by_step(plan)
    memories, after = (places_of(place, group) for group in (names.memories, names.next_memories))
    output = place[names.output]
    variables = [None] * (nested.instructions.size - 1) + [OverSteps()]
    for name, x in zip(names.step_inputs, xs, strict=True):
        variables[place[name]] = _steps_of(x, level, order, ends)
    for name, other in zip(names.captured, others, strict=True):
        variables[place[name]] = OverSteps(without_rows(describe(other)), same=other)
    given = {p: variable.known for p, variable in enumerate(variables[:-1]) if variable is not None}
    given |= {p: _known_of(state) for p, state in zip(memories, states, strict=True)}
    stages = _stages_of(nested, given, set(memories), set(after))
    run_once(stages.before, variables, stages)
    recorded = range(len(variables)) if keep else {output, *(p for one in stages.after for p in one.inputs)}
    loop = Loop(stages, variables, ends, memories, {output, *after} - (stages.in_rows - {*after}), set(recorded))
    outputs, last = _run_loop(stages, loop, plan.batch_sizes.tolist(), states, memories, after, output, names)
    run_once(stages.after, variables, stages)
    rows = variables[output].whole().data if output in stages.in_rows else joined(outputs)
    y = empty(rows.shape, rows)
    put_rows(y, order, rows)
    return y, last, {name: variables[p] for name, p in place.items() if variables[p] is not None}


def _known_of(state):
    return None if state.num_levels else with_rows(describe(state))


def _num_rows(state, count):
    """Return how many rows the first `count` sequences of a state have; without a LoD, each has one row."""
    return state.structure.slice(0, 0, count)[2] if state.num_levels else count


def _first(state, count, rows):
    """Return `rows` with the LoD of the first `count` sequences of a state."""
    return LoDTensor.wrap(rows, state.structure.slice(0, 0, count)[0]) if state.num_levels else LoDTensor.wrap(rows)


def _run_loop(stages, loop, sizes, states, memories, after, output, names):
    """Run the loop; return a list with the output of each step, and the last state of each sequence by rank.

    The list is empty if the output has one row per sequence alive: then the caller reads the output from `variables`.
    """
    last = [empty(state.shape, state.data) for state in states]
    counts = [_num_rows(state, sizes[0]) for state in states]
    for end, state, count in zip(last, states, counts, strict=True):
        copy_into(end[count:], state.data[count:])  # sequences without steps keep their initial state
    is_known = [
        stages.known[memory] is not None and stages.known.get(p) == stages.known[memory]
        for p, memory in zip(after, memories, strict=True)
    ]
    given = [_first(state, sizes[0], state.data[:count]) for state, count in zip(states, counts, strict=True)]
    outputs = list[np.ndarray]()
    for t, (alive, remain) in enumerate(zip(sizes, [*sizes[1:], 0], strict=True)):
        held = loop.run(t, given)
        if output not in stages.in_rows:
            outputs.append(_rows_of(held[output], alive, "output", outputs[0] if t else None))
        for number, (p, end, name) in enumerate(zip(after, last, names.next_memories, strict=True)):
            value, state = held[p], states[number]
            rows = value.data if is_known[number] else _state_of(value, alive, name, given[number], end)
            left = _num_rows(state, remain)
            if remain < alive:
                copy_into(end[left : len(rows)], rows[left:])
            is_same = is_known[number] and remain == alive
            given[number] = value if is_same else _first(state, remain, rows[:left])
    return outputs, last


def run_back(nested, names, d_outputs, d_inputs, scopes, plan, level, d_y, d_states, d_xs):
    """Run the gradient of all steps; write the gradients of the sequences to `d_xs`.

    Return the gradients of the initial states, by rank, and the gradients of the captured values.
    """
    place, (order, ends) = nested.instructions.place, rows_by_step(plan)
    of_y, *of_states = places_of(place, d_outputs)
    to_xs, to_states, to_others = names.split([place[name] if name else None for name in d_inputs])
    variables = [None] * (nested.instructions.size - 1) + [OverSteps()]
    for name in place.keys() & scopes.keys():
        variables[place[name]] = scopes[name]
    rows = LoDTensor.wrap(rows_at(d_y, order))
    variables[of_y] = OverSteps(with_rows(describe(rows)), whole=rows)
    given = {p: variable.known for p, variable in enumerate(variables[:-1]) if variable is not None}
    given |= {p: _known_of(d) for p, d in zip(of_states, d_states, strict=True)}
    carried, summed = ({p for p in group if p is not None} for group in (to_states, to_others))
    stages = _stages_of(nested, given, set(of_states), carried, summed)
    run_once(stages.before, variables, stages)
    rows_of = [_rows_at_steps(d_x, level, order, ends) for d_x in d_xs]
    by_step = {p for p in to_xs if p is not None and p not in stages.in_rows}
    later = {p for one in stages.after for p in one.inputs} | {p for p in to_xs if p is not None}
    added = summed - stages.totals
    loop = Loop(stages, variables, ends, of_states, carried | by_step | added, later)
    sums: dict[int, list] = {p: [] for p in added}
    for t, held in _states_back(loop, plan, d_states, to_states, names, d_inputs):
        for p, total in sums.items():
            _collect(total, held[p])
        for p in by_step:
            number = to_xs.index(p)
            begin, end = [0, *rows_of[number][1]][t : t + 2]
            _rows_of(held[p], end - begin, d_inputs[number], d_xs[number])
    run_once(stages.after, variables, stages)
    for p, d_x, (index, *_) in zip(to_xs, d_xs, rows_of, strict=True):
        if p is not None:
            put_rows(d_x.data, index, variables[p].whole().data)
    found = {p: variables[p].same if p in stages.totals else sum_values(sums[p]) for p in summed}
    return [d.data for d in d_states], [None if p is None else found[p] for p in to_others]


def _states_back(loop, plan, d_states, to_states, names, d_inputs):
    """Run the gradient from the last step to the first; yield the number and the values of each step.

    `d_states`, in the order of ranks, are the gradients of the last states.  At the end, they are overwritten by the
    gradients of the initial states.
    """
    sizes = plan.batch_sizes.tolist()
    arriving, later = [d.data[:0] for d in d_states], 0
    for t in range(len(sizes) - 1, -1, -1):
        alive = sizes[t]
        if alive > later:  # sequences whose last step is this one join
            ended = [end.data[len(d) : _num_rows(end, alive)] for d, end in zip(arriving, d_states, strict=True)]
            arriving = [joined(pair) for pair in zip(arriving, ended, strict=True)]
        held = loop.run(t, (_first(end, alive, d) for d, end in zip(arriving, d_states, strict=True)))
        yield t, held
        arriving = [
            zeros(d.shape, d) if p is None else _rows_of(held[p], len(d), name, d)
            for p, d, name in zip(to_states, arriving, names.split(d_inputs)[1], strict=True)
        ]
        later = alive
    for d_state, d in zip(d_states, arriving, strict=True):
        copy_into(d_state.data[: len(d)], d)


def _collect(total, value):
    """Add the gradient `value` of a step to the list `total`.

    A dense gradient is added to the sum in the list, because each takes the memory of a whole parameter.  A sparse
    gradient is appended: the caller sums the list once, at the end.
    """
    if total and isinstance(value, LoDTensor):
        total[0] = sum_values([total[0], value])
    else:
        total.append(value)


def _stages_of(nested, given, late, carried, summed=frozenset()):
    """Return the stages of a block; reuse its last run's stages if the specs of its arguments did not change."""
    instructions = nested.instructions
    key, ready = (given, carried, summed), instructions.stages
    if ready is None or ready[0] != key:
        missing = {instructions.size - 1: without_rows(None)}
        instructions.stages = ready = key, arrange(instructions.all, given | missing, late, carried, summed)
    return ready[1]


def _rows_of(value, count, what, like):
    """Return the rows of a value; raise unless there are `count`, each like a row of `like` in shape and data type."""
    if not value.shape or len(value.data) != count:
        expected = f"{count} rows, one per sequence that has not ended"
        raise ShapeError(f"dynamic_rnn, {what}", expected=expected, got=f"shape {value.shape}")
    if like is not None and (value.shape[1:] != like.shape[1:] or value.dtype != like.dtype):
        expected, got = (f"rows of shape {of.shape[1:]} and type {of.dtype}" for of in (like, value))
        raise ShapeError(f"dynamic_rnn, {what}", expected=expected, got=got)
    return as_operand(value.data)


def to_ranks(state, plan, levels):
    """Return the rows of a state in the order of ranks, longest sequence first.

    If `levels` is 0, each sequence has one row.  Otherwise, its rows are given by the last `levels` levels of the LoD.
    """
    if levels:
        lod, index = take_sequences(_below(state, levels), plan.sorted_indices)
        return LoDTensor.wrap(rows_at(state.data, index), lod)
    out = empty(state.shape, state.data)
    segment.init_memories(flat(state.data), plan.sorted_indices, flat(out))
    return LoDTensor.wrap(out)


def to_callers_order(rows, plan, like, levels):
    """Bring rows from the order of ranks into the caller's order, with the LoD of `like`."""
    out = empty(rows.shape, rows)
    if levels:
        lod = _below(like, levels)
        put_rows(out, take_sequences(lod, plan.sorted_indices)[1], rows)
        return LoDTensor.wrap(out, lod)
    segment.init_memories_grad(flat(rows), plan.sorted_indices, flat(out))
    return LoDTensor.wrap(out)


def _below(state, levels):
    return LoD(levels_of(state.structure)[-levels:])


def _state_of(value, alive, what, before, like):
    """Return the rows of a next state; raise unless it has the same LoD as `before`, the state before the step."""
    if not before.num_levels:
        return _rows_of(value, alive, what, like)
    if value.structure != before.structure:
        expected, hint = f"the LoD of the previous state, {before.lod()}", "vr.while_loop lets sequences grow"
        raise LoDError(f"dynamic_rnn, {what}", expected=expected, got=value.lod(), hint=hint)
    return _rows_of(value, len(before.data), what, like)
