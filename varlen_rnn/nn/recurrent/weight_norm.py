"""Weight normalisation: replace a module's parameter by a direction and a length for each of its rows."""

from __future__ import annotations

import numpy as np

from varlen_rnn.errors import DTypeError, ProgramError, ShapeError, shown
from varlen_rnn.nn.module import Module, Parameter


def weight_norm(module: Module, name: str = "weight") -> Module:
    """Replace the parameter `name` by two others: `{name}_g`, the length of each row, and `{name}_v`, its direction.

    Each forward pass computes the parameter from them as `g * v / |v|`, row by row.  The replacement does not change
    results.

    Parameters
    ----------
    module : Module
        The module; it is changed in place and returned.
    name : str
        The name of a parameter with two axes, such as `"weight_hh_l0"`.

    Raises
    ------
    ProgramError
        If the module has no parameter of this name.
    ShapeError
        If the parameter does not have two axes.

    Examples
    --------
    >>> from varlen_rnn.nn import GRU
    >>> layer = weight_norm(GRU(2, 3), "weight_hh_l0")
    >>> layer.weight_hh_l0_g.shape, layer.weight_hh_l0_v.shape, layer.weight_hh_l0.shape
    ((9, 1), (9, 3), (9, 3))

    Source: Salimans and Kingma (2016), "Weight normalization"; names and shapes of `torch.nn.utils.weight_norm`.
    """
    if not isinstance(module, Module):
        raise DTypeError("weight_norm, module", expected="a Module", got=type(module).__name__)
    weight = vars(module).get(name) if isinstance(name, str) else None
    if not isinstance(weight, Parameter):
        names = [own for own, value in vars(module).items() if isinstance(value, Parameter)]
        raise ProgramError("weight_norm, name", expected=f"a parameter's name, one of {names}", got=shown(name))
    if weight.ndim != 2:
        raise ShapeError(f"weight_norm, {name}", expected="a parameter with two axes", got=f"shape {weight.shape}")
    delattr(module, name)
    setattr(module, f"{name}_g", Parameter(np.linalg.norm(weight.data, axis=1, keepdims=True)))
    setattr(module, f"{name}_v", Parameter(weight.data))
    module.normalised = (*module.normalised, name)
    return module
