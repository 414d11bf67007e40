"""Sequence operators: pooling, and the steps of a hand-written recurrence over a plan."""

import math

import numpy as np

from varlen_rnn import plan
from varlen_rnn.device import as_operand, empty
from varlen_rnn.errors import DTypeError, LoDError, OutOfRangeError, ShapeError, check_int
from varlen_rnn.kernels import pool, segment
from varlen_rnn.lod import NO_LOD, LoD, LoDTensor, levels_of, remember
from varlen_rnn.ops.checks import check_float, check_kind, check_like, check_lod_level, check_shape, check_tensor
from varlen_rnn.ops.math import tensor_like
from varlen_rnn.plan import check_is_plan
from varlen_rnn.program.block import Variable, apply, recorder, required
from varlen_rnn.program.gradient import plain
from varlen_rnn.program.registry import Op, register
from varlen_rnn.program.spec import LOD_RANK_TABLE, PLAN, TensorSpec

POOL_TYPES = ("sum", "mean", "sqrt", "max", "first", "last")


def flat(data):
    """Return rows of one dimension each, an operand of kernels: a view of `data`, where that is one."""
    return as_operand(data).reshape(len(data), math.prod(data.shape[1:]))


# Pooling: the last level becomes one row a sequence; the level above it, if any, then counts those rows.


def _infer_pool(x, pool_type):
    check_float("sequence_pool", x=x)
    check_lod_level("sequence_pool", "x", x)
    if pool_type not in POOL_TYPES:
        raise ShapeError("sequence_pool, pool_type", expected=f"one of {POOL_TYPES}", got=repr(pool_type))
    return [TensorSpec((-1, *x.shape[1:]), x.dtype, x.lod_level - 1), _PICKED]


_PICKED = TensorSpec((-1, -1), np.dtype(np.int64))  # the row that each element of a maximum comes from


def _scale(x, pool_type):
    """Return the factor of each sum; kept with the LoD, for the gradient."""
    return remember(x.structure, ("scale", pool_type, x.dtype), _scale_of, x, pool_type)


def _scale_of(x, pool_type):
    offsets = x.structure.levels[-1]
    if pool_type == "sum":
        return np.ones(len(offsets) - 1, x.dtype)
    lengths = np.maximum(1, offsets[1:] - offsets[:-1])
    return (1 / (lengths if pool_type == "mean" else np.sqrt(lengths))).astype(x.dtype)


def _ends(offsets, pool_type, width):
    """Return the row of the first or last step of each sequence, -1 of an empty one; once a feature."""
    begin, end = offsets[:-1], offsets[1:]
    rows = np.where(begin == end, -1, begin if pool_type == "first" else end - 1)
    return np.repeat(rows[:, None], width, axis=1)


def _pool(x, pool_type):
    offsets, rows = levels_of(x.structure)[-1], flat(x.data)
    out = np.empty((len(offsets) - 1, rows.shape[1]), x.dtype)
    index = np.empty((0, rows.shape[1]), np.int64)
    if pool_type == "max":
        index = np.empty(out.shape, np.int64)
        pool.pool_max(rows, offsets, out, index)
    elif pool_type in ("first", "last"):
        index = _ends(offsets, pool_type, rows.shape[1])
        pool.pick_rows(rows, index, out)
    else:
        pool.pool_sum(rows, offsets, _scale(x, pool_type), out)
    lod = LoD(levels_of(x.structure)[:-1]) if x.num_levels > 1 else NO_LOD
    return [LoDTensor.wrap(out.reshape(len(out), *x.shape[1:]), lod), LoDTensor.wrap(index)]


def _pool_grad(inputs, outputs, d_outputs, pool_type):
    return [apply("sequence_pool_grad", inputs[0], outputs[1], d_outputs[0], pool_type=pool_type)]


def _infer_pool_grad(x, index, d_out, pool_type):
    out, of_index = _infer_pool(x, pool_type)
    check_like("sequence_pool_grad", "index", index, of_index)
    check_like("sequence_pool_grad", "d_out", d_out, out)
    return [x]


def _check_picked(index, d_rows, num_rows):
    """Raise unless the index is one row of `x`, or -1, for each element; kernels use it unchecked."""
    if index.shape != d_rows.shape or (index.size and not -1 <= index.min() <= index.max() < num_rows):
        expected = f"rows of x, -1 to {num_rows - 1}, for shape {d_rows.shape}"
        raise OutOfRangeError("sequence_pool_grad, index", expected=expected, got=f"shape {index.shape}")


