"""Errors on the command line name options as they are typed: `--label-kind`, not `label_kind`."""

import re

from varlen_rnn.errors import InputError

_IN_CODE = re.compile(r"`(\w+)(?:=([^`]*))?`")


def as_typed(error, names):
    """Return the message of an error with the options of the command, `names`, in place of arguments of a function.

    `compare` has `field` for the argument `sequence` of readers.

    Examples
    --------
    >>> error = InputError("read, label_kind", expected="a kind", got="'label_kind'", hint="`missing='drop'` helps")
    >>> print(as_typed(error, {"label_kind": None, "missing": "error"}))
    --label-kind: expected a kind, got 'label_kind' (--missing drop helps)
    """
    if not isinstance(error, InputError) or not hasattr(error, "what"):
        return str(error)
    names = {name: name.replace("_", "-") for name in names}
    if "field" in names:
        names["sequence"] = "field"
    parts = str(error.what).removeprefix("read, ").split(", ")  # `read` is a function of Python
    what = (
        ", ".join(f"--{names[part]}" for part in parts)
        if names.keys() >= set(parts)
        else _code_as_typed(str(error.what), names)
    )
    said = error.expected, error.hint
    expected, hint = (part if part is None else _code_as_typed(str(part), names) for part in said)
    return str(InputError(what, expected=expected, got=error.got, hint=hint))


def _code_as_typed(text, names):
    """Return a text in which `name` and `name=value`, in backticks, are options."""

    def typed(match):
        name, value = match.groups()
        if name not in names:
            return match[0]
        if value == "None":
            return f"no --{names[name]}"
        if value is None:
            return f"--{names[name]}"
        bare = value.strip("'\"")
        return f"--{names[name]} {bare}" if re.fullmatch(r"[\w.,-]+", bare) else f"--{names[name]} '{bare}'"

    return _IN_CODE.sub(typed, text)
