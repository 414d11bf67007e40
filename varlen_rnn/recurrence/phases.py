"""The numbers by which the forward and the backward loop know a cell: its Sizes, and a table with a row per phase.

A phase is a recurrent product and the equations after it.  If a layer projects its outputs, the projection is the last
phase: one product without equations, whose result is the output.
"""

import math
from typing import NamedTuple

import numpy as np

from varlen_rnn.products.vectors import pointer
from varlen_rnn.runtime.jit import cpu_inlined
from varlen_rnn.runtime.memory import CACHE_LINE

# Values of `ForwardPhase.keeps` instead of a column: the result is the output, or no product reads the result.
OUTPUT, NOTHING = -1, -2
NUMBER = 4  # bytes of the smallest number, a float32
# 1 / epsilon, where a norm adds epsilon to its variance, as PyTorch's `LayerNorm` does; float32 holds 1 / epsilon
# exactly.
PER_EPSILON = 100_000


class ForwardCode(NamedTuple):
    """The addresses of functions that the forward loop calls; 0 for functions that the cell does not use."""

    multiply: int
    pack: int
    copy: int
    normalise: int
    keep_halves: int


class BackwardCode(NamedTuple):
    """The addresses of functions that the backward loop calls; 0 for functions that the cell does not use."""

    multiply: int
    pack: int
    copy: int
    normalise_grad: int
    add_up: int
    load_halves: int
    round_halves: int


class Sizes(NamedTuple):
    """The sizes of a cell, as both loops read them.  A column is `hidden` numbers of a saved row.

    x_gates: the number of gates with a projected input
    gates, phase_slots: the largest number of recurrent products in a phase, and of slots that a phase saves; with the
        states, these are at least as many as the products, because the memory of results also holds products
    states: the number of states, counting the output
    slots: the number of saved columns that the backward loop replaces by gradients
    passes, norms: the number of values that phases pass to later phases, and how many of these are normalised
    carried: the number of gradients that the backward loop carries from phase to phase
    kept: the number of saved columns, without the columns of a projection
    phases: the number of phases, counting the projection
    reads_output: whether the equations read the output of the step before
    rows, vectors: the number of row inputs that are not projected, and of parameters with one number per unit
    products: the number of recurrent products of all phases
    halved, factors, spared: as in `halves.Halves`
    """

    x_gates: int
    gates: int
    states: int
    slots: int
    phase_slots: int
    passes: int
    carried: int
    kept: int
    phases: int
    reads_output: bool
    norms: int
    rows: int
    vectors: int
    products: int
    halved: int = 0
    factors: int = 0
    spared: int = 0


class ForwardPhase(NamedTuple):
    """A phase in the forward loop.

    equations: the address of its equations; 0 for a projection
    gates: the number of gates in its product
    first_slot, slots: the first slot that it saves, and how many slots it saves
    states: how many states it returns besides its first result
    keeps: the column that saves its first result as the next product's operand; OUTPUT if the result is the output;
        NOTHING if no product reads it
    depth, units: how many numbers of an operand its product sums over, and how many units its result has
    panels, first_row: where its packed weights begin, in elements, and the first row of its weight
    first_pass, norms, first_norm: the index of the first value that it passes on; how many of its values are
        normalised; how many values earlier phases normalise
    heads, pieces: the heads of its weight (1 if it has none), and the pieces of a packed panel: see `Weight`
    """

    equations: int
    gates: int
    first_slot: int
    slots: int
    states: int
    keeps: int
    depth: int
    units: int
    panels: int
    first_row: int
    first_pass: int
    norms: int
    first_norm: int
    heads: int
    pieces: int


class BackwardPhase(NamedTuple):
    """A phase in the backward loop.

    equations: the address of its equations; 0 for a projection
    first_slot, slots: its first slot, and the number of its slots
    first_read, num_read: the first slot that its equations read, and how many they read: its own slots, and slots
        that earlier phases saved
    h_slot: the first column of the gradients of its products
    depth, units: the rows of a packed panel, and the units of the operand
    target: the carried gradient to which the products with its weight are added
    panels, first_row: where its packed weights begin, in elements, and the first row of its weight
    of_outputs, of_states: whether it receives the gradients of outputs, and the gradients of other states at every row
    norms, first_norm: how many of its passed values are normalised, and how many values earlier phases normalise
    first_vector, vectors: the first vector whose gradient it returns, and how many gradients of vectors it returns
    heads, pieces: as in ForwardPhase
    segments: how many runs of neighbouring gradients of gates a head multiplies: one for each gate; 1 without heads
    """

    equations: int
    first_slot: int
    slots: int
    first_read: int
    num_read: int
    h_slot: int
    depth: int
    units: int
    target: int
    panels: int
    first_row: int
    of_outputs: int
    of_states: int
    norms: int
    first_norm: int
    first_vector: int
    vectors: int
    heads: int
    pieces: int
    segments: int


