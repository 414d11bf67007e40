"""Functions of Variables: attention, activations, norms, comparisons, lookups, dropout, pooling and losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from varlen_rnn.attention import UNLIMITED
from varlen_rnn.errors import (
    FINITE,
    IN_PLACE,
    NO_NORM,
    POSITIVE,
    SHARE,
    DTypeError,
    OutOfRangeError,
    ProgramError,
    ShapeError,
    check_choice,
    check_flag,
    check_int,
    check_list,
    check_number,
    hinting,
    numpy_names,
    over_last_axis,
    shown,
)
from varlen_rnn.nn.losses import (
    Per,
    binary_cross_entropy_with_logits,
    cross_entropy,
    ctc_loss,
    focal_loss,
    hinge_loss,
    huber_loss,
    l1_loss,
    mse_loss,
    poisson_nll_loss,
    quantile_loss,
    smooth_l1_loss,
)
from varlen_rnn.nn.transducer import lattice_rows, transducer_loss
from varlen_rnn.ops.activations import elu, gelu, relu, sigmoid, silu, softplus, tanh
from varlen_rnn.ops.elementwise import absolute as abs
from varlen_rnn.ops.elementwise import exp, log, sqrt
from varlen_rnn.ops.last_axis import layer_norm, log_softmax, rms_norm
from varlen_rnn.ops.recurrent.projected import slstm
from varlen_rnn.ops.sequence.conv import sequence_conv
from varlen_rnn.ops.sequence.pool import sequence_pool
from varlen_rnn.runtime.device import host_numbers
from varlen_rnn.tape.array_methods import operand
from varlen_rnn.tape.checks import FLOATS
from varlen_rnn.tape.elsewhere import missing_name
from varlen_rnn.tape.modes import no_grad
from varlen_rnn.tape.variable import Variable, apply, apply_detached, apply_list, as_variable, required
from varlen_rnn.typing import Rows

__all__ = [
    "abs", "additive_attention", "binary_cross_entropy_with_logits", "concat", "cosine_similarity", "cross_entropy",
    "ctc_loss", "dropout", "elu", "embedding", "equal", "exp", "focal_loss", "gelu", "hinge_loss", "huber_loss",
    "l1_loss", "lattice_rows", "layer_norm", "leaky_relu", "log", "log_sigmoid", "log_softmax", "maximum", "minimum",
    "mse_loss", "normalize", "not_equal", "one_hot", "poisson_nll_loss", "quantile_loss", "relu", "rms_norm",
    "scaled_dot_product_attention", "sequence_conv", "sequence_pool", "sigmoid", "silu", "slstm", "smooth_l1_loss",
    "softmax", "softplus", "split", "sqrt", "stack", "tanh", "topk", "transducer_loss", "weight_norm", "where",
]  # fmt: skip


def scaled_dot_product_attention(
    query: Rows,
    key: Rows,
    value: Rows,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] = (None, None),
) -> Variable:
    """Return, for each query, the mean of its sequence's values, weighted by the softmax of dot-product scores.

    The score of a query and a key is their dot product times `scale`.  Scores are computed block by block, and are
    never all in memory.  Blocks of other sequences, or outside of the window, are skipped.

    Parameters
    ----------
    query : Variable, shape `(queries, heads, depth)`, or `(queries, depth)` for one head
        The last LoD level gives the sequences.  Without a LoD, there must be one query for each sequence of `key`.
    key : Variable, shape `(keys, heads, depth)`
        As many sequences as `query`, of any lengths.
    value : Variable, shape `(keys, heads, depth of values)`
        One value for each key.
    is_causal : bool
        Whether query i of a sequence sees only its keys 0 to i.
    scale : float, optional
        1 / sqrt(depth) by default.
    window : (left, right)
        Query i of a sequence sees its keys i - left to i + right; None means no limit on that side.

    Returns
    -------
    Variable, shape `(queries, heads, depth of values)`, with the LoD of `query`
        The result is 0 for a query that sees no key, for example because the sequence of keys is empty (PyTorch: NaN).

    Examples
    --------
    >>> question = vr.create_lod_tensor(np.ones((2, 4)), [[1, 1]])
    >>> key = vr.create_lod_tensor(np.ones((5, 4)), [[2, 3]])
    >>> np.asarray(scaled_dot_product_attention(question, key, key.like(np.arange(5.0)[:, None]))).ravel()
    array([0.5, 3. ])

    Source: Vaswani et al. (2017), "Attention is all you need"; Dao et al. (2022), "FlashAttention"; the form of
    `torch.nn.functional.scaled_dot_product_attention`.
    """
    left, right = limits("scaled_dot_product_attention", is_causal, window)
    return apply("scaled_dot_product_attention", query, key, value, scale=scale, left=left, right=right)[0]


if not TYPE_CHECKING:  # Hidden from type checkers: with a module's `__getattr__` they accept any name.

    def __getattr__(name):
        raise missing_name(__name__, name)


def __dir__() -> list[str]:
    return __all__


def limits(op: str, is_causal: bool, window: tuple[int | None, int | None]) -> tuple[int | None, int | None]:
    """Return how many keys before and after its own position a query sees; None means no limit."""
    pair = check_list(window, f"{op}, window", "a pair (left, right) of ints or None")
    if len(pair) != 2:
        raise ShapeError(f"{op}, window", expected="a pair (left, right) of ints or None", got=shown(window))
    left, right = (None if limit is None else check_int(limit, "window", -UNLIMITED) for limit in pair)
    if check_flag(is_causal, f"{op}, is_causal"):
        right = 0 if right is None else min(right, 0)
    return left, right


def additive_attention(
    query: Rows,
    key: Rows,
    value: Rows,
    weight: Rows,
    is_causal: bool = False,
    window: tuple[int | None, int | None] = (None, None),
) -> Variable:
    """Return, for each query, the mean of its sequence's values, weighted by the softmax of additive scores.

    The score of a query and a key is `weight . tanh(query + key)`; the caller first projects both to the same features.
    All else is as in `scaled_dot_product_attention`.

    Parameters
    ----------
    query : Variable, shape `(queries, features)`
    key : Variable, shape `(keys, features)`
    value : Variable, shape `(keys, columns)`
    weight : Variable, shape `(features,)`
    is_causal, window
        As in `scaled_dot_product_attention`.

    Returns
    -------
    Variable, shape `(queries, columns)`, with the LoD of `query`

    Examples
    --------
    >>> question = vr.create_lod_tensor(np.zeros((2, 1)), [[1, 1]])
    >>> answers = vr.create_lod_tensor(np.array([[0.0], [9.0], [9.0]]), [[2, 1]])
    >>> np.asarray(additive_attention(question, answers, answers, np.array([np.log(3.0)]))).ravel().round(3)
    array([6.75, 9.  ])

    Source: Bahdanau, Cho and Bengio (2015), "Neural machine translation by jointly learning to align and translate".
    """
    left, right = limits("additive_attention", is_causal, window)
    return apply("additive_attention", query, key, value, weight, left=left, right=right)[0]


@over_last_axis
def softmax(x: Rows) -> Variable:
    """Return the softmax over the last axis: positive numbers whose sum is 1.

    For another axis, use `transpose`.  The first axis of a batch runs over the rows of all its sequences, so a softmax
    over it mixes sequences; `sequence_softmax` is over the steps of each sequence.

    Examples
    --------
    >>> np.asarray(softmax(np.zeros((1, 2))))
    array([[0.5, 0.5]])
    >>> np.asarray(softmax(Variable(np.zeros((2, 1))).T).T)
    array([[0.5],
           [0.5]])
    """
    return exp(log_softmax(x))


@hinting(inplace=IN_PLACE)
def leaky_relu(x: Rows, negative_slope: float = 0.01) -> Variable:
    """Return every element if it is positive, otherwise `negative_slope` times the element.

    Parameters
    ----------
    x : Variable or array
        float32 or float64.
    negative_slope : float
        The slope for elements of at most 0.

    Examples
    --------
    >>> leaky_relu([-2.0, 3.0], 0.1).numpy()
    array([-0.2,  3. ])

    Source: `torch.nn.functional.leaky_relu`.
    """
    slope = check_number(negative_slope, "leaky_relu, negative_slope", *FINITE)
    return apply("leaky_relu", x, alpha=slope)


def log_sigmoid(x: Rows) -> Variable:
    """Return `log(1 / (1 + exp(-x)))` of every element, without overflow: the log-probability of a binary class.

    Examples
    --------
    >>> log_sigmoid([0.0, -10.0]).numpy().round(4)
    array([ -0.6931, -10.    ])

    Source: `torch.nn.functional.logsigmoid`.
    """
    return -softplus(-required(x, "log_sigmoid, x"), threshold=math.inf)


@numpy_names
def normalize(x: Rows, p: float = 2.0, axis: int = 1, eps: float = 1e-12) -> Variable:
    """Return vectors along an axis, each divided by its p-norm, or by `eps` if the norm is smaller.

    Parameters
    ----------
    x : Variable or array
        float32 or float64.
    p : float
        The exponent of the norm, at least 1; infinity takes the largest magnitude.
    axis : int
    eps : float
        More than 0.

    Examples
    --------
    >>> normalize([[3.0, 4.0], [0.0, 0.0]]).numpy()
    array([[0.6, 0.8],
           [0. , 0. ]])

    Source: `torch.nn.functional.normalize`.
    """
    x, axis = required(x, "normalize, x"), check_int(axis, "normalize, axis")
    p = check_number(p, "normalize, p", "at least 1", lambda p: p >= 1)
    eps = check_number(eps, "normalize, eps", *POSITIVE)
    x, is_large = _scaled(x, p, axis, eps)
    return x / _norm(x, p, axis, eps, is_large)


def _scaled(x: Variable, p: float, axis: int, eps: float) -> tuple[Variable, Variable | None]:
    """Return vectors and a mask of the large vectors, whose powers would overflow: their largest magnitude becomes 1.

    The mask is None if the norm needs no powers, or there are no elements.
    """
    if x.dtype not in FLOATS:
        raise DTypeError("vectors whose norm is computed", expected="float32 or float64", got=x.dtype)
    if p == math.inf or 0 in x.shape:
        return x, None
    limit = (float(np.finfo(x.dtype).max) / 2**24) ** (1 / p)  # the powers of 16 million such numbers are finite
    largest = x.detach().abs().max(axis, keepdims=True)
    is_large = (largest > max(limit, eps)) & (largest < math.inf)
    return x / where(is_large, largest, 1.0), is_large


def _norm(x: Variable, p: float, axis: int, eps: float, is_large: Variable | None) -> Variable:
    """Return the p-norms of vectors along an axis, which keeps the size 1; a norm below `eps` becomes `eps`.

    A norm that becomes `eps` has no gradient.  `eps` does not apply to large vectors, which `_scaled` divided.
    """
    if p == math.inf:
        return x.abs().max(axis, keepdims=True).clip(eps)
    if p == 1:
        norm = x.abs().sum(axis, keepdims=True)
    else:
        powers = x * x if p == 2 else x.abs() ** p
        total = powers.sum(axis, keepdims=True)
        tiny = float(np.finfo(total.dtype).tiny)
        root = total.clip(tiny).sqrt() if p == 2 else total.clip(tiny) ** (1 / p)
        norm = where(total <= tiny, 0.0, root)  # NaN stays
    return norm.clip(eps) if is_large is None else where(is_large, norm, norm.clip(eps))


@numpy_names
def cosine_similarity(x1: Rows, x2: Rows, axis: int = 1, eps: float = 1e-8) -> Variable:
    """Return the cosine of the angle between vectors along an axis; the result does not have this axis.

    Parameters
    ----------
    x1, x2 : Variable or array
        Both float32 or both float64, with shapes that broadcast, and as many elements along the axis.
    axis : int
    eps : float
        The least norm: smaller norms are replaced by it; more than 0.

    Examples
    --------
    >>> cosine_similarity([[1.0, 0.0], [1.0, 1.0]], [[2.0, 0.0], [1.0, -1.0]]).numpy()
    array([1., 0.])

    Source: `torch.nn.functional.cosine_similarity`.
    """
    a, b = required(x1, "cosine_similarity, x1"), required(x2, "cosine_similarity, x2")
    rank, axis = max(a.ndim, b.ndim), check_int(axis, "cosine_similarity, axis")
    eps = check_number(eps, "cosine_similarity, eps", *POSITIVE)
    place = axis - rank if axis >= 0 else axis  # counted from the end, where broadcasting aligns both shapes
    sizes = {v.shape[place] for v in (a, b)} if -min(a.ndim, b.ndim) <= place < 0 else {}
    if len(sizes) != 1 and -1 not in sizes:
        expected = f"an axis from {-rank} to {rank - 1} that has the same size in x1 and x2"
        got = f"axis {shown(axis)}, with x1 of shape {a.shape} and x2 of shape {b.shape}"
        raise ShapeError("cosine_similarity, axis", expected=expected, got=got)
    (a, large_a), (b, large_b) = _scaled(a, 2.0, place, eps), _scaled(b, 2.0, place, eps)
    products = a * b
    return products.sum(place) / (_norm(a, 2.0, place, eps, large_a) * _norm(b, 2.0, place, eps, large_b)).sum(place)


def one_hot(ids: Rows, num_classes: int | None = None) -> Variable:
    """Return, for each id, a vector of integers: 1 at the id, and 0 elsewhere; the LoD is kept.

    Parameters
    ----------
    ids : integers of any shape
    num_classes : int, optional
        By default 1 more than the largest id; required in a program, which has no ids yet.

    Returns
    -------
    Variable, shape `(*ids.shape, num_classes)`, int64
        `.astype(np.float32)` converts it for a layer.

    Raises
    ------
    OutOfRangeError
        If an id is negative or at least `num_classes`.

    Examples
    --------
    >>> one_hot([2, 0]).numpy()
    array([[0, 0, 1],
           [1, 0, 0]])

    Source: `torch.nn.functional.one_hot`, whose -1 for `num_classes` is None here.
    """
    ids = required(ids, "one_hot, ids")
    if num_classes is None:
        given = host_numbers(ids.value.data)
        num_classes = max(0, int(given.max()) + 1) if given.size and given.dtype.kind in "iu" else 0
    return apply("one_hot", ids, num_classes=check_int(num_classes, "one_hot, num_classes", 0))


def _beside(op: str, x: Rows, y: Rows) -> tuple[Rows, Rows]:
    """Return two operands as Variables; a number or a list gets the data type of the other operand."""
    lists, numbers = (list, tuple), (int, float, np.generic)
    x, y = (v if isinstance(v, lists + numbers) else required(v, f"{op}, {name}") for v, name in ((x, "x"), (y, "y")))
    if not (isinstance(x, Variable) or isinstance(y, Variable)):
        x, y = (Variable(v) if isinstance(v, lists) else v for v in (x, y))
    if isinstance(x, Variable):
        return x, operand(y, x)
    y = as_variable(y)
    return operand(x, y), y


def maximum(x: Rows, y: Rows) -> Variable:
    """Return the larger of two numbers, element by element, or NaN if one of them is NaN.

    Where both are equal, each gets half of the gradient, as in PyTorch.

    Parameters
    ----------
    x, y : Variable, array or number
        Both float32 or both float64, with shapes that broadcast; a number takes the other operand's data type.

    Examples
    --------
    >>> np.asarray(maximum([1.0, 5.0], 2))
    array([2., 5.])
    """
    return apply("maximum", *_beside("maximum", x, y))


def minimum(x: Rows, y: Rows) -> Variable:
    """Return the smaller of two numbers, element by element; all else is as in `maximum`.

    Examples
    --------
    >>> np.asarray(minimum([1.0, 5.0], 2))
    array([1., 2.])
    """
    return apply("minimum", *_beside("minimum", x, y))


def equal(x: Rows, y: Rows) -> Variable:
    """Return whether two numbers are equal, element by element, as bools without a gradient.

    The operator `==` of Variables compares identities, not values; `<`, `<=`, `>` and `>=` compare values.

    Parameters
    ----------
    x, y : Variable, array or number
        Both of the same data type, with shapes that broadcast; a number takes the other operand's data type.

    Examples
    --------
    >>> np.asarray(equal(np.array([3, 0, 3]), 3))
    array([ True, False,  True])
    """
    return apply_detached("equal", *_beside("equal", x, y))


def not_equal(x: Rows, y: Rows) -> Variable:
    """Return whether two numbers differ, element by element; all else is as in `equal`.

    Examples
    --------
    >>> np.asarray(not_equal(np.array([3, 0, 3]), 3))
    array([False,  True, False])
    """
    return apply_detached("not_equal", *_beside("not_equal", x, y))


def where(condition: Rows, x: Rows, y: Rows) -> Variable:
    """Return `x` where the condition is true and `y` elsewhere, element by element.

    Parameters
    ----------
    condition : Variable or array of bools
    x, y : Variable, array or number
        Both of the same data type; a number takes the other operand's data type.  The three shapes must
        broadcast, and their LoDs must be equal.

    Examples
    --------
    >>> x = Variable([1.0, -2.0])
    >>> np.asarray(where(x > 0, x, 0.1 * x))
    array([ 1. , -0.2])
    """
    return apply("where", condition, *_beside("where", x, y))


@numpy_names
def concat(variables: Sequence[Variable], axis: int = -1) -> Variable:
    """Return Variables joined along an axis; unless this is the first axis, the result has their LoD.

    The default is the last axis, so that the features of each row are joined.  The default of `torch.cat` is the first.

    Parameters
    ----------
    variables : list of Variables
        At least one.  Variables that have a LoD must all have the same LoD, unless the axis is the first.
    axis : int
        By default the last.  With 0, the rows follow one another, and the result has no LoD: `with_lod` sets it.

    Examples
    --------
    >>> np.asarray(concat([Variable([[1.0]]), Variable([[2.0, 3.0]])]))
    array([[1., 2., 3.]])
    >>> concat([Variable([1.0]), Variable([2.0, 3.0])], axis=0).with_lod([[0, 1, 3]]).lod()
    [[0, 1, 3]]
    """
    if not isinstance(variables, (list, tuple)):  # a Variable or array would count as a list of its rows
        raise DTypeError("concat, variables", expected="a list of Variables", got=type(variables).__name__)
    if not variables:
        raise ShapeError("concat, variables", expected="at least one Variable", got="an empty list")
    return variables[0] if len(variables) == 1 else apply("concat", *variables, axis=axis)


@numpy_names
def stack(variables: Sequence[Variable], axis: int = 0) -> Variable:
    """Return Variables of one shape joined along a new axis; unless it is the first, the result has their LoD.

    Parameters
    ----------
    variables : list of Variables
        At least one.  Variables that have a LoD must all have the same LoD.
    axis : int
        The position of the new axis in the result.

    Examples
    --------
    >>> stack([Variable([1.0, 2.0]), Variable([3.0, 4.0])], axis=1).value.data
    array([[1., 3.],
           [2., 4.]])
    """
    if not isinstance(variables, (list, tuple)):
        raise DTypeError("stack, variables", expected="a list of Variables", got=type(variables).__name__)
    given = [required(variable, f"stack, x[{number}]") for number, variable in enumerate(variables)]
    rank, axis = (given[0].ndim if given else 0), check_int(axis, "stack, axis")
    if not -rank - 1 <= axis <= rank:
        raise ShapeError("stack, axis", expected=f"an axis from {-rank - 1} to {rank}", got=axis)
    axis %= rank + 1
    new = (slice(None),) * axis + (None,)
    return concat([variable[new] for variable in given], axis)


@numpy_names
def split(x: Rows, sizes: int | Sequence[int], axis: int = -1) -> list[Variable]:
    """Split `x` into pieces along an axis; unless this is the axis of rows, the pieces have the LoD of `x`.

    Parameters
    ----------
    x : Variable
    sizes : int or list of int
        The size of every piece (the last piece can be smaller), or a list of the sizes of all pieces, whose sum is the
        size of the axis.  In a program, at most 64 pieces are possible.
    axis : int

    Examples
    --------
    >>> gates = Variable([[1.0, 2.0, 3.0, 4.0]])
    >>> [part.shape for part in split(gates, 3)], [part.shape for part in split(gates, [1, 1, 2])]
    ([(1, 3), (1, 1)], [(1, 1), (1, 1), (1, 2)])

    Source: the function of `torch.split`.
    """
    x, axis = required(x, "split, x"), check_int(axis, "split, axis")
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError("split, axis", expected=f"an axis of x, which has shape {x.shape}", got=axis)
    if isinstance(sizes, (list, tuple)):
        return apply_list("split", x, sizes=tuple(check_int(size, "split, sizes", 0) for size in sizes), axis=axis)
    size, whole = check_int(sizes, "split, sizes", 1), x.shape[axis]
    if whole == -1:
        hint = "the number of rows is not known before a program runs: pass a list of sizes"
        raise ProgramError("split, axis", expected="an axis of known size", got=f"axis {axis} of {x.shape}", hint=hint)
    ends = [*range(size, whole, size), whole]
    pieces = tuple(end - begin for begin, end in zip([0, *ends], ends, strict=False))
    return apply_list("split", x, sizes=pieces, axis=axis)


@numpy_names
def topk(x: Rows, k: int, axis: int = -1) -> tuple[Variable, Variable]:
    """Return the `k` largest elements along an axis, largest first, and their indices.

    Equal elements are in the order of their indices; NaN is larger than all numbers.  Unless the axis is the axis of
    rows, the results have the LoD of `x`.  The gradient goes to the selected elements.

    Parameters
    ----------
    x : Variable
    k : int
        From 1 to the size of the axis.
    axis : int

    Returns
    -------
    values, indices : Variables with the shape of `x`, except for the size `k` along the axis
        The indices are int64.

    Examples
    --------
    >>> values, indices = topk([[1.0, 5.0, 3.0, 5.0]], 3)
    >>> values.value.data, indices.value.data
    (array([[5., 5., 3.]]), array([[1, 3, 2]]))

    Source: the function of `torch.topk`.
    """
    x, k, axis = required(x, "topk, x"), check_int(k, "topk, k", 1), check_int(axis, "topk, axis")
    values, indices = apply("topk", x, k=k, axis=axis)
    return values, indices.detach()


@hinting(max_norm=NO_NORM)
def embedding(ids: Rows, table: Rows, padding_idx: int | None = None, *, sparse: bool = False) -> Variable:
    """Look up rows of a table by ids; the result has the LoD of the ids.

    Parameters
    ----------
    ids : integers of any shape, `0 <= id < height`
    table : Variable, shape `(height, features)`
        Floats, or integers, which get no gradient.
    padding_idx : int, optional
        A row that gets no gradient; a negative number counts from the end.
    sparse : bool
        Whether the gradient is SelectedRows, whose cost does not depend on the size of the table.

    Returns
    -------
    Variable, shape `(*ids.shape, features)`

    Examples
    --------
    >>> embedding(np.array([2, 0]), np.array([[1, 2], [3, 4], [5, 6]])).value.data
    array([[5, 6],
           [1, 2]])

    Source: the function of `torch.nn.functional.embedding`.
    """
    table = required(table, "embedding, table")
    if padding_idx is not None:
        padding_idx = check_padding_idx(padding_idx, table.shape[0] if table.ndim else 0)
    return apply("embedding", ids, table, padding_idx=padding_idx, sparse=check_flag(sparse, "embedding, sparse"))


def check_padding_idx(padding_idx: int, height: int) -> int:
    """Return the index of a table's row, counted from 0; a negative `padding_idx` counts from the end.  Or raise."""
    padding_idx = check_int(padding_idx, "padding_idx")
    if not -height <= padding_idx < height:
        raise OutOfRangeError("padding_idx", expected=f"a row from {-height} to {height - 1}", got=padding_idx)
    return padding_idx % height


