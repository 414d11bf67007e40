"""Linear attention: each sequence and head writes values under keys into a matrix, its state, and reads it by queries.

Besides outputs and last states, the operator with `keep` returns two operands of its gradient: with the delta rule, the
corrected values (`written`), and the state before each chunk of 32 rows (`states`).  Without `keep`, the gradient runs
the rows of a sequence and head again.  With `normalise`, the operator appends a column of ones to the values, so that
the last column of outputs and states belongs to the normaliser.
"""

from __future__ import annotations

import math
from typing import Any

from varlen_rnn.errors import LoDError, OutOfRangeError, ShapeError, check_flag, check_number, shown
from varlen_rnn.kernels.copies import full
from varlen_rnn.kernels.reductions import sum_over
from varlen_rnn.linear_attention import Call, Heads, layer, num_chunks
from varlen_rnn.ops.cost import known
from varlen_rnn.ops.examples import LOD, TROUBLES, rows
from varlen_rnn.ops.sequence.carried import lod_of_states, offsets_of, rows_of_state
from varlen_rnn.ops.sequence.movement import flat
from varlen_rnn.rows.lod import LoD, LoDTensor
from varlen_rnn.runtime.device import contiguous, copy_into, empty, on_device, zeros
from varlen_rnn.tape.checks import check_float, check_like, check_rank, check_shape, shared_lod
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.modes import grad_enabled
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import apply, apply_list, required
from varlen_rnn.typing import Rows

_NAME = "linear_attention"
_OF_ROWS = ("query", "key", "value", "decay", "beta")


