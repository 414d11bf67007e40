"""Functions of flash-linear-attention, with their arguments, on our kernels.

A batch `(batch, steps, ...)` is `batch` sequences of `steps` rows each, unless `cu_seqlens` or `seq_idx` divides its
rows otherwise.  For example, `seq_idx` of `[[0, 0, 1], [0, 1, 1]]` divides two times three rows into four sequences,
with the offsets 0, 2, 3, 4 and 6.  `cu_seqlens` has the offsets themselves, for a batch of one.

Inputs of less than 32 bits are computed in float32, and outputs have the type of the values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from varlen_rnn.errors import ProgramError, ShapeError, check_number, shown
from varlen_rnn.linear_attention.single_rows import run_single_rows
from varlen_rnn.ops.last_axis import rms_norm
from varlen_rnn.ops.linear_attention import linear_attention
from varlen_rnn.rows.lod import LoD
from varlen_rnn.torch.axes import Axes, check_axes, common_type
from varlen_rnn.torch.eager import eager, needs_gradient, refuse_transforms
from varlen_rnn.torch.function import array_of, as_batch, function, with_lod
from varlen_rnn.torch.layouts import lod_of_equal, lod_of_offsets, numbers

_EPSILON = 1e-6  # added to the squared length of queries and keys
_ROWS: Axes = (
    ("q", "batch steps key_heads depth"),
    ("k", "batch steps key_heads depth"),
    ("v", "batch steps heads width"),
)
_STATE: Axes = (("initial_state?", "sequences heads depth width"),)
_TURNED: Axes = (("initial_state?", "sequences heads width depth"),)
_G: Axes = (("g?", "batch steps heads"),)
_BETA: Axes = (("beta?", "batch steps heads"),)
_OF_STATES = _ROWS + _G + _BETA + _STATE
_OF_ROWS_OF_STATES = (*_ROWS, ("g?", "batch steps heads depth"), *_BETA, *_STATE)
_RULE: Axes = (*_ROWS, *_G, ("gk?", "batch steps heads depth"), *_BETA, ("A_log?", "heads"), ("dt_bias?", "heads"))
_GLA: Axes = (*_ROWS, *_G, ("g_gamma?", "heads"))


@eager
def chunk_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
    chunk_indices: Tensor | None = None,
    cp_context: None = None,
    *,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Run the gated delta rule over sequences, with the arguments of fla's function of this name.

    Parameters
    ----------
    q, k : Tensor, shape `(batch, steps, heads of keys, depth)`
    v : Tensor, shape `(batch, steps, heads, depth of values)`
        `heads` is a multiple of the heads of keys.
    g : Tensor, shape `(batch, steps, heads)`
        The logarithm of the factor of each state.
    beta : Tensor, shape `(batch, steps, heads)`
        The rate at which a value replaces the state's own value for the key.
    scale : float, optional
        The factor of the outputs, `1 / sqrt(depth)` by default.
    initial_state : Tensor, shape `(sequences, heads, depth, depth of values)`, optional
        The states before the first rows; zeros if they are missing.
    output_final_state : bool
        Whether to return the states after the last rows.
    use_qk_l2norm_in_kernel : bool
        Whether to divide queries and keys by their lengths, `sqrt(sum of squares + 1e-6)`.
    use_beta_sigmoid_in_kernel : bool
        Whether `beta` is passed through a sigmoid.
    allow_neg_eigval : bool
        Whether this sigmoid is doubled.
    state_v_first : bool
        Whether the last two axes of states are exchanged.
    cu_seqlens, cu_seqlens_cpu : Tensor, shape `(sequences + 1,)`, optional
        The offsets of sequences in the rows of a batch of one; `cu_seqlens_cpu` is not read.
    chunk_indices : Tensor, optional
        Not read.
    cp_context : None
        Sequences over several processes are not supported.
    use_gate_in_kernel : bool
        Whether `g` becomes `-exp(A_log) * softplus(g + dt_bias)`.
    A_log, dt_bias : Tensor, shape `(heads,)`, optional
        They are read if `use_gate_in_kernel`.

    Returns
    -------
    o : Tensor, shape `(batch, steps, heads, depth of values)`
    final_state : Tensor, shape as `initial_state`
        None unless `output_final_state`.

    Raises
    ------
    InputError
        If shapes do not fit, or an option is not supported.

    Examples
    --------
    >>> rows = torch.ones(1, 5, 2, 4)
    >>> g, beta = torch.zeros(1, 5, 2), torch.ones(1, 5, 2)
    >>> o, state = chunk_gated_delta_rule(
    ...     rows, rows, rows, g, beta, output_final_state=True, cu_seqlens=torch.tensor([0, 2, 5])
    ... )
    >>> o.shape, state.shape
    (torch.Size([1, 5, 2, 4]), torch.Size([2, 2, 4, 4]))

    Source: Yang, Kautz and Hatamizadeh (2024), "Gated Delta Networks"; flash-linear-attention.
    """
    name, given = "chunk_gated_delta_rule", (q, k, v, g, None, beta, A_log, dt_bias, initial_state)
    refuse(name, cp_context=cp_context)
    of_gates = use_gate_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval
    o, last = _gated_delta_rule(name, given, cu_seqlens, of_gates, use_qk_l2norm_in_kernel, scale, state_v_first)
    return o, last if output_final_state else None


