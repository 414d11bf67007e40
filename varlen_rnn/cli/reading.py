"""Command-line options for reading a data file, which are the options of `data.read`."""

import sys
from pathlib import Path

from varlen_rnn import data
from varlen_rnn.data.formats import FORMATS, SUFFIXES, fields_of, form_of
from varlen_rnn.data.labels import KINDS
from varlen_rnn.data.missing import MISSING
from varlen_rnn.data.options import Options
from varlen_rnn.errors import InputError, listed

_OPTIONS = (
    "format",
    "sequence",
    "label",
    "id",
    "time",
    "features",
    "ignore",
    "wide",
    "tokens",
    "delimiter",
    "missing",
    "label_kind",
)


def add_options(parser):
    """Add the options for reading a file to a parser."""
    add = parser.add_argument_group("how the file is read").add_argument
    add("--format", choices=sorted(FORMATS), help="by default what the suffix says")
    add("--sequence", metavar="COLUMN", help="the sequences: texts, or lists; default text")
    add("--label", metavar="COLUMN", help="the labels: classes or numbers, of sequences or of their steps")
    add("--id", metavar="COLUMN", help="of a row per step: what tells sequences apart")
    add("--time", metavar="COLUMN", help="of a row per step: the order within a sequence")
    add("--features", metavar="COLUMNS", help="the numbers, with commas between; default all other columns")
    add("--ignore", metavar="COLUMNS", help="of numbers in columns: those that are none, with commas between")
    add("--wide", action="store_true", default=None, help="a row is a series whose steps are its columns")
    add("--tokens", choices=["characters", "words", "list"], help="what texts are cut into; default by their length")
    add("--delimiter", metavar="CHARACTER", help="between columns; default a comma")
    add("--missing", choices=MISSING, help="of missing numbers; keep lets the model fill them; default error")
    add("--label-kind", choices=KINDS, help="default what labels look like")


def check_out(option, path, *inputs):
    """Raise if the folder of an output file does not exist, or if the file is one of the input files."""
    if path is None:
        return
    if Path(path).is_dir():
        raise InputError(option, expected="a file", got=f"the folder {path!r}" if path else "''")
    if not Path(path).absolute().parent.is_dir():
        raise InputError(option, expected="a file in a folder that is there", got=path)
    for other in inputs:
        if Path(path).exists() and Path(other).exists() and Path(path).samefile(other):
            raise InputError(option, expected="another file than those that are read", got=path)


def options_of(arguments):
    """Return a dict of the options that were given on the command line."""
    given = {name: getattr(arguments, name) for name in _OPTIONS if getattr(arguments, name) is not None}
    for option in given.keys() & {"features", "ignore"}:
        given[option] = [name.strip() for name in given[option].split(",")]
    return given


def columns_hint(arguments):
    """Return a hint that lists the columns of the data file, or None if they cannot be read."""
    path = arguments.data
    format = arguments.format or SUFFIXES.get(Path(path).suffix.lower())
    names = [] if format is None or path == "-" else fields_of(path, format, Options(delimiter=arguments.delimiter))
    return f"the columns are {listed(names)}" if names else None


def fitting(options, path):
    """Return the options that apply to the form of a file, which may differ from the training file's form."""
    format = options.get("format") or SUFFIXES.get(Path(path).suffix.lower(), "csv")
    form = form_of(FORMATS[format], Options(id=options.get("id"), wide=options.get("wide", False)))
    return {name: value for name, value in options.items() if name not in form.unused}


def read(path, options):
    """Return the data set of a file, or of standard input if `path` is "-"."""
    if path == "-" and "format" not in options:
        raise InputError("standard input", expected="--format, as csv or jsonl", got="none")
    found = data.read(sys.stdin if path == "-" else path, **options)
    if empty := int((found.lengths == 0).sum()):
        print(f"{path}: {empty} of {len(found)} sequences have no rows", file=sys.stderr)
    return found
