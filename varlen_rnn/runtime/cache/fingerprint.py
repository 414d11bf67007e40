"""Describe a function by text: its bytecode, the values that it closes over, and the functions that it calls."""

import hashlib
import types

import numpy as np


def fingerprint(value, seen=()):
    """Return text that changes whenever the machine code compiled from `value` may change.

    Examples
    --------
    >>> fingerprint(lambda x: x + 1) == fingerprint(lambda x: x + 2)
    False
    """
    function = getattr(value, "py_func", value)
    if isinstance(function, types.FunctionType):
        if function in seen:
            return "recursive"
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        parts = [function.__code__, function.__defaults__, *cells, *_used_globals(function)]
        inner = [fingerprint(part, (*seen, function)) for part in parts]
        return f"{function.__module__}.{function.__qualname__} {inner}"
    if isinstance(value, types.CodeType):
        return f"{value.co_code.hex()} {value.co_names} {[fingerprint(item, seen) for item in value.co_consts]}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, (int, float, str, bytes, np.generic, np.dtype, type(None))):
        return repr(value)
    if isinstance(value, tuple):
        return str([fingerprint(item, seen) for item in value])
    return type(value).__name__  # such a value comes from the sources that `environment` digests


def _used_globals(function):
    """Return the globals whose names occur in a function, and members of global modules whose names occur in it."""
    names = function.__code__.co_names
    used = [function.__globals__[name] for name in names if name in function.__globals__]
    modules = [value for value in used if isinstance(value, types.ModuleType)]
    return used + [getattr(module, name) for module in modules for name in names if hasattr(module, name)]
