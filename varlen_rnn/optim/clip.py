"""Clipping of gradients by their global norm, dense and SelectedRows alike."""

import numpy as np

from varlen_rnn.errors import check_number
from varlen_rnn.lod import LoDTensor
from varlen_rnn.selected_rows import SelectedRows


def clip_grad_norm_(parameters, max_norm):
    """Scale all gradients by one factor so that their global norm is at most `max_norm`; return the norm before.

    Duplicate rows of a SelectedRows gradient are summed first, for only their sum has a norm.

    Parameters
    ----------
    parameters : iterable of Variables
        Those without a gradient do not count; one that is listed twice counts once.
    max_norm : float

    Returns
    -------
    float

    Examples
    --------
    >>> from varlen_rnn.nn import Parameter
    >>> p = Parameter([0.0, 0.0]); p.grad = np.array([3.0, 4.0])
    >>> clip_grad_norm_([p], 1.0), p.grad
    (5.0, array([0.6, 0.8]))

    Source: Pascanu, Mikolov and Bengio (2013), section 3.2.
    """
    max_norm = check_number(max_norm, "max_norm", "more than 0", lambda number: number > 0)
    with_grad = [parameter for parameter in dict.fromkeys(parameters) if parameter.grad is not None]
    for parameter in with_grad:
        if isinstance(parameter.grad, SelectedRows):
            parameter.grad = parameter.grad.merge()
    squares = [np.sum(np.square(_elements(parameter.grad), dtype=np.float64)) for parameter in with_grad]
    norm = float(np.sqrt(sum(squares)))
    if norm > max_norm:
        for parameter in with_grad:
            parameter.grad = _scaled(parameter.grad, max_norm / norm)
    return norm


def _elements(gradient):
    return gradient.value if isinstance(gradient, SelectedRows) else np.asarray(gradient)


def _scaled(gradient, factor):
    value = _elements(gradient) * _elements(gradient).dtype.type(factor)
    if isinstance(gradient, SelectedRows):
        return SelectedRows.wrap(gradient.rows, value, gradient.height)
    return LoDTensor.wrap(value, gradient.structure) if isinstance(gradient, LoDTensor) else value
