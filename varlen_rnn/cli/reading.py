"""Command-line options for reading a data file, which are the options of `data.read`."""

import sys
from pathlib import Path

from varlen_rnn import data
from varlen_rnn.data.formats import FORMATS, SUFFIXES, fields_of
from varlen_rnn.data.options import OPTIONS, Options
from varlen_rnn.errors import InputError, listed

_OPTIONS = {name: option for name, option in OPTIONS.items() if option.command}


def add_options(parser):
    """Add the options for reading a file to a parser."""
    add = parser.add_argument_group("how the file is read").add_argument
    add("--format", choices=sorted(FORMATS), help="by default it follows from the suffix")
    for name, option in _OPTIONS.items():
        text = option.text.partition(".  ")[0].removesuffix(".")
        commas = "; with commas between" if option.command.get("metavar") == "COLUMNS" else ""
        add(f"--{name.replace('_', '-')}", help=f"{text[0].lower()}{text[1:]}{commas}", **option.command)


def check_out(option, path, *inputs):
    """Raise if the folder of an output file does not exist, or if the file is one of the input files."""
    if path is None:
        return
    if Path(path).is_dir():
        raise InputError(option, expected="a file", got=f"the folder {path!r}" if path else "''")
    if not Path(path).absolute().parent.is_dir():
        raise InputError(option, expected="a file in a folder that exists", got=path)
    for other in inputs:
        if Path(path).exists() and Path(other).exists() and Path(path).samefile(other):
            raise InputError(option, expected="a file that the command does not read", got=path)


def options_of(arguments):
    """Return a dict of the options that were given on the command line."""
    given = {name: value for name in ("format", *_OPTIONS) if (value := getattr(arguments, name)) is not None}
    for option in given:
        if option in _OPTIONS and _OPTIONS[option].command.get("metavar") == "COLUMNS":
            given[option] = [name.strip() for name in given[option].split(",")]
    return given


def columns_hint(arguments):
    """Return a hint that lists the columns of the data file, or None if they cannot be read."""
    path = arguments.data
    format = arguments.format or SUFFIXES.get(Path(path).suffix.lower())
    names = [] if format is None or path == "-" else fields_of(path, format, Options(delimiter=arguments.delimiter))
    return f"the columns are {listed(names)}" if names else None


def notes_of(options, data):
    """Return the options with which a model reads other files, which can have further columns or steps."""
    named = {"features": list(data.features)} if data.features and not options.get("wide") else {}
    return {name: value for name, value in options.items() if name != "format"} | named


def fitting(options, path):
    """Return the options that apply to the form of a file, which may differ from the training file's form."""
    format = FORMATS[options.get("format") or SUFFIXES.get(Path(path).suffix.lower(), "csv")]
    unused = format.unused(format.form_of(Options(id=options.get("id"), wide=options.get("wide", False))))
    return {name: value for name, value in options.items() if name not in unused}


def read(path, options):
    """Return the data set of a file, or of standard input if `path` is "-"."""
    if path == "-" and "format" not in options:
        raise InputError("standard input", expected="an option such as --format csv", got="no --format")
    found = data.read(sys.stdin if path == "-" else path, **options)
    if empty := int((found.lengths == 0).sum()):
        print(f"{path}: {empty} of {len(found)} sequences have no rows", file=sys.stderr)
    return found
