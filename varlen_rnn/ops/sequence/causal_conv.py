"""Causal convolution of each channel along each sequence, whose window of rows is carried like a state."""

from __future__ import annotations

from typing import Any

from varlen_rnn.errors import ShapeError, check_choice
from varlen_rnn.kernels import causal
from varlen_rnn.ops.cost import known, size
from varlen_rnn.ops.examples import LOD, TROUBLES, rows
from varlen_rnn.ops.sequence.carried import lod_of_states, offsets_of, rows_of_state
from varlen_rnn.rows.lod import LoDTensor
from varlen_rnn.runtime.device import as_operand, empty, zeros
from varlen_rnn.tape.checks import check_float, check_like, check_rank, check_shape
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import apply, apply_list
from varlen_rnn.typing import Rows

_NAME = "causal_conv"


def causal_conv(
    x: Rows, weight: Rows, bias: Rows | None = None, state: Any = None, activation: str | None = None
) -> tuple[Any, Any]:
    """Return a weighted sum of each row and of the rows before it, channel by channel, and the last rows.

    Channel c of row t becomes

        y_t = activation(bias + weight[c, 0] x_{t - width + 1} + ... + weight[c, width - 1] x_t)

    where the rows before a sequence are its `state`.  A row without a LoD is a sequence of its own, as in a step of
    `DynamicRNN`.  If a sequence is cut anywhere, and the state is handed on, the results have the same bits.

    Parameters
    ----------
    x : Variable or LoDTensor, shape `(rows, channels)`
        float32 or float64.  The last LoD level gives the sequences.
    weight : Variable or array, shape `(channels, width)`
    bias : Variable or array, shape `(channels,)`, optional
    state : Variable or array, shape `(sequences, width - 1, channels)`, optional
        The rows before each sequence, zeros by default.
    activation : {"silu", "swish"}, optional
        The function of the sums; both names mean `silu`.

    Returns
    -------
    y : Variable like `x`, with its LoD
    state : Variable, shape `(sequences, width - 1, channels)`
        The last rows of `state` and the sequence together.

    Raises
    ------
    InputError
        If shapes or data types do not fit.

    Examples
    --------
    >>> x = vr.create_lod_tensor(np.array([[1.0], [2.0], [3.0]]), [[2, 1]])
    >>> y, state = causal_conv(x, np.array([[1.0, 10.0]]), state=np.array([[[7.0]], [[8.0]]]))
    >>> y.numpy().ravel(), state.numpy().ravel()
    (array([17., 21., 38.]), array([2., 3.]))

    Source: the convolution of Mamba (Gu and Dao, 2023); a depthwise `torch.nn.Conv1d` has the same weights, and
    `CausalConvWithState` of ONNX has the state with its last two axes exchanged.
    """
    check_activation(activation, _NAME)
    y, last = apply(_NAME, x, weight, bias, state)
    return y if activation is None else apply("silu", y), last


def check_activation(activation: Any, name: str) -> None:
    """Raise an error that begins with `name` unless `activation` is None or a name of silu."""
    if activation is not None:
        check_choice(activation, f"{name}, activation", "silu", "swish")


def _cost(inputs, outputs):
    """2 operations per weight and row."""
    return 2 * known(inputs[0].shape[0]) * size(inputs[1])


@operator(name=_NAME, outputs=("out", "last"), cost=_cost, rows=rows_of_state(3, 1, 2))
def convolve_causally(x, weight, bias=None, state=None):
    """Return a weighted sum of each row and of the rows before it, channel by channel, and the last rows."""
    data, offsets, taps, first = _operands(x, weight, state)
    bias = zeros(data.shape[1:], data) if bias is None else as_operand(bias.data)
    out, last = empty(data.shape, data), empty(first.shape, data)
    causal.causal_conv(data, offsets, taps, bias, first, out)
    causal.next_window(data, offsets, first, last)
    return x.like(out), LoDTensor.wrap(last, lod_of_states(x.structure))


