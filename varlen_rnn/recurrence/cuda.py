"""The shrinking batch on CUDA: one launch per phase of a step, for all directions of a layer (`cuda_steps`).

The same equations as on the CPU, over the same rows.  The host walks the steps with the plan's `batch_sizes`.
"""

from typing import Any, NamedTuple

from varlen_rnn.products.gemm import product
from varlen_rnn.products.packing import ALL_ROWS
from varlen_rnn.recurrence import cuda_steps
from varlen_rnn.recurrence.backward_loop import SUMMED_STEPS
from varlen_rnn.recurrence.phases import (
    BackwardPhase,
    ForwardPhase,
    backward_table,
    carried_by,
    forward_table,
    kept_by,
    norms_of,
    passed_by,
)
from varlen_rnn.rows.plan import ranks_of
from varlen_rnn.runtime.device import beside, empty, launch, zeros


class _Batch(NamedTuple):
    """The plan on the device, and whether each direction runs backwards.

    Attributes
    ----------
    starts, lengths, order : (sequences,)
        The plan's, by rank.
    reverse : tuple of bool
    sizes : list of int
        The sequences that have each step.
    """

    starts: Any
    lengths: Any
    order: Any
    reverse: tuple
    sizes: list

    @property
    def rows(self):
        """The arguments with which kernels find rows."""
        return self.starts, self.lengths, self.reverse


def _batch(plan, reverse, like):
    starts, lengths, order = (beside(array, like) for array in ranks_of(plan))
    return _Batch(starts, lengths, order, tuple(reverse), plan.batch_sizes.tolist())


def _phases(cell, shape, table_of, kind):
    """Return a record for each phase, read from the table that the CPU loops use; a projection comes last."""
    # Here no code has an address, but an address of 0 marks a projection, so phases get numbers from 1.
    table, _ = table_of(cell, shape, 1, range(1, 1 + len(cell.phases)))
    return [kind(*map(int, row)) for row in table]


def _norm_places(cell, shape, phase):
    """Return where a saved row holds the values normalised after a phase, and where their inverse divisors."""
    column = (cell.num_kept - norms_of(cell) + phase.first_norm) * shape.hidden
    return column, kept_by(cell, shape.projects) * shape.hidden + phase.first_norm


def _of(directions, name, otherwise):
    """Return the weights of all directions, or for each an array that replaces the missing one."""
    found = tuple(getattr(direction, name) for direction in directions)
    return (otherwise,) * len(found) if found[0] is None else found


def _initial_states(cell, x, directions, initial, plan, shape):
    sizes = len(cell.states), len(directions), plan.num_sequences, shape.hidden
    return zeros(sizes, x) if initial is None else initial


def forward(cell, x, directions, initial, plan, shape, columns, reverse, keep):
    """Twin of `recurrence.cpu.forward`; it saves columns even without `keep`."""
    of = _batch(plan, reverse, x)
    initial = _initial_states(cell, x, directions, initial, plan, shape)
    y, last = empty((x.shape[0], len(directions) * shape.outputs), x), zeros(initial.shape, x)
    kept = tuple(empty((x.shape[0], columns), x) for _ in directions)
    projected = []
    for direction in directions:
        projected.append(empty((x.shape[0], direction.weight_ih.shape[0]), x))
        product(x, direction.weight_ih, projected[-1], transposed=True, bias=direction.bias_ih)
    run_steps(cell, of, directions, shape, tuple(projected), initial, kept, y)
    arguments = of.starts, of.lengths, of.order, of.reverse, initial, kept, y, shape.outputs, last
    launch(cuda_steps.last_states_of(cell), len(kept) * plan.num_sequences * shape.hidden, *arguments)
    return y, last, list(kept) if keep else []


