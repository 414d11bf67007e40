"""Switch the recurrent layers of a torch model, in place, to the kernels of this library and back."""

from __future__ import annotations

import functools
import warnings
from typing import Any, TypeVar

import torch
from torch.nn.utils import parametrize

from varlen_rnn.errors import DTypeError
from varlen_rnn.torch import policies, transformers, xlstm
from varlen_rnn.torch.layers import GRU, LSTM, RNN

M = TypeVar("M", bound=torch.nn.Module)
_OURS = {torch.nn.RNN: RNN, torch.nn.LSTM: LSTM, torch.nn.GRU: GRU}
_KNOWN = {**policies.KNOWN, **transformers.KNOWN, **xlstm.KNOWN}
# Methods that torch's `forward` calls, but ours does not always.  A subclass that overrides one is not replaced.
_INHERITED = (
    "forward", "check_input", "check_hidden_size", "check_forward_args", "get_expected_hidden_size",
    "get_expected_cell_size", "permute_hidden",
)  # fmt: skip
_NAMED = 10  # how many layers a warning names at most


def replace(model: M) -> M:
    """Make every RNN, LSTM and GRU of a model run on the kernels of this library; return the model.

    Only the class of each layer changes; parameters, hooks and names stay the same, so an existing optimizer remains
    valid.  A subclass of torch's layers is replaced if it inherits `forward`.  If recurrent layers cannot be replaced,
    a warning says how many, names them, and gives the reason for each.

    A recurrent policy of sb3-contrib, and TorchRL's `LSTMModule` and `GRUModule`, run each episode as a sequence; their
    own code loops over steps, or pads.  In transformers, models with matrix states (Qwen3-Next, Qwen3.5, Mamba-2 and
    xLSTM) run on our kernels, and take packed sequences, as the layers of the package xlstm and TiRex's sLSTM do.

    Parameters
    ----------
    model : torch.nn.Module

    Warns
    -----
    UserWarning
        If a recurrent layer keeps torch's code: its class or the layer itself has a `forward` of its own, its weights
        were parametrised before, or it is compiled by `torch.jit`.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.LSTM(3, 4))
    >>> replace(model)[0].__class__.__module__
    'varlen_rnn.torch.layers'
    """
    left = []
    layer: Any
    for name, layer in _modules(model, "replace"):
        compiled_from = getattr(layer, "original_name", None) if isinstance(layer, torch.jit.ScriptModule) else None
        is_recurrent = isinstance(layer, torch.nn.RNNBase) or compiled_from in {cls.__name__ for cls in _OURS}
        if not is_recurrent and _mixin_of(type(layer)) is not None and "_replaces" not in vars(type(layer)):
            layer.__class__ = _ours_of(type(layer))  # type: ignore[arg-type]
        if not is_recurrent or issubclass(type(layer), tuple(_OURS.values())):
            continue
        if reason := _reason(layer):
            left.append(f"{name or 'the model'!r} ({reason})")
        else:
            layer.__class__ = _ours_of(type(layer))  # type: ignore[arg-type]  # mypy takes no class for hashable
    if left:
        shown = ", ".join(left[:_NAMED]) + (f" and {len(left) - _NAMED} more" if len(left) > _NAMED else "")
        verb = "layer keeps" if len(left) == 1 else "layers keep"
        warnings.warn(f"replace: {len(left)} recurrent {verb} torch's code: {shown}", stacklevel=2)
    return model


def restore(model: M) -> M:
    """Undo `replace`: make every replaced layer of a model a torch layer again; return the model.

    Examples
    --------
    >>> restore(replace(torch.nn.LSTM(3, 4))).__class__ is torch.nn.LSTM
    True
    """
    theirs = {ours: torchs for torchs, ours in _OURS.items()}
    for _, layer in _modules(model, "restore"):
        if (cls := theirs.get(type(layer)) or vars(type(layer)).get("_replaces")) is not None:
            layer.__class__ = cls
    return model


def _modules(model: torch.nn.Module, name: str) -> list[tuple[str, Any]]:
    if not isinstance(model, torch.nn.Module):
        raise DTypeError(f"{name}, model", expected="a torch.nn.Module", got=type(model).__name__)
    return list(model.named_modules())


def _mixin_of(cls: type) -> Any:
    """Return the mixin for a class of another package or its subclass; None if that class has a method of its own."""
    for base in cls.__mro__:
        method, mixin = _KNOWN.get(f"{base.__module__}.{base.__qualname__}", ("", None))
        if mixin is not None:
            return mixin if getattr(cls, method, cls) is getattr(base, method, None) else None
    return None


def _base(cls: type) -> Any:
    return next((base for base in _OURS if issubclass(cls, base)), None)


def _reason(layer: torch.nn.Module) -> str | None:
    """Return why a recurrent layer cannot be replaced, or None if it can."""
    cls = type(layer)
    if isinstance(layer, torch.jit.ScriptModule):
        return "compiled by torch.jit: replace first, then trace"
    if parametrize.is_parametrized(layer):
        return "parametrised before: replace first, then parametrise"
    base = _base(cls)
    if base is None:
        return f"{cls.__name__} is no subclass of RNN, LSTM or GRU"
    for name in _INHERITED:
        if getattr(cls, name, None) is not getattr(base, name, None):
            return f"{cls.__name__} has its own {name}"
        if name in vars(layer):
            return f"the layer itself has its own {name}"
    return None


@functools.cache
def _ours_of(cls: Any) -> Any:
    """Return our class for a class of torch or another package, or for a subclass that inherits its code."""
    if cls in _OURS:
        return _OURS[cls]
    first = _mixin_of(cls) or _OURS[_base(cls)]
    names = {name: getattr(cls, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(cls.__name__, (first, cls), {**names, "__reduce_ex__": _reduced, "_replaces": cls})


def _reduced(layer: Any, protocol: Any) -> Any:
    """Return how to copy and pickle a replaced layer of a subclass: pickle cannot find its class by name."""
    return _unpickled, (type(layer)._replaces,), layer.__getstate__()


def _unpickled(cls: type) -> Any:
    return object.__new__(_ours_of(cls))
