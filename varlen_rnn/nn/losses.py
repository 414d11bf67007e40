"""Loss functions, reduced over rows or over sequences, with optional weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

import numpy as np

from varlen_rnn.errors import (
    FINITE,
    NOT_NEGATIVE,
    SHARE,
    DTypeError,
    OutOfRangeError,
    ShapeError,
    check_choice,
    check_flag,
    check_int,
    check_list,
    check_number,
    shown,
)
from varlen_rnn.ops.sequence.pool import sequence_pool
from varlen_rnn.ops.sequence.structure import lod_reset
from varlen_rnn.rows.checks import as_rows
from varlen_rnn.rows.lod import levels_of
from varlen_rnn.runtime.device import host_numbers, on_device
from varlen_rnn.tape.array_methods import operand
from varlen_rnn.tape.modes import recorder
from varlen_rnn.tape.spec import Symbol
from varlen_rnn.tape.variable import Variable, apply, as_variable, constant, required
from varlen_rnn.typing import Rows

Reduction: TypeAlias = Literal["mean", "sum", "none"]
Per: TypeAlias = Literal["row", "sequence"]


class Reduced(TypedDict, total=False):
    """The options that every loss takes besides `reduction`; `cross_entropy` documents them."""

    per: Per
    sample_weight: Rows | None


def cross_entropy(
    logits: Rows,
    labels: Rows,
    reduction: Reduction = "mean",
    *,
    weight: Rows | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    **reduced: Unpack[Reduced],
) -> Variable:
    """Return minus the log-probability of each row's class, reduced over the rows.

    Parameters
    ----------
    logits : Variable, shape `(rows, classes)`
        Unnormalised scores; the loss applies the softmax.
    labels : integers, shape `(rows,)`, or floats, shape `(rows, classes)`
        Classes, or the probability of each class.  If they have a LoD, it must equal the LoD of `logits`.
    reduction : {"mean", "sum", "none"}
        "none" returns the loss of each row, with the LoD of `logits`.
    per : {"row", "sequence"}
        Whether every row, or every sequence, has the same weight in the mean.  The loss of a sequence is the mean over
        its rows that are not ignored; a sequence without such rows is ignored.
    weight : array, shape `(classes,)`, optional
        The weight of each class; a mean over rows is weighted by the classes of their labels.
    ignore_index : int
        Rows with this label are ignored; any other label outside the classes is an error.
    label_smoothing : float
        The share of a label's probability that is spread evenly over all classes, 0 to 1.
    sample_weight : array, optional
        The weight of each row, shape `(rows,)`; with `per="sequence"`, the weight of each sequence.

    Returns
    -------
    Variable
        If all rows are ignored, the mean is 0 (PyTorch: NaN).

    Examples
    --------
    >>> logits = np.zeros((3, 2))
    >>> round(cross_entropy(logits, np.array([0, 1, -100])).item(), 4)
    0.6931
    >>> cross_entropy(logits, np.array([0, 1, -100]), "none", weight=[2.0, 0.0]).value.data.round(4)
    array([1.3863, 0.    , 0.    ])

    Source: `torch.nn.functional.cross_entropy`; label smoothing of Szegedy et al. (2016).
    """
    logits, labels = required(logits, "cross_entropy, logits"), required(labels, "cross_entropy, labels")
    label_smoothing = check_number(label_smoothing, "label_smoothing", *SHARE)
    weight = None if weight is None else _like(weight, logits, "weight")
    if labels.dtype is not None and labels.dtype.kind == "f":
        if labels.ndim == 1 and logits.ndim == 2:
            expected = f"integers, one class per row, or probabilities of shape {logits.shape}"
            got, hint = f"{labels.dtype} of shape {labels.shape}", "labels.astype(np.int64)"
            raise DTypeError("cross_entropy, labels", expected=expected, got=got, hint=hint)
        loss = _of_probabilities(logits, labels, weight, label_smoothing)
        return reduce_loss(loss, reduction, None, **reduced)
    loss, counts = _of_classes(logits, labels, weight, ignore_index, label_smoothing)
    return reduce_loss(loss, reduction, counts, **reduced)


def _of_probabilities(logits: Variable, targets: Variable, weight: Variable | None, smoothing: float) -> Variable:
    targets = _same_shape("cross_entropy", logits, targets, "labels")
    if smoothing:
        targets = targets * (1 - smoothing) + smoothing / logits.shape[-1]
    if weight is not None:
        targets = targets * _per_class(weight, logits)
    return -(targets * apply("log_softmax", logits)).sum(axis=1)


def _of_classes(
    logits: Variable,
    labels: Variable,
    weight: Variable | None,
    ignore_index: int,
    label_smoothing: float,
    gamma: float = 0.0,
) -> tuple[Variable, Variable | None]:
    """Return each row's loss (focal if `gamma` is not 0), and each row's weight; None if all weights are 1."""
    ignore_index = check_int(ignore_index, "ignore_index")
    loss = apply("cross_entropy", logits, labels, ignore_index=ignore_index)[0]
    counts: Variable | None = None
    # Row weights are skipped if no row is ignored.  A recorded program has no labels yet, so it always computes them.
    weight = None if weight is None else _per_class(weight, logits)
    if weight is not None or recorder() is not None or (host_numbers(labels.value.data) == ignore_index).any():
        of_class = constant(np.ones(logits.shape[1], logits.dtype), logits) if weight is None else weight
        counts = apply("label_weights", labels, of_class, ignore_index=ignore_index)
    if gamma:
        loss = apply("focal", loss, gamma=gamma)
    if weight is not None and counts is not None:
        loss = loss * counts
    if label_smoothing:
        spread = apply("log_softmax", logits)
        spread = (spread if weight is None else spread * weight).mean(axis=1)
        if counts is not None:  # ignored rows get a smoothing term of 0
            counted = apply("not_equal", labels, operand(ignore_index, labels))
            spread = apply("where", counted, spread, operand(0.0, spread))
        loss = loss * (1 - label_smoothing) - spread * label_smoothing
    return loss, counts


def focal_loss(
    logits: Rows,
    labels: Rows,
    reduction: Reduction = "mean",
    *,
    gamma: float = 2.0,
    weight: Rows | None = None,
    ignore_index: int = -100,
    **reduced: Unpack[Reduced],
) -> Variable:
    """Return the cross entropy times `(1 - p) ** gamma`, where p is the probability of the row's class.

    Rows that are already classified well contribute little.  Other parameters are as in `cross_entropy`; `weight` is
    the paper's alpha, and a mean is weighted by it.

    Examples
    --------
    >>> round(focal_loss(np.zeros((3, 2)), np.array([0, 1, 1])).item(), 4)  # 0.25 log 2
    0.1733

    Source: Lin et al. (2017), "Focal loss for dense object detection", with softmax classes.
    """
    gamma = check_number(gamma, "gamma", *NOT_NEGATIVE)
    logits, labels = required(logits, "focal_loss, logits"), required(labels, "focal_loss, labels")
    weight = None if weight is None else _like(weight, logits, "weight")
    loss, counts = _of_classes(logits, labels, weight, ignore_index, 0.0, gamma)
    return reduce_loss(loss, reduction, counts, **reduced)


def binary_cross_entropy_with_logits(
    logits: Rows,
    targets: Rows,
    reduction: Reduction = "mean",
    *,
    weight: Rows | None = None,
    pos_weight: Rows | None = None,
    **reduced: Unpack[Reduced],
) -> Variable:
    """Return the binary cross entropy of logits against targets of the same shape, between 0 and 1.

    Parameters
    ----------
    logits, targets : Variable
    reduction, per, sample_weight
        As in `cross_entropy`; elements of a row have equal weights.
    weight : array, optional
        A factor for each element's loss; its shape must broadcast to the shape of `logits`.
    pos_weight : array, shape `(columns,)`, optional
        The weight of positive targets in each column.

    Examples
    --------
    >>> round(binary_cross_entropy_with_logits([0.0, 0.0], [0.0, 1.0]).item(), 4)
    0.6931

    Source: `torch.nn.functional.binary_cross_entropy_with_logits`.
    """
    what = "binary_cross_entropy_with_logits"
    logits, targets = required(logits, f"{what}, logits"), required(targets, f"{what}, targets")
    loss = apply("binary_cross_entropy", logits, targets)
    if pos_weight is not None:
        # The loss for a target of 1 is log(1 + exp(-x)); `pos_weight` scales this part of the loss.
        of_ones = apply("binary_cross_entropy", logits, targets * 0.0 + 1.0)
        loss = loss + (_factor(pos_weight, logits, f"{what}, pos_weight") - 1.0) * targets * of_ones
    if weight is not None:
        loss = loss * _factor(weight, logits, f"{what}, weight")
    return reduce_loss(loss, reduction, None, **reduced)


def ctc_loss(
    log_probs: Rows, targets: Rows, blank: int = 0, reduction: Reduction = "mean", zero_infinity: bool = False
) -> Variable:
    """Return the CTC loss, for targets whose alignment with the rows is unknown.

    CTC is connectionist temporal classification.

    Parameters
    ----------
    log_probs : Variable, shape `(rows, classes)`
        Log-probabilities of the classes, as `log_softmax` returns them; the last LoD level gives the sequences.
    targets : integers, shape `(labels,)`
        The classes of each sequence's target, without `blank`; as many sequences as `log_probs`.
    blank : int
    reduction : {"mean", "sum", "none"}
        "mean" first divides each loss by the number of labels of its target, at least 1, as PyTorch does; "none"
        returns one loss per sequence.
    zero_infinity : bool
        Whether a target that is too long for its rows has the loss 0, with gradient 0, instead of infinity.

    Examples
    --------
    >>> steps = vr.create_lod_tensor(np.log(np.full((3, 2), 0.5)), [[2, 1]])
    >>> np.exp(-ctc_loss(steps, vr.create_lod_tensor(np.array([1, 1]), [[1, 1]]), reduction="none").value.data)
    array([0.75, 0.5 ])

    Source: Graves et al. (2006); `torch.nn.functional.ctc_loss`, where the LoD replaces the arguments for lengths.
    """
    check_choice(reduction, "reduction", "mean", "sum", "none")
    log_probs, targets = required(log_probs, "ctc_loss, log_probs"), required(targets, "ctc_loss, targets")
    blank = check_int(blank, "ctc_loss, blank", 0)
    losses = apply("ctc_loss", log_probs, targets, blank=blank, per_label=reduction == "mean")
    if check_flag(zero_infinity, "ctc_loss, zero_infinity"):
        losses = apply("where", losses < math.inf, losses, operand(0.0, losses))
    return reduce_loss(losses, reduction)


def mse_loss(x: Rows, target: Rows, reduction: Reduction = "mean", **reduced: Unpack[Reduced]) -> Variable:
    """Return the squared difference of two Variables of the same shape.

    `reduction`, `per` and `sample_weight` are as in `cross_entropy`; elements of a row have equal weights.

    Examples
    --------
    >>> mse_loss([1.0, 3.0], [1.0, 1.0]).item()
    2.0
    """
    x, target = required(x, "mse_loss, x"), required(target, "mse_loss, target")
    return reduce_loss(apply("squared_error", x, target), reduction, None, **reduced)


def l1_loss(x: Rows, target: Rows, reduction: Reduction = "mean", **reduced: Unpack[Reduced]) -> Variable:
    """Return the absolute difference of two Variables of the same shape.

    `reduction`, `per` and `sample_weight` are as in `cross_entropy`; elements of a row have equal weights.

    Examples
    --------
    >>> l1_loss([1.0, 3.0], [1.0, 1.0]).item()
    1.0
    """
    x, target = required(x, "l1_loss, x"), required(target, "l1_loss, target")
    return reduce_loss((x - _same_shape("l1_loss", x, target)).abs(), reduction, None, **reduced)


def huber_loss(
    x: Rows, target: Rows, reduction: Reduction = "mean", delta: float = 1.0, **reduced: Unpack[Reduced]
) -> Variable:
    """Return half the squared difference of two Variables of the same shape; beyond `delta` the loss is linear.

    `reduction`, `per` and `sample_weight` are as in `cross_entropy`; elements of a row have equal weights.

    Parameters
    ----------
    x, target : Variable
    delta : float
        The absolute difference above which the loss grows linearly; more than 0.

    Examples
    --------
    >>> huber_loss([1.0, 4.0], [1.5, 1.0], "none").value.data
    array([0.125, 2.5  ])

    Source: Huber (1964), with the arguments of `torch.nn.functional.huber_loss`.
    """
    x, target = required(x, "huber_loss, x"), required(target, "huber_loss, target")
    delta = check_number(delta, "huber_loss, delta", "more than 0", lambda delta: delta > 0)
    return reduce_loss(apply("huber", x, target, delta=delta), reduction, None, **reduced)


def smooth_l1_loss(
    x: Rows, target: Rows, reduction: Reduction = "mean", beta: float = 1.0, **reduced: Unpack[Reduced]
) -> Variable:
    """Return the Huber loss with `delta=beta`, divided by `beta`.

    Above `beta` it is the absolute difference minus `beta / 2`.  Other parameters are as in `huber_loss`.

    Examples
    --------
    >>> smooth_l1_loss([1.0, 4.0], [2.0, 1.0], "none", beta=2.0).value.data
    array([0.25, 2.  ])

    Source: the arguments of `torch.nn.functional.smooth_l1_loss`.
    """
    beta = check_number(beta, "smooth_l1_loss, beta", "more than 0", lambda beta: beta > 0)
    return huber_loss(x, target, reduction, beta, **reduced) / beta


def hinge_loss(
    x: Rows, target: Rows, reduction: Reduction = "mean", *, margin: float = 1.0, **reduced: Unpack[Reduced]
) -> Variable:
    """Return `max(0, margin - target * x)` for scores `x` and targets of the same shape, which are -1 or 1.

    `reduction`, `per` and `sample_weight` are as in `cross_entropy`; elements of a row have equal weights.

    Examples
    --------
    >>> hinge_loss([0.5, -2.0], [1.0, 1.0], "none").value.data
    array([0.5, 3. ])

    Source: Cortes and Vapnik (1995); `sklearn.metrics.hinge_loss`.
    """
    x, target = required(x, "hinge_loss, x"), required(target, "hinge_loss, target")
    margin = check_number(margin, "margin", *FINITE)
    below = margin - _same_shape("hinge_loss", x, target) * x
    return reduce_loss(apply("maximum", below, operand(0.0, below)), reduction, None, **reduced)


def poisson_nll_loss(
    x: Rows,
    target: Rows,
    reduction: Reduction = "mean",
    *,
    log_input: bool = True,
    eps: float = 1e-8,
    **reduced: Unpack[Reduced],
) -> Variable:
    """Return minus the log-likelihood of counts under Poisson distributions.

    The term that depends only on the counts is left out, because it has no gradient.

    Parameters
    ----------
    x, target : Variable
        The logarithm of the rate, or the rate itself; and the counts, in the same shape.
    log_input : bool
        Whether `x` is the logarithm of the rate and the loss is `exp(x) - target * x`; otherwise `x` is the rate and
        the loss is `x - target * log(x + eps)`.
    reduction, per, sample_weight
        As in `cross_entropy`; elements of a row have equal weights.

    Examples
    --------
    >>> poisson_nll_loss([0.0], [3.0]).item()
    1.0

    Source: `torch.nn.functional.poisson_nll_loss` with `full=False`.
    """
    x, target = required(x, "poisson_nll_loss, x"), required(target, "poisson_nll_loss, target")
    target = _same_shape("poisson_nll_loss", x, target)
    eps = check_number(eps, "eps", *NOT_NEGATIVE)
    loss = x.exp() - target * x if check_flag(log_input, "log_input") else x - target * (x + eps).log()
    return reduce_loss(loss, reduction, None, **reduced)


def quantile_loss(
    x: Rows,
    target: Rows,
    quantiles: float | Sequence[float] = 0.5,
    reduction: Reduction = "mean",
    **reduced: Unpack[Reduced],
) -> Variable:
    """Return `max(q * d, (q - 1) * d)`, where `d = target - x`; its mean is smallest if x is the quantile q.

    Parameters
    ----------
    x : Variable
        Predictions: for one quantile, in the shape of the targets; for several, with one column per quantile.
    target : Variable
    quantiles : float, or list of float
        Between 0 and 1.
    reduction, per, sample_weight
        As in `cross_entropy`; elements of a row have equal weights.

    Examples
    --------
    >>> quantile_loss([1.0, 1.0], [2.0, 0.0], 0.9, "none").value.data.round(2)
    array([0.9, 0.1])

    Source: Koenker and Bassett (1978); `sklearn.metrics.mean_pinball_loss`.
    """
    x, target = required(x, "quantile_loss, x"), required(target, "quantile_loss, target")
    is_one = isinstance(quantiles, (int, float, np.number))
    several = [quantiles] if is_one else check_list(quantiles, "quantiles")
    between = "between 0 and 1", lambda q: 0 < q < 1
    levels = [check_number(q, "quantiles", *between) for q in several]
    if is_one:
        _same_shape("quantile_loss", x, target)
        parts = operand(levels[0], x), operand(levels[0] - 1, x)
    else:
        if len(x.shape) != 2 or x.shape[1] != len(levels):
            raise _shape_error("quantile_loss, x", f"(rows, {len(levels)})", x)
        if len(target.shape) == 1:
            target = target.reshape(-1, 1)
        rows = target.shape[:1] + x.shape[:1]
        if len(target.shape) != 2 or (rows[0] != rows[1] and -1 not in rows):
            raise _shape_error("quantile_loss, target", f"({x.shape[0]},)", target)
        array = np.array(levels, x.dtype)
        parts = as_variable(array), as_variable(array - 1)
    difference = target - x
    loss = apply("maximum", difference * parts[0], difference * parts[1])
    return reduce_loss(loss, reduction, None, **reduced)


def _like(value: Rows, x: Variable, what: str) -> Variable:
    """Return weights as a Variable; a list or array is cast to the data type of `x`."""
    if isinstance(value, Variable):
        return value
    array = as_rows(value, what)
    return as_variable(array if x.dtype is None else array.astype(x.dtype))


def _per_class(weight: Variable, logits: Variable) -> Variable:
    if weight.shape != logits.shape[1:]:
        raise _shape_error("cross_entropy, weight", f"{logits.shape[1:]}, one weight per class", weight)
    return weight


def _factor(value: Rows, x: Variable, what: str) -> Variable:
    """Return weights of elements as a Variable, or raise unless they broadcast to the shape of `x`."""
    weights = _like(value, x, what)
    pairs = zip(reversed(weights.shape), reversed(x.shape), strict=False)
    if len(weights.shape) > len(x.shape) or any(a != b and a != 1 and -1 not in (a, b) for a, b in pairs):
        raise _shape_error(what, f"{x.shape}, or one that broadcasts to it", weights)
    return weights


def _shape_error(what: str, expected: str, x: Variable) -> ShapeError:
    return ShapeError(what, expected=f"shape {expected}", got=f"shape {x.shape}")


def _same_shape(op: str, x: Variable, target: Variable, name: str = "target") -> Variable:
    # Broadcasting `(rows, 1)` against `(rows,)` would silently compute a matrix of losses.
    differ = any(a != b and -1 not in (a, b) for a, b in zip(x.shape, target.shape, strict=False))
    if len(x.shape) != len(target.shape) or differ:
        raise _shape_error(f"{op}, {name}", str(x.shape), target)
    return target


def reduce_loss(
    loss: Variable,
    reduction: Reduction,
    weights: Variable | None = None,
    *,
    per: Per = "row",
    sample_weight: Rows | None = None,
) -> Variable:
    """Reduce the loss of elements over rows or over sequences, and return the result; a mean over no rows is 0.

    Parameters
    ----------
    loss : Variable
        The loss of each row or element, already multiplied by `weights`.
    weights : Variable, optional
        The weight of each row in a mean.
    sample_weight : array, optional
        The weight of each row, or of each sequence if `per` is "sequence".
    """
    check_choice(reduction, "reduction", "mean", "sum", "none")
    check_choice(per, "per", "row", "sequence")
    sample_weight = None if sample_weight is None else _like(sample_weight, loss, "sample_weight")
    if per == "sequence":
        return _over_sequences(loss, weights, sample_weight, reduction)
    if sample_weight is not None:
        _check_weights(sample_weight, loss.shape[0], "row")
        loss = loss * _beside(sample_weight, loss)
        weights = sample_weight if weights is None else weights * sample_weight
    if reduction != "mean":
        return loss.sum() if reduction == "sum" else loss
    if weights is None:  # the mean of an empty batch is 0, because NaN would spoil the parameters of a training run
        return apply("reduce_mean", loss, axis=None, keepdims=False, of_nothing=0.0)
    return apply("weighted_mean", loss, weights.sum() * math.prod(loss.shape[1:]))


def _beside(weights: Any, loss: Variable) -> Any:
    extra = len(loss.shape) - 1
    return weights.reshape(-1, *[1] * extra) if extra else weights


def _of_rows(loss: Variable) -> Variable:
    return loss.reshape(-1, math.prod(loss.shape[1:])).mean(axis=1) if len(loss.shape) > 1 else loss


def _over_sequences(
    loss: Variable, weights: Variable | None, sample_weight: Variable | None, reduction: Reduction
) -> Variable:
    """Return the weighted mean loss of each sequence's rows, reduced over sequences as `reduction` says."""
    sums, (counts, alive) = sequence_pool(loss, "sum"), _counts_and_alive(loss, weights)
    each = _ratio(sums, _beside(counts, loss))
    if sample_weight is not None:
        _check_weights(sample_weight, counts.shape[0], "sequence")
        each = each * _beside(sample_weight, loss)
    if reduction != "mean":
        return each.sum() if reduction == "sum" else each
    width = math.prod(loss.shape[1:])
    return apply("weighted_mean", each, (alive if sample_weight is None else alive * sample_weight).sum() * width)