def linear_attention(
    query: Rows,
    key: Rows,
    value: Rows,
    decay: Rows | None = None,
    beta: Rows | None = None,
    state: Any = None,
    *,
    delta: bool = False,
    normalise: bool = False,
    scale: float | None = None,
    recompute: bool = False,
) -> tuple[Any, Any]:
    """Write the value of each row into a matrix, the state of its sequence and head, and read it by the row's query.

    For one head, with a state S, log decays g, and rates b, row t computes

        u_t = v_t - [delta] (e^g_t S_{t-1})^T k_t
        S_t = e^g_t S_{t-1} + b_t k_t u_t^T
        o_t = scale S_t^T q_t

    so a state decays, takes the row's value under its key, and is read.  With `delta`, the value replaces the
    state's own value for the key, at the rate b; the keys should then have length 1 and rates lie between 0 and 2.  A
    state never crosses sequences.  A row without a LoD is a sequence of its own, as in a step of `DynamicRNN`.

    Parameters
    ----------
    query : Variable or LoDTensor, shape `(rows, heads of queries, depth)`
        float32 or float64.  The last LoD level gives the sequences.
    key : Variable or LoDTensor, shape `(rows, heads of keys, depth)`
    value : Variable or LoDTensor, shape `(rows, heads of values, depth of values)`
    decay : Variable or LoDTensor, shape `(rows, heads of states)`, or `(rows, heads of states, depth)`, optional
        The logarithm of the factor of each state, or of each row of a state; usually at most 0.  0 if it is missing.
    beta : Variable or LoDTensor, shape `(rows, heads of states)`, optional
        The factor of the value that is written; 1 if it is missing.
    state : Variable or array, shape `(sequences, heads of states, depth, depth of values)`, optional
        The states before the first rows; zeros if they are missing.  With `normalise` a pair of states and normalisers,
        of shape `(sequences, heads of states, depth)`.
    delta : bool
        Whether the state's own value for a key is subtracted from the value.
    normalise : bool
        Whether to compute a normaliser, too: the state for values of 1.
    scale : float, optional
        The factor of the outputs, `1 / sqrt(depth)` by default.
    recompute : bool
        Whether to save memory in training: no state is kept for the gradient, which runs each sequence and head again
        before it differentiates them, with the same bits.

    Returns
    -------
    y : Variable, shape `(rows, heads, depth of values)`, with the LoD of `query`
        With `normalise`, a pair of outputs and norms, of shape `(rows, heads)`: the reads of the
        normaliser by queries.  Outputs are not divided by norms, because cells differ in how they keep them from 0.
    state : Variable, shape as `state`
        The states after the last rows, or a pair.  The state of an empty sequence stays as it is.

    Raises
    ------
    InputError
        If shapes or data types do not fit, or operands have different LoDs.

    Notes
    -----
    There are as many heads of states as heads of keys or of values, whichever are more, and as many heads of outputs as
    heads of states or of queries, whichever are more.  Each number divides the larger ones: head h of 4 uses head
    h // 2 of 2.  So queries and keys can be shared by states, and states by queries.

    Rows are computed in chunks of 32, which begin at the first row of each sequence, or of 8 in them if each row of a
    state has a decay.  If a sequence is cut at multiples of 32 rows, and the state is handed on, the results have the
    same bits; but a piece of one row, such as a step of `DynamicRNN`, is rounded otherwise.  A NaN reaches no row
    before its own.

    These cells are forms of it:

    * a linear transformer has neither decays nor rates;
    * RetNet has constant decays, gated linear attention log gates, also for each row of a state;
    * Mamba-2 has C, B and x as query, key and value, dt A as decay, and dt as beta;
    * DeltaNet has a sigmoid as beta, and `delta`;
    * Gated DeltaNet has log gates, too, and Kimi Delta Attention a gate for each row of a state.

    Examples
    --------
    With keys and queries of 1, the state is the sum of the values; a decay of log(1/2) halves it before each row.

    >>> x = vr.create_lod_tensor(np.array([1.0, 2.0, 3.0, 5.0]).reshape(4, 1, 1), [[3, 1]])
    >>> one, half = x.like(np.ones((4, 1, 1))), x.like(np.full((4, 1), np.log(0.5)))
    >>> y, state = linear_attention(one, one, x)
    >>> y.numpy().ravel(), state.numpy().ravel()
    (array([1., 3., 6., 5.]), array([6., 5.]))
    >>> linear_attention(one, one, x, half)[0].numpy().ravel()
    array([1.  , 2.5 , 4.25, 5.  ])

    Source: Katharopoulos et al. (2020), "Transformers are RNNs"; Yang et al. (2024), "Gated Linear Attention
    Transformers with Hardware-Efficient Training"; Yang, Kautz and Hatamizadeh (2024), "Gated Delta Networks"; the
    operator `LinearAttention` of ONNX.
    """
    keep = not check_flag(recompute, f"{_NAME}, recompute") and grad_enabled()
    is_normalised = check_flag(normalise, f"{_NAME}, normalise")
    constants: dict[str, Any] = {"delta": check_flag(delta, f"{_NAME}, delta"), "normalise": is_normalised}
    constants["scale"] = None if scale is None else check_number(scale, f"{_NAME}, scale", "finite", math.isfinite)
    if is_normalised and state is not None:
        if not isinstance(state, tuple | list) or len(state) != 2:
            expected = "a pair of states and normalisers, with normalise=True"
            raise ShapeError(f"{_NAME}, state", expected=expected, got=shown(state))
        first, norms = (required(part, f"{_NAME}, state[{i}]") for i, part in enumerate(state))
        check_rank(_NAME, "state[0]", first, 4)
        check_shape(_NAME, "state[1]", norms, first.shape[:3], "normalisers are a state without its last axis")
        state = apply("concat", first, norms[..., None], axis=3)
    out, last, *_ = apply(_NAME, query, key, value, decay, beta, state, keep=keep, **constants)
    if not is_normalised:
        return out, last
    return (out[:, :, :-1], out[:, :, -1]), (last[:, :, :, :-1], last[:, :, :, -1])


def _cost(inputs, outputs, **constants):
    """4 operations per number of each state and row, for a decay and a product; and as many for a read."""
    out, last = outputs[:2]
    return 6 * known(out.shape[0]) * known(out.shape[1]) * known(out.shape[2]) * known(last.shape[2])


