"""The shrinking batch on CUDA: one launch per phase of a step, for all directions of a layer (`cuda_steps`).

The same equations as on the CPU, over the same rows.  The host walks the steps with the plan's `batch_sizes`.
"""

from typing import Any, NamedTuple

from varlen_rnn.kernels.copies import transposed
from varlen_rnn.products.gemm import product
from varlen_rnn.products.packing import ALL_ROWS
from varlen_rnn.recurrence import cuda_steps, persistent
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
from varlen_rnn.recurrence.task import weights_of
from varlen_rnn.rows.plan import ranks_of
from varlen_rnn.runtime.device import Prepared, beside, empty, launch, unstacked, zeros


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

    @property
    def sequences(self):
        """The arguments with which kernels find rows, and sequences in the caller's order."""
        return self.starts, self.lengths, self.order, self.reverse


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


def _initial_states(cell, x, directions, initial, plan, shape):
    sizes = len(cell.states), len(directions), plan.num_sequences, shape.hidden
    return zeros(sizes, x) if initial is None else initial


def forward(cell, x, directions, initial, plan, shape, columns, reverse, keep):
    """Twin of `recurrence.cpu.forward`; it saves columns even without `keep`."""
    of = _batch(plan, reverse, x)
    initial = _initial_states(cell, x, directions, initial, plan, shape)
    y, last = empty((x.shape[0], len(directions) * shape.outputs), x), zeros(initial.shape, x)
    kept = empty((len(directions), x.shape[0], columns), x)
    projected = empty((len(directions), x.shape[0], directions[0].weight_ih.shape[0]), x)
    for direction, rows in zip(directions, unstacked(projected), strict=True):
        product(x, direction.weight_ih, rows, transposed=True, bias=direction.bias_ih)
    run = persistent.run_steps if persistent.fits(cell, shape, plan, len(directions), x) else run_steps
    run(cell, of, directions, shape, projected, initial, kept, y)
    kept = unstacked(kept)
    arguments = *of.sequences, initial, kept, y, shape.outputs, last
    launch(cuda_steps.last_states_of(cell), len(kept) * plan.num_sequences * shape.hidden, *arguments)
    return y, last, list(kept) if keep else []


def run_steps(cell, of, directions, shape, projected, initial, kept, y):
    """Run all steps forward, from projected inputs: write the outputs and the saved rows."""
    hidden, outputs, count = shape.hidden, shape.outputs, len(directions)
    projected, kept, bias = unstacked(projected), unstacked(kept), weights_of(directions, "bias_hh")
    weights = weights_of(directions, "weight_hh") + (weights_of(directions, "weight_hr") if shape.projects else ())
    weights = transposed(weights)
    vectors = weights_of(directions, "vectors", zeros((0, hidden), y))
    given = weights_of(directions, "rows", zeros((1, 0), y))
    passed = zeros((count, passed_by(cell), len(of.order), hidden), y)
    steps, reads = [], 0  # threads of a sequence in a direction, and a launch whose first arguments are t and alive
    for number, phase in enumerate(_phases(cell, shape, forward_table, ForwardPhase)):
        if not phase.equations:
            places = kept, reads, weights[count:], y.dtype.type(cell.proj_clip), y
            steps.append((outputs, Prepared(cuda_steps.project, 0, 0, *of.rows, *places)))
            continue
        operands = projected, given, weights[:count], bias, vectors, phase.first_row, phase.depth, reads
        places = initial, *operands, passed, kept, phase.keeps, y, outputs
        steps.append((hidden, Prepared(cuda_steps.forward_step_of(cell, number), 0, 0, *of.sequences, *places)))
        if phase.norms:
            places = passed, phase.first_pass, phase.norms, kept, *_norm_places(cell, shape, phase)
            steps.append((phase.norms, Prepared(cuda_steps.normalise, 0, 0, *of.rows, *places)))
        reads = phase.keeps
    for t, alive in enumerate(of.sizes):
        for width, step in steps:
            step.launch(count * alive * width, t, alive)


