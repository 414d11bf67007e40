"""All steps of a layer in one launch on CUDA, in tf32: the recurrent weights stay in the registers of the GPU.

A group of blocks (of threads) runs some sequences of a direction.  Each block holds the weights of some units: all
gates of each unit.  At every step, a block multiplies its weights by the outputs of the step before, computes the
cell's equations, and writes its units' outputs to `y`.  Then it waits until all blocks of its group have written their
outputs.  A counter in memory counts these blocks.  So all blocks must run at the same time, and the GPU must have room
for them (`Layout.groups`).

Each warp of a block sums over some of the previous step's units.  In tiles, the rows of the batch are columns.

Source: Diamos and others (2016), "Persistent RNNs: stashing recurrent weights on-chip"; the equations are the cell's.
"""

import functools
import itertools
from typing import NamedTuple

import numpy as np
from numba import float32, int32, uint32

from varlen_rnn.recurrence.cuda_steps import row_of, states_before
from varlen_rnn.recurrence.task import given_of, weights_of
from varlen_rnn.recurrence.tuples import put, take
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.device import beside, zeros
from varlen_rnn.runtime.jit import body, cuda_kernel
from varlen_rnn.runtime.precision import precision_on_cuda

WARP, TILE, DEPTH = 32, 8, 16  # threads of a warp; rows of the batch in a tile; depth of two tiles, loaded at once
_THREADS, _UNITS, _TILES = (256, 128, 64), (32, 16, 8), (4, 2, 1)  # numbers that a block can have, the best first
_MOST_REGISTERS = 144  # the most registers of a thread, which has 255, for weights and sums
_PADDING = 16, 4  # numbers after a row in shared memory, so that threads of a warp read from different banks
_TF32 = 8, 0  # the least compute capability with tf32
_LINE = 32  # numbers from a counter to the next, so that each has its own cache line


