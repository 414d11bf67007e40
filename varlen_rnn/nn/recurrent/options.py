"""The options of layers of a family of cells: their types, and signatures and docstrings made from tables of options.

`Recurrent` documents the options of every layer, each family of cells has a table of its own options, and `drawn`
returns the options, such as dropout, for which a layer draws random numbers.  Type checkers take the types of options
from `**options: Unpack[LSTMOptions]` (PEP 692).
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

from numpy.typing import DTypeLike

from varlen_rnn.cells.family import Family
from varlen_rnn.cells.options import Option
from varlen_rnn.errors import NO_BATCH_AXIS, NO_DEVICE, ShapeError, hinting, shown
from varlen_rnn.nn.functional import check_probability
from varlen_rnn.nn.losses import Per

T = TypeVar("T", bound=type)
Way: TypeAlias = Literal["forward", "backward", "both"]
Activation: TypeAlias = "str | Sequence[str | float]"  # a name, or a name followed by parameters
Merge: TypeAlias = Literal["concat", "sum", "mean"]
RENAMED = {"nonlinearity": "activation"}  # {argument of a layer: option of its cells}


class CommonOptions(TypedDict, total=False):
    """The options that layers of all families share."""

    dropout: float
    bidirectional: bool
    dtype: DTypeLike
    direction: Way | None
    merge: Merge
    dropout_per: Per
    recompute: bool | int
    precision: str | None
    weight_dropout: float


class LayerOptions(CommonOptions, total=False):
    """The options that `RNN`, `GRU` and `LSTM` share."""

    num_heads: int
    clip: float | None
    recurrent_dropout: float


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


class SLSTMOptions(CommonOptions, total=False):
    """The options of `SLSTM`."""

    forget: Literal["exp", "sigmoid"]


def _probability(p: Any, name: str) -> float:
    check_probability(p, name)
    return float(p)


@functools.cache
def drawn(family: Family) -> dict[str, Option]:
    """Return, by name, the options of a family of cells for which a layer draws random numbers."""
    states = family().states

    def probabilities(given: Any, name: str) -> tuple[float, ...]:
        several = given if isinstance(given, (tuple, list)) else [given] * len(states)
        if len(several) != len(states):
            raise ShapeError(name, expected=f"one probability, or one for each of {states}", got=shown(given))
        return tuple(_probability(p, name) for p in several)

    kind = "float" if len(states) == 1 else f"float, or one for {' and one for '.join(states)}"
    zoneout = (
        "In training, the probability that a unit keeps its previous state; in evaluation, states are the expectation "
        "(Krueger et al., 2017)."
    )
    recurrent_dropout = (
        "In training, the probability that a unit is zeroed in the recurrent products, at all steps of a sequence (Gal "
        "and Ghahramani, 2016)."
    )
    weight_dropout = (
        "In training, the probability that an element of `weight_hh` is zeroed in a forward pass (DropConnect; Merity, "
        "Keskar and Socher, 2018)."
    )
    masks = {
        "zoneout": Option(0.0, probabilities, kind, zoneout),
        "recurrent_dropout": Option(0.0, _probability, "float", recurrent_dropout),
    }
    found = {name: option for name, option in masks.items() if name in family.options}
    return found | {"weight_dropout": Option(0.0, _probability, "float", weight_dropout)}


def layer_of(family: Family, options: Any, base: Any) -> Callable[[T], T]:
    """Return a decorator that adds each option to the signature and the docstring of a family's layer.

    `options` is a TypedDict of the options that `__init__` takes as `**options`.  The docstring of `base` documents the
    options of every layer, its attributes and its errors.
    """

    def show(cls: T) -> T:
        layer: Any = cls
        layer._family, function = family, layer.__init__
        signature, keyword = inspect.signature(function), inspect.Parameter.KEYWORD_ONLY
        defaults = {p.name: p.default for p in inspect.signature(base).parameters.values()} | family.defaults
        defaults |= {name: option.default for name, option in drawn(family).items()}
        parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        for name, kind in options.__annotations__.items():
            kind = getattr(kind, "__forward_arg__", kind)  # the annotation as text
            parameters.append(inspect.Parameter(name, keyword, default=defaults[name], annotation=kind))
        function.__signature__ = signature.replace(parameters=parameters)
        layer.__init__ = hinting(batch_first=NO_BATCH_AXIS, device=NO_DEVICE)(function)
        if layer.__doc__:  # `python -OO` drops docstrings
            layer.__doc__ = _documented(layer, [p.name for p in parameters[1:]], family, base.__doc__)
        return cls

    return show


def _documented(layer: Any, names: Sequence[str], family: Family, base: str) -> str:
    """Return the docstring of a layer: its own, with sections on calls, parameters and so on before the examples."""
    sections = dict(re.findall(r"^(\w+)\n-+\n(.*?)(?:\n\n(?=\w+\n-)|\Z)", inspect.cleandoc(base), re.M | re.S))
    entries = {text.partition(" : ")[0]: text for text in re.findall(r"^\w.*(?:\n .*)*", sections["Parameters"], re.M)}
    entries |= {name: option.documented(name) for name, option in {**family.options, **drawn(family)}.items()}
    entries |= {name: family.options[own].documented(name) for name, own in RENAMED.items() if own in family.options}
    sections["Parameters"] = "\n".join(entries[name] for name in names)
    of_calls = inspect.cleandoc(layer.__base__.__doc__).split("\n\n")[1:]  # shared texts
    head, heading, rest = inspect.cleandoc(layer.__doc__).partition("Examples\n--------\n")
    shared = [f"{name}\n{'-' * len(name)}\n{sections[name]}\n\n" for name in ("Parameters", "Attributes", "Raises")]
    return "".join([head, *(f"{text}\n\n" for text in of_calls), *shared, heading, rest])