def _counts_and_alive(loss: Variable, weights: Variable | None) -> tuple[Any, Any]:
    """Return, for each sequence, the total weight of its rows, and 1 if this weight is positive, otherwise 0."""
    if weights is None and not isinstance(loss.value, Symbol):  # lengths are enough, without reading rows
        lengths = np.diff(levels_of(loss.value.structure)[-1])
        return lengths.astype(loss.dtype), (lengths > 0).astype(loss.dtype)
    one, zero = (constant(np.full(1, number, loss.dtype), loss) for number in (1, 0))
    # `lod_reset` gives the weights the LoD of the loss, because labels may have no LoD.
    weights = apply("where", _of_rows(loss) > 0.0, one, one) if weights is None else lod_reset(weights, loss)
    counts = sequence_pool(weights, "sum")
    return counts, apply("where", counts > 0.0, one, zero)


def _ratio(sums: Variable, counts: Any) -> Variable:
    """Return sums divided by counts; where a count is 0, the sum is 0, and so is the result."""
    tiny = float(np.finfo(np.float32).tiny)
    if isinstance(counts, (np.ndarray, np.generic)):
        return sums / constant(np.maximum(counts, counts.dtype.type(tiny)), sums)
    return sums / apply("maximum", counts, operand(tiny, counts))


def _check_weights(sample_weight: Variable, number: int, per: str) -> None:
    """Raise unless there is one weight per row or sequence, finite and at least 0.

    Weights of a recorded program have no values yet, so only their shape is checked.
    """
    shape = sample_weight.shape
    if len(shape) != 1 or (shape[0] != number and -1 not in (shape[0], number)):
        expected = f"shape ({number},)"
        raise ShapeError("sample_weight", expected=expected, got=f"shape {shape}", hint=f"one number for each {per}")
    # Numbers on a device are not checked, because this would copy them.
    if isinstance(sample_weight.value, Symbol) or on_device(sample_weight.value.data):
        return
    numbers = sample_weight.value.data
    if not (np.isfinite(numbers) & (numbers >= 0)).all():
        raise OutOfRangeError("sample_weight", expected="finite numbers of at least 0", got=shown(numbers))