_FORWARD_FIELDS, _BACKWARD_FIELDS = len(ForwardPhase._fields), len(BackwardPhase._fields)


@cpu_inlined
def forward_phase(phases, number):
    """Return row `number` of a table of ForwardPhases."""
    at = pointer(phases, number * _FORWARD_FIELDS)
    return ForwardPhase(
        at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], at[8], at[9], at[10], at[11], at[12],
        at[13], at[14],
    )  # fmt: skip


@cpu_inlined
def backward_phase(phases, number):
    """Return row `number` of a table of BackwardPhases."""
    at = pointer(phases, number * _BACKWARD_FIELDS)
    return BackwardPhase(
        at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], at[8], at[9], at[10], at[11], at[12], at[13], at[14],
        at[15], at[16], at[17], at[18], at[19],
    )  # fmt: skip


def most_gates(cell):
    """Return the largest number of recurrent products in a phase; at least 1, because a projection is a product."""
    return max([1, *(phase.gates for phase in cell.phases)])


def passed_by(cell):
    """Return how many values the phases of a cell pass to later phases."""
    return sum(phase.passes for phase in cell.phases)


def carried_by(cell):
    """Return how many gradients the backward loop carries from phase to phase.

    Each state has one.  A cell with several phases has one more for the operand, and one for each passed value.
    """
    several = len(cell.phases) > 1
    return len(cell.states) + several * (1 + max(phase.carries for phase in cell.phases))


def kept_by(cell, projects):
    """Return how many columns a row saves; a projection adds two, its operand and its gradient."""
    return cell.num_kept + 2 * projects


def norms_of(cell):
    """Return how many of the values that phases pass on are normalised."""
    return sum(phase.norms for phase in cell.phases)


