"""Layers without recurrence: on single rows, on windows of rows, and on whole sequences."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike

from varlen_rnn.communicator import Communicator, check_communicator
from varlen_rnn.errors import (
    IN_PLACE,
    NO_DEVICE,
    NO_NORM,
    NOT_NEGATIVE,
    DTypeError,
    InputError,
    ProgramError,
    ShapeError,
    check_choice,
    check_flag,
    check_int,
    check_number,
    hinting,
    shown,
)
from varlen_rnn.nn import functional
from varlen_rnn.nn.module import NOT_IN_HALF, Buffer, Module, Parameter, check_dtype
from varlen_rnn.nn.sharded import Shard, ShardedParameter, check_alike, drawn_rows, whole_height
from varlen_rnn.random import generator
from varlen_rnn.tape.gradient import let_change
from varlen_rnn.tape.modes import recorder
from varlen_rnn.tape.variable import Variable, apply
from varlen_rnn.typing import Rows


def uniform(shape: tuple[int, ...], size: int, dtype: np.dtype) -> Parameter:
    """Return a Parameter drawn uniformly from -1 / sqrt(size) to 1 / sqrt(size)."""

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        bound = 1 / math.sqrt(size)
        return generator().uniform(-bound, bound, shape)

    return Parameter(drawn(shape, draw).astype(dtype))


def drawn(shape: tuple[int, ...], draw: Callable[[tuple[int, ...]], np.ndarray]) -> np.ndarray:
    """Return `draw(shape)`, or raise a ShapeError if no array can have that shape."""
    try:
        return draw(shape)
    except (ValueError, OverflowError) as error:
        raise ShapeError("shape of a parameter", expected="sizes that fit memory", got=shown(shape)) from error


class Linear(Module):
    """Map every row x to `x W^T + b`; the result has the LoD of the input.

    Parameters
    ----------
    in_features, out_features : int
    bias : bool
    dtype : data type
        float32 or float64.
    precision : {"fp32", "tf32", "bf16", "bf16-avx512"}, optional
        The precision of the product in float32, as in `vr.set_float32_matmul_precision`; by default the precision that
        is set when the layer is called.

    Attributes
    ----------
    weight : (out_features, in_features)
    bias : (out_features,), or None

    Examples
    --------
    >>> Linear(3, 2)(np.zeros((4, 3), np.float32)).shape
    (4, 2)

    Source: `torch.nn.Linear`, with its initialisation, which is uniform within 1 / sqrt(in_features).
    """

    @hinting(device=NO_DEVICE)
    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, dtype: DTypeLike = np.float32,
        precision: str | None = None,
    ) -> None:  # fmt: skip
        # `check_int` returns Python ints, because products of NumPy's small ints overflow.
        self.precision = precision
        self.in_features = in_features = check_int(in_features, "in_features", 1)
        self.out_features = out_features = check_int(out_features, "out_features", 1)
        dtype, bias = check_dtype(dtype), check_flag(bias, "bias")
        self.weight = uniform((out_features, in_features), in_features, dtype)
        self.bias = uniform((out_features,), in_features, dtype) if bias else None

    def forward(self, x: Rows) -> Variable:
        """Return rows of `out_features`."""
        return apply("matmul", x, self.weight, self.bias, transposed=True)

    def extra_repr(self) -> str:
        """Return the sizes as text for `repr`."""
        return f"{self.in_features}, {self.out_features}, bias={self.bias is not None}"


class LayerNorm(Module):
    """Normalise every row to mean 0 and variance 1, then apply a weight and a bias; see `functional.layer_norm`.

    Parameters
    ----------
    features : int
    eps : float
        A number that is added to the variance; at least 0.
    elementwise_affine : bool
        Whether there is a weight.
    bias : bool
        Whether there is a bias beside the weight.
    dtype : data type
        float32 or float64.

    Attributes
    ----------
    weight, bias : (features,), or None

    Examples
    --------
    >>> np.asarray(LayerNorm(2, eps=0.0)(np.array([[1.0, 3.0]], np.float32)))
    array([[-1.,  1.]], dtype=float32)

    Source: `torch.nn.LayerNorm`, with its initialisation: weights of 1, biases of 0.
    """

    @hinting(device=NO_DEVICE, normalized_shape="its name is features: an int, the size of the last axis")
    def __init__(
        self,
        features: int,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        dtype: DTypeLike = np.float32,
    ) -> None:
        self.features = features = check_int(features, "features", 1)
        self.eps = check_number(eps, "eps", *NOT_NEGATIVE)
        affine, dtype = check_flag(elementwise_affine, "elementwise_affine"), check_dtype(dtype)
        bias = check_flag(bias, "bias")
        self.weight = Parameter(drawn((features,), np.ones).astype(dtype)) if affine else None
        self.bias = Parameter(drawn((features,), np.zeros).astype(dtype)) if affine and bias else None

    def forward(self, x: Rows) -> Variable:
        """Return rows with the shape and LoD of `x`."""
        return apply("layer_norm", x, self.weight, self.bias, eps=self.eps)

    def extra_repr(self) -> str:
        """Return the sizes as text for `repr`."""
        affine = self.weight is not None
        return f"{self.features}, eps={self.eps}, elementwise_affine={affine}, bias={self.bias is not None}"


class RMSNorm(Module):
    """Divide every row by the root of the mean of its squares, then multiply by a weight; see `functional.rms_norm`.

    Parameters
    ----------
    features : int
    eps : float
        A number that is added to the mean of squares; at least 0.
    elementwise_affine : bool
        Whether there is a weight.
    dtype : data type
        float32 or float64.

    Attributes
    ----------
    weight : (features,), or None

    Examples
    --------
    >>> np.asarray(RMSNorm(2, eps=0.0)(np.array([[1.0, 7.0]], np.float32)))
    array([[0.2, 1.4]], dtype=float32)

    Source: `torch.nn.RMSNorm`, with weights of 1 at the start; Mamba and Gated DeltaNet have the gate.
    """

    @hinting(device=NO_DEVICE, normalized_shape="its name is features: an int, the size of the last axis")
    def __init__(
        self, features: int, eps: float = 1e-6, elementwise_affine: bool = True, *, dtype: DTypeLike = np.float32
    ) -> None:
        self.features = features = check_int(features, "features", 1)
        self.eps = check_number(eps, "eps", *NOT_NEGATIVE)
        affine, dtype = check_flag(elementwise_affine, "elementwise_affine"), check_dtype(dtype)
        self.weight = Parameter(drawn((features,), np.ones).astype(dtype)) if affine else None

    def forward(self, x: Rows, gate: Rows | None = None) -> Variable:
        """Return normalised rows like `x`, multiplied by `silu(gate)` if a gate of the same shape is given."""
        y = apply("rms_norm", x, self.weight, eps=self.eps)
        return y if gate is None else y * functional.silu(gate)

    def extra_repr(self) -> str:
        """Return the sizes as text for `repr`."""
        return f"{self.features}, eps={self.eps}, elementwise_affine={self.weight is not None}"


class BatchNorm1d(Module):
    """Normalise every feature to mean 0 and variance 1 over the rows of all sequences of a batch.

    In training, the layer uses the moments (mean and variance) of the batch, so a sequence's result depends on the
    batch's other sequences, and the running moments move towards these.  In evaluation, it uses the running moments,
    and each row is computed separately.

    On several ranks (`distributed.replicate`), the moments are over the rows of all ranks, so each rank must call the
    layer equally often, even without rows.  With `reproducible`, each shard has its own moments, and only the first
    shard changes the running moments.

    A batch without rows changes nothing.  The result of a batch with a single row is the bias, and only the running
    mean changes; PyTorch raises an error.

    Parameters
    ----------
    num_features : int
    eps : float
        A number that is added to the variance; at least 0.
    momentum : float or None
        The weight of a new batch in the running moments, 0 to 1; with None, they are the means over all batches.
    affine : bool
        Whether there are a weight and a bias.
    dtype : data type
        float32 or float64.

    Attributes
    ----------
    weight, bias : (num_features,), or None
    running_mean, running_var : (num_features,)
        Saved, but not trained.  The variance is the estimate from a sample, as in PyTorch.
    num_batches_tracked : int64
        The number of batches in training.

    Examples
    --------
    >>> layer = BatchNorm1d(1, momentum=0.5)
    >>> layer(np.array([[1.0], [3.0]], np.float32)).numpy().round(3)
    array([[-1.],
           [ 1.]], dtype=float32)
    >>> layer.running_mean.numpy(), layer.running_var.numpy()
    (array([1.], dtype=float32), array([1.5], dtype=float32))

    Source: Ioffe and Szegedy (2015), "Batch normalization"; `torch.nn.BatchNorm1d`, with its initialisation.
    """

    @hinting(device=NO_DEVICE, track_running_stats="leave it out: running moments are always kept")
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        *,
        dtype: DTypeLike = np.float32,
    ) -> None:
        self.num_features = shape = check_int(num_features, "num_features", 1)
        self.eps = check_number(eps, "eps", *NOT_NEGATIVE)
        holds = lambda momentum: 0 <= momentum <= 1
        self.momentum = None if momentum is None else check_number(momentum, "momentum", "0 to 1, or None", holds)
        affine, dtype = check_flag(affine, "affine"), check_dtype(dtype)
        zeros, ones = (drawn((shape,), draw).astype(dtype) for draw in (np.zeros, np.ones))
        self.weight = Parameter(ones) if affine else None
        self.bias = Parameter(zeros) if affine else None
        self.running_mean, self.running_var = Buffer(zeros), Buffer(ones)
        self.num_batches_tracked = Buffer(np.array(0, np.int64))

    def forward(self, x: Rows) -> Variable:
        """Return rows with the shape and LoD of `x`, `(rows, num_features)`."""
        affine, constants = (self.weight, self.bias), {"eps": self.eps, "training": self.training}
        running = self.running_mean, self.running_var
        if not self.training:
            return apply("batch_norm", x, *running, *affine, **constants)
        if (into := recorder()) is not None and into.current.parent is not None:
            hint = "call the layer on the rows of all steps before the loop, or call eval() first"
            raise ProgramError("BatchNorm1d in training", expected="rows of a batch", got="a step of a loop", hint=hint)
        # The gradient does not read the running moments, so detached Variables may change before it is computed.
        aside = [let_change(apply("detach", moment)) for moment in running]
        hooks = self.running_mean.hooks
        with contextlib.nullcontext() if hooks is None or hooks.watcher is None else hooks.watcher.summing_moments():
            out, *moments = apply("batch_norm", x, *aside, *affine, **constants)
        apply("track_moments", *running, self.num_batches_tracked, *moments, momentum=self.momentum)
        return out

    def extra_repr(self) -> str:
        """Return the sizes as text for `repr`."""
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.weight is not None}"


def _standard_normal(shape: tuple[int, ...]) -> np.ndarray:
    return generator().standard_normal(shape, np.float32)


class Embedding(Module):
    """Look up rows of a table by ids; the result has the LoD of the ids.

    Parameters
    ----------
    num_embeddings : int
        Rows of the table.
    embedding_dim : int
        Features of a row.
    padding_idx : int, optional
        A row that is zero and is never trained; a negative number counts from the end.
    sparse : bool
        Whether the gradient is SelectedRows, whose cost does not depend on the size of the table.
    dtype : data type
        float32 or float64.
    shard : Communicator, optional
        The ranks that divide the table: rank r has the rows r, r + size, r + 2 size and so on.  All ranks must create
        the layer, call it, each with its own ids or with none, and update it.

    Attributes
    ----------
    weight : (num_embeddings, embedding_dim)
        With `shard`, the rows of this rank.

    Notes
    -----
    With `shard`, and any optimizer, the table has the same bits as in one process with the whole batch.  In the whole
    batch, sequences are in the order of their positions (`LoD.positions`); without positions, in the order of ranks.
    Gradients are sent to the rank that has their row when the optimizer, or `clip_grad_norm_`, needs them; before,
    `weight.grad` is None.

    Examples
    --------
    >>> Embedding(10, 3)(np.array([1, 4])).shape
    (2, 3)

    Source: `torch.nn.Embedding`, with its initialisation, which is standard normal.
    """

    @hinting(device=NO_DEVICE, max_norm=NO_NORM, scale_grad_by_freq="leave it out: gradients of rows are not scaled")
    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        sparse: bool = True,
        dtype: DTypeLike = np.float32,
        shard: Communicator | None = None,
    ) -> None:
        self.num_embeddings = num_embeddings = check_int(num_embeddings, "num_embeddings", 1)
        self.embedding_dim = embedding_dim = check_int(embedding_dim, "embedding_dim", 1)
        if padding_idx is not None:
            padding_idx = functional.check_padding_idx(padding_idx, num_embeddings)
        self.padding_idx, self.sparse, dtype = padding_idx, check_flag(sparse, "sparse"), check_dtype(dtype)
        comm, shape = self._checked(shard, dtype), (num_embeddings, embedding_dim)
        table = drawn(shape, lambda shape: drawn_rows(comm, shape, _standard_normal)).astype(dtype)
        if padding_idx is not None and padding_idx % comm.size == comm.rank:
            table[padding_idx // comm.size] = 0
        self.weight = self._parameter(table, comm, requires_grad=True, copy=True)

    def _checked(self, shard: Communicator | None, dtype: np.dtype) -> Communicator:
        """Return the ranks that divide the table, or this rank if `shard` is None; raise if their options differ."""
        comm = Communicator() if shard is None else check_communicator(shard, "Embedding, shard")
        if comm.size > 1:
            if not self.sparse:
                raise InputError("Embedding, sparse", expected="True, because shard= divides the table", got=False)
            numbers = {"embedding_dim": self.embedding_dim, "num_embeddings": self.num_embeddings}
            check_alike(comm, **numbers, padding_idx=self.padding_idx, dtype=dtype.itemsize)
        return comm

    def _parameter(self, table: np.ndarray, comm: Communicator, requires_grad: bool, copy: bool) -> Parameter:
        if comm.size == 1:
            return Parameter(table, requires_grad, copy=copy)
        return ShardedParameter(table, Shard(comm, self.num_embeddings), requires_grad, copy=copy)

    @classmethod
    @hinting(max_norm=NO_NORM)
    def from_pretrained(
        cls,
        embeddings: np.ndarray,
        freeze: bool = True,
        padding_idx: int | None = None,
        *,
        sparse: bool = True,
        shard: Communicator | None = None,
    ) -> Embedding:
        """Return a layer whose table is the caller's array itself, not a copy.

        So a table can be larger than the memory: lookups and updates touch only their rows of a memory map.  The states
        of an optimizer for a mapped table are also memory maps, of sparse, unnamed files in the same folder.

        Parameters
        ----------
        embeddings : (num_embeddings, embedding_dim), C-contiguous
            float32 or float64, or float16 if it is frozen; it is changed in place if it is trained.
        freeze : bool
            Whether the table is not trained: `weight.requires_grad` is False, and the array may be read-only.
        padding_idx : int, optional
            A row that is never trained; its numbers do not change.
        sparse : bool
            As in the constructor.
        shard : Communicator, optional
            As in the constructor: `embeddings` has the rows of this rank.

        Raises
        ------
        DTypeError, ShapeError
            If an array cannot be the table, or is to be trained but is float16 or read-only.

        Examples
        --------
        >>> table = np.arange(6, dtype=np.float16).reshape(3, 2)
        >>> np.asarray(Embedding.from_pretrained(table)(np.array([2, 0])))
        array([[4., 5.],
               [0., 1.]], dtype=float32)

        Source: `torch.nn.Embedding.from_pretrained`.
        """
        weight = Parameter(embeddings, requires_grad=not check_flag(freeze, "freeze"), copy=False)
        if weight.ndim != 2 or not weight.shape[1] or not (len(weight.data) or shard is not None):
            expected = "shape (num_embeddings, embedding_dim), both at least 1"
            raise ShapeError("from_pretrained, embeddings", expected=expected, got=f"shape {weight.shape}")
        layer = cls.__new__(cls)
        layer.num_embeddings, layer.embedding_dim = weight.shape
        if shard is not None:
            comm = check_communicator(shard, "Embedding, shard")
            layer.num_embeddings = whole_height(comm, layer.num_embeddings)
        if padding_idx is not None:
            padding_idx = functional.check_padding_idx(padding_idx, layer.num_embeddings)
        layer.padding_idx, layer.sparse = padding_idx, check_flag(sparse, "sparse")
        comm = layer._checked(shard, weight.dtype)
        layer.weight = layer._parameter(embeddings, comm, weight.requires_grad, copy=False)
        return layer

    def forward(self, ids: Rows) -> Variable:
        """Return the table's row for each id, `(*ids.shape, embedding_dim)`; ids are integers of any shape.

        Rows of a float16 table are returned in float32, in which the next layer computes.
        """
        if self.weight.shard is None:
            rows = apply("embedding", ids, self.weight, padding_idx=self.padding_idx, sparse=self.sparse)
        else:
            rows = self.weight.shard.look_up(ids, self.weight, self.padding_idx)
        if rows.dtype != np.float16:
            return rows
        if rows.requires_grad:  # the caller has set `requires_grad` of a table that was frozen
            what = "Embedding, weight that requires a gradient"
            raise DTypeError(what, expected="float32 or float64", got=rows.dtype, hint=NOT_IN_HALF)
        return rows.astype(np.float32)

    def extra_repr(self) -> str:
        """Return the sizes as text for `repr`."""
        return f"{self.num_embeddings}, {self.embedding_dim}, padding_idx={self.padding_idx}, sparse={self.sparse}"


class Dropout(Module):
    """Zero elements with probability `p` in training, and scale the others by 1 / (1 - p).

    Parameters
    ----------
    p : float
        `0 <= p <= 1`.
    per : {"row", "sequence"}
        Whether each row or each sequence has its own mask; see `functional.dropout`.

    Examples
    --------
    >>> np.asarray(Dropout(0.5).eval()(np.ones((1, 2))))
    array([[1., 1.]])
    """

    @hinting(inplace=IN_PLACE)
    def __init__(self, p: float = 0.5, *, per: functional.Per = "row") -> None:
        functional.check_probability(p)
        check_choice(per, "Dropout, per", "row", "sequence")
        self.p, self.per = p, per

    def forward(self, x: Rows) -> Variable:
        """Return `x`, with elements zeroed in training mode and unchanged in evaluation mode."""
        return functional.dropout(x, self.p, self.training, per=self.per)

    def extra_repr(self) -> str:
        """Return the probability, and `per` unless it is "row", as text for `repr`."""
        return f"p={self.p}" + (f", per={self.per!r}" if self.per != "row" else "")


class SequenceConv(Module):
    """Convolve along each sequence: multiply the window of rows around each row by the weight; see `sequence_conv`.

    Parameters
    ----------
    input_size : int
        Features of a row.
    num_filters : int
        Features of a row of the result.
    filter_size : int
        Rows of a window.
    padding_start : int, optional
        The offset from a row to the first row of its window; by default `-(filter_size // 2)`.
    trainable_padding : bool
        Whether rows outside of a sequence are trained parameters, which start as zeros; otherwise they stay zeros.
    bias : bool
    dtype : data type
        float32 or float64.

    Attributes
    ----------
    weight : (filter_size * input_size, num_filters)
    bias : (num_filters,), or None
    padding : (rows outside of a sequence, input_size), or None
        First the rows before a sequence, then the rows behind it.

    Examples
    --------
    >>> SequenceConv(3, 4)(vr.create_lod_tensor(np.zeros((5, 3), np.float32), [[2, 0, 3]])).shape
    (5, 4)

    Source: the layer `sequence_conv` of PaddlePaddle Fluid, with the initialisation of `torch.nn.Conv1d`.
    """

    def __init__(
        self,
        input_size: int,
        num_filters: int,
        filter_size: int = 3,
        padding_start: int | None = None,
        trainable_padding: bool = False,
        bias: bool = True,
        dtype: DTypeLike = np.float32,
    ) -> None:
        self.input_size = input_size = check_int(input_size, "input_size", 1)
        self.num_filters = num_filters = check_int(num_filters, "num_filters", 1)
        self.filter_size = filter_size = check_int(filter_size, "filter_size", 1)
        start = -(filter_size // 2) if padding_start is None else check_int(padding_start, "padding_start")
        self.padding_start, dtype, bias = start, check_dtype(dtype), check_flag(bias, "bias")
        depth, outside = filter_size * input_size, max(0, -start) + max(0, start + filter_size - 1)
        self.weight = uniform((depth, num_filters), depth, dtype)
        self.bias = uniform((num_filters,), depth, dtype) if bias else None
        trainable = check_flag(trainable_padding, "trainable_padding")
        self.padding = Parameter(drawn((outside, input_size), np.zeros).astype(dtype)) if trainable else None

    def forward(self, x: Rows) -> Variable:
        """Return `(rows, num_filters)`, with as many rows as `x` and its LoD."""
        constants = {"filter_size": self.filter_size, "padding_start": self.padding_start}
        return apply("sequence_conv", x, self.weight, self.bias, self.padding, **constants)

    def extra_repr(self) -> str:
        """Return the sizes as text for `repr`."""
        sizes = f"{self.input_size}, {self.num_filters}, filter_size={self.filter_size}"
        trained = f"trainable_padding={self.padding is not None}, bias={self.bias is not None}"
        return f"{sizes}, padding_start={self.padding_start}, {trained}"


class RowConv(Module):
    """Replace every row by a weighted sum of it and the rows that follow; see `row_conv`.

    Each feature has its own weights.

    Parameters
    ----------
    features : int
    future_context_size : int
        The number of following rows in the sum; at least 0.
    dtype : data type
        float32 or float64.

    Attributes
    ----------
    weight : (future_context_size + 1, features)

    Examples
    --------
    >>> RowConv(3, 2)(vr.create_lod_tensor(np.zeros((5, 3), np.float32), [[2, 0, 3]])).shape
    (5, 3)

    Source: the layer `row_conv` of PaddlePaddle Fluid, with the initialisation of `torch.nn.Conv1d`.
    """

    def __init__(self, features: int, future_context_size: int, dtype: DTypeLike = np.float32) -> None:
        self.features = features = check_int(features, "features", 1)
        self.future_context_size = context = check_int(future_context_size, "future_context_size", 0)
        self.weight = uniform((context + 1, features), context + 1, check_dtype(dtype))

    def forward(self, x: Rows) -> Variable:
        """Return rows with the shape and LoD of `x`."""
        return apply("row_conv", x, self.weight)

    def extra_repr(self) -> str:
        """Return the sizes as text for `repr`."""
        return f"{self.features}, {self.future_context_size}"


class SequencePool(Module):
    """Pool each sequence to one row; see `sequence_pool`.

    Parameters
    ----------
    pool_type : {"sum", "mean", "sqrt", "max", "first", "last"}

    Examples
    --------
    >>> np.asarray(SequencePool("mean")(vr.create_lod_tensor([1.0, 3.0, 5.0], [[2, 1]])))
    array([2., 5.])
    """

    def __init__(self, pool_type: str) -> None:
        self.pool_type = pool_type

    def forward(self, x: Rows) -> Variable:
        """Return the pooled rows, `(sequences, ...)`."""
        return functional.sequence_pool(x, self.pool_type)

    def extra_repr(self) -> str:
        """Return the kind of pooling as text for `repr`."""
        return repr(self.pool_type)