@operator(
    name=_NAME, outputs=("out", "last", "written", "states"), intermediate=("written", "states"), cost=_cost,
    inference={"keep": False}, rows=rows_of_state(5), multiplies=True,
)  # fmt: skip
def attend_linearly(
    query, key, value, decay=None, beta=None, state=None, *, delta: bool, normalise: bool, scale: float | None,
    keep: bool,
):  # fmt: skip
    """Write the value of each row into the state of its sequence, a matrix, and return the read by its query."""
    call = _call((query, key, value, decay, beta, state), delta, normalise, scale, keep)
    arrays = _operands(call, query, key, value, decay, beta, state, normalise)
    out, last, written, states = layer.forward(*(*arrays, call))
    heads, of_state = call.heads, (query.shape[2], value.shape[2] + normalise)
    rows_of = lambda array: array.reshape(len(array), heads.all, of_state[1])
    found = (
        LoDTensor.wrap(rows_of(out), query.structure),
        LoDTensor.wrap(last.reshape(len(last), heads.state, *of_state), lod_of_states(query.structure)),
    )
    if not keep:
        return found
    return *found, LoDTensor.wrap(rows_of(written)), LoDTensor.wrap(states.reshape(len(states), heads.all, *of_state))


def _call(inputs, delta, normalise, scale, keep):
    """Return the Call; raise unless all rows have one LoD, and there is a state for each sequence."""
    query, key, value, *_, state = inputs
    of_rows = {name: given for name, given in zip(_OF_ROWS, inputs, strict=False) if given is not None}
    shared_lod(_NAME, *of_rows.values(), names=list(of_rows))
    for name, given in of_rows.items():
        if len(given.data) != len(query.data):
            expected = f"{len(query.data)} rows, as query"
            raise ShapeError(f"{_NAME}, {name}", expected=expected, got=f"shape {given.shape}")
    offsets = offsets_of(query)
    if state is not None and len(state.data) != len(offsets) - 1:
        expected = f"{len(offsets) - 1} sequences, as query"
        raise ShapeError(f"{_NAME}, state", expected=expected, got=f"shape {state.shape}")
    heads = _heads(query.shape[1], key.shape[1], value.shape[1])
    return Call(offsets, heads, query.shape[2] ** -0.5 if scale is None else scale, delta, keep, state is not None)


def _heads(query, key, value):
    state = max(key, value)
    return Heads(max(query, state), query, key, value, state)


def _operands(call, query, key, value, decay, beta, state, normalise):
    """Return the arrays of `layer.forward`."""
    q, rows, states = flat(query.data), len(query.data), call.heads.state
    v = value.data
    if normalise:
        v = full((*value.shape[:2], value.shape[2] + 1), 1, q)
        copy_into(v[:, :, :-1], value.data)
    g = zeros((rows, states), q) if decay is None else flat(decay.data)
    b = full((rows, states), 1, q) if beta is None else flat(beta.data)
    size = query.shape[2] * v.shape[2]
    first = _no_states(call, states * size, q) if state is None else flat(state.data)
    return q, flat(key.data), flat(v), g, b, first


def _no_states(call, size, like):
    """Return zeros for the states of all sequences: on the host, a single row."""
    return zeros((len(call.offsets) - 1 if on_device(like) else 1, size), like)


@attend_linearly.infer
def _infer(query, key, value, decay, beta, state, delta, normalise, scale, keep):
    given = {"query": query, "key": key, "value": value, "decay": decay, "beta": beta, "state": state}
    given = {name: spec for name, spec in given.items() if spec is not None}
    check_float(_NAME, **given)
    for name in _OF_ROWS[:3]:
        check_rank(_NAME, name, given[name], 3, "rows of heads; reshape rows of one head to (rows, 1, depth)")
    if scale is not None and not math.isfinite(scale):
        raise OutOfRangeError(f"{_NAME}, scale", expected="a finite number", got=scale)
    (count, heads, depth), wide = query.shape, value.shape[2] + normalise if value.shape[2] != -1 else -1
    check_shape(_NAME, "key", key, (count, -1, depth))
    check_shape(_NAME, "value", value, (count, -1, -1))
    with_lod = [name for name in _OF_ROWS if name in given and given[name].lod_level]
    if with_lod and not query.lod_level:
        expected, hint = f"a LoD, as {with_lod[0]} has", "without a LoD, each row of query is a sequence of its own"
        raise LoDError(f"{_NAME}, query", expected=expected, got="a tensor without LoD", hint=hint)
    if 0 in (heads, depth, key.shape[1], *value.shape[1:]):
        got = [query.shape, key.shape, value.shape]
        raise ShapeError(_NAME, expected="at least one head and one number each", got=got)
    states, heads = _check_heads(heads, key.shape[1], value.shape[1])
    if decay is not None:
        shape = (count, states, depth) if len(decay.shape) == 3 else (count, states)
        check_shape(_NAME, "decay", decay, shape, "heads of states are heads of keys or of values, whichever are more")
    if beta is not None:
        check_shape(_NAME, "beta", beta, (count, states))
    of_states = -1 if query.lod_level else count, states, depth, wide
    if state is not None:
        check_shape(_NAME, "state", state, of_states)
    found = TensorSpec((count, heads, wide), query.dtype, query.lod_level), TensorSpec(of_states, query.dtype)
    if not keep:
        return found
    written = TensorSpec((count if delta else 0, heads, wide), query.dtype)
    return *found, written, TensorSpec((-1, heads, depth, wide), query.dtype)


