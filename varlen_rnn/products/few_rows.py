"""Products of few rows with a weight that is not transposed, which is read where it lies, without packing.

To pack a weight takes several times as long as to multiply one row by it.  Sums have the bits of the sums of `tile`.
"""

from varlen_rnn.kernels.activations import multiply_add
from varlen_rnn.products.tile import DEPTH_BLOCK
from varlen_rnn.products.vectors import least, make_stack_memory, offset, pointer
from varlen_rnn.runtime.jit import cpu_inlined, cpu_linked

MOST_ROWS = 4  # more rows are multiplied faster by a packed weight
_WIDE, _NARROW = 128, 64  # columns whose sums stay in registers, of one row and of up to four rows

_sums_on_stack = make_stack_memory(lambda lanes: MOST_ROWS * _WIDE)


@cpu_inlined
def _add_products(rows, x, stride, depth, weight, step, sums, size):
    """`sums[r * size + j] += x[r * stride + k] * weight[k * step + j]` for each k below `depth`, in order."""
    for k in range(depth):
        row = offset(weight, k * step)
        for r in range(rows):
            number = x[r * stride + k]
            for j in range(size):
                sums[r * size + j] = multiply_add(number, row[j], sums[r * size + j])


@cpu_linked  # not inlined, because its caller is compiled without vectors
def multiply_few_rows(a, a_column, weight, bias, c, c_column):
    """Compute `c[:, c_column:][:, :columns] = a[:, a_column:][:, :depth] @ weight + bias`; all are C-contiguous."""
    (depth, columns), sums, first = weight.shape, _sums_on_stack(pointer(c, 0)), 0
    rows, stride, apart = c.shape[0], a.shape[1], c.shape[1]
    while first < columns:
        left, out = columns - first, pointer(c, c_column + first)
        size = _WIDE if rows == 1 and left >= _WIDE else _NARROW if left >= _NARROW else left
        for r in range(rows):
            for j in range(size):
                out[r * apart + j] = bias[first + j]
        for begin in range(0, depth, DEPTH_BLOCK):
            for r in range(rows):
                for j in range(size):
                    sums[r * size + j] = 0 if begin else out[r * apart + j]
            count, x = least(DEPTH_BLOCK, depth - begin), pointer(a, a_column + begin)
            weights = pointer(weight, begin * columns + first)
            if size == _WIDE:
                _add_products(1, x, stride, count, weights, columns, sums, _WIDE)
            elif size == _NARROW and rows == MOST_ROWS:
                _add_products(MOST_ROWS, x, stride, count, weights, columns, sums, _NARROW)
            elif size == _NARROW:
                for r in range(rows):
                    own = offset(x, r * stride), offset(sums, r * _NARROW)
                    _add_products(1, own[0], stride, count, weights, columns, own[1], _NARROW)
            else:
                _add_products(rows, x, stride, count, weights, columns, sums, size)
            for r in range(rows):
                for j in range(size):
                    out[r * apart + j] = out[r * apart + j] + sums[r * size + j] if begin else sums[r * size + j]
        first += size
