"""The command line, `python -m varlen_rnn` or `varlen-rnn`: one module per command."""

import argparse
import os
import sys

from varlen_rnn.cli import cache, compare, predict, show, train
from varlen_rnn.errors import InputError


def main(argv=None):
    """Run a command, and return its exit status: 0, 130 after Ctrl-C, or 2 after a line with the error.

    Nothing is wrong where nobody reads on, as `head` does not.

    Parameters
    ----------
    argv : list of str, optional
        The command and its arguments; by default the arguments of the process.

    Examples
    --------
    >>> main(["compare", "/no/such/file"])
    2
    """
    try:
        status = _run(argv)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except BrokenPipeError:
        # What is left would be written, and fail again, when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(argv):
    parser = argparse.ArgumentParser(
        prog="varlen-rnn", description="Recurrent networks on variable-length sequences, without padding."
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    cache.add_to(commands)
    compare.add_to(commands)
    show.add_to(commands)
    train.add_to(commands)
    predict.add_to(commands)
    arguments = parser.parse_args(argv)
    if not hasattr(arguments, "run"):
        parser.print_help()
        return 0
    try:
        arguments.run(arguments)
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        return 130  # as shells have it: 128 and the number of the signal
    except (InputError, OSError, MemoryError) as error:
        print(f"varlen-rnn: {error}", file=sys.stderr)
        return 2
    return 0
