"""The stabiliser of exponential gates: a running maximum along each sequence."""

from varlen_rnn.errors import ShapeError
from varlen_rnn.kernels import windows
from varlen_rnn.ops.examples import TROUBLES, rows
from varlen_rnn.ops.sequence.carried import lod_of_states, offsets_of, rows_of_state
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.runtime.device import as_operand, empty, zeros
from varlen_rnn.tape.checks import check_float, check_rank, check_shape, shared_lod
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec


@operator(outputs=("shift", "m", "last"), rows=rows_of_state(2))
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
    offsets = offsets_of(LoDTensor.wrap(data, lod))
    shape = len(offsets) - 1, data.shape[1]
    for name, given, count in (("log_input", log_input, len(data)), ("state", state, shape[0])):
        if given is not None and len(given.data) != count:
            raise ShapeError(f"stabiliser, {name}", expected=f"{count} rows, as log_decay has", got=given.shape)
    first = zeros(shape, data) if state is None else as_operand(state.data)
    last, shift, m = empty(shape, data), empty(data.shape, data), empty(data.shape, data)
    windows.stabilise(as_operand(data), as_operand(log_input.data), offsets, first, last, shift, m)
    return LoDTensor.wrap(shift, lod), LoDTensor.wrap(m, lod), LoDTensor.wrap(last, lod_of_states(lod))


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
