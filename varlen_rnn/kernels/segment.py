"""Move the rows of one time step, in the order of a plan (longest sequence first), for code that runs step by step.

The row of the sequence of rank k at step t is `starts[k] + t`.  The fused recurrence reads rows in place, and does not
call these kernels.  `segment_inputs` and `concat_outputs` are each other's gradient, because each row belongs to one
step.

Kernels trust their indices, and check no bounds: see `varlen_rnn.kernels`.
"""

from varlen_rnn.kernels.rows import gather_rows_cpu, gather_rows_cuda
from varlen_rnn.kernels.twins import elements_of_first, twins
from varlen_rnn.runtime import cuda
from varlen_rnn.runtime.jit import cpu_kernel, cuda_kernel


@cpu_kernel
def segment_inputs_cpu(x, starts, t, out):
    """`out[k] = x[starts[k] + t]`."""
    for k in range(out.shape[0]):
        row = starts[k] + t
        for j in range(out.shape[1]):
            out[k, j] = x[row, j]


@cuda_kernel
def segment_inputs_cuda(x, starts, t, out):
    """Twin of `segment_inputs_cpu`."""
    i = cuda.grid(1)
    if i < out.size:
        k, j = i // out.shape[1], i % out.shape[1]
        out[k, j] = x[starts[k] + t, j]


@twins(segment_inputs_cpu, segment_inputs_cuda)
def segment_inputs(x, starts, t, out):
    """Compute `out[k] = x[starts[k] + t]`: the rows of step `t`, longest sequence first.

    Its gradient is `concat_outputs` with an `out` that holds zeros.

    Parameters
    ----------
    x : (rows, features) C-contiguous, any data type
    starts : (num_sequences,) int64
        The first row of each rank's sequence, as in a plan.
    t : int
        Step; the sequences of the first `alive` ranks are longer than `t`.
    out : (alive, features) C-contiguous, the data type of `x`; written

    Examples
    --------
    >>> x = np.array([[0.0], [1.0], [2.0], [3.0]])  # sequences of 1 and 3 rows
    >>> out = np.empty((2, 1)); segment_inputs(x, np.array([1, 0]), 0, out); out.ravel()
    array([1., 0.])
    """


@cpu_kernel
def concat_outputs_cpu(step, starts, t, out):
    """`out[starts[k] + t] = step[k]`."""
    for k in range(step.shape[0]):
        row = starts[k] + t
        for j in range(step.shape[1]):
            out[row, j] = step[k, j]


@cuda_kernel
def concat_outputs_cuda(step, starts, t, out):
    """Twin of `concat_outputs_cpu`; one thread per element of `step`."""
    i = cuda.grid(1)
    if i < step.size:
        k, j = i // step.shape[1], i % step.shape[1]
        out[starts[k] + t, j] = step[k, j]


@twins(concat_outputs_cpu, concat_outputs_cuda, elements_of_first)
def concat_outputs(step, starts, t, out):
    """Compute `out[starts[k] + t] = step[k]`: write the rows of step `t` to their places in the sequences.

    Its gradient is `segment_inputs`.  Called once per step, it fills every row of `out`.

    Parameters
    ----------
    step : (alive, features) C-contiguous, any data type
    starts : (num_sequences,) int64
        The first row of each rank's sequence, as in a plan.
    t : int
        Step; the sequences of the first `alive` ranks are longer than `t`.
    out : (rows, features) C-contiguous, the data type of `step`; only the rows of step `t` are written

    Examples
    --------
    >>> out = np.zeros((4, 1)); concat_outputs(np.array([[5.0], [6.0]]), np.array([1, 0]), 0, out); out.ravel()
    array([6., 5., 0., 0.])
    """


@twins(gather_rows_cpu, gather_rows_cuda)
def init_memories(boot, sorted_indices, out):
    """Compute `out[k] = boot[sorted_indices[k]]`: initial states in the order of a plan.

    Its gradient is `init_memories_grad`.

    Parameters
    ----------
    boot : (num_sequences, features) C-contiguous, any data type; in the caller's order
    sorted_indices : (num_sequences,) int64
        The caller's index of each rank.
    out : (num_sequences, features) C-contiguous, the data type of `boot`; written, longest sequence first

    Examples
    --------
    >>> out = np.empty((2, 1)); init_memories(np.array([[7.0], [8.0]]), np.array([1, 0]), out); out.ravel()
    array([8., 7.])
    """


@cpu_kernel
def init_memories_grad_cpu(d_out, sorted_indices, d_boot):
    """`d_boot[sorted_indices[k]] = d_out[k]`."""
    for k in range(d_out.shape[0]):
        row = sorted_indices[k]
        for j in range(d_out.shape[1]):
            d_boot[row, j] = d_out[k, j]


@cuda_kernel
def init_memories_grad_cuda(d_out, sorted_indices, d_boot):
    """Twin of `init_memories_grad_cpu`."""
    i = cuda.grid(1)
    if i < d_out.size:
        k, j = i // d_out.shape[1], i % d_out.shape[1]
        d_boot[sorted_indices[k], j] = d_out[k, j]


@twins(init_memories_grad_cpu, init_memories_grad_cuda, elements_of_first)
def init_memories_grad(d_out, sorted_indices, d_boot):
    """Compute `d_boot[sorted_indices[k]] = d_out[k]`: states of ranks back in the caller's order.

    Parameters
    ----------
    d_out : (num_sequences, features) C-contiguous, any data type; longest sequence first
    sorted_indices : (num_sequences,) int64
        The caller's index of each rank: a permutation, so every row is written once.
    d_boot : (num_sequences, features) C-contiguous, the data type of `d_out`; written, in the caller's order

    Examples
    --------
    >>> d_boot = np.empty((3, 1)); d_out = np.array([[1.0], [2.0], [3.0]])
    >>> init_memories_grad(d_out, np.array([2, 0, 1]), d_boot); d_boot.ravel()
    array([2., 3., 1.])
    """
