"""Names that PyTorch has and this library has not: reading one raises an error with the name here."""

from collections.abc import Mapping
from typing import Any, NoReturn


class Elsewhere:
    """An attribute that is not there; the error about it names the attribute that is.

    Parameters
    ----------
    here : str
        The code to write instead.

    Examples
    --------
    >>> class Rows:
    ...     view = Elsewhere("reshape(...)")
    >>> Rows().view
    Traceback (most recent call last):
    AttributeError: 'Rows' object has no attribute 'view' (write reshape(...))
    >>> hasattr(Rows(), "view")
    False
    """

    def __init__(self, here: str) -> None:
        self.here = here

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> NoReturn:
        message = f"{owner.__name__!r} object has no attribute {self.name!r} (write {self.here})"
        raise AttributeError(message, name=self.name, obj=owner if instance is None else instance)


def missing_name(module: str, name: str, here: Mapping[str, str]) -> AttributeError:
    """Return the error for a name that a module does not have; `here` has the code that replaces some of them.

    Examples
    --------
    >>> missing_name("my.functional", "cat", {"cat": "concat(variables, axis)"})
    AttributeError("module 'my.functional' has no attribute 'cat' (write concat(variables, axis))")
    """
    hint = f" (write {here[name]})" if name in here else ""
    return AttributeError(f"module {module!r} has no attribute {name!r}{hint}", name=name)
