"""All steps of a layer in one launch on CUDA, in tf32: the recurrent weights stay in the registers of the GPU.

A group of blocks runs some sequences of a direction.  Each block has the weights of some units, all gates of each.  At
every step it multiplies them by the outputs of the step before, computes the cell's equations, and writes its part of
the outputs to `y`.  Then it waits until all blocks of its group have written theirs: a counter in memory counts them.
So all blocks must run at the same time, and the GPU must have room for them (`Layout.of`).

Warps of a block divide the sum over the units of the step before, and rows of the batch are the columns of tiles.

Source: Diamos and others (2016), "Persistent RNNs: stashing recurrent weights on-chip"; the equations are the cell's.
"""

import functools
import itertools
from typing import NamedTuple

import numpy as np
from numba import float32, int32, uint32

from varlen_rnn.recurrence.cuda_steps import row_of, states_before
from varlen_rnn.recurrence.task import weights_of
from varlen_rnn.recurrence.tuples import put, take
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import beside, zeros
from varlen_rnn.runtime.jit import cuda_kernel
from varlen_rnn.runtime.precision import get_float32_matmul_precision

WARP, TILE, DEPTH = 32, 8, 16  # threads; rows of the batch in a tile; depth of two tiles, which a thread loads at once
_THREADS, _UNITS, _TILES = (256, 128, 64), (32, 16, 8), (4, 2, 1)  # of a block, the best first
_MOST_REGISTERS = 144  # of a thread for weights and sums; a thread has 255
_PADDING = 16, 4  # numbers after a row in shared memory, so that threads of a warp read from different banks
_TF32 = 8, 0  # the least compute capability with tf32
_LINE = 32  # counters are a cache line apart


