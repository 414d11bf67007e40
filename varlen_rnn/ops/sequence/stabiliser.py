"""The stabiliser of exponential gates: a running maximum along each sequence."""

import numpy as np

from varlen_rnn.errors import ShapeError
from varlen_rnn.kernels import windows
from varlen_rnn.ops.examples import TROUBLES, rows
from varlen_rnn.rows.lod import NO_LOD, LoDTensor, levels_of
from varlen_rnn.runtime.device import as_operand, empty, zeros
from varlen_rnn.tape.checks import check_float, check_rank, check_shape, shared_lod
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec


def _rows(specs, axes):
    """Return "sequence" if rows have a LoD and no state is given, otherwise "batch"; None for rows along other axes."""
    if set(axes[:2]) != {0} or (specs[2] is not None and axes[2] != 0):
        return None
    return "sequence" if specs[0].lod_level and specs[2] is None else "batch"


@operator(outputs=("shift", "m", "last"), rows=_rows)
def stabiliser(log_decay, log_input, state=None):
    """Return the running maximum m of decaying inputs, on a logarithmic scale, for each column, without a gradient.

    Row t of a sequence computes `m_t = max(log_decay_t + m_{t-1}, log_input_t)`.  A row without a LoD is a sequence of
    its own.

    Parameters
    ----------
    log_decay, log_input : Variable or LoDTensor, shape `(rows, columns)`
        float32 or float64.
    state : Variable or array, shape `(sequences, columns)`, optional
        m before the first rows; zeros by default.

    Returns
    -------
    shift : Variable, shape `(rows, columns)`
        `m_{t-1} - m_t`.
    m : Variable, shape `(rows, columns)`
    last : Variable, shape `(sequences, columns)`
        m after the last rows.

    Examples
    --------
    >>> x = vr.create_lod_tensor(np.array([[2.0], [0.0], [3.0]]), [[3]])
    >>> shift, m, last = stabiliser(x.like(np.full((3, 1), -1.0)), x)
    >>> m.numpy().ravel()
    array([2., 1., 3.])

    Source: the state m of xLSTM (Beck et al., 2024).
    """
    lod, data = shared_lod("stabiliser", log_decay, log_input, names=["log_decay", "log_input"]), log_decay.data
    offsets = levels_of(lod)[-1] if lod.num_levels else np.arange(len(data) + 1)
    shape = len(offsets) - 1, data.shape[1]
    for name, given, count in (("log_input", log_input, len(data)), ("state", state, shape[0])):
        if given is not None and len(given.data) != count:
            raise ShapeError(f"stabiliser, {name}", expected=f"{count} rows, as log_decay has", got=given.shape)
    first = zeros(shape, data) if state is None else as_operand(state.data)
    last, shift, m = empty(shape, data), empty(data.shape, data), empty(data.shape, data)
    windows.stabilise(as_operand(data), as_operand(log_input.data), offsets, first, last, shift, m)
    of_last = NO_LOD.at_positions_of(lod) if lod.num_levels <= 1 else NO_LOD
    return LoDTensor.wrap(shift, lod), LoDTensor.wrap(m, lod), LoDTensor.wrap(last, of_last)


@stabiliser.infer
def _infer(log_decay, log_input, state):
    check_float("stabiliser", log_decay=log_decay, log_input=log_input, **({"state": state} if state else {}))
    check_rank("stabiliser", "log_decay", log_decay, 2)
    check_shape("stabiliser", "log_input", log_input, log_decay.shape)
    level = max(log_decay.lod_level, log_input.lod_level)
    last = TensorSpec((-1 if level else log_decay.shape[0], log_decay.shape[1]), log_decay.dtype)
    if state:
        check_shape("stabiliser", "state", state, last.shape)
    found = log_decay._replace(lod_level=level)
    return found, found, last


@stabiliser.examples
def _examples(rng):
    yield [rows(rng, 2), rows(rng, 2), rng.standard_normal((4, 2))], {}
    for lod in TROUBLES:
        yield [rows(rng, 2, lod=lod), rows(rng, 2, lod=lod), None], {}
    yield [rng.standard_normal((3, 2)), rng.standard_normal((3, 2)), rng.standard_normal((3, 2))], {}