def _check_heads(query, key, value):
    """Return the numbers of heads of states and of outputs, -1 if unknown; raise unless each divides the larger."""
    if -1 in (key, value):
        return -1, -1
    states = max(key, value)
    if states % key or states % value:
        expected = "a number of heads that divides the heads of key, or is a multiple of them"
        raise ShapeError(f"{_NAME}, value", expected=expected, got=f"{value} heads for {key} of key")
    if query == -1:
        return states, -1
    if max(query, states) % query or max(query, states) % states:
        expected = f"a number of heads that divides {states}, as states have, or is a multiple of it"
        raise ShapeError(f"{_NAME}, query", expected=expected, got=query)
    return states, max(query, states)


@attend_linearly.grad
def _grad(inputs, outputs, d_outputs, delta, normalise, scale, keep):
    saved = outputs[2:] if keep else (None, None)
    found = apply_list(
        f"{_NAME}_grad", *inputs[:3], *saved, *inputs[3:], *d_outputs[:2],
        delta=delta, normalise=normalise, scale=scale,
    )  # fmt: skip
    return [d if x is not None and x.requires_grad else None for x, d in zip(inputs, found, strict=True)]


def _cost_of_grad(inputs, outputs, **constants):
    """3 times the cost of the operator, 4 times if it runs again."""
    query, value, states, d_state = inputs[0], inputs[2], inputs[4], outputs[5]
    per_number = 18 if states is not None else 24
    return per_number * known(query.shape[0]) * known(d_state.shape[1]) * known(value.shape[2]) * known(query.shape[2])


