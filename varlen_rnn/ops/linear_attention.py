"""Linear attention: each sequence and head writes values under keys into a matrix, its state, and reads it by queries.

Besides outputs and last states, the operator with `keep` returns two operands of its gradient: with the delta rule, the
corrected values (`written`), and the state before each chunk of 32 rows (`states`).  Without `keep`, the gradient runs
the rows of a sequence and head again.  With `normalise`, norms and normalisers are results of their own.
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
from varlen_rnn.runtime.device import empty, on_device, zeros
from varlen_rnn.tape.checks import check_float, check_like, check_rank, check_shape, shared_lod
from varlen_rnn.tape.declare import operator
from varlen_rnn.tape.modes import grad_enabled
from varlen_rnn.tape.spec import TensorSpec
from varlen_rnn.tape.variable import apply, apply_list, required
from varlen_rnn.typing import Rows

_NAME = "linear_attention"
_OF_ROWS = "query", "key", "value", "decay", "beta"
_OPERANDS = *_OF_ROWS, "state", "normaliser"
_RESULTS = "out", "last", "norms", "last_norms"
_KEPT = "written", "states", "kept_norms"  # outputs that only the gradient reads
_OF_GRADIENT = *_OF_ROWS[:3], *_KEPT, *_OPERANDS[3:], *(f"d_{name}" for name in _RESULTS)  # its operands
_D_OPERANDS = tuple(f"d_{name}" for name in _OPERANDS)


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
    first, normaliser = state, None
    if is_normalised and state is not None:
        if not isinstance(state, tuple | list) or len(state) != 2:
            expected = "a pair of states and normalisers, with normalise=True"
            raise ShapeError(f"{_NAME}, state", expected=expected, got=shown(state))
        first, normaliser = (required(part, f"{_NAME}, state[{i}]") for i, part in enumerate(state))
        check_rank(_NAME, "state[0]", first, 4)
        check_shape(_NAME, "state[1]", normaliser, first.shape[:3], "normalisers are a state without its last axis")
    out, last, *others = apply(_NAME, query, key, value, decay, beta, first, normaliser, keep=keep, **constants)
    return ((out, others[0]), (last, others[1])) if is_normalised else (out, last)


def _cost(inputs, outputs, **constants):
    """4 operations per number of each state and row, for a decay and a product; and as many for a read."""
    out, last = outputs[:2]
    return 6 * known(out.shape[0]) * known(out.shape[1]) * known(out.shape[2]) * known(last.shape[2])


def _outputs(normalise, keep):
    """Return the names of the outputs."""
    kept = _KEPT[: 2 + normalise] if keep else ()
    return *_RESULTS[: 4 if normalise else 2], *kept


def _places(num_inputs, num_outputs, normalise, keep, **constants):
    return _OPERANDS[:num_inputs], _outputs(normalise, keep)


@operator(
    name=_NAME, outputs=_outputs(True, True), intermediate=_KEPT, cost=_cost, inference={"keep": False},
    rows=rows_of_state(5), places=_places, may_miss=("first",),
)  # fmt: skip
def attend_linearly(
    query, key, value, decay=None, beta=None, *first, delta: bool, normalise: bool, scale: float | None, keep: bool
):  # fmt: skip
    """Write the value of each row into the state of its sequence, a matrix, and return the read by its query."""
    state, normaliser = first
    call = _call((query, key, value, decay, beta, state), delta, normalise, scale, keep)
    arrays = _operands(call, query, key, value, decay, beta, state, normaliser)
    out, last, written, states, norms, last_norms, kept = layer.forward(*(*arrays, call))
    heads, depth, wide, of_states = call.heads, query.shape[2], value.shape[2], lod_of_states(query.structure)
    found = {
        "out": LoDTensor.wrap(out.reshape(len(out), heads.all, wide), query.structure),
        "last": LoDTensor.wrap(last.reshape(len(last), heads.state, depth, wide), of_states),
        "norms": LoDTensor.wrap(norms, query.structure) if normalise else None,
        "last_norms": LoDTensor.wrap(last_norms.reshape(len(last_norms), heads.state, depth), of_states),
        "written": LoDTensor.wrap(written.reshape(len(written), heads.all, written.shape[1] // heads.all)),
        "states": LoDTensor.wrap(states.reshape(len(states), heads.all, depth, wide)),
        "kept_norms": LoDTensor.wrap(kept.reshape(len(kept), heads.all, depth)),
    }
    return tuple(found[name] for name in _outputs(normalise, keep))


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
    scale = query.shape[2] ** -0.5 if scale is None else scale
    return Call(offsets, heads, scale, delta, keep, state is not None, normalise)


def _heads(query, key, value):
    state = max(key, value)
    return Heads(max(query, state), query, key, value, state)


def _operands(call, query, key, value, decay, beta, state, normaliser):
    """Return the arrays of `layer.forward`."""
    q, rows, states = flat(query.data), len(query.data), call.heads.state
    g = zeros((rows, states), q) if decay is None else flat(decay.data)
    b = full((rows, states), 1, q) if beta is None else flat(beta.data)
    depth = states * query.shape[2]
    first = _no_states(call, depth * value.shape[2], q) if state is None else flat(state.data)
    first_norms = empty((0, 0), q)
    if call.normalise:
        first_norms = _no_states(call, depth, q) if normaliser is None else flat(normaliser.data)
    return q, flat(key.data), flat(value.data), g, b, first, first_norms


def _no_states(call, size, like):
    """Return zeros for the states of all sequences: on the host, a single row."""
    return zeros((len(call.offsets) - 1 if on_device(like) else 1, size), like)


@attend_linearly.infer
def _infer(*operands, delta, normalise, scale, keep):
    if len(operands) != len(_OPERANDS):
        raise ShapeError(_NAME, expected=f"{len(_OPERANDS)} operands", got=len(operands))
    query, key, value, decay, beta, state, normaliser = operands
    given = {name: spec for name, spec in zip(_OPERANDS, operands, strict=True) if spec is not None}
    check_float(_NAME, **given)
    for name in _OF_ROWS[:3]:
        check_rank(_NAME, name, given[name], 3, "rows of heads; reshape rows of one head to (rows, 1, depth)")
    if scale is not None and not math.isfinite(scale):
        raise OutOfRangeError(f"{_NAME}, scale", expected="a finite number", got=scale)
    (count, heads, depth), wide = query.shape, value.shape[2]
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
    if (normaliser is None) != (state is None or not normalise):
        raise ShapeError(f"{_NAME}, normaliser", expected="one beside a state, with normalise=True", got=normaliser)
    if normaliser is not None:
        check_shape(_NAME, "normaliser", normaliser, of_states[:3])
    found = {
        "out": TensorSpec((count, heads, wide), query.dtype, query.lod_level),
        "last": TensorSpec(of_states, query.dtype),
        "norms": TensorSpec((count, heads), query.dtype, query.lod_level),
        "last_norms": TensorSpec(of_states[:3], query.dtype),
        "written": TensorSpec((count if delta else 0, heads, wide + normalise if wide != -1 else -1), query.dtype),
        "states": TensorSpec((-1, heads, depth, wide), query.dtype),
        "kept_norms": TensorSpec((-1, heads, depth), query.dtype),
    }
    return tuple(found[name] for name in _outputs(normalise, keep))


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
    names = _outputs(normalise, keep)
    d, saved = dict(zip(names, d_outputs, strict=True)), dict(zip(names, outputs, strict=True))
    found = apply_list(
        f"{_NAME}_grad", *inputs[:3], saved.get("written"), saved.get("states"), saved.get("kept_norms"), *inputs[3:],
        d["out"], d["last"], d.get("norms"), d.get("last_norms"), delta=delta, normalise=normalise, scale=scale,
    )  # fmt: skip
    found = [*found, None][:7]
    return [d if x is not None and x.requires_grad else None for x, d in zip(inputs, found, strict=True)]


def _cost_of_grad(inputs, outputs, **constants):
    """3 times the cost of the operator, 4 times if it runs again."""
    query, value, states, d_state = inputs[0], inputs[2], inputs[4], outputs[5]
    per_number = 18 if states is not None else 24
    return per_number * known(query.shape[0]) * known(d_state.shape[1]) * known(value.shape[2]) * known(query.shape[2])


def _places_of_grad(num_inputs, num_outputs, normalise, **constants):
    return _OF_GRADIENT[:num_inputs], _D_OPERANDS[: 6 + normalise]


@operator(name=f"{_NAME}_grad", outputs=_D_OPERANDS, cost=_cost_of_grad, places=_places_of_grad)
def differentiate(
    query, key, value, written=None, states=None, kept_norms=None, decay=None, beta=None, state=None, normaliser=None,
    d_out=None, d_last=None, d_norms=None, d_last_norms=None, *, delta: bool, normalise: bool, scale: float | None,
):  # fmt: skip
    """Return the gradients of `linear_attention`; missing operands count as the numbers that stand for them."""
    inputs = query, key, value, decay, beta, state
    call = _call(inputs, delta, normalise, scale, states is not None)
    operands = q, *_, first, first_norms = _operands(call, *inputs, normaliser)
    rows, sequences, heads = len(q), len(call.offsets) - 1, call.heads
    _check_counts(num_chunks(rows, sequences), states=states, kept_norms=kept_norms)
    _check_counts(sequences, d_last=d_last, d_last_norms=d_last_norms)
    nothing = empty((0, 0), q)
    of_rows = lambda x, columns: zeros((rows, columns), q) if x is None else flat(x.data)
    of_states = lambda x, columns: _no_states(call, columns, q) if x is None else flat(x.data)
    gradients = [of_rows(d_out, heads.all * value.shape[2]), of_states(d_last, first.shape[1]), nothing, nothing]
    if normalise:
        gradients[2:] = of_rows(d_norms, heads.all), of_states(d_last_norms, first_norms.shape[1])
    saved = [nothing if x is None else flat(x.data) for x in (written, states, kept_norms)]
    found = layer.backward(operands, saved, gradients, call)
    own = heads.query, heads.key, heads.value, *[heads.state] * 4
    of_state = query.shape[2], value.shape[2]
    sizes = (), (), (), (), (), of_state, of_state[:1]  # of a head, where an operand is missing
    new = lambda d, count, size: LoDTensor.wrap(d.reshape(len(d), count, *size))
    like = lambda x, d, *shape: x.like(d.reshape(x.shape)) if x is not None else new(d, *shape)
    results = [
        like(x, _over_shared(d, count, heads.all), count, size)
        for x, d, count, size in zip((*inputs, normaliser), found, own, sizes, strict=True)
    ]
    return results[: 6 + normalise]


def _check_counts(count, **states):
    """Raise unless states that are given, by their names, have this length."""
    for name, given in states.items():
        if given is not None and len(given.data) != count:
            raise ShapeError(f"{_NAME}_grad, {name}", expected=f"{count} states", got=f"shape {given.shape}")


def _over_shared(d, own, heads):
    """Return gradients (rows, own heads, numbers): sums over the heads of a call that share one of an operand."""
    size = d.shape[1] // heads
    return d.reshape(len(d), own, size) if own == heads else sum_over(d.reshape(len(d), own, heads // own, size), 2)


@differentiate.infer
def _infer_grad(*specs, delta, normalise, scale):
    given, op = dict(zip(_OF_GRADIENT, specs, strict=True)), f"{_NAME}_grad"
    operands = [given[name] for name in _OPERANDS]
    specs = _infer(*operands, delta=delta, normalise=normalise, scale=scale, keep=True)
    outputs = dict(zip(_outputs(normalise, True), specs, strict=True))
    kept = [given[name] for name in _KEPT if name in outputs]
    if None in kept and any(kept):
        raise ShapeError(f"{op}, states", expected="all outputs that the operator keeps, or none", got=kept)
    for name, spec in given.items():
        if spec is not None and name not in _OPERANDS:
            like = outputs.get(name.removeprefix("d_"))
            if like is None:
                raise ShapeError(f"{op}, {name}", expected="None without normalise", got=spec)
            check_like(op, name, spec, like)
    query, key, value, decay, beta, state, normaliser = operands
    of_rows = TensorSpec((query.shape[0], outputs["last"].shape[1]), query.dtype)
    found = query, key, value, decay or of_rows, beta or of_rows, state or outputs["last"]
    return *found, *([normaliser or outputs["last_norms"]] if normalise else [])


@attend_linearly.examples
def _examples(rng):
    def example(heads, lod=LOD, sizes=(3, 4), of_decay=(), has_state=True, **constants):
        (depth, wide), states = sizes, max(heads[1:])
        of_rows = [rows(rng, number, size, lod=lod) for number, size in zip(heads, (depth, depth, wide), strict=True)]
        decay = rows(rng, states, *of_decay, positive=True, lod=lod)
        decay, beta = decay.like(-decay.data), rows(rng, states, lod=lod)
        constants = {"delta": False, "normalise": False, "scale": None, "keep": True, **constants}
        shape = len(lod.levels[-1]) - 1, states, depth
        state = rng.standard_normal((*shape, wide)) if has_state else None
        normaliser = rng.standard_normal(shape) if has_state and constants["normalise"] else None
        return [*of_rows, decay, beta, state, normaliser], constants

    yield example((2, 2, 2))
    yield example((2, 2, 2), delta=True)
    yield example((1, 2, 4), has_state=False, delta=True, scale=0.5)
    yield example((4, 2, 1), of_decay=(3,), has_state=False, delta=True)
    yield example((2, 1, 1), normalise=True)
    yield example((1, 2, 2), normalise=True, delta=True)
    long = LoD.from_lengths([[33, 1, 40]])
    yield example((1, 1, 1), lod=long, sizes=(2, 5), delta=True, has_state=False)
    yield example((1, 1, 1), lod=long, sizes=(2, 2), of_decay=(2,), delta=True)
    yield example((1, 1, 1), lod=long, sizes=(2, 2), delta=True, keep=False)
    yield example((1, 1, 1), lod=long, sizes=(2, 2), normalise=True, has_state=False)
    for lod in TROUBLES:
        yield example((1, 1, 1), lod=lod, delta=True, has_state=False)
    (query, key, value, *_), constants = example((2, 1, 1))
    yield [query, key, value, None, None, None, None], constants
    state = rng.standard_normal((len(query.data), 1, 3, 4))
    yield [query.data, key.data, value.data, None, None, state, None], constants