def _operands(x, weight, state):
    """Return rows, offsets, weights with one row for each tap, and the windows before the sequences."""
    data, offsets = as_operand(x.data), offsets_of(x)
    taps, shape = as_operand(weight.data.T), (len(offsets) - 1, weight.shape[1] - 1, x.shape[1])
    if state is not None and len(state.data) != shape[0]:
        raise ShapeError(f"{_NAME}, state", expected=f"{shape[0]} sequences, as x", got=f"shape {state.shape}")
    return data, offsets, taps, zeros(shape, data) if state is None else as_operand(state.data)


@convolve_causally.infer
def _infer(x, weight, bias, state):
    given = {"x": x, "weight": weight, "bias": bias, "state": state}
    check_float(_NAME, **{name: spec for name, spec in given.items() if spec is not None})
    check_rank(_NAME, "x", x, 2)
    check_shape(_NAME, "weight", weight, (x.shape[1], -1), "a depthwise weight (channels, 1, width) is reshaped")
    if weight.shape[1] == 0:
        raise ShapeError(f"{_NAME}, weight", expected="a width of at least one row", got=f"shape {weight.shape}")
    if bias is not None:
        check_shape(_NAME, "bias", bias, (x.shape[1],))
    before = weight.shape[1] - 1 if weight.shape[1] > 0 else -1
    last = TensorSpec((-1 if x.lod_level else x.shape[0], before, x.shape[1]), x.dtype)
    if state is not None:
        check_shape(_NAME, "state", state, last.shape)
    return x, last


@convolve_causally.grad
def _grad(inputs, outputs, d_outputs):
    (x, weight, _, state), (d, d_last) = inputs, d_outputs
    wanted = [variable is not None and variable.requires_grad for variable in inputs]
    of_rows = [None, None]
    if wanted[0] or wanted[3]:
        of_rows = apply_list(f"{_NAME}_grad", x, weight, d, d_last)
    return [
        of_rows[0] if wanted[0] else None,
        apply(f"{_NAME}_weight_grad", x, weight, d, state) if wanted[1] and d is not None else None,
        apply("row_sum", d) if wanted[2] and d is not None else None,
        of_rows[1] if wanted[3] else None,
    ]


@operator(name=f"{_NAME}_grad", outputs=("d_x", "d_state"), cost=_cost)
def differentiate_rows(x, weight, d=None, d_last=None):
    """Return the gradients of the rows and of the first windows of `causal_conv`."""
    data, offsets, taps, first = _operands(x, weight, d_last)
    d_rows = zeros(data.shape, data) if d is None else as_operand(d.data)
    d_state, d_x = empty(first.shape, data), empty(data.shape, data)
    causal.causal_conv_grad(d_rows, offsets, taps, first, d_state, d_x)
    return x.like(d_x), LoDTensor.wrap(d_state)


@differentiate_rows.infer
def _infer_grad(x, weight, d, d_last):
    found = _infer(x, weight, None, None)
    for name, spec, like in (("d", d, x), ("d_last", d_last, found[1])):
        if spec is not None:
            check_like(f"{_NAME}_grad", name, spec, like)
    return found


@operator(name=f"{_NAME}_weight_grad", cost=_cost)
def differentiate_weight(x, weight, d, state=None):
    """Return the gradient of the weight of `causal_conv`."""
    data, offsets, taps, first = _operands(x, weight, state)
    d_taps = empty(taps.shape, data)
    causal.causal_conv_weight_grad(as_operand(d.data), data, offsets, first, d_taps)
    return LoDTensor.wrap(as_operand(d_taps.T))


@differentiate_weight.infer
def _infer_weight_grad(x, weight, d, state):
    _infer(x, weight, None, state)
    check_like(f"{_NAME}_weight_grad", "d", d, x)
    return weight


@convolve_causally.examples
def _examples(rng):
    for width in (1, 2, 4):
        state = rng.standard_normal((len(LOD.levels[-1]) - 1, width - 1, 3))
        yield [rows(rng, 3), rng.standard_normal((3, width)), rng.standard_normal(3), state], {}
    yield [rows(rng, 3), rng.standard_normal((3, 3)), None, None], {}
    for lod in TROUBLES:
        yield [rows(rng, 2, lod=lod), rng.standard_normal((2, 3)), None, None], {}
    yield [rng.standard_normal((4, 2)), rng.standard_normal((2, 3)), None, rng.standard_normal((4, 2, 2))], {}
