"""The entry to attention: choose the device, and cut a call into tasks (work items)."""

from varlen_rnn.attention import backward_loop, cuda, forward_loop
from varlen_rnn.attention.additive import score, score_grad
from varlen_rnn.attention.blocks import CHUNK, UNLIMITED
from varlen_rnn.attention.softmax import differentiate, weigh
from varlen_rnn.kernels.arithmetic import multiply
from varlen_rnn.kernels.reductions import sum_over
from varlen_rnn.kernels.sums import sum_rows_in_float64
from varlen_rnn.products.gemm import code_of
from varlen_rnn.products.tasks import run_tasks, tasks_of
from varlen_rnn.products.vectors import panel_width
from varlen_rnn.runtime.device import as_operand, empty, on_device
from varlen_rnn.runtime.placeholder import Placeholder
from varlen_rnn.runtime.precision import get_float32_matmul_precision


def _tasks(q, v, call, chunk):
    """Return the array of tasks, a Task in each row, and the number of multiply-adds of all tasks."""
    queries, keys = call.q_offsets, call.k_offsets
    counts = keys[1:] - keys[:-1]
    tasks = tasks_of(queries, len(q), chunk, call.heads, counts, queries[:-1], keys[:-1], keys[1:])
    if type(tasks) is Placeholder:
        return tasks, 0  # a dry run has one thread in any case
    return tasks, int(((queries[1:] - queries[:-1]) * counts).sum()) * (q.shape[1] + v.shape[1])


def forward(q, k, v, call):
    """Return the outputs of attention, and the numbers that its gradient needs.

    Parameters
    ----------
    q : (queries, heads * depth) C-contiguous, float32 or float64
    k : (keys, heads * depth)
    v : (keys, heads * depth of values)
    call : Call

    Returns
    -------
    out : (queries, heads * depth of values); 0 for a query that sees no key
    sums : (2, heads, queries); a query's largest score, and 1 / sum of exp(score - largest score); both are 0 if it
        sees no key.  They are not joined in one logarithm, because large scores would round the sum away.
    """
    if on_device(q):
        return cuda.forward(q, k, v, call)
    out, sums = empty((len(q), v.shape[1]), q), empty((2 * call.heads, len(q)), q)
    it = q, k, v, out, sums, call.weight_like(q), q.dtype.type(call.scale), call.left, call.right
    code = (
        *code_of(q.dtype, get_float32_matmul_precision()),
        weigh.address(q.dtype),
        0 if call.weight is None else score.address(q.dtype),
    )
    scratch = forward_loop.scratch_of(q.shape[1] // call.heads, v.shape[1] // call.heads, panel_width(q.dtype))
    tasks, work = _tasks(q, v, call, CHUNK)
    run_tasks(forward_loop.forward, code, tasks, scratch, work, q, it)
    return out, sums.reshape(2, call.heads, len(q))


def backward(q, k, v, out, sums, d_out, call):
    """Return the gradients of queries, keys and values, and of the weight of additive scores, if there is one.

    Parameters
    ----------
    out, sums
        The results of `forward`.
    d_out : as `out`, C-contiguous
    """
    if on_device(q):
        return cuda.backward(q, k, v, out, sums, d_out, call)
    d_q, d_k, d_v = empty(q.shape, q), empty(k.shape, k), empty(v.shape, v)
    products = multiply(out, d_out).reshape(len(q), call.heads, v.shape[1] // call.heads)
    dots = as_operand(sum_over(products, 2).T)
    tasks, work = _tasks(q, v, call, UNLIMITED)
    weight, sums = call.weight_like(q), sums.reshape(2 * call.heads, len(q))
    d_weight = empty((len(tasks), len(weight)), q)
    it = q, k, v, d_out, sums, dots, d_q, d_k, d_v, weight, d_weight, q.dtype.type(call.scale), call.left, call.right
    scores = (0, 0) if call.weight is None else (score.address(q.dtype), score_grad.address(q.dtype))
    code = *code_of(q.dtype, get_float32_matmul_precision()), differentiate.address(q.dtype), *scores
    scratch = backward_loop.scratch_of(q.shape[1] // call.heads, v.shape[1] // call.heads, panel_width(q.dtype))
    run_tasks(backward_loop.backward, code, tasks, scratch, 3 * work, q, it)
    if call.weight is None:
        return d_q, d_k, d_v
    found = empty((len(weight),), q)
    sum_rows_in_float64(d_weight, found)
    return d_q, d_k, d_v, found