def backward(cell, x, directions, initial, plan, shape, weight_rows, y, kept, d_y, d_last, d_others, reverse):
    """Twin of `recurrence.cpu.backward`."""
    of, kept, count = _batch(plan, reverse, y), tuple(kept), len(directions)
    initial = _initial_states(cell, y, directions, initial, plan, shape)
    carried = zeros((count, carried_by(cell), plan.num_sequences, shape.hidden), y)
    launch(cuda_steps.carry_last, d_last.size, d_last, of.order, carried)
    sums, total, lost = (zeros((count, len(cell.vectors), *carried.shape[2:]), y) for _ in range(3))
    phases = _phases(cell, shape, backward_table, BackwardPhase)
    pending = _products(phases, directions, shape, beside(weight_rows, y))
    steps = _backward_steps(cell, of, directions, shape, phases, pending, initial, kept, y, d_y, d_others, carried,
                            (sums, total, lost))  # fmt: skip
    for t in reversed(range(len(of.sizes))):
        alive, later = of.sizes[t], of.sizes[t + 1] if t + 1 < len(of.sizes) else 0
        for width, step in steps:
            step.launch(count * alive * width, t, alive, later)
    d_initial, d_vectors = empty(initial.shape, y), empty(total.shape, y)
    first = of.sizes[0] if of.sizes else 0
    launch(cuda_steps.initial_grads, d_initial.size, *of.sequences, kept, carried, first, *pending[0][:4], d_initial)
    launch(cuda_steps.settle, d_vectors.size, total, lost, of.order, d_vectors)
    return d_initial, list(unstacked(d_vectors))


class _Product(NamedTuple):
    """A product of gradients of gates with a weight, which the next launch adds to carried gradients."""

    column: int
    depth: int
    weight: tuple
    rows: Any
    first_row: int
    target: int


def _products(phases, directions, shape, weight_rows):
    """Return the product of each phase's gradients."""
    weight, hidden = weights_of(directions, "weight_hh"), shape.hidden
    found = [
        _Product(phase.h_slot * hidden, phase.depth, weight, weight_rows, phase.first_row, phase.target)
        for phase in phases
    ]  # fmt: skip
    if shape.projects:
        all_rows = beside(ALL_ROWS, weight[0])
        found[-1] = found[-1]._replace(weight=weights_of(directions, "weight_hr"), rows=all_rows)
    return found


def _backward_steps(cell, of, directions, shape, phases, pending, initial, kept, y, d_y, d_others, carried, sums):
    """Return the launches of a step, in their order, each after its threads of a sequence in a direction.

    Their first arguments are a step, the sequences that have it, and the sequences that have the step after it.
    """
    hidden, nothing = shape.hidden, zeros((0, 0), y)
    no_others, bound = (nothing,) * len(directions), y.dtype.type(cell.proj_clip)
    vectors = weights_of(directions, "vectors", zeros((0, hidden), y))
    given = weights_of(directions, "rows", zeros((1, 0), y))
    steps = []
    for number, phase in reversed(list(enumerate(phases))):
        comes_first = number == len(phases) - 1
        before = pending[0 if comes_first else number + 1]
        if not phase.equations:
            places = kept, pending[number].column, y, bound, d_y, carried, *before[:4]
            steps.append((hidden, Prepared(cuda_steps.project_grad, 0, 0, 0, *of.rows, *places)))
            continue
        if phase.norms:
            places = kept, *_norm_places(cell, shape, phase), carried, len(cell.states) + 1, phase.norms
            steps.append((phase.norms, Prepared(cuda_steps.normalise_grad, 0, 0, 0, *of.rows, *places)))
        others = d_others if phase.of_states and d_others is not None else no_others
        arriving = d_y if phase.of_outputs else nothing, tuple(others), carried, comes_first, *before
        places = initial, given, vectors, kept, y, shape.outputs, *arriving, *sums
        steps.append((hidden, Prepared(cuda_steps.backward_step_of(cell, number), 0, 0, 0, *of.sequences, *places)))
    return steps