def _pool_grad_forward(x, index, d_out, pool_type):
    offsets, d_rows = x.structure.levels[-1], flat(d_out.data)
    d_x = empty((len(x.data), math.prod(x.shape[1:])), x.data)
    if len(d_rows) != len(offsets) - 1:
        raise ShapeError("sequence_pool_grad, d_out", expected=f"{len(offsets) - 1} sequences", got=len(d_rows))
    if pool_type in ("max", "first", "last"):
        _check_picked(index.data, d_rows, len(d_x))
        pool.pick_rows_grad(d_rows, as_operand(index.data), d_x)
    else:
        pool.pool_sum_grad(d_rows, offsets, _scale(x, pool_type), d_x)
    return [tensor_like(d_x.reshape(x.shape), x)]


_POOLED = {"pool_type": "str"}
register(Op("sequence_pool", ("x",), _infer_pool, _pool, _pool_grad, ("out", "index"), _POOLED))
register(Op("sequence_pool_grad", ("x", "index", "d_out"), _infer_pool_grad, _pool_grad_forward, attrs=_POOLED))


def sequence_pool(x, pool_type):
    """Return one row a sequence: the sum, mean, sum over the square root of the length, maximum, first or last row.

    Parameters
    ----------
    x : Variable or LoDTensor
        Rows with at least one level; the last level is pooled.
    pool_type : {"sum", "mean", "sqrt", "max", "first", "last"}

    Returns
    -------
    Variable of shape `(sequences, ...)`; zeros for an empty sequence.  With more levels, it keeps those above.

    Examples
    --------
    >>> x = LoDTensor(np.array([1.0, 3.0, 2.0, 4.0, 6.0]), [[0, 2, 5]])
    >>> np.asarray(sequence_pool(x, "mean")), np.asarray(sequence_pool(x, "max"))
    (array([2., 4.]), array([3., 6.]))

    Source: the operator `sequence_pool` of PaddlePaddle Fluid.
    """
    return apply("sequence_pool", x, pool_type=pool_type)[0]


# Zeros, a row a sequence: the states before the first step.


def _infer_zeros(x, shape):
    check_float("zeros_of_sequences", x=x)
    check_lod_level("zeros_of_sequences", "x", x)
    if any(size < 0 for size in shape) or math.prod(shape) > _MOST_STATES:
        raise ShapeError("zeros_of_sequences, shape", expected=f"at most {_MOST_STATES} elements", got=shape)
    return [TensorSpec((-1, *shape), x.dtype)]


def _zeros(x, shape):
    return [LoDTensor.wrap(np.zeros((len(x.structure.levels[-1]) - 1, *shape), x.dtype))]


_MOST_STATES = 2**20  # a sequence: a description of a few bytes cannot ask for more memory
register(Op("zeros_of_sequences", ("x",), _infer_zeros, _zeros, attrs={"shape": "ints"}))


# One step at a time: what the fused recurrence does without materialising it.


def _infer_rank_table(x, level):
    check_lod_level("lod_rank_table", "x", x)
    if not -x.lod_level <= level < x.lod_level:
        raise LoDError("level", expected=f"one of the {x.lod_level} levels", got=level)
    return [PLAN]


def _rank_table(x, level):
    return [plan.sort_by_seq_len(x, level)]


register(Op("lod_rank_table", ("x",), _infer_rank_table, _rank_table, attrs={"level": "int"}))


def sort_by_seq_len(x, level=-1):
    """Return the plan of a batch, longest sequence first; see `varlen_rnn.plan.sort_by_seq_len`.

    Of a variable of a program, it is the plan that a run makes.
    """
    if isinstance(x, Variable) and recorder() is not None:
        return apply("lod_rank_table", x, level=check_int(level, "level"))
    return plan.sort_by_seq_len(x, level)


def _check_plan(sorted_seqs):
    if not isinstance(sorted_seqs, Variable):
        check_is_plan(sorted_seqs)


def _check_rows(op, x, plan):
    """Raise unless the rows of `x` are those of the plan."""
    if not x.shape or len(x.data) != plan.total_len:
        raise ShapeError(f"{op}, x", expected=f"the {plan.total_len} rows of the plan", got=f"shape {x.shape}")