@eager
def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Run the gated delta rule over sequences, with the arguments of fla's function of this name.

    It is `chunk_gated_delta_rule` with other arguments.  Sequences of one row are computed as single steps.

    Parameters
    ----------
    q, k, v, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel
        As in `chunk_gated_delta_rule`.
    g : Tensor, shape `(batch, steps, heads)`, optional
        The logarithm of the factor of each state, 0 if it is missing.
    gk : Tensor, shape `(batch, steps, heads, depth)`, optional
        The logarithm of a factor of each row of a state; it is added to `g`.
    gv : None
        Factors of columns of a state are not supported.
    beta : Tensor, shape `(batch, steps, heads)`, optional
        1 if it is missing.
    use_gate_in_kernel, A_log, dt_bias, use_beta_sigmoid_in_kernel, allow_neg_eigval, state_v_first, cu_seqlens
        As in `chunk_gated_delta_rule`.

    Returns
    -------
    o, final_state : Tensor
        As in `chunk_gated_delta_rule`.

    Raises
    ------
    InputError
        If shapes do not fit, or an option is not supported.

    Examples
    --------
    >>> rows = torch.ones(2, 1, 2, 4)  # a step of two sequences
    >>> fused_recurrent_gated_delta_rule(rows, rows, rows, initial_state=torch.zeros(2, 2, 4, 4))[0].shape
    torch.Size([2, 1, 2, 4])

    Source: Yang, Kautz and Hatamizadeh (2024), "Gated Delta Networks"; flash-linear-attention.
    """
    name, given = "fused_recurrent_gated_delta_rule", (q, k, v, g, gk, beta, A_log, dt_bias, initial_state)
    refuse(name, gv=gv)
    of_gates = use_gate_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval
    o, last = _gated_delta_rule(name, given, cu_seqlens, of_gates, use_qk_l2norm_in_kernel, scale, state_v_first)
    return o, last if output_final_state else None


def _gated_delta_rule(
    name: str, given: Sequence[Any], cu_seqlens: Tensor | None, of_gates: tuple[bool, bool, bool], units: bool,
    scale: float | None, v_first: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Run the gated delta rule over the arguments of `_RULE` and first states; `name` begins an error."""
    (q, k, v, g, gk, beta, A_log, dt_bias, first), (has_gate, has_sigmoid, doubled) = given, of_gates
    lod = lod_of_batch(name, v, cu_seqlens)
    check_axes(name, _RULE + (_TURNED if v_first else _STATE), *given, sequences=len(lod.levels[0]) - 1)
    if has_gate:
        g = _gate(name, g, A_log, dt_bias)
    if doubled and not has_sigmoid:
        raise ProgramError(f"{name}, allow_neg_eigval", expected="use_beta_sigmoid_in_kernel, too", got="it alone")
    if gk is not None:
        g = gk if g is None else g.to(common_type(g, gk))[..., None] + gk
    if has_sigmoid and beta is not None:
        beta = beta.to(common_type(beta)).sigmoid() * (2 if doubled else 1)
    o, last = attended(name, lod, (q, k, v, g, beta, _turned(first, v_first)), True, units, scale)
    return o, _turned(last, v_first)


