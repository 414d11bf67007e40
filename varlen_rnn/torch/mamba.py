"""Functions of mamba_ssm and causal-conv1d, with their arguments, on our kernels.

A batch is sequences of equal length, or `seq_idx` divides its rows, as in `varlen_rnn.torch.linear_attention`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu, softplus

from varlen_rnn.errors import ProgramError, ShapeError, check_int, check_number, shown
from varlen_rnn.ops.sequence.causal_conv import causal_conv, check_activation
from varlen_rnn.rows.lod import LoD
from varlen_rnn.torch.axes import Axes, check_axes, common_type
from varlen_rnn.torch.eager import eager
from varlen_rnn.torch.function import as_batch, function, with_lod
from varlen_rnn.torch.linear_attention import attended, lod_of_batch, refuse

_SCAN: Axes = (
    ("x", "batch steps heads size"),
    ("dt", "batch steps heads"),
    ("A", "heads"),
    ("B", "batch steps groups depth"),
    ("C", "batch steps groups depth"),
    ("z?", "batch steps heads size"),
    ("dt_bias?", "heads"),
    ("initial_states?", "sequences heads size depth"),
)
_LAYER: Axes = (
    ("zxbcdt", "batch steps columns"),
    ("conv1d_weight", "channels taps"),
    ("conv1d_bias?", "channels"),
    ("dt_bias", "heads"),
    ("A", "heads"),
    ("rmsnorm_weight?", "dim"),
    ("outproj_weight?", "outputs dim"),
    ("outproj_bias?", "outputs"),
)
_CONV: Axes = (
    ("x", "batch channels steps"),
    ("weight", "channels taps"),
    ("bias?", "channels"),
    ("initial_states?", "sequences channels window"),
    ("final_states_out?", "sequences channels window"),
)
_UPDATE: Axes = (
    ("x", "batch channels steps"),
    ("conv_state", "batch channels rows"),
    ("weight", "channels taps"),
    ("bias?", "channels"),
)
_UPDATE_OF_ROW: Axes = (("x", "batch channels"), *_UPDATE[1:])
_STEP: Axes = (
    ("state", "batch heads size depth"),
    ("x", "batch heads size"),
    ("dt", "batch heads size"),
    ("A", "heads size depth"),
    ("B", "batch groups depth"),
    ("C", "batch groups depth"),
    ("D?", "heads size"),
    ("z?", "batch heads size"),
    ("dt_bias?", "heads size"),
)
# The same of Mamba, whose states have no heads
_STEP_WITHOUT_HEADS: Axes = tuple(
    (name, " ".join(axis for axis in axes.split() if axis not in ("heads", "groups"))) for name, axes in _STEP
)


@eager
def mamba_chunk_scan_combined(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    return_final_states: bool = False,
    return_varlen_states: bool = False,
) -> Any:
    """Run the scan of Mamba-2 over sequences, with the arguments of mamba_ssm's function of this name.

    Parameters
    ----------
    x : Tensor, shape `(batch, steps, heads, head size)`
    dt : Tensor, shape `(batch, steps, heads)`
    A : Tensor, shape `(heads,)`
        Negative; a state decays by `exp(dt A)`.
    B, C : Tensor, shape `(batch, steps, groups, state size)`
        `heads` is a multiple of `groups`.
    chunk_size : int
        Not read: a chunk has 32 rows.
    D : Tensor, shape `(heads,)` or `(heads, head size)`, optional
        Outputs get `D x` more.
    z : Tensor, shape as `x`, optional
        Outputs are multiplied by `silu(z)`.
    dt_bias : Tensor, shape `(heads,)`, optional
        It is added to `dt`.
    initial_states : Tensor, shape `(sequences, heads, head size, state size)`, optional
        The states before the first rows, one for each sequence also with `seq_idx`; zeros if they are missing.
    seq_idx : Tensor, shape `(batch, steps)`, optional
        Neighbouring rows with the same number belong to one sequence.
    cu_seqlens : Tensor, shape `(sequences + 1,)`, optional
        The offsets of sequences in a batch of one; they must agree with `seq_idx`, if both are given.
    dt_softplus : bool
        Whether `dt` becomes `softplus(dt + dt_bias)`.
    dt_limit : pair of float
        The range to which `dt` is cut after that.
    return_final_states : bool
        Whether to return the states after the last row of each batch entry.
    return_varlen_states : bool
        Whether to return the states after the last rows of all sequences of `cu_seqlens`.

    Returns
    -------
    out : Tensor, shape as `x`
        With states, a tuple: outputs, final states if they are wanted, and states of all sequences if they are.

    Raises
    ------
    InputError
        If shapes do not fit.

    Examples
    --------
    >>> x, dt, B = torch.ones(1, 5, 2, 4), torch.ones(1, 5, 2), torch.ones(1, 5, 1, 8)
    >>> A, seq_idx = -torch.ones(2), torch.tensor([[0, 0, 1, 1, 1]], dtype=torch.int32)
    >>> mamba_chunk_scan_combined(x, dt, A, B, B, chunk_size=64, seq_idx=seq_idx).shape
    torch.Size([1, 5, 2, 4])

    Source: Dao and Gu (2024), "Transformers are SSMs"; mamba_ssm.
    """
    name = "mamba_chunk_scan_combined"
    lod = lod_of_batch(name, x, cu_seqlens, seq_idx)
    given = x, dt, A, B, C, z, dt_bias, initial_states, D
    check_axes(name, _SCAN + _axes_of_d(D), *given, sequences=len(lod.levels[0]) - 1)
    dt = steps_of(dt, dt_bias, dt_softplus, _checked_limit(name, dt_limit))
    y, last = scanned(lod, x, dt, A, B, C, D, initial_states, z)
    found = [y]
    if return_final_states:
        found.append(last[_last_of_entries(x, lod)])
    if return_varlen_states:
        if cu_seqlens is None:
            raise ProgramError(f"{name}, return_varlen_states", expected="cu_seqlens", got="None")
        found.append(last)
    return tuple(found) if len(found) > 1 else found[0]


@eager
def mamba_split_conv1d_scan_combined(
    zxbcdt: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Tensor | None,
    dt_bias: Tensor,
    A: Tensor,
    D: Tensor,
    chunk_size: int,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    return_final_states: bool = False,
    activation: str | None = "silu",
    rmsnorm_weight: Tensor | None = None,
    rmsnorm_eps: float = 1e-6,
    outproj_weight: Tensor | None = None,
    outproj_bias: Tensor | None = None,
    headdim: int | None = None,
    ngroups: int = 1,
    norm_before_gate: bool = True,
) -> Any:
    """Run a Mamba-2 layer behind its first projection, with the arguments of mamba_ssm's function of this name.

    Parameters
    ----------
    zxbcdt : Tensor, shape `(batch, steps, 2 * dim + 2 * ngroups * state size + heads)`
        Gates, values, B, C and dt, side by side; `dim` is heads times head size.
    conv1d_weight : Tensor, shape `(dim + 2 * ngroups * state size, width)`
    conv1d_bias : Tensor, shape `(dim + 2 * ngroups * state size,)`, or None
    dt_bias, A : Tensor, shape `(heads,)`
    D : Tensor, shape `(heads,)` or `(heads, head size)`
    chunk_size, initial_states, seq_idx, dt_limit, return_final_states
        As in `mamba_chunk_scan_combined`.
    activation : {"silu", "swish"}, optional
        The function behind the convolution.
    rmsnorm_weight : Tensor, shape `(dim,)`, optional
        If it is given, outputs are normed, over each of `ngroups` groups.
    rmsnorm_eps : float
    outproj_weight : Tensor, shape `(outputs, dim)`, optional
    outproj_bias : Tensor, shape `(outputs,)`, optional
    headdim : int, optional
        The head size, if `D` has one axis.
    ngroups : int
    norm_before_gate : bool
        Whether outputs are normed before they are multiplied by `silu` of the gates, or after that.

    Returns
    -------
    out : Tensor, shape `(batch, steps, dim)`, or `(batch, steps, outputs)` with a projection
        With `return_final_states`, a pair of it and the states.

    Raises
    ------
    InputError
        If shapes do not fit; columns of a gated MLP in `zxbcdt` are not supported.

    Examples
    --------
    >>> one, zxbcdt = torch.ones(2), torch.ones(1, 5, 2 * 8 + 2 * 3 + 2)
    >>> mamba_split_conv1d_scan_combined(
    ...     zxbcdt, torch.ones(14, 4), None, one, -one, one, chunk_size=64, headdim=4
    ... ).shape
    torch.Size([1, 5, 8])

    Source: Dao and Gu (2024), "Transformers are SSMs"; mamba_ssm.
    """
    name = "mamba_split_conv1d_scan_combined"
    given = zxbcdt, conv1d_weight, conv1d_bias, dt_bias, A, rmsnorm_weight, outproj_weight, outproj_bias, D
    sizes = check_axes(name, _LAYER + _axes_of_d(D, ""), *given)
    size = sizes.get("size", headdim)
    if size is None:
        raise ProgramError(f"{name}, headdim", expected="the size of a head, because D has one axis", got="None")
    heads, channels, ngroups = sizes["heads"], sizes["channels"], check_int(ngroups, f"{name}, ngroups", 1)
    dim = heads * check_int(size, f"{name}, headdim", 1)
    if sizes.get("dim", dim) != dim:
        raise ShapeError(f"{name}, rmsnorm_weight or outproj_weight", expected=f"{dim} columns", got=sizes["dim"])
    if channels <= dim or (channels - dim) % (2 * ngroups) or heads % ngroups or dim % ngroups:
        expected = f"{dim} channels of values, and as many of B and C for each of {ngroups} groups of heads"
        raise ShapeError(f"{name}, conv1d_weight", expected=expected, got=f"{channels} channels and {heads} heads")
    if sizes["columns"] != dim + channels + heads:
        hint = "columns of a gated MLP are not supported"
        expected = f"{dim} gates, {channels} channels and {heads} steps: {dim + channels + heads} columns"
        raise ShapeError(f"{name}, zxbcdt", expected=expected, got=f"shape {tuple(zxbcdt.shape)}", hint=hint)
    z, channels_in, dt = zxbcdt.split([dim, channels, heads], dim=2)
    lod = lod_of_batch(name, zxbcdt, seq_idx=seq_idx)
    rows, _ = convolved(lod, channels_in, conv1d_weight, conv1d_bias, None, activation)
    x, B, C = rows.split([dim, (channels - dim) // 2, (channels - dim) // 2], dim=2)
    x, B, C = x.unflatten(2, (heads, size)), B.unflatten(2, (ngroups, -1)), C.unflatten(2, (ngroups, -1))
    gates = z.unflatten(2, (heads, size)) if rmsnorm_weight is None else None
    y, last = mamba_chunk_scan_combined(
        x, dt, A, B, C, chunk_size, D, gates, dt_bias, initial_states, seq_idx, None, True, dt_limit, True
    )
    y = y.flatten(2)
    if rmsnorm_weight is not None:
        y = _normed(y, z, rmsnorm_weight, rmsnorm_eps, ngroups, norm_before_gate)
    if outproj_weight is not None:
        y = linear(y, outproj_weight, outproj_bias)
    return (y, last) if return_final_states else y


@eager
def causal_conv1d_fn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    seq_idx: Tensor | None = None,
    initial_states: Tensor | None = None,
    return_final_states: bool = False,
    final_states_out: Tensor | None = None,
    activation: str | None = None,
) -> Any:
    """Convolve each channel with the rows before it, with the arguments of causal-conv1d's function of this name.

    Parameters
    ----------
    x : Tensor, shape `(batch, channels, steps)`
        No copy is made if `x.transpose(1, 2)` is contiguous, as it is in a model.
    weight : Tensor, shape `(channels, width)`
    bias : Tensor, shape `(channels,)`, optional
    seq_idx : Tensor, shape `(batch, steps)`, optional
        Neighbouring rows with the same number belong to one sequence.
    initial_states : Tensor, shape `(sequences, channels, width - 1)`, optional
        The rows before each sequence, zeros by default.
    return_final_states : bool
        Whether to return the last `width - 1` rows of each sequence, too.
    final_states_out : Tensor, shape as `initial_states`, optional
        The final states are written into it.
    activation : {"silu", "swish"}, optional

    Returns
    -------
    out : Tensor, shape as `x`
        With `return_final_states`, a pair of it and the final states, of shape as `initial_states`.

    Raises
    ------
    InputError
        If shapes do not fit.

    Examples
    --------
    >>> x = torch.tensor([[[1.0, 2.0, 3.0]]])
    >>> causal_conv1d_fn(x, torch.tensor([[1.0, 10.0]]), seq_idx=torch.tensor([[0, 0, 1]]))
    tensor([[[10., 21., 30.]]])

    Source: Gu and Dao (2023), "Mamba"; causal-conv1d.
    """
    name = "causal_conv1d_fn"
    check_axes(name, _CONV[:1], x)
    rows = x.transpose(1, 2)
    lod = lod_of_batch(name, rows, seq_idx=seq_idx)
    before = weight.shape[1] - 1 if isinstance(weight, Tensor) and weight.dim() == 2 else 0
    given, sequences = (x, weight, bias, initial_states, final_states_out), len(lod.levels[0]) - 1
    check_axes(name, _CONV, *given, sequences=sequences, window=before)
    out, last = convolved(lod, rows, weight, bias, initial_states, activation)
    out = out.transpose(1, 2)
    if not return_final_states:
        return out
    if final_states_out is not None:
        last = final_states_out.copy_(last)
    return out, last


@eager
def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    cache_seqlens: None = None,
    conv_state_indices: None = None,
) -> Tensor:
    """Convolve the next rows of each sequence, and write its last rows into its state, in place.

    Parameters
    ----------
    x : Tensor, shape `(batch, channels)` or `(batch, channels, steps)`
    conv_state : Tensor, shape `(batch, channels, rows)`
        The last rows of each sequence, at least `width - 1`.  It gets the last rows of state and `x` together.
    weight, bias, activation
        As in `causal_conv1d_fn`.
    cache_seqlens, conv_state_indices : None
        Circular states, and states that are chosen by numbers, are not supported.

    Returns
    -------
    out : Tensor, shape as `x`

    Raises
    ------
    InputError
        If shapes do not fit, or an option is not supported.

    Examples
    --------
    >>> state = torch.tensor([[[7.0, 1.0]]])
    >>> causal_conv1d_update(torch.tensor([[2.0]]), state, torch.tensor([[1.0, 10.0]])), state
    (tensor([[21.]]), tensor([[[1., 2.]]]))

    Source: Gu and Dao (2023), "Mamba"; causal-conv1d.
    """
    name = "causal_conv1d_update"
    refuse(name, cache_seqlens=cache_seqlens, conv_state_indices=conv_state_indices)
    is_row = isinstance(x, Tensor) and x.dim() == 2
    sizes = check_axes(name, _UPDATE_OF_ROW if is_row else _UPDATE, x, conv_state, weight, bias)
    steps, kept, before = x[:, :, None] if is_row else x, sizes["rows"], sizes["taps"] - 1
    if kept < before:
        expected = f"shape (batch, channels, rows), with at least {before} rows"
        raise ShapeError(f"{name}, conv_state", expected=expected, got=f"shape {tuple(conv_state.shape)}")
    check_activation(activation, name)
    if not steps.shape[2]:
        return torch.zeros_like(x)
    # Operators of PyTorch, because the call of a kernel takes five times as long for a row of 512 channels.
    joined = torch.cat([conv_state.detach().to(steps.dtype), steps], dim=2)
    windows = joined[:, :, kept - before :].to(common_type(joined, weight, bias)).unfold(2, before + 1, 1)
    out = (windows * weight[:, None]).sum(3)
    out = out if bias is None else out + bias[:, None]
    conv_state.detach().copy_(joined[:, :, steps.shape[2] :].detach())
    return (out if activation is None else silu(out)).to(x.dtype).reshape(x.shape)


@eager
def selective_state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    state_batch_indices: None = None,
) -> Tensor:
    """Run one step of Mamba or Mamba-2, and write the new states into `state`, in place.

    Parameters
    ----------
    state : Tensor, shape `(batch, heads, head size, state size)`, or without the axis of heads
    x, dt, z : Tensor, shape `(batch, heads, head size)`
        `z` is optional.
    A : Tensor, shape `(heads, head size, state size)`
    B, C : Tensor, shape `(batch, groups, state size)`
    D, dt_bias : Tensor, shape `(heads, head size)`, optional
    dt_softplus : bool
        Whether `dt` becomes `softplus(dt + dt_bias)`.
    state_batch_indices : None
        States that are chosen by numbers are not supported.

    Returns
    -------
    out : Tensor, shape as `x`

    Raises
    ------
    InputError
        If shapes do not fit, or an option is not supported.

    Notes
    -----
    Without the axis of heads in `state`, no argument has it, nor an axis of groups.

    Examples
    --------
    >>> state, one = torch.zeros(1, 2, 3), torch.ones(1, 2)
    >>> out = selective_state_update(state, one, one, -torch.ones(2, 3), torch.ones(1, 3), torch.ones(1, 3))
    >>> out, state[0, 0]
    (tensor([[3., 3.]]), tensor([1., 1., 1.]))

    Source: Gu and Dao (2023), "Mamba"; mamba_ssm.
    """
    name = "selective_state_update"
    refuse(name, state_batch_indices=state_batch_indices)
    has_heads = isinstance(state, Tensor) and state.dim() != 3
    check_axes(name, _STEP if has_heads else _STEP_WITHOUT_HEADS, state, x, dt, A, B, C, D, z, dt_bias)
    if not has_heads:
        of_rows: list[Any] = [None if given is None else given[:, None] for given in (x, dt, B, C, z)]
        of_heads: list[Any] = [None if given is None else given[None] for given in (A, D, dt_bias)]
        x, dt, B, C, z = of_rows
        A, D, dt_bias = of_heads
    has_one_rate = A.stride()[1:] == (0, 0) and dt.stride(2) == 0 and (dt_bias is None or dt_bias.stride(1) == 0)
    dt = steps_of(dt, dt_bias, dt_softplus)
    # Mamba-2 expands one rate a head, and an exponential for each number of a state would take most of the time.
    decay = (dt[..., :1, None] * A[:, :1, :1] if has_one_rate else dt[..., None] * A).exp()
    B, C = (part.repeat_interleave(len(A) // part.shape[1], dim=1) for part in (B, C))
    before = state.detach().reshape(*x.shape, -1)
    if decay.requires_grad and torch.is_grad_enabled():
        before = before.clone()  # its gradient needs the states that change below
    rows = x.to(common_type(x, dt))
    new = (before * decay).addcmul_((dt * rows)[..., None], B[:, :, None].to(dt.dtype))
    y = (new @ C[..., None].to(new.dtype))[..., 0]
    state.detach().copy_(new.detach().reshape(state.shape))
    y = y if D is None else y + rows * D
    y = y if z is None else y * silu(z.to(rows.dtype))
    return y.to(x.dtype).reshape(state.shape[:-1])


def _axes_of_d(D: Tensor | None, optional: str = "?") -> Axes:
    return ((f"D{optional}", "heads size" if isinstance(D, Tensor) and D.dim() > 1 else "heads"),)


def _checked_limit(name: str, limit: Any) -> tuple[float, float]:
    """Return the range of `dt`; raise unless it is a pair of numbers."""
    if not isinstance(limit, tuple | list) or len(limit) != 2:
        raise ShapeError(f"{name}, dt_limit", expected="a pair of numbers", got=shown(limit))
    low, high = (check_number(one, f"{name}, dt_limit", "no NaN", lambda number: number == number) for one in limit)
    return low, high


def _last_of_entries(x: Tensor, lod: LoD) -> np.ndarray:
    """Return the number of the last sequence with rows in each entry of a batch."""
    batch, steps = x.shape[:2]
    if not steps:
        return np.arange(min(batch, len(lod.levels[0]) - 1))
    return lod.levels[0].searchsorted(np.arange(1, batch + 1) * steps) - 1


def scanned(
    lod: LoD, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, states: Tensor | None,
    z: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return outputs, of the type of `x`, and the last states of all sequences, with their last axes exchanged."""
    rows, first = x.to(common_type(x, dt, A, B, C, D)), None if states is None else states.transpose(2, 3)
    y, last = attended("mamba_chunk_scan", lod, (C, B, rows, dt * A, dt, first), scale=1.0)
    y = y if D is None else y + rows * (D if D.dim() == 2 else D[:, None])
    y = y if z is None else y * silu(z.to(y.dtype))
    return y.to(x.dtype), last.transpose(2, 3)


