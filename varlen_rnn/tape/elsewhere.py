"""Names that PyTorch or NumPy has but this library lacks: reading such a name raises an error with the code to write.

The names are in `varlen_rnn/foreign.py`.
"""

import sys
from typing import Any, NoReturn

from varlen_rnn import foreign

_PACKAGE = "varlen_rnn"
# The modules to search for a name that another module lacks, the most likely module first.
_PLACES = ("nn", "nn.functional", "", "optim", "optim.lr_scheduler", "data", "metrics", "training", "distributed")


class Elsewhere:
    """An attribute that the class lacks: reading it raises an error with `here`, the code to write instead."""

    def __init__(self, here: str) -> None:
        self.here = here

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> NoReturn:
        raise missing_attribute(owner, self.name, self.here, owner if instance is None else instance)


def missing_attribute(owner: type, name: str, here: str, found: object) -> AttributeError:
    """Return the error for a name that a class lacks; it shows the code to write instead, `here`."""
    message = f"{owner.__name__!r} object has no attribute {name!r} (write {here})"
    return AttributeError(message, name=name, obj=found)


def missing_name(module: str, name: str) -> AttributeError:
    """Return the error for a name that a module lacks, with the code to write instead, if that is known."""
    here = foreign.MODULES[module].get(name) or _place_of(name) or foreign.FUNCTIONS.get(name) or _method(name)
    message = f"module {module!r} has no attribute {name!r}"
    if here is None:
        return AttributeError(message, name=name, obj=sys.modules[module])  # Python adds a name that is alike
    return AttributeError(f"{message} (write {here})", name=name)


def _place_of(name: str) -> str | None:
    """Return a name with the module of the package that has it, such as `nn.Linear`, or None if no module has it."""
    for place in _PLACES:
        module = sys.modules.get(f"{_PACKAGE}.{place}".rstrip("."))
        if name in getattr(module, "__all__", ()):
            return f"{place}.{name}".lstrip(".")
    return None


def _method(name: str) -> str | None:
    """Return a call of the public method of a Variable with this name, or None if it has no such method."""
    variable = getattr(sys.modules.get(_PACKAGE), "Variable", None)
    return f"x.{name}(...)" if name[:1] != "_" and callable(getattr(variable, name, None)) else None