def kept_numbers(cell, shape):
    """Return how many numbers a row saves: its columns, and one inverse divisor for each normalised value.

    The inverse divisors fill whole cache lines, because rows that are written past the caches begin at a line.
    """
    lines = -(-norms_of(cell) * NUMBER // CACHE_LINE)
    return kept_by(cell, shape.projects) * shape.hidden + lines * CACHE_LINE // NUMBER


def sizes_of(cell, projects):
    """Return the Sizes of a cell; `projects` says whether the layer projects its outputs."""
    gates, phase_slots = most_gates(cell), max(phase.kept[1] - phase.kept[0] for phase in cell.phases)
    phase_slots = max(phase_slots, gates - len(cell.states))
    return Sizes(
        x_gates=len(cell.x_gates), gates=gates, states=len(cell.states), slots=len(cell.slots),
        phase_slots=phase_slots, passes=passed_by(cell), carried=carried_by(cell), kept=cell.num_kept,
        phases=len(cell.phases) + projects, reads_output=cell.reads_output, norms=norms_of(cell),
        rows=len(cell.row_inputs), vectors=len(cell.vectors),
        products=sum(phase.gates for phase in cell.phases) + projects,
    )  # fmt: skip


class Shape(NamedTuple):
    """The sizes of a layer: features of an input row, hidden units, units of an output, and heads.

    The recurrent products of a head read the outputs of this head alone.
    """

    features: int
    hidden: int
    outputs: int
    heads: int = 1

    @property
    def projects(self):
        """Whether the layer projects its hidden units to outputs."""
        return self.outputs != self.hidden


def heads_of(rows, columns, gates):
    """Return the number of heads of a recurrent weight with this shape and number of gates; 1 if no number fits."""
    of_head = gates * columns
    return rows // of_head if of_head > 0 and rows > 0 and rows % of_head == 0 else 1


def shape_of(cell, x, weights):
    """Return the Shape of a layer of a cell that gets rows `x`, from the weights of a Direction."""
    if weights.weight_hr is not None:
        return Shape(x.shape[1], *weights.weight_hr.shape[::-1])
    rows, columns = weights.weight_hh.shape
    heads = heads_of(rows, columns, len(cell.h_gates))
    return Shape(x.shape[1], heads * columns, heads * columns, heads)


def _pieces(size, heads, width):
    """Return the most heads whose units a panel of `width` units has; `size` is the number of all units."""
    head = size // heads
    return min(heads, (head - math.gcd(head, width) + width - 1) // head + 1)


def _table(rows):
    table = np.array(rows, np.int64)
    table.flags.writeable = False
    return table


def forward_table(cell, shape, width, addresses):
    """Return the table of ForwardPhases, and how many rows of `width` numbers all packed weights take.

    The weights of the inputs are packed first, then the weights of each phase.
    """
    blocks, count = -(-shape.hidden // width), len(cell.phases)
    panels, first_row, rows = blocks * len(cell.x_gates) * (shape.features + 1), 0, []
    heads, pieces = shape.heads, _pieces(shape.hidden, shape.heads, width)
    operand, passes, norms = len(cell.slots) + len(cell.states) - 1, 0, 0
    for number, (phase, address) in enumerate(zip(cell.phases, addresses, strict=True)):
        (first, end), depth = phase.kept, (shape.hidden if number else shape.outputs) // heads
        last = number == count - 1
        keeps, states = NOTHING, (len(cell.states) - 1) * last
        if last:
            keeps = cell.num_kept if shape.projects else OUTPUT
        elif cell.phases[number + 1].gates:
            keeps, operand = operand, operand + 1
        rows.append(
            ForwardPhase(
                equations=address, gates=phase.gates, first_slot=first, slots=end - first, states=states, keeps=keeps,
                depth=depth, units=shape.hidden, panels=panels * width, first_row=first_row, first_pass=passes,
                norms=phase.norms, first_norm=norms, heads=heads, pieces=pieces,
            )
        )  # fmt: skip
        panels += blocks * pieces * phase.gates * (depth + 1)
        first_row += phase.gates * shape.hidden
        passes, norms = passes + phase.passes, norms + phase.norms
    if shape.projects:
        rows.append(
            ForwardPhase(
                equations=0, gates=1, first_slot=cell.num_kept + 1, slots=0, states=0, keeps=OUTPUT,
                depth=shape.hidden, units=shape.outputs, panels=panels * width, first_row=0, first_pass=0,
                norms=0, first_norm=0, heads=1, pieces=1,
            )
        )  # fmt: skip
        panels += -(-shape.outputs // width) * (shape.hidden + 1)
    return _table(rows), panels


def backward_table(cell, shape, width, addresses):
    """Return the table of BackwardPhases, and how many rows of `width` numbers all packed weights take."""
    panels, first_row, rows, operand, last, norms = 0, 0, [], len(cell.states), len(cell.phases) - 1, 0
    heads, pieces = shape.heads, _pieces(shape.hidden, shape.heads, width)
    for number, (phase, address) in enumerate(zip(cell.phases, addresses, strict=True)):
        (first, end), units = phase.slots, shape.hidden if number else shape.outputs
        depth, target = phase.gates * (shape.hidden // heads), operand if number else 0
        read = [one.kept for one in cell.phases[: number + 1] if one.kept[1] > one.kept[0]] or [(0, 0)]
        first_read, (first_vector, end_vector) = read[0][0], phase.vectors
        rows.append(
            BackwardPhase(
                equations=address, first_slot=first, slots=end - first, first_read=first_read,
                num_read=read[-1][1] - first_read, h_slot=phase.h_slot, depth=depth, units=units, target=target,
                panels=panels * width, first_row=first_row, of_outputs=number == last and not shape.projects,
                of_states=number == last, norms=phase.norms, first_norm=norms, first_vector=first_vector,
                vectors=end_vector - first_vector, heads=heads, pieces=pieces,
                segments=max(1, phase.gates) if heads > 1 else 1,
            )
        )  # fmt: skip
        norms += phase.norms
        panels += -(-units // width) * pieces * (depth + 1)
        first_row += phase.gates * shape.hidden
    if shape.projects:
        column = cell.num_kept + 1
        rows.append(
            BackwardPhase(
                equations=0, first_slot=column, slots=0, first_read=0, num_read=0, h_slot=column, depth=shape.outputs,
                units=shape.hidden, target=0, panels=panels * width, first_row=0, of_outputs=True, of_states=False,
                norms=0, first_norm=0, first_vector=0, vectors=0, heads=1, pieces=1, segments=1,
            )
        )  # fmt: skip
        panels += -(-shape.hidden // width) * (shape.outputs + 1)
    return _table(rows), panels
