"""The command `export MODEL --c FOLDER`: write a saved program as a C library."""

from pathlib import Path

from varlen_rnn.c_library.export import export
from varlen_rnn.cli.show import program_of
from varlen_rnn.errors import InputError


def add_to(commands):
    """Add the command `export` to the commands of a parser."""
    text = (
        "Write a saved program for inference as a C library, which needs no Python: kernels, weights, a header, an "
        "example, and a Makefile. All names of the library begin with the name of the folder."
    )
    parser = commands.add_parser("export", help="write a saved program as a C library", description=text)
    parser.add_argument("model", metavar="MODEL", help="a file of Program.save, or a folder of save_inference_model")
    parser.add_argument("--c", metavar="FOLDER", required=True, help="a folder for the library; it is created")
    of_states = "a feed that is a state of a stream, and the fetch with the state after a row; can be repeated"
    parser.add_argument("--state", metavar="FEED=FETCH", action="append", default=[], help=of_states)
    parser.set_defaults(run=_export)


def _export(arguments):
    states = dict(text.partition("=")[::2] for text in arguments.state)
    if not all(states.values()):
        raise InputError("export, state", expected="FEED=FETCH", got=" ".join(arguments.state))
    export(program_of(Path(arguments.model)), Path(arguments.c), states)
    print(f"{arguments.c}: run `make check` there to build the library and to compare its bits")
