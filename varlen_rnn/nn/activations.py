"""Activations as modules: the functions of `functional`, with their constants, for models that list their layers."""

from __future__ import annotations

import math
from typing import Literal

from varlen_rnn.errors import check_choice, check_number, over_last_axis
from varlen_rnn.nn import functional
from varlen_rnn.nn.module import Module
from varlen_rnn.tape.variable import Variable
from varlen_rnn.typing import Rows


class Tanh(Module):
    """The hyperbolic tangent of every element.

    Examples
    --------
    >>> Tanh()([0.0, 1.0]).numpy().round(4)
    array([0.    , 0.7616])

    Source: `torch.nn.Tanh`.
    """

    def forward(self, x: Rows) -> Variable:
        """Return rows with the shape and LoD of `x`."""
        return functional.tanh(x)


class Sigmoid(Module):
    """`1 / (1 + exp(-x))` of every element.

    Examples
    --------
    >>> Sigmoid()([0.0, 1.0]).numpy().round(4)
    array([0.5   , 0.7311])

    Source: `torch.nn.Sigmoid`.
    """

    def forward(self, x: Rows) -> Variable:
        """Return rows with the shape and LoD of `x`."""
        return functional.sigmoid(x)


class ReLU(Module):
    """Every element if it is positive, otherwise 0.

    Examples
    --------
    >>> ReLU()([-1.0, 2.0]).numpy()
    array([0., 2.])

    Source: `torch.nn.ReLU`.
    """

    def forward(self, x: Rows) -> Variable:
        """Return rows with the shape and LoD of `x`."""
        return functional.relu(x)


class LeakyReLU(Module):
    """Every element if it is positive, otherwise `negative_slope` times the element.

    Parameters
    ----------
    negative_slope : float

    Examples
    --------
    >>> LeakyReLU(0.1)([-2.0, 3.0]).numpy()
    array([-0.2,  3. ])

    Source: `torch.nn.LeakyReLU`.
    """

    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = check_number(negative_slope, "LeakyReLU, negative_slope", "finite", math.isfinite)

    def forward(self, x: Rows) -> Variable:
        """Return rows with the shape and LoD of `x`."""
        return functional.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        """Return the slope as text for `repr`."""
        return f"negative_slope={self.negative_slope}"


class ELU(Module):
    """Every element if it is positive, otherwise `alpha (e**x - 1)`.

    Parameters
    ----------
    alpha : float

    Examples
    --------
    >>> ELU()([-1.0, 2.0]).numpy().round(4)
    array([-0.6321,  2.    ])

    Source: `torch.nn.ELU`.
    """

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = check_number(alpha, "ELU, alpha", "finite", math.isfinite)

    def forward(self, x: Rows) -> Variable:
        """Return rows with the shape and LoD of `x`."""
        return functional.elu(x, self.alpha)

    def extra_repr(self) -> str:
        """Return alpha as text for `repr`."""
        return f"alpha={self.alpha}"


class GELU(Module):
    """Every element times the probability that a standard normal number is less than it; see `functional.gelu`.

    Parameters
    ----------
    approximate : {"none", "tanh"}
        Whether the probability is exact or computed by a formula with tanh.

    Examples
    --------
    >>> GELU()([-1.0, 2.0]).numpy().round(4)
    array([-0.1587,  1.9545])

    Source: `torch.nn.GELU`.
    """

    def __init__(self, approximate: Literal["none", "tanh"] = "none") -> None:
        self.approximate = check_choice(approximate, "GELU, approximate", "none", "tanh")

    def forward(self, x: Rows) -> Variable:
        """Return rows with the shape and LoD of `x`."""
        return functional.gelu(x, self.approximate)

    def extra_repr(self) -> str:
        """Return the formula as text for `repr`."""
        return f"approximate={self.approximate!r}"


class SiLU(Module):
    """Every element times its sigmoid; this function is also called swish.

    Examples
    --------
    >>> SiLU()([-1.0, 2.0]).numpy().round(4)
    array([-0.2689,  1.7616])

    Source: `torch.nn.SiLU`.
    """

    def forward(self, x: Rows) -> Variable:
        """Return rows with the shape and LoD of `x`."""
        return functional.silu(x)


class Softplus(Module):
    """`log(1 + exp(beta x)) / beta` of every element, or the element where `beta x` exceeds `threshold`.

    Parameters
    ----------
    beta : float
        More than 0.
    threshold : float

    Examples
    --------
    >>> Softplus()([0.0, 30.0]).numpy().round(4)
    array([ 0.6931, 30.    ])

    Source: `torch.nn.Softplus`.
    """

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self.beta = check_number(beta, "Softplus, beta", "more than 0", lambda beta: 0 < beta < math.inf)
        holds = lambda threshold: not math.isnan(threshold)
        self.threshold = check_number(threshold, "Softplus, threshold", "a number", holds)

    def forward(self, x: Rows) -> Variable:
        """Return rows with the shape and LoD of `x`."""
        return functional.softplus(x, self.beta, self.threshold)

    def extra_repr(self) -> str:
        """Return the constants as text for `repr`."""
        return f"beta={self.beta}, threshold={self.threshold}"


class Softmax(Module):
    """The softmax over the last axis: positive numbers whose sum is 1.

    `sequence_softmax` is over the steps of each sequence.

    Examples
    --------
    >>> Softmax()([[0.0, 0.0]]).numpy()
    array([[0.5, 0.5]])

    Source: `torch.nn.Softmax`, with `dim=-1`.
    """

    @over_last_axis
    def __init__(self) -> None:
        pass

    def forward(self, x: Rows) -> Variable:
        """Return rows with the shape and LoD of `x`."""
        return functional.softmax(x)
