"""Switch the recurrent layers of a torch model, in place, to the kernels of this library and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch

from varlen_rnn.errors import DTypeError
from varlen_rnn.torch.layers import GRU, LSTM, RNN

M = TypeVar("M", bound=torch.nn.Module)
_OURS = {torch.nn.RNN: RNN, torch.nn.LSTM: LSTM, torch.nn.GRU: GRU}
_TORCHS = {ours: theirs for theirs, ours in _OURS.items()}


def replace(model: M) -> M:
    """Make every RNN, LSTM and GRU of a model run on the kernels of this library; return the model.

    Only the class of each layer changes; parameters, hooks and names stay the same, so an existing optimizer remains
    valid.  Subclasses of torch's layers are not replaced, because they may define their own `forward`.

    Parameters
    ----------
    model : torch.nn.Module

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.LSTM(3, 4))
    >>> replace(model)[0].__class__.__module__
    'varlen_rnn.torch.layers'
    """
    return _with_classes(model, _OURS, "replace")


def restore(model: M) -> M:
    """Undo `replace`: make every replaced layer of a model a torch layer again; return the model.

    Examples
    --------
    >>> restore(replace(torch.nn.LSTM(3, 4))).__class__ is torch.nn.LSTM
    True
    """
    return _with_classes(model, _TORCHS, "restore")


def _with_classes(model: M, classes: Mapping[Any, type], name: str) -> M:
    if not isinstance(model, torch.nn.Module):
        raise DTypeError(f"{name}, model", expected="a torch.nn.Module", got=type(model).__name__)
    for module in model.modules():
        if type(module) in classes:
            module.__class__ = classes[type(module)]
    return model
