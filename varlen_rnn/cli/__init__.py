"""The command line, `python -m varlen_rnn` or `varlen-rnn`, with one module per command."""

import argparse
import os
import re
import sys

from varlen_rnn.cli import cache, compare, export, predict, show, train
from varlen_rnn.errors import InputError
from varlen_rnn.runtime.precision import PRECISIONS, at_precision

_COMPUTING = "compare", "train", "predict", "evaluate"  # commands that take --precision
_IN_CODE = re.compile(r"`(\w+)(?:=([^`]*))?`")


def main(argv=None):
    """Run a command, and return its exit status: 0, 130 after Ctrl-C, or 2 after an error, which is printed.

    If the reader of the output ends early, as `head` does, the status is 0.  `argv` is the command with its arguments,
    by default `sys.argv[1:]`.
    """
    try:
        status = _run(argv)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The interpreter writes the remaining output when it ends, which would fail again, so it goes to /dev/null.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(argv):
    parser = argparse.ArgumentParser(
        prog="varlen-rnn", description="Recurrent networks on variable-length sequences, without padding."
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for module in (cache, compare, show, train, predict, export):
        module.add_to(commands)
    for name in _COMPUTING:
        text = "the precision of products of float32; default fp32; bf16-avx512 is faster on AMD's Zen 4 and later"
        commands.choices[name].add_argument("--precision", choices=PRECISIONS, help=text)
    arguments = parser.parse_args(argv)
    if not hasattr(arguments, "run"):
        parser.print_help()
        return 0
    try:
        at_precision(getattr(arguments, "precision", None), arguments.run, arguments)
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        return 130  # the convention of shells: 128 plus the number of the signal
    except (InputError, OSError, MemoryError) as error:
        print(f"varlen-rnn: {as_typed(error, vars(arguments))}", file=sys.stderr)
        return 2
    return 0


def as_typed(error, names):
    """Return the message of an error with options, such as `--label`, in place of the arguments of a function.

    `names` are the options of the command.  The option `field` of `compare` is the argument `sequence` of readers.

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
    # Users of the command line do not call the function `data.read`, which the prefix names.
    parts = str(error.what).removeprefix("read, ").split(", ")
    what = (
        ", ".join(f"--{names[part]}" for part in parts)
        if names.keys() >= set(parts)
        else _code_as_typed(str(error.what), names)
    )
    said = error.expected, error.hint
    expected, hint = (part if part is None else _code_as_typed(str(part), names) for part in said)
    return str(InputError(what, expected=expected, got=error.got, hint=hint))


def _code_as_typed(text, names):
    """Return a text in which `name` and `name=value`, in backticks, are replaced by options as they are typed."""

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
