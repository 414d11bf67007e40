"""Activations as modules: functions of `functional` with constants, for models that are lists of layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, Literal

from varlen_rnn.errors import FINITE, IN_PLACE, POSITIVE, check_choice, check_number, hinting, over_last_axis
from varlen_rnn.nn import functional
from varlen_rnn.nn.module import Module
from varlen_rnn.tape.variable import Variable
from varlen_rnn.typing import Rows


class _Activation(Module):
    """A module that applies a function of `functional`, with the constants that a subclass names."""

    _function: ClassVar[Callable[..., Variable]]
    _constants: ClassVar[tuple[str, ...]] = ()

    @hinting(inplace=IN_PLACE)
    def __init__(self) -> None:
        pass

    def forward(self, x: Rows) -> Variable:
        """Return rows with the shape and LoD of `x`."""
        return type(self)._function(x, *[getattr(self, name) for name in self._constants])

    def extra_repr(self) -> str:
        """Return the constants as text for `repr`."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self._constants)


class Tanh(_Activation):
    """The hyperbolic tangent of every element.

    Examples
    --------
    >>> Tanh()([0.0, 1.0]).numpy().round(4)
    array([0.    , 0.7616])

    Source: `torch.nn.Tanh`.
    """

    _function = staticmethod(functional.tanh)


class Sigmoid(_Activation):
    """`1 / (1 + exp(-x))` of every element.

    Examples
    --------
    >>> Sigmoid()([0.0, 1.0]).numpy().round(4)
    array([0.5   , 0.7311])

    Source: `torch.nn.Sigmoid`.
    """

    _function = staticmethod(functional.sigmoid)


class ReLU(_Activation):
    """Every element if it is positive, otherwise 0.

    Examples
    --------
    >>> ReLU()([-1.0, 2.0]).numpy()
    array([0., 2.])

    Source: `torch.nn.ReLU`.
    """

    _function = staticmethod(functional.relu)


class LeakyReLU(_Activation):
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

    _function = staticmethod(functional.leaky_relu)
    _constants = ("negative_slope",)

    @hinting(inplace=IN_PLACE)
    def __init__(self, negative_slope: float = 0.01) -> None:
        self.negative_slope = check_number(negative_slope, "LeakyReLU, negative_slope", *FINITE)


class ELU(_Activation):
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

    _function = staticmethod(functional.elu)
    _constants = ("alpha",)

    @hinting(inplace=IN_PLACE)
    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = check_number(alpha, "ELU, alpha", *FINITE)


class GELU(_Activation):
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

    _function = staticmethod(functional.gelu)
    _constants = ("approximate",)

    def __init__(self, approximate: Literal["none", "tanh"] = "none") -> None:
        self.approximate = check_choice(approximate, "GELU, approximate", "none", "tanh")


class SiLU(_Activation):
    """Every element times its sigmoid; this function is also called swish.

    Examples
    --------
    >>> SiLU()([-1.0, 2.0]).numpy().round(4)
    array([-0.2689,  1.7616])

    Source: `torch.nn.SiLU`.
    """

    _function = staticmethod(functional.silu)


class Softplus(_Activation):
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

    _function = staticmethod(functional.softplus)
    _constants = ("beta", "threshold")

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self.beta = check_number(beta, "Softplus, beta", *POSITIVE)
        holds = lambda threshold: not math.isnan(threshold)
        self.threshold = check_number(threshold, "Softplus, threshold", "a number", holds)


class Softmax(_Activation):
    """The softmax over the last axis: positive numbers whose sum is 1.

    For a softmax over the steps of each sequence, see `sequence_softmax`.

    Examples
    --------
    >>> Softmax()([[0.0, 0.0]]).numpy()
    array([[0.5, 0.5]])

    Source: `torch.nn.Softmax`, with `dim=-1`.
    """

    _function = staticmethod(functional.softmax)

    @over_last_axis
    def __init__(self) -> None:
        pass