def _check_step(op, rows, plan, t):
    """Raise unless step `t` is one of the plan's, and `rows`, where given, are as many as the sequences then alive."""
    if not 0 <= t < plan.max_seq_len:
        raise OutOfRangeError("t", expected=f"0 <= t < {plan.max_seq_len} steps", got=t)
    if rows is not None and (not rows.shape or len(rows.data) != plan.batch_sizes[t]):
        raise ShapeError(f"{op}, step {t}", expected=f"{plan.batch_sizes[t]} rows", got=f"shape {rows.shape}")


def _segment_inputs(x, plan, t):
    _check_rows("segment_inputs", x, plan)
    _check_step("segment_inputs", None, plan, t)
    out = np.empty((plan.batch_sizes[t], *x.shape[1:]), x.dtype)
    segment.segment_inputs(flat(x.data), plan.starts, t, flat(out))
    return [LoDTensor.wrap(out)]


def _segment_inputs_grad(x, plan, d_out, t):
    _check_rows("segment_inputs_grad", x, plan)
    _check_step("segment_inputs_grad", d_out, plan, t)
    d_x = np.zeros(x.shape, x.dtype)
    segment.concat_outputs(flat(d_out.data), plan.starts, t, flat(d_x))
    return [tensor_like(d_x, x)]


def _plan_grad(op):
    def grad(inputs, outputs, d_outputs, **attrs):
        return [apply(op, *inputs, d_outputs[0], **attrs), None]

    return grad


def check_moved(op, name, desc):
    """Raise unless rows have a data type that the kernels of movement know: Numba has no float16."""
    check_tensor(op, name, desc)
    if desc.dtype == np.float16:
        raise DTypeError(f"{op}, {name}", expected="another data type", got=desc.dtype)


def _infer_rows(op):
    def infer(x, plan, **attrs):
        check_moved(op, "x", x)
        check_kind(op, "sorted_seqs", plan, LOD_RANK_TABLE)
        check_shape(op, "x", x, (-1, *x.shape[1:]))
        return [x._replace(shape=(-1, *x.shape[1:]), lod_level=0)]

    return infer


def _infer_rows_grad(op):
    def infer(x, plan, d_out, **attrs):
        check_like(op, "d_out", d_out, *_infer_rows(op)(x, plan))
        return [x]

    return infer


def _register_movement(name, forward, backward, attrs):
    places = ("x", "sorted_seqs")
    register(Op(name, places, _infer_rows(name), forward, _plan_grad(f"{name}_grad"), attrs=attrs))
    register(Op(f"{name}_grad", (*places, "d_out"), _infer_rows_grad(f"{name}_grad"), backward, attrs=attrs))


_register_movement("segment_inputs", _segment_inputs, _segment_inputs_grad, {"t": "int"})


def _check_sequences(op, rows, plan):
    """Raise unless there is a row for each sequence of the plan."""
    if not rows.shape or len(rows.data) != plan.num_sequences:
        expected = f"{plan.num_sequences} rows, one a sequence"
        raise ShapeError(f"{op}, boot", expected=expected, got=f"shape {rows.shape}")


def _init_memories(boot, plan):
    _check_sequences("init_memories", boot, plan)
    out = np.empty(boot.shape, boot.dtype)
    segment.init_memories(flat(boot.data), plan.sorted_indices, flat(out))
    return [LoDTensor.wrap(out)]


def _init_memories_grad(boot, plan, d_out):
    _check_sequences("init_memories_grad", boot, plan)
    _check_sequences("init_memories_grad", d_out, plan)
    d_boot = np.empty(boot.shape, boot.dtype)
    segment.init_memories_grad(flat(d_out.data), plan.sorted_indices, flat(d_boot))
    return [tensor_like(d_boot, boot)]


_register_movement("init_memories", _init_memories, _init_memories_grad, {})


def _concat_outputs(plan, *steps):
    if len(steps) != plan.max_seq_len:
        raise ShapeError("concat_outputs, steps", expected=f"{plan.max_seq_len} steps", got=len(steps))
    for t, step in enumerate(steps):
        _check_step("concat_outputs", step, plan, t)
    element = steps[0].shape[1:] if steps else ()
    out = np.empty((plan.total_len, *element), steps[0].dtype if steps else np.float32)
    for t, step in enumerate(steps):
        segment.concat_outputs(flat(step.data), plan.starts, t, flat(out))
    return [LoDTensor.wrap(out, LoD([plan.offsets]))]