def run_steps(cell, of, directions, shape, projected, initial, kept, y):
    """Run all steps forward, from projected inputs: write the outputs and the saved rows."""
    hidden, outputs = shape.hidden, shape.outputs
    weight, bias = _of(directions, "weight_hh", None), _of(directions, "bias_hh", None)
    vectors, given = _of(directions, "vectors", zeros((0, hidden), y)), _of(directions, "rows", zeros((1, 0), y))
    passed = zeros((len(kept), passed_by(cell), len(of.order), hidden), y)
    phases = list(enumerate(_phases(cell, shape, forward_table, ForwardPhase)))
    for t, alive in enumerate(of.sizes):
        reads, threads = 0, len(kept) * alive
        for number, phase in phases:
            if not phase.equations:
                places = kept, reads, _of(directions, "weight_hr", None), y.dtype.type(cell.proj_clip), y
                launch(cuda_steps.project, threads * outputs, t, alive, *of.rows, *places)
                continue
            weights = projected, given, weight, bias, vectors, phase.first_row, phase.depth
            arguments = (
                *of.rows[:2],
                of.order,
                of.reverse,
                initial,
                *weights,
                reads,
                passed,
                kept,
                phase.keeps,
                y,
                outputs,
            )
            launch(cuda_steps.forward_step_of(cell, number), threads * hidden, t, alive, *arguments)
            if phase.norms:
                places = passed, phase.first_pass, phase.norms, kept, *_norm_places(cell, shape, phase)
                launch(cuda_steps.normalise, threads * phase.norms, t, alive, *of.rows, *places)
            reads = phase.keeps


class _Product(NamedTuple):
    """A product of gradients of gates with a weight, which the next launch adds to carried gradients."""

    column: int
    depth: int
    weight: tuple
    rows: Any
    first_row: int
    target: int


def backward(cell, x, directions, initial, plan, shape, weight_rows, y, kept, d_y, d_last, d_others, reverse):
    """Twin of `recurrence.cpu.backward`."""
    of, kept, hidden, outputs = _batch(plan, reverse, y), tuple(kept), shape.hidden, shape.outputs
    initial = _initial_states(cell, y, directions, initial, plan, shape)
    vectors, given = _of(directions, "vectors", zeros((0, hidden), y)), _of(directions, "rows", zeros((1, 0), y))
    weight, weight_rows, all_rows = _of(directions, "weight_hh", None), beside(weight_rows, y), beside(ALL_ROWS, y)
    nothing, bound = zeros((0, 0), y), y.dtype.type(cell.proj_clip)
    carried = zeros((len(kept), carried_by(cell), plan.num_sequences, hidden), y)
    launch(cuda_steps.carry_last, d_last.size, d_last, of.order, carried)
    sums, total, lost = (zeros((len(kept), len(cell.vectors), plan.num_sequences, hidden), y) for _ in range(3))
    phases = list(enumerate(_phases(cell, shape, backward_table, BackwardPhase)))
    steps = [
        _Product(phase.h_slot * hidden, phase.depth, weight, weight_rows, phase.first_row, phase.target)
        for _, phase in phases
    ]  # fmt: skip
    if shape.projects:
        steps[-1] = steps[-1]._replace(weight=_of(directions, "weight_hr", None), rows=all_rows)
    ranks, no_others = 0, (nothing,) * len(kept)
    for t in reversed(range(len(of.sizes))):
        alive, later, pending = of.sizes[t], t + 1, steps[0]
        threads = len(kept) * alive
        for number, phase in reversed(phases):
            if not phase.equations:
                arguments = kept, steps[number].column, y, bound, d_y, carried, ranks, *pending[:4]
                launch(cuda_steps.project_grad, threads * hidden, t, alive, *of.rows, *arguments)
            else:
                if phase.norms:
                    places = kept, *_norm_places(cell, shape, phase), carried, len(cell.states) + 1, phase.norms
                    launch(cuda_steps.normalise_grad, threads * phase.norms, t, alive, *of.rows, *places)
                others = d_others if phase.of_states and d_others is not None else no_others
                arriving = d_y if phase.of_outputs else nothing, tuple(others), carried
                arguments = *of.rows[:2], of.order, of.reverse, initial, given, vectors, kept, y, outputs, *arriving
                ends = sums, total, lost, t % SUMMED_STEPS == 0
                kernel = cuda_steps.backward_step_of(cell, number)
                launch(kernel, threads * hidden, t, alive, *arguments, later, ranks, *pending, *ends)
            later, ranks, pending = t, alive, steps[number]
    d_initial, first = empty(initial.shape, y), steps[0]
    ranks = of.sizes[0] if of.sizes else 0
    arguments = of.starts, of.lengths, of.order, of.reverse, kept, carried, ranks, *first[:4]
    launch(cuda_steps.initial_grads, d_initial.size, *arguments, d_initial)
    d_vectors = empty(total.shape, y)
    launch(cuda_steps.settle, d_vectors.size, total, lost, of.order, d_vectors)
    return d_initial, [d_vectors[d] for d in range(len(kept))]