@eager
def chunk_simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_cpu: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Run gated linear attention with one gate a head, with the arguments of fla's function of this name.

    Parameters
    ----------
    q, k : Tensor, shape `(batch, steps, heads, depth)`
    v : Tensor, shape `(batch, steps, heads, depth of values)`
    g : Tensor, shape `(batch, steps, heads)`, optional
        The logarithm of the factor of each state.
    g_gamma : Tensor, shape `(heads,)`, optional
        The same for all rows, in place of `g`.
    scale, initial_state, output_final_state, state_v_first, cu_seqlens, cu_seqlens_cpu
        As in `chunk_gated_delta_rule`.

    Returns
    -------
    o, final_state : Tensor
        As in `chunk_gated_delta_rule`.

    Raises
    ------
    InputError
        If shapes do not fit, or both `g` and `g_gamma` are given.

    Examples
    --------
    >>> rows = torch.ones(1, 3, 1, 1)
    >>> chunk_simple_gla(rows, rows, rows, g_gamma=torch.tensor([0.5]).log())[0].flatten()
    tensor([1.0000, 1.5000, 1.7500])

    Source: Yang et al. (2024), "Gated Linear Attention Transformers with Hardware-Efficient Training";
    flash-linear-attention.
    """
    name = "chunk_simple_gla"
    axes, lod = _GLA + (_TURNED if state_v_first else _STATE), lod_of_batch(name, v, cu_seqlens)
    check_axes(name, axes, q, k, v, g, g_gamma, initial_state, sequences=len(lod.levels[0]) - 1)
    if g is not None and g_gamma is not None:
        raise ProgramError(name, expected="g or g_gamma", got="both")
    if g_gamma is not None:
        g = g_gamma.expand(*v.shape[:2], len(g_gamma))
    o, last = attended(name, lod, (q, k, v, g, None, _turned(initial_state, state_v_first)), scale=scale)
    return o, _turned(last, state_v_first) if output_final_state else None


def lod_of_batch(name: str, rows: Tensor, cu_seqlens: Any = None, seq_idx: Tensor | None = None) -> LoD:
    """Return the LoD of sequences in a batch `(batch, steps, ...)` whose rows follow one another."""
    if not isinstance(rows, Tensor) or rows.dim() < 2:
        got = f"shape {tuple(rows.shape)}" if isinstance(rows, Tensor) else type(rows).__name__
        raise ShapeError(name, expected="tensors of shape (batch, steps, ...)", got=got)
    batch, steps = rows.shape[:2]
    found = None if seq_idx is None else _offsets_of_runs(name, seq_idx, batch, steps)
    if cu_seqlens is None:
        return lod_of_offsets(found.tobytes()) if found is not None else lod_of_equal(batch, steps)
    if batch != 1:
        raise ShapeError(f"{name}, cu_seqlens", expected="a batch of one", got=f"shape {tuple(rows.shape)}")
    offsets = numbers(cu_seqlens, f"{name}, cu_seqlens")
    if offsets.ndim != 1:
        raise ShapeError(f"{name}, cu_seqlens", expected="shape (sequences + 1,)", got=f"shape {offsets.shape}")
    lod = lod_of_offsets(offsets.tobytes())
    if lod.num_rows != steps:
        raise ShapeError(f"{name}, cu_seqlens", expected=f"{steps} as its last number", got=lod.num_rows)
    if found is not None and not np.array_equal(np.unique(lod.levels[0]), np.unique(found)):
        got = [shown(offsets.tolist()) for offsets in (lod.levels[0], found)]
        raise ShapeError(f"{name}, cu_seqlens", expected="the same sequences as in seq_idx", got=got)
    return lod


def _offsets_of_runs(name: str, seq_idx: Tensor, batch: int, steps: int) -> np.ndarray:
    """Return the offsets of runs of equal numbers, in a batch whose rows follow one another."""
    found = numbers(seq_idx, f"{name}, seq_idx")
    if found.shape != (batch, steps) or (found < 0).any():
        expected = f"numbers of at least 0, of shape {(batch, steps)}"
        raise ShapeError(f"{name}, seq_idx", expected=expected, got=shown(found))
    if not steps:
        return np.zeros(batch + 1, np.int64)
    begins = np.ones(found.shape, bool)
    begins[:, 1:] = found[:, 1:] != found[:, :-1]
    return np.append(np.flatnonzero(begins), batch * steps)


def refuse(name: str, **options: object) -> None:
    """Raise if an option that is not supported has a value."""
    for option, value in options.items():
        if value is not None:
            raise ProgramError(
                f"{name}, {option}", expected="None, because it is not supported", got=type(value).__name__
            )


def _gate(name: str, g: Tensor | None, A_log: Tensor | None, dt_bias: Tensor | None) -> Tensor:
    if g is None or A_log is None:
        raise ProgramError(f"{name}, use_gate_in_kernel", expected="g and A_log", got="None")
    dtype = common_type(g, A_log, dt_bias)
    g = g.to(dtype) if dt_bias is None else g.to(dtype) + dt_bias
    return -A_log.to(dtype).exp() * torch.nn.functional.softplus(g)


def _turned(state: Tensor | None, v_first: bool) -> Tensor | None:
    """Return a state with its last two axes exchanged if `v_first`."""
    return state.transpose(2, 3) if v_first and state is not None else state


@eager
def attended(
    name: str, lod: LoD, given: Sequence[Any], delta: bool = False, units: bool = False, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Return outputs, with the first axes and the type of values, and last states; `name` begins an error.

    `given` has queries, keys, values, logarithms of decays, rates and first states; each of the last three may be None.
    """
    (_, _, values, decays, _, _), sequences = given, len(lod.levels[0]) - 1
    axes = _OF_STATES if decays is None or decays.dim() < 4 else _OF_ROWS_OF_STATES
    sizes = check_axes(name, axes, *given, sequences=sequences)
    factor = sizes["depth"] ** -0.5 if scale is None else check_number(scale, f"{name}, scale", "finite", math.isfinite)
    dtype = common_type(*given)
    operands = [None if x is None else x.to(dtype) for x in given]
    is_step = sizes["steps"] == 1 and sequences == sizes["batch"] > 0
    if is_step and not needs_gradient(*operands):
        refuse_transforms(name)
        y, last = _stepped(sizes, operands, delta, units, factor)
    else:
        rows = [None if x is None else x.reshape(math.prod(x.shape[:2]), *x.shape[2:]) for x in operands[:5]]
        y, last = _linear(lod, *rows, operands[5], delta, units, factor)
    return y.reshape(values.shape[:2] + y.shape[-2:]).to(values.dtype), last


