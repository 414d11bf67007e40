"""Attention layers on rows without padding: multi-head attention, with PyTorch's names and shapes, and additive."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypeAlias, overload

import numpy as np
from numpy.typing import DTypeLike

from varlen_rnn.errors import NO_BATCH_AXIS, NO_DEVICE, ShapeError, check_flag, check_int, hinting, shown
from varlen_rnn.nn.functional import additive_attention, limits, scaled_dot_product_attention
from varlen_rnn.nn.layers import Linear, drawn, uniform
from varlen_rnn.nn.module import Module, Parameter, check_dtype
from varlen_rnn.random import generator
from varlen_rnn.tape.variable import Variable, apply, required
from varlen_rnn.typing import Rows

Window: TypeAlias = "tuple[int | None, int | None]"
_NO_MASK = "leave it out: rows have no padding"


class MultiheadAttention(Module):
    """Project queries, keys and values, attend with several heads, and project the result.

    Unlike PyTorch's layer, it returns attention weights only if `need_weights` is True, because their matrix is
    otherwise never in memory.

    Parameters
    ----------
    embed_dim : int
        Columns of queries and outputs; a multiple of `num_heads`.
    num_heads : int
    bias : bool
    kdim, vdim : int, optional
        Columns of keys and of values; `embed_dim` by default.
    dtype : data type
        float32 or float64.

    Attributes
    ----------
    in_proj_weight : (3 * embed_dim, embed_dim), or None
        The projections of queries, keys and values, stacked, if all three have `embed_dim` columns; otherwise None.
    q_proj_weight, k_proj_weight, v_proj_weight : (embed_dim, columns), or None
        The three projections, if keys or values have another number of columns.
    in_proj_bias : (3 * embed_dim,), or None
    out_proj : Linear

    Examples
    --------
    >>> x = vr.create_lod_tensor(np.ones((5, 8), np.float32), [[2, 0, 3]])
    >>> y = MultiheadAttention(8, 2)(x, x, x)
    >>> y.shape, y.lod()
    ((5, 8), [[0, 2, 2, 5]])

    Source: Vaswani et al. (2017), "Attention is all you need"; names and shapes of `torch.nn.MultiheadAttention`.
    """

    @hinting(batch_first=NO_BATCH_AXIS, device=NO_DEVICE, dropout="leave it out: weights are never in memory")
    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        dtype: DTypeLike = np.float32,
    ) -> None:
        self.embed_dim, self.num_heads = check_int(embed_dim, "embed_dim", 1), check_int(num_heads, "num_heads", 1)
        if self.embed_dim % self.num_heads:
            raise ShapeError("embed_dim", expected=f"a multiple of num_heads={shown(num_heads)}", got=shown(embed_dim))
        self.kdim = self.embed_dim if kdim is None else check_int(kdim, "kdim", 1)
        self.vdim = self.embed_dim if vdim is None else check_int(vdim, "vdim", 1)
        dtype, size = check_dtype(dtype), self.embed_dim
        self.in_proj_weight = self.q_proj_weight = self.k_proj_weight = self.v_proj_weight = None
        if self.kdim == self.vdim == size:
            self.in_proj_weight = _xavier((3 * size, size), dtype)
        else:
            self.q_proj_weight = _xavier((size, size), dtype)
            self.k_proj_weight = _xavier((size, self.kdim), dtype)
            self.v_proj_weight = _xavier((size, self.vdim), dtype)
        has_bias = check_flag(bias, "bias")
        self.in_proj_bias = Parameter(np.zeros(3 * size, dtype)) if has_bias else None
        self.out_proj = Linear(size, size, has_bias, dtype=dtype)
        if self.out_proj.bias is not None:
            self.out_proj.bias.assign(0.0)

    @overload
    def forward(
        self,
        query: Rows,
        key: Rows,
        value: Rows,
        *,
        is_causal: bool = False,
        window: Window = (None, None),
        need_weights: Literal[False] = False,
    ) -> Variable: ...
    @overload
    def forward(
        self,
        query: Rows,
        key: Rows,
        value: Rows,
        *,
        is_causal: bool = False,
        window: Window = (None, None),
        need_weights: Literal[True],
    ) -> tuple[Variable, Variable]: ...
    @hinting(key_padding_mask=_NO_MASK, attn_mask="is_causal and window say which keys a query sees")
    def forward(
        self,
        query: Rows,
        key: Rows,
        value: Rows,
        *,
        is_causal: bool = False,
        window: Window = (None, None),
        need_weights: bool = False,
    ) -> Variable | tuple[Variable, Variable]:
        """Return the attended values for each row of `query`, with its LoD.

        Parameters
        ----------
        query : Variable, shape `(queries, embed_dim)`
        key : Variable, shape `(keys, kdim)`
            As many sequences as `query`, of any lengths.
        value : Variable, shape `(keys, vdim)`
        is_causal, window
            As in `functional.scaled_dot_product_attention`.
        need_weights : bool
            Whether to return a pair: the output, and the weights, one for each query and each key of its sequence, as
            means over the heads.  The LoD of the weights is the LoD of `query` with one more level, in which each query
            has as many rows as keys, so memory grows with the squares of lengths.  A hidden key has the weight 0.

        Returns
        -------
        Variable, shape `(queries, embed_dim)`, or a pair of it and the weights, shape `(queries times keys,)`

        Examples
        --------
        >>> x = vr.create_lod_tensor(np.ones((3, 8), np.float32), [[1, 2]])
        >>> y, weights = MultiheadAttention(8, 2)(x, x, x, need_weights=True)
        >>> weights.value.to_sequences()
        [[array([1.], dtype=float32)], [array([0.5, 0.5], dtype=float32), array([0.5, 0.5], dtype=float32)]]
        """
        sizes = {"query": self.embed_dim, "key": self.kdim, "value": self.vdim}
        given = zip(sizes.items(), (query, key, value), strict=True)
        rows = [_rows_of(f"MultiheadAttention, {name}", x, size) for (name, size), x in given]
        q, k, v = (part.reshape(-1, self.num_heads, self.embed_dim // self.num_heads) for part in self._projected(rows))
        found = scaled_dot_product_attention(q, k, v, is_causal=is_causal, window=window)
        output = self.out_proj(found.reshape(-1, self.embed_dim))
        if not check_flag(need_weights, "MultiheadAttention, need_weights"):
            return output
        left, right = limits("MultiheadAttention", is_causal, window)
        return output, apply("attention_weights", q, k, left=left, right=right).mean(axis=1)

    if TYPE_CHECKING:
        __call__ = forward  # type checkers would see the first overload alone

    def _projected(self, rows: list[Variable]) -> list[Variable]:
        """Return a list of the projected queries, keys and values; self-attention computes all three by one product."""
        query, key, value = rows
        parts = [slice(first * self.embed_dim, (first + 1) * self.embed_dim) for first in range(3)]
        if self.in_proj_weight is not None and query is key is value:
            whole = apply("matmul", query, self.in_proj_weight, self.in_proj_bias, transposed=True)
            return [whole[:, part] for part in parts]
        weights = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        if self.in_proj_weight is not None:
            weights = [self.in_proj_weight[part] for part in parts]
        biases = [None if self.in_proj_bias is None else self.in_proj_bias[part] for part in parts]
        return [apply("matmul", *given, transposed=True) for given in zip(rows, weights, biases, strict=True)]

    def extra_repr(self) -> str:
        """Return the sizes as text for `repr`."""
        text = f"{self.embed_dim}, {self.num_heads}"
        text += f", kdim={self.kdim}" if self.kdim != self.embed_dim else ""
        return text + (f", vdim={self.vdim}" if self.vdim != self.embed_dim else "")


def _rows_of(what: str, x: Rows | None, columns: int) -> Variable:
    x = required(x, what)
    if x.shape[-1:] not in ((columns,), (-1,)):
        raise ShapeError(what, expected=f"shape (rows, {columns})", got=f"shape {x.shape}")
    return x


def _xavier(shape: tuple[int, int], dtype: np.dtype) -> Parameter:
    """Return a weight drawn uniformly between -b and b = sqrt(6 / (rows + columns)) (Glorot and Bengio, 2010)."""
    bound = math.sqrt(6 / sum(shape))
    return Parameter(drawn(shape, lambda shape: generator().uniform(-bound, bound, shape)).astype(dtype))


class AdditiveAttention(Module):
    """Project queries and keys to the same features, and attend by additive scores (Bahdanau attention).

    Parameters
    ----------
    query_size, key_size : int
        Columns of queries, and columns of keys.
    hidden_size : int
        Features to which both are projected.
    dtype : data type
        float32 or float64.

    Attributes
    ----------
    query_proj, key_proj : Linear
        `key_proj` has no bias, because it would only add to the bias of `query_proj`.
    weight : (hidden_size,)

    Examples
    --------
    >>> query = vr.create_lod_tensor(np.ones((3, 4), np.float32), [[1, 2]])
    >>> key = vr.create_lod_tensor(np.ones((5, 8), np.float32), [[2, 3]])
    >>> AdditiveAttention(4, 8, 16)(query, key).shape
    (3, 8)

    Source: Bahdanau, Cho and Bengio (2015), "Neural machine translation by jointly learning to align and translate".
    """

    def __init__(self, query_size: int, key_size: int, hidden_size: int, dtype: DTypeLike = np.float32) -> None:
        self.query_proj = Linear(query_size, hidden_size, dtype=dtype)
        self.key_proj = Linear(key_size, hidden_size, False, dtype=dtype)
        self.weight = uniform((check_int(hidden_size, "hidden_size", 1),), hidden_size, check_dtype(dtype))

    def forward(
        self,
        query: Rows,
        key: Rows,
        value: Rows | None = None,
        is_causal: bool = False,
        window: tuple[int | None, int | None] = (None, None),
    ) -> Variable:
        """Return the attended rows of `value` for each row of `query`, with the LoD of `query`.

        Parameters
        ----------
        query : Variable, shape `(queries, query_size)`
        key : Variable, shape `(keys, key_size)`
            As many sequences as `query`, of any lengths.
        value : Variable, shape `(keys, columns)`, optional
            The rows of `key` by default.
        is_causal, window
            As in `functional.scaled_dot_product_attention`.
        """
        query = _rows_of("AdditiveAttention, query", query, self.query_proj.in_features)
        key = _rows_of("AdditiveAttention, key", key, self.key_proj.in_features)
        rows = self.query_proj(query), self.key_proj(key), key if value is None else value
        return additive_attention(*rows, self.weight, is_causal=is_causal, window=window)