class Layout(NamedTuple):
    """How the units of a layer are divided among blocks.

    gates, hidden: recurrent products of the cell, and units of the layer
    threads, units: how many threads and how many units a block has
    tiles: how many tiles of rows of the batch a block multiplies at a time
    """

    gates: int
    hidden: int
    threads: int
    units: int
    tiles: int

    @classmethod
    @functools.cache
    def of(cls, cell, hidden):
        """Return the Layout with the fewest blocks whose weights fit into registers, or None if no layout does."""
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
        """Whether tiles are whole, registers suffice, and each unit of each row of the tiles has a thread."""
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
        """Return how many groups a direction gets, at most one per sequence; 0 if the blocks cannot all run at once."""
        if limits.capability < _TF32 or self.shared > limits.shared:
            return 0
        return min(max(1, sequences), limits.multiprocessors // (directions * self.blocks))


def _load_weights_of(layout):
    """Return a body (a function that kernels inline) that loads a thread's share of its block's weights as tf32."""
    from varlen_rnn.runtime.cuda_intrinsics import to_tf32

    gates, hidden, _, units, _ = layout
    depth, of_width = hidden // layout.warps, gates * units // DEPTH

    @body
    def load_weights(of_weights, first_unit, warp, r8, q, weights):
        for s in range(depth // DEPTH):
            for m in range(of_width):
                for e in range(2):
                    to, k = ((s * of_width + m) * 2 + e) * 4, warp * depth + s * DEPTH + q * 4 + e * 2
                    low, high = m * DEPTH + r8, m * DEPTH + r8 + TILE
                    low = (low // units * hidden + first_unit + low % units) * hidden + k
                    high = (high // units * hidden + first_unit + high % units) * hidden + k
                    # Indices of 32 bits take fewer registers, so more registers can hold weights.
                    weights[to], weights[to + 1] = to_tf32(of_weights[uint32(low)]), to_tf32(of_weights[uint32(high)])
                    weights[to + 2] = to_tf32(of_weights[uint32(low + 1)])
                    weights[to + 3] = to_tf32(of_weights[uint32(high + 1)])

    return load_weights


def _multiply_of(layout):
    """Return a body that multiplies rows in shared memory by a thread's weights; its sums go to shared memory."""
    from varlen_rnn.runtime.cuda_intrinsics import load_four, multiply_tf32

    (gates, hidden, _, units, tiles), rows = layout, layout.rows
    width, depth = gates * units, hidden // layout.warps
    of_width, pitch, sums_pitch = width // DEPTH, hidden + _PADDING[0], width + _PADDING[1]
    sums_begin, zero = rows * pitch, np.float32(0)

    @body
    def multiply(bits, numbers, weights, warp, r8, q, sums):
        for n in range(tiles):
            for m in range(of_width):
                for e in range(4):
                    sums[n, m, e] = zero
        for s in range(depth // DEPTH):
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

    return multiply


def _bring_states_of(layout):
    """Return a body that copies the outputs of the step before, of `count` sequences, to shared memory as tf32."""
    from varlen_rnn.runtime.cuda_intrinsics import to_tf32

    hidden, threads = layout.hidden, layout.threads
    pitch = hidden + _PADDING[0]

    @body
    def bring_states(ranks, d, first, groups, count, t, y, initial, thread, bits):
        for place in range(count):
            r = first + groups * place
            row_before = row_of(ranks, d, r, t - 1)
            for k in range(thread, hidden, threads):
                value = y[row_before, d * hidden + k] if t > 0 else initial[0, d, ranks[2][r], k]
                bits[uint32(place * pitch + k)] = to_tf32(value)

    return bring_states


@functools.cache
def forward_kernel(cell, layout):
    """Return the kernel that runs all steps of all directions; a direction has a range of neighbouring blocks."""
    from varlen_rnn.runtime.cuda_intrinsics import add_release, load_acquire

    (phase,), num_slots, num_states = cell.phases, len(cell.slots), len(cell.states)
    step, states, (first_slot, end) = phase.step, states_before(cell), phase.kept
    num_rows, take_rows, take_vectors = len(cell.row_inputs), take(len(cell.row_inputs)), take(len(cell.vectors))
    take_x, take_h = take(len(cell.x_gates)), take(phase.gates)
    put_slots, put_others = put(end - first_slot), put(num_states - 1)
    load_weights, bring_states, multiply = _load_weights_of(layout), _bring_states_of(layout), _multiply_of(layout)
    gates, hidden, threads, units, tiles = layout
    rows, blocks, warps, width, registers = layout.rows, layout.blocks, layout.warps, gates * units, layout.registers
    of_width, pitch, sums_pitch = width // DEPTH, hidden + _PADDING[0], width + _PADDING[1]
    sums_begin, biases_begin = rows * pitch, rows * (pitch + warps * sums_pitch)

    @cuda_kernel
    def persistent_forward(ranks, sizes, layer, weight, bias, arrived):
        """`sizes` has the number of sequences of each step; `arrived` has a counter for each group, at first 0."""
        initial, projected, given, vectors, kept, y = layer
        bits, numbers = cuda.shared.array(0, int32), cuda.shared.array(0, float32)
        thread = cuda.threadIdx.x
        warp, r8, q = thread >> 5, (thread & 31) >> 2, thread & 3
        of_direction = cuda.gridDim.x // len(weight)
        groups, d = of_direction // blocks, cuda.blockIdx.x // of_direction
        group, first_unit = cuda.blockIdx.x % of_direction // blocks, cuda.blockIdx.x % blocks * units
        counter = (d * groups + group) * _LINE
        weights = cuda.local.array(registers, int32)
        load_weights(weight[d], first_unit, warp, r8, q, weights)
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
                first, count = group + groups * j, min(rows, alive - j)
                bring_states(ranks, d, first, groups, count, t, y, initial, thread, bits)
                cuda.syncthreads()
                multiply(bits, numbers, weights, warp, r8, q, sums)
                cuda.syncthreads()
                place, own = thread // units, thread % units
                if place < count:
                    r, unit = first + groups * place, first_unit + own
                    row, row_before = row_of(ranks, d, r, t), row_of(ranks, d, r, t - 1)
                    for e in range(gates):
                        totals[e] = numbers[uint32(biases_begin + e * units + own)]
                        for w in range(warps):
                            totals[e] += numbers[uint32(sums_begin + (w * rows + place) * sums_pitch + e * units + own)]
                    prev = states(initial, ranks[2][r], d, y, hidden, kept[d], row_before, t, unit)
                    of_rows = take_rows(given[d][row if num_rows else 0], unit, hidden)
                    v = take_vectors(vectors[d][:, unit], 0, 1) + of_rows
                    h, new, slots, _ = step(take_x(projected[d, row], unit, hidden), take_h(totals, 0, 1), prev, (), v)
                    y[row, d * hidden + unit] = h
                    put_others(kept[d, row], num_slots * hidden + unit, hidden, new)
                    put_slots(kept[d, row], first_slot * hidden + unit, hidden, slots)
            cuda.syncthreads()
            if thread == 0:
                add_release(arrived, counter, 1)

    return persistent_forward


def fits(call):
    """Return whether a layer runs in one launch: the precision is tf32, and the GPU has room for all blocks at once."""
    is_plain = not call.shape.projects and call.shape.heads == 1
    if call.x.dtype != np.float32 or precision_on_cuda("recurrent layer") != "tf32" or not is_plain:
        return False
    layout, count = Layout.of(call.cell, call.shape.hidden), call.plan.num_sequences
    if not call.plan.max_seq_len or layout is None:
        return False
    return layout.groups(len(call.directions), cuda.driver.limits, count) > 0


def run_steps(call, ranks, sizes, initial, projected, kept, y):
    """Run all steps like `recurrence.cuda.run_steps`, but in one launch."""
    layout, count, directions = Layout.of(call.cell, call.shape.hidden), len(call.directions), call.directions
    groups = layout.groups(count, cuda.driver.limits, sizes[0])
    weight = tuple(array.reshape(-1) for array in weights_of(directions, "weight_hh"))
    arrived = zeros((count * groups * _LINE,), y, np.dtype(np.int32))
    layer = initial, projected, *given_of(call, y), kept, y
    arguments = ranks, beside(np.array(sizes), y), layer, weight, weights_of(directions, "bias_hh"), arrived
    kernel, options = forward_kernel(call.cell, layout), {"shared": layout.shared, "together": True}
    cuda.driver.launch(kernel, count * groups * layout.blocks, layout.threads, *arguments, **options)