def _stepped(
    sizes: dict[str, int], operands: Sequence[Tensor | None], delta: bool, units: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Return outputs and last states of a step, in a fifth of the time of `_linear` for one sequence."""
    batch, heads, depth, width = (sizes[axis] for axis in ("batch", "heads", "depth", "width"))
    of_keys, count, state = (batch * sizes["key_heads"], depth), batch * heads, depth * width
    arrays: list[Any] = [None if x is None else array_of(x) for x in operands]
    q, k, v, g, beta, first = arrays
    rates = 1 if g is None or g.ndim < 4 else depth
    found = run_single_rows(
        q.reshape(of_keys), k.reshape(of_keys), v.reshape(count, width),
        np.zeros((count, 1), v.dtype) if g is None else g.reshape(count, rates),
        np.ones((count, 1), v.dtype) if beta is None else beta.reshape(count, 1),
        np.zeros((count, state), v.dtype) if first is None else first.reshape(count, state),
        delta, _EPSILON if units else None, scale,
    )  # fmt: skip
    y, last = map(torch.from_numpy, found)
    return y.view(batch, heads, width), last.view(batch, heads, depth, width)


@function
def _linear(
    lod: LoD, query: Any, key: Any, value: Any, decay: Any, beta: Any, state: Any,
    delta: bool, units: bool, scale: float,
) -> Any:  # fmt: skip
    if units:  # x / sqrt(sum of x^2 + eps), with the factor of queries in `scale`
        eps, factor = _EPSILON / query.shape[-1], query.shape[-1] ** -0.5
        query, key, scale = rms_norm(query, eps=eps), rms_norm(key, eps=eps) * factor, scale * factor
    (query,) = with_lod(lod, query)
    y, last = linear_attention(query, key, value, decay, beta, state, delta=delta, scale=scale)
    return as_batch(y), last
