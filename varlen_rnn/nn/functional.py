"""Functions of Variables without parameters: activations, dropout, pooling and losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

from varlen_rnn.attention import UNLIMITED
from varlen_rnn.errors import (
    DTypeError,
    ShapeError,
    check_choice,
    check_flag,
    check_int,
    check_list,
    check_number,
    shown,
)
from varlen_rnn.ops.elementwise import exp, log, log_softmax, relu, sigmoid, tanh
from varlen_rnn.ops.sequence.pool import sequence_pool
from varlen_rnn.tape.modes import no_grad
from varlen_rnn.tape.variable import Variable, apply, required
from varlen_rnn.typing import Rows

__all__ = [
    "binary_cross_entropy_with_logits", "concat", "cross_entropy", "dropout", "exp", "log", "log_softmax", "mse_loss",
    "relu", "scaled_dot_product_attention", "sequence_pool", "sigmoid", "softmax", "tanh", "weight_norm",
]  # fmt: skip

Reduction: TypeAlias = Literal["mean", "sum", "none"]
Per: TypeAlias = Literal["row", "sequence"]


def scaled_dot_product_attention(
    query: Rows,
    key: Rows,
    value: Rows,
    is_causal: bool = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] = (None, None),
) -> Variable:
    """Return, for each query, the mean of the values of its own sequence, weighed by the softmax of scores.

    The score of a query and a key is their dot product times `scale`.  Scores are never all in memory, and those of
    other sequences, or of keys that a query does not see, are not computed, but for some within a block of rows.

    Parameters
    ----------
    query : Variable, shape `(queries, heads, depth)`, or `(queries, depth)` of one head
    key : Variable, shape `(keys, heads, depth)`
        Of as many sequences as `query`, of any lengths; the last levels count.
    value : Variable, shape `(keys, heads, depth of values)`
        The rows of `key`.
    is_causal : bool
        Whether query i of a sequence sees its keys 0 to i alone.
    scale : float, optional
        1 / sqrt(depth), unless given.
    window : (left, right)
        Query i of a sequence sees its keys i - left to i + right; None: all on that side.

    Returns
    -------
    Variable of shape `(queries, heads, depth of values)`, with the LoD of `query`; 0 of a query that sees no key, as
    where the keys' sequence is empty (PyTorch: NaN)

    Examples
    --------
    >>> import numpy as np
    >>> from varlen_rnn.lod import create_lod_tensor
    >>> question = create_lod_tensor(np.ones((2, 4)), [[1, 1]])
    >>> answers = create_lod_tensor(np.ones((5, 4)), [[2, 3]]), create_lod_tensor(np.arange(5.0)[:, None], [[2, 3]])
    >>> np.asarray(scaled_dot_product_attention(question, *answers)).ravel()
    array([0.5, 3. ])

    Source: Vaswani et al. (2017), "Attention is all you need"; Dao et al. (2022), "FlashAttention"; the form of
    `torch.nn.functional.scaled_dot_product_attention`.
    """
    limits = check_list(window, "scaled_dot_product_attention, window", "a pair (left, right)")
    if len(limits) != 2:
        raise ShapeError("scaled_dot_product_attention, window", expected="a pair (left, right)", got=shown(window))
    left, right = (None if limit is None else check_int(limit, "window", -UNLIMITED) for limit in limits)
    if check_flag(is_causal, "scaled_dot_product_attention, is_causal"):
        right = 0 if right is None else min(right, 0)
    return apply("scaled_dot_product_attention", query, key, value, scale=scale, left=left, right=right)[0]


def softmax(x: Rows) -> Variable:
    """Return the softmax over the last axis: positive, and 1 in sum.

    Examples
    --------
    >>> import numpy as np
    >>> np.asarray(softmax(np.zeros((1, 2))))
    array([[0.5, 0.5]])
    """
    return exp(log_softmax(x))


def concat(variables: Sequence[Variable], axis: int = -1) -> Variable:
    """Return Variables side by side along an axis; along any but the first, the LoD is kept.

    Parameters
    ----------
    variables : list of Variables
        At least one; of one LoD where they have any.
    axis : int

    Examples
    --------
    >>> import numpy as np
    >>> np.asarray(concat([Variable([[1.0]]), Variable([[2.0, 3.0]])]))
    array([[1., 2., 3.]])
    """
    if not isinstance(variables, (list, tuple)):  # of a Variable or an array, the rows would be taken for a list
        raise DTypeError("concat", expected="a list of Variables", got=type(variables).__name__)
    if not variables:
        raise ShapeError("concat", expected="at least one variable", got="none")
    return variables[0] if len(variables) == 1 else apply("concat", *variables, axis=axis)


def dropout(x: Rows, p: float = 0.5, training: bool = True, per: Per = "row") -> Variable:
    """Return `x` with each element zeroed with probability `p` and the others scaled by 1 / (1 - p), in training.

    The mask comes from the context's generator; see `manual_seed`.

    Parameters
    ----------
    x : Variable
    p : float
        `0 <= p <= 1`.
    training : bool
    per : {"row", "sequence"}
        What has a mask of its own: every row, or every sequence, all of whose rows lack the same elements (variational
        dropout; Gal and Ghahramani, 2016).

    Examples
    --------
    >>> import numpy as np
    >>> np.unique(dropout(np.ones(1000), p=0.75))
    array([0., 4.])
    """
    check_probability(p)
    check_choice(per, "dropout, per", "row", "sequence")
    x, training = required(x, "dropout, x"), check_flag(training, "dropout, training")
    if not (training and p):
        return x
    return _without_elements(x, float(p)) if per == "sequence" else apply("dropout", x, p=float(p), training=True)[0]


def _without_elements(x: Variable, p: float) -> Variable:
    """Return `x` times a mask for each sequence."""
    with no_grad():
        mask = apply("row_mask", x, p=p, units=math.prod(x.shape[1:]), per_sequence=True, training=True)
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
    """Raise unless `p` is a probability."""
    check_number(p, name, "0 <= p <= 1", lambda p: 0 <= p <= 1)


def cross_entropy(logits: Rows, labels: Rows, reduction: Reduction = "mean", per: Per = "row") -> Variable:
    """Return minus the log-probability of the labels' classes.

    Parameters
    ----------
    logits : Variable, shape `(rows, classes)`
        Unnormalised; softmax is inside.
    labels : integers, shape `(rows,)`
        A LoD, if they have one, must be that of `logits`.
    reduction : {"mean", "sum", "none"}
        "none" returns the loss of each row, with the LoD of `logits`.
    per : {"row", "sequence"}
        What weighs the same: every row, or every sequence, whose loss is then the mean over its rows.

    Examples
    --------
    >>> import numpy as np
    >>> float(np.asarray(cross_entropy(np.zeros((3, 2)), np.array([0, 1, 1])))).__round__(4)
    0.6931
    """
    return reduce_loss(apply("cross_entropy", logits, labels)[0], reduction, per)


def binary_cross_entropy_with_logits(
    logits: Rows, targets: Rows, reduction: Reduction = "mean", per: Per = "row"
) -> Variable:
    """Return the binary cross entropy of logits against targets between 0 and 1, of the same shape.

    `reduction` and `per` are those of `cross_entropy`; elements of a row weigh the same.

    Examples
    --------
    >>> round(binary_cross_entropy_with_logits([0.0, 0.0], [0.0, 1.0]).item(), 4)
    0.6931
    """
    return reduce_loss(apply("binary_cross_entropy", logits, targets), reduction, per)


def mse_loss(x: Rows, target: Rows, reduction: Reduction = "mean", per: Per = "row") -> Variable:
    """Return the squared difference of two Variables of the same shape.

    `reduction` and `per` are those of `cross_entropy`; elements of a row weigh the same.

    Examples
    --------
    >>> mse_loss([1.0, 3.0], [1.0, 1.0]).item()
    2.0
    """
    x, target = required(x, "mse_loss, x"), required(target, "mse_loss, target")
    return reduce_loss(apply("squared_error", x, target), reduction, per)


def reduce_loss(loss: Variable, reduction: Reduction, per: Per) -> Variable:
    """Return the loss of elements reduced over rows or over sequences; 0 when there are none."""
    check_choice(reduction, "reduction", "mean", "sum", "none")
    check_choice(per, "per", "row", "sequence")
    if per == "sequence":
        loss = sequence_pool(loss, "mean")
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    # Not a mean of nothing, which is NaN and would end a training run at an empty batch.
    return apply("reduce_mean", loss, axis=None, keepdims=False, of_nothing=0.0)
