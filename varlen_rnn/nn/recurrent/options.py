"""The types of the options of recurrent layers; defaults and checks are where an option is used.

LSTM, GRU and RNN take their options as `**options: Unpack[LSTMOptions]` (PEP 692), so type checkers know each option.
`with_options` makes signatures show each option with its default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

from varlen_rnn.nn.losses import Per

F = TypeVar("F", bound=Callable)
Way: TypeAlias = Literal["forward", "backward", "both"]
Activation: TypeAlias = "str | Sequence[str | float]"  # a name, or a name and its parameters
Merge: TypeAlias = Literal["concat", "sum", "mean"]


class LayerOptions(TypedDict, total=False):
    """The options that `RNN`, `GRU` and `LSTM` share."""

    direction: Way | None
    merge: Merge
    dropout_per: Per
    recompute: bool | int
    clip: float | None
    recurrent_dropout: float
    weight_dropout: float


class RNNOptions(LayerOptions, total=False):
    """The options of `RNN`."""

    zoneout: float


class GRUOptions(LayerOptions, total=False):
    """The options of `GRU`."""

    reset_after: bool
    origin_mode: bool
    activations: Sequence[Activation]
    zoneout: float


class LSTMOptions(LayerOptions, total=False):
    """The options of `LSTM`."""

    proj_size: int
    peepholes: bool
    coupled: bool
    forget_gate: bool
    cell_clip: float | None
    proj_clip: float | None
    activations: Sequence[Activation]
    zoneout: float | tuple[float, float]


def with_options(options: Any, defaults: Mapping[str, Any]) -> Callable[[F], F]:
    """Return a decorator that replaces `**options` in a function's signature by the keys of a TypedDict."""

    def show(function: F) -> F:
        signature, keyword = inspect.signature(function), inspect.Parameter.KEYWORD_ONLY
        parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        for name, kind in options.__annotations__.items():
            kind = getattr(kind, "__forward_arg__", kind)  # the annotation as text
            parameters.append(inspect.Parameter(name, keyword, default=defaults[name], annotation=kind))
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return show
