"""Where the forward loop finds its numbers: in the arrays of a task, a thread's scratch, and a group's carry."""

from typing import NamedTuple

from varlen_rnn.products.vectors import offset, pointer
from varlen_rnn.recurrence.equations import MOST_ROWS, PROJECTED_ROWS
from varlen_rnn.recurrence.task import Pointer
from varlen_rnn.runtime.jit import cpu_inlined


class Layer(NamedTuple):
    """The arrays of a task, as addresses, and their strides from row to row in elements.

    hidden, outputs: hidden units, and units of an output
    x, x_depth: the inputs, and the features of a row
    initial, last: initial and last states, [state][sequence][unit], in the caller's order
    state_size: elements of one state of all sequences
    begins: whether initial states were given; otherwise they are zeros
    y, y_stride: the outputs, from this direction's first column on
    kept, kept_stride: the saved columns
    columns: where the saved columns would begin if all slots had 32 bits, for the columns behind the slots
    keep, non_temporal: whether to save columns, and whether to write them past the caches
    rows: the row inputs that are not projected
    bound: the largest absolute value of a projected output
    """

    hidden: int
    outputs: int
    x: Pointer
    x_depth: int
    initial: Pointer
    last: Pointer
    state_size: int
    begins: bool
    y: Pointer
    y_stride: int
    kept: Pointer
    kept_stride: int
    columns: Pointer
    keep: bool
    non_temporal: bool
    rows: Pointer
    bound: float


class Scratch(NamedTuple):
    """Working memory of one thread.

    planes: planes [row][unit]: products; from element `previous` on, previous states; from `results` on, results
    plane: elements of a plane
    projected, given, passed: planes of projected inputs, of row inputs that are not projected, and of values passed
        between phases
    rows, x_rows: the rows whose inputs are projected, and their offsets in `x`
    sums, no_offsets, h_rows: lists with an offset for each row: its place in a plane; always 0; the place of the
        operand of its recurrent products
    """

    planes: Pointer
    previous: int
    results: int
    plane: int
    projected: Pointer
    given: Pointer
    passed: Pointer
    rows: Pointer
    x_rows: Pointer
    sums: Pointer
    no_offsets: Pointer
    h_rows: Pointer


class Carry(NamedTuple):
    """Values that a group carries from step to step.

    outputs: The outputs of the step before and of this step: [step % 2][rank][unit].  They are not read from `y`,
        because the caller's lengths determine the distances between rows there.  At worst, all rows would share one set
        of a cache.
    output_step, output_plane: the distances, in elements, from one sequence's output to the next sequence's, and from
        the outputs of even steps to the outputs of odd steps
    operands: The results of all phases except the last, [phase][rank][unit].  The next phase's product reads them.
    states: the states after the first: [state][unit block][rank][unit]
    state_plane: elements of one state
    """

    outputs: Pointer
    output_step: int
    output_plane: int
    operands: Pointer
    states: Pointer
    state_plane: int


@cpu_inlined
def _output_step(units):
    return (units.num_blocks | 1) * units.width  # as `output_blocks`, but in elements


def output_blocks(unit_blocks):
    """Return the distance from one output to the next in the carry, in blocks of units (a block is a panel wide).

    It is odd, so that the rows of a tile fall into different sets of a cache.
    """
    return unit_blocks | 1


def memory_of(sizes, own_unit_blocks, sequences):
    """Return how much memory a thread needs: rows of numbers, each as wide as a panel, and int64 offsets."""
    planes = sizes.gates + 2 * sizes.states + sizes.phase_slots
    of_unit_block = PROJECTED_ROWS * (sizes.x_gates + sizes.rows) + MOST_ROWS * sizes.passes
    return planes * MOST_ROWS + own_unit_blocks * of_unit_block, 4 * PROJECTED_ROWS + MOST_ROWS


def carry_rows(sizes, unit_blocks):
    """Return how many rows, each as wide as a panel, a sequence carries: outputs of two steps, operands, states."""
    return (1 + sizes.phases) * output_blocks(unit_blocks) + (sizes.states - 1) * unit_blocks


@cpu_inlined
def layer_of(task, sizes, last, keep, non_temporal):
    """Return the addresses of a task's arrays."""
    hidden = task.initial.shape[2]
    return Layer(
        hidden=hidden, outputs=task.outputs, x=pointer(task.x, 0), x_depth=task.x.shape[1],
        initial=pointer(task.initial, 0), last=pointer(last, 0), state_size=task.initial.shape[1] * hidden,
        begins=task.begins, y=pointer(task.y, task.column), y_stride=task.y.shape[1], kept=pointer(task.kept, 0),
        kept_stride=task.kept.shape[1], columns=pointer(task.kept, -sizes.spared), keep=keep,
        non_temporal=non_temporal, rows=pointer(task.given, 0),
        bound=task.y.dtype.type(task.bound),
    )  # fmt: skip


@cpu_inlined
def scratch_of(share, sizes, units):
    """Return the Scratch of a thread, in the memory of its Share; write the offsets that stay the same."""
    plane, rows = MOST_ROWS * units.width, share.offsets
    x_rows, sums = offset(rows, PROJECTED_ROWS), offset(rows, 2 * PROJECTED_ROWS)
    # All offsets begin as zeros, and nothing writes to `no_offsets`.
    no_offsets, h_rows = offset(rows, 3 * PROJECTED_ROWS), offset(rows, 4 * PROJECTED_ROWS)
    for r in range(PROJECTED_ROWS):
        sums[r] = r * units.width
    for r in range(MOST_ROWS):
        h_rows[r] = r * _output_step(units)
    results = (sizes.gates + sizes.states) * plane
    projected = offset(share.numbers, results + (sizes.states + sizes.phase_slots) * plane)
    own = (units.end_block - units.first_block) * PROJECTED_ROWS * units.width
    given, passed = offset(projected, own * sizes.x_gates), offset(projected, own * (sizes.x_gates + sizes.rows))
    return Scratch(
        planes=share.numbers, previous=sizes.gates * plane, results=results, plane=plane, projected=projected,
        given=given, passed=passed, rows=rows, x_rows=x_rows, sums=sums, no_offsets=no_offsets, h_rows=h_rows,
    )  # fmt: skip


@cpu_inlined
def carry_of(group, sizes, units):
    """Return the Carry of a group: where the values are that it carries from step to step."""
    plane = group.count * _output_step(units)
    operands = offset(group.carry, 2 * plane)
    states = offset(operands, (sizes.phases - 1) * plane)
    return Carry(
        outputs=group.carry, output_step=_output_step(units), output_plane=plane, operands=operands, states=states,
        state_plane=units.num_blocks * group.count * units.width,
    )  # fmt: skip
