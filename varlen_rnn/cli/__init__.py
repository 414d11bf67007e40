"""The command line, `python -m varlen_rnn` or `varlen-rnn`, with one module per command."""

import argparse
import os
import sys

from varlen_rnn.cli import cache, compare, predict, show, train
from varlen_rnn.cli.typed import as_typed
from varlen_rnn.errors import InputError


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
    for module in (cache, compare, show, train, predict):
        module.add_to(commands)
    arguments = parser.parse_args(argv)
    if not hasattr(arguments, "run"):
        parser.print_help()
        return 0
    try:
        arguments.run(arguments)
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        return 130  # the convention of shells: 128 plus the number of the signal
    except (InputError, OSError, MemoryError) as error:
        print(f"varlen-rnn: {as_typed(error, vars(arguments))}", file=sys.stderr)
        return 2
    return 0
