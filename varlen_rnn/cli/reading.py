"""Options that say how a data file is read, as `data.read` has them."""

import sys

from varlen_rnn import data
from varlen_rnn.data.labels import KINDS
from varlen_rnn.data.read import FORMATS
from varlen_rnn.data.readers import MISSING

_OPTIONS = (
    "format",
    "sequence",
    "label",
    "id",
    "time",
    "features",
    "wide",
    "tokens",
    "delimiter",
    "missing",
    "label_kind",
)


def add_options(parser):
    """Add the options to a parser."""
    add = parser.add_argument_group("how the file is read").add_argument
    add("--format", choices=sorted(set(FORMATS.values())), help="by default what the suffix says")
    add("--sequence", metavar="COLUMN", help="the sequences: texts, or lists; default text")
    add("--label", metavar="COLUMN", help="the labels: classes or numbers, of sequences or of their steps")
    add("--id", metavar="COLUMN", help="of a row per step: what tells sequences apart")
    add("--time", metavar="COLUMN", help="of a row per step: the order within a sequence")
    add("--features", metavar="COLUMNS", help="the numbers, with commas between; default all other columns")
    add("--wide", action="store_true", default=None, help="a row is a series whose steps are its columns")
    add("--tokens", choices=["characters", "words", "list"], help="what texts are cut into; default by their length")
    add("--delimiter", metavar="CHARACTER", help="between columns; default a comma")
    add("--missing", choices=MISSING, help="what becomes of missing numbers; default error")
    add("--label-kind", choices=KINDS, help="default what labels look like")


def options_of(arguments):
    """Return the options that were given, by name."""
    given = {name: getattr(arguments, name) for name in _OPTIONS if getattr(arguments, name) is not None}
    if "features" in given:
        given["features"] = [name.strip() for name in given["features"].split(",")]
    return given


def read(path, options):
    """Return the data set of a file, or of standard input, "-"."""
    return data.read(sys.stdin if path == "-" else path, **options)