def steps_of(dt: Tensor, bias: Tensor | None, is_positive: bool, limit: tuple[float, float] | None = None) -> Tensor:
    """Return the sizes of steps: with a bias, after softplus if `is_positive`, and cut to a range."""
    dt = dt.to(common_type(dt, bias))
    dt = dt if bias is None else dt + bias
    dt = softplus(dt) if is_positive else dt
    return dt if limit is None or (is_positive and limit == (0.0, math.inf)) else dt.clamp(*limit)


def _normed(y: Tensor, z: Tensor, weight: Tensor, eps: float, groups: int, before_gate: bool) -> Tensor:
    """Return rows normed over each of `groups` groups, and multiplied by silu(z) after that or before."""
    dtype = common_type(y, weight)
    gates, y = silu(z.to(dtype)), y.to(dtype)
    y = y if before_gate else y * gates
    y = rms_norm(y.unflatten(2, (groups, -1)), (y.shape[2] // groups,), eps=eps).flatten(2) * weight
    return (y * gates if before_gate else y).to(z.dtype)


def convolved(
    lod: LoD, rows: Tensor, weight: Tensor, bias: Tensor | None, first: Tensor | None, activation: str | None
) -> tuple[Tensor, Tensor]:
    """Return convolved rows `(batch, steps, channels)`, of the same type, and the last windows, with channels first."""
    dtype = common_type(rows, weight, first)
    flat = rows.to(dtype).reshape(math.prod(rows.shape[:2]), rows.shape[2])
    state = None if first is None else first.to(dtype).transpose(1, 2)
    out, last = _conv(lod, flat, weight.to(dtype), None if bias is None else bias.to(dtype), state, activation)
    return out.reshape(rows.shape).to(rows.dtype), last.transpose(1, 2).to(rows.dtype)


@function
def _conv(lod: LoD, rows: Any, weight: Any, bias: Any, state: Any, activation: str | None) -> Any:
    (rows,) = with_lod(lod, rows)
    out, last = causal_conv(rows, weight, bias, state, activation)
    return as_batch(out), last
