"""The recurrence on CUDA: one launch per phase of a step, for all directions of a layer (`cuda_steps`).

It runs the same equations as on the CPU, over the same rows.  The host loops over the steps; the plan's `batch_sizes`
has the number of sequences of each step.
"""

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
from varlen_rnn.recurrence.task import given_of, weights_of
from varlen_rnn.rows.plan import ranks_of
from varlen_rnn.runtime.device import Prepared, beside, empty, launch, unstacked, zeros


def _ranks(call, like):
    """Return the tuple (starts, lengths, order, reverse) by which kernels find rows, and the batch sizes of steps."""
    starts, lengths, order = (beside(array, like) for array in ranks_of(call.plan))
    return (starts, lengths, order, tuple(call.reverse)), call.plan.batch_sizes.tolist()


def _phases(call, table_of, kind):
    """Return a record of type `kind` per phase, from the table that the CPU loops use; a projection comes last."""
    # CUDA kernels have no addresses, but an address of 0 marks a projection.  So phases get the addresses 1, 2, ...
    table, _ = table_of(call.cell, call.shape, 1, range(1, 1 + len(call.cell.phases)))
    return [kind(*map(int, row)) for row in table]


def _norm_places(call, phase):
    """Return the positions in a saved row of a phase's normalised values, and of their inverse divisors."""
    column = (call.cell.num_kept - norms_of(call.cell) + phase.first_norm) * call.shape.hidden
    return column, kept_by(call.cell, call.shape.projects) * call.shape.hidden + phase.first_norm


def _initial_states(call, like):
    states, sequences, hidden = call.sizes
    return zeros((states, len(call.directions), sequences, hidden), like) if call.initial is None else call.initial


def forward(call, columns, keep):
    """Twin of `recurrence.cpu.forward`; it saves columns even without `keep`."""
    x, directions, shape = call.x, call.directions, call.shape
    (ranks, sizes), initial, count = _ranks(call, x), _initial_states(call, x), len(directions)
    y, last = empty((x.shape[0], count * shape.outputs), x), zeros(initial.shape, x)
    kept = empty((count, x.shape[0], columns), x)
    projected = empty((count, x.shape[0], directions[0].weight_ih.shape[0]), x)
    for direction, rows in zip(directions, unstacked(projected), strict=True):
        product(x, direction.weight_ih, rows, transposed=True, bias=direction.bias_ih)
    run = persistent.run_steps if persistent.fits(call) else run_steps
    run(call, ranks, sizes, initial, projected, kept, y)
    kept = unstacked(kept)
    num_threads, arguments = count * call.plan.num_sequences * shape.hidden, (initial, kept, y, shape.outputs, last)
    launch(cuda_steps.last_states_of(call.cell), num_threads, ranks, *arguments)
    return y, last, list(kept) if keep else []


def run_steps(call, ranks, sizes, initial, projected, kept, y):
    """Run all steps forward, from projected inputs: write the outputs and the saved rows."""
    cell, directions, (_, hidden, outputs, heads) = call.cell, call.directions, call.shape
    projected, kept, count = unstacked(projected), unstacked(kept), len(directions)
    weights = weights_of(directions, "weight_hh") + (weights_of(directions, "weight_hr") if call.shape.projects else ())
    weights, bias = transposed(weights), weights_of(directions, "bias_hh")
    passed = zeros((count, passed_by(cell), call.plan.num_sequences, hidden), y)
    layer = initial, projected, *given_of(call, y), kept, y, outputs
    steps, reads = [], 0  # pairs (threads per sequence and direction, launch), and the column that the next phase reads
    for number, phase in enumerate(_phases(call, forward_table, ForwardPhase)):
        if not phase.equations:
            places = kept, reads, weights[count:], y.dtype.type(cell.proj_clip), y
            steps.append((outputs, Prepared(cuda_steps.project, 0, 0, ranks, *places)))
            continue
        product = weights[:count], bias, phase.first_row, phase.depth, hidden // heads, reads
        places = product, passed, phase.keeps
        steps.append((hidden, Prepared(cuda_steps.forward_step_of(cell, number), 0, 0, ranks, layer, *places)))
        if phase.norms:
            places = passed, phase.first_pass, phase.norms, kept, *_norm_places(call, phase)
            steps.append((phase.norms, Prepared(cuda_steps.normalise, 0, 0, ranks, *places)))
        reads = phase.keeps
    for t, alive in enumerate(sizes):
        for width, step in steps:
            step.launch(count * alive * width, t, alive)