@operator(
    name=f"{_NAME}_grad", outputs=("d_query", "d_key", "d_value", "d_decay", "d_beta", "d_state"), cost=_cost_of_grad,
    multiplies=True,
)  # fmt: skip
def differentiate(
    query, key, value, written=None, states=None, decay=None, beta=None, state=None, d_out=None, d_last=None, *,
    delta: bool, normalise: bool, scale: float | None,
):  # fmt: skip
    """Return the gradients of `linear_attention`; missing operands count as the numbers that stand for them."""
    inputs = query, key, value, decay, beta, state
    call = _call(inputs, delta, normalise, scale, states is not None)
    q, k, v, g, b, first = _operands(call, *inputs, normalise)
    kept = num_chunks(len(q), len(call.offsets) - 1)
    if call.keep and len(states.data) != kept:
        raise ShapeError(f"{_NAME}_grad, states", expected=f"{kept} states, as the operator's", got=states.shape)
    of_out = len(q), call.heads.all * (v.shape[1] // call.heads.value)
    of_last = len(call.offsets) - 1, first.shape[1]
    d_y = zeros(of_out, q) if d_out is None else flat(d_out.data)
    d_first = _no_states(call, of_last[1], q) if d_last is None else flat(d_last.data)
    of_rows, of_chunks = (flat(x.data) if call.keep else empty((0, 0), q) for x in (written, states))
    fits = d_y.shape == of_out and (d_last is None or d_first.shape == of_last)
    if not fits or len(of_rows) != (len(q) if delta and call.keep else 0):
        got = [d_y.shape, d_first.shape, of_rows.shape]
        raise ShapeError(f"{_NAME}_grad", expected="gradients of the operator's outputs, and its written rows", got=got)
    found = layer.backward(q, k, v, g, b, first, of_rows, of_chunks, d_y, d_first, call)
    pairs = zip(found, _own_heads(call.heads), strict=True)
    d_q, d_k, d_v, d_g, d_b, d_s = (_over_shared(d, own, call.heads.all) for d, own in pairs)
    like = lambda x, d: LoDTensor.wrap(d[..., 0]) if x is None else x.like(d.reshape(x.shape))
    d_v = contiguous(d_v[..., :-1]) if normalise else d_v
    of_state = call.heads.state, query.shape[2], value.shape[2] + normalise
    d_state = LoDTensor.wrap(d_s.reshape(len(d_s), *of_state)) if state is None else like(state, d_s)
    return like(query, d_q), like(key, d_k), like(value, d_v), like(decay, d_g), like(beta, d_b), d_state


def _over_shared(d, own, heads):
    """Return gradients (rows, own heads, numbers): sums over the heads of a call that share one of an operand."""
    size = d.shape[1] // heads
    return d.reshape(len(d), own, size) if own == heads else sum_over(d.reshape(len(d), own, heads // own, size), 2)


def _own_heads(heads):
    """Return the numbers of heads of query, key, value, decay, beta and state."""
    return heads.query, heads.key, heads.value, heads.state, heads.state, heads.state


@differentiate.infer
def _infer_grad(*specs, delta, normalise, scale):
    query, key, value, written, states, decay, beta, state, d_out, d_last = specs
    out, last, *kept = _infer(query, key, value, decay, beta, state, delta, normalise, scale, True)
    op = f"{_NAME}_grad"
    if (written is None) != (states is None):
        raise ShapeError(f"{op}, states", expected="written and states, or neither", got=[written, states])
    pairs = ("written", written, kept[0]), ("states", states, kept[1]), ("d_out", d_out, out), ("d_last", d_last, last)
    for name, spec, like in pairs:
        if spec is not None:
            check_like(op, name, spec, like)
    of_rows = TensorSpec((query.shape[0], last.shape[1]), query.dtype)
    return query, key, value, decay or of_rows, beta or of_rows, state or last


@attend_linearly.examples
def _examples(rng):
    def example(heads, lod=LOD, sizes=(3, 4), of_decay=(), has_state=True, **constants):
        (depth, wide), states = sizes, max(heads[1:])
        of_rows = [rows(rng, number, size, lod=lod) for number, size in zip(heads, (depth, depth, wide), strict=True)]
        decay = rows(rng, states, *of_decay, positive=True, lod=lod)
        decay, beta = decay.like(-decay.data), rows(rng, states, lod=lod)
        wide += constants.get("normalise", False)
        state = rng.standard_normal((len(lod.levels[-1]) - 1, states, depth, wide)) if has_state else None
        constants = {"delta": False, "normalise": False, "scale": None, "keep": True, **constants}
        return [*of_rows, decay, beta, state], constants

    yield example((2, 2, 2))
    yield example((2, 2, 2), delta=True)
    yield example((1, 2, 4), has_state=False, delta=True, scale=0.5)
    yield example((4, 2, 1), of_decay=(3,), has_state=False, delta=True)
    yield example((2, 1, 1), normalise=True)
    long = LoD.from_lengths([[33, 1, 40]])
    yield example((1, 1, 1), lod=long, sizes=(2, 5), delta=True, has_state=False)
    yield example((1, 1, 1), lod=long, sizes=(2, 2), of_decay=(2,), delta=True)
    yield example((1, 1, 1), lod=long, sizes=(2, 2), delta=True, keep=False)
    for lod in TROUBLES:
        yield example((1, 1, 1), lod=lod, delta=True, has_state=False)
    (query, key, value, *_), constants = example((2, 1, 1))
    yield [query, key, value, None, None, None], constants
    yield [query.data, key.data, value.data, None, None, rng.standard_normal((len(query.data), 1, 3, 4))], constants
