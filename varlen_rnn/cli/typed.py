"""Errors on the command line name options as they are typed: `--label-kind`, not `label_kind`."""

import re

from varlen_rnn.errors import InputError

_IN_CODE = re.compile(r"`(\w+)(?:=([^`]*))?`")


def as_typed(error, names):
    """Return the message of an error with the options of the command in place of the arguments of a function.

    Parameters
    ----------
    error : Exception
    names : iterable of str
        The arguments that are options of the command.

    Examples
    --------
    >>> error = InputError("read, label_kind", expected="a kind", got="'label_kind'", hint="`missing='drop'` helps")
    >>> print(as_typed(error, ["label_kind", "missing"]))
    --label-kind: expected a kind, got 'label_kind' (--missing drop helps)
    """
    if not isinstance(error, InputError) or not hasattr(error, "what"):
        return str(error)
    names = set(names)
    parts = str(error.what).removeprefix("read, ").split(", ")  # `read` is a function of Python
    what = ", ".join(map(_option, parts)) if names.issuperset(parts) else _code_as_typed(str(error.what), names)
    expected = error.expected if error.expected is None else _code_as_typed(str(error.expected), names)
    hint = error.hint if error.hint is None else _code_as_typed(str(error.hint), names)
    return str(InputError(what, expected=expected, got=error.got, hint=hint))


def _option(name):
    return f"--{name.replace('_', '-')}"


def _code_as_typed(text, names):
    """Return a text in which `name` and `name=value`, in backticks, are options."""

    def typed(match):
        name, value = match.groups()
        if name not in names:
            return match[0]
        if value == "None":
            return f"no {_option(name)}"
        return _option(name) if value is None else f"{_option(name)} {_shell(value)}"

    return _IN_CODE.sub(typed, text)


def _shell(value):
    """Return a value of Python, such as 'classes of rows', as an argument of a shell."""
    bare = value.strip("'\"")
    return bare if re.fullmatch(r"[\w.,-]+", bare) else f"'{bare}'"