def backward(call, saved, arriving, weight_rows):
    """Twin of `recurrence.cpu.backward`."""
    y, kept, d_last = saved.y, tuple(saved.kept), arriving.d_last
    (ranks, sizes), initial, count = _ranks(call, y), _initial_states(call, y), len(kept)
    carried = zeros((count, carried_by(call.cell), *call.sizes[1:]), y)
    launch(cuda_steps.carry_last, d_last.size, d_last, ranks[2], carried)
    sums = tuple(zeros((count, len(call.cell.vectors), *call.sizes[1:]), y) for _ in range(3))
    phases = _phases(call, backward_table, BackwardPhase)
    products = _products(call, phases, beside(weight_rows, y))
    layer = initial, *given_of(call, y), kept, y, call.shape.outputs
    steps = _backward_steps(call, phases, products, ranks, layer, arriving, carried, sums)
    for t in reversed(range(len(sizes))):
        alive, later = sizes[t], sizes[t + 1] if t + 1 < len(sizes) else 0
        for width, step in steps:
            step.launch(count * alive * width, t, alive, later)
    d_initial, d_vectors = empty(initial.shape, y), empty(sums[1].shape, y)
    first = sizes[0] if sizes else 0
    launch(cuda_steps.initial_grads, d_initial.size, ranks, kept, carried, first, products[0], d_initial)
    launch(cuda_steps.settle, d_vectors.size, *sums[1:], ranks[2], d_vectors)
    return d_initial, list(unstacked(d_vectors))


def _products(call, phases, weight_rows):
    """Return, for each phase, the argument `product` of `cuda_steps.product_grad_of`."""
    weight, hidden, heads = weights_of(call.directions, "weight_hh"), call.shape.hidden, call.shape.heads
    found = []
    for phase in phases:
        segments = phase.segments, hidden, phase.depth // phase.segments
        found.append((phase.h_slot * hidden, segments, heads, weight, weight_rows, phase.first_row))
    if call.shape.projects:
        found[-1] = *found[-1][:3], weights_of(call.directions, "weight_hr"), beside(ALL_ROWS, weight[0]), 0
    return found


def _backward_steps(call, phases, products, ranks, layer, arriving, carried, sums):
    """Return the launches of a step in their order, as pairs (threads per sequence and direction, launch).

    The first arguments of a launch are the step, the number of sequences that have it, and the number of sequences that
    have the next step.  A launch begins by adding the product that belongs to the launch before it.
    """
    (*_, kept, y, _), hidden = layer, call.shape.hidden
    nothing, bound = zeros((0, 0), y), y.dtype.type(call.cell.proj_clip)
    no_others, steps = (nothing,) * len(kept), []
    for number, phase in reversed(list(enumerate(phases))):
        comes_first = number == len(phases) - 1
        before = 0 if comes_first else number + 1
        if not phase.equations:
            places = kept, products[number][0], (y, arriving.d_y, bound), carried, products[before]
            steps.append((hidden, Prepared(cuda_steps.project_grad, 0, 0, 0, ranks, *places)))
            continue
        if phase.norms:
            places = kept, *_norm_places(call, phase), carried, len(call.cell.states) + 1, phase.norms
            steps.append((phase.norms, Prepared(cuda_steps.normalise_grad, 0, 0, 0, ranks, *places)))
        others = tuple(arriving.d_others) if phase.of_states and arriving.d_others is not None else no_others
        product = comes_first, phases[before].target, products[before]
        places = layer, (arriving.d_y if phase.of_outputs else nothing, others, carried), product, sums
        kernel = cuda_steps.backward_step_of(call.cell, number)
        steps.append((hidden, Prepared(kernel, 0, 0, 0, ranks, *places)))
    return steps