@hinting(inplace=IN_PLACE)
def dropout(x: Rows, p: float = 0.5, training: bool = True, *, per: Per = "row") -> Variable:
    """In training, return `x` with each element zeroed with probability `p`, or scaled by 1 / (1 - p); else `x`.

    The mask comes from the context's generator; see `manual_seed`.

    Parameters
    ----------
    x : Variable
    p : float
        `0 <= p <= 1`.
    training : bool
    per : {"row", "sequence"}
        Whether every row or every sequence gets its own mask.  With "sequence", the same elements are zeroed in all
        rows of a sequence (variational dropout; Gal and Ghahramani, 2016).

    Examples
    --------
    >>> np.unique(dropout(np.ones(1000), p=0.75))
    array([0., 4.])
    """
    check_probability(p)
    check_choice(per, "dropout, per", "row", "sequence")
    x, training = required(x, "dropout, x"), check_flag(training, "dropout, training")
    if not (training and p):
        return x
    if per == "row":
        return apply("dropout", x, p=float(p), training=True)[0]
    with no_grad():
        mask = apply("row_mask", x, p=float(p), units=math.prod(x.shape[1:]), per_sequence=True, training=True)
    return x * mask.reshape(-1, *x.shape[1:])


def weight_norm(v: Rows, g: Rows) -> Variable:
    """Return `g * v / |v|`, where `|v|` is the length of each row of `v`.

    Parameters
    ----------
    v : Variable, shape `(rows, columns)`
    g : Variable, shape `(rows, 1)`

    Examples
    --------
    >>> weight_norm([[3.0, 4.0]], [[10.0]]).value.data
    array([[6., 8.]])

    Source: Salimans and Kingma (2016), "Weight normalization"; the shapes of `torch.nn.utils.weight_norm`.
    """
    v, g = required(v, "weight_norm, v"), required(g, "weight_norm, g")
    return v * (g * (v * v).sum(axis=1, keepdims=True) ** -0.5)


def check_probability(p: float, name: str = "dropout, p") -> None:
    """Raise unless `p` is a number from 0 to 1."""
    check_number(p, name, *SHARE)