class Layout(NamedTuple):
    """How the units of a layer are divided among blocks.

    Attributes
    ----------
    gates, hidden : int
        Recurrent products of the cell, and units of the layer.
    threads, units, tiles : int
        Of a block; tiles are rows of the batch that it multiplies at a time.
    """

    gates: int
    hidden: int
    threads: int
    units: int
    tiles: int

    @classmethod
    @functools.cache
    def of(cls, cell, hidden):
        """Return the layout of the fewest blocks whose weights fit into registers, or None if there is none.

        Examples
        --------
        >>> from varlen_rnn.cells import LSTM
        >>> Layout.of(LSTM, 512), Layout.of(LSTM, 500)
        (Layout(gates=4, hidden=512, threads=256, units=16, tiles=1), None)
        """
        phase = cell.phases[0]
        if len(cell.phases) > 1 or phase.norms or not phase.gates:
            return None
        for threads, units, tiles in itertools.product(_THREADS, _UNITS, _TILES):
            found = cls(phase.gates, hidden, threads, units, tiles)
            if found.is_possible:
                return found
        return None

    @property
    def is_possible(self):
        """Whether tiles are whole, registers suffice, and the rows of tiles have no more units than threads."""
        width = self.gates * self.units
        is_whole = self.hidden % (DEPTH * self.warps) == self.hidden % self.units == width % DEPTH == 0
        registers = self.registers + 4 * self.tiles * (width // DEPTH)
        return is_whole and registers <= _MOST_REGISTERS and self.rows * self.units <= self.threads

    @property
    def warps(self):
        """The warps of a block."""
        return self.threads // WARP

    @property
    def blocks(self):
        """The blocks of a group."""
        return self.hidden // self.units

    @property
    def rows(self):
        """The rows of the batch that a block multiplies at a time."""
        return TILE * self.tiles

    @property
    def registers(self):
        """The registers of a thread that hold weights."""
        return self.hidden // self.warps // DEPTH * TILE * (self.gates * self.units // DEPTH)

    @property
    def shared(self):
        """The shared memory of a block, in bytes: operands, sums of each warp, biases."""
        width = self.gates * self.units
        operands, sums = self.rows * (self.hidden + _PADDING[0]), self.warps * self.rows * (width + _PADDING[1])
        return 4 * (operands + sums + width)

    def groups(self, directions, limits, sequences):
        """Return how many groups each direction gets, at most one per sequence; 0 if not all blocks can run at once."""
        if limits.capability < _TF32 or self.shared > limits.shared:
            return 0
        return min(max(1, sequences), limits.multiprocessors // (directions * self.blocks))


@functools.cache
def forward_kernel(cell, layout):
    """Return the kernel that runs all steps of all directions; blocks of a direction follow one another."""
    from varlen_rnn.runtime.cuda_intrinsics import add_release, load_acquire, load_four, multiply_tf32, to_tf32

    (phase,), num_slots, num_states = cell.phases, len(cell.slots), len(cell.states)
    step, states, (first_slot, end) = phase.step, states_before(cell), phase.kept
    num_rows, take_rows, take_vectors = len(cell.row_inputs), take(len(cell.row_inputs)), take(len(cell.vectors))
    take_x, take_h = take(len(cell.x_gates)), take(phase.gates)
    put_slots, put_others = put(end - first_slot), put(num_states - 1)
    gates, hidden, threads, units, tiles = layout
    rows, blocks = layout.rows, layout.blocks
    warps, width, depth, registers = layout.warps, gates * units, hidden // layout.warps, layout.registers
    of_width, of_depth = width // DEPTH, depth // DEPTH
    pitch, sums_pitch = hidden + _PADDING[0], width + _PADDING[1]
    sums_begin = rows * pitch
    biases_begin = sums_begin + warps * rows * sums_pitch
    zero = np.float32(0)

    @cuda_kernel
    def persistent_forward(
        starts, lengths, order, sizes, reverse, initial, projected, given, weight, bias, vectors, kept, y, arrived
    ):
        """`sizes` has the number of sequences of each step, and `arrived` a counter of zero for each group."""
        bits, numbers = cuda.shared.array(0, int32), cuda.shared.array(0, float32)
        thread = cuda.threadIdx.x
        warp, r8, q = thread >> 5, (thread & 31) >> 2, thread & 3
        of_direction = cuda.gridDim.x // len(reverse)
        groups, d = of_direction // blocks, cuda.blockIdx.x // of_direction
        group, first_unit = cuda.blockIdx.x % of_direction // blocks, cuda.blockIdx.x % blocks * units
        counter = (d * groups + group) * _LINE
        weights, of_weights = cuda.local.array(registers, int32), weight[d]
        for s in range(of_depth):
            for m in range(of_width):
                for e in range(2):
                    to, k = ((s * of_width + m) * 2 + e) * 4, warp * depth + s * DEPTH + q * 4 + e * 2
                    low, high = m * DEPTH + r8, m * DEPTH + r8 + TILE
                    low = (low // units * hidden + first_unit + low % units) * hidden + k
                    high = (high // units * hidden + first_unit + high % units) * hidden + k
                    # Indices of 32 bits leave registers for weights.
                    weights[to], weights[to + 1] = to_tf32(of_weights[uint32(low)]), to_tf32(of_weights[uint32(high)])
                    weights[to + 2] = to_tf32(of_weights[uint32(low + 1)])
                    weights[to + 3] = to_tf32(of_weights[uint32(high + 1)])
        for m in range(thread, width, threads):
            numbers[biases_begin + m] = bias[d][m // units * hidden + first_unit + m % units]
        sums, totals = cuda.local.array((tiles, of_width, 4), float32), cuda.local.array(gates, float32)
        for t in range(sizes.shape[0]):
            alive = (sizes[t] - group + groups - 1) // groups
            if alive <= 0:
                break
            for j in range(0, alive, rows):
                if t > 0 and j == 0 and thread == 0:
                    while load_acquire(arrived, counter) < blocks * t:
                        pass
                cuda.syncthreads()
                for place in range(min(rows, alive - j)):
                    r = group + groups * (j + place)
                    row_before = row_of(starts, lengths, r, t - 1, reverse[d])
                    for k in range(thread, hidden, threads):
                        value = y[row_before, d * hidden + k] if t > 0 else initial[0, d, order[r], k]
                        bits[uint32(place * pitch + k)] = to_tf32(value)
                cuda.syncthreads()
                for n in range(tiles):
                    for m in range(of_width):
                        for e in range(4):
                            sums[n, m, e] = zero
                for s in range(of_depth):
                    for n in range(tiles):
                        at = (n * TILE + r8) * pitch + warp * depth + s * DEPTH + q * 4
                        h0, h1, h2, h3 = load_four(bits, uint32(at))
                        for m in range(of_width):
                            w, c = (s * of_width + m) * 8, sums[n, m]
                            w0, w1, w2, w3 = weights[w], weights[w + 1], weights[w + 2], weights[w + 3]
                            c0, c1, c2, c3 = multiply_tf32(w0, w1, w2, w3, h0, h1, c[0], c[1], c[2], c[3])
                            w0, w1, w2, w3 = weights[w + 4], weights[w + 5], weights[w + 6], weights[w + 7]
                            c[0], c[1], c[2], c[3] = multiply_tf32(w0, w1, w2, w3, h2, h3, c0, c1, c2, c3)
                for n in range(tiles):
                    for m in range(of_width):
                        at = sums_begin + (warp * rows + n * TILE + 2 * q) * sums_pitch + m * DEPTH + r8
                        numbers[uint32(at)], numbers[uint32(at + sums_pitch)] = sums[n, m, 0], sums[n, m, 1]
                        numbers[uint32(at + TILE)] = sums[n, m, 2]
                        numbers[uint32(at + sums_pitch + TILE)] = sums[n, m, 3]
                cuda.syncthreads()
                place, own = thread // units, thread % units
                if place < rows and j + place < alive:
                    r, unit = group + groups * (j + place), first_unit + own
                    row = row_of(starts, lengths, r, t, reverse[d])
                    row_before = row_of(starts, lengths, r, t - 1, reverse[d])
                    for e in range(gates):
                        totals[e] = numbers[uint32(biases_begin + e * units + own)]
                        for w in range(warps):
                            totals[e] += numbers[uint32(sums_begin + (w * rows + place) * sums_pitch + e * units + own)]
                    prev = states(initial, order[r], d, y, hidden, kept[d], row_before, t, unit)
                    x = take_x(projected[d, row], unit, hidden)
                    of_rows = take_rows(given[d][row if num_rows else 0], unit, hidden)
                    v = take_vectors(vectors[d][:, unit], 0, 1) + of_rows
                    first, new, slots, _ = step(x, take_h(totals, 0, 1), prev, (), v)
                    y[row, d * hidden + unit] = first
                    put_others(kept[d, row], num_slots * hidden + unit, hidden, new)
                    put_slots(kept[d, row], first_slot * hidden + unit, hidden, slots)
            cuda.syncthreads()
            if thread == 0:
                add_release(arrived, counter, 1)

    return persistent_forward


def fits(cell, shape, plan, directions, like):
    """Return whether a layer runs in one launch: the user said tf32, and the GPU has room for all blocks at once."""
    if get_float32_matmul_precision() != "tf32" or like.dtype != np.float32 or shape.projects or not plan.max_seq_len:
        return False
    layout = Layout.of(cell, shape.hidden)
    return layout is not None and layout.groups(directions, cuda.driver.limits, plan.num_sequences) > 0


def run_steps(cell, of, directions, shape, projected, initial, kept, y):
    """Twin of `recurrence.cuda.run_steps` in one launch."""
    layout, count = Layout.of(cell, shape.hidden), len(directions)
    groups = layout.groups(count, cuda.driver.limits, of.sizes[0])
    weight = tuple(array.reshape(-1) for array in weights_of(directions, "weight_hh"))
    bias = weights_of(directions, "bias_hh")
    vectors = weights_of(directions, "vectors", zeros((0, shape.hidden), y))
    given = weights_of(directions, "rows", zeros((1, 0), y))
    arrived, sizes = zeros((count * groups * _LINE,), y, np.dtype(np.int32)), beside(np.array(of.sizes), y)
    plan = of.starts, of.lengths, of.order, sizes, of.reverse
    arguments = *plan, initial, projected, given, weight, bias, vectors, kept, y, arrived
    blocks = count * groups * layout.blocks
    kernel, options = forward_kernel(cell, layout), {"shared": layout.shared, "together": True}
    cuda.driver.launch(kernel, blocks, layout.threads, *arguments, **options)
