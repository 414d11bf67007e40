"""Functions of Variables without parameters: activations, normalisation, dropout, pooling and losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from varlen_rnn.errors import DTypeError, ShapeError, check_choice, check_flag, check_number
from varlen_rnn.ops.elementwise import exp, log, log_softmax, relu, sigmoid, tanh
from varlen_rnn.ops.layer_norm import layer_norm
from varlen_rnn.ops.sequence.pool import sequence_pool
from varlen_rnn.tape.variable import Variable, apply, required
from varlen_rnn.typing import Rows

__all__ = [
    "binary_cross_entropy_with_logits", "concat", "cross_entropy", "dropout", "exp", "layer_norm", "log", "log_softmax",
    "mse_loss", "relu", "sequence_pool", "sigmoid", "softmax", "tanh",
]  # fmt: skip

Reduction: TypeAlias = Literal["mean", "sum", "none"]
Per: TypeAlias = Literal["row", "sequence"]


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


def dropout(x: Rows, p: float = 0.5, training: bool = True) -> Variable:
    """Return `x` with each element zeroed with probability `p` and the others scaled by 1 / (1 - p), in training.

    The mask comes from the context's generator; see `manual_seed`.

    Examples
    --------
    >>> import numpy as np
    >>> np.unique(dropout(np.ones(1000), p=0.75))
    array([0., 4.])
    """
    check_probability(p)
    x, training = required(x, "dropout, x"), check_flag(training, "dropout, training")
    return apply("dropout", x, p=float(p), training=True)[0] if training and p else x


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