def _concat_outputs_grad(inputs, outputs, d_outputs):
    return [None, *(apply("segment_inputs", d_outputs[0], inputs[0], t=t) for t in range(len(inputs) - 1))]


def _infer_concat_outputs(plan, *steps):
    check_kind("concat_outputs", "sorted_seqs", plan, LOD_RANK_TABLE)
    if not steps:
        return [TensorSpec((0,), np.dtype(np.float32), 1)]
    for t, step in enumerate(steps):
        check_moved("concat_outputs", f"step {t}", step)
        if step.shape[1:] != steps[0].shape[1:] or step.dtype != steps[0].dtype:
            expected, got = f"rows of {steps[0].shape[1:]} {steps[0].dtype}", f"{step.shape[1:]} {step.dtype}"
            raise ShapeError(f"concat_outputs, step {t}", expected=expected, got=got)
    return [steps[0]._replace(shape=(-1, *steps[0].shape[1:]), lod_level=1)]


register(Op("concat_outputs", ("sorted_seqs", "*steps"), _infer_concat_outputs, _concat_outputs, _concat_outputs_grad))


def _result(variable, *inputs):
    """Return a Variable if one was given, else its value: rows for an ordinary tensor, else a LoDTensor."""
    if any(isinstance(value, Variable) for value in inputs):
        return variable
    return plain(variable.value)


def segment_inputs(x, sorted_seqs, t):
    """Return the rows of step `t` of every sequence that is still alive, longest sequence first.

    Parameters
    ----------
    x : Variable, LoDTensor or array, shape `(total_len, ...)`
    sorted_seqs : SortedSeqs
    t : int
        In steps, `0 <= t < sorted_seqs.max_seq_len`.

    Returns
    -------
    array, or Variable if `x` is one, of shape `(batch_sizes[t], ...)`

    Examples
    --------
    >>> from varlen_rnn.plan import sort_by_seq_len
    >>> segment_inputs(np.arange(4.0), sort_by_seq_len([0, 1, 4]), 0)
    array([1., 0.])

    Source: `SegmentInputs` of the design document "Variable-length supported RNN".
    """
    given, x = x, required(x, "segment_inputs, x")
    _check_plan(sorted_seqs)
    return _result(apply("segment_inputs", x, sorted_seqs, t=check_int(t, "t")), given)


def init_memories(boot, sorted_seqs):
    """Return the boot memories in sorted order: row k is that of the sequence of rank k.

    Parameters
    ----------
    boot : Variable or array, shape `(num_sequences, ...)`, in the caller's order
    sorted_seqs : SortedSeqs

    Examples
    --------
    >>> from varlen_rnn.plan import sort_by_seq_len
    >>> init_memories(np.array([10.0, 20.0]), sort_by_seq_len([0, 1, 4]))
    array([20., 10.])

    Source: `InitMemories` of the design document "Variable-length supported RNN".
    """
    given, boot = boot, required(boot, "init_memories, boot")
    _check_plan(sorted_seqs)
    return _result(apply("init_memories", boot, sorted_seqs), given)


def concat_outputs(steps, sorted_seqs):
    """Return the outputs of all steps as rows in the caller's order, a LoDTensor.

    Parameters
    ----------
    steps : list of Variables or arrays
        `sorted_seqs.max_seq_len` of them; step t has shape `(batch_sizes[t], ...)`, longest sequence first.
    sorted_seqs : SortedSeqs

    Returns
    -------
    LoDTensor, or Variable if a step is one

    Examples
    --------
    >>> from varlen_rnn.plan import sort_by_seq_len
    >>> steps = [np.array([1.0, 0.0]), np.array([2.0]), np.array([3.0])]
    >>> concat_outputs(steps, sort_by_seq_len([0, 1, 4])).data
    array([0., 1., 2., 3.])

    Source: `ConcatOutputs` of the design document "Variable-length supported RNN".
    """
    if not isinstance(steps, (list, tuple)):
        raise DTypeError("concat_outputs, steps", expected="a list, one entry a step", got=type(steps).__name__)
    _check_plan(sorted_seqs)
    return _result(apply("concat_outputs", sorted_seqs, *steps), *steps)
